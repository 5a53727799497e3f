// Draws the charts of a report. Text is inserted as text: nothing here parses markup.
"use strict";
// `data` is the chart data; `looked` is called with the visible part of the run, `live` says that it
// may grow. What comes back accepts further data, and says how wide a part at the end is followed.
function headwayCharts(data, looked = () => {}, live = false) {
  const { say, sayCount, sayTime, element, button, nearest, along } = headwayTools;
  const status = document.getElementById("status");
  const whole = document.getElementById("whole");
  const HEIGHT = 180, SMALL = 110, WIDE = 420;
  const NONFINITE_EDGE = 9; // height of the strip at the upper edge, in CSS pixels
  const FLAG_WIDTH = 18;
  const SHORT = { NaN: "NaN", Infinity: "Inf", "-Infinity": "-Inf" };
  const AXES = { step: "step", time: "training time", samples: "samples", tokens: "tokens" };

  // -- the axis: x only rises, and stands for a step ----------------------------------------------

  // What the reader chose. It is kept in the address, so that a link shows the same.
  const chosen = { axis: "step", smooth: 0, log: new Map(), all: new Set(), hidden: new Set(), wide: new Set(), pins: [], layers: "", follow: false };

  function stepAt(x) {
    let offset = 0;
    for (const [from, by] of data.jumps) {
      if (from > x) break;
      offset = by;
    }
    return Math.round(x - offset);
  }

  // A run that is not read yet has no clock.
  const clocksOf = (series) => data.run_clocks ? data.run_clocks[series ? series.colour : 0] || {} : data.clocks;
  const runClocks = () => data.run_clocks.filter((clocks) => clocks);
  const axes = () => ["step", ...["time", "samples", "tokens"].filter((name) => data.run_clocks
    ? runClocks().length && runClocks().every((clocks) => clocks[name])
    : data.clocks && data.clocks[name])];

  // Places on the drawn axis: steps, seconds, samples or tokens. Each run has its own clock.
  function toAxis(x, series) {
    const clock = chosen.axis === "step" ? null : clocksOf(series)[chosen.axis];
    return clock ? along(clock[0], clock[1], x) : x;
  }

  function fromAxis(u, series) {
    const clock = chosen.axis === "step" ? null : clocksOf(series)[chosen.axis];
    return clock ? along(clock[1], clock[0], u) : u;
  }

  function where(u) {
    if (chosen.axis === "step") return "step " + stepAt(u);
    const there = chosen.axis === "time" ? sayTime(u) : sayCount(Math.round(u)) + " " + chosen.axis;
    return data.run_clocks ? there : "step " + stepAt(fromAxis(u)) + ", " + there;
  }

  function tick(u) {
    if (chosen.axis === "time") return sayTime(Math.max(u, 0));
    return chosen.axis === "step" ? "step " + stepAt(u).toLocaleString("en") : sayCount(Math.round(u)) + " " + chosen.axis;
  }

  // Every run has a clock, so a part of the axis is another part of each; the union of all.
  const everyRun = () => data.run_clocks && runClocks().length ? data.run_clocks.flatMap((clocks, colour) => clocks ? [{ colour }] : []) : [undefined];
  function stepsOf({ min, max }) {
    return {
      min: Math.min(...everyRun().map((series) => fromAxis(min, series))),
      max: Math.max(...everyRun().map((series) => fromAxis(max, series))),
    };
  }

  let panels = [];
  function collect() {
    panels = [...data.panels, ...data.components, ...(data.system || [])];
    const pinned = chosen.pins.length ? data.maps.map((map) => ({
      id: "pin-" + map.id,
      title: map.title,
      bytes: false,
      unit: "",
      series: chosen.pins.filter((name) => map.rows.includes(name)).map((name) => heat.curve(map, name)),
    })) : [];
    panels.push(...pinned.filter((panel) => panel.series.length));
  }

  function reach() {
    let low = Infinity, high = -Infinity;
    const see = (x, series) => { const u = toAxis(x, series); low = Math.min(low, u); high = Math.max(high, u); };
    if (data.extent) {
      for (const series of everyRun()) { see(data.extent.min, series); see(data.extent.max, series); }
    } else {
      for (const panel of panels) {
        for (const series of panel.series) {
          if (series.x.length) { see(series.x[0], series); see(series.x[series.x.length - 1], series); }
          for (const gap of series.gaps) { see(gap[1], series); see(gap[2], series); }
        }
      }
      for (const map of data.maps) see(map.starts[0]);
    }
    if (low > high) { low = 0; high = 1; }
    return low === high ? { min: low - 1, max: high + 1 } : { min: low, max: high };
  }
  let extent = { min: 0, max: 1 };
  let view = { ...extent };
  const showsAll = () => view.min <= extent.min && view.max >= extent.max;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    return {
      text: get("--text"), quiet: get("--quiet"), grid: get("--grid"), back: get("--back"),
      dark: headwayTools.isDark(get("--back")), error: get("--error"), warning: get("--warning"), action: get("--action"),
      lines: ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7", "--line-8"].map(get),
    };
  }

  // A series may have its own colour: that of its run, where several runs are shown.
  const ink = (paint, series, at) => paint.lines[series.colour ?? at] || headwayTools.hue(series.colour ?? at, paint.dark);

  const swatchInk = (paint, series, at) => {
    const colour = ink(paint, series, at);
    return series.dashed ? `repeating-linear-gradient(90deg, ${colour} 0 4px, transparent 4px 6px)` : colour;
  };

  // -- charts of lines ----------------------------------------------------------------------------

  const charts = [];
  const positive = (panel) => panel.series.every((series) => series.y.every((y) => y > 0));

  // The part of a series that is visible, as positions.
  function visible(series) {
    if (!series.x.length) return [0, 0];
    const from = fromAxis(view.min, series), to = fromAxis(view.max, series);
    let first = nearest(series.x, from), last = nearest(series.x, to);
    if (series.x[first] < from) first += 1;
    if (series.x[last] > to) last -= 1;
    return [first, last + 1];
  }

  function range(chart) {
    return function (plot, low, high) {
      chart.clipped = false;
      if (low == null || !isFinite(low)) return [0, 1];
      const far = 1e300; // beyond this, margins and ticks overflow
      if (!chart.log) {
        const steady = headwayTools.steadyRange(legend.shown(chart).flatMap((series) => [series.y, ...(series.band || [])].map((ys) => ys.slice(...visible(series)))));
        chart.clipped = steady.clipped;
        if (steady.clipped && !chosen.all.has(chart.panel.id)) ({ low, high } = steady);
      }
      low = Math.max(low, -far);
      high = Math.min(high, far);
      if (chart.log) return uPlot.rangeLog(Math.max(low, 1e-300), Math.max(high, 1e-300), 10, false);
      if (low === high) return low === 0 ? [chart.panel.small ? 0 : -1, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
      // The load of a machine is read against none at all.
      if (chart.panel.small && low >= 0 && low < high * 0.7) return [0, high * 1.08];
      const margin = (high - low) * 0.06;
      return [low - margin, high + margin];
    };
  }

  function build(chart) {
    const { panel, holder } = chart;
    if (chart.plot) chart.plot.destroy();
    const paint = colours();
    const joined = joinSeries(chart);
    const width = Math.max(holder.clientWidth, 200);
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: paint.quiet, font, grid: { stroke: paint.grid, width: 1 }, ticks: { stroke: paint.grid, width: 1 } };
    const sayX = (u) => chosen.axis === "time" ? sayTime(u) : !Number.isInteger(u) ? "" : sayCount(chosen.axis === "step" ? stepAt(u) : u);
    const upright = chart.log ? { filter: headwayTools.logGrid, grid: { ...axis.grid, filter: headwayTools.logGrid }, ticks: { ...axis.ticks, filter: headwayTools.logGrid } } : {};
    const line = (series, at, more) => ({
      label: series.label,
      show: legend.shows(chart, series),
      stroke: ink(paint, series, at),
      dash: series.dashed ? [5, 3] : undefined,
      width: 1.4,
      spanGaps: true,
      points: { show: series.x.length < 60, size: 5 },
      ...more,
    });
    // The raw curve stays, pale, behind the smoothed one.
    const pale = chosen.smooth ? { width: 1 } : {};
    const lines = panel.series.map((series, at) => line(series, at, { ...pale, ...(chosen.smooth ? { stroke: ink(paint, series, at) + "50" } : {}) }));
    if (chosen.smooth) lines.push(...panel.series.map((series, at) => line(series, at, { label: series.label + " (smoothed)", width: 1.8, points: { show: false } })));
    // A group of runs is a mean and a band: two more curves that are not drawn, and what is between.
    const bands = [];
    panel.series.forEach((series, at) => {
      if (!series.band) return;
      const edge = { show: legend.shows(chart, series), stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      bands.push({ series: [lines.length + 2, lines.length + 1], fill: ink(paint, series, at) + "30" });
      lines.push({ ...edge, label: series.label + " (lowest)" }, { ...edge, label: series.label + " (highest)" });
    });
    chart.paint = paint;
    chart.plot = new uPlot({
      width, height: chosen.wide.has(panel.id) ? WIDE : panel.small ? SMALL : HEIGHT,
      legend: { show: false },
      padding: [NONFINITE_EDGE + 5, 12, 0, 0],
      // Among many curves the nearest one is told from the others. A drag is not passed on: each chart would zoom once more.
      cursor: { y: false, sync: { key: "steps", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, drag: { x: true, y: false }, points: { size: 7 }, ...(panel.series.length > legend.FEW ? { focus: { prox: 24 } } : {}) },
      focus: { alpha: 0.25 },
      scales: {
        x: { time: false, range: () => [view.min, view.max] },
        y: { distr: chart.log ? 3 : 1, range: range(chart) },
      },
      axes: [
        { ...axis, space: 90, size: 28, gap: 4, values: (plot, splits) => splits.map(sayX), ...(chosen.axis === "time" ? { incrs: headwayTools.SECONDS } : {}) },
        { ...axis, size: 72, ...upright, ...(panel.bytes ? { incrs: headwayTools.BYTES, ticks: { ...axis.ticks, size: 5 } } : {}), values: (plot, splits) => splits.map((y) => y == null ? "" : say(y, panel.bytes)), ...(panel.small ? { space: 24 } : {}) },
      ],
      series: [{}, ...lines],
      bands,
      hooks: {
        draw: [(plot) => annotate(plot, chart)],
        setCursor: [(plot) => readOut(plot, chart)],
        setSeries: [(plot, at) => legend.near(chart, at)],
        setSelect: [(plot) => {
          if (plot.select.width > 3) {
            look(uOf(plot, plot.select.left), uOf(plot, plot.select.left + plot.select.width));
          }
        }],
      },
    }, joined, holder);
  }

  function joinSeries(chart) {
    const place = (xs, series) => chosen.axis === "step" ? xs : xs.map((x) => toAxis(x, series));
    const tables = chart.panel.series.map((series) => [place(series.x, series), series.y]);
    if (chosen.smooth) {
      // A long run is drawn by its extremes; the smoothed curve follows its means.
      chart.smoothed = chart.panel.series.map((series) => {
        const [xs, ys] = series.mean || [series.x, series.y];
        const us = place(xs, series);
        return [us, headwayTools.smooth(us, ys, chosen.smooth, view.max - view.min)];
      });
      tables.push(...chart.smoothed);
    }
    for (const series of chart.panel.series.filter((item) => item.band)) {
      tables.push(...series.band.map((edge) => [series.x, edge]));
    }
    // Non-finite values have no place in a line, yet a chart of nothing else must still have an axis.
    tables.push([[extent.min, extent.max], [null, null]]);
    const joined = uPlot.join(tables);
    joined.pop();
    return joined;
  }

  function annotate(plot, chart) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const at = (x, series) => plot.valToPos(toAxis(x, series), "x", true);
    const inside = (x) => { const u = toAxis(x); return u >= view.min && u <= view.max; };
    const triangle = (middle, top, size, down) => {
      ctx.beginPath();
      ctx.moveTo(middle - size / 2, down ? top : top + size);
      ctx.lineTo(middle + size / 2, down ? top : top + size);
      ctx.lineTo(middle, down ? top + size : top);
      ctx.fill();
    };
    ctx.save();
    ctx.lineWidth = ratio;
    for (const flag of data.flags) {
      if (!inside(flag.x)) continue;
      ctx.strokeStyle = flag.severity === "error" ? chart.paint.error : chart.paint.warning;
      ctx.setLineDash(flag.severity === "error" ? [] : [4 * ratio, 3 * ratio]);
      ctx.globalAlpha = 0.65;
      ctx.beginPath();
      ctx.moveTo(at(flag.x), bbox.top);
      ctx.lineTo(at(flag.x), bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    ctx.fillStyle = chart.paint.action;
    for (const [x] of data.marks) {
      if (inside(x)) ctx.fillRect(at(x) - ratio, bbox.top + bbox.height - 7 * ratio, 2 * ratio, 7 * ratio);
    }
    const size = NONFINITE_EDGE * ratio;
    chart.panel.series.forEach((series, number) => {
      if (!legend.shows(chart, series)) return;
      // A value beyond the range is pointed at.
      const [first, last] = visible(series);
      ctx.fillStyle = ink(chart.paint, series, number);
      for (let near = first; chart.clipped && near < last; near += 1) {
        if (series.y[near] > plot.scales.y.max) triangle(at(series.x[near], series), bbox.top, size * 0.7, false);
        else if (series.y[near] < plot.scales.y.min) triangle(at(series.x[near], series), bbox.top + bbox.height - size * 0.7, size * 0.7, true);
      }
      // The strip above the plot: what is not finite is seen, however short it was.
      const top = bbox.top - (NONFINITE_EDGE + 1) * ratio;
      ctx.fillStyle = chart.paint.error;
      for (const [kind, from, to] of series.gaps) {
        if (toAxis(to, series) < view.min || toAxis(from, series) > view.max) continue;
        const left = Math.max(at(from, series), bbox.left), right = Math.min(at(to, series), bbox.left + bbox.width);
        if (right - left > size) ctx.fillRect(left, top + size * 0.25, right - left, size * 0.5);
        triangle((left + right) / 2, top, size, kind === "NaN");
      }
    });
    ctx.restore();
    chart.all.hidden = chart.log || !chart.clipped;
    if (chart === charts[0]) flagButtons(plot, chart);
  }

  // The findings and what is not finite in the visible part, for a file.
  function marksOf(chart) {
    const seen = (u) => u >= view.min && u <= view.max;
    const { error, warning } = chart.paint;
    return [
      data.flags.map(({ x, severity }) => ({ u: toAxis(x), colour: severity === "error" ? error : warning, dashed: severity !== "error" })).filter(({ u }) => seen(u)),
      legend.shown(chart).flatMap((series) => series.gaps.map(([kind, from]) => ({ u: toAxis(from, series), kind }))).filter(({ u }) => seen(u)),
    ];
  }

  // -- findings on the first chart ------------------------------------------------------------------

  function flagButtons(plot, chart) {
    if (!chart.flags) {
      chart.flags = element("div", "flags noprint");
      chart.holder.before(chart.flags);
    }
    const left = plot.bbox.left / (devicePixelRatio || 1);
    const groups = [];
    for (const flag of [...data.flags].sort((a, b) => a.x - b.x)) {
      const u = toAxis(flag.x);
      if (u < view.min || u > view.max) continue;
      const place = left + leftOf(plot, u), last = groups[groups.length - 1];
      if (last && place - last.place < FLAG_WIDTH) last.flags.push(flag);
      else groups.push({ place, flags: [flag] });
    }
    chart.flags.hidden = !data.flags.length; // a zoom does not move the chart
    chart.flags.replaceChildren(...groups.map(({ place, flags }) => {
      const worst = flags.find((flag) => flag.severity === "error") || flags[0];
      const many = flags.length > 9 ? "9+" : String(flags.length);
      const made = button("flag " + worst.severity, flags.length > 1 ? many : worst.severity === "error" ? "✗" : "!");
      const names = [...new Set(flags.map((flag) => flag.label))].slice(0, 3).join(", ");
      const words = (flags.length > 1 ? many + " findings: " : "") + `${names} at step ${stepAt(worst.x)}; show the finding`;
      made.title = words;
      made.setAttribute("aria-label", words);
      made.style.left = place - FLAG_WIDTH / 2 + "px";
      made.addEventListener("click", () => openFinding(worst.opens));
      return made;
    }));
  }

  function openFinding(key) {
    // The live page shows a finding only when it is wanted.
    document.dispatchEvent(new CustomEvent("openfinding", { detail: key }));
    const shown = document.getElementById(key);
    if (!shown) return;
    for (let outer = shown.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
    shown.scrollIntoView({ block: "start" });
    shown.focus({ preventScroll: true });
  }

  // -- the cursor -----------------------------------------------------------------------------------

  const sayIn = (panel, value) => say(value, panel.bytes) + (panel.unit ? (panel.bytes ? "" : " ") + panel.unit : "");

  function readOut(plot, chart) {
    const left = plot.cursor.left;
    const away = left == null || left < 0;
    const u = away ? null : uOf(plot, left);
    const words = [];
    chart.panel.series.forEach((series, at) => {
      let value = "";
      if (u !== null && legend.shows(chart, series)) {
        const x = fromAxis(u, series);
        const near = series.x.length ? nearest(series.x, x) : -1;
        const gap = series.gaps.find(([, first, last]) => toAxis(first, series) - (view.max - view.min) / 200 <= u && u <= toAxis(last, series) + (view.max - view.min) / 200);
        if (gap) {
          value = SHORT[gap[0]] + (gap[3] > 1 ? " ×" + gap[3] : "");
        } else if (near >= 0) {
          value = sayIn(chart.panel, series.y[near]);
          if (series.band) value += ` (${sayIn(chart.panel, series.band[0][near])} to ${sayIn(chart.panel, series.band[1][near])})`;
          const soft = chosen.smooth && chart.smoothed[at];
          if (soft && soft[0].length) value += " (smoothed " + sayIn(chart.panel, soft[1][nearest(soft[0], u)]) + ")";
        }
        words.push(series.label + " " + value);
      }
      chart.values[at].textContent = value;
    });
    chart.step.textContent = u === null ? "" : where(u);
    if (u !== null) {
      chart.holder.setAttribute("aria-valuenow", String(stepAt(fromAxis(u))));
      chart.holder.setAttribute("aria-valuetext", where(u) + ": " + words.join(", "));
    }
    if (document.activeElement === chart.holder || !away) heat.cursor(u);
  }

  function keys(chart) {
    const { holder } = chart;
    holder.addEventListener("keydown", (event) => {
      const { plot } = chart;
      const span = view.max - view.min;
      const now = plot.cursor.left >= 0 ? uOf(plot, plot.cursor.left) : view.min;
      const by = (chosen.axis === "step" ? Math.max(span / 100, 1) : span / 100) * (event.shiftKey ? 10 : 1);
      let u = now;
      if (event.key === "ArrowRight" || event.key === "ArrowUp") u = now + by;
      else if (event.key === "ArrowLeft" || event.key === "ArrowDown") u = now - by;
      else if (event.key === "Home") u = view.min;
      else if (event.key === "End") u = view.max;
      else if (event.key === "+" || event.key === "=") { look(now - span / 4, now + span / 4); return; }
      else if (event.key === "-") { look(now - span, now + span); return; }
      else if (event.key === "Escape") { look(extent.min, extent.max); return; }
      else return;
      event.preventDefault();
      point(Math.min(Math.max(u, view.min), view.max), chart);
    });
  }

  // The chart's own scale follows a little later than the view does.
  const leftOf = (plot, u) => (u - view.min) / (view.max - view.min) * plot.over.clientWidth;
  const uOf = (plot, left) => view.min + left / plot.over.clientWidth * (view.max - view.min);

  function point(u, chart) {
    chart.plot.setCursor({ left: leftOf(chart.plot, u), top: chart.plot.over.clientHeight / 2 }, true, true);
  }

  function bounds(chart) {
    chart.holder.setAttribute("aria-valuemin", String(stepAt(fromAxis(extent.min))));
    chart.holder.setAttribute("aria-valuemax", String(stepAt(fromAxis(extent.max))));
  }

  function start(holder) {
    const panel = panels.find((item) => item.id === holder.dataset.panel);
    const chart = { panel, holder, log: false, clipped: false, values: [], swatches: [], smoothed: [] };
    holder.setAttribute("role", "slider");
    holder.setAttribute("tabindex", "0");
    holder.setAttribute("aria-label", panel.title + ": cursor along the steps");
    bounds(chart);
    holder.setAttribute("aria-valuenow", holder.getAttribute("aria-valuemin"));
    legend.make(chart);
    keys(chart);
    holder.addEventListener("dblclick", () => look(extent.min, extent.max));
    chartTools(chart);
    scaleOf(chart);
    build(chart);
    charts.push(chart);
    if (charts.length === 1) annotate(chart.plot, chart);
  }

  // Whether a chart is logarithmic: as chosen, or as its numbers ask for while all of them are seen.
  function scaleOf(chart) {
    const can = positive(chart.panel) && !chart.panel.bytes && !chart.panel.small;
    if (chosen.log.has(chart.panel.id)) chart.log = can && chosen.log.get(chart.panel.id);
    else if (showsAll()) chart.log = can && headwayTools.wantsLog({ ...chart.panel, series: legend.shown(chart) });
    else chart.log = can && chart.log;
    chart.button.hidden = !can;
    chart.button.setAttribute("aria-pressed", String(chart.log));
  }

  function chartTools(chart) {
    const { id, title } = chart.panel;
    const box = element("div", "chart-tools noprint");
    chart.all = button("all", "all values");
    chart.all.hidden = true;
    chart.all.title = "A few values are far beyond the others; the range excludes them";
    chart.all.setAttribute("aria-pressed", String(chosen.all.has(id)));
    chart.all.addEventListener("click", () => {
      if (!chosen.all.delete(id)) chosen.all.add(id);
      chart.all.setAttribute("aria-pressed", String(chosen.all.has(id)));
      build(chart);
    });
    chart.button = button("log", "log scale");
    chart.button.addEventListener("click", () => {
      chosen.log.set(id, !chart.log);
      scaleOf(chart);
      build(chart);
      keepAddress();
    });
    const saved = element("details", "save"), kinds = element("div");
    const more = element("summary", "", "More");
    more.setAttribute("aria-label", "More: " + title);
    saved.append(more, kinds);
    const wide = button("", "Enlarge");
    const enlarge = () => {
      const on = chosen.wide.has(id);
      wide.textContent = on ? "Reduce" : "Enlarge";
      chart.holder.closest("figure").classList.toggle("wide", on);
    };
    wide.addEventListener("click", () => {
      if (!chosen.wide.delete(id)) chosen.wide.add(id);
      saved.open = false;
      enlarge();
      redraw();
      keepAddress();
      more.focus();
    });
    chart.enlarge = enlarge;
    enlarge();
    kinds.append(wide);
    const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
    const files = {
      PNG: () => headwayTools.png(chart.plot, chart.paint, chart.panel, (blob) => headwayTools.save(blob, name + ".png")),
      SVG: () => headwayTools.save(new Blob([headwayTools.svg(chart.plot, chart.paint, chart.panel, ...marksOf(chart))], { type: "image/svg+xml" }), name + ".svg"),
      CSV: () => headwayTools.save(new Blob([headwayTools.csv(chart.panel, (x, series) => {
        const u = toAxis(x, series);
        return u >= view.min && u <= view.max;
      }, stepAt)], { type: "text/csv" }), name + ".csv"),
    };
    for (const [kind, work] of Object.entries(files)) {
      const made = button("", kind);
      made.setAttribute("aria-label", title + " as " + kind);
      made.addEventListener("click", () => { work(); saved.open = false; });
      kinds.append(made);
    }
    for (const each of [chart.all, chart.button]) each.setAttribute("aria-label", title + ": " + each.textContent);
    box.append(chart.all, chart.button, saved);
    chart.holder.closest("figure").querySelector("figcaption").append(box);
  }

  // -- looking at a part of the run -----------------------------------------------------------------

  // Keeps the end of a growing run visible: as much as is visible now, or the last fifth.
  function follow() {
    const width = showsAll() ? (extent.max - extent.min) / 5 : view.max - view.min;
    if (chosen.follow) look(extent.min, extent.max);
    else look(extent.max - width, extent.max, true);
  }

  function look(from, to, follows = false) {
    chosen.follow = follows;
    tools.mark();
    const low = Math.max(Math.min(from, to), extent.min), high = Math.min(Math.max(from, to), extent.max);
    const least = chosen.axis === "step" ? 2 : (extent.max - extent.min) / 1e6;
    if (high - low < least) {
      const middle = (low + high) / 2;
      view = { min: Math.max(middle - least / 2, extent.min), max: Math.min(middle + least / 2, extent.max) };
    } else {
      view = { min: low, max: high };
    }
    const all = showsAll();
    if (whole) whole.hidden = all;
    zoom();
    looked(stepsOf(view), all);
    keepAddress();
    const ends = chosen.axis === "step" ? `steps ${stepAt(view.min)} to ${stepAt(view.max)}` : `${tick(view.min)} to ${tick(view.max)}`;
    status.textContent = follows ? `The charts follow the end: ${ends}.` : all ? "The charts show the whole run." : `The charts show ${ends}.`;
  }

  // The visible charts at once, the others when the browser has drawn those.
  let unseen = 0;
  const inSight = ({ holder }) => { const box = holder.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
  const scaled = (chart) => {
    chart.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (chosen.smooth) chart.plot.setData(joinSeries(chart), false);
    chart.plot.setScale("x", view);
  };
  function zoom() {
    const near = charts.filter(inSight), far = charts.filter((chart) => !near.includes(chart));
    near.forEach(scaled);
    clearTimeout(unseen);
    unseen = setTimeout(() => { far.filter((chart) => charts.includes(chart)).forEach(scaled); heat.repaint(); }, 20);
  }

  function jump(x) {
    if (!charts.length) return;
    const half = Math.max((extent.max - extent.min) / 25, chosen.axis === "step" ? 10 : 0), u = toAxis(x);
    look(u - half, u + half);
    document.getElementById("timeline").scrollIntoView({ block: "start" });
    charts[0].holder.focus({ preventScroll: true });
    point(Math.min(Math.max(u, view.min), view.max), charts[0]);
  }

  const tools = headwayChoices({
    chosen, axes, AXES, data: () => data, changed, follow: live ? follow : null,
    zoom: () => showsAll() ? null : view,
    rows: () => [...new Set(data.maps.flatMap((map) => map.rows))],
  });
  const keepAddress = () => tools.keep();

  // Something was chosen: everything is drawn again, the same steps are visible.
  function changed(axisBefore) {
    const all = showsAll(), axisNow = chosen.axis;
    chosen.axis = axisBefore;
    const steps = stepsOf(view);
    chosen.axis = axisNow;
    collect();
    extent = reach();
    view = all ? { ...extent } : { min: toAxis(steps.min, everyRun()[0]), max: toAxis(steps.max, everyRun()[0]) };
    pinned();
    begin();
    redraw();
    keepAddress();
  }

  // The charts of pinned tensors come and go.
  function pinned() {
    const wanted = panels.filter((panel) => panel.id.startsWith("pin-"));
    for (const chart of charts.filter((item) => item.panel.id.startsWith("pin-"))) {
      const panel = wanted.find((item) => item.id === chart.panel.id);
      if (panel) {
        chart.panel = panel;
        legend.make(chart);
        scaleOf(chart);
      } else {
        chart.plot.destroy();
        chart.holder.closest("figure").remove();
        charts.splice(charts.indexOf(chart), 1);
      }
    }
    for (const panel of wanted) {
      if (charts.some((chart) => chart.panel.id === panel.id)) continue;
      const holder = element("div", "chart"), caption = element("figcaption"), figure = element("figure");
      holder.dataset.panel = panel.id;
      caption.append(element("h3", "", panel.title + ": chosen tensors"));
      figure.append(caption, holder);
      tools.pins().append(figure);
    }
  }

  // -- the page -------------------------------------------------------------------------------------

  const legend = headwayLegend({
    chosen, swatch: (series, at) => swatchInk(colours(), series, at),
    changed: () => { charts.forEach(scaleOf); redraw(); keepAddress(); },
  });
  const heat = headwayHeat({
    data: () => data, view: () => view, toAxis, fromAxis, stepAt, tick, colours,
    point: (u) => { if (charts.length) point(u, charts[0]); },
    pin: (row) => tools.pin(row), chosen, changed: () => keepAddress(),
  });

  function redraw() {
    for (const chart of charts) {
      chart.enlarge();
      build(chart);
      legend.paint(chart);
    }
    heat.repaint();
  }

  function begin() {
    for (const holder of document.querySelectorAll(".chart")) {
      if (!charts.some((chart) => chart.holder === holder)) start(holder);
    }
    heat.begin();
    tools.show(charts.length, heat.count());
    document.documentElement.dataset.drawn = String(charts.length + heat.count());
  }

  // Further data of the same run, or of another part of it. Where all was shown, all is shown.
  function update(next) {
    const all = showsAll();
    const painted = data.maps;
    data = next;
    const another = !axes().includes(chosen.axis);
    if (another) chosen.axis = "step";
    collect();
    extent = reach();
    if (all || another) view = { ...extent };
    else if (chosen.follow) view = { min: Math.max(extent.max - (view.max - view.min), extent.min), max: extent.max };
    for (const chart of charts) {
      const before = chart.panel.series.map((series) => series.label).join("\n");
      const panel = panels.find((item) => item.id === chart.panel.id);
      chart.panel = panel || { ...chart.panel, series: chart.panel.series.map((series) => ({ ...series, x: [], y: [], gaps: [], mean: undefined })) };
      const log = chart.log;
      scaleOf(chart);
      bounds(chart);
      if (log === chart.log && before === chart.panel.series.map((series) => series.label).join("\n")) {
        chart.plot.setData(joinSeries(chart));
      } else {
        legend.make(chart);
        build(chart);
      }
    }
    heat.update(painted);
    pinned();
    begin();
  }

  // Takes over what the address says.
  function visit() {
    const part = tools.read(), known = charts.length;
    collect();
    extent = reach();
    view = { ...extent };
    pinned();
    begin();
    if (known) redraw();
    if (part) look(...part);
  }

  visit();
  addEventListener("hashchange", () => { if (tools.changed()) visit(); });
  document.addEventListener("click", (event) => {
    const clicked = event.target.closest("button.jump");
    if (clicked) jump(Number(clicked.dataset.x));
  });
  if (whole) whole.addEventListener("click", () => look(extent.min, extent.max));
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  // What is folded cannot be opened on paper.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((item) => { item.open = true; });
    redraw();
  });
  addEventListener("afterprint", () => {
    folded.forEach((item) => { item.open = false; });
    redraw();
  });
  const follows = () => { const steps = stepsOf(view); return chosen.follow ? steps.max - steps.min : 0; };
  return { update, redraw, follows, inkOf: (colour) => ink(colours(), { colour }, colour) };
}

const embedded = document.getElementById("data");
if (embedded) headwayCharts(JSON.parse(embedded.textContent));
