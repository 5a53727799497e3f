// node screenshots.mjs REPORT.html OUT_DIR: the upper part of a report, light and dark.
import { pathToFileURL } from "node:url";
import { launch, open } from "./browser.mjs";

const [, , report, out] = process.argv;
const browser = await launch();
for (const colorScheme of ["light", "dark"]) {
  const { page, wrong } = await open(browser, pathToFileURL(report).href, { colorScheme });
  const height = process.argv[4] ? Number(process.argv[4]) : 1500;
  await page.setViewportSize({ width: 1100, height });
  await page.waitForTimeout(300);
  await page.screenshot({ path: `${out}/report-${colorScheme}.png` });
  if (wrong.length) console.log(wrong.join("\n"));
}
await browser.close();
