// The page: the form, the two sides while they run, the table of what they did.
//
// All state is the server's; this script asks for it and shows it. What is spoken aloud (the status)
// changes with the phase of a run, not with its figures.

import * as charts from "./charts.js";

const SIDES = ["a", "b"];
const SHARED = ["benchmark", "dialect", "scale", "txns", "seconds", "warmup", "clients", "memory", "fill", "seed"];
const OWN = ["profile", "preset", "append_scheme"];
const PHASES = { load: "Loading the rows", "warm up": "Working the chip in", measure: "Measuring", verify: "Power cut, restart, check" };
const CAUSES = [["log", "Log"], ["data", "Data"], ["delta", "Appends"], ["flag", "Flags"], ["metadata", "Metadata"], ["relocation", "Relocation"], ["wear", "Wear"]];
const CHARTS = [
  ["throughput", "Throughput, transactions a simulated second"],
  ["programs", "Programs since the start"],
  ["erases", "Block erases since the start"],
  ["causes", "Programs a transaction, by cause"],
];
const isCalm = matchMedia("(prefers-reduced-motion: reduce)");
const POLL_MS = { running: 250, calm: 1000, idle: 2000 };

const byId = (id) => document.getElementById(id);
const name = (side) => `Side ${side.toUpperCase()}`;
const fieldId = (field, side) => (OWN.includes(field) ? `${field}-${side}` : field);
let choices;
let shownResults = -1;
let spoken = { a: "", b: "" };

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function say(text) {
  byId("status").textContent = text;
}

async function ask(method, path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

// The form.

function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map((option) => make("option", { value: option }, option)));
  if (options.includes(chosen)) select.value = chosen;
}

function chooseBenchmark() {
  const benchmark = choices.benchmarks.find((one) => one.name === byId("benchmark").value);
  fillSelect(byId("dialect"), benchmark.dialects);
  byId("scale-of").textContent = benchmark.scale_of;
  byId("scale-hint").textContent = `From ${charts.grouped(benchmark.scale_min)} to ${charts.grouped(benchmark.scale_max)}.`;
  byId("scale").value = benchmark.scale;
  byId("txns").value = benchmark.txns;
  byId("clients").value = benchmark.name === "index" ? 1 : 8;
}

function explain(side, field, rows) {
  const chosen = rows.find(([value]) => value === byId(fieldId(field, side)).value);
  byId(`${fieldId(field, side)}-hint`).textContent = chosen ? chosen[1] : "";
}

function makeSideFields(side, index) {
  const fields = byId("side-template").content.cloneNode(true);
  fields.querySelector("fieldset").classList.add(`side-${side}`);
  fields.querySelector("legend").textContent = name(side);
  for (const field of OWN) {
    const id = fieldId(field, side);
    const input = fields.querySelector(`[data-name="${field}"]`);
    fields.querySelector(`[data-for="${field}"]`).setAttribute("for", id);
    fields.querySelector(`[data-hint="${field}"]`).id = `${id}-hint`;
    Object.assign(input, { id, name: id });
    input.setAttribute("aria-describedby", `${id}-hint`);
  }
  byId("side-fields").append(fields);
  for (const [field, rows, chosen] of [["profile", choices.profiles, choices.profile], ["preset", choices.presets, choices.sides[index]]]) {
    fillSelect(byId(fieldId(field, side)), rows.map(([value]) => value), chosen);
    byId(fieldId(field, side)).addEventListener("change", () => explain(side, field, rows));
    explain(side, field, rows);
  }
}

function clearFaults() {
  for (const shown of document.querySelectorAll(".field > .error")) shown.remove();
  for (const input of document.querySelectorAll("[aria-invalid]")) {
    input.removeAttribute("aria-invalid");
    input.setAttribute("aria-describedby", input.dataset.described ?? "");
    if (!input.dataset.described) input.removeAttribute("aria-describedby");
  }
  byId("form-error").hidden = true;
}

/** Shows what is wrong beside its field; true when there was a field for it. */
function showFault(side, { field, message }) {
  const input = field && byId(fieldId(field, side));
  if (!input) {
    byId("form-error").textContent = `${name(side)}: ${message}`;
    byId("form-error").hidden = false;
    return;
  }
  if (input.getAttribute("aria-invalid")) return;
  const id = `${input.id}-error`;
  input.dataset.described = input.getAttribute("aria-describedby") ?? "";
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", `${input.dataset.described} ${id}`.trim());
  input.closest(".field").append(make("p", { class: "error", id }, message));
}

function configuration(side) {
  return Object.fromEntries([...SHARED, ...OWN].map((field) => [field, byId(fieldId(field, side)).value]));
}

async function start(sides) {
  clearFaults();
  const refused = [];
  for (const side of sides) {
    const { status, body } = await ask("POST", `/api/runs/${side}`, configuration(side));
    if (status === 201) {
      spoken[side] = "";
    } else if (body.faults) {
      body.faults.forEach((fault) => showFault(side, fault));
      refused.push(side);
    } else {
      showFault(side, { field: "", message: body.message });
      refused.push(side);
    }
  }
  const invalid = document.querySelector("[aria-invalid]");
  if (refused.length > 0) say(`Not started: ${refused.map(name).join(" and ")}. What is wrong stands in the form.`);
  if (invalid) invalid.focus();
  poll();
}

// The sides while they run.

function makePanel(side) {
  const panel = byId("panel-template").content.cloneNode(true);
  const root = panel.querySelector("article");
  root.id = `panel-${side}`;
  root.classList.add(`side-${side}`);
  root.setAttribute("aria-labelledby", `panel-${side}-heading`);
  Object.assign(root.querySelector("h3"), { id: `panel-${side}-heading`, textContent: name(side) });
  root.querySelector("progress").setAttribute("aria-label", `${name(side)}: progress of the phase`);
  root.querySelector(".valid").id = `valid-${side}`;
  root.querySelector(".wear").id = `wear-${side}`;
  root.querySelector(".phase").textContent = "Not started.";
  root.querySelector("pre").setAttribute("aria-label", `${name(side)}: command line`);
  const cancel = root.querySelector(".cancel");
  cancel.textContent = `Cancel ${side.toUpperCase()}`;
  cancel.addEventListener("click", async () => {
    if (cancel.ariaDisabled === "true") return;
    await ask("DELETE", `/api/runs/${side}`);
    poll();
  });
  const legend = [["free", 0, "free"], ["closed", 0.6, "data: filled as far as pages are valid"], ["open", 0.3, "being written"], ["log", 0, "log"], ["anchors", 0, "anchors"], ["bad", 0, "bad"]];
  root.querySelector(".legend").append(...legend.map(([state, filled, text]) => make("li", {}, charts.sign(state, filled), text)));
  byId("side-panels").append(panel);
}

function figuresOf(window) {
  if (!window) return [];
  const causes = window.programs_by_cause;
  const each = (count) => (window.commits > 0 ? (count / window.commits).toFixed(3) : "–");
  return [
    ["Simulated time", `${window.time_s.toFixed(2)} s`],
    ["Transactions", charts.grouped(window.commits)],
    ["Transactions/s", charts.grouped(window.tps)],
    ["Programs", charts.grouped(window.programs)],
    ["Programs each", each(window.programs)],
    ["Appends in place", charts.grouped(causes.delta)],
    ["Pages moved", charts.grouped(window.gc_migrations)],
    ["Block erases", charts.grouped(window.erases)],
  ];
}

function phaseText({ state, seen }) {
  const percent = seen.total > 0 ? Math.floor((100 * seen.done) / seen.total) : 0;
  switch (state) {
    case "running":
      return seen.phase ? `${PHASES[seen.phase]}, ${percent} %` : "Beginning";
    case "ending":
      return "Ending…";
    case "done":
      return "Finished; its figures are in the table below.";
    case "cancelled":
      return "Cancelled.";
    default:
      return "No result.";
  }
}

function showPanel(side, run) {
  const panel = byId(`panel-${side}`);
  const isOn = run.state === "running" || run.state === "ending";
  panel.querySelector(".label").textContent = run.label;
  panel.querySelector(".phase").textContent = phaseText(run);
  const progress = panel.querySelector("progress");
  progress.hidden = !isOn;
  progress.value = run.seen.total > 0 ? run.seen.done / run.seen.total : 0;
  const cancel = panel.querySelector(".cancel");
  // The button that is pressed must not vanish under the keyboard, nor lose it while the run ends:
  // the one that starts a run takes over in the end.
  if (!isOn && cancel === document.activeElement) byId(`start-${side}`).focus();
  cancel.hidden = !isOn;
  cancel.ariaDisabled = String(run.state === "ending");
  const error = panel.querySelector(".error");
  error.hidden = run.state !== "failed";
  error.textContent = run.message ?? "";
  const rows = figuresOf(run.seen.window).map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)));
  panel.querySelector(".figures").replaceChildren(...rows);
  panel.querySelector(".command").hidden = false;
  panel.querySelector("code").textContent = run.command;
  showChip(side, panel, run.seen.chip);
}

function showChip(side, panel, chip) {
  panel.querySelector(".chip").hidden = !chip;
  if (!chip) return;
  const { blocks, erase_count: erases } = chip;
  // A drive keeps its blocks to itself: their erases alone are known.
  const isKnown = blocks.some(([state]) => state < charts.STATES.length - 1);
  for (const part of [byId(`valid-${side}`).parentElement, panel.querySelector(".legend")]) part.hidden = !isKnown;
  const most = Math.max(1, erases.max);
  const counts = charts.STATES.map((state, number) => [state, blocks.filter((block) => block[0] === number)]);
  const parts = counts.filter(([, found]) => found.length > 0).map(([state, found]) => `${found.length} ${state}`);
  charts.chip(byId(`valid-${side}`), {
    title: `${name(side)}: valid pages of each block`,
    words: `${blocks.length} blocks: ${parts.join(", ")}.`,
    blocks, share: charts.validShare(chip.pages_per_block), marks: true,
  });
  charts.chip(byId(`wear-${side}`), {
    title: `${name(side)}: erases of each block`,
    words: `From ${erases.min} to ${erases.max} erases a block, ${erases.mean.toFixed(1)} on average. A full cell has ${most}.`,
    blocks, share: (block) => block[2] / most, marks: false,
  });
  const mean = (found, of) => found.reduce((sum, block) => sum + of(block), 0) / found.length;
  const rows = counts.filter(([, found]) => found.length > 0).map(([state, found]) => {
    const holdsData = state === "open" || state === "closed" || state === "retired";
    const valid = holdsData ? (100 * mean(found, (block) => block[1] / chip.pages_per_block)).toFixed(0) : "–";
    const cells = [found.length, valid, mean(found, (block) => block[2]).toFixed(1), Math.max(...found.map((block) => block[2]))];
    return make("tr", {}, make("th", { scope: "row" }, state), ...cells.map((cell) => make("td", {}, String(cell))));
  });
  panel.querySelector(".states tbody").replaceChildren(...rows);
}

/** Speaks when a run enters another phase, with its figures when it has ended. */
function speak(side, run) {
  const { state, seen, message, label } = run;
  const now = `${state} ${seen.phase}`;
  if (now === spoken[side]) return "";
  spoken[side] = now;
  const window = seen.window;
  switch (state) {
    case "running":
      return seen.phase ? `${name(side)}: ${PHASES[seen.phase].toLowerCase()}.` : "";
    case "done":
      return `${name(side)} has finished (${label}): ${charts.grouped(window.tps)} transactions a second, ${charts.grouped(window.programs)} programs, ${charts.grouped(window.erases)} erases.`;
    case "cancelled":
      return `${name(side)} is cancelled.`;
    case "failed":
      return `${name(side)} gave no result: ${message}`;
    default:
      return "";
  }
}

// The charts of both sides.

function makeCharts() {
  for (const [id, caption] of CHARTS) {
    byId("charts").append(make("figure", { class: "card" }, make("figcaption", {}, caption), charts.element("svg", { id })));
  }
}

/** Commits a second between neighbours, some points taken together so that the line is calm. */
function rates(samples) {
  const reach = Math.max(1, Math.floor(samples.length / 40));
  return samples.slice(reach).map((sample, index) => {
    const before = samples[index];
    const time = sample.time_s - before.time_s;
    return [sample.time_s, time > 0 ? (sample.commits - before.commits) / time : 0];
  });
}

function showCharts(state) {
  const runs = SIDES.filter((side) => state[side]).map((side) => ({ side, run: state[side] }));
  const series = (of) => runs.map(({ side, run }) => ({ side, points: of(run.seen.samples) }));
  const summary = (of) => runs.filter(({ run }) => run.seen.window).map(({ side, run }) => `${name(side)}: ${of(run.seen.window)}`).join("; ") || "No run yet.";
  const time = (of) => (samples) => samples.map((sample) => [sample.time_s, of(sample)]);
  const all = {
    throughput: [rates, (window) => `${charts.grouped(window.tps)} a second on average`],
    programs: [time((sample) => sample.programs), (window) => `${charts.grouped(window.programs)} programs`],
    erases: [time((sample) => sample.erases), (window) => `${charts.grouped(window.erases)} erases`],
  };
  for (const [id, title] of CHARTS) {
    if (!all[id]) continue;
    const [of, words] = all[id];
    charts.lines(byId(id), { title, words: `${summary(words)}.`, xName: "simulated seconds", series: series(of) });
  }
  const measured = runs.filter(({ run }) => run.seen.window?.commits > 0);
  const each = ({ run }, cause) => run.seen.window.programs_by_cause[cause] / run.seen.window.commits;
  const rows = CAUSES.map(([cause, text]) => ({ name: text, values: Object.fromEntries(measured.map((one) => [one.side, each(one, cause)])) }));
  const words = measured.map((one) => `${name(one.side)}: ${CAUSES.map(([cause, text]) => `${text.toLowerCase()} ${each(one, cause).toFixed(3)}`).join(", ")}`).join("; ");
  charts.bars(byId("causes"), { title: CHARTS[3][1], words: `${words || "No run yet"}.`, rows, sides: measured.map((one) => one.side) });
}

// The table.

async function showResults() {
  const { body } = await ask("GET", "/api/results");
  const { runs, groups } = body;
  byId("results").hidden = runs.length === 0;
  byId("no-results").hidden = runs.length > 0;
  const columns = (index) => (index === 0 ? ["total", "a transaction"] : ["total", "a transaction", "against the first"]);
  const heads = runs.map(({ label, about }, index) => make("th", { scope: "colgroup", colspan: columns(index).length, class: "run" }, label, make("small", {}, about)));
  const seconds = runs.flatMap((_, index) => columns(index).map((text, place) => make("th", { scope: "col", class: place ? "" : "first" }, text)));
  const head = make("thead", {}, make("tr", {}, make("th", { scope: "col", rowspan: 2 }, "Figure"), ...heads), make("tr", {}, ...seconds));
  const bodies = groups.map((group) => {
    const width = 1 + runs.reduce((sum, _, index) => sum + columns(index).length, 0);
    const rows = group.rows.map((row) => {
      const title = make("th", { scope: "row" }, row.name, ...(row.unit ? [make("span", { class: "unit" }, `, ${row.unit}`)] : []));
      const cells = row.cells.flatMap((cell, index) => columns(index).map((_, place) => make("td", { class: place ? "" : "first" }, cell[place])));
      return make("tr", {}, title, ...cells);
    });
    return make("tbody", {}, make("tr", {}, make("th", { scope: "rowgroup", colspan: width, class: "group" }, group.name)), ...rows);
  });
  byId("table").replaceChildren(byId("results-caption"), head, ...bodies);
}

function saveCharts() {
  const drawings = CHARTS.map(([id, heading]) => ({ heading: `${heading} (A solid, B dashed or outlined)`, svg: byId(id) }));
  for (const side of SIDES) {
    for (const [id, text] of [[`valid-${side}`, "valid pages of each block"], [`wear-${side}`, "erases of each block"]]) {
      if (byId(id).childElementCount > 0 && !byId(id).closest("[hidden]")) drawings.push({ heading: `${name(side)}: ${text}`, svg: byId(id) });
    }
  }
  const address = URL.createObjectURL(new Blob([charts.file(drawings)], { type: "image/svg+xml" }));
  const link = make("a", { href: address, download: "flagstone-demo.svg" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// The course of things.

let timer;
let isAsking = false;

async function poll() {
  clearTimeout(timer);
  if (isAsking) {
    timer = setTimeout(poll, 50);
    return;
  }
  isAsking = true;
  let wait = POLL_MS.idle;
  try {
    const { body: state } = await ask("GET", "/api/state");
    const news = [];
    for (const side of SIDES) {
      const run = state[side];
      if (!run) continue;
      showPanel(side, run);
      news.push(speak(side, run));
      if (run.state === "running" || run.state === "ending") wait = isCalm.matches ? POLL_MS.calm : POLL_MS.running;
    }
    showCharts(state);
    if (state.results !== shownResults) {
      shownResults = state.results;
      await showResults();
    }
    const text = news.filter(Boolean).join(" ");
    if (text) say(text);
  } catch {
    say("The server does not answer; it may have been ended.");
  }
  isAsking = false;
  timer = setTimeout(poll, wait);
}

async function begin() {
  choices = (await ask("GET", "/api/choices")).body;
  byId("benchmark").replaceChildren(...choices.benchmarks.map((one) => make("option", { value: one.name }, one.title)));
  byId("benchmark").addEventListener("change", chooseBenchmark);
  chooseBenchmark();
  byId("fill").value = choices.fill;
  SIDES.forEach(makeSideFields);
  SIDES.forEach(makePanel);
  makeCharts();
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    start(SIDES);
  });
  for (const side of SIDES) byId(`start-${side}`).addEventListener("click", () => start([side]));
  byId("svg").addEventListener("click", saveCharts);
  byId("clear").addEventListener("click", async () => {
    await ask("DELETE", "/api/results");
    byId("start").focus();
    say("The table is empty.");
    poll();
  });
  await poll();
}

begin();
