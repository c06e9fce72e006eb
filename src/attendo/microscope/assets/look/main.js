// The page: one state, one result at a time, and the views that draw it.
import { addCommonWords, addWords, say, setAgain, setLanguage } from "./words.js";
import { button, clear, el, field, panel, select } from "./dom.js";
import { forgetColors } from "./colors.js";
import { makeSource } from "./source.js";
import { makeState } from "./state.js";
import { misfitsOf, stateOf } from "./misfits.js";
import { askAhead, guarded, makeApp } from "./app.js";
import { heedLocks } from "./locks.js";
import { makeInput } from "./input.js";
import { makeHeads } from "./heads.js";
import { makeDetail } from "./detail.js";
import { makeSteps } from "./steps.js";
import { makeSlider } from "./slider.js";
import { makeSwitches } from "./switches.js";
import { makeLens } from "./lens.js";
import { makeNext } from "./next.js";
import { makeTree } from "./tree.js";
import { makeWhy } from "./why.js";
import { makePositions } from "./positions.js";
import { makeClasses } from "./classes.js";
import { makeFilm } from "./film.js";

const ANSWER_PATIENCE = 1000; // ms without an answer before the page shows a waiting message

const MAIN_WORDS = {
  title: ["Look inside {name}", "{name} の中を見る"],
  facts: ["about this model", "このモデルについて"],
  theme: ["Theme", "テーマ"],
  auto: ["automatic", "自動"],
  light: ["light", "ライト"],
  dark: ["dark", "ダーク"],
  help: [
    "Click a head, then point at a cell or a token. Click or Enter holds it, arrows move, Escape lets go.",
    "ヘッドをクリックし、マスやトークンを指してください。クリックか Enter で固定、矢印キーで移動、Escape で解除。",
  ],
  "help-off": [
    "Double-click a head, or press x on it, to switch it off.",
    "ヘッドのダブルクリックか x キーでオフにします。",
  ],
  "notebook-busy": [
    "Waiting for Python, which answers once the notebook's cells have run." +
      " After a restart, run this cell again.",
    "Python の応答を待っています。ノートブックのセルの実行が終わると表示されます。再起動した後は、このセルを実行し直してください。",
  ],
  "address-unfit": ["left out of the address: {unfit}", "アドレスの次の項目を無視しました：{unfit}"],
  fits: ["{name} ({what})", "{name}（{what}）"],
  "fits-beta": ["a number from 0, or inf", "0 以上の数、または inf"],
  "fits-count": ["a whole number from 0", "0 以上の整数"],
  "fits-json": ["as the page writes it", "ページが書く形で"],
  "fits-nothing": ["no such name", "この名前の項目はない"],
  "fits-elsewhere": ["not in this look", "この結果にはない"],
  looking: ["Looking…", "計算中…"],
  done: ["{q} tokens in, {k} out, {seconds} s", "入力 {q}、出力 {k} トークン、{seconds} 秒"],
  "done-in": ["{q} tokens in, {seconds} s", "入力 {q} トークン、{seconds} 秒"],
  "no-text": ["Type a text and press “Look”.", "テキストを入力して「見る」を押してください。"],
  "tabs-name": ["Views", "表示の切り替え"],
  "view-steps": ["Steps", "計算の手順"],
  "view-slider": ["Slider", "スライダー"],
  "view-switches": ["Switch off", "オフにする"],
  "view-lens": ["Lens", "レンズ"],
  "view-next": ["Next token", "次のトークン"],
  "view-tree": ["Beam tree", "ビームの木"],
  "view-why": ["Why not this one?", "なぜこの文ではないのか"],
  "view-positions": ["Positions", "位置"],
  "view-classes": ["Classes", "クラス"],
  "view-film": ["Film", "訓練の記録"],
};

function makeTop(app) {
  const { state, model } = app;
  const other = state.get("language") === "ja" ? "en" : "ja";
  const toggle = button(other === "ja" ? "日本語" : "English", () => state.set({ language: other }), {
    id: "language",
    lang: other,
  });
  const themes = ["auto", "light", "dark"].map((name) => [name, say(name)]);
  const theme = select(themes, state.get("theme"), (name) => state.set({ theme: name }), { id: "theme" });
  const facts = el(
    "details",
    { class: "facts" },
    el("summary", {}, say("facts")),
    el("dl", {}, ...model.facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, String(text))])),
  );
  return el(
    "header",
    { class: "top" },
    el("h1", {}, el("span", { class: "mark" }, "attendo"), el("bdi", {}, model.name)),
    facts,
    el("span", { class: "end" }, toggle, field(say("theme"), theme)),
  );
}

// The views that are only for some tasks
const WRITERS = ["translation", "language-model"];
const LABELLERS = ["classification"];
const OF_FAMILIES = {
  next: [...WRITERS, "masked-language-model"],
  tree: WRITERS,
  classes: LABELLERS,
};

// name → the function that fills the view, for the views of this task; the tree has two parts
function viewMakers(family) {
  const makers = {
    classes: makeClasses,
    steps: makeSteps,
    slider: makeSlider,
    switches: makeSwitches,
    lens: makeLens,
    next: makeNext,
    tree: makeTree,
    positions: makePositions,
    film: makeFilm,
  };
  const fits = ([name]) => OF_FAMILIES[name]?.includes(family) ?? true;
  return Object.fromEntries(Object.entries(makers).filter(fits));
}

function makeTabs(app) {
  const { state, model } = app;
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": say("tabs-name") });
  const makers = viewMakers(model.family);
  const names = Object.keys(makers);
  const panels = names.map((name) => {
    const root = panel(`view-${name}`, say(`view-${name}`));
    root.classList.add("view");
    root.setAttribute("role", "tabpanel");
    root.setAttribute("aria-labelledby", `tab-${name}`);
    root.tabIndex = 0;
    guarded(app, () => makers[name](app, root));
    if (name === "tree") {
      const why = panel("view-why", say("view-why"));
      root.append(why);
      guarded(app, () => makeWhy(app, why));
    }
    return root;
  });
  const tabs = names.map((name) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${name}`,
        "aria-controls": `view-${name}`,
        onclick: () => state.set({ view: name }),
      },
      say(`view-${name}`),
    ),
  );
  list.append(...tabs);
  list.addEventListener("keydown", (event) => {
    const at = names.indexOf(state.get("view"));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    state.set({ view: names[(to + names.length) % names.length] });
    tabs[names.indexOf(state.get("view"))].focus();
  });
  function choose() {
    const chosen = state.get("view");
    if (!names.includes(chosen)) return state.amend({ view: names[0] });
    names.forEach((name, n) => {
      tabs[n].setAttribute("aria-selected", String(name === chosen));
      tabs[n].tabIndex = name === chosen ? 0 : -1;
      panels[n].hidden = name !== chosen;
    });
  }
  state.on("view", choose);
  choose();
  return [list, ...panels];
}

// The explanation of a label comes first, because it is the main question of the reader
function inOrder(model, heads, detail, tabs) {
  const views = el("div", { class: "views" }, ...tabs);
  return LABELLERS.includes(model.family) ? [views, heads, detail] : [heads, detail, views];
}

function applyTheme(state) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = state.get("theme");
  document.documentElement.dataset.theme = theme === "dark" || (theme !== "light" && dark) ? "dark" : "light";
  forgetColors();
}

// Build the whole page in the language of the state; called again when the language changes
function build(source, state, model, look) {
  setLanguage(state.get("language"));
  state.silence();
  const looking = window.attendo.app?.retire();
  const app = makeApp(source, state, model);
  const root = clear(document.getElementById("page"));
  app.root = root;
  root.setAttribute("aria-busy", "false");
  root.classList.toggle("live", source.live);
  const status = el("p", { id: "status", role: "status" });
  app.showStatus(status);
  document.title = say("title", { name: model.name });
  const [input, heads] = [
    el("section", { id: "input", class: "panel", "aria-label": say("look") }),
    panel("heads", say("heads")),
  ];
  window.attendo.app = app;
  makeInput(app, input);
  makeHeads(app, heads);
  heads.heading.textContent = say("heads");
  root.append(
    makeTop(app),
    el(
      "main",
      {},
      el("p", { class: "note" }, say("help"), source.live && ` ${say("help-off")}`),
      input,
      status,
      el("div", { class: "work" }, ...inOrder(model, heads, makeDetail(app), makeTabs(app))),
    ),
  );
  state.on(["layer", "head"], app.openOther);
  state.on("theme", () => {
    applyTheme(state);
    app.emit("theme");
  });
  state.on("language", () => build(source, state, model, app.look));
  app.look = look;
  if (look) app.show();
  if (looking) app.relook();
  return app;
}

// The first answer; a busy notebook sends no answer for a while, so the page shows a message
async function waitedFor(answer, page, framed) {
  const told = el("p", { class: "note", role: "status" });
  page.append(told);
  const tell = () => (told.textContent = say(framed ? "notebook-busy" : "loading"));
  const wait = setTimeout(tell, ANSWER_PATIENCE);
  return answer.finally(() => clearTimeout(wait));
}

async function start() {
  window.attendo = { app: null, ready: false, drawn: {} };
  addCommonWords();
  addWords(MAIN_WORDS);
  const [source, state] = [makeSource(), makeState()];
  const wish = document.documentElement.lang === "ja" || navigator.language.startsWith("ja") ? "ja" : "en";
  if (!state.get("language")) state.settle({ language: wish });
  setLanguage(state.get("language"));
  applyTheme(state);
  const { first } = source;
  const page = document.getElementById("page");
  let model;
  try {
    model = source.model ?? (await waitedFor(source.ask("model", {}), page, source.live && first !== null));
  } catch (error) {
    return void clear(page).append(el("p", { class: "alert", role: "alert" }, error.message));
  }
  setAgain(model);
  if (first && !state.get("text"))
    state.settle({ ...stateOf(first), ...(state.says("layer") ? {} : source.opens) });
  state.correctBy((values) => misfitsOf(model, source, values));
  // a classifier opens "why", all other models open "how"
  if (model.family === "classification" && !state.says("view")) state.settle({ view: "classes" });
  askAhead({ state, source, model });
  const app = build(source, state, model, null);
  listen(state);
  await app.relook();
  await window.attendo.app.late.settled();
  await new Promise(requestAnimationFrame);
  window.attendo.ready = true;
}

// Handlers for the whole window; window.attendo.app is the current page
function listen(state) {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") window.attendo.app.letGo();
  });
  heedLocks(() => window.attendo.app);
  // a link that was pasted into this page, or an earlier address
  window.addEventListener("hashchange", () => window.attendo.app.relookIfOther());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme(state);
    window.attendo.app.emit("theme");
  });
}

start();
