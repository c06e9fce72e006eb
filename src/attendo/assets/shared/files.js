// Downloads: files that the page creates without sending data anywhere.

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

// Rows of cells as CSV (RFC 4180). A text that looks like a formula to a spreadsheet gets an apostrophe
export function csvText(rows) {
  const cell = (value) => {
    if (typeof value === "number") return String(Number(value.toPrecision(7)));
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

export function saveCsv(name, rows) {
  saveText(name, csvText(rows), "text/csv");
}
