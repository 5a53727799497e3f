// node report.mjs PAGES.json: looks at each page with a browser and prints what came of it, as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { launch, open } from "./browser.mjs";
import { check, equal, inks, redAbove, sound } from "./looking.mjs";

const pages = JSON.parse(readFileSync(process.argv[2], "utf8"));

const shown = (page) => page.textContent("#status");

const looks = {
  async quiet(page) {
    check(await page.title() !== "", "the page has a title");
  },
  async charts_drawn(page) {
    const figures = await page.$$(".chart canvas");
    check(figures.length >= 6, `only ${figures.length} charts`);
    for (const count of await inks(page, ".chart canvas")) check(count > 10, "a chart is blank");
    for (const count of await inks(page, ".heat canvas")) check(count > 10, "a heat map is blank");
  },
  async nonfinite_seen(page) {
    check(await redAbove(page, "loss") > 20, "the NaN of the loss is not marked");
    equal(await redAbove(page, "rate"), 0, "marks over a healthy chart:");
  },
  async verdict_first(page) {
    const order = await page.$$eval("main > section", (found) => found.map((item) => item.id || item.className));
    check(order[0].startsWith("verdict"), `the page begins with ${order[0]}`);
    const rest = ["causes", "incidents", "timeline", "layers", "components", "coverage", "environment"];
    equal(order.slice(1), rest);
  },
  async finding_clicked(page) {
    await page.locator(".cause button.jump").first().click();
    check(/^The charts show steps \d+ to \d+\.$/.test(await shown(page)), await shown(page));
    check(await page.isVisible("#whole"), "no way back to the whole run");
    const focused = await page.evaluate(() => document.activeElement.dataset.panel);
    equal(focused, "loss");
    const said = await page.getAttribute("[data-panel=loss]", "aria-valuetext");
    check(said.startsWith("step 83: loss NaN"), said);
    await page.click("#whole");
    equal(await shown(page), "The charts show the whole run.");
  },
  async keyboard(page) {
    await page.keyboard.press("Tab");
    equal(await page.evaluate(() => document.activeElement.className), "skip");
    await page.keyboard.press("Tab");
    equal(await page.evaluate(() => document.activeElement.className), "jump");
    await page.keyboard.press("Enter");
    check((await shown(page)).startsWith("The charts show steps"), "Enter on a step does nothing");
    const before = Number(await page.getAttribute("[data-panel=loss]", "aria-valuenow"));
    await page.keyboard.press("ArrowRight");
    await page.waitForTimeout(60);
    const after = Number(await page.getAttribute("[data-panel=loss]", "aria-valuenow"));
    check(after > before, `the cursor went from ${before} to ${after}`);
    await page.keyboard.press("Escape");
    equal(await shown(page), "The charts show the whole run.");
    await page.focus(".heat canvas");
    await page.keyboard.press("ArrowRight");
    check((await page.textContent(".readout")).includes("step"), "a heat map says nothing");
    const unreachable = await page.$$eval("button:not([hidden]), summary", (found) => found.filter((item) => item.tabIndex < 0).length);
    equal(unreachable, 0);
  },
  async cursors_together(page) {
    const over = page.locator("[data-panel=loss] .u-over");
    await over.scrollIntoViewIfNeeded();
    const box = await over.boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    await page.waitForTimeout(100);
    const steps = await page.$$eval(".legend .at", (found) => found.map((item) => item.textContent));
    check(steps[0].startsWith("step ") && new Set(steps).size === 1, `cursors at ${steps.join(", ")}`);
    check(await page.isVisible(".heat .line"), "the heat maps have no cursor");
  },
  async zoomed_by_mouse(page) {
    const over = page.locator("[data-panel=loss] .u-over");
    await over.scrollIntoViewIfNeeded();
    const box = await over.boundingBox();
    await page.mouse.move(box.x + box.width * 0.4, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.6, box.y + 40, { steps: 4 });
    await page.mouse.up();
    check((await shown(page)).startsWith("The charts show steps"), "dragging does not zoom");
  },
  async log_scale(page) {
    const button = page.locator("figure:has([data-panel=gradients]) button.log");
    const before = await button.getAttribute("aria-pressed");
    await button.click();
    check(await button.getAttribute("aria-pressed") !== before, "the scale does not change");
    for (const count of await inks(page, "[data-panel=gradients] canvas")) check(count > 10, "blank");
  },
  async dark_and_light(page) {
    const backs = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(80);
      backs.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
      equal(await sound(page), [], colorScheme);
      for (const count of await inks(page, ".chart canvas")) check(count > 10, "blank in " + colorScheme);
    }
    check(backs[0] !== backs[1], "dark is as light as light");
  },
  async on_paper(page) {
    await page.emulateMedia({ media: "print", colorScheme: "dark" });
    await page.setViewportSize({ width: 720, height: 1000 });
    await page.waitForTimeout(250);
    equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(255, 255, 255)");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 720, `the page is ${wide} pixels wide on paper`);
    for (const count of await inks(page, ".chart canvas")) check(count > 10, "blank on paper");
    const folded = () => page.$$eval("details:not([open])", (found) => found.length);
    const before = await folded();
    check(before > 0, "nothing is folded on the screen");
    await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
    equal(await folded(), 0, "folded on paper:");
    await page.evaluate(() => dispatchEvent(new Event("afterprint")));
    equal(await folded(), before);
  },
  async on_a_phone(page) {
    await page.setViewportSize({ width: 360, height: 700 });
    await page.waitForTimeout(250);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 360, `the page is ${wide} pixels wide on a phone`);
    const outside = await page.$$eval(".cause, .cause :not(.scroll *)", (found) => found
      .filter((item) => item.getBoundingClientRect().right > 345 && item.offsetWidth > 0)
      .map((item) => item.className + ": " + item.textContent.slice(0, 40)));
    equal(outside, [], "sticks out of its card:");
  },
  async accessible(page) {
    await page.$$eval("details", (found) => found.forEach((item) => { item.open = true; }));
    equal(await sound(page), []);
  },
  async inert(page) {
    equal(await page.evaluate(() => window.pwned), undefined);
    equal(await page.$$eval("main img, main iframe, main script, main svg, main object", (found) => found.length), 0);
    equal(await page.$$eval("script", (found) => found.length), 3);
    equal(await page.$$eval("a", (found) => found.map((item) => item.getAttribute("href"))), ["#timeline"]);
    const words = await page.evaluate(() => document.body.innerText);
    check(!/[\u0000-\u0008\u001b\u202a-\u202e\u2066-\u2069]/.test(words), "control characters are on the page");
    check(words.includes("<script>"), "the name with markup in it is shown as it is");
    const drawn = await page.evaluate(() => document.documentElement.dataset.drawn);
    check(Number(drawn) >= 3, `${drawn} charts of a hostile run`);
  },
  async only_a_loss(page) {
    equal(await page.$$eval(".chart", (found) => found.map((item) => item.dataset.panel)), ["loss"]);
    check((await page.textContent("#timeline")).includes("Not in this source: gradient norm"), "what is missing is not said");
  },
  async nothing_to_draw(page) {
    check((await page.textContent("#timeline")).includes("nothing to draw"), "an empty timeline says nothing");
    equal(await page.$$eval("button.jump", (found) => found.length), 0);
  },
};

const browser = await launch();
const came = {};
for (const { name, path, look } of pages) {
  try {
    const { page, wrong, context } = await open(browser, pathToFileURL(path).href);
    page.setDefaultTimeout(10000);
    await looks[look](page);
    equal(wrong, [], "the browser complains:");
    await context.close();
    came[name] = "";
  } catch (error) {
    came[name] = String(error.message || error);
  }
}
await browser.close();
console.log(JSON.stringify(came));
