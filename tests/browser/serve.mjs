// node serve.mjs URL FOLDER PID: looks at the live page with a browser and prints what came of it, as JSON.
import { appendFileSync, cpSync, readFileSync } from "node:fs";
import { launch } from "./browser.mjs";
import { check, equal, inks, redAbove, sound } from "./looking.mjs";

const [, , address, folder, pid] = process.argv;
const { origin } = new URL(address);
const browser = await launch();

// One that has shown the token once. Nothing but this server can be reached.
const context = await browser.newContext({ viewport: { width: 1180, height: 900 } });
await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin });
const wrong = [];
await context.route((url) => url.origin !== origin, (route) => {
  wrong.push("request: " + route.request().url());
  route.abort();
});

async function open(path) {
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  page.on("console", (message) => {
    const own = message.text().includes("willReadFrequently"); // that was us, counting colours
    if (["error", "warning"].includes(message.type()) && !own) wrong.push(message.text());
  });
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("dialog", (dialog) => { wrong.push("dialog: " + dialog.message()); dialog.dismiss(); });
  await page.goto(path);
  return page;
}

const row = (page, name) => page.locator("table.runs tr").filter({ has: page.getByRole("link", { name, exact: true }) });
const numberIn = async (page, name, label) => Number(await row(page, name).locator(`[data-label="${label}"]`).textContent());
const drawn = (page) => page.waitForFunction(() => document.documentElement && Number(document.documentElement.dataset.drawn) > 0 && document.documentElement.dataset.details);
const drawnWithMaps = async (page) => { await drawn(page); await page.waitForSelector(".heat canvas"); };

async function toRun(name) {
  const page = await open(origin + "/");
  await row(page, name).getByRole("link").click();
  await drawn(page);
  return page;
}

const looks = {
  async token_leaves_the_address() {
    const page = await open(address);
    equal(page.url(), origin + "/");
    equal(await page.evaluate(() => document.cookie), "", "a script can read the cookie:");
    await row(page, "sick").waitFor();
    return page;
  },
  async health_at_a_glance() {
    const page = await open(origin + "/");
    await row(page, "sick").locator(".badge.error").waitFor();
    await row(page, "well").locator(".badge.unsure").waitFor(); // two signals show little
    const said = await row(page, "sick").textContent();
    for (const words of ["HD101", "skipped at step 83", "119"]) check(said.includes(words), `${words} is not in ${said}`);
    return page;
  },
  async runs_filtered() {
    const page = await open(origin + "/");
    await row(page, "sick").waitFor();
    await page.fill("#find", "WELL");
    equal(await page.$$eval("#rows tr", (found) => found.length), 1);
    await page.fill("#find", "");
    await row(page, "sick").locator(".badge.error").waitFor();
    await page.selectOption("#which", "bad");
    check(await row(page, "well").count() === 0, "a healthy run among the bad ones");
    check(await row(page, "sick").count() === 1, "the bad run is not shown");
    return page;
  },
  async runs_sorted() {
    const page = await open(origin + "/");
    await row(page, "trained").locator(".badge.error").waitFor();
    const names = () => page.$$eval("#rows th a", (found) => found.map((item) => item.textContent));
    const best = page.locator("[data-sort=best]");
    await best.focus();
    await page.keyboard.press("Enter");
    equal(await page.getAttribute("th:has([data-sort=best])", "aria-sort"), "ascending");
    const up = await page.$$eval('[data-label="best loss"]', (found) => found.map((item) => Number(item.textContent)).filter((value) => value === value));
    check(up.length > 2 && up.every((value, at) => at === 0 || value >= up[at - 1]), `best losses: ${up.join(", ")}`);
    await page.click("[data-sort=name]");
    const ordered = await names();
    await page.click("[data-sort=name]");
    equal(await names(), [...ordered].reverse());
    check(/\d/.test(await row(page, "trained").locator('[data-label="lr"]').textContent()), "no rate of a run that recorded it");
    equal(await sound(page), []);
    return page;
  },
  async a_run_appears() {
    const page = await open(origin + "/");
    await row(page, "well").waitFor();
    cpSync(folder + "/runs/well", folder + "/runs/new one", { recursive: true });
    await row(page, "new one").waitFor();
    return page;
  },
  async list_is_live() {
    const page = await open(origin + "/");
    await row(page, "training").waitFor();
    const before = await numberIn(page, "training", "last step");
    await page.waitForFunction(([name, step]) => [...document.querySelectorAll("#rows tr")].some((item) =>
      item.querySelector("th").textContent === name && Number(item.querySelector('[data-label="last step"]').textContent) > step), ["training", before]);
    check((await row(page, "training").textContent()).includes("running"), "a run that trains is not running");
    return page;
  },
  async length_is_live() {
    const page = await toRun("training");
    const glance = () => page.textContent("#glance");
    const before = await glance();
    check(/^running, now · training for [\d.]+ (s|min) · step \d+/.test(before), before);
    const [trained] = before.match(/training for [^·]+/);
    await page.waitForFunction((known) => !document.getElementById("glance").textContent.includes(known), trained);
    return page;
  },
  async charts_are_live() {
    const page = await toRun("training");
    const before = Number(await page.getAttribute("[data-panel=loss]", "aria-valuemax"));
    await page.waitForFunction((step) => Number(document.querySelector("[data-panel=loss]").getAttribute("aria-valuemax")) > step, before);
    for (const count of await inks(page, ".chart canvas")) check(count > 5, "a chart is blank");
    return page;
  },
  async charts_drawn() {
    const page = await toRun("sick");
    await drawnWithMaps(page);
    const count = await page.$$eval(".chart canvas", (found) => found.length);
    check(count >= 6, `only ${count} charts`);
    for (const each of await inks(page, ".chart canvas")) check(each > 10, "a chart is blank");
    for (const each of await inks(page, ".heat canvas")) check(each > 10, "a heat map is blank");
    check(await redAbove(page, "loss") > 20, "the NaN of the loss is not marked");
    equal(await redAbove(page, "rate"), 0, "marks over a healthy chart:");
    return page;
  },
  async finding_to_incident() {
    const page = await toRun("sick");
    await page.locator(".cause a.to-incident").first().click();
    equal(await page.evaluate(() => document.activeElement.id), "incident-0");
    const said = await page.textContent("#incident-0");
    for (const words of ["losses.py:178", "kl = p * (p.log() - logq)", "1043", "cured", "did not help"]) check(said.includes(words), `${words} is not in the incident`);
    check(page.url().endsWith("#incident-0"), "the incident has no address");
    await page.locator(".cause button.jump").first().click();
    check((await page.getAttribute("[data-panel=loss]", "aria-valuetext")).startsWith("step 83: loss NaN"), "a step does not lead to the chart");
    return page;
  },
  async incident_by_address() {
    const page = await toRun("sick");
    const there = page.url();
    await page.goto("about:blank");
    await page.goto(there + "#incident-0");
    await page.waitForFunction(() => document.activeElement.id === "incident-0");
    return page;
  },
  async saved_as_a_file() {
    const page = await toRun("trained");
    await page.locator("#report:visible").focus();
    const [file] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
    equal(file.suggestedFilename(), "headway-trained.html");
    const saved = await browser.newPage();
    await file.saveAs(folder + "/saved.html");
    await saved.goto("file://" + folder + "/saved.html");
    await saved.waitForFunction(() => Number(document.documentElement.dataset.drawn) > 0);
    equal(await saved.textContent("header .mono"), "trained");
    check((await saved.textContent("#incident-0 .line.bad")).includes("loss = "), "the incident is not in the file");
    check(await saved.$$eval(".heat canvas", (found) => found.length) === 1, "no layers");
    await saved.close();
    return page;
  },
  async context_of_the_line() {
    const page = await toRun("trained");
    await page.waitForSelector("#incident-0 pre.context .line.bad");
    check((await page.textContent("#incident-0 .line.bad")).includes("loss = "), "another line is marked");
    check(await page.$$eval("#incident-0 pre.context .line", (found) => found.length) > 3, "the lines around it are missing");
    // On a phone the code scrolls, and the mark of the line reaches to its end.
    await page.setViewportSize({ width: 390, height: 800 });
    const wide = await page.$eval("#incident-0 pre.context", (box) => [box.scrollWidth, box.querySelector(".line.bad").scrollWidth, box.querySelector(".line.bad").offsetWidth]);
    check(wide[2] >= wide[1], `the line is ${wide[1]} wide, its mark ${wide[2]}`);
    return page;
  },
  async cure_copied() {
    const page = await toRun("sick");
    await page.locator("#incident-0 li.cured button.copy").click();
    await page.waitForFunction(() => document.getElementById("status").textContent === "Copied.");
    equal(await page.evaluate(() => navigator.clipboard.readText()), "At losses.py:178 clamp `p`");
    return page;
  },
  async incident_copied() {
    const page = await toRun("trained");
    await page.waitForSelector("#incident-0 pre.context .line.bad");
    await page.locator("#incident-0").getByRole("button", { name: "copy as Markdown" }).click();
    await page.waitForFunction(() => document.getElementById("status").textContent === "Copied.");
    const text = await page.evaluate(() => navigator.clipboard.readText());
    check(/^### NaN in .*\(step 30\)\n\n/.test(text), text);
    for (const words of ["The guard skipped the update; the loss was", "```\n", "\n> ", "| tensor | shape |", "| 30 | NaN | NaN |"]) check(text.includes(words), `${words} is not in ${text}`);
    equal((await page.$$("#incident-0 .sentence")).length, 3, "sentences:");
    return page;
  },
  async settings_as_columns() {
    const page = await open(origin + "/");
    await row(page, "seed-2").waitFor();
    await page.focus("#choose-columns summary");
    await page.keyboard.press("Enter");
    await page.getByLabel("lr", { exact: true }).focus();
    await page.keyboard.press("Space");
    await row(page, "seed-2").locator('.setting:has-text("0.01")').waitFor();
    equal(await sound(page), []);
    const moved = await page.$eval(".scroll:has(table.runs)", (box) => {
      const place = () => box.querySelector("#rows th").getBoundingClientRect().left;
      const before = place();
      box.scrollLeft = 300;
      return [box.scrollLeft > 0, place() - before];
    });
    check(moved[1] > -20, `the name is scrolled away by ${moved[1]}`);
    await page.keyboard.press("Escape");
    equal(await page.$$eval("details.save[open]", (found) => found.length), 0, "open menus:");
    await page.fill("#find", "seed-");
    for (let times = 0; times < 2; times += 1) await page.click('[data-sort="set:lr"]');
    const names = () => page.$$eval("#rows th a", (found) => found.map((item) => item.textContent));
    equal((await names())[0], "seed-2", "the highest rate first:");
    // The address shows the same to others.
    const there = page.url();
    await page.goto("about:blank");
    await page.goto(there);
    await row(page, "seed-2").locator('.setting:has-text("0.01")').waitFor();
    equal([(await names())[0], (await names()).length], ["seed-2", 3]);
    equal(await page.getAttribute("th.setting", "aria-sort"), "descending");
    return page;
  },
  async findings_filtered() {
    const page = await toRun("sick");
    const all = await page.$$eval("#findings article", (found) => found.length);
    check(all >= 1, "no findings");
    await page.fill("#find", "nothing of the kind");
    equal(await page.$$eval("#findings article", (found) => found.length), 0);
    check((await page.textContent("#found")).startsWith("0 of"), "how many are left is not said");
    await page.fill("#find", "losses.PY:178");
    check(await page.$$eval("#findings article", (found) => found.length) >= 1, "a place is not found");
    await page.fill("#find", "");
    await page.selectOption("#severity", "info");
    check(await page.$$eval("#findings article.error", (found) => found.length) <= all, "more than there were");
    await page.selectOption("#severity", "error");
    check(await page.$$eval("#findings article", (found) => found.length) >= 1, "no error is left");
    await page.selectOption("#severity", "");
    await page.selectOption("#code", "HD201");
    check((await page.textContent("#findings")).includes("HD201"), "a code is not found");
    return page;
  },
  async zoom_fetches_the_part() {
    const page = await toRun("long");
    await page.waitForFunction(() => document.getElementById("reading").hidden);
    const over = page.locator("[data-panel=loss] .u-over");
    await over.scrollIntoViewIfNeeded();
    const box = await over.boundingBox();
    const asked = page.waitForRequest((request) => /\/charts\?from=\d+&to=\d+/.test(request.url()));
    await page.mouse.move(box.x + box.width * 0.5, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.52, box.y + 40, { steps: 4 });
    await page.mouse.up();
    const part = await (await asked).response().then((answer) => answer.json());
    const { x } = part.panels.find((panel) => panel.id === "loss").series[0];
    check(x.length > 100 && x[x.length - 1] - x[0] === x.length - 1, `the part is not in full detail: ${x.length} points`);
    await page.click("#whole");
    equal(await page.textContent("#status"), "The charts show the whole run.");
    return page;
  },
  async spike_and_inf_seen() {
    const page = await toRun("long");
    await page.waitForFunction(() => document.getElementById("reading").hidden);
    check(await redAbove(page, "loss") > 20, "one Inf in thirty thousand is not seen");
    await page.waitForFunction(() => document.querySelector("figure:has([data-panel=loss]) .says").textContent.includes("highest 500"));
    return page;
  },
  async compared() {
    const page = await open(origin + "/");
    for (const name of ["sick", "well"]) await row(page, name).locator("input").check();
    await page.click("#compare");
    await page.waitForFunction(() => document.documentElement.dataset.compared === "2" && Number(document.documentElement.dataset.drawn) > 0);
    equal(await page.$$eval("figure:has([data-panel=loss]) .legend bdi", (found) => found.map((item) => item.textContent).sort()), ["sick", "well"]);
    check((await page.textContent("tr.differs")).startsWith("torch"), "a difference is not marked");
    // Each name has the colour of its curve, and what differs from the other run is marked.
    const curves = await page.$$eval("figure:has([data-panel=loss]) .entry", (found) => found.map((item) => [item.querySelector("bdi").textContent, getComputedStyle(item.querySelector(".swatch")).backgroundColor]).sort());
    equal(await page.$$eval(".pick:has(input:checked)", (found) => found.map((item) => [item.querySelector("bdi").textContent, getComputedStyle(item.querySelector(".swatch")).backgroundColor]).sort()), curves, "colours:");
    equal(await page.locator("tr.differs").first().locator("td").evaluateAll((found) => found.map((item) => item.classList.contains("odd"))), [false, false, true]);
    const results = await page.$$eval("#settings-table tbody tr", (found) => Object.fromEntries(found.map((row) => [...row.cells].map((item) => item.textContent)).map(([name, ...values]) => [name, values])));
    equal([results.verdict[0], results["last step"][0]], ["error", "119"]);
    check(Number(results["best loss"][0]) <= Number(results.loss[0]), JSON.stringify(results));
    for (const count of await inks(page, "figure:not([hidden]) .chart canvas")) check(count > 5, "a chart is blank");
    await page.locator(".pick", { hasText: "well" }).locator("input").uncheck();
    await page.waitForFunction(() => document.documentElement.dataset.compared === "1");
    equal(await page.$$eval("figure:has([data-panel=loss]) .legend bdi", (found) => found.length), 1);
    equal(await sound(page), []);
    return page;
  },
  async many_runs_compared() {
    const page = await open(origin + "/");
    await row(page, "sweep/11").waitFor();
    await page.fill("#find", "sweep/");
    await page.getByRole("button", { name: "Select all shown" }).focus();
    await page.keyboard.press("Enter");
    await page.click("#compare");
    await page.waitForFunction(() => document.documentElement.dataset.compared === "12" && Number(document.documentElement.dataset.drawn) > 0);
    const swatches = await page.$$eval("figure:has([data-panel=loss]) .swatch", (found) => found.map((item) => item.style.background));
    equal([swatches.length, new Set(swatches).size], [12, 12], "curves and colours:");
    const near = swatches.map((one) => one.match(/\d+/g).map(Number)).flatMap((one, at, all) => all.slice(0, at).map((other) => Math.hypot(...one.map((part, place) => part - other[place]))));
    check(Math.min(...near) > 45, `two colours are only ${Math.min(...near)} apart`);
    // Wide as the table of settings is, the names of its rows stay.
    await page.locator("#only-different").uncheck();
    await page.setViewportSize({ width: 800, height: 800 });
    const kept = await page.$eval("#settings-table .scroll", (box) => {
      const place = () => box.querySelector("tbody td").getBoundingClientRect().left - box.getBoundingClientRect().left;
      const before = place();
      box.scrollLeft = 200;
      return [box.scrollLeft > 100, place() - before];
    });
    equal(kept, [true, 0], "scrolled, and moved by:");
    await page.setViewportSize({ width: 1180, height: 900 });
    await page.waitForTimeout(300);
    // The curve next to the cursor is told from the others.
    const box = await page.locator("[data-panel=loss] .u-over").boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height - 4);
    await page.waitForFunction(() => document.querySelectorAll("figure:has([data-panel=loss]) .entry.near").length === 1);
    await page.fill("#find", "sweep/07");
    equal(await page.$$eval(".pick", (found) => found.length), 1);
    await page.fill("#find", "");
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      equal(await sound(page), [], colorScheme);
    }
    await page.setViewportSize({ width: 390, height: 800 });
    await page.waitForTimeout(250);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 390, `twelve runs are ${wide} pixels wide on a phone`);
    await page.selectOption("#group", "all");
    await page.waitForFunction(() => document.querySelector("figure:has([data-panel=loss]) .legend bdi").textContent === "all runs (mean of 12 runs)");
    return page;
  },
  async two_trainings_live() {
    const page = await open(origin + "/");
    for (const name of ["training", "training-2"]) await row(page, name).locator("input").check();
    await page.click("#compare");
    await page.waitForFunction(() => document.documentElement.dataset.compared === "2" && Number(document.documentElement.dataset.drawn) > 0);
    await page.waitForFunction(() => document.querySelectorAll(".pick:has(input:checked) .quiet").length === 2);
    const steps = () => page.$$eval(".pick:has(input:checked) .quiet", (found) => found.map((item) => Number(item.textContent.match(/step (\d+)/)[1])));
    const ends = () => page.$eval("[data-panel=loss]", (item) => Number(item.getAttribute("aria-valuemax")));
    const [before, end] = [await steps(), await ends()];
    await page.waitForFunction((step) => Number(document.querySelector("[data-panel=loss]").getAttribute("aria-valuemax")) > step + 10, end);
    await page.waitForFunction((known) => [...document.querySelectorAll(".pick:has(input:checked) .quiet")].every((item, at) => Number(item.textContent.match(/step (\d+)/)[1]) > known[at]), before);
    return page;
  },
  async sample_shown() {
    const page = await toRun("pictured");
    const box = page.locator("#incident-0 .sample");
    await box.waitFor();
    equal(await box.locator("h4").textContent(), "Sample 37 (row 5 of the batch)");
    await page.waitForFunction(() => { const shown = document.querySelector("#incident-0 img"); return shown.complete && shown.naturalWidth === 24 && shown.naturalHeight === 16; });
    const said = await box.textContent();
    for (const words of ["word37 word5 word7", "4 tokens, decoded", "36 not finite, in magenta", "<img src=x onerror="]) check(said.includes(words), `${words} is not in ${said}`);
    equal(await page.evaluate(() => window.pwned), undefined);
    equal(await page.$$eval("#incident-0 img", (found) => found.length), 1, "pictures:");
    check((await page.textContent("#incident-0 tr.marked")).includes("NaN"), "the bad step is not in its surroundings");
    equal(await sound(page), []);
    return page;
  },
  async notes_and_tags() {
    const page = await open(origin + "/");
    await row(page, "seed-0").waitFor();
    await page.fill("#find", "#slow");
    await page.waitForFunction(() => document.querySelectorAll("#rows tr").length === 1);
    equal(await row(page, "seed-0").locator(".note").textContent(), "The first. #slow");
    return page;
  },
  async compared_along_time() {
    const page = await open(origin + "/");
    for (const name of ["trained", "training"]) await row(page, name).locator("input").check();
    await page.click("#compare");
    await page.waitForFunction(() => document.documentElement.dataset.compared === "2" && Number(document.documentElement.dataset.drawn) > 0);
    await page.selectOption(".tools select", "time");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("Home");
    await page.waitForFunction(() => / (s|min)$/.test(document.querySelector(".legend .at").textContent));
    const values = await page.$$eval("figure:has([data-panel=loss]) .value", (found) => found.map((item) => item.textContent));
    check(values.length === 2 && values.every((text) => text !== ""), `the cursor reads ${values.join(" and ")}`);
    check(page.url().includes("run=") && page.url().endsWith("#x=time"), page.url());
    return page;
  },
  async mean_and_band() {
    const page = await open(origin + "/");
    for (const name of ["seed-0", "seed-1", "seed-2"]) await row(page, name).locator("input").check();
    await page.click("#compare");
    await page.waitForFunction(() => document.documentElement.dataset.compared === "3" && Number(document.documentElement.dataset.drawn) > 0);
    equal(await page.$$eval("#group option", (found) => found.map((item) => item.textContent)), ["none", "all runs together", "tags", "lr"]);
    await page.selectOption("#group", { label: "lr" });
    const legend = () => page.$$eval("figure:has([data-panel=loss]) .legend bdi", (found) => found.map((item) => item.textContent).sort());
    equal(await legend(), ["lr 0.001 (mean of 2 runs)", "lr 0.01 (mean of 1 run)"]);
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("Home");
    await page.waitForTimeout(80);
    const values = await page.$$eval("figure:has([data-panel=loss]) .value", (found) => found.map((item) => item.textContent).sort());
    equal(values, ["2 (2 to 2)", "2.25 (2 to 2.5)"]);
    check((await inks(page, "[data-panel=loss] canvas"))[0] > 20, "no band is drawn");
    check((await page.textContent("#note")).includes("the band reaches from the lowest run to the highest"), "the band is not explained");
    equal(await page.isHidden(".tools select"), true, "groups along time:");
    await page.click("figure:has([data-panel=loss]) summary");
    const [file] = await Promise.all([page.waitForEvent("download"), page.click("figure:has([data-panel=loss]) .save button:has-text('SVG')")]);
    const fills = readFileSync(await file.path(), "utf8").match(/<polygon [^>]*fill="[^"]*"/g).map((one) => one.match(/fill="([^"]*)"/)[1]);
    check(fills.length === 2 && fills.every((fill) => /^#[0-9a-f]{8}$/.test(fill)), `bands in the file: ${fills}`);
    const address = page.url();
    await page.goto("about:blank");
    await page.goto(address);
    await page.waitForFunction(() => document.querySelectorAll("figure:has([data-panel=loss]) .legend bdi").length === 2);
    await page.selectOption("#group", "");
    equal(await legend(), ["seed-0", "seed-1", "seed-2"]);
    equal(await sound(page), []);
    return page;
  },
  async follows_the_end() {
    const page = await toRun("training");
    await page.waitForFunction(() => Number(document.querySelector("[data-panel=loss]").getAttribute("aria-valuemax")) > 60);
    await page.getByRole("button", { name: "Follow the end" }).focus();
    await page.keyboard.press("Enter");
    const shown = () => page.textContent("#status");
    const [, first, last] = (await shown()).match(/^The charts follow the end: steps (\d+) to (\d+)\.$/).map(Number);
    const end = async () => {
      await page.focus("[data-panel=loss]");
      await page.keyboard.press("Home");
      const from = Number(await page.getAttribute("[data-panel=loss]", "aria-valuenow"));
      await page.keyboard.press("End");
      return [from, Number(await page.getAttribute("[data-panel=loss]", "aria-valuenow"))];
    };
    await page.waitForFunction((step) => Number(document.querySelector("[data-panel=loss]").getAttribute("aria-valuemax")) > step + 20, last);
    await page.waitForTimeout(300);
    const [from, to] = await end();
    check(to > last + 15 && from > first && Math.abs((to - from) - (last - first)) <= 12, `steps ${from} to ${to} after ${first} to ${last}`);
    await page.keyboard.press("Escape");
    equal(await page.getByRole("button", { name: "Follow the end" }).getAttribute("aria-pressed"), "false");
    equal(await shown(), "The charts show the whole run.");
    return page;
  },
  async notified() {
    const page = await context.newPage();
    page.setDefaultTimeout(20000);
    await page.addInitScript(() => {
      window.told = [];
      window.Notification = class extends EventTarget {
        static permission = "default";
        static async requestPermission() { return (this.permission = "granted"); }
        constructor(title, { body, silent }) { super(); window.told.push([title, body, silent]); }
      };
    });
    await page.goto(origin + "/");
    await row(page, "seed-2").waitFor();
    const button = page.getByRole("button", { name: "Notify me" });
    equal(await button.getAttribute("aria-pressed"), "false");
    await button.focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.getElementById("notify").getAttribute("aria-pressed") === "true");
    const lines = [50, 51].map((step) => JSON.stringify({ seg: 0, seq: step + 1, step, v: { loss: "NaN", grad_norm: "NaN" } }) + "\n");
    appendFileSync(`${folder}/runs/seed-2/steps.rank0.jsonl`, lines.join(""));
    await page.waitForFunction(() => window.told.length > 0);
    const [title, body, silent] = (await page.evaluate(() => window.told))[0];
    equal([title, silent], ["seed-2", true]);
    check(/HD101|HD201/.test(body), body);
    await button.click();
    equal(await button.getAttribute("aria-pressed"), "false");
    equal(await sound(page), []);
    return page;
  },
  async part_by_address() {
    const page = await toRun("long");
    const there = page.url();
    await page.goto("about:blank");
    await page.goto(there + "#zoom=12000:13000&smooth=0.5");
    await page.waitForFunction(() => document.getElementById("status").textContent === "The charts show steps 12000 to 13000.");
    equal(await page.textContent(".smoothing output"), "0.5");
    await page.waitForFunction(() => !document.querySelector("figure:has([data-panel=loss]) button.all").hidden); // the spike of this part
    return page;
  },
  async keyboard() {
    const page = await open(origin + "/");
    await row(page, "sick").waitFor();
    await page.keyboard.press("Tab");
    equal(await page.evaluate(() => document.activeElement.className), "skip");
    for (let at = 0; at < 200 && await page.evaluate(() => document.activeElement.textContent) !== "sick"; at += 1) await page.keyboard.press("Tab");
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    check(outline !== "none", "the focus is not seen");
    await page.keyboard.press("Enter");
    await drawn(page);
    await page.focus(".cause a.to-incident");
    await page.keyboard.press("Enter");
    equal(await page.evaluate(() => document.activeElement.id), "incident-0");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("ArrowRight");
    const before = Number(await page.getAttribute("[data-panel=loss]", "aria-valuenow"));
    await page.keyboard.press("ArrowRight");
    await page.waitForFunction((step) => Number(document.querySelector("[data-panel=loss]").getAttribute("aria-valuenow")) > step, before);
    await page.keyboard.press("+");
    await page.waitForFunction(() => /^The charts show steps/.test(document.getElementById("status").textContent));
    await page.keyboard.press("Escape");
    equal(await page.textContent("#status"), "The charts show the whole run.");
    return page;
  },
  async focus_stays_while_it_trains() {
    const page = await toRun("training");
    const before = Number(await page.getAttribute("[data-panel=loss]", "aria-valuemax"));
    await page.locator("button.log:visible").first().focus();
    await page.waitForFunction((step) => Number(document.querySelector("[data-panel=loss]").getAttribute("aria-valuemax")) > step, before);
    equal(await page.evaluate(() => document.activeElement.className), "log");
    return page;
  },
  async dark_and_light() {
    const page = await toRun("sick");
    await drawnWithMaps(page);
    const backs = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(80);
      backs.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
      equal(await sound(page), [], colorScheme);
    }
    check(backs[0] !== backs[1], "dark is as light as light");
    await page.click("#theme"); // light, by hand, although the system is dark
    equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), backs[0]);
    await page.reload();
    await drawn(page);
    equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), backs[0], "the choice is forgotten:");
    await page.click("#theme");
    await page.emulateMedia({ colorScheme: "light" });
    equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), backs[1]);
    for (const count of await inks(page, ".chart canvas")) check(count > 10, "blank in the other theme");
    await page.click("#theme");
    equal(await page.textContent("#theme"), "Theme: automatic");
    return page;
  },
  async list_is_accessible() {
    const page = await open(origin + "/");
    await row(page, "sick").waitFor();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      equal(await sound(page), [], colorScheme);
    }
    return page;
  },
  async on_a_phone() {
    const page = await open(origin + "/");
    await row(page, "sick").waitFor();
    const narrow = async (where) => {
      await page.setViewportSize({ width: 360, height: 700 });
      await page.waitForTimeout(250);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      check(wide <= 360, `${where} is ${wide} pixels wide on a phone`);
    };
    await narrow("the list");
    equal(await sound(page), []);
    await page.click("[data-sort=name]");
    equal(await page.getAttribute("th:has([data-sort=name])", "aria-sort"), "ascending", "sorted on a phone:");
    await row(page, "sick").getByRole("link").click();
    await drawnWithMaps(page);
    await narrow("a run");
    return page;
  },
  async hostile() {
    const page = await open(origin + "/");
    const link = page.getByRole("link", { name: /<script>/ });
    await link.waitFor();
    await link.click();
    await drawn(page);
    equal(await page.evaluate(() => window.pwned), undefined);
    equal(await page.$$eval("main img, main iframe, main script, main svg, main object", (found) => found.length), 0);
    const words = await page.evaluate(() => document.body.innerText);
    check(!/[\u0000-\u0008\u001b\u202a-\u202e\u2066-\u2069]/.test(words), "control characters are on the page");
    check(words.includes("<script>"), "the name with markup in it is not shown as it is");
    equal(await sound(page), []);
    await page.setViewportSize({ width: 360, height: 700 });
    await page.waitForTimeout(250);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 360, `${wide} pixels wide on a phone`);
    return page;
  },
  async server_gone() {
    const page = await open(origin + "/");
    await page.waitForFunction(() => document.getElementById("link").textContent === "live");
    await row(page, "sick").waitFor();
    process.kill(Number(pid), "SIGKILL");
    await page.waitForFunction(() => document.getElementById("link").textContent === "no connection");
    check(await row(page, "sick").count() === 1, "what was known is gone");
    wrong.length = 0; // a browser says of itself that it cannot connect
    return page;
  },
};

const came = {};
for (const [name, look] of Object.entries(looks)) {
  wrong.length = 0;
  const begun = Date.now();
  try {
    const page = await look();
    equal(wrong, [], "the browser complains:");
    await page.close();
    came[name] = "";
  } catch (error) {
    came[name] = String(error.message || error);
    for (const page of context.pages()) await page.close();
  }
  if (process.env.HEADWAY_TIMES) console.error(name, Date.now() - begun);
}
await browser.close();
console.log(JSON.stringify(came));
