// node screenshots.mjs URL NAME [PART]: the upper part of a page as NAME-light.png and NAME-dark.png.
// PART is the height of that part, or the selector of another. `width=390`: the upper part of a page
// of that width, light only, as NAME-390.png.
// The page says by `data-drawn` on its root that its charts are there.
import { launch } from "./browser.mjs";

const [, , url, name, given] = process.argv;
const wide = given?.startsWith("width=") ? given.slice("width=".length) : undefined;
const part = wide ? undefined : given;
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
  const path = `${name}-${wide ?? colorScheme}.png`;
  if (Number(part)) await page.screenshot({ path, clip: { x: 0, y: 0, width: 1000, height: Number(part) } });
  else if (part) await page.locator(part).screenshot({ path });
  else await page.screenshot({ path });
  if (wrong.length) throw new Error(wrong.join("\n"));
  await context.close();
}
await browser.close();
