// The texts of the page, in English and Japanese. Views add their own texts with addWords.
const WORDS = {};
let currentLanguage = "en";
let again = ["attendo look DIR --serve", "attendo look DIR --serve"];

export function addWords(words) {
  Object.assign(WORDS, words);
}

export function setLanguage(name) {
  currentLanguage = name === "ja" ? "ja" : "en";
  document.documentElement.lang = currentLanguage;
}

// The command or code that runs the model again: no command can load a model with custom modules
export function setAgain({ own_parts: ownParts }) {
  if (ownParts) again = ["attendo.look(model, text), in Python", "Python で attendo.look(model, text)"];
}

export function inJapanese() {
  return currentLanguage === "ja";
}

// say("tokens", { n: 3 }): the text for a key; "{n}" in it is replaced, and {again} by the way to run the model again
export function say(key, values = {}) {
  const words = WORDS[key];
  if (!words) return key;
  const at = currentLanguage === "ja" ? 1 : 0;
  const known = { again: again[at], ...values };
  return words[at].replace(/\{(\w+)\}/g, (whole, name) => (name in known ? String(known[name]) : whole));
}

// The description of a module path: decoder.blocks.2.cross_attention -> "Cross-attention, layer 3"
export function pathName(path) {
  const layer = /(?:^|\.)blocks\.(\d+)(?:\.|$)/.exec(path);
  const side = /(?:^|\.)(encoder|decoder)\./.exec(path);
  const part = path.split(".").pop();
  const key = part === "cross_attention" ? "path-cross" : `path-${side ? side[1] : "model"}-${part}`;
  const name = WORDS[key] ? say(key) : path;
  return layer && WORDS[key] ? say("path-layer", { name, n: Number(layer[1]) + 1 }) : name;
}

export function addCommonWords() {
  addWords({
    "path-cross": ["Cross-attention", "クロスアテンション"],
    "path-encoder-self_attention": ["Encoder self-attention", "エンコーダのセルフアテンション"],
    "path-decoder-self_attention": ["Decoder self-attention", "デコーダのセルフアテンション"],
    "path-model-self_attention": ["Self-attention", "セルフアテンション"],
    "path-encoder-feed_forward": ["Encoder feed-forward", "エンコーダのフィードフォワード"],
    "path-decoder-feed_forward": ["Decoder feed-forward", "デコーダのフィードフォワード"],
    "path-model-feed_forward": ["Feed-forward", "フィードフォワード"],
    "path-layer": ["{name}, layer {n}", "{name} 第 {n} 層"],
    "stack-encoder": ["Encoder", "エンコーダ"],
    "stack-decoder": ["Decoder", "デコーダ"],
    "stack-cross": ["Cross", "クロス"],
    stack: ["Stack", "スタック"],
    layer: ["layer {n}", "第 {n} 層"],
    "head-title": ["{path}, head {n}", "{path} ヘッド {n}"],
    head: ["head {n}", "ヘッド {n}"],
    "part-name": ["{name}, head {n}", "{name} ヘッド {n}"],
    "not-live": [
      "This saved page holds only its first question. To ask more, run: {again}",
      "保存したページで見られるのは、最初のテキストの結果だけです。続けて調べるときは、次を実行してください：{again}",
    ],
    "no-server": [
      "No answer: the program behind this page has ended. Start it again: {again}",
      "応答がありません。プログラムが終了しています。もう一度起動してください：{again}",
    ],
    both: ["{a}, {b}", "{a}、{b}"],
    labelled: ["{name}: {text}", "{name}：{text}"],
    loading: ["Loading…", "読み込み中…"],
    "view-nothing-yet": [
      "Nothing has been looked at yet: give a text above.",
      "まだ結果がありません。上にテキストを入れてください。",
    ],
  });
}
