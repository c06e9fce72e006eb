// @ts-check
// The microscope: one state, one result at a time, and the views that draw it.
import { button, clear, el } from "../shared/dom.js";
import { copyText } from "../shared/files.js";
import { applyTheme, makeHeader, makeTabs } from "../shared/header.js";
import { makeSheet } from "../shared/sheet.js";
import { say, setLanguage } from "../shared/words.js";
import { guarded, makeApp } from "./app.js";
import { makeArithmetic } from "./arithmetic.js";
import { makeAttention } from "./attention.js";
import { makeChanges } from "./changes.js";
import { forgetColors } from "./colors.js";
import { makeFilm } from "./film.js";
import { makeGuide, keysSheet } from "./guide.js";
import { makeInspector } from "./inspector.js";
import { makeLabel } from "./label.js";
import { makeLayers } from "./layers.js";
import { makeModel } from "./model.js";
import { beginWith, opened } from "./opening.js";
import { makeSearch } from "./search.js";
import { makeText } from "./text.js";

const ANSWER_PATIENCE = 1000; // ms without an answer before the page shows a waiting message
const VIEWS = {
  label: makeLabel,
  attention: makeAttention,
  arithmetic: makeArithmetic,
  layers: makeLayers,
  search: makeSearch,
  off: makeChanges,
  training: makeFilm,
};

// The views for the task of the model, in the order of the tabs
function viewsOf({ isWriter, model }) {
  const fits = { label: model.family === "classification", search: isWriter };
  return Object.keys(VIEWS).filter((name) => fits[name] ?? true);
}

function makeTop(app, tabs) {
  const { state, model, source } = app;
  const sheet = makeSheet();
  const about = button(aboutText(app), () => sheet.open(about, say("facts"), factsOf(model)), {
    class: "about",
    id: "about",
    "aria-haspopup": "dialog",
  });
  const share = button(say("share"), () => shared(app), { id: "share", class: "quiet", hidden: source.framed });
  const save = button(
    `${say("save")} ▾`,
    () => app.look && sheet.open(save, say("save"), el("div", { class: "saves" }, ...saves(app))),
    { id: "save", class: "quiet", "aria-haspopup": "dialog" },
  );
  const keys = button("?", () => keysSheet(app, sheet, keys), {
    id: "keys",
    class: "quiet",
    title: say("keys"),
    "aria-label": say("keys"),
  });
  const home = source.back ?? null;
  const back = home !== null && el("a", { id: "back", class: "button quiet", href: home }, `← ${say("back")}`);
  // the page of the server opens with the model and the text of this page
  const here = () => new URLSearchParams({ model: location.pathname.split("/").at(-2), text: state.get("text") });
  if (back) back.onclick = () => (back.href = `${home}#${here()}`);
  return makeHeader(state, { parts: [back || "", about, tabs], actions: [share, save, keys], home });
}

function aboutText({ model }) {
  const fact = (name) => model.facts.find(([key]) => key === name)?.[1] ?? "";
  const layers = fact("layers (encoder + decoder)").replace(/^0 \+ | \+ 0$/, "");
  const millions = Number(fact("parameters").replaceAll(",", "")) / 1e6;
  const size = millions < 1 ? millions.toPrecision(2) : millions.toFixed(millions < 10 ? 1 : 0);
  return say("about-model", {
    name: model.name,
    task: say(`task-${model.family}`),
    layers,
    heads: fact("heads"),
    size,
  });
}

function factsOf(model) {
  return el(
    "dl",
    {},
    ...model.facts.flatMap(([name, text]) => [
      el("dt", {}, say(`fact-${name.split(" ")[0]}`)),
      el("dd", {}, String(text)),
    ]),
  );
}

function saves(app) {
  const link = button(say("share-link"), () => shared(app), { hidden: app.source.framed });
  return [link, ...app.saving()];
}

async function shared(app) {
  app.tell(say((await copyText(location.href)) ? "shared" : "share-by-hand"));
}

// The views as panels of the middle column; only the chosen view is visible
function makePanels(app) {
  const { state } = app;
  const names = viewsOf(app);
  const tabs = makeTabs(
    names.map((name) => [name, say(`view-${name}`)]),
    () => state.get("view") || names[0],
    (view) => state.set({ view }),
    true,
  );
  const panels = names.map((name) => {
    const root = el("section", {
      id: `view-${name}`,
      class: "view",
      role: "tabpanel",
      "aria-labelledby": `tab-${name}`,
      tabIndex: 0,
    });
    guarded(app, () => VIEWS[name](app, root));
    return root;
  });
  function choose() {
    const chosen = state.get("view") || names[0]; // a classifier opens "why", all other models open "how"
    if (!names.includes(chosen)) return state.amend({ view: "" });
    tabs.update();
    names.forEach((name, n) => (panels[n].hidden = name !== chosen));
  }
  state.on("view", choose);
  choose();
  return [tabs.list, panels];
}

// Build the whole page in the language of the state; called again when the language changes
function build(source, state, model, look) {
  setLanguage(state.get("language"));
  state.silence();
  const looking = window.attendo.app?.retire();
  const draft = /** @type {HTMLTextAreaElement | null} */ (document.getElementById("text"))?.value;
  const focused = document.activeElement?.id;
  const app = makeApp(source, state, model);
  window.attendo.app = app;
  const root = clear(document.getElementById("page"));
  for (const sheet of document.querySelectorAll("body > :is(.sheet, .bubble)")) sheet.remove();
  app.root = root;
  root.setAttribute("aria-busy", "false");
  root.className = `${source.live ? "live" : "saved"} ${model.family}`;
  const status = el("p", { id: "status", role: "status" });
  app.showStatus(status);
  document.title = say("title", { name: model.name });
  const [text, column, middle, inspector] = [
    el("div", { class: "text-row" }),
    el("section", { id: "heads", class: "card", "aria-labelledby": "model-name" }),
    el("div", { class: "card middle" }),
    el("section", { id: "inspector", class: "card", "aria-label": say("inspector") }),
  ];
  const { box, resume } = makeText(app, text);
  makeModel(app, column);
  const [tabs, panels] = makePanels(app);
  middle.append(...panels);
  makeInspector(app, inspector);
  text.querySelector(".below-text").append(status);
  const note = source.live ? "" : el("p", { id: "saved-note", class: "note" }, say("not-live"));
  root.append(
    makeTop(app, tabs),
    el("main", {}, note, text, el("div", { class: "columns" }, column, middle, inspector)),
  );
  makeGuide(app);
  state.on(["layer", "head"], app.openOther);
  state.on("theme", () => recolor(state));
  state.on("language", () => build(source, state, model, app.look));
  app.look = look;
  if (look) app.show();
  if (looking) app.relook();
  if (draft !== undefined && draft !== state.get("text")) resume(draft);
  if (focused === "language") document.getElementById(focused)?.focus();
  return { app, box };
}

function recolor(state) {
  applyTheme(state);
  forgetColors();
  window.attendo.app.emit("theme");
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
  const { source, state } = opened;
  const page = document.getElementById("page");
  let { model } = source;
  if (!model) {
    try {
      model = await waitedFor(source.ask("model", {}), page, source.framed);
    } catch (error) {
      return void clear(page).append(el("p", { class: "alert", role: "alert" }, error.message));
    }
    beginWith(opened, model);
  }
  const { app, box } = build(source, state, model, null);
  listen(state);
  await app.relook();
  await window.attendo.app.late.settled();
  await new Promise(requestAnimationFrame);
  if (!app.look && source.live && matchMedia("(pointer: fine)").matches) box.focus();
  window.attendo.ready = true;
}

// Handlers for the whole window; window.attendo.app is the current page
function listen(state) {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") window.attendo.app.letGo();
    const typing = document.activeElement?.matches("input, textarea, select");
    if (event.key === "?" && !typing) document.getElementById("keys")?.click();
  });
  // a link that was pasted into this page, or an earlier address
  window.addEventListener("hashchange", () => window.attendo.app.relookIfOther());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => recolor(state));
}

start();
