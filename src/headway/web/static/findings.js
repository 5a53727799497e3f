// Findings and incidents as in the report, with filters and buttons that copy a remedy.
import { badge, byId, element, facts, folded, prose, table } from "./common.js";

const FEW = 8;
let causes = [], incidents = [], all = false;
const made = new Map();

function step(item) {
  if (item.step === null) return null;
  const button = element("button", "jump", "step " + item.step);
  button.type = "button";
  button.dataset.x = String(item.x);
  return button;
}

async function copy(words, button) {
  let message = "Copied.";
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    message = fallback(words) ? "Copied." : "The browser does not allow copying: select the text instead.";
  }
  byId("status").textContent = message;
  const before = button.textContent;
  button.textContent = message === "Copied." ? "copied" : "not copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

// Without a secure context (plain http to another machine) there is no clipboard API.
function fallback(words) {
  const field = element("textarea", "unseen");
  field.value = words;
  field.setAttribute("aria-hidden", "true");
  document.body.append(field);
  const back = document.activeElement;
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (back) back.focus({ preventScroll: true });
  return done;
}

function copyButton(words, label = "copy") {
  const button = element("button", "copy noprint", label);
  button.type = "button";
  if (label === "copy") button.setAttribute("aria-label", "copy: " + words.slice(0, 80));
  button.addEventListener("click", () => copy(words, button));
  return button;
}

// An incident for an issue or a chat.
function markdown(item) {
  const rows = (head, body) => [head, head.map(() => "---"), ...body].map((cells) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`).join("\n");
  const code = (kind, lines) => "```" + kind + "\n" + lines.join("\n") + "\n```";
  const parts = [`### ${item.title} (step ${item.step})`, ...item.sentences];
  item.origins.forEach((each, at) => {
    if (each.place) parts.push(`At \`${each.place.at}\`, ${each.where}:`);
    if (at === 0 && item.context.length) parts.push(code("", item.context.map(([number, line, bad]) => `${bad ? ">" : " "} ${number} | ${line}`)));
    if (each.operands.length) parts.push(rows(item.columns, each.operands));
  });
  for (const fix of item.fixes) if (fix.diff.length) parts.push(`${fix.trial || "not tested"}:`, code("diff", fix.diff));
  if (item.around) parts.push(rows(item.around.columns, item.around.rows));
  return parts.join("\n\n") + "\n";
}

function diff(lines) {
  if (!lines || !lines.length) return null;
  const kinds = { "+": "line added", "-": "line removed" };
  const shown = element("pre", "context diff", element("code", "", ...lines.map((line) => element("span", kinds[line[0]] || "line", line))));
  shown.tabIndex = 0;
  return shown;
}

function cure(words, kind, mark, tried, why, lines) {
  const sign = element("span", "mark", mark);
  sign.setAttribute("aria-hidden", "true");
  return element("li", kind, sign,
    element("span", "cure", ...prose(words), tried ? element("span", "tried", " " + tried) : null, why ? element("span", "quiet", " (" + why + ")") : null, diff(lines)),
    copyButton(words));
}

function remedies(items, title = "What to do") {
  if (!items.length) return null;
  const list = items.map((item) => cure(item.text, ...(!item.tested ? ["untested", "→"] : item.cured ? ["cured", "✓"] : ["failed", "✗"]), item.trial, "", item.diff));
  return element("div", "", element("h4", "", title), element("ul", "remedies", ...list));
}

function article(cause) {
  const shown = element("article", "cause " + cause.severity);
  shown.id = cause.key;
  shown.tabIndex = -1;
  shown.append(element("h3", "", badge(cause.severity, cause.severity), ` ${cause.code} ${cause.name} `, step(cause)), element("p", "", ...prose(cause.message)));
  if (cause.where || cause.source) {
    shown.append(element("div", "place",
      cause.where ? element("p", "", "at ", element("span", "mono", cause.where)) : null,
      cause.source ? element("pre", "", element("code", "", cause.source)) : null));
  }
  if (cause.incident !== null) {
    const link = element("a", "to-incident", "Show the incident");
    link.href = "#incident-" + cause.incident;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      open(cause.incident);
    });
    shown.append(element("p", "", link));
  }
  const cures = remedies(cause.remedies);
  if (cures) shown.append(cures);
  if (cause.evidence.length) shown.append(folded("Evidence", facts(cause.evidence)));
  if (cause.symptoms.length) {
    const list = cause.symptoms.map((item) => element("li", "", element("strong", "", `${item.code} ${item.name} `), step(item), " ", ...prose(item.message)));
    shown.append(element("div", "", element("h4", "", "Explains"), element("ul", "plain", ...list)));
  }
  return shown;
}

// Only changed items are rebuilt, so that nothing moves while the page is used.
function lay(box, items, make) {
  items.forEach((item, at) => {
    const key = box.id + " " + item.key;
    const text = JSON.stringify(item);
    let known = made.get(key);
    if (!known || known.text !== text) {
      const node = make(item);
      const opened = known && known.node.querySelector("details[open]");
      if (opened) node.querySelectorAll("details").forEach((inner) => { inner.open = true; });
      if (known && known.node.parentNode === box) known.node.replaceWith(node);
      known = { text, node };
      made.set(key, known);
    }
    if (box.children[at] !== known.node) box.insertBefore(known.node, box.children[at] || null);
  });
  while (box.children.length > items.length) box.lastChild.remove();
}

function matches(cause) {
  const words = byId("find").value.trim().toLowerCase(), severity = byId("severity").value, code = byId("code").value;
  const each = [cause, ...cause.symptoms];
  if (severity && !each.some((item) => item.severity === severity)) return false;
  if (code && !each.some((item) => item.code === code)) return false;
  return !words || each.some((item) => [item.code, item.name, item.message, item.where, item.source, ...item.remedies.map((remedy) => remedy.text)]
    .some((text) => text.toLowerCase().includes(words)));
}

function choices() {
  const select = byId("code"), chosen = select.value;
  const codes = [...new Set(causes.flatMap((cause) => [cause, ...cause.symptoms].map((item) => item.code)))].sort();
  if (codes.join() === [...select.options].slice(1).map((option) => option.value).join()) return;
  select.replaceChildren(new Option("all", ""), ...codes.map((code) => new Option(code, code)));
  select.value = codes.includes(chosen) ? chosen : "";
}

function list() {
  byId("causes").hidden = !causes.length;
  choices();
  const wanted = causes.filter(matches);
  const few = all ? wanted : wanted.slice(0, FEW);
  lay(byId("findings"), few, article);
  const more = byId("more");
  more.hidden = few.length === wanted.length;
  more.textContent = `Show all ${wanted.length}`;
  const text = wanted.length === causes.length ? `${causes.length} ${causes.length === 1 ? "cause" : "causes"}` : `${wanted.length} of ${causes.length} causes`;
  if (byId("found").textContent !== text) byId("found").textContent = text;
}

function line(place) {
  return place && element("p", "", "at ", element("span", "mono", place.at));
}

function source(context, place) {
  if (context.length) {
    const lines = context.map(([number, code, bad]) => element("span", bad ? "line bad" : "line",
      element("span", "number", number), code + "\n"));
    const shown = element("pre", "context", element("code", "", ...lines));
    shown.tabIndex = 0;
    shown.setAttribute("role", "region");
    shown.setAttribute("aria-label", "source around the line");
    return shown;
  }
  if (!place || !place.source) return null;
  return element("pre", "", element("code", "", element("span", "number", place.line), " " + place.source));
}

function origin(item, columns, context) {
  return element("div", "place", line(item.place), source(context, item.place), line(item.called_from), element("p", "quiet", item.where),
    item.operands.length ? table("Tensors of the op", columns, item.operands, [3, 4, 5, 6, 7]) : null);
}

function incident(item) {
  const shown = element("article", "cause incident");
  shown.id = "incident-" + item.number;
  shown.tabIndex = -1;
  const title = element("h3", "", item.title + " ", step(item), copyButton(markdown(item), "copy as Markdown"));
  title.id = shown.id + "-title";
  shown.setAttribute("aria-labelledby", title.id);
  const trials = item.trials.map((trial) => cure(trial.text, { cured: "cured", "not cured": "failed" }[trial.outcome] || "", trial.mark, trial.outcome, trial.why));
  const again = item.repeats.length ? element("p", "quiet", "The same cause again: ", ...item.repeats.flatMap((each) => [step(each), " "])) : "";
  shown.append(title, again, ...item.sentences.map((said) => element("p", "sentence", ...prose(said))),
    ...item.origins.map((each, at) => origin(each, item.columns, at === 0 ? item.context : [])));
  shown.append(...item.samples.map(sample));
  if (item.fixes.length) shown.append(remedies(item.fixes, "Tried on this step"));
  else if (trials.length) shown.append(element("div", "", element("h4", "", "Tried on this step"), element("ul", "remedies", ...trials)));
  if (item.around) shown.append(table("Before and after", item.around.columns, item.around.rows, [0, 1, 2], item.around.marked));
  if (item.facts.length) shown.append(facts(item.facts));
  return shown;
}

// A failing sample: its pictures, texts and numbers.
function sample({ title, parts }) {
  return element("figure", "sample", element("figcaption", "", element("h4", "", title)), ...parts.map(({ name, about, lines, picture, is_text: isText }) => {
    let shown = lines.length ? element("p", "mono", lines.join(" ")) : null;
    if (picture) {
      shown = element("img", "pixels");
      shown.src = "data:image/png;base64," + picture;
      shown.alt = name + " as a picture";
    } else if (isText) {
      shown = element("pre", "context told", element("code", "", ...lines.map((line) => element("span", "line", line + "\n"))));
      shown.tabIndex = 0;
    }
    return element("div", "", element("p", "quiet", element("span", "mono", name), " " + about), shown);
  }));
}

export function open(number) {
  const shown = byId("incident-" + number);
  if (!shown) return;
  history.replaceState(null, "", "#incident-" + number);
  shown.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  shown.focus({ preventScroll: true });
}

export function show(details) {
  causes = details.causes;
  incidents = details.incidents.map((item) => ({ ...item, key: "incident " + item.number }));
  list();
  byId("incidents").hidden = !incidents.length;
  lay(byId("incident-list"), incidents, incident);
}

export function start() {
  for (const id of ["find", "severity", "code"]) byId(id).addEventListener("input", () => { all = false; list(); });
  byId("more").addEventListener("click", () => { all = true; list(); });
  // A mark in a chart opens its finding, whatever is filtered.
  document.addEventListener("openfinding", ({ detail }) => {
    if (byId(detail)) return;
    for (const id of ["find", "severity", "code"]) byId(id).value = "";
    all = true;
    list();
  });
}
