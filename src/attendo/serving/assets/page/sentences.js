// What this page says, in English and Japanese.
import { addWords, inJapanese, say } from "./words.js";

export function addSentences() {
  addWords({
    model: ["Model", "モデル"],
    theme: ["Theme", "表示"],
    auto: ["automatic", "自動"],
    light: ["light", "ライト"],
    dark: ["dark", "ダーク"],
    loading: ["Loading…", "読み込み中…"],
    "no-model": [
      "Nothing that is served here translates, classifies or completes texts.",
      "翻訳・分類・文章生成のできるモデルがありません。",
    ],
    "task-translation": ["Translate", "翻訳"],
    "task-classification": ["Classify", "分類"],
    "task-language-model": ["Complete", "文章の続き"],
    "source-text": ["Text", "原文"],
    translation: ["Translation", "訳文"],
    "type-here": ["Type or paste a text", "テキストを入力または貼り付け"],
    clear: ["Clear", "消去"],
    copy: ["Copy", "コピー"],
    copied: ["Copied.", "コピーしました。"],
    "not-copied": ["The browser did not allow copying.", "ブラウザがコピーを許可しませんでした。"],
    swap: ["Swap languages", "言語を入れ替える"],
    microscope: ["Look inside", "中を見る"],
    "microscope-title": [
      "Opens the microscope: where the model looks as it reads this text",
      "顕微鏡で開く：モデルがこの文のどこを見ているか",
    ],
    characters: ["{n} of {most} characters", "{n} / {most} 文字"],
    beam: ["Search width", "探索の幅"],
    "beam-own": ["the model's own", "モデルの既定"],
    "beam-1": ["1 (fastest)", "1（最速）"],
    segment: ["Translate by", "翻訳の単位"],
    "segment-own": ["the server's setting", "サーバーの設定"],
    "segment-sentence": ["sentence", "文"],
    "segment-paragraph": ["line", "行"],
    "omission-short": [
      "Text may be missing: this translation is far shorter than usual.",
      "訳抜けの可能性があります。訳文が通常よりかなり短くなっています。",
    ],
    "omission-unaligned": [
      "Text may be missing: many source words have no counterpart here.",
      "訳抜けの可能性があります。原文の多くの単語に対応する訳語がありません。",
    ],
    options: ["Options", "設定"],
    translating: ["Translating…", "翻訳中…"],
    "words-hint": [
      "Click a word for others in its place. Underlined with dots: the model is not sure.",
      "単語をクリックすると別の訳語が出ます。点線の下線は、モデルの確信が低い単語です。",
    ],
    "sure-of": ["{word}: {percent} sure", "{word}：確信度 {percent}"],
    "of-source": ["from: {words}", "対応する原語：{words}"],
    "own-choice": ["chosen by you", "あなたが選んだ語"],
    unsure: ["the model is not sure", "確信が低い"],
    "other-words": ["Instead of “{word}”", "「{word}」の代わりに"],
    "other-translations": ["Other translations", "別の訳"],
    "others-of-line": ["Other translations of line {n}", "{n} 行目の別の訳"],
    "looking-for-others": ["Looking for others…", "別の訳を探しています…"],
    "no-others": ["The model finds no others.", "別の訳は見つかりませんでした。"],
    "own-words": ["or go on with your own word", "または自分の言葉で続ける"],
    "go-on": ["Go on", "続ける"],
    "long-text": [
      "In a line of several sentences, only the words of the first sentence can be exchanged.",
      "一行に複数の文があるときは、最初の文の単語だけを入れ替えられます。",
    ],
    "back-to-best": ["Back to the model's best", "モデルの最良の訳に戻す"],
    close: ["Close", "閉じる"],
    prompt: ["Beginning", "書き出し"],
    completion: ["Continuation", "続き"],
    "prompt-here": ["Type how the text begins", "書き出しを入力"],
    write: ["Go on writing", "続きを書く"],
    again: ["Another one", "もう一つ"],
    stop: ["Stop", "停止"],
    "take-over": ["Keep it and go on", "採用して続ける"],
    "begin-itself": ["begin as I type", "入力に合わせて書く"],
    max_tokens: ["Longest, in tokens", "最大トークン数"],
    temperature: ["Temperature", "温度"],
    top_p: ["Top-p", "top-p"],
    seed: ["Seed", "シード"],
    "stop-text": ["Stop before", "この文字列の前で停止"],
    "stop-hint": ["\\n is a new line", "\\n は改行"],
    random: ["random", "ランダム"],
    writing: ["Writing…", "生成中…"],
    "ended-stop": ["Ended by itself, after {seconds} s.", "自然に終わりました（{seconds} 秒）。"],
    "ended-length": ["Reached the longest, after {seconds} s.", "最大の長さに達しました（{seconds} 秒）。"],
    stopped: ["Stopped.", "停止しました。"],
    "bad-setting": ["{name}: give {range}.", "{name}：{range}を指定してください。"],
    "at-least-0": ["a number from 0", "0 以上の数"],
    "above-0-to-1": ["a number above 0, at most 1", "0 より大きく 1 以下の数"],
    "whole-from-1": ["a whole number from 1", "1 以上の整数"],
    "whole-or-none": ["a whole number from 0, or nothing", "0 以上の整数、または空欄"],
    labels: ["Labels", "ラベル"],
    classifying: ["Classifying…", "分類中…"],
    label: ["Label", "ラベル"],
    probability: ["Probability", "確率"],
    cut: [
      "The text is longer than what the model read of it.",
      "文が長いため、モデルはその一部だけを読みました。",
    ],
    key: ["Key", "キー"],
    "key-title": ["This server asks for a key", "このサーバーにはキーが必要です"],
    "key-note": [
      "You get it from whoever runs the server. It stays in this tab and is forgotten with it.",
      "サーバーの管理者から受け取ってください。キーはこのタブの中だけに保存され、閉じると消えます。",
    ],
    "key-wrong": ["The server does not know this key.", "このキーは正しくありません。"],
    "key-use": ["Use it", "使う"],
    "key-later": ["Not now", "あとで"],
    "key-forget": ["Forget key", "キーを消す"],
    "key-missing": ["Without a key the server does not answer.", "キーがないとサーバーは応答しません。"],
    "key-give": ["Give a key", "キーを入力"],
    answered: ["The server answered {status}.", "サーバーの応答：{status}"],
    unreachable: [
      "The server can't be reached. Trying again in {n} s.",
      "サーバーに接続できません。{n} 秒後にもう一度試します。",
    ],
    full: [
      "The server is full. Trying again in {n} s.",
      "サーバーが混み合っています。{n} 秒後にもう一度試します。",
    ],
    stopping: [
      "The server is about to stop. Trying again in {n} s.",
      "サーバーは停止しようとしています。{n} 秒後にもう一度試します。",
    ],
    "loading-models": [
      "The server is loading its models. Trying again in {n} s.",
      "モデルを読み込み中です。{n} 秒後にもう一度試します。",
    ],
  });
}

// A language by its code, in the language of the page; nothing for one that nobody told
export function languageName(code) {
  if (!code || code === "und") return "";
  try {
    return new Intl.DisplayNames([inJapanese() ? "ja" : "en"], { type: "language" }).of(code);
  } catch {
    return code; // no code of a language, but somebody's word
  }
}

export function percent(share) {
  if (share > 0 && share < 0.005) return `< ${percent(0.01)}`;
  const digits = share > 0.995 && share < 0.9995 ? 1 : 0;
  return new Intl.NumberFormat(inJapanese() ? "ja" : "en", {
    style: "percent",
    maximumFractionDigits: digits,
  }).format(share);
}

// What a model is called in the choice of models
export function modelName(model) {
  const [source, target] = [languageName(model.source), languageName(model.target)];
  const task = say(`task-${model.family}`);
  return model.family === "translation" && source && target
    ? `${task}: ${source} → ${target} (${model.id})`
    : `${task}: ${model.id}`;
}
