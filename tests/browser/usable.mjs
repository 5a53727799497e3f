// node usable.mjs URL: how long until a page can be used, in seconds, as JSON.
// `drawn`: every chart is drawn. `answered`: a key moved the cursor of the first chart, and the
// browser had time to show it.
import { launch } from "./browser.mjs";

const browser = await launch();
const page = await (await browser.newContext({ viewport: { width: 1180, height: 900 } })).newPage();
const begun = performance.now();
await page.goto(process.argv[2], { waitUntil: "commit" });
await page.waitForFunction(() => Number(document.documentElement.dataset.drawn) > 0, null, { timeout: 60000 });
const drawn = performance.now();
const before = await page.getAttribute(".chart", "aria-valuenow");
await page.focus(".chart");
await page.keyboard.press("ArrowRight");
await page.waitForFunction((was) => document.querySelector(".chart").getAttribute("aria-valuenow") !== was, before);
await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
const answered = performance.now();
console.log(JSON.stringify({ drawn: (drawn - begun) / 1000, answered: (answered - begun) / 1000 }));
await browser.close();
