// One run: findings and charts, updated while it trains.
import { age, byId, duration, element, facts, fetchJson, figure, folded, listen, number, paced, pointsWanted, prose, table } from "./common.js";
import { open, show, start } from "./findings.js";
import { remember, tell } from "./notify.js";

const id = location.pathname.split("/").pop();
const at = "/api/runs/" + encodeURIComponent(id);
let summary = null, headline = "", length = "", drawing = null, charts = null, maps = [], changes = [], view = null, extent = null, reportVersion = null, opened = false;

// -- at a glance ----------------------------------------------------------------------------------

function glance() {
  for (const link of document.querySelectorAll("nav [data-part]")) link.hidden = byId(link.dataset.part).hidden;
  if (!summary) return;
  byId("verdict").className = "verdict " + summary.verdict;
  const said = headline || summary.word;
  if (byId("word").textContent !== said) byId("word").textContent = said;
  byId("level").hidden = said === summary.word;
  byId("level").textContent = summary.word;
  const parts = [summary.state + (summary.changed ? ", " + age(summary.changed) : "")];
  // The text is loaded with events; of a run that goes on, the length is newer in the summary.
  if (summary.state === "running") parts.push("training for " + duration(summary.seconds));
  else if (length) parts.push(length);
  if (summary.step !== null) parts.push("step " + summary.step);
  if (summary.loss !== null) parts.push("loss " + number(summary.loss));
  if (summary.speed) parts.push(number(summary.speed) + " steps/s");
  if (summary.ladder) parts.push("guard: " + summary.ladder);
  if (summary.problems) parts.push(summary.problems);
  byId("glance").textContent = parts.join(" · ");
  if (summary.why) byId("story").replaceChildren(element("p", "sentence", summary.why));
  reading();
}

function reading() {
  const drawn = drawing ? drawing.drawn : summary ? summary.drawn : 1;
  const checked = summary ? summary.checked : 1;
  const share = Math.min(drawn, checked);
  const running = summary !== null && summary.state === "running";
  byId("reading").hidden = share >= (running ? 0.97 : 0.999);
  byId("report").hidden = !byId("reading").hidden || !drawing || !opened;
  byId("progress").value = share * 100;
  const parts = [];
  if (drawn < 0.999) parts.push(`${Math.floor(drawn * 100)} % read; the charts show a sample of the rest`);
  if (summary && checked < 0.999) parts.push(checked ? `${Math.floor(checked * 100)} % checked` : "checks are running");
  byId("how-far").textContent = parts.join(", ");
}

// -- text -----------------------------------------------------------------------------------------

const loadDetails = paced(async () => {
  let details;
  try {
    details = await fetchJson(at);
  } catch (error) {
    if (error.status === 404) gone();
    throw error;
  }
  if (!summary) remember([details.summary]);
  summary = details.summary;
  byId("subject").textContent = summary.name;
  document.title = "headway: " + summary.name;
  headline = details.headline || "";
  length = details.length || "";
  const story = details.story || [summary.why || ""];
  byId("story").replaceChildren(...story.map((said) => element("p", "sentence", ...prose(said))));
  show(details);
  coverage(details);
  byId("environment").hidden = !details.facts.length && !details.notes.length;
  const notes = details.notes.map((note) => element("li", "", note));
  const known = [...details.facts];
  if (details.path) known.push(["folder", details.path]);
  byId("facts").replaceChildren(facts(known), element("ul", "plain", ...notes));
  glance();
  if (!opened && location.hash.startsWith("#incident-")) open(Number(location.hash.slice(10)));
  opened = true;
  document.documentElement.dataset.details = "yes";
}, 700);

function gone() {
  byId("story").replaceChildren(element("p", "sentence", "This run no longer exists."));
  headline = "Gone";
  byId("word").textContent = headline;
}

function coverage({ coverage: covered }) {
  byId("coverage").hidden = !covered;
  if (!covered) return;
  const count = covered.not_run.reduce((sum, [, codes]) => sum + codes.length, 0);
  const before = byId("covered").querySelector("details");
  const why = folded(`${count} checks did not run`, table("Checks that did not run", ["reason", "checks"], covered.not_run.map(([reason, codes]) => [reason, codes.join(", ")])));
  why.open = Boolean(before && before.open);
  const line = element("p", "", ...prose(covered.text + "."));
  const signature = JSON.stringify(covered);
  if (byId("covered").dataset.signature === signature) return;
  byId("covered").dataset.signature = signature;
  byId("covered").replaceChildren(line, ...(count ? [why] : []));
}

// -- charts ---------------------------------------------------------------------------------------

// The visible part, or the end of the run if that is followed: a little more than is there by now.
function part() {
  const width = charts ? charts.follows() : 0;
  return width && drawing ? { min: drawing.end - width, max: drawing.end + 10 * width } : view;
}

function range() {
  const view = part(), said = view ? `from=${Math.max(Math.floor(view.min), 0)}&to=${Math.ceil(view.max)}&` : "";
  return `?${said}points=${pointsWanted()}`;
}

const loadCharts = paced(async () => {
  const wanted = view;
  const next = await fetchJson(at + "/charts" + range());
  if (wanted !== view) { loadCharts(); return; } // the visible part has changed meanwhile
  drawing = next;
  draw();
}, 800);

const loadMaps = paced(async () => {
  const wanted = view;
  const next = await fetchJson(at + "/layers" + range());
  if (wanted !== view) { loadMaps(); return; }
  maps = next.maps;
  if (!wanted) changes = next.changes; // of a part of the run, nobody knows what came before
  draw();
}, 4000);

function draw() {
  if (!drawing) return;
  const panels = [...drawing.panels, ...drawing.components, ...drawing.system];
  byId("system").hidden = !drawing.system.length;
  for (const panel of panels) {
    const known = document.querySelector(`.chart[data-panel="${panel.id}"]`);
    if (!known) byId(panel.small ? "system-charts" : "charts").append(figure(panel));
    else known.closest("figure").querySelector(".says").textContent = panel.says;
  }
  byId("layers").hidden = !maps.length;
  if (maps.length && !byId("maps").children.length) {
    const says = element("p", "says");
    byId("maps").append(element("figure", "", element("figcaption", "", element("h3", "")), element("div", "heat"), says));
  }
  byId("changes").hidden = !changes.length;
  byId("changes").replaceChildren(...changes.map((change) => element("li", "", change.text)));
  byId("missing").hidden = false;
  byId("missing").textContent = !panels.length
    ? drawing.drawn < 0.999 ? "Charts appear once the first steps are read." : "No steps to draw yet."
    : drawing.missing.length ? `Not in this source: ${drawing.missing.join(", ")}.` : "";
  events();
  if (!panels.length && !maps.length) return;
  const data = { ...drawing, maps, changes };
  // A part of the run does not contain its ends, so they are remembered.
  if (view && extent) data.extent = { min: extent.min, max: Math.max(extent.max, drawing.end) };
  if (!charts) charts = window.headwayCharts(data, looked, true);
  else charts.update(data);
  if (!view) extent = ends(panels);
  glance();
  reading();
}

function ends(panels) {
  let min = Infinity, max = -Infinity;
  for (const series of panels.flatMap((panel) => panel.series)) {
    for (const x of [series.x[0], series.x[series.x.length - 1], ...series.gaps.flatMap((gap) => [gap[1], gap[2]])]) {
      if (x === undefined) continue;
      min = Math.min(min, x);
      max = Math.max(max, x);
    }
  }
  return min <= max ? { min, max } : { min: 0, max: 1 };
}

let soon = 0;
function looked(part, all) {
  view = all ? null : part;
  clearTimeout(soon);
  soon = setTimeout(() => { loadCharts(); if (maps.length) loadMaps(); }, 60);
}

function events() {
  const box = byId("happened"), marks = drawing.marks;
  box.hidden = !marks.length;
  box.querySelector("summary").textContent = `Events (${marks.length})`;
  const list = box.querySelector("ul"), first = marks.slice(-200);
  if (list.dataset.count === String(marks.length)) return;
  list.dataset.count = String(marks.length);
  const offset = (x) => { let by = 0; for (const [from, add] of drawing.jumps) { if (from > x) break; by = add; } return by; };
  list.replaceChildren(...first.map(([x, , label]) => {
    const button = element("button", "jump", "step " + (x - offset(x)));
    button.type = "button";
    button.dataset.x = String(x);
    return element("li", "", button, " " + label);
  }));
}

// -- the page -------------------------------------------------------------------------------------

function fresh() {
  loadCharts();
  loadMaps();
  loadDetails();
}

byId("report").href = at + "/report";
start();
listen({
  news({ runs, gone: lost }) {
    if (lost.includes(id)) gone();
    const mine = runs.find((run) => run.id === id);
    if (!mine) return;
    tell([mine]);
    const before = summary;
    summary = mine;
    glance();
    // New steps do not change the part that is visible.
    if (!before || mine.version !== before.version) {
      if (!view || charts.follows()) { loadCharts(); loadMaps(); }
    }
    if (reportVersion !== mine.report_version) { reportVersion = mine.report_version; loadDetails(); }
  },
  again: fresh,
});
addEventListener("themechange", () => { if (charts) charts.redraw(); });
setInterval(glance, 5000);
fresh();
