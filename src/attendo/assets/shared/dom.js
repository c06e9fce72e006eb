// @ts-check
// Elements, numbers and tokens as text. Texts become text nodes, never HTML.
const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const shownPieces = new Map(); // piece -> displayed text
const LONGEST_PIECE = 40; // in graphemes
const SVG = "http://www.w3.org/2000/svg";

// el("p", { class: "note", onclick: f, "aria-label": "…", style: { width: "3px" } }, "text", node)
export function el(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

export function svgEl(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class") made.className = value;
    else if (name === "style" || name === "dataset") Object.assign(made[name], value);
    else if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function clear(node) {
  node.replaceChildren();
  return node;
}

export function button(text, onclick, properties = {}) {
  return el("button", { type: "button", onclick, ...properties }, text);
}

// A <label> around a control
export function field(text, control, properties = {}) {
  return el("label", { class: "field", ...properties }, el("span", {}, text), control);
}

// select([["value", "text"]…], chosen, onchange(value))
export function select(options, chosen, onchange, properties = {}) {
  const made = el("select", { onchange: () => onchange(made.value), ...properties });
  made.append(...options.map(([value, text]) => el("option", { value }, text)));
  made.value = chosen;
  return made;
}

// A check box; onchange(checked)
export function checkbox(id, checked, onchange, properties = {}) {
  const made = el("input", { type: "checkbox", id, checked, onchange: () => onchange(made.checked), ...properties });
  return made;
}

// A canvas for the keyboard; role: a description for screen readers
export function keyCanvas(name, role) {
  const roles = { role: "application", "aria-roledescription": role };
  return el("canvas", { tabIndex: 0, ...roles, dataset: { name } });
}

// removes the sign of -0.0000
export function formatted(number, digits = 4) {
  if (number === Infinity || number === -Infinity) return number > 0 ? "∞" : "−∞";
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  const text = number.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

// A number with its sign: +0.1200, −0.3000
export function signed(number, digits = 4) {
  const text = formatted(number, digits);
  return number > 0 && Number(text) !== 0 ? `+${text}` : text;
}

// A probability or weight for people: two significant digits, and never 0% or 100% for what is neither
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  if (share > 0 && share < 0.001) return "<0.1%";
  if (share < 1 && share > 0.9995) return ">99.9%";
  const digits = share > 0.995 && share < 1 ? 1 : share === 0 || share >= 0.0995 ? 0 : share >= 0.00995 ? 1 : 2;
  return `${(100 * share).toFixed(digits)}%`;
}

// Make spaces, line breaks, control and bidirectional characters visible
function visible(text) {
  return text
    .replace(/ /g, "␠")
    .replace(/\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(
      /[\p{Cc}\p{Zs}\p{Zl}\p{Zp}\p{Cs}\u061C\u200B\u200E\u200F\u202A-\u202E\u2060-\u2069\uFEFF]/gu,
      (character) => `\\u{${character.codePointAt(0).toString(16).toUpperCase()}}`,
    );
}

// The byte of a token such as <0A> or <0xF0>, or null
export function byteOf({ piece = "" }) {
  const found = /^<(?:0x)?([0-9A-F]{2})>$/.exec(piece);
  return found ? parseInt(found[1], 16) : null;
}

// The displayed text of a token: special characters visible, truncated to 40 graphemes. A space before a word (▁)
// is left out, because every word has one.
export function pieceText(token) {
  const piece = token.piece ?? token.text ?? "";
  let shown = shownPieces.get(piece);
  if (shown === undefined) {
    const byte = byteOf(token);
    const text = byte === null ? piece.replace(/^▁(?=.)/u, "") : byte < 128 ? String.fromCharCode(byte) : piece;
    shown = cutText(visible(text), LONGEST_PIECE) || "∅";
    shownPieces.set(piece, shown);
  }
  return shown;
}

export function cutText(text, longest) {
  if (text.length <= longest) return text;
  const start = [...graphemes.segment(text.slice(0, 20 * longest))].map((part) => part.segment);
  return start.length > longest ? `${start.slice(0, longest - 1).join("")}…` : start.join("");
}

// The text, truncated to a width in pixels
export function fitText(pen, text, room) {
  const whole = pen.measureText(text).width;
  if (whole <= room) return text;
  for (let longest = Math.ceil((text.length * room) / whole) + 2; longest > 1; longest--) {
    const cut = cutText(text, longest);
    if (pen.measureText(cut).width <= room) return cut;
  }
  return "…";
}

// Token numbers begin at 1 for readers, and at 0 in the state, the address and the answers of the program
export function ordinal(i) {
  return String(i + 1);
}

// The element of a token: right-to-left tokens are right-aligned, and the tooltip has the whole token
export function pieceElement(token, properties = {}) {
  const id = token.id === undefined ? "" : `  #${token.id}`;
  const title = visible(token.piece ?? "").slice(0, 2000) + id;
  return el("bdi", { dir: "auto", title, ...properties, class: `piece ${properties.class ?? ""}` }, pieceText(token));
}

// A canvas of CSS size width × height, sharp on the screen, with at most 4,096 pixels per side. Returns its context.
export function sized(canvas, width, height) {
  const dots = Math.min(window.devicePixelRatio || 1, 4096 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * dots));
  canvas.height = Math.max(1, Math.round(height * dots));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(canvas.width / Math.max(1, width), 0, 0, canvas.height / Math.max(1, height), 0, 0);
  return pen;
}

// fn runs once in the next frame, even if it is requested several times
export function oncePerFrame(fn) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      fn();
    });
  };
}

// fn runs when it has not been requested for `wait` milliseconds
export function afterPause(fn, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => fn(...values), wait);
  };
}

// Whether a key belongs to a shortcut of the browser or the system
export function hasModifier({ ctrlKey, altKey, metaKey }) {
  return ctrlKey || altKey || metaKey;
}

// The row and the column to which a key moves in a grid of [rows, columns], or null
export function movedTo(event, [row, column], [rows, columns]) {
  const to = {
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    PageUp: [row - 10, column],
    PageDown: [row + 10, column],
    Home: [row, 0],
    End: [row, columns - 1],
  }[event.key];
  if (!to || hasModifier(event)) return null;
  event.preventDefault();
  return [rows, columns].map((n, i) => Math.min(n - 1, Math.max(0, to[i])));
}

// stops: the elements of a row, which the arrow keys, Home and End focus in order; one of them is in the Tab order
export function roving(row, stops) {
  stops.forEach((stop, i) => (stop.tabIndex = i === 0 ? 0 : -1));
  row.addEventListener("focusin", ({ target }) => {
    if (stops.includes(target)) for (const stop of stops) stop.tabIndex = stop === target ? 0 : -1;
  });
  row.addEventListener("keydown", (event) => {
    const at = stops.indexOf(event.target);
    if (at < 0 || hasModifier(event)) return;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: stops.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    stops[to]?.focus();
  });
  return row;
}
