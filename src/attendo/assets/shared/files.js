// @ts-check
// Downloads, which the page creates without sending data anywhere, and the clipboard.
import { el } from "./dom.js";

export function saveBlob(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function saveText(name, text, kind) {
  saveBlob(name, new Blob([text], { type: `${kind};charset=utf-8` }));
}

// Saves rows of cells as CSV (RFC 4180). A text that looks like a formula to a spreadsheet gets an apostrophe
export function saveCsv(name, rows) {
  const cell = (value) => {
    if (typeof value === "number") return String(Number(value.toPrecision(7)));
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  saveText(name, `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`, "text/csv");
}

// Returns whether the text is in the clipboard
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page over plain HTTP from another machine has no clipboard, but can copy the selection
  }
  const box = el("textarea", { class: "unseen", value: text, "aria-hidden": "true" });
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  focused?.focus();
  return done;
}
