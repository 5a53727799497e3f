// Settings as further columns of the table of runs.
import { byId, element, fetchJson, paced } from "./common.js";

const MOST = 12;

// `changed()` is called when other columns are shown, or their values have come.
export function settingColumns(changed) {
  let chosen = [], known = [], values = {};

  const load = paced(async () => {
    const asked = chosen.join("\n");
    const found = await fetchJson("/api/columns?" + chosen.map((name) => "name=" + encodeURIComponent(name)).join("&"));
    if (asked !== chosen.join("\n")) { load(); return; }
    known = [...new Set([...chosen, ...found.names])];
    values = found.values;
    picks();
    changed();
  }, 1000);

  function picks() {
    const boxes = known.map((name) => {
      const box = element("input");
      box.type = "checkbox";
      box.checked = chosen.includes(name);
      box.disabled = !box.checked && chosen.length >= MOST;
      box.addEventListener("change", () => choose(box.checked ? [...chosen, name] : chosen.filter((other) => other !== name)));
      return element("label", "pick", box, " ", name);
    });
    const focused = [...byId("columns").children].findIndex((item) => item.contains(document.activeElement));
    byId("columns").replaceChildren(...(boxes.length ? boxes : [element("span", "quiet", "The runs differ in no setting that they recorded.")]));
    if (focused >= 0 && boxes[focused]) boxes[focused].querySelector("input").focus();
  }

  function choose(names) {
    chosen = names.slice(0, MOST);
    picks();
    changed();
    load();
  }

  byId("choose-columns").addEventListener("toggle", () => { if (byId("choose-columns").open) load(); });

  return {
    choose, names: () => chosen,
    value: (id, name) => (values[id] || [])[chosen.indexOf(name)] || "",
    // Runs that have come since then have no values yet.
    refresh: (ids) => { if (chosen.length && ids.some((id) => !values[id])) load(); },
  };
}
