// node screenshots.mjs URL NAME: the upper part of a page as NAME-light.png and NAME-dark.png.
// The page says by `data-drawn` on its root that its charts are there.
import { launch } from "./browser.mjs";

const [, , url, name] = process.argv;
const browser = await launch();
for (const colorScheme of ["light", "dark"]) {
  const context = await browser.newContext({ colorScheme, viewport: { width: 1000, height: 1400 } });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => { if (message.type() === "error") wrong.push(message.text()); });
  page.on("pageerror", (error) => wrong.push(String(error)));
  await page.goto(url);
  await page.waitForFunction(() => document.documentElement.dataset.drawn !== undefined, null, { timeout: 20000 })
    .catch(() => {});
  await page.waitForTimeout(400);
  await page.screenshot({ path: `${name}-${colorScheme}.png` });
  if (wrong.length) throw new Error(wrong.join("\n"));
  await context.close();
}
await browser.close();
