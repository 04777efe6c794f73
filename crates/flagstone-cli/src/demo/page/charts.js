// Drawings of the page as SVG: lines over time, bars by cause, the chip. They take data and an
// element; they know nothing of the server. Each has a text alternative: `role="img"` with a title
// and a description, both in words.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
export function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** A number with its digits in groups of three, and at most so many decimals. */
export function grouped(number, decimals = 0) {
  const [whole, part] = number.toFixed(decimals).split(".");
  const digits = whole.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  return part ? `${digits}.${part}` : digits;
}

/** A round step that divides `span` into about `count` parts. */
function stepOf(span, count) {
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
}

/** Round values from 0 up to the first at or above `top`. */
function ticks(top, count) {
  const step = stepOf(top > 0 ? top : 1, count);
  const values = [];
  for (let number = 0; (number - 1) * step < top || number < 2; number += 1) values.push(number * step);
  return { values, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function begin(svg, width, height, title, words) {
  const id = svg.id;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-labelledby", `${id}-title ${id}-words`);
  svg.replaceChildren(
    element("title", { id: `${id}-title` }, title),
    element("desc", { id: `${id}-words` }, words),
  );
}

/** Says in the middle of a drawing that there is nothing to draw. */
function sayEmpty(svg, width, height) {
  svg.append(element("text", { class: "text soft", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing measured yet"));
}

const draw = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/**
 * Lines over time, one for each side: A solid, B dashed, both with their letter at the end.
 * `series` is [{ side, points: [[x, y]…] }…].
 */
export function lines(svg, { title, words, xName, series }) {
  const [width, height] = [420, 230];
  const [left, right, top, bottom] = [64, 22, 12, 40];
  begin(svg, width, height, title, words);
  const drawn = series.filter((one) => one.points.length > 0);
  if (drawn.length === 0) {
    sayEmpty(svg, width, height);
    return;
  }
  const most = (index) => Math.max(0, ...drawn.flatMap((one) => one.points.map((point) => point[index])));
  const xs = ticks(most(0), 5);
  const ys = ticks(most(1), 4);
  const x = (value) => left + (value / xs.values.at(-1)) * (width - left - right);
  const y = (value) => height - bottom - (value / ys.values.at(-1)) * (height - top - bottom);
  for (const value of ys.values) {
    svg.append(element("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }));
    svg.append(element("text", { class: "text soft", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, grouped(value, ys.decimals)));
  }
  for (const value of xs.values) {
    svg.append(element("path", { class: "axis", d: `M${x(value)} ${height - bottom}v5` }));
    svg.append(element("text", { class: "text soft", x: x(value), y: height - bottom + 18, "text-anchor": "middle" }, grouped(value, xs.decimals)));
  }
  svg.append(element("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  svg.append(element("text", { class: "text soft", x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, xName));
  const ends = [];
  for (const { side, points } of drawn) {
    const placed = points.map(([a, b]) => [x(a), y(b)]);
    svg.append(element("path", { class: `line-${side}`, d: draw(placed) }));
    const [endX, endY] = placed.at(-1);
    // Letters that would lie on each other move apart.
    const near = ends.find((other) => Math.abs(other[0] - endX) < 12 && Math.abs(other[1] - endY) < 13);
    const letterY = near ? near[1] + (endY >= near[1] ? 13 : -13) : endY;
    ends.push([endX, letterY]);
    svg.append(element("text", { class: `text name-${side}`, x: endX + 5, y: letterY + 4 }, side.toUpperCase()));
  }
}

/** Bars for each cause, A filled and B outlined, each with its letter and its value. */
export function bars(svg, { title, words, rows, sides }) {
  const [width, rowHeight, left, right] = [420, 17, 118, 62];
  const group = rowHeight * sides.length + 9;
  const height = sides.length > 0 ? rows.length * group + 12 : 230;
  begin(svg, width, height, title, words);
  if (sides.length === 0) {
    sayEmpty(svg, width, height);
    return;
  }
  const top = Math.max(1e-9, ...rows.flatMap((row) => sides.map((side) => row.values[side] ?? 0)));
  rows.forEach((row, index) => {
    const y = 6 + index * group;
    svg.append(element("text", { class: "text", x: left - 24, y: y + (rowHeight * sides.length) / 2 + 4, "text-anchor": "end" }, row.name));
    sides.forEach((side, place) => {
      const value = row.values[side] ?? 0;
      const lineY = y + place * rowHeight;
      const length = (value / top) * (width - left - right);
      svg.append(element("text", { class: `text name-${side}`, x: left - 16, y: lineY + 13 }, side.toUpperCase()));
      svg.append(element("rect", { class: `bar-${side}`, x: left, y: lineY + 3, width: Math.max(length, 0.5).toFixed(1), height: rowHeight - 5 }));
      svg.append(element("text", { class: "text soft", x: left + length + 6, y: lineY + 13 }, value.toFixed(3)));
    });
  });
  svg.append(element("path", { class: "axis", d: `M${left} 2V${height - 4}` }));
}

/** What the numbers of states say, in the order of the server; last, what a drive does not tell. */
export const STATES = ["free", "open", "closed", "log", "anchors", "retired", "bad", "not told"];

const DATA = new Set(["open", "closed", "retired"]);

/** Rows and size of the cells for so many blocks. */
function grid(count) {
  const width = 480;
  const cell = Math.min(26, Math.max(5, Math.floor(Math.sqrt((width * 150) / Math.max(1, count)))));
  const columns = Math.floor(width / cell);
  return { width, cell, columns, height: Math.ceil(count / columns) * cell + 1 };
}

const box = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}z`;

/** What lies in a cell beside its frame, as a path: hatched log, dotted anchors, crossed bad blocks. */
function mark(state, x, y, size) {
  const far = size - 1;
  switch (state) {
    case "log":
      return ["hatch", `M${x + 1} ${y + far}L${x + far} ${y + 1}M${x + 1} ${y + far / 2}L${x + far / 2} ${y + 1}M${x + far / 2} ${y + far}L${x + far} ${y + far / 2}`];
    case "anchors": {
      const radius = Math.max(1, size / 6);
      return ["dot", box(x + size / 2 - radius, y + size / 2 - radius, 2 * radius, 2 * radius)];
    }
    case "bad":
      return ["cross", `M${x + 1} ${y + 1}l${far - 1} ${far - 1}M${x + far} ${y + 1}l${1 - far} ${far - 1}`];
    case "open":
      return ["open", box(x + 1, y + 1, size - 2, size - 2)];
    default:
      return null;
  }
}

/** The chip, a cell a block: how high it is filled is what `share` says of it. */
export function chip(svg, { title, words, blocks, share, marks }) {
  const { width, height, cell, columns } = grid(blocks.length);
  begin(svg, width, height, title, words);
  const paths = { block: "", filled: "", hatch: "", dot: "", cross: "", open: "" };
  const size = cell - 2;
  blocks.forEach((block, index) => {
    const x = (index % columns) * cell + 0.5;
    const y = Math.floor(index / columns) * cell + 0.5;
    paths.block += box(x, y, size, size);
    const filled = Math.min(1, Math.max(0, share(block))) * size;
    if (filled > 0) paths.filled += box(x, (y + size - filled).toFixed(1), size, filled.toFixed(1));
    const marked = marks && mark(STATES[block[0]], x, y, size);
    if (marked) paths[marked[0]] += marked[1];
  });
  for (const [name, d] of Object.entries(paths)) if (d) svg.append(element("path", { class: name, d }));
}

/** Share of valid pages of a block that holds data. */
export const validShare = (pagesPerBlock) => ([state, live]) => (DATA.has(STATES[state]) ? live / pagesPerBlock : 0);

/** One cell as the sign of a legend. */
export function sign(state, filled = 0) {
  const svg = element("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" });
  svg.append(element("path", { class: "block", d: box(0.5, 0.5, 15, 15) }));
  if (filled) svg.append(element("path", { class: "filled", d: box(0.5, 15.5 - 15 * filled, 15, 15 * filled) }));
  const marked = mark(state, 0.5, 0.5, 15);
  if (marked) svg.append(element("path", { class: marked[0], d: marked[1] }));
  return svg;
}

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight"];

/** A copy of a drawing that carries its style with it. */
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    if (node.hasAttribute("class")) {
      for (const name of KEPT) node.setAttribute(name, style.getPropertyValue(name));
      node.removeAttribute("class");
    }
    node.removeAttribute("id");
  });
  for (const name of ["class", "id", "aria-labelledby"]) copy.removeAttribute(name);
  return copy;
}

/** Drawings below each other, with their headings, as the text of one SVG file. */
export function file(drawings) {
  const width = 720;
  const root = element("svg", { xmlns: SVG, width });
  const ink = getComputedStyle(document.body).color;
  const paper = getComputedStyle(document.body).backgroundColor;
  const back = element("rect", { width, fill: paper });
  root.append(back);
  let y = 16;
  for (const { heading, svg } of drawings) {
    root.append(element("text", { x: 24, y: y + 14, fill: ink, "font-family": "system-ui, sans-serif", "font-size": 15, "font-weight": 600 }, heading));
    const copy = standalone(svg);
    const { width: inner, height } = svg.viewBox.baseVal;
    const shown = Math.min(1.5, (width - 48) / inner);
    copy.setAttribute("x", 24);
    copy.setAttribute("y", y + 26);
    copy.setAttribute("width", inner * shown);
    copy.setAttribute("height", height * shown);
    root.append(copy);
    y += Math.round(26 + height * shown + 28);
  }
  root.setAttribute("height", y);
  root.setAttribute("viewBox", `0 0 ${width} ${y}`);
  back.setAttribute("height", y);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(root)}\n`;
}
