// @ts-check
// The column of the chosen token and the open head: other next words, on or off, sharpness, and ways to look further.
import { barOf, tableHead, tableRow } from "../shared/bars.js";
import {
  afterPause,
  button,
  checkbox,
  clear,
  el,
  formatted,
  ordinal,
  percent,
  pieceElement,
  pieceText,
  select,
} from "../shared/dom.js";
import { term } from "../shared/sheet.js";
import { say, sayWith } from "../shared/words.js";
import { makeSharpness } from "./sharpness.js";
import { drawWhenShown, onlyLive, questions } from "./views.js";

const NEXT_TOKENS = 10;
const SHOWN_TOKENS = 6; // next tokens before "more"

export function makeInspector(app, root) {
  const { state, model } = app;
  if (model.family !== "classification") root.append(nextPart(app));
  root.append(headPart(app));
  const links = {
    ...(model.family === "classification" && { "link-label": { view: "label" } }),
    "link-arithmetic": { view: "arithmetic" },
    ...(app.isWriter && app.source.live && { "link-why": { view: "search" } }),
    ...(app.isWriter && { "link-logit": { view: "layers", part: "attribution" } }),
    "link-off": { view: "off" },
  };
  const link = ([key, some]) => button(`${say(key)} →`, () => go(some, key), { class: "link", id: key });
  root.append(el("ul", { class: "links" }, ...Object.entries(links).map((one) => el("li", {}, link(one)))));
  function go(some, key) {
    state.set(some);
    if (key === "link-why") document.getElementById("why-text")?.focus();
  }
}

// The tokens after which the model predicts a token
export function nextTokens(look) {
  return look.family === "masked-language-model" ? look.source : look.target;
}

// The first position to show: the least probable token of the answer
function leastSure(look, tokens) {
  const p = (at) => tokens[at].out?.log_prob ?? 0;
  let best = look.family === "language-model" ? Math.max(0, look.prompt_tokens - 1) : 0;
  for (let at = best + 1; at < tokens.length; at++) if (p(at) < p(best)) best = at;
  return best;
}

function nextPart(app) {
  const { state } = app;
  const view = {
    more: false,
    shown: "", // the result, position and length that are shown or requested
    said: el("p", { class: "note" }),
    place: el("div"),
    title: el("h2", { id: "next-title" }),
  };
  const root = el("section", { id: "next", "aria-labelledby": "next-title" }, view.title, view.said, view.place);
  view.ask = questions(app, view.said, view.place);
  const load = drawWhenShown(root, () => loadNext(app, view));
  const soon = afterPause(load, 60);
  view.load = load;
  app.on("numbers", soon); // not "look": the strongest query is known only now
  state.on("position", soon);
  // a query of the written text selects its position
  state.on(["query", "layer"], () => {
    const layer = app.openLayer();
    const query = state.get("query");
    if (layer && query !== null && app.look[layer.queries] === nextTokens(app.look)) state.settle({ position: query });
    soon();
  });
  return root;
}

// The position of the inspector: chosen by the reader, or that of the query, or the least sure one
export function positionOf(app, tokens) {
  const layer = app.openLayer();
  const wish = app.state.get("position");
  if (Number.isInteger(wish)) return Math.min(wish, tokens.length - 1);
  const follows = layer && app.look[layer.queries] === tokens && app.look.family !== "masked-language-model";
  return Math.min(follows ? app.chosen().query : leastSure(app.look, tokens), tokens.length - 1);
}

async function loadNext(app, view) {
  const tokens = app.look ? nextTokens(app.look) : [];
  if (!tokens.length || app.isLooking()) return; // a newer result comes, and the server may have dropped this one
  const position = positionOf(app, tokens);
  const shown = `${app.look.key} ${position} ${view.more}`;
  if (shown === view.shown) return;
  view.shown = shown;
  const answer = await view.ask("next", { key: app.look.key, position, n: NEXT_TOKENS });
  if (!answer) return void (view.shown = "");
  const focused = /** @type {HTMLElement} */ (document.activeElement);
  const had = view.place.contains(focused) && focused.dataset.name;
  drawNext(app, view, tokens, position, answer);
  if (had) view.place.querySelector(`[data-name="${had}"]:not(:disabled)`)?.focus();
  app.drew("next");
}

// The ids with which the answer must begin so `id` follows the position; null inside a prompt
function prefixFor(look, position, id) {
  const first = look.prompt_tokens ?? 1;
  return position < first - 1 ? null : [...look.target.slice(first, position + 1).map((token) => token.id), id];
}

function force(app, ids, position) {
  const search = app.state.get("search");
  app.state.set({ prefix: ids, position, search: search === "forced" ? "" : search });
  app.relook();
}

function drawNext(app, view, tokens, position, { tokens: found, entropy: nats, actual }) {
  const { look } = app;
  const masked = look.family === "masked-language-model";
  const here = masked ? tokens[position] : (tokens[position].out ?? null);
  const piece = el("bdi", { class: "hot" }, pieceText(here ?? tokens[position]));
  clear(view.title).append(...sayWith(`next-${masked ? "masked" : here ? "at" : "after"}`, { piece }));
  const inPrompt = !masked && prefixFor(look, position, 0) === null;
  const can = app.source.live && !masked && !inPrompt;
  const rows = found.slice(0, view.more ? NEXT_TOKENS : SHOWN_TOKENS).map(({ id, p, cumulative, ...token }) => {
    const isHere = actual?.id === id;
    const name = pieceElement({ id, ...token });
    const label = say("next-force-label", { piece: pieceText(token) });
    const made =
      can && !isHere
        ? button("", () => force(app, prefixFor(look, position, id), position + 1), {
            class: "link force",
            title: label,
            "aria-label": label,
          })
        : el("span");
    made.append(name);
    const cells = [el("td", { class: "wide" }, barOf(p)), el("td", { title: formatted(p) }, percent(p))];
    if (view.more) cells.push(el("td", { class: "note" }, percent(cumulative)));
    return tableRow(made, cells, { class: isHere ? "best" : "" });
  });
  const columns = ["token", "p", "", ...(view.more ? ["sum"] : [])].map((key) => [key && say(`next-column-${key}`)]);
  const head = tableHead(columns);
  if (!view.more) head.classList.add("unseen");
  const step = (by, key, text) => {
    const to = position + by;
    const off = to < 0 || to >= tokens.length;
    return button(text, () => choose(app, to), {
      class: "quiet",
      "aria-label": say(key),
      disabled: off,
      dataset: { name: key },
    });
  };
  const places = tokens.map((token, at) => [
    String(at),
    `${ordinal(at)} · ${pieceText(masked ? token : (token.out ?? token))}`,
  ]);
  const at = select(places, String(position), (to) => choose(app, Number(to)), {
    "aria-label": say("next-position"),
    dataset: { name: "choice" },
  });
  const more = () => {
    view.more = !view.more;
    view.load();
  };
  clear(view.place).append(
    el("div", { class: "bar stepper" }, step(-1, "next-before", "◀"), at, step(1, "next-later", "▶")),
    el("table", { class: "share-table" }, head, el("tbody", {}, rows)),
    el("p", { class: "note" }, can ? say("next-hint") : inPrompt && app.source.live ? say("next-in-prompt") : ""),
    el(
      "p",
      { class: "note" },
      actual ? `${say("next-rank", { n: actual.rank })} · ` : "",
      term("entropy"),
      ` ${formatted(nats, 2)} `,
      button(say(view.more ? "less" : "more"), more, { class: "link", id: "next-more" }),
    ),
  );
}

// A position; where the open layer has the same queries, also the query of the picture
function choose(app, position) {
  const layer = app.openLayer();
  const same = layer && app.look[layer.queries] === nextTokens(app.look);
  app.state.set({ position, ...(same ? { query: position, key: null, locked: false } : {}) });
}

function headPart(app) {
  const { state } = app;
  const set = (checked) => app.setOff(state.get("layer"), state.get("head"), !checked);
  const on = checkbox("head-on", true, set, { class: "switch", role: "switch" });
  const onField = onlyLive(app, el("label", { class: "field wide-field" }, el("span", {}, say("head-on")), on));
  // a head that is off with its whole layer has no switch of its own
  const update = () => {
    const [path, head] = [state.get("layer"), state.get("head")];
    const off = app.openLayer()?.off.includes(head);
    on.checked = !off && !app.isOff(path, head);
    on.disabled = Boolean(off) && !app.isOff(path, head);
  };
  app.on("look", update);
  state.on(["layer", "head", "edits"], update);
  return el(
    "section",
    { class: "this-head", "aria-labelledby": "this-head-name" },
    el("h2", { class: "small-caps", id: "this-head-name" }, say("this-head")),
    onField,
    makeSharpness(app),
  );
}
