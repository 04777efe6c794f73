// The page of `flagstone demo`, driven in a browser by its keyboard alone: two runs side by side to
// their end, the table, the files, a run that is cancelled, wrong fields. Looks at the page in three
// widths, dark and light, and asks axe-core about accessibility. Started by tests/demo/run.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

import { chromium } from "playwright-core";

import { difference, ink, layoutFaults } from "./look.mjs";

const { FLAGSTONE_DEMO_COMMAND: command, FLAGSTONE_DEMO_BROWSER: executablePath } = process.env;
const { FLAGSTONE_DEMO_REFERENCES: references, FLAGSTONE_DEMO_PICTURES: pictures } = process.env;
const isUpdate = process.env.FLAGSTONE_DEMO_UPDATE === "1";
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const WIDTHS = [360, 768, 1280];
/** Time that a small run may take on a slow machine. */
const RUN_MS = 120_000;

let server, ended, address, browser, page, blank;
const foreign = [];
const complaints = [];

before(async () => {
  await mkdir(pictures, { recursive: true });
  server = spawn(command, ["demo", "--port", "0", "--json"], { stdio: ["ignore", "pipe", "inherit"] });
  ended = new Promise((resolve) => server.once("exit", (code, signal) => resolve({ code, signal })));
  const line = await new Promise((resolve, reject) => {
    server.stdout.once("data", resolve);
    server.once("exit", () => reject(new Error("the server ended at once")));
  });
  ({ address } = JSON.parse(line.toString()));
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true });
  page = await context.newPage();
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(address) && !/^(data|blob):/.test(url)) foreign.push(url);
  });
  page.on("console", (message) => {
    const isExpected = message.text().includes("status of 422") || message.text().includes("status of 409");
    if (message.type() === "error" && !isExpected) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(address);
  await page.locator("#preset-b").waitFor();
  blank = await (await browser.newContext()).newPage();
});

after(async () => {
  await browser?.close();
  server?.kill("SIGKILL");
});

const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.className);
const status = () => page.locator("#status").textContent();

/** Goes on with the Tab key to the element with this id. */
async function tabTo(id) {
  for (let steps = 0; steps < 200; steps += 1) {
    if ((await focused()) === id) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`the keyboard does not reach ${id}`);
}

/** Types into a field. */
async function type(id, text) {
  await tabTo(id);
  await page.keyboard.press("Control+A");
  await page.keyboard.press("Delete");
  await page.keyboard.type(text);
}

/** Chooses from a list with the arrow keys. */
async function choose(id, value) {
  await tabTo(id);
  await page.keyboard.press("Home");
  for (let steps = 0; steps < 60; steps += 1) {
    if ((await page.locator(`#${id}`).inputValue()) === value) return;
    await page.keyboard.press("ArrowDown");
  }
  assert.fail(`the list ${id} has no ${value}`);
}

/** From the top of the page again. */
async function fromTop() {
  await page.evaluate(() => {
    document.activeElement?.blur();
    getSelection().removeAllRanges();
    scrollTo(0, 0);
  });
}

async function audit(what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
  assert.deepEqual(found, [], `accessibility, ${what}`);
}

/** The page in all widths: no fault of layout; a picture of each, compared where there is a reference. */
async function lookAt(what, isCompared) {
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 900 });
    assert.deepEqual(await layoutFaults(page), [], `${what}, ${width} wide`);
    const picture = await page.screenshot({ fullPage: true, animations: "disabled", caret: "hide" });
    await writeFile(`${pictures}/${what}-${width}.png`, picture);
    if (isCompared) await compare(`${what}-${width}.png`, picture);
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}

// Another font differs by at most 3 % in height and in its tiles, a part of the page that is gone by
// 8 % in height, fields that do not lie in columns by more in one of them.
async function compare(name, picture) {
  const path = `${references}/${name}`;
  if (isUpdate) {
    await writeFile(path, picture);
    return;
  }
  const apart = await difference(blank, picture, await readFile(path));
  assert.ok(apart.height < 0.06, `${name}: its height differs by ${(100 * apart.height).toFixed(1)} %`);
  assert.ok(apart.tiles < 0.03, `${name}: its tiles differ by ${(100 * apart.tiles).toFixed(1)} %`);
}

test("the page as it opens", async () => {
  await fromTop();
  await audit("as it opens");
  await lookAt("opened", true);
});

test("the keyboard reaches everything, in order, and shows where it is", async () => {
  await fromTop();
  const expected = await page.evaluate(() => {
    const all = document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']");
    return [...all].filter((node) => node.getClientRects().length > 0 && !node.disabled).map((node) => node.id || node.className);
  });
  const reached = [];
  for (let index = 0; index < expected.length; index += 1) {
    await page.keyboard.press("Tab");
    reached.push(await focused());
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.notEqual(outline, "none", `${reached.at(-1)} shows its focus`);
  }
  assert.deepEqual(reached, expected);
});

test("what is wrong is said beside its field", async () => {
  await fromTop();
  await type("txns", "many");
  await type("append_scheme-b", "2by4");
  await page.keyboard.press("Enter");
  // Both sides have answered when the first field that is wrong gets the focus.
  await page.waitForFunction(() => document.activeElement.id === "txns");
  assert.equal(await page.getAttribute("#txns", "aria-invalid"), "true");
  assert.match(await page.getAttribute("#txns", "aria-describedby"), /txns-hint txns-error/);
  assert.match(await page.textContent("#append_scheme-b-error"), /^N×M must be .*\.$/);
  assert.match(await status(), /Not started: Side A and Side B/);
  await audit("with faults");
  await lookAt("faults", false);
  await fromTop();
  await type("append_scheme-b", "");
});

test("two runs go side by side to their end", { timeout: RUN_MS }, async () => {
  await fromTop();
  await type("txns", "3000");
  await type("clients", "4");
  await type("fill", "50");
  for (const side of ["a", "b"]) await choose(`profile-${side}`, "slc-2k");
  await choose("preset-a", "traditional");
  await choose("preset-b", "flagstone");
  await tabTo("start");
  await page.keyboard.press("Enter");
  for (const side of ["a", "b"]) {
    await page.locator(`#panel-${side} .phase`, { hasText: /Loading|Measuring|Finished/ }).waitFor();
  }
  await page.locator("#panel-a .chip").waitFor({ timeout: RUN_MS });
  await page.screenshot({ path: `${pictures}/running.png`, fullPage: true });
  for (const side of ["a", "b"]) {
    await page.locator(`#panel-${side} .phase`, { hasText: "Finished" }).waitFor({ timeout: RUN_MS });
  }
  await page.locator("#status", { hasText: /has finished/ }).waitFor();
  assert.equal(await page.locator(".cancel:visible").count(), 0, "nothing is left to cancel");
  assert.match(await page.textContent("#panel-b code"), /^flagstone bench tpcb .*--preset flagstone$/);
});

test("the table has both runs, for each transaction and against each other", async () => {
  const table = await page.evaluate(() => {
    const text = (node) => node.textContent;
    const rows = [...document.querySelectorAll("#table tbody tr")].map((row) => [...row.cells].map(text));
    return {
      caption: document.querySelector("#table caption").textContent,
      runs: [...document.querySelectorAll("#table th[scope=colgroup]")].map((node) => node.firstChild.textContent),
      unscoped: [...document.querySelectorAll("#table th")].filter((node) => !node.scope).length,
      rows: rows.filter((row) => row.length > 1),
    };
  });
  assert.equal(table.caption, "Final I/O statistics of the finished runs");
  assert.deepEqual(table.runs, ["A1: traditional", "B1: flagstone"], "in the order in which they began");
  assert.equal(table.unscoped, 0);
  const row = (name) => table.rows.find(([title]) => title === name);
  assert.deepEqual(row("Transactions"), ["Transactions", "3 000", "–", "3 000", "–", "1.00"]);
  const programs = row("Programs").slice(1).map((text) => Number(text.replace(/\s/g, "")));
  assert.ok(programs.every((number) => number > 0), `${programs}`);
  assert.ok(Math.abs(programs[0] / 3000 - programs[1]) < 0.001, "a transaction's share");
  assert.ok(Math.abs(programs[3] / programs[1] - programs[4]) < 0.01, "against the first run");
  for (const name of ["Block erases", "Pages moved by garbage collection", "Appends, in place", "Log"]) assert.ok(row(name), name);
});

test("the drawings show something, in words too", async () => {
  for (const id of ["throughput", "programs", "erases", "causes", "valid-a", "valid-b", "wear-a", "wear-b"]) {
    const { colours, share } = await ink(page, blank, `#${id}`);
    assert.ok(colours > 3 && share > 0.01, `${id}: ${colours} colours, ${(100 * share).toFixed(1)} % drawn`);
    const words = await page.textContent(`#${id} desc`);
    assert.match(words, /\d/, `${id} says its figures: ${words}`);
  }
  for (const id of ["throughput", "programs"]) {
    assert.equal(await page.locator(`#${id} .line-a, #${id} .line-b`).count(), 2, `${id} has both lines`);
  }
});

async function saved(id) {
  await tabTo(id);
  const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
  return { name: download.suggestedFilename(), text: await readFile(await download.path(), "utf8") };
}

test("the table and the charts can be taken away", async () => {
  await fromTop();
  const csv = await saved("csv");
  assert.equal(csv.name, "flagstone-demo.csv");
  const lines = csv.text.trim().split("\r\n");
  assert.match(lines[0], /^group,figure,unit,[AB]\d: .*: total,/);
  assert.equal(lines.find((line) => line.startsWith("Transactions,Transactions,")), "Transactions,Transactions,,3000,,1,3000,,1");
  const svg = await saved("svg");
  assert.equal(svg.name, "flagstone-demo.svg");
  await writeFile(`${pictures}/charts.svg`, svg.text);
  const parsed = await page.evaluate((text) => {
    const root = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    return { root: root.tagName, errors: root.querySelectorAll("parsererror").length, drawings: root.querySelectorAll("svg").length, left: root.querySelectorAll("[class], script").length };
  }, svg.text);
  assert.deepEqual(parsed, { root: "svg", errors: 0, drawings: 8, left: 0 });
  assert.ok(!svg.text.includes("var("), "colours are colours");
});

test("the page with its results, in all widths, light and dark", async () => {
  await fromTop();
  await audit("with results");
  await lookAt("results", false);
  await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" });
  await audit("dark");
  await lookAt("dark", false);
  await page.emulateMedia({ colorScheme: "light", reducedMotion: "no-preference" });
});

/** Does something while the page is told that the run of side A is ending. */
async function seenEnding(act) {
  const phase = page.locator("#panel-a .phase");
  await page.route("**/api/state", async (route) => {
    const response = await route.fetch();
    const state = await response.json();
    state.a.state = "ending";
    await route.fulfill({ response, json: state });
  });
  await phase.filter({ hasText: "Ending" }).waitFor();
  // A browser takes the focus from what is disabled when it draws the next picture.
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
  await act();
  // What it was asked meanwhile is answered first.
  await page.unrouteAll({ behavior: "wait" });
  await phase.filter({ hasNotText: "Ending" }).waitFor();
}

test("a run is cancelled, and what an engine refuses is told", { timeout: RUN_MS }, async () => {
  await fromTop();
  await type("txns", "5000000");
  await type("seconds", "500");
  await tabTo("start-a");
  await page.keyboard.press("Enter");
  const cancel = page.locator("#panel-a .cancel");
  await cancel.waitFor();
  await page.keyboard.press("Enter");
  await page.locator("#form-error", { hasText: "A run is on here" }).waitFor();
  await tabTo("cancel");
  await seenEnding(async () => assert.equal(await focused(), "cancel", "the focus stays while a run ends"));
  await page.keyboard.press("Enter");
  await page.locator("#status", { hasText: "Side A is cancelled." }).waitFor({ timeout: RUN_MS });
  assert.equal(await focused(), "start-a", "the focus is not lost with the button");
  await fromTop();
  await type("txns", "100");
  await choose("profile-b", "spi-nand");
  await choose("preset-b", "cfc");
  await tabTo("start-b");
  await page.keyboard.press("Enter");
  await page.locator("#panel-b .error").waitFor({ timeout: RUN_MS });
  assert.match(await page.textContent("#panel-b .error"), /^[A-Z].*\.$/);
  await lookAt("refused", false);
});

test("nothing came from elsewhere, and nothing went wrong", () => {
  assert.deepEqual(foreign, []);
  assert.deepEqual(complaints, []);
});

test("an interrupt ends the server, with a run on", { timeout: 20_000 }, async () => {
  await page.evaluate(() => fetch("/api/runs/a", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ benchmark: "tpcb", txns: "5000000", seconds: "500" }) }));
  server.kill("SIGINT");
  assert.deepEqual(await ended, { code: null, signal: "SIGINT" });
});
