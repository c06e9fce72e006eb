// @ts-check
// The matrices of a layer's heads, loaded when the section is opened.
import { barOf, largest, scrolled, tableHead, tableRow } from "../shared/bars.js";
import { clear, el, formatted, pieceElement } from "../shared/dom.js";
import { pathName, say } from "../shared/words.js";
import { questions } from "./views.js";

export function makeMatrices(app) {
  const view = { found: null, matrix: el("div"), said: el("p", { class: "note" }) };
  view.ask = questions(app, view.said, view.matrix);
  view.matrices = el(
    "details",
    {},
    el("summary", {}, say("matrices-title")),
    el("p", { class: "note" }, say("matrices-note")),
    view.said,
    view.matrix,
  );
  const load = () => loadMatrices(app, view);
  view.matrices.addEventListener("toggle", load);
  app.state.on(["layer", "head", "query"], load);
  app.on("look", load);
  return view.matrices;
}

async function loadMatrices(app, view) {
  const [path, { look }] = [app.state.get("layer"), app];
  if (!view.matrices.open || !look || !path) return;
  const answer =
    view.found?.key === look.key && view.found.path === path
      ? view.found.answer
      : await view.ask("matrices", { key: look.key, path });
  if (!answer) return;
  view.found = { key: look.key, path, answer };
  const length = answer.contribution[0]?.length ?? 0;
  const query = Math.min(app.chosen().query, length - 1);
  const side = look[app.layer(path).queries] ?? [];
  const shares = answer.contribution.map((row) => row[query]);
  const most = [answer.norms, shares].map(largest);
  const columns = ["head", "rank", "norm", "share"].map((key) => [say(`matrices-${key}`)]);
  const rows = answer.rank.map((rank, h) => {
    const bars = [answer.norms[h], shares[h]].map((x, i) => [barOf(x, most[i]), ` ${formatted(x)}`]);
    return tableRow(say("head", { n: h + 1 }), [rank, ...bars], { class: h === app.state.get("head") ? "here" : "" });
  });
  clear(view.matrix).append(
    el(
      "p",
      { class: "note" },
      `${pathName(path)} · ${say("matrices-query", { n: query + 1 })} `,
      side[query] ? pieceElement(side[query]) : "",
    ),
    scrolled(say("matrices-title"), el("table", {}, tableHead(columns), el("tbody", {}, rows))),
  );
}
