// The matrices of a layer's heads, loaded when the section is opened.
import { addWords, pathName, say } from "./words.js";
import { clear, el, formatted, pieceElement } from "./dom.js";
import { barOf, largest, questions, scrolled, tableHead, withNumber } from "./views.js";

// The matrices of a layer's heads, loaded when the section is opened

export function makeMatrices(app) {
  addWords({
    "matrices-title": ["The heads' matrices", "ヘッドの行列"],
    "matrices-note": [
      "A head's direct way from a value to the output is one matrix, W⁽ʰ⁾ = W_v W_o of that head. Its " +
        "rank is at most the head's width.",
      "ヘッドがバリューを作る行列と、それを出力に写す行列は、一つの行列 W⁽ʰ⁾ = W_v W_o にまとめられます。そのランクはヘッドの幅以下です。",
    ],
    "matrices-head": ["head", "ヘッド"],
    "matrices-rank": ["rank", "ランク"],
    "matrices-norm": ["‖W⁽ʰ⁾‖", "‖W⁽ʰ⁾‖"],
    "matrices-share": ["its output here", "ここでの出力"],
    "matrices-query": ["query {n}", "クエリ {n}"],
  });
  const view = { found: null, matrix: el("div"), said: el("p", { class: "view-said" }) };
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
  const rows = answer.rank.map((rank, h) =>
    el(
      "tr",
      { class: h === app.state.get("head") ? "here" : "" },
      el("th", { scope: "row" }, say("head", { n: h + 1 })),
      el("td", {}, String(rank)),
      ...[answer.norms[h], shares[h]].map((x, i) =>
        el("td", {}, withNumber(barOf(x, most[i]), formatted(x))),
      ),
    ),
  );
  clear(view.matrix).append(
    el(
      "p",
      { class: "note" },
      `${pathName(path)} · ${say("matrices-query", { n: query })} `,
      side[query] ? pieceElement(side[query]) : "",
    ),
    scrolled(
      say("matrices-title"),
      el("table", { class: "numbers" }, tableHead(columns), el("tbody", {}, rows)),
    ),
  );
}
