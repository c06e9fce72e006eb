// @ts-check
// Colors of values, from the variables of the style sheet, so dark and light themes have their own colors.
let colorsRead = {}; // colors read from the style sheet, until the theme changes

export function forgetColors() {
  colorsRead = {};
}

export function cssColor(name) {
  if (!(name in colorsRead)) {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const [, light, dark] = /light-dark\((#\w+), (#\w+)\)/.exec(text) ?? [null, text, text];
    colorsRead[name] = document.documentElement.dataset.theme === "dark" ? dark : light;
  }
  return colorsRead[name];
}

function channels(name) {
  const hex = cssColor(name);
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function between(stops, x) {
  const at = Math.min(1, Math.max(0, x)) * (stops.length - 1);
  const n = Math.min(stops.length - 2, Math.floor(at));
  return stops[n].map((from, c) => Math.round(from + (stops[n + 1][c] - from) * (at - n)));
}

// 256 × [red, green, blue] for the weights 0 to 1
export function palette() {
  colorsRead.palette ??= shades((x) =>
    between(
      [0, 1, 2, 3, 4].map((n) => channels(`--shade-${n}`)),
      x,
    ),
  );
  return colorsRead.palette;
}

// 256 × [red, green, blue] for −1 (--less) over 0 (--middle) to 1 (--more)
export function divergingPalette() {
  colorsRead.diverging ??= shades((at) => between(["--less", "--middle", "--more"].map(channels), at));
  return colorsRead.diverging;
}

// The colors of a palette as 32-bit pixel values, 4 bytes each
export function wordsOf(colors) {
  colorsRead.words ??= new Map();
  if (!colorsRead.words.has(colors)) {
    const bytes = Uint8Array.from(colors.flatMap((rgb) => [...rgb, 255]));
    colorsRead.words.set(colors, new Uint32Array(bytes.buffer));
  }
  return colorsRead.words.get(colors);
}

function shades(color) {
  return Array.from({ length: 256 }, (_, i) => color(i / 255));
}

export function weightColor(weight) {
  return palette()[Math.round(255 * Math.min(1, Math.max(0, weight)))];
}

// [red, green, blue] for x from −1 (--less) over 0 (--middle) to 1 (--more)
export function divergingColor(x) {
  return divergingPalette()[Math.round(127.5 * (1 + Math.min(1, Math.max(-1, x || 0))))];
}

// Black or white, whichever has more contrast with the color (WCAG)
export function ink(rgb) {
  const [red, green, blue] = rgb.map((c) => (c <= 10 ? c / 3294 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

export function rgbText(rgb) {
  return `rgb(${rgb.join(",")})`;
}

// numbers [rows × columns] as an image with one pixel per number; color(number, i) → [red, green, blue], or
// null for a transparent pixel
export function picture(numbers, rows, columns, color) {
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const rgb = color(numbers[i], i);
    if (!rgb) continue;
    image.data[4 * i] = rgb[0];
    image.data[4 * i + 1] = rgb[1];
    image.data[4 * i + 2] = rgb[2];
    image.data[4 * i + 3] = 255;
  }
  return image;
}
