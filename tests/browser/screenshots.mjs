// node screenshots.mjs REPORT.html FOLDER: the upper part of a report, light and dark.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, open } from "./browser.mjs";

const [, , report, folder] = process.argv;
const browser = await launch();
for (const colorScheme of ["light", "dark"]) {
  const viewport = { width: 1000, height: 1500 };
  const { page, wrong } = await open(browser, pathToFileURL(resolve(report)).href, { colorScheme, viewport });
  await page.waitForTimeout(200);
  await page.screenshot({ path: `${folder}/report-${colorScheme}.png` });
  if (wrong.length) throw new Error(wrong.join("\n"));
}
await browser.close();
