// Shared by all pages. Text is inserted as text: nothing here parses markup.

export function element(name, className, ...inside) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...inside.filter((item) => item !== null && item !== undefined && item !== ""));
  return made;
}

export const byId = (id) => document.getElementById(id);

// A sentence; text between backticks becomes code.
export function prose(words) {
  const parts = words.split("`");
  if (parts.length % 2 === 0) return [words];
  return parts.map((part, at) => at % 2 ? element("code", "", part) : part);
}

export async function fetchJson(url, signal) {
  const answer = await fetch(url, { signal, headers: { Accept: "application/json" } });
  if (!answer.ok) throw Object.assign(new Error("the server answered " + answer.status), { status: answer.status });
  return answer.json();
}

export const MARKS = { error: "✗", warning: "!", info: "i", healthy: "✓", unsure: "?", unknown: "?", interrupted: "■", reading: "…" };

export function badge(level, words) {
  const mark = element("span", "", MARKS[level] || "·");
  mark.setAttribute("aria-hidden", "true");
  return element("span", "badge " + level, mark, " " + words);
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return { Infinity: "Inf", "-Infinity": "-Inf" }[value] || value;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(4)));
}

export function age(changed) {
  if (!changed) return "";
  const seconds = Math.max(Date.now() / 1000 - changed, 0);
  if (seconds < 5) return "now";
  if (seconds < 90) return Math.round(seconds) + " s ago";
  if (seconds < 5400) return Math.round(seconds / 60) + " min ago";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h ago";
  return Math.round(seconds / 86400) + " days ago";
}

export function duration(seconds) {
  if (!seconds) return "–";
  if (seconds < 90) return Number(seconds.toPrecision(3)) + " s";
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return minutes + " min";
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// The server reports changes; after a lost connection everything is loaded again.
export function listen({ news, again }) {
  const link = byId("link");
  const source = new EventSource("/api/events");
  let lost = false;
  const say = (state, words) => {
    link.dataset.state = state;
    if (link.textContent !== words) link.textContent = words;
  };
  source.addEventListener("hello", () => {
    say("live", "live");
    if (lost) again();
    lost = false;
  });
  source.addEventListener("runs", (event) => news(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    lost = true;
    say("lost", "no connection");
    // A browser does not reconnect by itself after a refusal.
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (source.readyState === EventSource.CLOSED) { listen({ news, again: () => {} }); again(); } }, 3000);
    }
  });
  addEventListener("pagehide", () => source.close());
}

// Runs one call at a time, at most every `least` ms, and once more if it was called meanwhile.
export function paced(work, least) {
  let running = false, wanted = false;
  return async function run() {
    wanted = true;
    if (running) return;
    running = true;
    while (wanted) {
      wanted = false;
      const begun = performance.now();
      try { await work(); } catch (error) { if (error.name !== "AbortError") document.documentElement.dataset.wrong = String(error.message); }
      const took = performance.now() - begun;
      await new Promise((resolve) => setTimeout(resolve, Math.max(least, 2 * took)));
    }
    running = false;
  };
}

export function figure(panel) {
  const holder = element("div", "chart");
  holder.dataset.panel = panel.id;
  const unit = panel.measure ? element("span", "unit", panel.measure) : "";
  return element("figure", "", element("figcaption", "", element("h3", "", panel.title, unit)), holder, element("p", "says", panel.says));
}

export function pointsWanted() {
  return Math.min(Math.max(Math.round(byId("charts").clientWidth * 1.1), 200), 2000);
}

export function table(caption, head, rows, numbers = [], marked = null) {
  const cell = (kind, words, at) => {
    const made = element(kind, numbers.includes(at) ? "number" : "", words);
    if (kind === "th") made.scope = "col";
    return made;
  };
  const box = element("div", "scroll", element("table", "",
    element("caption", "", caption),
    element("thead", "", element("tr", "", ...head.map((words, at) => cell("th", words, at)))),
    element("tbody", "", ...rows.map((row, number) => element("tr", number === marked ? "marked" : "", ...row.map((words, at) => cell("td", words, at)))))));
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", caption);
  return box;
}

export function facts(rows) {
  return element("dl", "facts", ...rows.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", value))));
}

export function folded(words, ...inside) {
  return element("details", "", element("summary", "", words), ...inside);
}
