// The curves of a chart by name: their colours, their values at the cursor, and which are hidden.
"use strict";
// `page`: `chosen`, `swatch(series, at)` as a background, and `changed()` when curves come or go.
function headwayLegend(page) {
  const { element, button } = headwayTools;
  const FEW = 8; // curves that are told apart by their colours
  const { hidden } = page.chosen;

  // Where colours stand for runs, a run is hidden in all charts at once.
  const keyOf = (chart, series) => series.colour === undefined ? chart.panel.id + " " + series.label : "run " + series.colour;
  const shows = (chart, series) => !hidden.has(keyOf(chart, series));
  const shown = (chart) => chart.panel.series.filter((series) => shows(chart, series));

  function name(chart, series, swatch) {
    const words = element("bdi", "", series.label);
    const made = chart.panel.series.length > 1 ? button("", "") : element("span");
    made.className = "name";
    made.append(swatch, words);
    if (made.tagName !== "BUTTON") return made;
    made.title = "Hide or show this curve";
    made.addEventListener("click", () => {
      const key = keyOf(chart, series);
      if (!hidden.delete(key)) hidden.add(key);
      page.changed();
    });
    return made;
  }

  function make(chart) {
    const { panel } = chart;
    const box = element("div", panel.series.length > FEW ? "legend many" : "legend");
    if (panel.series.length > FEW) {
      box.tabIndex = 0; // it scrolls
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", panel.title + ": curves");
    }
    if (chart.legend) chart.legend.remove();
    chart.legend = box;
    chart.swatches = [];
    chart.values = panel.series.map((series) => {
      const item = element("span", "entry"), swatch = element("span", "swatch"), value = element("span", "value");
      item.append(name(chart, series, swatch), value);
      box.append(item);
      chart.swatches.push(swatch);
      return value;
    });
    chart.step = element("span", "at");
    box.append(chart.step);
    paint(chart);
    chart.holder.after(box);
  }

  function paint(chart) {
    chart.panel.series.forEach((series, at) => {
      const swatch = chart.swatches[at], held = swatch.parentNode;
      swatch.style.background = page.swatch(series, at);
      if (held.tagName === "BUTTON") held.setAttribute("aria-pressed", String(shows(chart, series)));
    });
  }

  // The curve nearest to the cursor stands out.
  function near(chart, at) {
    chart.swatches.forEach((swatch, number) => swatch.closest(".entry").classList.toggle("near", at !== null && (at - 1) % chart.panel.series.length === number));
  }

  return { FEW, shows, shown, make, paint, near };
}
