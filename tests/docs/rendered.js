// What a person could not read on the page as it is rendered now: {cut: [...], faint: [...]}.
const AA = 4.5; // WCAG 2.2, 1.4.3: contrast of text; large text needs 3
const AA_LARGE = 3;

const still = new CSSStyleSheet(); // a policy of the page may forbid style elements
still.replaceSync("* {transition: none !important}");
document.adoptedStyleSheets.push(still);
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const known = new Map();

// A CSS color as [red, green, blue, alpha] from 0 to 1, whatever its notation.
function channels(css) {
  if (!known.has(css)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    known.set(css, [...canvas.getImageData(0, 0, 1, 1).data].map((channel) => channel / 255));
  }
  return known.get(css);
}

function over(upper, lower) {
  return [0, 1, 2].map((i) => upper[i] * upper[3] + lower[i] * (1 - upper[3])).concat(1);
}

const lines = new Map();

// An element and its ancestors, each with its style.
function ancestors(element) {
  if (!element) return [];
  if (!lines.has(element)) {
    lines.set(element, [[element, getComputedStyle(element)], ...ancestors(element.parentElement)]);
  }
  return lines.get(element);
}

function luminance(color) {
  const [r, g, b] = color.slice(0, 3).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(line) {
  let background = [1, 1, 1, 1];
  for (const [, style] of [...line].reverse()) background = over(channels(style.backgroundColor), background);
  const color = [...channels(line[0][1].color)];
  for (const [, style] of line) color[3] *= style.opacity;
  const [dark, light] = [luminance(over(color, background)), luminance(background)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function isLarge(style) {
  const pixels = parseFloat(style.fontSize);
  return pixels >= 24 || (pixels >= 18.66 && style.fontWeight >= 700);
}

// How much of a text its ancestors show: "all" of it, a "part", or "nothing", as of a closed panel. Where there
// is a scrollbar, it leads to the rest.
function shown(box, line) {
  for (const [element, style] of line) {
    if (/auto|scroll/.test(style.overflowX + style.overflowY)) return "all";
    const edge = element.getBoundingClientRect();
    const clips = {x: style.overflowX !== "visible", y: style.overflowY !== "visible"};
    const outX = clips.x && (box.right <= edge.left || box.left >= edge.right);
    const outY = clips.y && (box.bottom <= edge.top || box.top >= edge.bottom);
    if (outX || outY) return "nothing";
    const cutX = clips.x && (box.left < edge.left - 1 || box.right > edge.right + 1);
    const cutY = clips.y && (box.top < edge.top - 1 || box.bottom > edge.bottom + 1);
    if (cutX || cutY) return "part";
  }
  if (box.right <= 0) return "nothing";
  return box.left < -1 || box.right > innerWidth + 1 ? "part" : "all";
}

const cut = [];
const faint = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const text = texts.currentNode;
  const line = ancestors(text.parentElement);
  const range = document.createRange();
  range.selectNodeContents(text);
  const box = range.getBoundingClientRect();
  const hidden = line[0][1].visibility !== "visible" || line.some(([, style]) => style.opacity === "0");
  if (!text.data.trim() || !box.width || !box.height || hidden) continue;
  const part = shown(box, line);
  if (part === "nothing") continue;
  const told = `${text.parentElement.className || text.parentElement.tagName}: ${text.data.trim().slice(0, 60)}`;
  if (part === "part") cut.push(told);
  const ratio = contrast(line);
  if (ratio < (isLarge(line[0][1]) ? AA_LARGE : AA)) faint.push(`${ratio.toFixed(2)} ${told}`);
}
return {cut, faint, width: document.scrollingElement.scrollWidth};
