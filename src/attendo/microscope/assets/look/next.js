// The distribution of the next token at one position, and forced tokens.
import { addWords, say } from "./words.js";
import { button, clear, el, field, formatted, ordinal, pieceElement, pieceText, select } from "./dom.js";
import { weightColor } from "./colors.js";
import { barOf, drawWhenShown, questions, scrolled, tableHead, withNumber } from "./views.js";
import { inkOf } from "./cells.js";
import { onlyLive } from "./locks.js";

const NEXT_TOKENS = 10;
const STRIP_TOKENS = 64; // number of positions around the chosen position

export function makeNext(app, root) {
  addNextWords();
  const view = {
    tokens: [],
    stripNote: el("p", { class: "note" }),
    forced: el("div", { class: "forced" }),
    strip: el("div", { class: "surprise" }),
    place: el("div"),
  };
  view.said = el("p", { class: "view-said" });
  view.choice = el("div", { class: "view-controls" });
  view.all = el("div", {}, view.forced, view.stripNote, view.strip, view.choice, view.place);
  view.ask = questions(app, view.said, view.all);
  root.append(view.said, view.all);
  const load = drawWhenShown(root, () => loadNext(app, view));
  let text = app.look?.ask.text;
  app.on("look", () => {
    const other = text !== undefined && text !== app.look.ask.text;
    if (other) app.state.set({ position: null });
    text = app.look.ask.text;
    load();
  });
  app.on("theme", load);
  app.state.on(["position"], load);
  app.state.on(["query"], () => followQuery(app));
  load();
}

// The tokens after which the model predicts a token
function nextTokens(look) {
  if (!look) return [];
  return look.family === "masked-language-model" ? look.source : look.target;
}

// The first position to show: the least probable token of the answer
function leastSure(look, tokens) {
  const p = (at) => tokens[at].out?.log_prob ?? 0;
  let best = look.family === "language-model" ? Math.max(0, look.prompt_tokens - 1) : 0;
  for (let at = best + 1; at < tokens.length; at++) if (p(at) < p(best)) best = at;
  return best;
}

// A query of the target selects a position
function followQuery(app) {
  const layer = app.look && app.state.get("layer") ? app.layer(app.state.get("layer")) : null;
  const query = app.state.get("query");
  if (layer && query !== null && app.look[layer.queries] === nextTokens(app.look))
    app.state.set({ position: query });
}

async function loadNext(app, view) {
  const tokens = (view.tokens = nextTokens(app.look));
  if (!tokens.length) view.all.hidden = true;
  if (!tokens.length) return void (view.said.textContent = say("view-nothing-yet"));
  const wish = app.state.get("position");
  const position = Math.min(
    wish >= 0 && Number.isInteger(wish) ? wish : leastSure(app.look, tokens),
    tokens.length - 1,
  );
  const answer = await view.ask("next", { key: app.look.key, position, n: NEXT_TOKENS });
  if (!answer) return;
  const hadFocus = view.all.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  view.stripNote.textContent = say(nextWords(app, "next-strip"));
  drawForced(app, view);
  drawStrip(app, view, position);
  drawChoice(app, view, position);
  drawNext(app, view, position, answer);
  if (hadFocus) view.all.querySelector(`[data-name="${hadFocus}"]:not(:disabled)`)?.focus();
  app.drew("next");
}

// The choice of the position

// The key of texts that differ between models that predict the token itself and models that predict the next token
function nextWords(app, key) {
  return app.look.family === "masked-language-model" ? `${key}-masked` : key;
}

function drawStrip(app, view, position) {
  const { tokens } = view;
  const from = Math.max(0, Math.min(tokens.length - STRIP_TOKENS, position - STRIP_TOKENS / 2));
  const chip = (token, i) => {
    const at = from + i;
    const p = token.out ? Math.exp(token.out.log_prob) : null;
    const words = {
      at: ordinal(at),
      piece: pieceText(token),
      next: token.out ? pieceText(token.out) : "–",
      p: formatted(p),
    };
    return button("", () => app.state.set({ position: at }), {
      class: at === position ? "surprise-token here" : "surprise-token",
      "aria-label": say(nextWords(app, "next-token-label"), words),
      "aria-pressed": String(at === position),
      tabIndex: at === position ? 0 : -1,
      dataset: { name: at === position ? "strip" : "" },
      title: say(nextWords(app, "next-token-label"), words),
      style: p === null ? {} : inkOf(weightColor(p)),
    });
  };
  clear(view.strip).append(
    ...tokens.slice(from, from + STRIP_TOKENS).map((token, i) => {
      const made = chip(token, i);
      made.append(pieceElement(token, { title: null }));
      return made;
    }),
  );
  view.strip.onkeydown = (event) => {
    const next = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: tokens.length - 1 }[
      event.key
    ];
    if (next === undefined) return;
    event.preventDefault();
    app.state.set({ position: Math.max(0, Math.min(tokens.length - 1, next)) });
  };
}

function drawChoice(app, view, position) {
  const go = (at) => app.state.set({ position: at });
  const last = view.tokens.length - 1;
  const options = view.tokens.map((token, at) => [String(at), `${ordinal(at)} · ${pieceText(token)}`]);
  clear(view.choice).append(
    button(say("next-before"), () => go(position - 1), {
      class: "small",
      disabled: position === 0,
      dataset: { name: "before" },
    }),
    field(
      say(nextWords(app, "next-behind")),
      select(options, String(position), (at) => go(Number(at)), { dataset: { name: "choice" } }),
    ),
    button(say("next-after"), () => go(position + 1), {
      class: "small",
      disabled: position === last,
      dataset: { name: "after" },
    }),
  );
}

// The display of the distribution

// The ids with which the answer must begin so `id` follows the position; null inside a prompt
function prefixFor(look, position, id) {
  const first = look.prompt_tokens ?? 1;
  return position < first - 1
    ? null
    : [...look.target.slice(first, position + 1).map((token) => token.id), id];
}

function forceToken(app, ids, position) {
  const search = app.state.get("search");
  app.state.set({ prefix: ids, position, search: search === "forced" ? "" : search });
  app.relook();
}

function drawNext(app, view, position, { tokens, entropy: nats, actual }) {
  const { look } = app;
  const masked = look.family === "masked-language-model";
  const inPrompt = !masked && prefixFor(look, position, 0) === null;
  const most = tokens[0]?.p ?? 1;
  const columns = ["rank", "token", "p", "sum", ...(masked ? [] : ["do"])];
  const row = ({ id, p, cumulative, ...token }, i) => {
    const chosen = actual?.id === id;
    const made = button(
      say("next-force"),
      () => forceToken(app, prefixFor(look, position, id), position + 1),
      {
        class: "small",
        disabled: inPrompt,
        "aria-label": say("next-force-label", { piece: pieceText(token) }),
      },
    );
    const force = onlyLive(app, made);
    return el(
      "tr",
      { class: chosen ? "here" : "" },
      el("td", {}, String(i + 1)),
      el(
        "th",
        { scope: "row" },
        pieceElement({ id, ...token }),
        chosen ? el("span", { class: "tag" }, say("next-chosen")) : "",
      ),
      el("td", {}, withNumber(barOf(p, most), formatted(p))),
      el("td", {}, formatted(cumulative)),
      masked ? "" : el("td", {}, force),
    );
  };
  const facts = [
    ["next-entropy", `${formatted(nats)} ${say("next-nats")}`],
    ...(actual
      ? [
          [
            nextWords(app, "next-actual"),
            `${pieceText(actual)}  p ${formatted(actual.p)}  ${say("next-rank", { n: actual.rank })}`,
          ],
        ]
      : []),
  ];
  clear(view.place).append(
    el(
      "dl",
      { class: "facts" },
      facts.map(([key, text]) => [el("dt", {}, say(key)), el("dd", {}, text)]).flat(),
    ),
    scrolled(
      say("next-behind"),
      el(
        "table",
        { class: "numbers" },
        tableHead(columns.map((key) => [say(`next-column-${key}`), `of-${key}`])),
        el("tbody", {}, tokens.map(row)),
      ),
    ),
    el("p", { class: "note" }, inPrompt ? say("next-in-prompt") : ""),
  );
}

// The forced tokens, which can be removed
function drawForced(app, view) {
  const { look } = app;
  const prefix = app.state.get("prefix");
  clear(view.forced).hidden = !prefix.length;
  if (!prefix.length) return;
  const first = look.prompt_tokens ?? 1;
  const tokens = prefix.map(
    (id, i) => look.target[first + i] ?? look.target[first + i - 1]?.out ?? { id, piece: `#${id}` },
  );
  view.forced.append(
    el("strong", {}, say("next-forced")),
    el(
      "span",
      { class: "pieces" },
      tokens.slice(-24).map((token) => pieceElement(token)),
    ),
    ...[
      button(say("next-back-one"), () => forceToken(app, prefix.slice(0, -1), first + prefix.length - 2)),
      button(say("next-back-all"), () => forceToken(app, [], first - 1)),
    ].map((made) => onlyLive(app, made)),
  );
  for (const made of view.forced.querySelectorAll("button")) made.classList.add("small");
}

function addNextWords() {
  addWords({
    "next-strip": [
      "Each token, shaded by the probability of the one that follows it. Choose one to see what else " +
        "could follow.",
      "各トークンの濃さは、その次に来たトークンの確率です。選ぶと、ほかの候補がわかります。",
    ],
    "next-token-label": ["{at}: {piece}, followed by {next}, p {p}", "{at}：{piece} の次は {next}、p {p}"],
    "next-strip-masked": [
      "Each token, shaded by the probability that the model gives it at its own place. Choose one to see " +
        "the others.",
      "各トークンの濃さは、モデルがその位置でそのトークンに与える確率です。選ぶと、ほかの候補がわかります。",
    ],
    "next-token-label-masked": ["{at}: {piece}, p {p}", "{at}: {piece}、p {p}"],
    "next-behind-masked": ["At", "この位置"],
    "next-actual-masked": ["what stands or is filled in there", "そこにある（補われた）トークン"],
    "next-before": ["← back", "← 前へ"],
    "next-after": ["on →", "次へ →"],
    "next-behind": ["Behind", "このトークンの次"],
    "next-chosen": ["chosen", "選ばれた"],
    "next-force": ["Force and go on", "これにして続ける"],
    "next-force-label": ["Force {piece} here and go on from it", "ここを {piece} にして、その続きを作る"],
    "next-forced": ["Forced so far", "指定した始まり"],
    "next-back-one": ["Take back the last", "最後の一つを戻す"],
    "next-back-all": ["Take back all", "すべて戻す"],
    "next-in-prompt": [
      "This is inside the prompt: change the text above instead.",
      "ここはプロンプトの中です。上のテキストを変えてください。",
    ],
    "next-entropy": ["entropy", "エントロピー"],
    "next-nats": ["nats", "ナット"],
    "next-actual": ["what follows", "実際の次"],
    "next-rank": ["rank {n}", "{n} 位"],
    "next-column-rank": ["#", "順位"],
    "next-column-token": ["token", "トークン"],
    "next-column-p": ["p", "p"],
    "next-column-sum": ["p so far", "累積 p"],
    "next-column-do": ["force", "指定"],
  });
}
