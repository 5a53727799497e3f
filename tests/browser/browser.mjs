// The browser the tests look through: Debian's Chromium, with nothing to reach.
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = [
  process.env.HEADWAY_CHROMIUM,
  "/usr/bin/chromium-headless-shell",
  "/usr/bin/chromium",
  "/usr/bin/google-chrome",
];

export async function launch() {
  const executablePath = PLACES.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("no Chromium; `make test-browser` installs one");
  return chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

// A page with everything that goes wrong in it written down, and every request but the file refused.
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1180, height: 900 }, ...options });
  await context.setOffline(true);
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => {
    const own = message.text().includes("willReadFrequently"); // that was us, counting colours
    if (["error", "warning"].includes(message.type()) && !own) wrong.push(message.text());
  });
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("dialog", (dialog) => { wrong.push("dialog: " + dialog.message()); dialog.dismiss(); });
  page.on("request", (request) => {
    if (request.url() !== url) wrong.push("request: " + request.url());
  });
  await page.goto(url);
  return { page, wrong, context };
}
