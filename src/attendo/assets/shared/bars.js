// @ts-check
// Bars beside numbers, and tables that contain them.
import { el, percent } from "./dom.js";

// A bar for a number from 0 to most
export function barOf(number, most = 1) {
  const width = `${(100 * Math.min(1, Math.max(0, number / (most || 1)))).toFixed(2)}%`;
  return el("span", { class: "track", "aria-hidden": "true" }, el("span", { style: { width } }));
}

// A bar from the middle: to the left for values below 0, otherwise to the right
export function signedBarOf(number, most) {
  const part = 50 * Math.min(1, Math.abs(number) / (most || 1));
  const style = { width: `${part.toFixed(2)}%`, left: `${(number < 0 ? 50 - part : 50).toFixed(2)}%` };
  const fill = el("span", { class: number < 0 ? "less" : "more", style });
  return el("span", { class: "track signed", "aria-hidden": "true" }, fill);
}

// A table of names with their probabilities: rows [{ name, share, note, best }…], so screen readers announce pairs
export function shareTable(rows, properties = {}) {
  const body = rows.map(({ name, share, note, best }) => {
    const title = typeof name === "string" ? el("bdi", { dir: "auto" }, name) : name;
    const cells = [el("td", { class: "wide" }, barOf(share)), [percent(share), note ? ` ${note}` : ""]];
    return tableRow(title, cells, { class: best ? "best" : "" });
  });
  return el("table", { ...properties, class: `share-table ${properties.class ?? ""}` }, el("tbody", {}, body));
}

// A row of a table: its header, and its other cells, each as a cell or as the content of a cell
export function tableRow(name, cells, properties = {}) {
  const made = cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : el("td", {}, cell)));
  return el("tr", properties, el("th", { scope: "row" }, name), ...made);
}

// The header of a table, from [text, class] of each column
export function tableHead(columns) {
  const cell = ([text, name = ""]) => (text ? el("th", { scope: "col", class: name }, text) : el("td"));
  const cells = columns.map(cell);
  return el("thead", {}, el("tr", {}, cells));
}

// A part that scrolls sideways if there is no room, also by keyboard
export function scrolled(name, ...children) {
  return el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": name }, ...children);
}

export function largest(numbers) {
  return numbers.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
}
