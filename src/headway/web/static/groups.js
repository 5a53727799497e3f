// Groups of runs: their mean, with a band from the lowest run to the highest.
/* global headwayTools */
const POINTS = 400;

// What runs can be grouped by: anything that some of them share and others do not.
export function groupings({ runs, settings }) {
  const found = [["", "none"], ["all", "all runs together"]];
  if (runs.some((run) => run.tags.length)) found.push(["tags", "tags"]);
  for (const [name, values, differs] of settings) {
    if (differs && new Set(values).size < runs.length) found.push(["set:" + name, name]);
  }
  return runs.length < 2 ? found.slice(0, 1) : found;
}

// The group of each run, by its position.
function labels(by, { runs, settings }) {
  if (by === "all") return runs.map(() => "all runs");
  if (by === "tags") return runs.map((run) => run.tags.map((tag) => "#" + tag).join(" ") || "no tag");
  const [name, values] = settings.find((row) => "set:" + row[0] === by) || ["", runs.map(() => "")];
  return values.map((value) => `${name} ${value || "–"}`.slice(0, 80));
}

// A curve as rising x and its values; that of a long run by its means, not by its extremes.
const curveOf = (series) => series.mean || [series.x, series.y];

function valueAt([xs, ys], x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  const at = Math.min(headwayTools.below(xs, x), Math.max(xs.length - 2, 0));
  if (xs.length === 1 || xs[at + 1] === xs[at]) return ys[at];
  return ys[at] + (x - xs[at]) / (xs[at + 1] - xs[at]) * (ys[at + 1] - ys[at]);
}

function places(curves) {
  const all = [...new Set(curves.flatMap(([xs]) => xs))].sort((a, b) => a - b);
  if (all.length <= POINTS) return all;
  const first = all[0], last = all[all.length - 1];
  return Array.from({ length: POINTS }, (_, at) => Math.round(first + (last - first) * at / (POINTS - 1)));
}

function summarize(label, members, look) {
  const curves = members.map(curveOf);
  const made = { label, ...look, x: [], y: [], gaps: [], band: [[], []] };
  for (const x of places(curves)) {
    const known = curves.map((curve) => valueAt(curve, x)).filter((y) => y !== null);
    if (!known.length) continue;
    made.x.push(x);
    made.y.push(Number((known.reduce((sum, y) => sum + y, 0) / known.length).toPrecision(6)));
    made.band[0].push(Math.min(...known));
    made.band[1].push(Math.max(...known));
  }
  made.gaps = members.flatMap((series) => series.gaps).sort((a, b) => a[1] - b[1]);
  return made;
}

// The drawing with one curve per group and signal. Along steps only: each run has a clock of its own.
export function grouped(drawing, by) {
  const label = labels(by, drawing), names = [...new Set(label)].sort();
  const merge = (panel) => {
    const parts = new Map();
    for (const series of panel.series) {
      const key = label[series.colour] + "\n" + series.part;
      if (!parts.has(key)) parts.set(key, { group: label[series.colour], part: series.part, dashed: series.dashed, members: [] });
      parts.get(key).members.push(series);
    }
    const several = new Set(panel.series.map((series) => series.part)).size > 1;
    const series = [...parts.values()].map(({ group, part, dashed, members }) => {
      const count = `${members.length} ${members.length === 1 ? "run" : "runs"}`;
      const words = `${group}${several ? ": " + part : ""} (mean of ${count})`;
      return summarize(words, members, { colour: names.indexOf(group), dashed });
    });
    return { ...panel, series };
  };
  return { ...drawing, colours: label.map((name) => names.indexOf(name)), run_clocks: undefined, clocks: {}, panels: drawing.panels.map(merge), system: drawing.system.map(merge) };
}
