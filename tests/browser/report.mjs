// node report.mjs PAGES.json: looks at each page with a browser and prints what came of it, as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { launch, open } from "./browser.mjs";
import { check, equal, inks, redAbove, sound } from "./looking.mjs";

const pages = JSON.parse(readFileSync(process.argv[2], "utf8"));

// Keeps what is written on canvases from now on.
const wordsDrawn = (page) => page.evaluate(() => {
  window.words = [];
  window.places = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (words, ...rest) {
    window.words.push(words);
    const { a, e } = this.getTransform();
    window.places.push([words, e / a + rest[0] - (this.textAlign === "right" ? this.measureText(words).width : 0)]);
    return write.call(this, words, ...rest);
  };
});

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
    const rest = ["timeline", "causes", "incidents", "layers", "components", "coverage", "environment"];
    equal(order.slice(1), rest);
    const said = await page.textContent(".verdict");
    for (const words of ["NaN in sample 1043, 1 update skipped", "120 steps", "Tested on the failing step and cured"]) check(said.includes(words), `${words} is not in ${said}`);
  },
  async finding_clicked(page) {
    const top = () => page.evaluate(() => document.querySelector("[data-panel=loss]").getBoundingClientRect().top + scrollY);
    const before = await top();
    await page.locator(".cause button.jump").first().click();
    equal(await top(), before); // a zoom does not move the chart
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
    for (let at = 0; at < 60 && await page.evaluate(() => document.activeElement.className) !== "jump"; at += 1) await page.keyboard.press("Tab");
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
    const [, from, to] = (await shown(page)).match(/^The charts show steps (\d+) to (\d+)\.$/).map(Number);
    // The run has 120 steps: two fifths to three fifths of them, once, although all charts take part.
    check(Math.abs(from - 48) <= 1 && Math.abs(to - 72) <= 1, `dragged from 48 to 72, shown are ${from} to ${to}`);
    await page.mouse.dblclick(box.x + box.width / 2, box.y + 40);
    equal(await shown(page), "The charts show the whole run.");
  },
  async log_scale(page) {
    const button = page.locator("figure:has([data-panel=gradients]) button.log");
    const before = await button.getAttribute("aria-pressed");
    await button.click();
    check(await button.getAttribute("aria-pressed") !== before, "the scale does not change");
    for (const count of await inks(page, "[data-panel=gradients] canvas")) check(count > 10, "blank");
  },
  async flag_opens_the_finding(page) {
    await page.locator("button.flag").first().focus();
    await page.keyboard.press("Enter");
    const focused = await page.evaluate(() => document.activeElement.className + document.activeElement.textContent.slice(0, 80));
    check(focused.startsWith("cause error") && focused.includes("HD101"), `${focused} is shown`);
  },
  async range_without_the_spike(page) {
    equal(await page.isVisible("figure:has([data-panel=loss]) button.all"), true, "a way to see the spike:");
    equal(await page.getAttribute("figure:has([data-panel=rate]) button.log", "aria-pressed"), "false", "a cosine rate on a log scale:");
    equal(await page.isHidden("figure:has([data-panel=rate]) button.all"), true);
    const lines = () => page.$eval("[data-panel=loss] canvas", (canvas) => {
      const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let low = height, high = 0; // rows with the colour of the line, away from the spike
      for (let y = 0; y < height; y += 1) for (let x = Math.round(width * 0.6); x < width; x += 1) {
        const at = (y * width + x) * 4;
        if (data[at + 3] > 200 && data[at + 2] > data[at] + 100) { low = Math.min(low, y); high = Math.max(high, y); }
      }
      return high - low;
    });
    const before = await lines();
    await page.click("figure:has([data-panel=loss]) button.all");
    const after = await lines();
    check(before > 3 * Math.max(after, 1), `the curve is ${before} high, with the spike ${after}`);
  },
  async smoothed(page) {
    await page.locator(".smoothing input").focus();
    for (let at = 0; at < 90; at += 1) await page.keyboard.press("ArrowRight");
    equal(await page.textContent(".smoothing output"), "0.9");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    const [, raw, soft] = (await page.textContent("figure:has([data-panel=loss]) .value")).match(/^(\S+) \(smoothed (\S+)\)$/);
    check(Math.abs(Number(soft) - 0.182) < 0.02, `${soft} is not the mean of the last part`);
    check(Number(raw) !== Number(soft), "smoothing changes nothing");
    const shades = await inks(page, "[data-panel=loss] canvas");
    check(shades[0] > 20, "no pale curve behind");
  },
  async other_axes(page) {
    const names = await page.$$eval(".tools select option", (found) => found.map((item) => item.value));
    equal(names, ["step", "time", "samples", "tokens"]);
    await page.selectOption(".tools select", "time");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    const said = await page.getAttribute("[data-panel=loss]", "aria-valuetext");
    check(said.startsWith("step 3999, 50 min"), said); // 2000 × 0.5 s and 2000 × 1 s
    // Half of the time is two thirds of the steps.
    await page.locator("[data-panel=loss] .u-over").hover();
    await page.waitForTimeout(60);
    const middle = Number(await page.getAttribute("[data-panel=loss]", "aria-valuenow"));
    check(Math.abs(middle - 2500) < 30, `step ${middle} is in the middle`);
    await page.selectOption(".tools select", "samples");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    check((await page.getAttribute("[data-panel=loss]", "aria-valuetext")).includes("128k samples"), "samples are not counted");
    await page.selectOption(".tools select", "tokens");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    check((await page.getAttribute("[data-panel=loss]", "aria-valuetext")).includes("12.8M tokens"), "tokens are not counted");
  },
  async address_shows_the_same(page) {
    await page.selectOption(".tools select", "time");
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    await page.keyboard.press("+");
    await page.click("figure:has([data-panel=rate]) button.log");
    const said = await shown(page), address = page.url();
    check(/zoom=/.test(address) && /x=time/.test(address) && /log=rate/.test(address), address);
    await page.goto("about:blank");
    await page.goto(address);
    equal(await shown(page), said);
    equal(await page.inputValue(".tools select"), "time");
    equal(await page.getAttribute("figure:has([data-panel=rate]) button.log", "aria-pressed"), "true");
    await page.click("#whole");
    check(!page.url().includes("zoom"), page.url());
  },
  async tensor_drawn(page) {
    await page.fill(".tools input[type=search]", "BLOCKS.3.W");
    await page.keyboard.press("Enter");
    const legend = await page.textContent("figure:has([data-panel=pin-param-grad_norm]) .legend");
    check(legend.startsWith("blocks.3.weight"), legend);
    await page.focus(".heat canvas");
    await page.keyboard.press("Enter"); // the first row
    equal(await page.$$eval(".chip", (found) => found.map((item) => item.textContent)), ["blocks.3.weight ×", "blocks.0.weight ×"]);
    check(page.url().includes("tensor=blocks.3.weight&tensor=blocks.0.weight"), page.url());
    await page.fill(".tools input[type=search]", "nowhere");
    await page.keyboard.press("Enter");
    check((await page.textContent("#layers [role=status]")).includes("nowhere"), "an unknown name says nothing");
    for (const left of [1, 0]) {
      await page.locator(".chip").first().click();
      equal(await page.locator(".chip").count(), left);
    }
    equal(await page.locator("[data-panel=pin-param-grad_norm]").count(), 0);
  },
  async downloaded(page) {
    const fetched = async (kind) => {
      await page.click("figure:has([data-panel=loss]) summary");
      const [file] = await Promise.all([page.waitForEvent("download"), page.click(`figure:has([data-panel=loss]) .save button:has-text("${kind}")`)]);
      equal(file.suggestedFilename(), "loss." + kind.toLowerCase());
      return readFileSync(await file.path());
    };
    const rows = (await fetched("CSV")).toString().trim().split("\n");
    equal(rows[0], "step,loss");
    check(rows.includes("1500,400"), "the spike is not in the table");
    const picture = await fetched("PNG");
    equal(picture.subarray(1, 4).toString(), "PNG");
    const high = await page.$eval("[data-panel=loss] canvas", (canvas) => canvas.height);
    check(picture.readUInt32BE(20) >= high + 40, `no room for a title and names: ${picture.readUInt32BE(20)} of ${high}`);
    const drawn = (await fetched("SVG")).toString();
    check(drawn.startsWith("<svg") && /<polyline points="[\d., -]{2000}/.test(drawn), drawn.slice(0, 300));
  },
  async file_is_whole(page) {
    await page.click("figure:has([data-panel=gradients]) summary");
    const [file] = await Promise.all([page.waitForEvent("download"), page.click("figure:has([data-panel=gradients]) .save button:has-text('SVG')")]);
    const shown = await page.evaluate((text) => {
      const read = new DOMParser().parseFromString(text, "image/svg+xml"), { error } = { error: getComputedStyle(document.documentElement).getPropertyValue("--error").trim() };
      return {
        words: [...read.querySelectorAll("text")].map((item) => item.textContent),
        findings: read.querySelectorAll(`svg svg path[stroke="${error}"]`).length,
        gaps: [...read.querySelectorAll(`path[fill="${error}"] title`)].map((item) => item.textContent),
      };
    }, readFileSync(await file.path(), "utf8"));
    for (const words of ["Gradient norm", "before clipping", "after clipping"]) check(shown.words.includes(words), `${words} is not among ${shown.words}`);
    check(shown.findings >= 1, "the findings are not in the file");
    check(shown.gaps.includes("NaN"), "the NaN is not in the file");
  },
  async round_bytes(page) {
    await wordsDrawn(page);
    await page.setViewportSize({ width: 1179, height: 900 });
    await page.waitForTimeout(250);
    const sizes = (await page.evaluate(() => window.words)).filter((words) => /^[\d.]+ [KMG]iB$/.test(words));
    check(sizes.length >= 2, `ticks: ${sizes}`);
    const odd = sizes.filter((words) => { const [value] = words.split(" "); return Number(value) * 8 % 1 !== 0; });
    equal(odd, [], `not round among ${sizes}:`);
    const cut = (await page.evaluate(() => window.places)).filter(([words, left]) => /iB$/.test(words) && left < 0);
    equal(cut, [], "cut off at the left:");
  },
  async layers_on_a_phone(page) {
    await wordsDrawn(page);
    await page.setViewportSize({ width: 390, height: 800 });
    await page.waitForTimeout(250);
    const names = (await page.evaluate(() => window.words)).filter((words) => /^(embed|head|bl)/.test(words));
    check(names.length >= 4, `names: ${names}`);
    equal(names.filter((name) => name.startsWith("b") && !/\.\d\./.test(name)), [], "without their number:");
    equal(new Set(names).size, names.length, `some are the same among ${names}:`);
  },
  async machine_drawn(page) {
    const drawn = await page.$$eval("#system .chart", (found) => found.map((item) => item.dataset.panel));
    equal(drawn, ["samples", "loading", "gpu", "gpu-memory", "gpu-power", "gpu-temperature", "cpu", "disk"]);
    for (const count of await inks(page, "#system .chart canvas")) check(count > 10, "a chart is blank");
    // The same axis as the loss: the cursor there reads the machine.
    await page.focus("[data-panel=loss]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    const read = (panel) => page.textContent(`figure:has([data-panel=${panel}]) .legend`);
    equal(await read("gpu"), "busy30 %step 799");
    equal(await read("loading"), "share of the step80 % of a stepstep 799");
    check((await read("disk")).includes("MiB/s"), await read("disk"));
    check((await read("gpu-power")).includes("120 W"), await read("gpu-power"));
    await page.keyboard.press("+");
    await page.focus("[data-panel=gpu]");
    await page.keyboard.press("Escape");
    equal(await shown(page), "The charts show the whole run.");
  },
  async machine_of_every_rank(page) {
    const legend = (panel) => page.$$eval(`figure:has([data-panel=${panel}]) .legend bdi`, (found) => found.map((item) => item.textContent));
    equal(await legend("gpu"), ["rank 0", "rank 1", "rank 2", "rank 3"]);
    equal(await legend("cpu"), ["rank 0", "rank 1", "rank 2", "rank 3", "the whole host"]);
    equal(await legend("host-memory"), ["used"], "one host:");
    equal((await legend("rank-memory")).length, 4);
    for (const count of await inks(page, "#system .chart canvas")) check(count > 10, "a chart is blank");
    await page.focus("[data-panel=gpu]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    const said = await page.getAttribute("[data-panel=gpu]", "aria-valuetext");
    check(said.includes("rank 0 90 %") && said.endsWith("rank 3 45 %"), said);
    check((await page.textContent("figure:has([data-panel=gpu]) .says")).includes("45 % (rank 3) to 90 % (rank 0)"), "the idle rank is not named");
  },
  async machines_of_many_ranks(page) {
    const legend = (panel) => page.$$eval(`figure:has([data-panel=${panel}]) .legend bdi`, (found) => found.map((item) => item.textContent));
    equal(await legend("gpu"), ["mean of 16", "rank 15 (node-1), the lowest", "rank 0 (node-0), the highest"]);
    equal(await legend("host-memory"), ["node-0", "node-1"], "a curve per host:");
    await page.focus("[data-panel=gpu]");
    await page.keyboard.press("End");
    await page.waitForTimeout(60);
    const said = await page.getAttribute("[data-panel=gpu]", "aria-valuetext");
    check(said.includes("mean of 16 87.19 % (45 % to 90 %)"), said);
  },
  async curves_hidden(page) {
    const panel = "figure:has([data-panel=gradients])", name = page.locator(panel + " button.name").nth(1);
    const label = await name.textContent(), ticks = () => inks(page, "[data-panel=gradients] canvas");
    const before = await ticks();
    await name.focus();
    await page.keyboard.press("Enter");
    equal(await name.getAttribute("aria-pressed"), "false");
    check(JSON.stringify(await ticks()) !== JSON.stringify(before), "the curve is still drawn");
    await page.focus("[data-panel=gradients]");
    await page.keyboard.press("ArrowRight");
    check(!(await page.getAttribute("[data-panel=gradients]", "aria-valuetext")).includes(label), "a hidden curve is read out");
    check(page.url().includes("hide=gradients"), page.url());
    const there = page.url();
    await page.goto("about:blank");
    await page.goto(there);
    equal(await page.locator(panel + " button.name").nth(1).getAttribute("aria-pressed"), "false", "after a reload:");
    await page.locator(panel + " button.name").nth(1).click();
    check(!page.url().includes("hide="), page.url());
    equal(await page.$$eval("figure:has([data-panel=rate]) button.name", (found) => found.length), 0, "a single curve:");
  },
  async enlarged(page) {
    const size = () => page.$eval("[data-panel=gradients]", (holder) => [holder.clientWidth, holder.clientHeight]);
    const [width, height] = await size();
    await page.focus("figure:has([data-panel=gradients]) .save summary");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    const [wide, high] = await size();
    check(wide > width * 1.5 && high > height * 1.5, `${width} × ${height} is now ${wide} × ${high}`);
    equal(await page.evaluate(() => document.activeElement.tagName), "SUMMARY");
    check(page.url().includes("wide=gradients"), page.url());
    await page.click("figure:has([data-panel=gradients]) .save summary");
    await page.keyboard.press("Escape");
    equal(await page.$$eval("details.save[open]", (found) => found.length), 0, "open menus:");
    await page.click("figure:has([data-panel=gradients]) .save summary");
    await page.click('figure:has([data-panel=gradients]) .save button:has-text("Reduce")');
    equal(await size(), [width, height]);
  },
  async incident_alone(page) {
    await page.locator("#causes a", { hasText: "Show the incident" }).first().click();
    check(page.url().endsWith("#incident-0"), page.url());
    const said = await page.textContent("#incident-0");
    for (const words of ["NaN in sample 1043", "The guard skipped the update; the loss was", "Tested on this step and cured", "cured", "did not help", "Before and after"]) check(said.includes(words), `${words} is not in ${said}`);
    equal((await page.$$("#incident-0 .sentence")).length, 3, "sentences:");
    const bad = await page.$$eval("#incident-0 tr.marked td", (cells) => cells.map((cell) => cell.textContent));
    equal(bad.slice(0, 2), ["83", "NaN"]);
  },
  async sample_shown(page) {
    check((await page.textContent("#incident-0")).includes("A constant in the code is NaN"), "the first sentence");
    const said = await page.textContent("#incidents .sample");
    for (const words of ["Sample 37 (row 5 of the batch)", "word37 word5 word7", "4 tokens, decoded", "36 not finite, in magenta", "<img src=x onerror="]) check(said.includes(words), `${words} is not in ${said}`);
    const [width, height, colour] = await page.$eval("#incidents .sample img", (shown) => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [shown.naturalWidth, shown.naturalHeight];
      const ctx = canvas.getContext("2d");
      ctx.drawImage(shown, 0, 0);
      return [shown.naturalWidth, shown.naturalHeight, [...ctx.getImageData(7, 5, 1, 1).data.slice(0, 3)]];
    });
    equal([width, height, colour], [24, 16, [255, 0, 255]], "the hole in the picture:");
    equal(await page.evaluate(() => window.pwned), undefined);
  },
  async layers_switched(page) {
    equal(await page.textContent("#changes"), "Before step 700, blocks.2.fc.weight (Linear) changed first: its gradient norm rose from step 628 on, by a factor of 158 in the end.");
    const choice = page.getByRole("group", { name: "What the picture shows" });
    equal(await choice.getByRole("button").allTextContents(), ["Gradient norm", "Update ÷ weight", "Weight norm", "Non-finite share"]);
    const read = () => page.textContent("#layers .readout");
    // From one measurement to the next, and the name of the layer's class beside its own.
    await page.focus(".heat canvas");
    await page.keyboard.press("ArrowRight");
    check(/^embed\.weight \(Embedding\), steps \d+ to \d+: about 0\.\d+$/.test(await read()), await read());
    for (const name of ["Update ÷ weight", "Weight norm", "Non-finite share"]) {
      await choice.getByRole("button", { name }).focus();
      await page.keyboard.press("Enter");
      equal(await choice.getByRole("button", { name }).getAttribute("aria-pressed"), "true");
      equal(await page.evaluate(() => document.activeElement.textContent), name);
      equal(await page.textContent("figure:has(.heat) h3"), name + " of each tensor");
    }
    check(page.url().includes("layers=param-nonfinite_share"), page.url());
    await choice.getByRole("button", { name: "Update ÷ weight" }).click();
    // Two tensors are measured at a time: a column is wide enough for all of them.
    const holes = await page.$eval(".heat canvas", (canvas) => {
      const ratio = devicePixelRatio, left = 260 * ratio, wide = canvas.width - left - 60 * ratio, high = canvas.height - 26 * ratio;
      const { data } = canvas.getContext("2d").getImageData(left, 0, wide, high);
      let pale = 0;
      for (let at = 0; at < data.length; at += 4) if (data[at] > 200 && data[at + 1] > 200 && data[at + 2] > 200) pale += 1;
      return pale / (data.length / 4);
    });
    check(holes < 0.02, `${Math.round(holes * 100)} % of the picture was not measured`);
    const address = page.url();
    await page.goto("about:blank");
    await page.goto(address);
    equal(await page.textContent("figure:has(.heat) h3"), "Update ÷ weight of each tensor");
    await page.click(".heat canvas", { position: { x: 60, y: 20 } });
    equal(await page.textContent("figure:has([data-panel=pin-param-weight_norm]) .legend bdi"), "blocks.0.fc.weight (Linear)");
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
    const outside = await page.$$eval(".cause, .cause :not(.scroll *, pre.context *)", (found) => found
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
    equal(await page.$$eval("script", (found) => found.length), 7);
    equal(await page.$$eval("a", (found) => found.map((item) => item.getAttribute("href"))), ["#timeline", "#incident-0"]);
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
