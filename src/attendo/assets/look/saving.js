// @ts-check
// The files of the open head and of the search tree.
import { button, el } from "../shared/dom.js";
import { saveBlob, saveCsv, saveText } from "../shared/files.js";
import { say } from "../shared/words.js";
import { cssColor } from "./colors.js";

function savePng(name, canvas) {
  canvas.toBlob((blob) => saveBlob(name, blob), "image/png");
}

function saveSvg(name, picture) {
  saveText(name, new XMLSerializer().serializeToString(picture), "image/svg+xml");
}

// A file name from a path and a head: decoder.blocks.0.cross_attention, 1 → decoder-1-cross-head-2
function fileName(path, head, ending) {
  const short = path
    .replace(/blocks\.(\d+)/, (whole, n) => String(Number(n) + 1))
    .replace("_attention", "")
    .replaceAll(".", "-");
  return `${short}-head-${head + 1}.${ending}`;
}

// Buttons that save files: [id, action]; ready(): whether there is something to save
function saveButtons(ready, acts) {
  return acts.map(([id, act]) => button(say(id), () => ready() && act(), { id }));
}

// The buttons that save the open head. heat, ribbons: the results of makeHeat and makeRibbons; shown(): the
// displayed values
export function saveHeat(app, heat, ribbons, shown) {
  const name = (ending) => fileName(app.state.get("layer"), app.state.get("head"), ending);
  const drawn = ribbons.svg();
  return saveButtons(shown, [
    ["save-heat-png", () => savePng(name("png"), onPaper(heat.canvas))],
    ["save-heat-svg", () => saveSvg(name("svg"), heat.svg())],
    ...(drawn ? [["save-ribbons-svg", () => saveSvg(name("ribbons.svg"), drawn)]] : []),
    ["save-csv", () => saveCsv(name("csv"), tableOf(app, shown()))],
  ]);
}

// The buttons that save a search tree as an image and its nodes as a table. tree: { canvas(), svg(), rows() }
export function treeButtons(ready, tree) {
  const made = saveButtons(ready, [
    ["save-tree-png", () => savePng("beam-tree.png", onPaper(tree.canvas()))],
    ["save-tree-svg", () => saveSvg("beam-tree.svg", tree.svg())],
    ["save-tree-csv", () => saveCsv("beam-tree.csv", tree.rows())],
  ]);
  return el("span", { class: "bar" }, ...made);
}

// Every value of the open head, with the tokens as first row and first column
function tableOf(app, shown) {
  const { layer, values } = shown;
  const rows = app.rowTokens(layer).map((token, i) => {
    return [token.piece, ...values.subarray(i * layer.k_len, (i + 1) * layer.k_len)];
  });
  return [["", ...app.tokensOf(layer.keys).map((token) => token.piece)], ...rows];
}

function onPaper(canvas) {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d");
  pen.fillStyle = cssColor("--paper");
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(canvas, 0, 0);
  return copy;
}
