// Several runs in the same charts.
import { badge, byId, duration, element, fetchJson, figure, listen, number, paced, pointsWanted, table } from "./common.js";

import { grouped, groupings } from "./groups.js";
import { remember, tell } from "./notify.js";

const MOST = 64;
let chosen = new URLSearchParams(location.search).getAll("run"), group = new URLSearchParams(location.search).get("group") || "", received = null, runs = [], charts = null, view = null, drawing = null, coloured = "";

function query() {
  return chosen.map((id) => "run=" + encodeURIComponent(id)).join("&");
}

function keepAddress() {
  history.replaceState(null, "", "/compare?" + query() + (group ? "&group=" + encodeURIComponent(group) : "") + location.hash);
}

// By what the runs are grouped; a mean of them is drawn along steps.
function fillGroups() {
  const options = groupings(received), field = byId("group");
  if (!options.some(([key]) => key === group)) group = "";
  const signature = JSON.stringify(options);
  if (field.dataset.signature !== signature) {
    field.dataset.signature = signature;
    field.replaceChildren(...options.map(([key, words]) => new Option(words, key)));
  }
  field.value = group;
  field.closest("p").hidden = options.length < 2;
}
byId("group").addEventListener("change", () => {
  group = byId("group").value;
  keepAddress();
  if (received) draw();
});

function pick(run) {
  const box = element("input");
  box.type = "checkbox";
  box.checked = chosen.includes(run.id);
  box.disabled = !box.checked && chosen.length >= MOST;
  box.addEventListener("change", () => {
    chosen = box.checked ? [...chosen, run.id] : chosen.filter((id) => id !== run.id);
    keepAddress();
    picks();
    load();
  });
  const last = run.step === null ? "" : ` step ${run.step}, loss ${number(run.loss)}`;
  return element("label", "pick", box, " ", swatch(run), element("bdi", "", run.name), " ", badge(run.verdict, run.word.toLowerCase()), element("span", "quiet", last));
}

// The colour of its curves.
function swatch(run) {
  const made = element("span", "swatch"), at = drawing && charts ? drawing.runs.findIndex((known) => known.id === run.id) : -1;
  made.hidden = at < 0 || !chosen.includes(run.id);
  if (!made.hidden) made.style.background = charts.inkOf(drawing.colours ? drawing.colours[at] : at);
  return made;
}

function picks() {
  const focused = document.activeElement && document.activeElement.closest(".pick");
  const at = focused ? [...byId("picks").children].indexOf(focused) : -1;
  const words = byId("find").value.trim().toLowerCase();
  const wanted = (run) => !words || [run.name, run.note, ...run.tags.map((tag) => "#" + tag)].some((text) => text.toLowerCase().includes(words));
  const order = [...runs.filter((run) => chosen.includes(run.id)), ...runs.filter((run) => !chosen.includes(run.id))];
  byId("picks").replaceChildren(...order.filter(wanted).map(pick));
  byId("chosen").textContent = `${chosen.length} of ${runs.length}`;
  if (at >= 0 && byId("picks").children[at]) byId("picks").children[at].querySelector("input").focus();
}

const load = paced(async () => {
  const asked = query(), width = charts ? charts.follows() : 0;
  const shown = width && drawing ? { min: drawing.end - width, max: drawing.end + 10 * width } : view;
  const part = shown ? `&from=${Math.max(Math.floor(shown.min), 0)}&to=${Math.ceil(shown.max)}` : "";
  const next = await fetchJson(`/api/compare?${asked}${part}&points=${pointsWanted()}`);
  if (asked !== query()) { load(); return; }
  received = next;
  draw();
}, 800);

function draw() {
  fillGroups();
  drawing = group ? grouped(received, group) : received;
  const panels = [...drawing.panels, ...drawing.system];
  byId("system").hidden = !drawing.system.length;
  for (const panel of panels) {
    if (!document.querySelector(`.chart[data-panel="${panel.id}"]`)) byId(panel.small ? "system-charts" : "charts").append(figure(panel));
  }
  for (const holder of document.querySelectorAll(".chart")) {
    holder.closest("figure").hidden = !panels.some((panel) => panel.id === holder.dataset.panel);
  }
  const notes = [];
  if (group) notes.push("Curves are means; the band reaches from the lowest run to the highest.");
  if (chosen.length < 2) notes.push("Select two or more runs.");
  if (drawing.unknown) notes.push(`${drawing.unknown} of the selected runs ${drawing.unknown === 1 ? "does" : "do"} not exist.`);
  if (drawing.repeated.length) notes.push(`Steps repeated after a resume or a roll-back are drawn after the earlier ones: ${drawing.repeated.join(", ")}.`);
  byId("note").textContent = notes.join(" ");
  if (view) drawing.extent = { min: 0, max: Math.max(drawing.end, 1) };
  if (!charts) {
    if (drawing.panels.length) charts = window.headwayCharts(drawing, looked, true);
  } else {
    charts.update(drawing);
  }
  settings();
  const now = JSON.stringify([drawing.runs.map((run) => run.id), drawing.colours, Boolean(charts)]);
  if (now !== coloured) { coloured = now; picks(); }
  document.documentElement.dataset.compared = String(drawing.runs.length);
}

const RESULTS = [
  ["verdict", (run) => run.word.toLowerCase()], ["last step", (run) => String(run.step ?? "–")], ["loss", (run) => number(run.loss)],
  ["best loss", (run) => number(run.best)], ["duration", (run) => duration(run.seconds)], ["samples/s", (run) => number(run.throughput)],
];

// The value that most runs share; of equally many, that of the earlier run.
function mostCommon(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  const most = Math.max(...counts.values());
  return values.find((value) => counts.get(value) === most);
}

// What differs comes first; the runs that differ from the others are marked. The rest on demand.
function settings() {
  const rows = drawing.settings.filter(([, , differs]) => differs || !byId("only-different").checked);
  byId("settings").hidden = drawing.runs.length < 2;
  const results = RESULTS.map(([name, say]) => [name, ...drawing.runs.map(say)]);
  const shown = table(rows.length ? "Results and settings of the runs" : "Results of the runs; all recorded settings are the same", ["run", ...drawing.runs.map((run) => run.name)],
    [...results, ...rows.map(([name, values]) => [name, ...values.map((value) => value || "–")])]);
  rows.forEach(([, values, differs], at) => {
    const row = shown.querySelectorAll("tbody tr")[results.length + at], usual = mostCommon(values);
    if (differs) row.className = "differs";
    values.forEach((value, run) => { if (value !== usual) row.children[run + 1].className = "odd"; });
  });
  for (const cell of shown.querySelectorAll("tr > :first-child")) cell.classList.add("stays");
  const signature = shown.textContent;
  if (byId("settings-table").dataset.signature === signature) return;
  byId("settings-table").dataset.signature = signature;
  const before = byId("settings-table").querySelector(".scroll"), [left, focused] = before ? [before.scrollLeft, before === document.activeElement] : [0, false];
  byId("settings-table").replaceChildren(shown);
  shown.scrollLeft = left;
  if (focused) shown.focus({ preventScroll: true });
}
byId("only-different").addEventListener("change", () => { if (drawing) settings(); });

let soon = 0;
function looked(part, all) {
  view = all ? null : part;
  clearTimeout(soon);
  soon = setTimeout(load, 60);
}

byId("find").addEventListener("input", picks);
const refresh = paced(async () => picks(), 2000);

const list = paced(async () => {
  const all = await fetchJson("/api/runs");
  runs = all.runs.filter((run) => !run.why);
  byId("subject").textContent = all.folder;
  remember(all.runs);
  picks();
}, 3000);

listen({
  news({ runs: changed }) {
    tell(changed);
    runs = runs.map((known) => changed.find((run) => run.id === known.id && !run.why) || known);
    refresh();
    if ((!view || charts.follows()) && changed.some((run) => chosen.includes(run.id))) load();
    if (changed.some((run) => !runs.some((known) => known.id === run.id))) list();
  },
  again() { list(); load(); },
});
addEventListener("themechange", () => { if (charts) charts.redraw(); picks(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", picks);
list();
load();
