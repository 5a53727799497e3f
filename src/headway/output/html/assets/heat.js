// The layer × step picture, and the curves of single tensors that are taken from it.
"use strict";
// `page` is what the picture shares with the charts: `data()`, `view()`, `toAxis(x)`, `fromAxis(u)`,
// `stepAt(x)`, `tick(u)`, `colours()`, `point(u)`, `pin(row)`, `chosen` and `changed()`.
function headwayHeat(page) {
  const { element, button, say, below } = headwayTools;
  const ABSENT = -32768, ZERO = -32767, BAD = 32767;
  const heats = [];
  const STOPS = [[48, 18, 92], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function shade(part) {
    const place = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(place), STOPS.length - 2), rest = place - low;
    return STOPS[low].map((value, at) => Math.round(value + (STOPS[low + 1][at] - value) * rest));
  }

  // A row has its own scale: a byte is a level of it, or says that there is no number.
  const decoded = new WeakMap();
  function decode(map) {
    if (!decoded.has(map)) {
      const raw = atob(map.codes), columns = map.starts.length, codes = new Int16Array(raw.length);
      for (let at = 0; at < raw.length; at += 1) {
        const level = raw.charCodeAt(at), row = Math.floor(at / columns);
        codes[at] = level < 3 ? [ABSENT, ZERO, BAD][level] : Math.round(map.lows[row] + (level - 3) * map.sizes[row]);
      }
      decoded.set(map, codes);
    }
    return decoded.get(map);
  }

  const valueOf = (code) => code === ZERO ? 0 : Math.pow(10, code / 100);
  const named = (map, row) => map.types[row] ? map.rows[row] + " (" + map.types[row] + ")" : map.rows[row];

  // Where the columns begin and end: each lasts until the next, unless measuring has paused.
  const GAP = 4;
  function columnEdges(map) {
    const { starts, ends } = map, last = starts.length - 1;
    const steps = starts.slice(1).map((start, at) => start - starts[at]).sort((a, b) => a - b);
    const usual = steps.length ? steps[steps.length >> 1] : 1;
    return starts.map((start, at) => {
      const least = Math.max(start + usual, ends[at] + 1);
      if (at === last) return [start, Math.max(Math.min(least, page.data().end + 1), ends[at] + 1)];
      return [start, starts[at + 1] - start > GAP * usual ? Math.min(least, starts[at + 1]) : starts[at + 1]];
    });
  }

  // The curve of one row: the largest value of each column.
  function curve(map, name) {
    const row = map.rows.indexOf(name), codes = decode(map), columns = map.starts.length;
    const series = { label: row < 0 ? name : named(map, row), x: [], y: [], gaps: [] };
    for (let column = 0; row >= 0 && column < columns; column += 1) {
      const code = codes[row * columns + column], x = map.starts[column];
      if (code === BAD) series.gaps.push(["NaN", x, x, 1]);
      else if (code !== ABSENT) { series.x.push(x); series.y.push(Number(valueOf(code).toPrecision(3))); }
    }
    return series;
  }

  function fill(heat) {
    const { maps } = page.data();
    const map = maps.find((item) => item.id === page.chosen.layers) || maps[0];
    const codes = decode(map);
    const known = [...codes].filter((code) => code !== ABSENT && code !== ZERO && code !== BAD).sort((a, b) => a - b);
    const low = known.length ? known[Math.floor(known.length * 0.01)] : 0;
    const high = known.length ? known[Math.ceil(known.length * 0.995) - 1] : 1;
    Object.assign(heat, { map, codes, low, high: Math.max(high, low + 1), edges: columnEdges(map) });
    heat.row = Math.min(heat.row, map.rows.length - 1);
    heat.column = Math.min(heat.column, map.starts.length - 1);
    heat.image = image(heat);
    heat.canvas.setAttribute("aria-label", map.title + " of layers by steps; arrow keys read single cells, Enter draws the row as a curve");
    const figure = heat.holder.closest("figure");
    figure.querySelector(".says").textContent = map.says;
    figure.querySelector("h3").textContent = map.title + " of each tensor";
    const made = scale(heat);
    if (heat.scale) heat.scale.replaceWith(made);
    heat.scale = made;
    heat.choice.replaceChildren(...maps.map((item) => {
      const one = button("", item.title);
      one.setAttribute("aria-pressed", String(item === map));
      one.addEventListener("click", () => {
        page.chosen.layers = item.id;
        fill(heat);
        paint(heat);
        page.changed();
        [...heat.choice.children].find((other) => other.textContent === item.title).focus();
      });
      return one;
    }));
    heat.choice.hidden = maps.length < 2;
  }

  function start(holder) {
    const canvas = element("canvas"), readout = element("p", "readout", " "), line = element("div", "line"), choice = element("div", "chips noprint");
    const heat = { holder, row: 0, column: 0, canvas, readout, line, choice };
    canvas.setAttribute("role", "img");
    canvas.setAttribute("tabindex", "0");
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "What the picture shows");
    readout.setAttribute("aria-live", "polite");
    line.hidden = true;
    holder.append(canvas, line);
    holder.before(choice);
    holder.after(readout);
    fill(heat);
    holder.after(heat.scale);
    canvas.addEventListener("mousemove", (event) => {
      const u = find(heat, event);
      if (u === null) return;
      readCell(heat);
      page.point(u);
    });
    canvas.addEventListener("click", (event) => { if (find(heat, event) !== null) page.pin(heat.map.rows[heat.row]); });
    canvas.addEventListener("keydown", (event) => {
      const { map } = heat;
      if (event.key === "Enter") { page.pin(map.rows[heat.row]); return; }
      const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      heat.row = Math.min(Math.max(heat.row + move[0], 0), map.rows.length - 1);
      heat.column = Math.min(Math.max(heat.column + move[1], 0), map.starts.length - 1);
      readCell(heat);
      cursor(page.toAxis((heat.edges[heat.column][0] + heat.edges[heat.column][1]) / 2));
    });
    heats.push(heat);
    paint(heat);
  }

  // The row and column under the mouse; its place on the axis, or null outside.
  function find(heat, event) {
    const { map, canvas } = heat, view = page.view();
    const box = canvas.getBoundingClientRect();
    const u = view.min + (event.clientX - box.left - heat.left) / heat.width * (view.max - view.min);
    const row = Math.floor((event.clientY - box.top) / heat.height * map.rows.length);
    const outside = u > view.max || row < 0 || row >= map.rows.length;
    if (outside) return null;
    heat.row = row;
    if (u < view.min) return event.type === "click" ? u : null; // a click on the name
    const x = page.fromAxis(u);
    heat.column = x < map.starts[0] ? -1 : map.starts[map.starts.length - 1] <= x ? map.starts.length - 1 : below(map.starts, x);
    return u;
  }

  function readCell(heat) {
    const { map, column } = heat;
    if (column < 0) { heat.readout.textContent = " "; return; }
    const code = heat.codes[heat.row * map.starts.length + column];
    const from = map.starts[column], to = Math.min(map.ends[column], page.data().end);
    const value = code === ABSENT ? "not measured" : code === BAD ? "NaN or Inf" : code === ZERO ? "0" : "about " + say(valueOf(code));
    const steps = to > from ? "steps " + page.stepAt(from) + " to " + page.stepAt(to) : "step " + page.stepAt(from);
    heat.readout.textContent = named(map, heat.row) + ", " + steps + ": " + value;
  }

  function image(heat) {
    const { map, codes } = heat;
    const made = element("canvas");
    made.width = map.starts.length;
    made.height = map.rows.length;
    const pixels = new ImageData(made.width, made.height);
    codes.forEach((code, at) => {
      let colour = [128, 128, 128, 255];
      if (code === ABSENT) colour = [0, 0, 0, 0];
      else if (code === BAD) colour = [214, 40, 40, 255];
      else if (code !== ZERO) colour = [...shade((code - heat.low) / (heat.high - heat.low)), 255];
      pixels.data.set(colour, at * 4);
    });
    made.getContext("2d").putImageData(pixels, 0, 0);
    return made;
  }

  // "0.weight" of a Linear is the first of its rows: "0 Linear weight".
  function label(map, row, narrow) {
    if (narrow) return map.rows[row];
    const name = map.rows[row], dot = name.lastIndexOf(".");
    return map.types[row] && dot > 0 ? name.slice(0, dot) + " " + map.types[row] + " " + name.slice(dot + 1) : named(map, row);
  }

  // A name that fits: its longest words lose their ends first, so that numbers and order remain.
  function shorten(ctx, words, room) {
    const parts = words.split(/(?<=[. ])|(?=[. ])/);
    while (ctx.measureText(parts.join("")).width > room) {
      const sizes = parts.map((part) => /\d/.test(part) ? 0 : part.length), longest = Math.max(...sizes);
      if (longest < 2) return "…";
      const at = sizes.indexOf(longest);
      parts[at] = parts[at].slice(0, -1);
    }
    return parts.join("");
  }

  function paint(heat) {
    const { map, canvas, holder } = heat, view = page.view();
    const inks = page.colours();
    const ratio = devicePixelRatio || 1;
    const full = Math.max(holder.clientWidth, 200);
    const narrow = full <= 600;
    heat.left = narrow ? 120 : 230;
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
    const at = (x) => heat.left + (page.toAxis(x) - view.min) / span * heat.width;
    const high = heat.height / map.rows.length;
    const edges = heat.edges.map(([from, to]) => [at(from), at(to)]), columns = edges.length;
    ctx.save();
    ctx.beginPath();
    ctx.rect(heat.left, 0, heat.width, heat.height);
    ctx.clip();
    ctx.fillStyle = inks.grid;
    ctx.globalAlpha = 0.5;
    ctx.fillRect(heat.left, 0, heat.width, heat.height);
    ctx.globalAlpha = 1;
    edges.forEach(([begin, end], column) => {
      // Whole pixels, so that no seam shows between two columns.
      const left = Math.floor(begin), right = Math.ceil(end);
      if (right >= heat.left && left <= full) ctx.drawImage(heat.image, column, 0, 1, map.rows.length, left, 0, right - left, heat.height);
    });
    ctx.fillStyle = "rgb(214, 40, 40)";
    heat.codes.forEach((code, place) => {
      if (code !== BAD) return;
      const [left, right] = edges[place % columns], wide = right - left, top = Math.floor(place / columns) * high;
      ctx.fillRect(Math.min(left, left + wide / 2 - 1.5), Math.min(top, top + high / 2 - 1), Math.max(wide, 3), Math.max(high, 2));
    });
    // The layer that changed first: a frame from there to the error.
    ctx.strokeStyle = inks.error;
    ctx.lineWidth = 2;
    for (const change of page.data().changes || []) {
      const row = map.rows.indexOf(change.row);
      if (row >= 0) ctx.strokeRect(at(change.x), row * high + 1, Math.max(at(change.to) - at(change.x), 4), Math.max(high - 2, 2));
    }
    for (const flag of page.data().flags) {
      const u = page.toAxis(flag.x);
      if (flag.severity !== "error" || u < view.min || u > view.max) continue;
      ctx.fillStyle = inks.error;
      ctx.globalAlpha = 0.8;
      ctx.fillRect(at(flag.x) - 0.5, 0, 1, heat.height);
      ctx.globalAlpha = 1;
    }
    ctx.restore();
    ctx.fillStyle = inks.quiet;
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    const every = Math.max(Math.ceil(14 / high), 1);
    for (let row = 0; row < map.rows.length; row += every) {
      ctx.fillText(shorten(ctx, label(map, row, narrow), heat.left - 12), heat.left - 6, (row + 0.5) * high);
    }
    ctx.textAlign = "left";
    ctx.fillText(page.tick(view.min), heat.left, heat.height + 13);
    ctx.textAlign = "right";
    ctx.fillText(page.tick(view.max), heat.left + heat.width, heat.height + 13);
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

  function cursor(u) {
    const view = page.view();
    for (const heat of heats) {
      const away = u === null || u < view.min || u > view.max;
      heat.line.hidden = away;
      if (!away) {
        heat.line.style.left = heat.left + (u - view.min) / (view.max - view.min) * heat.width + "px";
        heat.line.style.height = heat.height + "px";
      }
    }
  }

  function begin() {
    for (const holder of document.querySelectorAll(".heat")) {
      if (!heats.some((heat) => heat.holder === holder)) start(holder);
    }
  }

  function update(before) {
    const { maps } = page.data();
    for (const heat of heats) {
      if (maps !== before && maps.length) fill(heat);
      paint(heat);
    }
  }

  const repaint = () => heats.forEach(paint);
  return { begin, update, repaint, cursor, curve, count: () => heats.length };
}
