// What all looks at a page have in common.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export function check(holds, said) {
  if (!holds) throw new Error(said);
}

export function equal(found, wanted, said = "") {
  check(JSON.stringify(found) === JSON.stringify(wanted), `${said} ${JSON.stringify(found)} is not ${JSON.stringify(wanted)}`);
}

// How many different colours a canvas shows: a blank one has one.
export const inks = (page, selector) => page.$$eval(selector, (found) => found.map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add(data.slice(at, at + 4).join());
  return seen.size;
}));

// Red marks in the strip above the plot: where what is not finite is shown.
export const redAbove = (page, panel) => page.$eval(`[data-panel=${panel}] canvas`, (canvas) => {
  const ratio = devicePixelRatio;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, Math.round(12 * ratio));
  let red = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 200 && data[at] > 150 && data[at + 1] < 160 && data[at + 2] < 160) red += 1;
  }
  return red;
});

export async function sound(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  return violations
    .filter((item) => ["serious", "critical"].includes(item.impact))
    .map((item) => `${item.id}: ${item.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
}
