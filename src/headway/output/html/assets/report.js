// Draws the charts of a report. Text is inserted as text: nothing here parses markup.
"use strict";
// `data` is the chart data; `looked` is called with the visible part of the run. What comes
// back accepts further data as a run grows.
function headwayCharts(data, looked = () => {}) {
  const status = document.getElementById("status");
  const whole = document.getElementById("whole");
  const paper = matchMedia("print");
  const HEIGHT = 180;
  const NONFINITE_EDGE = 9; // height of the strip at the upper edge, in CSS pixels
  const SHORT = { NaN: "NaN", Infinity: "Inf", "-Infinity": "-Inf" };

  // -- the axis: x only rises, and stands for a step --------------------------------------------

  function stepAt(x) {
    let offset = 0;
    for (const [from, by] of data.jumps) {
      if (from > x) break;
      offset = by;
    }
    return Math.round(x - offset);
  }

  let panels = [...data.panels, ...data.components];
  function reach() {
    if (data.extent) return { ...data.extent };
    let low = Infinity, high = -Infinity;
    const see = (x) => { low = Math.min(low, x); high = Math.max(high, x); };
    for (const panel of panels) {
      for (const series of panel.series) {
        if (series.x.length) { see(series.x[0]); see(series.x[series.x.length - 1]); }
        for (const gap of series.gaps) { see(gap[1]); see(gap[2]); }
      }
    }
    for (const map of data.maps) see(map.start);
    if (low > high) { low = 0; high = 1; }
    return low === high ? { min: low - 1, max: high + 1 } : { min: low, max: high };
  }
  let extent = reach();
  let view = { ...extent };

  // -- words ------------------------------------------------------------------------------------

  function say(value, bytes, digits = 4) {
    if (value == null) return "–";
    if (bytes) {
      const units = ["B", "KiB", "MiB", "GiB", "TiB"];
      let at = 0;
      while (Math.abs(value) >= 1024 && at < 4) { value /= 1024; at += 1; }
      return Number(value.toPrecision(digits)) + " " + units[at];
    }
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e5 || size < 1e-3)) {
      return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    return String(Number(value.toPrecision(4)));
  }

  function sayStep(step) {
    if (Math.abs(step) >= 1e6) return Number((step / 1e6).toPrecision(6)) + "M";
    if (Math.abs(step) >= 1e4) return Number((step / 1e3).toPrecision(6)) + "k";
    return String(step);
  }

  function element(name, className, words) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (words !== undefined) made.textContent = words;
    return made;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    return {
      text: get("--text"), quiet: get("--quiet"), grid: get("--grid"), back: get("--back"),
      error: get("--error"), warning: get("--warning"), action: get("--action"),
      lines: ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"].map(get),
    };
  }

  // A series may have its own colour: that of its run, where several runs are shown.
  const ink = (paint, series, at) => paint.lines[(series.colour ?? at) % paint.lines.length];

  // -- charts of lines --------------------------------------------------------------------------

  const charts = [];

  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return high < 0 || Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  }

  function positive(panel) {
    return panel.series.every((series) => series.y.every((y) => y > 0));
  }

  function wantsLog(panel) {
    const all = panel.series.flatMap((series) => series.y).sort((a, b) => a - b);
    if (panel.bytes || !all.length || !positive(panel)) return false;
    return all[all.length - 1] / all[all.length >> 1] > 50 || all[all.length >> 1] / all[0] > 1000;
  }

  function range(chart) {
    return function (plot, low, high) {
      if (low == null || !isFinite(low)) return [0, 1];
      const far = 1e300; // beyond this, margins and ticks overflow
      low = Math.max(low, -far);
      high = Math.min(high, far);
      if (chart.log) return uPlot.rangeLog(Math.max(low, 1e-300), Math.max(high, 1e-300), 10, false);
      if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
      const margin = (high - low) * 0.06;
      return [low - margin, high + margin];
    };
  }

  function build(chart) {
    const { panel, holder } = chart;
    if (chart.plot) chart.plot.destroy();
    const paint = colours();
    const joined = joinSeries(panel);
    const width = Math.max(holder.clientWidth, 200);
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: paint.quiet, font, grid: { stroke: paint.grid, width: 1 }, ticks: { stroke: paint.grid, width: 1 } };
    chart.paint = paint;
    chart.plot = new uPlot({
      width, height: HEIGHT,
      legend: { show: false },
      padding: [NONFINITE_EDGE + 5, 12, 0, 0],
      cursor: { y: false, sync: { key: "steps" }, drag: { x: true, y: false }, points: { size: 7 } },
      scales: {
        x: { time: false, range: () => [view.min, view.max] },
        y: { distr: chart.log ? 3 : 1, range: range(chart) },
      },
      axes: [
        { ...axis, space: 90, size: 28, gap: 4, values: (plot, splits) => splits.map((x) => Number.isInteger(x) ? sayStep(stepAt(x)) : "") },
        { ...axis, size: 72, values: (plot, splits) => splits.map((y) => y == null ? "" : say(y, panel.bytes, 3)) },
      ],
      series: [{}, ...panel.series.map((series, at) => ({
        label: series.label,
        stroke: ink(paint, series, at),
        dash: series.dashed ?? at >= paint.lines.length ? [5, 3] : undefined,
        width: 1.4,
        spanGaps: true,
        points: { show: series.x.length < 60, size: 5 },
      }))],
      hooks: {
        draw: [(plot) => annotate(plot, chart)],
        setCursor: [(plot) => readOut(plot, chart)],
        setSelect: [(plot) => {
          if (plot.select.width > 3) {
            look(xOf(plot, plot.select.left), xOf(plot, plot.select.left + plot.select.width));
          }
        }],
      },
    }, joined, holder);
  }

  function joinSeries(panel) {
    const tables = panel.series.map((series) => [series.x, series.y]);
    // Non-finite values have no place in a line, yet a chart of nothing else must still have an axis.
    tables.push([[extent.min, extent.max], [null, null]]);
    const joined = uPlot.join(tables);
    joined.pop();
    return joined;
  }

  function annotate(plot, chart) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const at = (x) => plot.valToPos(x, "x", true);
    const inside = (x) => x >= view.min && x <= view.max;
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
    // The strip above the plot: what is not finite is seen, however short it was.
    const top = bbox.top - (NONFINITE_EDGE + 1) * ratio;
    for (const series of chart.panel.series) {
      for (const [kind, first, last] of series.gaps) {
        if (last < view.min || first > view.max) continue;
        const left = Math.max(at(first), bbox.left), right = Math.min(at(last), bbox.left + bbox.width);
        const middle = (left + right) / 2, size = NONFINITE_EDGE * ratio;
        ctx.fillStyle = chart.paint.error;
        if (right - left > size) {
          ctx.fillRect(left, top + size * 0.25, right - left, size * 0.5);
        }
        ctx.beginPath();
        if (kind === "NaN") {
          ctx.moveTo(middle - size / 2, top); ctx.lineTo(middle + size / 2, top); ctx.lineTo(middle, top + size);
        } else {
          ctx.moveTo(middle - size / 2, top + size); ctx.lineTo(middle + size / 2, top + size); ctx.lineTo(middle, top);
        }
        ctx.fill();
      }
    }
    ctx.restore();
  }

  function readOut(plot, chart) {
    const left = plot.cursor.left;
    const away = left == null || left < 0;
    const x = away ? null : xOf(plot, left);
    const words = [];
    chart.panel.series.forEach((series, at) => {
      let value = "";
      if (x !== null) {
        const near = series.x.length ? nearest(series.x, x) : -1;
        const about = (view.max - view.min) / 200;
        const gap = series.gaps.find(([, first, last]) => first - about <= x && x <= last + about);
        if (gap) {
          value = SHORT[gap[0]] + (gap[3] > 1 ? " ×" + gap[3] : "");
        } else if (near >= 0) {
          value = say(series.y[near], chart.panel.bytes);
        }
        words.push(series.label + " " + value);
      }
      chart.values[at].textContent = value;
    });
    chart.step.textContent = x === null ? "" : "step " + stepAt(x);
    if (x !== null) {
      chart.holder.setAttribute("aria-valuenow", String(stepAt(x)));
      chart.holder.setAttribute("aria-valuetext", "step " + stepAt(x) + ": " + words.join(", "));
    }
    if (document.activeElement === chart.holder || !away) heatCursor(x);
  }

  function legend(chart) {
    const paint = colours();
    const box = element("div", "legend");
    if (chart.legend) chart.legend.remove();
    chart.legend = box;
    chart.swatches = [];
    chart.values = chart.panel.series.map((series, at) => {
      const item = element("span", "entry");
      const swatch = element("span", "swatch");
      swatch.style.background = ink(paint, series, at);
      const value = element("span", "value");
      item.append(swatch, element("bdi", "", series.label), value);
      box.append(item);
      chart.swatches.push(swatch);
      return value;
    });
    chart.step = element("span", "at");
    box.append(chart.step);
    chart.holder.after(box);
  }

  function keys(chart) {
    const { holder } = chart;
    holder.addEventListener("keydown", (event) => {
      const { plot } = chart;
      const wide = (view.max - view.min) / 100;
      const now = plot.cursor.left >= 0 ? xOf(plot, plot.cursor.left) : view.min;
      const by = Math.max(wide, 1) * (event.shiftKey ? 10 : 1);
      let x = now;
      if (event.key === "ArrowRight" || event.key === "ArrowUp") x = now + by;
      else if (event.key === "ArrowLeft" || event.key === "ArrowDown") x = now - by;
      else if (event.key === "Home") x = view.min;
      else if (event.key === "End") x = view.max;
      else if (event.key === "+" || event.key === "=") { look(now - (view.max - view.min) / 4, now + (view.max - view.min) / 4); return; }
      else if (event.key === "-") { look(now - (view.max - view.min), now + (view.max - view.min)); return; }
      else if (event.key === "Escape") { look(extent.min, extent.max); return; }
      else return;
      event.preventDefault();
      point(Math.min(Math.max(x, view.min), view.max), chart);
    });
  }

  // The chart's own scale follows a little later than the view does.
  const leftOf = (plot, x) => (x - view.min) / (view.max - view.min) * plot.over.clientWidth;
  const xOf = (plot, left) => view.min + left / plot.over.clientWidth * (view.max - view.min);

  function point(x, chart) {
    chart.plot.setCursor({ left: leftOf(chart.plot, x), top: chart.plot.over.clientHeight / 2 }, true, true);
  }

  function bounds(chart) {
    chart.holder.setAttribute("aria-valuemin", String(stepAt(extent.min)));
    chart.holder.setAttribute("aria-valuemax", String(stepAt(extent.max)));
  }

  function start(holder) {
    const panel = panels.find((item) => item.id === holder.dataset.panel);
    const chart = { panel, holder, log: wantsLog(panel), values: [], swatches: [] };
    holder.setAttribute("role", "slider");
    holder.setAttribute("tabindex", "0");
    holder.setAttribute("aria-label", panel.title + ": cursor along the steps");
    holder.setAttribute("aria-valuenow", String(stepAt(extent.min)));
    bounds(chart);
    legend(chart);
    keys(chart);
    const button = holder.closest("figure").querySelector("button.log");
    chart.button = button;
    if (!positive(panel) || panel.bytes) button.hidden = true;
    button.setAttribute("aria-pressed", String(chart.log));
    button.addEventListener("click", () => {
      chart.log = !chart.log;
      chart.chosen = true;
      button.setAttribute("aria-pressed", String(chart.log));
      build(chart);
    });
    build(chart);
    charts.push(chart);
  }

  // -- looking at a part of the run -------------------------------------------------------------

  function look(from, to) {
    const low = Math.max(Math.min(from, to), extent.min), high = Math.min(Math.max(from, to), extent.max);
    if (high - low < 2) {
      const middle = (low + high) / 2;
      view = { min: Math.max(middle - 1, extent.min), max: Math.min(middle + 1, extent.max) };
    } else {
      view = { min: low, max: high };
    }
    const all = view.min <= extent.min && view.max >= extent.max;
    if (whole) whole.hidden = all;
    for (const chart of charts) {
      chart.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      chart.plot.setScale("x", view);
    }
    for (const heat of heats) paintHeat(heat);
    looked({ ...view }, all);
    status.textContent = all ? "The charts show the whole run." : "The charts show steps " + stepAt(view.min) + " to " + stepAt(view.max) + ".";
  }

  function jump(x) {
    if (!charts.length) return;
    const half = Math.max((extent.max - extent.min) / 25, 10);
    look(x - half, x + half);
    document.getElementById("timeline").scrollIntoView({ block: "start" });
    charts[0].holder.focus({ preventScroll: true });
    point(Math.min(Math.max(x, view.min), view.max), charts[0]);
  }

  // -- layer by step ----------------------------------------------------------------------------

  const ABSENT = -32768, ZERO = -32767, BAD = 32767;
  const heats = [];
  const STOPS = [[48, 18, 92], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function shade(part) {
    const place = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(place), STOPS.length - 2), rest = place - low;
    return STOPS[low].map((value, at) => Math.round(value + (STOPS[low + 1][at] - value) * rest));
  }

  function decode(text) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
    return new Int16Array(bytes.buffer);
  }

  function fillHeat(heat) {
    const map = data.maps.find((item) => item.id === heat.holder.dataset.map);
    const codes = decode(map.codes);
    const known = [...codes].filter((code) => code !== ABSENT && code !== ZERO && code !== BAD).sort((a, b) => a - b);
    const low = known.length ? known[Math.floor(known.length * 0.01)] : 0;
    const high = known.length ? known[Math.ceil(known.length * 0.995) - 1] : 1;
    Object.assign(heat, { map, codes, low, high: Math.max(high, low + 1) });
    heat.row = Math.min(heat.row, map.rows.length - 1);
    heat.image = image(heat);
  }

  function startHeat(holder) {
    const heat = { holder, row: 0, cell: 0 };
    fillHeat(heat);
    const canvas = element("canvas"), readout = element("p", "readout", " "), line = element("div", "line");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("tabindex", "0");
    canvas.setAttribute("aria-label", heat.map.title + ", a picture of layers by steps; arrow keys read single cells");
    readout.setAttribute("aria-live", "polite");
    line.hidden = true;
    holder.append(canvas, line);
    Object.assign(heat, { canvas, readout, line, scale: scale(heat) });
    holder.after(readout);
    holder.after(heat.scale);
    canvas.addEventListener("mousemove", (event) => {
      const { map } = heat;
      const box = canvas.getBoundingClientRect();
      const x = view.min + (event.clientX - box.left - heat.left) / heat.width * (view.max - view.min);
      const row = Math.floor((event.clientY - box.top) / heat.height * map.rows.length);
      if (x < view.min || x > view.max || row < 0 || row >= map.rows.length) return;
      heat.row = row;
      heat.cell = Math.floor((x - map.start) / map.width);
      readCell(heat);
      if (charts.length) point(x, charts[0]);
    });
    canvas.addEventListener("keydown", (event) => {
      const { map } = heat;
      const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      heat.row = Math.min(Math.max(heat.row + move[0], 0), map.rows.length - 1);
      heat.cell = Math.min(Math.max(heat.cell + move[1], 0), map.cells - 1);
      readCell(heat);
      heatCursor(map.start + (heat.cell + 0.5) * map.width);
    });
    heats.push(heat);
    paintHeat(heat);
  }

  // The cell whose value is shown at an x: layers are not measured at every step.
  function measured(heat, at) {
    const { map, codes } = heat;
    const first = Math.max(at - (at % map.cells), at - map.hold + 1);
    for (let near = at; near >= first; near -= 1) {
      if (codes[near] !== ABSENT && (near === at || codes[near] !== BAD)) return near;
    }
    return at;
  }

  function readCell(heat) {
    const { map } = heat;
    if (heat.cell < 0 || heat.cell >= map.cells) { heat.readout.textContent = "\u00a0"; return; }
    const at = measured(heat, heat.row * map.cells + heat.cell);
    const code = heat.codes[at];
    const from = map.start + (at % map.cells) * map.width, to = Math.min(from + map.width - 1, extent.max);
    const value = code === ABSENT ? "not measured" : code === BAD ? "NaN or Inf" : code === ZERO ? "0" : "about " + say(Math.pow(10, code / 100));
    const steps = to > from ? "steps " + stepAt(from) + " to " + stepAt(to) : "step " + stepAt(from);
    heat.readout.textContent = map.rows[heat.row] + ", " + steps + ": " + value;
  }

  function image(heat) {
    const { map, codes } = heat;
    const made = element("canvas");
    made.width = map.cells;
    made.height = map.rows.length;
    const pixels = new ImageData(map.cells, map.rows.length);
    codes.forEach((_, at) => {
      const code = codes[measured(heat, at)];
      let colour = [128, 128, 128, 255];
      if (code === ABSENT) colour = [0, 0, 0, 0];
      else if (code === BAD) colour = [214, 40, 40, 255];
      else if (code !== ZERO) colour = [...shade((code - heat.low) / (heat.high - heat.low)), 255];
      pixels.data.set(colour, at * 4);
    });
    made.getContext("2d").putImageData(pixels, 0, 0);
    return made;
  }

  function shorten(ctx, words, room) {
    if (ctx.measureText(words).width <= room) return words;
    let kept = words.length - 1;
    while (kept > 3) {
      const half = kept >> 1;
      const tried = words.slice(0, half) + "…" + words.slice(words.length - half);
      if (ctx.measureText(tried).width <= room) return tried;
      kept -= 2;
    }
    return "…";
  }

  function paintHeat(heat) {
    const { map, canvas, holder } = heat;
    const paint = colours();
    const ratio = devicePixelRatio || 1;
    const full = Math.max(holder.clientWidth, 200);
    heat.left = full > 600 ? 210 : 100;
    heat.width = full - heat.left - 12;
    heat.height = Math.max(Math.min(map.rows.length * 16, 420), map.rows.length, 40);
    canvas.style.width = full + "px";
    canvas.style.height = heat.height + 24 + "px";
    canvas.width = Math.round(full * ratio);
    canvas.height = Math.round((heat.height + 24) * ratio);
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.imageSmoothingEnabled = false;
    const span = view.max - view.min;
    const at = (x) => heat.left + (x - view.min) / span * heat.width;
    const high = heat.height / map.rows.length;
    ctx.save();
    ctx.beginPath();
    ctx.rect(heat.left, 0, heat.width, heat.height);
    ctx.clip();
    ctx.fillStyle = paint.grid;
    ctx.globalAlpha = 0.5;
    ctx.fillRect(heat.left, 0, heat.width, heat.height);
    ctx.globalAlpha = 1;
    ctx.drawImage(heat.image, at(map.start), 0, at(map.start + map.cells * map.width) - at(map.start), heat.height);
    ctx.fillStyle = "rgb(214, 40, 40)";
    heat.codes.forEach((code, place) => {
      if (code !== BAD) return;
      const left = at(map.start + (place % map.cells) * map.width), top = Math.floor(place / map.cells) * high;
      const wide = map.width / span * heat.width;
      ctx.fillRect(Math.min(left, left + wide / 2 - 1.5), Math.min(top, top + high / 2 - 1), Math.max(wide, 3), Math.max(high, 2));
    });
    for (const flag of data.flags) {
      if (flag.severity !== "error" || flag.x < view.min || flag.x > view.max) continue;
      ctx.fillStyle = paint.error;
      ctx.globalAlpha = 0.8;
      ctx.fillRect(at(flag.x) - 0.5, 0, 1, heat.height);
      ctx.globalAlpha = 1;
    }
    ctx.restore();
    ctx.fillStyle = paint.quiet;
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    const every = Math.max(Math.ceil(14 / high), 1);
    for (let row = 0; row < map.rows.length; row += every) {
      ctx.fillText(shorten(ctx, map.rows[row], heat.left - 12), heat.left - 6, (row + 0.5) * high);
    }
    ctx.textAlign = "left";
    ctx.fillText(sayStep(stepAt(view.min)), heat.left, heat.height + 13);
    ctx.textAlign = "right";
    ctx.fillText("step " + sayStep(stepAt(view.max)), heat.left + heat.width, heat.height + 13);
  }

  function scale(heat) {
    const box = element("div", "scale");
    const bar = element("canvas");
    bar.width = 120;
    bar.height = 10;
    bar.setAttribute("aria-hidden", "true");
    const ctx = bar.getContext("2d");
    for (let at = 0; at < 120; at += 1) {
      ctx.fillStyle = "rgb(" + shade(at / 119).join(",") + ")";
      ctx.fillRect(at, 0, 1, 10);
    }
    const value = (code) => say(Number(Math.pow(10, code / 100).toPrecision(2)));
    const bad = element("span", "swatch bad"), none = element("span", "swatch none"), zero = element("span", "swatch zero");
    box.append(element("span", "", value(heat.low)), bar, element("span", "", value(heat.high)),
      bad, element("span", "", "NaN or Inf"), zero, element("span", "", "zero"), none, element("span", "", "not measured"));
    return box;
  }

  function heatCursor(x) {
    for (const heat of heats) {
      const away = x === null || x < view.min || x > view.max;
      heat.line.hidden = away;
      if (!away) {
        heat.line.style.left = heat.left + (x - view.min) / (view.max - view.min) * heat.width + "px";
        heat.line.style.height = heat.height + "px";
      }
    }
  }

  // -- the page ---------------------------------------------------------------------------------

  function redraw() {
    const paint = colours();
    for (const chart of charts) {
      build(chart);
      chart.swatches.forEach((swatch, at) => { swatch.style.background = ink(paint, chart.panel.series[at], at); });
    }
    for (const heat of heats) paintHeat(heat);
  }

  function begin() {
    for (const holder of document.querySelectorAll(".chart")) {
      if (!charts.some((chart) => chart.holder === holder)) start(holder);
    }
    for (const holder of document.querySelectorAll(".heat")) {
      if (!heats.some((heat) => heat.holder === holder)) startHeat(holder);
    }
    document.documentElement.dataset.drawn = String(charts.length + heats.length);
  }

  // Further data of the same run, or of another part of it. Where all was shown, all is shown.
  function update(next) {
    const all = view.min <= extent.min && view.max >= extent.max;
    const painted = data.maps;
    data = next;
    panels = [...data.panels, ...data.components];
    extent = reach();
    if (all) view = { ...extent };
    for (const chart of charts) {
      const before = chart.panel.series.map((series) => series.label).join("\n");
      const panel = panels.find((item) => item.id === chart.panel.id);
      chart.panel = panel || { ...chart.panel, series: chart.panel.series.map((series) => ({ ...series, x: [], y: [], gaps: [] })) };
      const log = chart.chosen ? chart.log && positive(chart.panel) : all ? wantsLog(chart.panel) : chart.log && positive(chart.panel);
      const same = log === chart.log && before === chart.panel.series.map((series) => series.label).join("\n");
      chart.log = log;
      chart.button.hidden = !positive(chart.panel) || chart.panel.bytes;
      chart.button.setAttribute("aria-pressed", String(log));
      bounds(chart);
      if (same) {
        chart.plot.setData(joinSeries(chart.panel));
      } else {
        legend(chart);
        build(chart);
      }
    }
    for (const heat of heats) {
      if (data.maps !== painted && data.maps.some((item) => item.id === heat.map.id)) {
        fillHeat(heat);
        const made = scale(heat);
        heat.scale.replaceWith(made);
        heat.scale = made;
      }
      paintHeat(heat);
    }
    begin();
  }

  begin();
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.jump");
    if (button) jump(Number(button.dataset.x));
  });
  if (whole) whole.addEventListener("click", () => look(extent.min, extent.max));
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  paper.addEventListener("change", redraw);
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
  return { update, redraw };
}

const embedded = document.getElementById("data");
if (embedded) headwayCharts(JSON.parse(embedded.textContent));
