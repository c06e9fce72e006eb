// @ts-check
// The page: the header, a view for the task of the chosen model, and the messages of the page.
import { button, clear, el, select } from "../shared/dom.js";
import { say, setLanguage } from "../shared/words.js";
import { makeState } from "../shared/address.js";
import { keepKey, keptKey, makeLatest, makeServer } from "../shared/asking.js";
import { applyTheme, browserLanguage, makeHeader, makeTabs } from "../shared/header.js";
import { modelName } from "./tools.js";
import { makeTranslating } from "./translating.js";
import { makeCompleting } from "./completing.js";
import { makeClassifying } from "./classifying.js";

const TASKS = { translation: makeTranslating, classification: makeClassifying, "language-model": makeCompleting };
const SETTINGS = {
  model: "", // default: the first
  text: "",
  beam: "", // default: the model's own
  segment: "", // default: the server's own
  ...{ max_tokens: "60", temperature: "0.8", top_p: "0.95", seed: "", stop: "" }, // see options.js
  live: "yes", // whether a completion starts automatically
  language: "", // default: the browser's
  theme: "auto",
};
const VALUES = { beam: /^[1248]$/, segment: /^(sentence|paragraph)$/, language: /^(en|ja)$/, theme: /^(light|dark)$/ };
const LONGEST_IN_ADDRESS = 500; // characters; the address does not contain longer texts

function begin() {
  const fits = (name, value) => VALUES[name]?.test(value) ?? true;
  const state = makeState({ defaults: SETTINGS, fits, longest: LONGEST_IN_ADDRESS });
  const status = el("p", { id: "status", role: "status" });
  const spoken = el("p", { class: "unseen", "aria-live": "polite" });
  const main = el("main", { class: "serve" });
  const menu = el("span", { class: "models" });
  const app = { state, facts: JSON.parse(document.getElementById("facts").textContent), models: [] };
  const chosen = () => app.models.find(({ id }) => id === state.get("model")) ?? app.models[0];
  const ofTask = (task) => app.models.filter(({ family }) => family === task);
  let tabs = null;
  let view = null;
  let own = false; // whether the open view makes the change, so it need not be built again
  let late = 0;
  app.tell = (text, isWait = false) => {
    clearTimeout(late);
    if (status.textContent !== text) status.textContent = text;
    status.className = isWait ? "waits" : "";
  };
  app.tellLate = (text) => {
    app.tell("");
    late = setTimeout(() => app.tell(text), 600); // only slow requests have a message
  };
  app.announce = (textContent, lang = document.documentElement.lang) => Object.assign(spoken, { lang, textContent });
  app.failed = (error) => {
    app.tell(error.message);
    status.className = "failed";
  };
  app.keep = (some) => {
    own = true;
    state.set(some);
    own = false;
  };
  app.server = makeServer(app.tell);
  const asking = makeLatest((error) => {
    app.failed(error);
    if (error.message === say("key-missing")) status.append(" ", button(say("key-give"), start, { class: "link" }));
  });

  function build() {
    setLanguage(state.get("language") || browserLanguage());
    applyTheme(state);
    const tasks = Object.keys(TASKS).filter((task) => ofTask(task).length);
    const names = tasks.map((task) => [task, say(`task-${task}`)]);
    const toTask = (task) => state.set({ model: ofTask(task)[0].id });
    tabs = names.length > 1 ? makeTabs(names, () => chosen().family, toTask, true) : null;
    const forget = button(say("key-forget"), () => (keepKey(""), start()), { id: "forget", class: "quiet" });
    const api = el("a", { class: "button quiet", href: "docs", title: say("serve-api") }, "API");
    const actions = [keptKey() && forget, api];
    const header = makeHeader(state, { parts: [tabs?.list ?? "", menu], actions });
    clear(document.getElementById("page")).append(header, main);
    open();
  }

  function open() {
    view?.end();
    app.tell("");
    clear(menu);
    clear(main).append(status, spoken);
    const model = chosen();
    document.title = model ? `${modelName(model)} · attendo` : "attendo";
    if (!model) return;
    tabs?.update();
    const same = ofTask(model.family).map((one) => [one.id, modelName(one)]);
    const named = { id: "model", "aria-label": say("model") };
    if (same.length > 1) menu.append(select(same, model.id, (id) => state.set({ model: id }), named));
    view = TASKS[model.family](app, model);
    const panel = tabs && { id: `view-${model.family}`, role: "tabpanel", "aria-labelledby": `tab-${model.family}` };
    main.append(el("div", { class: "view", ...panel }, view.root));
    const box = view.start();
    // on a phone, the focus would open the keyboard; and who walks through the tabs by keys wants to stay there
    const walks = document.querySelector('[role="tab"]:focus-visible, #model:focus-visible');
    if (matchMedia("(pointer: fine)").matches && !walks) box.focus();
  }

  function start() {
    app.models = [];
    build();
    asking.run(async (signal) => {
      app.tellLate(say("loading"));
      const { data } = await app.server.ask("v1/models", null, signal);
      app.models = data.filter(({ family }) => Object.hasOwn(TASKS, family));
      build();
      if (!app.models.length) app.failed(new Error(say("no-model")));
    });
  }

  state.on(Object.keys(SETTINGS), (changed) => {
    if (changed.includes("theme")) applyTheme(state);
    if (changed.includes("language")) build();
    else if (!own && changed.some((name) => name !== "theme")) open();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme(state));
  start();
}

begin();
