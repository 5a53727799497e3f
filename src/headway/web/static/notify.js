// Notifications of the browser, on request: a new finding, and the end of a run.
import { byId } from "./common.js";

const KEY = "headway-notify";
const ENDINGS = { ended: "has ended", silent: "is silent; it may have been killed" };
let known = new Map();

const allowed = () => "Notification" in window && Notification.permission === "granted";
const on = () => allowed() && localStorage.getItem(KEY) === "on";

function label() {
  const button = byId("notify");
  // A browser in which they are blocked does not ask again.
  button.hidden = !("Notification" in window) || Notification.permission === "denied";
  button.setAttribute("aria-pressed", String(on()));
}

function show(run, words) {
  const made = new Notification(run.name, { body: words, tag: run.id + words, silent: true });
  made.addEventListener("click", () => { window.focus(); location.href = "/run/" + encodeURIComponent(run.id); });
}

// Called with what is new about runs. What was there when the page was opened is not news.
export function tell(runs) {
  for (const run of runs) {
    const before = known.get(run.id), found = run.findings.error + run.findings.warning;
    known.set(run.id, { state: run.state, found });
    if (!before || !on()) continue;
    if (found > before.found) show(run, run.cause ? `${run.word}: ${run.cause}` : run.word);
    if (before.state === "running" && ENDINGS[run.state]) show(run, `${ENDINGS[run.state]}: ${run.word}`);
  }
}

export function remember(runs) {
  known = new Map(runs.map((run) => [run.id, { state: run.state, found: run.findings.error + run.findings.warning }]));
}

byId("notify").addEventListener("click", async () => {
  if (on()) localStorage.setItem(KEY, "off");
  else if (await Notification.requestPermission() === "granted") localStorage.setItem(KEY, "on");
  label();
});
label();
