// node screenshots.mjs URL NAME [PART]: the upper part of a page as NAME-light.png and NAME-dark.png.
// PART is the height of that part, or the selector of another.
// The page says by `data-drawn` on its root that its charts are there.
import { launch } from "./browser.mjs";

const [, , url, name, part] = process.argv;
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
  const path = `${name}-${colorScheme}.png`;
  if (Number(part)) await page.screenshot({ path, clip: { x: 0, y: 0, width: 1000, height: Number(part) } });
  else if (part) await page.locator(part).screenshot({ path });
  else await page.screenshot({ path });
  if (wrong.length) throw new Error(wrong.join("\n"));
  await context.close();
}
await browser.close();
