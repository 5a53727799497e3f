// node serve_speed.mjs URL NAME SECONDS RUNS [SHOT]: seconds from opening a run's page to what is to be seen on it, as JSON.
// First while the server has just begun to read the run, then once more when it has read all of it.
import { launch } from "./browser.mjs";

const [, , address, name, patience, count, shot] = process.argv;
const { origin } = new URL(address);
const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1180, height: 900 } });

// The NaN is a red mark above the plot; the spike is in the line, and in the words below it.
const nan = () => {
  const canvas = document.querySelector("[data-panel=loss] canvas");
  if (!canvas) return false;
  const { data } = canvas.getContext("2d", { willReadFrequently: true }).getImageData(0, 0, canvas.width, Math.round(12 * devicePixelRatio));
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 200 && data[at] > 150 && data[at + 1] < 160 && data[at + 2] < 160) return true;
  }
  return false;
};
const spike = () => {
  const says = document.querySelector("figure:has([data-panel=gradients]) .says");
  return Boolean(says && says.textContent.includes("highest 4e+03"));
};
const drawn = () => Number(document.documentElement.dataset.drawn) > 0 && document.querySelector("[data-panel=loss] canvas") !== null;
const layers = () => document.querySelector(".heat canvas") !== null;
const read = () => Boolean(document.documentElement.dataset.details) && document.getElementById("reading").hidden;

// Whether it came in time. A page that has only just replaced the empty one is asked again.
async function until(page, condition, given) {
  for (;;) {
    const came = await page.waitForFunction(condition, given, { polling: 20 }).then(() => true, (error) => /Timeout/.test(error) ? false : null);
    if (came !== null) return came;
  }
}

async function look(path, { untilRead = false } = {}) {
  const page = await context.newPage();
  page.setDefaultTimeout(1000 * patience);
  const begun = performance.now();
  const since = () => Number(((performance.now() - begun) / 1000).toFixed(2));
  await page.goto(origin + path, { waitUntil: "commit" });
  const told = {};
  // What does not come in time is null: the rest is still worth knowing.
  const when = async (key, condition) => {
    told[key] = await until(page, condition) ? since() : null;
  };
  await when("charts", drawn);
  told.progress = await page.evaluate(() => document.getElementById("reading").hidden ? "" : document.getElementById("how-far").textContent);
  await Promise.all([when("nan", nan), when("spike", spike), when("layers", layers)]);
  if (untilRead) await when("read_and_checked", read);
  if (shot) await page.screenshot({ path: shot });
  await page.close();
  return told;
}

const first = await context.newPage();
const begun = performance.now();
await first.goto(address);
const link = first.getByRole("link", { name, exact: true });
await link.waitFor();
const list = Number(((performance.now() - begun) / 1000).toFixed(2));
const path = new URL(await link.getAttribute("href"), origin).pathname;
await first.close();
const cold = await look(path, { untilRead: true });
const warm = await look(path);
// All runs of the folder in the same charts: until they are drawn, until a zoom is drawn from what is
// there, and until the server's detail of that part is.
async function compared(paths) {
  const page = await context.newPage();
  // CPU time of the page's thread: other work on the machine changes it little.
  const client = await context.newCDPSession(page);
  await client.send("Performance.enable", { timeDomain: "threadTicks" });
  const cpu = async () => (await client.send("Performance.getMetrics")).metrics.find((item) => item.name === "TaskDuration").value;
  const cpuSince = async (before) => { const now = await cpu(); return Number((now < before ? now : now - before).toFixed(3)); }; // another page counts from zero
  page.setDefaultTimeout(1000 * patience);
  const ids = paths.map((item) => "run=" + item.split("/").pop()).join("&");
  const told = { page_cpu: {} };
  for (const part of ["first", "again"]) {
    const begun = performance.now(), spent = await cpu();
    await page.goto(`${origin}/compare?${ids}`, { waitUntil: "commit" });
    await until(page, (count) => Number(document.documentElement.dataset.drawn) > 0 && document.documentElement.dataset.compared === count, String(paths.length));
    told[part] = Number(((performance.now() - begun) / 1000).toFixed(2));
    told.page_cpu[part] = await cpuSince(spent);
  }
  await page.focus("[data-panel=loss]");
  await page.keyboard.press("Home");
  const zooms = [];
  for (let at = 0; at < 3; at += 1) {
    const spent = await cpu();
    const answered = page.waitForResponse((answer) => answer.url().includes("/api/compare") && answer.url().includes("from="));
    const drawn = await page.evaluate(() => new Promise((done) => {
      const begun = performance.now();
      document.querySelector("[data-panel=loss]").dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
      requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begun)));
    }));
    const spentBy = await cpuSince(spent);
    const begun = performance.now();
    await answered;
    zooms.push({ drawn: Math.round(drawn) / 1000, cpu: spentBy, detail: Number(((performance.now() - begun) / 1000).toFixed(2)) });
    await page.waitForTimeout(1500);
  }
  told.zooms = zooms;
  await page.close();
  return told;
}

const all = await context.newPage();
await all.goto(origin + "/");
await all.waitForFunction((runs) => document.querySelectorAll("#rows a").length >= runs, Number(count));
const paths = await all.$$eval("#rows a", (found) => found.map((item) => item.getAttribute("href")));
await all.close();
const compare = paths.length > 1 ? await compared(paths.slice(0, 8)) : null;
await browser.close();
console.log(JSON.stringify({ list, cold, warm, compare }));
