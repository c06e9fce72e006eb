// @ts-check
// The view "Switch off": what is switched off, what that changes, and which parts matter for the answer.
import { largest, signedBarOf, tableHead, tableRow } from "../shared/bars.js";
import { button, clear, el, field, percent, pieceElement, roving, select, signed } from "../shared/dom.js";
import { term } from "../shared/sheet.js";
import { partName, pathName, say, sayWith } from "../shared/words.js";
import { effectControls, effectsOf } from "./effects.js";
import { makeMatrices } from "./matrices.js";
import { drawRanking } from "./ranking.js";
import { makeCurves } from "./sharpness.js";
import { decimals, drawWhenShown, onlyLive } from "./views.js";

export function makeChanges(app, root) {
  const view = { controls: effectControls(app) };
  for (const name of ["chosen", "off", "change", "ranking"]) view[name] = el("div", { class: `off-${name}` });
  const kinds = ["heads", "layers", "all"].map((kind) => [kind, say(`ranking-${kind}`)]);
  view.kinds = select(kinds, "heads", () => drawEffects(app, view));
  root.append(
    el("h2", {}, say("changes-title")),
    onlyLive(app, el("p", { class: "note" }, say("changes-intro"))),
    el(
      "div",
      { class: "view-columns" },
      onlyLive(app, el("div", {}, view.chosen, view.off)),
      el("div", {}, view.change),
    ),
    el("h3", {}, say("ranking-title")),
    el("p", { class: "note" }, ...sayWith("ranking-note", { nats: term("nats") })),
    view.controls.node,
    field(say("ranking-show"), view.kinds),
    view.ranking,
    el("h3", {}, say("beta-title")),
    makeCurves(app, "off"),
    makeMatrices(app),
  );
  const ranking = drawWhenShown(root, () => drawEffects(app, view));
  const draw = drawWhenShown(root, () => {
    drawOff(app, view);
    drawChosen(app, view);
    drawChange(app, view);
    drawEffects(app, view);
    app.drew("changes");
  });
  effectsOf(app).on(ranking);
  app.on("look", draw);
  app.state.on(["edits", "layer", "head", "view"], draw);
}

function offButton(app, path, head) {
  const off = app.isOff(path, head);
  const text = say(off ? "off-undo" : "off-do");
  const label = say("labeled", { name: text, text: partName(path, head) });
  return onlyLive(
    app,
    button(text, () => app.setOff(path, head, !off), { "aria-label": label }),
  );
}

// The open head, its layer and the feed-forward net beside it, each with a button
function drawChosen(app, view) {
  const [path, head] = [app.state.get("layer"), app.state.get("head")];
  if (!path) return;
  const net = path.replace(/[^.]+$/, "feed_forward");
  const parts = [[path, head], [path, null], ...((app.model.effects ?? []).includes(net) ? [[net, null]] : [])];
  const name = (part, at) =>
    at === null && part === path ? say("off-whole", { name: pathName(path) }) : partName(part, at);
  clear(view.chosen).append(
    el("h3", {}, say("off-chosen")),
    ...parts.map(([part, at]) =>
      el("div", { class: "off-row" }, el("span", {}, name(part, at)), offButton(app, part, at)),
    ),
  );
}

function drawOff(app, view) {
  const place = clear(view.off);
  const edits = app.state.get("edits").filter((edit) => edit.kind === "off");
  if (edits.length) place.append(el("h3", {}, say("off-title")));
  for (const { path, head = null, how = "zero" } of edits) {
    const name = partName(path, head);
    const ways = ["zero", "mean"].map((way) => [way, say(`off-${way}`)]);
    const replaced = select(ways, how, (way) => app.setOff(path, head, true, way), {
      "aria-label": say("labeled", { name: say("off-how"), text: name }),
    });
    place.append(
      el("div", { class: "off-row" }, el("span", {}, name), onlyLive(app, replaced), offButton(app, path, head)),
    );
  }
}

function drawChange(app, view) {
  const place = clear(view.change);
  const { look } = app;
  if (!look) return;
  place.append(el("h3", {}, say("change-by-token")));
  if (!look.baseline) return void place.append(el("p", { class: "note" }, say("changes-none")));
  place.append(
    el(
      "p",
      {},
      el("strong", {}, signed(look.baseline.total)),
      " ",
      look.baseline.labels ? say("change-label") : term("nats"),
    ),
    look.baseline.labels ? changeOfLabels(look) : changeByToken(app, look),
  );
}

function changeOfLabels({ outcome, baseline }) {
  const before = new Map(baseline.labels.map(({ label, probability }) => [label, probability]));
  const rows = outcome.labels.map(({ label, probability }) => {
    const change = probability - before.get(label);
    const cells = [percent(before.get(label)), percent(probability), [signedBarOf(change, 1), ` ${signed(change)}`]];
    return tableRow(label, cells);
  });
  const columns = ["label", "before", "after", "change"].map((key) => [say(key)]);
  return el("table", {}, tableHead(columns), el("tbody", {}, rows));
}

// Token by token of the answer before: a bar to the left is less probable now; a token opens its alternatives
function changeByToken(app, { baseline: { deltas, tokens }, prompt_tokens: prompt }) {
  const most = Math.max(0.1, largest(deltas));
  const chips = deltas.flatMap((delta, i) =>
    tokens[i] === null
      ? []
      : el(
          "button",
          { type: "button", class: "chip", onclick: () => app.state.set({ position: prompt - 1 + i }) },
          pieceElement(tokens[i]),
          signedBarOf(delta, most),
          el("span", { class: "number" }, signed(delta, decimals(most))),
        ),
  );
  return roving(
    el("div", { class: "delta-chips", role: "group", "aria-label": say("change-by-token") }, ...chips),
    chips,
  );
}

function drawEffects(app, view) {
  view.controls.update();
  const kinds = { heads: ["head"], layers: ["layer", "net"], all: ["head", "layer", "net"] }[view.kinds.value];
  const rows = effectsOf(app).rows.filter((row) => kinds.includes(row.kind));
  view.kinds.parentElement.hidden = !rows.length;
  drawRanking(app, view.ranking, rows, "ranking-number", ({ path, head }) => offButton(app, path, head));
}
