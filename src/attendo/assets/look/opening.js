// @ts-check
// The beginning of the page: its state, and its request `look`. A live page loads this module before the views, so the
// model works while their modules are loaded.
import { applyTheme, browserLanguage } from "../shared/header.js";
import { say, setAgain, setLanguage } from "../shared/words.js";
import { misfitsOf, stateOf } from "./misfits.js";
import { makeSource } from "./source.js";
import { makeLookState } from "./state.js";

export const opened = open();

function open() {
  window.attendo = { app: null, ready: false, drawn: {} };
  const [source, state] = [makeSource((text) => window.attendo.app?.tell(text)), makeLookState()];
  if (!state.get("language")) state.settle({ language: browserLanguage() });
  setLanguage(state.get("language"));
  applyTheme(state);
  if (source.model) beginWith({ source, state }, source.model);
  return { source, state };
}

// Complete the state for this model, and send the first request
export function beginWith({ source, state }, model) {
  setAgain(model);
  const { first } = source;
  if (first && !state.get("text")) state.settle({ ...stateOf(first), ...(state.says("layer") ? {} : source.opens) });
  // never an empty page: without a text, an example; only a language model can also begin with nothing
  const isEmpty = !state.get("text") && !first && (model.family !== "language-model" || !location.hash);
  const example = model.family === "language-model" ? "" : say(`example-${model.family}`);
  if (isEmpty) state.settle({ text: model.examples?.[0] ?? example });
  state.correctBy((values) => misfitsOf(model, source, values));
  const asked = { source, state, model };
  if (saysSomething(asked)) source.ahead("look", askOf(asked));
}

// The search method: the reader's choice, or the default of the command
export function searchOf({ state, model }) {
  return state.get("search") || model.search;
}

// Whether there is a text; a language model can also start from an empty text
export function saysSomething({ state, model }) {
  return state.get("text").trim() !== "" || model.family === "language-model";
}

// The request `look` for the values of the state
export function askOf(app) {
  const { state, source, model } = app;
  const [search, first] = [searchOf(app), source.first];
  const free = app.isWriter ?? ["translation", "language-model"].includes(model.family);
  const other = (beam) => (beam === model.beam ? 0 : beam); // 0 stands for the model's default beam size
  const beam = other(state.get("beam"));
  const asFirst = first && other(first.beam ?? 0) === beam;
  return {
    text: state.get("text"),
    search: free ? search : "greedy",
    beam: asFirst ? first.beam : (search === "beam" && free && beam) || null,
    target: search === "forced" && free ? state.get("target") : null,
    prefix_ids: state.get("prefix"),
    max_tokens: state.get("max_tokens"),
    edits: state.get("edits"),
  };
}
