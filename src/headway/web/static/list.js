// The list of runs, each with its verdict.
import { age, badge, byId, duration, element, fetchJson, listen, number, paced } from "./common.js";
import { settingColumns } from "./columns.js";
import { remember, tell } from "./notify.js";

const MOST_COMPARED = 64;
const rows = new Map();
const chosen = new Set();
const SETTING = "set:";
let folder = null, leftOut = 0, sorted = { by: "", down: false };
const columns = settingColumns(() => { heads(); keepAddress(); for (const entry of rows.values()) fill(entry); arrange(); });
const VERDICTS = ["error", "interrupted", "warning", "unknown", "unsure", "reading", "healthy"];

function cell(label, className, ...inside) {
  const made = element("td", className, ...inside);
  made.dataset.label = label;
  return made;
}

function state(run) {
  if (run.state === "unreadable") return "cannot be read";
  return run.state + (run.changed ? ", " + age(run.changed) : "");
}

function health(run) {
  if (run.why) return [badge("unsure", "not read")];
  const text = [badge(run.verdict, run.word.toLowerCase())];
  const parts = [run.cause, run.problems].filter((words) => words);
  if (run.checked < 0.999) parts.push(Math.floor(run.checked * 100) + " % checked");
  if (parts.length) text.push(element("span", "quiet", parts.join(" · ")));
  return text;
}

function pick(run) {
  const box = element("input");
  box.type = "checkbox";
  box.checked = chosen.has(run.id);
  box.setAttribute("aria-label", "compare " + run.name);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.id); else chosen.delete(run.id);
    button();
  });
  return box;
}

function button() {
  const count = [...chosen].filter((id) => rows.has(id)).length;
  byId("compare").disabled = count < 2 || count > MOST_COMPARED;
  byId("compare").textContent = count ? `Compare ${count}` : "Compare";
  byId("compare").title = count > MOST_COMPARED ? `at most ${MOST_COMPARED}` : count < 2 ? "select two or more" : "";
}

function make(run) {
  const link = element("a", "", element("bdi", "", run.name));
  link.href = "/run/" + run.id;
  const row = element("tr");
  const heading = element("th", "name", link, element("span", "quiet source"), element("span", "quiet note"));
  heading.scope = "row";
  row.append(cell("", "pick", pick(run)), heading, cell("verdict", "health"), cell("state", "state"), cell("last step", "number"),
    ...["loss", "best loss", "duration", "steps/s", "samples/s", "lr", "batch"].map((label) => cell(label, "number")), cell("guard", "guard"));
  return { row };
}

function fill(entry) {
  const { run, row } = entry;
  const [, name, ...cells] = row.children;
  row.className = run.verdict + " " + run.state;
  name.querySelector(".source").textContent = run.source === "headway" ? "" : run.source;
  name.querySelector(".note").textContent = run.note;
  const words = [state(run), run.step ?? "–", number(run.loss), number(run.best), duration(run.seconds), number(run.speed), number(run.throughput),
    number(run.lr), run.batch ?? "–", run.ladder];
  cells[0].replaceChildren(...health(run));
  if (run.why) cells[0].append(element("span", "quiet", run.why));
  const settings = columns.names().map((name) => columns.value(run.id, name) || "–");
  while (cells.length > words.length + 1 + settings.length) cells.pop().remove();
  settings.forEach((text, at) => {
    const place = words.length + 1 + at, made = cells[place] || cell("", "setting");
    if (!cells[place]) { row.append(made); cells.push(made); }
    made.dataset.label = columns.names()[at];
    made.textContent = text;
  });
  words.forEach((text, at) => { if (cells[at + 1].textContent !== String(text)) cells[at + 1].textContent = text; });
}

function take(run) {
  let entry = rows.get(run.id);
  if (!entry) {
    entry = make(run);
    rows.set(run.id, entry);
  }
  entry.run = run;
  fill(entry);
}

function shown(run) {
  const words = byId("find").value.trim().toLowerCase(), which = byId("which").value;
  if (which === "bad" && !["error", "warning"].includes(run.verdict)) return false;
  if (which === "running" && run.state !== "running") return false;
  return !words || [run.name, run.cause, run.source, run.note, ...run.tags.map((tag) => "#" + tag)].some((text) => text.toLowerCase().includes(words));
}

// The value a column is sorted by; runs without one come last.
function rankOf(run) {
  if (sorted.by.startsWith(SETTING)) {
    const text = columns.value(run.id, sorted.by.slice(SETTING.length));
    return text === "" ? null : isFinite(text) ? Number(text) : text;
  }
  const value = run[sorted.by];
  if (sorted.by === "verdict") return VERDICTS.indexOf(value);
  if (typeof value === "string" && sorted.by !== "name") return value === "-Infinity" ? -Infinity : Infinity; // a loss that is not finite
  return value;
}

function bySort(a, b) {
  const [one, two] = [rankOf(a.run), rankOf(b.run)];
  if (one === null || two === null) return (one === null) - (two === null);
  const order = typeof one === "string" || typeof two === "string" ? String(one).localeCompare(String(two), undefined, { numeric: true }) : one - two;
  return sorted.down ? -order : order;
}

function sortBy(key, down = sorted.by === key && !sorted.down) {
  sorted = { by: key, down };
  markSorted();
  keepAddress();
  arrange();
}

function markSorted() {
  for (const button of document.querySelectorAll("[data-sort]")) {
    const mine = button.dataset.sort === sorted.by;
    if (mine) button.closest("th").setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    else button.closest("th").removeAttribute("aria-sort");
  }
}

// The headings of chosen settings come after the others.
function heads() {
  for (const old of document.querySelectorAll("#head .setting")) old.remove();
  byId("head").append(...columns.names().map((name) => {
    const button = element("button", "", name), head = element("th", "setting", button);
    button.type = "button";
    button.dataset.sort = SETTING + name;
    head.scope = "col";
    return head;
  }));
  if (sorted.by.startsWith(SETTING) && !columns.names().includes(sorted.by.slice(SETTING.length))) sorted = { by: "", down: false };
  markSorted();
}

// What is searched, sorted and shown is part of the address, so that it can be sent or come back to.
function keepAddress() {
  const said = new URLSearchParams();
  for (const id of ["find", "which"]) if (byId(id).value.trim()) said.set(id, byId(id).value.trim());
  if (sorted.by) said.set(sorted.down ? "down" : "sort", sorted.by);
  for (const name of columns.names()) said.append("column", name);
  const text = said.toString();
  history.replaceState(null, "", text ? "/?" + text : "/");
}

function visit() {
  const said = new URLSearchParams(location.search);
  byId("find").value = said.get("find") || "";
  if ([...byId("which").options].some((option) => option.value === said.get("which"))) byId("which").value = said.get("which");
  const names = said.getAll("column"), by = said.get("down") || said.get("sort") || "";
  if (by) sorted = { by, down: said.has("down") };
  if (names.length) columns.choose(names);
  markSorted();
}

function arrange() {
  const rank = { running: 0, silent: 1, ended: 1, unreadable: 2 };
  const order = [...rows.values()].sort((a, b) => rank[a.run.state] - rank[b.run.state] || b.run.changed - a.run.changed || (a.run.name < b.run.name ? -1 : 1));
  // Running runs change all the time: they are sorted by name, so that rows do not move.
  const running = order.filter(({ run }) => run.state === "running").sort((a, b) => a.run.name < b.run.name ? -1 : 1);
  const wanted = [...running, ...order.filter(({ run }) => run.state !== "running")].filter(({ run }) => shown(run));
  if (sorted.by) wanted.sort(bySort);
  const body = byId("rows");
  wanted.forEach(({ row }, at) => { if (body.children[at] !== row) body.insertBefore(row, body.children[at] || null); });
  while (body.children.length > wanted.length) body.lastChild.remove();
  const total = rows.size, more = leftOut ? `; ${leftOut} more are not listed` : "";
  const text = total === 0 ? "" : (wanted.length === total ? `${total} ${total === 1 ? "run" : "runs"}` : `${wanted.length} of ${total} runs`) + more;
  if (byId("count").textContent !== text) byId("count").textContent = text;
  byId("empty").hidden = total !== 0;
  document.querySelector("table.runs").hidden = total === 0;
  if (total === 0) {
    byId("empty").replaceChildren(element("p", "", "No runs yet. A run appears as soon as it is written below this folder: ", element("code", "", "Guard(model, optimizer, run_dir=…)"), " or ", element("code", "", "headway run train.py"), "."));
  }
  button();
}

const load = paced(async () => {
  const all = await fetchJson("/api/runs");
  folder = all.folder;
  leftOut = all.left_out;
  byId("subject").textContent = folder;
  document.title = "headway: " + folder;
  const there = new Set(all.runs.map((run) => run.id));
  for (const id of rows.keys()) if (!there.has(id)) rows.delete(id);
  all.runs.forEach(take);
  remember(all.runs);
  columns.refresh([...rows.keys()]);
  arrange();
  document.documentElement.dataset.ready = "yes";
}, 500);

byId("head").addEventListener("click", (event) => {
  const button = event.target.closest("[data-sort]");
  if (button) sortBy(button.dataset.sort);
});
byId("all").addEventListener("click", () => {
  const ids = [...rows.values()].map(({ run }) => run).filter((run) => !run.why && shown(run)).map((run) => run.id);
  const every = ids.every((id) => chosen.has(id));
  for (const id of ids) { if (every) chosen.delete(id); else chosen.add(id); }
  for (const [id, { row }] of rows) row.querySelector("input").checked = chosen.has(id);
  button();
});
for (const id of ["find", "which"]) byId(id).addEventListener("input", () => { keepAddress(); arrange(); });
byId("compare").addEventListener("click", () => {
  const ids = [...chosen].filter((id) => rows.has(id));
  location.href = "/compare?" + ids.map((id) => "run=" + id).join("&");
});
listen({
  news({ runs, gone }) {
    tell(runs);
    if (folder === null) return; // the whole list is on its way
    runs.forEach(take);
    columns.refresh(runs.map((run) => run.id));
    gone.forEach((id) => rows.delete(id));
    arrange();
  },
  again: load,
});
setInterval(() => { for (const { run, row } of rows.values()) row.querySelector(".state").textContent = state(run); }, 5000);
visit();
load();
