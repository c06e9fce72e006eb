// @ts-check
// The view "Layers": what each layer would predict, how attention mixes the tokens through all layers, and positions.
import { button, el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeAttribution } from "./attribution.js";
import { makeInfluence } from "./influence.js";
import { makeLens } from "./lens.js";
import { makePositions } from "./positions.js";
import { makeProbes } from "./probes.js";

const PARTS = {
  predictions: makeLens,
  influence: makeInfluence,
  attribution: makeAttribution,
  probes: makeProbes,
  positions: makePositions,
};

export function makeLayers(app, root) {
  const { state } = app;
  const has = { attribution: app.isWriter, probes: Boolean(app.model.probes) };
  const names = Object.keys(PARTS).filter((name) => has[name] ?? true);
  const buttons = names.map((name) =>
    button(say(`part-${name}`), () => state.set({ part: name }), { id: `part-${name}` }),
  );
  const boxes = names.map((name) => el("div", { id: `layers-${name}`, hidden: true }));
  root.append(
    el(
      "div",
      { class: "bar" },
      el("h2", {}, say("view-layers")),
      el("span", { class: "segments end", role: "group", "aria-label": say("view-layers") }, ...buttons),
    ),
    ...boxes,
  );
  names.forEach((name, n) => PARTS[name](app, boxes[n]));
  const choose = () => {
    if (!names.includes(state.get("part"))) return state.amend({ part: names[0] });
    names.forEach((name, n) => {
      const chosen = name === state.get("part");
      buttons[n].setAttribute("aria-pressed", String(chosen));
      boxes[n].hidden = !chosen;
    });
  };
  state.on("part", choose);
  choose();
}
