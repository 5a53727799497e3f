// What the charts compute and say, without the page: words, axes, smoothing, ranges, files, menus.
"use strict";
const headwayTools = (() => {
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

  function sayCount(count) {
    if (Math.abs(count) >= 1e9) return Number((count / 1e9).toPrecision(6)) + "G";
    if (Math.abs(count) >= 1e6) return Number((count / 1e6).toPrecision(6)) + "M";
    if (Math.abs(count) >= 1e4) return Number((count / 1e3).toPrecision(6)) + "k";
    return String(count);
  }

  function sayTime(seconds) {
    if (seconds < 60) return Number(seconds.toPrecision(3)) + " s";
    const whole = Math.round(seconds), days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24;
    const minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
    if (days) return days + " d" + (hours ? " " + hours + " h" : "");
    if (hours) return hours + " h" + (minutes ? " " + minutes + " min" : "");
    return minutes + " min" + (rest ? " " + rest + " s" : "");
  }

  function element(name, className, words) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (words !== undefined) made.textContent = words;
    return made;
  }

  function button(className, words) {
    const made = element("button", className, words);
    made.type = "button";
    return made;
  }

  // -- axes -------------------------------------------------------------------------------------

  // Ticks of a time axis, in seconds: uPlot's own are those of a calendar.
  const SECONDS = [0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
    86400, 172800, 432000, 864000, 1728000, 4320000];

  // Ticks of an axis of bytes: round in KiB, MiB and GiB.
  const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);

  // Positions of a sorted list around a value.
  function below(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return low;
  }

  function nearest(xs, x) {
    const low = below(xs, x), high = Math.min(low + 1, xs.length - 1);
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  }

  // The value of a rising polyline at x; its first and last parts continue beyond its ends.
  function along(xs, ys, x) {
    if (xs.length < 2) return x;
    const at = Math.min(below(xs, x), xs.length - 2);
    const run = xs[at + 1] - xs[at];
    if (run <= 0) return ys[at];
    const found = ys[at] + (x - xs[at]) / run * (ys[at + 1] - ys[at]);
    return x < xs[0] ? Math.max(found, Math.min(0, ys[0])) : found;
  }

  // A grid line for each power of ten, and for 2 and 5 where there are few: no grey bands.
  function logGrid(plot, splits) {
    const { min, max } = plot.scales.y;
    const decades = Math.log10(max / min);
    const leading = decades < 1.1 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : decades < 3 ? [1, 2, 5] : [1];
    const every = Math.max(Math.ceil(decades / 8), 1);
    return splits.map((y) => {
      const power = Math.floor(Math.log10(y) + 1e-9);
      return leading.includes(Math.round(y / 10 ** power)) && power % every === 0 ? y : null;
    });
  }

  // -- numbers ----------------------------------------------------------------------------------

  // Exponential smoothing. A weight holds for a thousandth of the visible part, so that it means the
  // same for a run of any length, and the mean so far replaces what came before the first point.
  function smooth(xs, ys, weight, span) {
    let sum = 0, count = 0;
    return ys.map((y, at) => {
      const keep = at ? Math.pow(weight, (xs[at] - xs[at - 1]) / span * 1000) : 0;
      sum = sum * keep + y;
      count = count * keep + 1;
      return sum / count;
    });
  }

  const quantile = (sorted, share) => sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)];

  // The range of a chart that a few single points do not stretch: that of the running median and of
  // all but the outermost values. All values where they lie near it.
  function steadyRange(lines) {
    let low = Infinity, high = -Infinity, least = Infinity, most = -Infinity;
    for (const ys of lines) {
      if (!ys.length) continue;
      const sorted = [...ys].sort((a, b) => a - b);
      least = Math.min(least, sorted[0]);
      most = Math.max(most, sorted[sorted.length - 1]);
      const least98 = quantile(sorted, 0.02), most98 = quantile(sorted, 0.98);
      low = Math.min(low, least98);
      high = Math.max(high, most98);
      for (let at = 0; at < ys.length; at += 1) {
        if (ys[at] >= least98 && ys[at] <= most98) continue;
        const reach = Math.min(4, at, ys.length - 1 - at);
        const part = ys.slice(at - reach, at + reach + 1).sort((a, b) => a - b);
        low = Math.min(low, part[reach]);
        high = Math.max(high, part[reach]);
      }
    }
    const near = (high - low) * 0.75;
    const top = high + near, bottom = low - near;
    for (const y of lines.flat()) {
      if (y <= top && y > high) high = y;
      else if (y >= bottom && y < low) low = y;
    }
    return { low, high, clipped: most > top || least < bottom };
  }

  function wantsLog(panel) {
    // A rate is read on a linear scale: warm-up and decay have their shapes there.
    if (panel.bytes || panel.small || panel.id === "rate") return false;
    const all = panel.series.flatMap((series) => series.y).sort((a, b) => a - b);
    return all.length > 0 && all[0] > 0 && quantile(all, 0.98) / quantile(all, 0.02) > 100;
  }

  // -- colours ------------------------------------------------------------------------------------

  const isDark = (colour) => { const [, r, g, b] = colour.match(/^#(..)(..)(..)/) || [0, "ff", "ff", "ff"]; return parseInt(r, 16) + parseInt(g, 16) + parseInt(b, 16) < 380; };

  // A colour for any number of curves. The first eight have fixed colours; the next ones fill the gaps
  // between their hues, and those after them are at the golden angle, which stays apart the longest.
  const GAPS = [89, 308, 163, 243, 2, 66, 112, 325];
  function hue(at, dark) {
    const angle = GAPS[at - 8] ?? at * 137.508 % 360, light = (dark ? 0.72 : 0.4) + (at % 3 - 1) * 0.06, reach = 0.55 * Math.min(light, 1 - light);
    const part = (n) => { const k = (n + angle / 30) % 12; return light - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1)); };
    return "#" + [0, 8, 4].map((n) => Math.round(part(n) * 255).toString(16).padStart(2, "0")).join("");
  }

  // -- files ------------------------------------------------------------------------------------

  function save(blob, name) {
    const link = element("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  const quoted = (words) => /[",\n]/.test(words) ? '"' + words.replaceAll('"', '""') + '"' : words;
  // A spreadsheet must not take a name for a formula.
  const cell = (words) => quoted(/^[=+\-@]/.test(words) ? "'" + words : words);

  // The drawn points, one row per x: long runs are drawn by the extremes of each part.
  function csv(panel, inside, stepAt) {
    const rows = new Map();
    panel.series.forEach((series, column) => {
      const put = (x, value) => {
        if (!inside(x, series)) return;
        if (!rows.has(x)) rows.set(x, panel.series.map(() => ""));
        rows.get(x)[column] = String(value);
      };
      series.x.forEach((x, at) => put(x, series.y[at]));
      for (const [kind, first] of series.gaps) put(first, kind);
    });
    const head = ["step", ...panel.series.map((series) => cell(series.label))];
    const body = [...rows.entries()].sort((a, b) => a[0] - b[0]).map(([x, values]) => [stepAt(x), ...values].join(","));
    return [head.join(","), ...body].join("\n") + "\n";
  }

  // A file stands alone: it has the title, and the names of the curves in rows that fit its width.
  const TITLE = 24, ROW = 18;
  const titleOf = (panel) => panel.measure ? `${panel.title}, ${panel.measure}` : panel.title;
  function names(plot, panel) {
    const ctx = element("canvas").getContext("2d"), shown = [];
    ctx.font = "12px system-ui, sans-serif";
    let left = plot.bbox.left / (devicePixelRatio || 1), top = 0;
    const begin = left;
    panel.series.forEach((series, at) => {
      if (!plot.series[at + 1].show) return;
      const width = ctx.measureText(series.label).width + 30;
      if (left > begin && left + width > plot.width) { left = begin; top += ROW; }
      shown.push({ left, top, label: series.label, colour: plot.series[at + 1].stroke(plot, at + 1).slice(0, 7), dashed: series.dashed });
      left += width;
    });
    return { shown, height: top + ROW + 6 };
  }

  function png(plot, paint, panel, done) {
    const { canvas } = plot.ctx, ratio = devicePixelRatio || 1, copy = element("canvas"), legend = names(plot, panel);
    copy.width = canvas.width;
    copy.height = canvas.height + (TITLE + legend.height) * ratio;
    const ctx = copy.getContext("2d");
    ctx.fillStyle = paint.back;
    ctx.fillRect(0, 0, copy.width, copy.height);
    ctx.drawImage(canvas, 0, TITLE * ratio);
    ctx.scale(ratio, ratio);
    ctx.fillStyle = paint.text;
    ctx.font = "600 13px system-ui, sans-serif";
    ctx.fillText(titleOf(panel), plot.bbox.left / ratio, 16);
    ctx.font = "12px system-ui, sans-serif";
    for (const { left, top, label, colour, dashed } of legend.shown) {
      const high = TITLE + plot.height + top;
      ctx.fillStyle = colour;
      for (const [from, wide] of dashed ? [[0, 4], [6, 4]] : [[0, 10]]) ctx.fillRect(left + from, high + 3, wide, 10);
      ctx.fillStyle = paint.text;
      ctx.fillText(label, left + 14, high + 12);
    }
    copy.toBlob(done);
  }

  // uPlot draws on a canvas only: its scales, ticks and points as SVG. `marks` are lines across the
  // plot at places of the x axis, `gaps` what is not finite.
  function svg(plot, paint, panel, marks, gaps) {
    const space = "http://www.w3.org/2000/svg";
    const make = (name, attributes, words) => {
      const made = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
      if (words !== undefined) made.textContent = words;
      return made;
    };
    const ratio = devicePixelRatio || 1, box = Object.fromEntries(Object.entries(plot.bbox).map(([key, value]) => [key, value / ratio]));
    const legend = names(plot, panel), height = TITLE + plot.height + legend.height;
    const root = make("svg", { xmlns: space, width: plot.width, height, viewBox: `0 ${-TITLE} ${plot.width} ${height}`, "font-family": "system-ui, sans-serif", "font-size": 12 });
    root.append(make("rect", { x: 0, y: -TITLE, width: plot.width, height, fill: paint.back }), make("text", { x: box.left, y: -8, fill: paint.text, "font-size": 13, "font-weight": 600 }, titleOf(panel)));
    // An inner picture clips the curves to the plot.
    const inner = make("svg", { x: box.left, y: box.top, width: box.width, height: box.height, viewBox: `${box.left} ${box.top} ${box.width} ${box.height}` });
    const place = (value, scale) => Number((plot.valToPos(value, scale, true) / ratio).toFixed(1));
    plot.axes.forEach((axis, at) => {
      const upright = at > 0;
      (axis._splits || []).forEach((value, tick) => {
        const words = axis._values[tick];
        if (value === null || words === null || words === "" || words === undefined) return;
        const here = place(value, upright ? "y" : "x");
        root.append(upright
          ? make("path", { d: `M${box.left} ${here}h${box.width}`, stroke: paint.grid })
          : make("path", { d: `M${here} ${box.top}v${box.height}`, stroke: paint.grid }),
        upright
          ? make("text", { x: box.left - 8, y: here + 4, fill: paint.quiet, "text-anchor": "end" }, words)
          : make("text", { x: here, y: box.top + box.height + 18, fill: paint.quiet, "text-anchor": "middle" }, words));
      });
    });
    const pointsOf = (column) => plot.data[column].flatMap((y, index) => y === null || y === undefined ? [] : [place(plot.data[0][index], "x") + "," + place(y, "y")]);
    plot.bands.forEach(({ series: [high, low], fill }, at) => {
      if (plot.series[high].show) inner.append(make("polygon", { points: [...pointsOf(high), ...pointsOf(low).reverse()].join(" "), fill: fill(plot, at) }));
    });
    plot.series.slice(1).forEach((series, at) => {
      if (!series.show || !series.width) return;
      const line = make("polyline", { points: pointsOf(at + 1).join(" "), fill: "none", stroke: series.stroke(plot, at + 1), "stroke-width": series.width, "stroke-dasharray": series.dash ? series.dash.join(" ") : undefined });
      line.append(make("title", {}, series.label));
      inner.append(line);
    });
    for (const { u, colour, dashed } of marks) inner.append(make("path", { d: `M${place(u, "x")} ${box.top}v${box.height}`, stroke: colour, "stroke-dasharray": dashed ? "4 3" : undefined }));
    root.append(inner);
    for (const { u, kind } of gaps) {
      const here = place(u, "x"), mark = make("path", { d: kind === "NaN" ? `M${here - 4.5} ${box.top - 10}h9l-4.5 9z` : `M${here - 4.5} ${box.top - 1}h9l-4.5 -9z`, fill: paint.error });
      mark.append(make("title", {}, kind));
      root.append(mark);
    }
    for (const { left, top, label, colour, dashed } of legend.shown) {
      const high = plot.height + top;
      root.append(make("path", { d: `M${left} ${high + 8}h10`, stroke: colour, "stroke-width": 10, "stroke-dasharray": dashed ? "4 2" : undefined }), make("text", { x: left + 14, y: high + 12, fill: paint.text }, label));
    }
    return new XMLSerializer().serializeToString(root);
  }

  // -- menus ------------------------------------------------------------------------------------

  // They close when one goes on elsewhere.
  const menus = () => document.querySelectorAll("details.save[open]");
  document.addEventListener("click", ({ target }) => { for (const menu of menus()) if (!menu.contains(target)) menu.open = false; });
  document.addEventListener("keydown", ({ key }) => {
    for (const menu of key === "Escape" ? menus() : []) { menu.open = false; menu.querySelector("summary").focus(); }
  });

  return { isDark, hue, say, sayCount, sayTime, element, button, SECONDS, BYTES, below, nearest, along, logGrid, smooth, steadyRange, wantsLog, save, csv, png, svg };
})();
