// What the reader chose for all charts: the x axis, smoothing, tensors to draw. Kept in the address.
"use strict";
// `page`: `chosen`, `axes()`, `AXES`, `zoom()`, `rows()`, `changed(axis before)`, and `follow()` of a
// run that may grow.
function headwayChoices(page) {
  const { chosen } = page;
  const { element, button } = headwayTools;
  let bar = null, tensors = null, kept = null;

  // -- the address ----------------------------------------------------------------------------------

  const list = (text) => text ? text.split(",").filter((item) => item) : [];

  function words() {
    const said = new URLSearchParams();
    if (chosen.axis !== "step") said.set("x", chosen.axis);
    if (chosen.smooth) said.set("smooth", String(chosen.smooth));
    const zoom = chosen.follow ? null : page.zoom();
    if (zoom) said.set("zoom", Number(zoom.min.toPrecision(9)) + ":" + Number(zoom.max.toPrecision(9)));
    const scales = [...chosen.log.entries()];
    const log = scales.filter(([, on]) => on).map(([id]) => id), linear = scales.filter(([, on]) => !on).map(([id]) => id);
    if (log.length) said.set("log", log.join(","));
    if (linear.length) said.set("linear", linear.join(","));
    if (chosen.wide.size) said.set("wide", [...chosen.wide].join(","));
    for (const name of chosen.hidden) said.append("hide", name);
    for (const name of chosen.pins) said.append("tensor", name);
    if (chosen.layers) said.set("layers", chosen.layers);
    return said.toString();
  }

  function keep() {
    const now = words();
    if (now === kept || (kept === null && !now && ours() === null)) return;
    kept = now;
    history.replaceState(null, "", now ? "#" + now : location.pathname + location.search);
  }

  const ours = () => location.hash.includes("=") ? location.hash.slice(1) : null;
  const changed = () => ours() !== null && ours() !== kept;

  // Takes over what the address says; the visible part, or null for all.
  function read() {
    const text = ours();
    if (text === null) return null;
    const said = new URLSearchParams(text), weight = Number(said.get("smooth"));
    if (page.axes().includes(said.get("x"))) chosen.axis = said.get("x");
    chosen.smooth = weight > 0 && weight < 1 ? weight : 0;
    for (const id of list(said.get("log"))) chosen.log.set(id, true);
    for (const id of list(said.get("linear"))) chosen.log.set(id, false);
    const again = (kept, names) => { kept.clear(); for (const name of names) kept.add(name); };
    again(chosen.wide, list(said.get("wide")));
    again(chosen.hidden, said.getAll("hide").slice(0, 200));
    chosen.pins = said.getAll("tensor").slice(0, 6);
    chosen.layers = said.get("layers") || "";
    const [from, to] = (said.get("zoom") || "").split(":").map(Number);
    return isFinite(from) && isFinite(to) && to > from ? [from, to] : null;
  }

  // -- the bar above the charts ---------------------------------------------------------------------

  function labelled(words, field) {
    const label = element("label", "", words);
    label.append(field);
    return label;
  }

  function makeBar() {
    const axis = element("select"), slider = element("input"), amount = element("output");
    slider.type = "range";
    Object.assign(slider, { min: "0", max: "0.99", step: "0.01", value: "0" });
    axis.addEventListener("change", () => {
      const before = chosen.axis;
      chosen.axis = axis.value;
      page.changed(before);
    });
    slider.addEventListener("input", () => {
      chosen.smooth = Number(slider.value);
      page.changed(chosen.axis);
      fill();
    });
    const smoothing = labelled("Smoothing", slider);
    smoothing.append(amount);
    smoothing.className = "smoothing";
    const made = element("div", "tools noprint");
    made.append(labelled("x axis", axis), smoothing);
    const follow = button("follow", "Follow the end");
    follow.setAttribute("aria-pressed", "false");
    if (page.follow) {
      follow.addEventListener("click", page.follow);
      made.append(follow);
    }
    const charts = document.querySelector(".charts");
    charts.parentNode.insertBefore(made, charts);
    return { made, axis, slider, amount, follow };
  }

  function fill() {
    const names = page.axes();
    if (bar.axis.options.length !== names.length) bar.axis.replaceChildren(...names.map((name) => new Option(page.AXES[name], name)));
    bar.axis.value = chosen.axis;
    bar.axis.parentNode.hidden = names.length < 2;
    bar.slider.value = String(chosen.smooth);
    bar.amount.textContent = chosen.smooth ? String(chosen.smooth) : "off";
  }

  // -- curves of single tensors ---------------------------------------------------------------------

  const MOST = 6;

  function makeTensors() {
    const field = element("input"), names = element("datalist"), add = button("", "Draw the curve");
    names.id = "tensor-names";
    field.type = "search";
    field.autocomplete = "off";
    field.spellcheck = false;
    field.setAttribute("list", names.id);
    const note = element("p", "quiet"), chips = element("div", "chips"), pins = element("div", "pins");
    note.setAttribute("role", "status");
    const take = () => {
      const typed = field.value.trim(), rows = page.rows();
      const found = rows.find((row) => row === typed) || rows.find((row) => typed && row.toLowerCase().includes(typed.toLowerCase()));
      note.textContent = found || !typed ? "" : `No tensor's name contains “${typed}”.`;
      if (found) { field.value = ""; pin(found, true); }
    };
    add.addEventListener("click", take);
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") take(); });
    const made = element("div", "tools noprint"), figure = document.querySelector(".heat").closest("figure");
    made.append(labelled("Find a tensor", field), add, names);
    figure.before(made, note, chips, pins);
    return { made, names, chips, pins, note };
  }

  // Draws the curve of a tensor, or no longer.
  function pin(name, only = false) {
    const known = chosen.pins.includes(name);
    if (known && only) return;
    chosen.pins = known ? chosen.pins.filter((item) => item !== name) : [...chosen.pins, name].slice(-MOST);
    page.changed(chosen.axis);
  }

  function fillTensors() {
    const rows = page.rows();
    if (tensors.names.options.length !== rows.length) tensors.names.replaceChildren(...rows.map((row) => new Option(row, row)));
    tensors.chips.replaceChildren(...chosen.pins.map((name) => {
      const made = button("chip", name + " ×");
      made.setAttribute("aria-label", "remove the curve of " + name);
      made.addEventListener("click", () => pin(name));
      return made;
    }));
  }

  function show(charts, heats) {
    if (charts && !bar) bar = makeBar();
    if (bar) fill();
    if (heats && !tensors) tensors = makeTensors();
    if (tensors) fillTensors();
  }

  function pins() {
    if (!tensors) tensors = makeTensors();
    return tensors.pins;
  }

  const mark = () => { if (bar) bar.follow.setAttribute("aria-pressed", String(chosen.follow)); };

  return { mark, keep, read, changed, show, pin, pins };
}
