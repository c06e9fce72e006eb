// The page: the choice of a model, a text, and the output of the model.
import { button, clear, el, field, select } from "./dom.js";
import { addCommonWords, say, setLanguage } from "./words.js";
import { addSentences, modelName } from "./sentences.js";
import { makeSettings } from "./address.js";
import { keepKey, keptKey, makeLatest, makeServer } from "./asking.js";
import { makeTranslating } from "./translating.js";
import { makeCompleting } from "./completing.js";
import { makeClassifying } from "./classifying.js";
import { makeKeyAsker } from "./keys.js";

const MAKERS = {
  translation: makeTranslating,
  classification: makeClassifying,
  "language-model": makeCompleting,
};

function themed(settings) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = settings.get("theme");
  document.documentElement.dataset.theme = theme === "dark" || (theme === "auto" && dark) ? "dark" : "light";
}

function languageOf(settings) {
  return settings.get("language") || (navigator.language.startsWith("ja") ? "ja" : "en");
}

function begin() {
  addCommonWords();
  addSentences();
  const settings = makeSettings();
  const app = {
    settings,
    facts: JSON.parse(document.getElementById("facts").textContent),
    models: null,
    view: null,
  };
  const status = el("p", { id: "status", role: "status" });
  const spoken = el("p", { class: "aside", "aria-live": "polite" });
  let late = 0;
  app.tell = (text, isWait = false) => {
    clearTimeout(late);
    if (status.textContent !== text) status.textContent = text;
    status.className = isWait ? "waits" : "";
  };
  // messages about slow requests, and announcements for screen readers
  app.tellLate = (text) => {
    app.tell("");
    late = setTimeout(() => app.tell(text), 600);
  };
  app.announce = (text, lang = document.documentElement.lang) => {
    spoken.lang = lang;
    spoken.textContent = text;
  };
  app.failed = (error) => {
    app.tell(error.message);
    status.className = "failed";
  };
  app.server = makeServer(makeKeyAsker(), app.tell);
  const asking = makeLatest((error) => {
    app.failed(error);
    status.append(
      " ",
      button(say("key-give"), () => start(), {
        class: "plain",
        hidden: error.message !== say("key-missing"),
      }),
    );
  });
  app.rebuild = build;

  function build() {
    app.view?.end();
    setLanguage(languageOf(settings));
    themed(settings);
    app.tell("");
    const page = clear(document.getElementById("page"));
    const main = el("main", {}, status, spoken);
    page.append(makeTop(app, start), main);
    if (app.models === null) return;
    const model = app.models.find(({ id }) => id === settings.get("model")) ?? app.models[0];
    document.title = model ? `${modelName(model)} · attendo` : "attendo";
    if (!model) return void main.append(el("p", { class: "alert" }, say("no-model")));
    app.view = MAKERS[model.family](app, model);
    main.append(app.view.root);
    const box = app.view.start();
    if (matchMedia("(pointer: fine)").matches) box.focus(); // on a phone, the focus would open the keyboard
  }

  function start() {
    app.models = null;
    build();
    asking.run(async (signal) => {
      app.tellLate(say("loading"));
      const { data } = await app.server.ask("v1/models", null, signal);
      app.models = data.filter(({ family }) => Object.hasOwn(MAKERS, family));
      build();
    });
  }

  settings.onOther(build);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themed(settings));
  start();
}

function makeTop(app, start) {
  const { settings, models, rebuild } = app;
  const other = languageOf(settings) === "ja" ? "en" : "ja";
  const change = (some) => (settings.set(some), rebuild());
  const toggle = button(other === "ja" ? "日本語" : "English", () => change({ language: other }), {
    id: "language",
    lang: other,
  });
  const themes = ["auto", "light", "dark"].map((name) => [name, say(name)]);
  const theme = select(
    themes,
    settings.get("theme"),
    (name) => (settings.set({ theme: name }), themed(settings)),
    { id: "theme" },
  );
  const forget = button(say("key-forget"), () => (keepKey(""), start()), { id: "forget", class: "plain" });
  const named = models?.map((model) => [model.id, modelName(model)]) ?? [];
  const chosen = models?.find(({ id }) => id === settings.get("model"))?.id ?? named[0]?.[0];
  const choice =
    named.length > 1 &&
    field(
      say("model"),
      select(named, chosen, (id) => change({ model: id }), { id: "model" }),
      { class: "field models" },
    );
  return el(
    "header",
    { class: "top" },
    el(
      "h1",
      { class: named.length === 1 ? "" : "alone" },
      el("span", { class: "mark" }, "attendo"),
      named.length === 1 && el("bdi", {}, named[0][1]),
    ),
    choice,
    el("span", { class: "end" }, keptKey() ? forget : null, toggle, field(say("theme"), theme)),
  );
}

begin();
