// node screenshots.mjs URL NAME: the upper part of a page as NAME-light.png and NAME-dark.png.
// node screenshots.mjs URL NAME WIDTH: the same, light only, at that width, as NAME-WIDTH.png.
// The page says by `data-drawn` on its root that its charts are there.
import { launch } from "./browser.mjs";

const [, , url, name, wide] = process.argv;
const browser = await launch();
for (const colorScheme of wide ? ["light"] : ["light", "dark"]) {
  const viewport = { width: Number(wide ?? 1000), height: wide ? 900 : 1400 };
  const context = await browser.newContext({ colorScheme, viewport });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => { if (message.type() === "error") wrong.push(message.text()); });
  page.on("pageerror", (error) => wrong.push(String(error)));
  await page.goto(url);
  await page.waitForFunction(() => document.documentElement.dataset.drawn !== undefined, null, { timeout: 20000 })
    .catch(() => {});
  await page.waitForTimeout(400);
  await page.screenshot({ path: `${name}-${wide ?? colorScheme}.png` });
  if (wrong.length) throw new Error(wrong.join("\n"));
  await context.close();
}
await browser.close();
