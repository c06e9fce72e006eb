// @ts-check
// A table of the parts of the model with the largest numbers.
import { largest, scrolled, signedBarOf, tableHead } from "../shared/bars.js";
import { button, clear, el, formatted, signed } from "../shared/dom.js";
import { partName, pathName, say } from "../shared/words.js";
import { decimals } from "./views.js";

const MOST_ROWS = 12; // rows before "all"

// rows: [{ path, head or null, value }…]; number: the key of the header of the numbers; action(row): a button of a row
export function drawRanking(app, place, rows, number, action = (/** @type {any} */ _) => null) {
  clear(place);
  if (!rows.length) return;
  const top = largest(rows.map(({ value }) => value));
  const sorted = [...rows].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const isWhole = place.classList.contains("whole");
  const body = sorted.slice(0, isWhole ? Infinity : MOST_ROWS).map((row, i) =>
    el(
      "tr",
      {},
      el("td", {}, String(i + 1)),
      el("th", { scope: "row" }, rankedName(app, row)),
      el("td", {}, signedBarOf(row.value, top)),
      el("td", { title: formatted(row.value) }, signed(row.value, decimals(top))),
      el("td", {}, action(row)),
    ),
  );
  const [rank, part, effect, x] = ["ranking-rank", "ranking-part", "ranking-effect", number].map((key) => say(key));
  const head = tableHead([[rank], [part, "of-part"], [effect], [x], [""]]);
  const table = el("table", { class: "ranking" }, head, el("tbody", {}, body));
  place.append(scrolled(say("ranking-title"), table));
  if (rows.length <= MOST_ROWS) return;
  const more = () => {
    place.classList.toggle("whole");
    drawRanking(app, place, rows, number, action);
  };
  place.append(button(say(isWhole ? "ranking-less" : "ranking-more", { n: rows.length }), more, { class: "link" }));
}

// The name of a part, which opens the head in the picture
function rankedName(app, { path, head }) {
  if (!app.layer(path)) return partName(path);
  const name = head === null ? say("off-whole", { name: pathName(path) }) : partName(path, head);
  const open = () => {
    app.choose(path, head ?? 0);
    app.state.set({ view: "attention" });
  };
  return button(name, open, { class: "link", title: say("ranking-choose") });
}
