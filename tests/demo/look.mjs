// How pictures of the page are judged: roughly, so that another font or another figure is no fault.

/** Side of the tiles whose mean colours are compared, in pixels. */
const TILE = 24;

/** In a page of the browser: the mean colour of each tile of a PNG file. */
async function tilesOf(browserPage, png) {
  return browserPage.evaluate(async ([data, tile]) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    const context = canvas.getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const { data: pixels } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    const [columns, rows] = [Math.ceil(bitmap.width / tile), Math.ceil(bitmap.height / tile)];
    const sums = Array.from({ length: columns * rows }, () => [0, 0, 0, 0]);
    for (let y = 0; y < bitmap.height; y += 1) {
      for (let x = 0; x < bitmap.width; x += 1) {
        const sum = sums[Math.floor(y / tile) * columns + Math.floor(x / tile)];
        const at = 4 * (y * bitmap.width + x);
        for (let channel = 0; channel < 3; channel += 1) sum[channel] += pixels[at + channel];
        sum[3] += 1;
      }
    }
    const tiles = sums.map(([red, green, blue, count]) => [red / count, green / count, blue / count]);
    return { width: bitmap.width, height: bitmap.height, tiles };
  }, [png.toString("base64"), TILE]);
}

/** How far two pictures are apart: the share by which their heights and their tiles differ. */
export async function difference(browserPage, one, other) {
  const [a, b] = [await tilesOf(browserPage, one), await tilesOf(browserPage, other)];
  if (a.width !== b.width) return { height: 1, tiles: 1 };
  const count = Math.min(a.tiles.length, b.tiles.length);
  let sum = 0;
  for (let index = 0; index < count; index += 1) {
    for (let channel = 0; channel < 3; channel += 1) sum += Math.abs(a.tiles[index][channel] - b.tiles[index][channel]);
  }
  return { height: Math.abs(a.height - b.height) / b.height, tiles: sum / count / 3 / 255 };
}

/** In the page under test: what is wrong with its layout, as sentences. */
export function layoutFaults(browserPage) {
  return browserPage.evaluate(() => {
    const faults = [];
    const name = (node) => `${node.tagName.toLowerCase()}#${node.id}.${node.className.baseVal ?? node.className}`;
    const shown = (node) => node.getClientRects().length > 0;
    const root = document.documentElement;
    if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} wide, the window ${root.clientWidth}`);
    for (const node of document.querySelectorAll("input, select, button, .button, .card, svg, p, h1, h2, h3")) {
      if (!shown(node) || node.closest(".scroll, .skip, .legend")) continue;
      const box = node.getBoundingClientRect();
      if (box.left < -1 || box.right > root.clientWidth + 1) faults.push(`${name(node)} reaches beyond the window`);
      if (node.scrollWidth > node.clientWidth + 1 && node.matches("p, h1, h2, h3")) faults.push(`${name(node)} is cut off`);
    }
    for (const group of ["#side-panels > *", "#charts > *", ".field", ".card", "main > *"]) {
      const boxes = [...document.querySelectorAll(group)].filter(shown);
      boxes.forEach((one, index) => {
        for (const other of boxes.slice(index + 1)) {
          if (one.contains(other) || other.contains(one)) continue;
          const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
          const [width, height] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
          if (width > 1 && height > 1) faults.push(`${name(one)} and ${name(other)} overlap`);
        }
      });
    }
    for (const svg of document.querySelectorAll("svg[role=img]")) {
      const texts = [...svg.querySelectorAll("text")].map((node) => node.getBoundingClientRect());
      const outer = svg.getBoundingClientRect();
      if (!shown(svg)) continue;
      for (const [index, one] of texts.entries()) {
        if (one.right > outer.right + 2 || one.left < outer.left - 2) faults.push(`a text of ${name(svg)} is cut off`);
        for (const other of texts.slice(index + 1)) {
          const [width, height] = [Math.min(one.right, other.right) - Math.max(one.left, other.left), Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top)];
          if (width > 2 && height > 5) faults.push(`texts of ${name(svg)} overlap`);
        }
      }
    }
    return [...new Set(faults)];
  });
}

/** Colours in a region of the page beside its most frequent one: how many, and their share. */
export async function ink(browserPage, blank, selector) {
  const png = await browserPage.locator(selector).screenshot();
  return blank.evaluate(async (data) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const { data: pixels } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    const counts = new Map();
    for (let at = 0; at < pixels.length; at += 4) {
      const colour = (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2];
      counts.set(colour, (counts.get(colour) ?? 0) + 1);
    }
    const most = Math.max(...counts.values());
    return { colours: counts.size, share: 1 - most / (pixels.length / 4) };
  }, png.toString("base64"));
}
