// The texts of this page, in English and Japanese.
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
      "This server has no model that translates, classifies or completes texts.",
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
      "Open the microscope: see which tokens the model attends to in this text",
      "顕微鏡で開く：モデルがこの文のどこを見ているか",
    ],
    characters: ["{n} of {most} characters", "{n} / {most} 文字"],
    beam: ["Beam size", "探索の幅"],
    "beam-own": ["model default", "モデルの既定"],
    "beam-1": ["1 (fastest)", "1（最速）"],
    segment: ["Translate by", "翻訳の単位"],
    "segment-own": ["server default", "サーバーの設定"],
    "segment-sentence": ["sentence", "文"],
    "segment-paragraph": ["line", "行"],
    "omission-short": [
      "Text may be missing: this translation is far shorter than usual.",
      "訳抜けの可能性があります。訳文が通常よりかなり短くなっています。",
    ],
    "omission-unaligned": [
      "Text may be missing: many source words have no counterpart in this translation.",
      "訳抜けの可能性があります。原文の多くの単語に対応する訳語がありません。",
    ],
    options: ["Options", "設定"],
    translating: ["Translating…", "翻訳中…"],
    "words-hint": [
      "Select a word to see alternatives. Dotted underline: the model is unsure.",
      "単語をクリックすると別の訳語が出ます。点線の下線は、モデルの確信が低い単語です。",
    ],
    "sure-of": ["{word}: {percent} sure", "{word}：確信度 {percent}"],
    "of-source": ["from: {words}", "対応する原語：{words}"],
    "own-choice": ["chosen by you", "あなたが選んだ語"],
    unsure: ["the model is unsure", "確信が低い"],
    "other-words": ["Instead of “{word}”", "「{word}」の代わりに"],
    "other-translations": ["Other translations", "別の訳"],
    "others-of-line": ["Other translations of line {n}", "{n} 行目の別の訳"],
    "looking-for-others": ["Searching for alternatives…", "別の訳を探しています…"],
    "no-others": ["No alternatives found.", "別の訳は見つかりませんでした。"],
    "own-words": ["or continue with your own word", "または自分の言葉で続ける"],
    "go-on": ["Continue", "続ける"],
    "long-text": [
      "In a line with several sentences, you can only replace words of the first sentence.",
      "一行に複数の文があるときは、最初の文の単語だけを入れ替えられます。",
    ],
    "back-to-best": ["Restore the best translation", "モデルの最良の訳に戻す"],
    close: ["Close", "閉じる"],
    prompt: ["Beginning", "書き出し"],
    completion: ["Continuation", "続き"],
    "prompt-here": ["Type the beginning of a text", "書き出しを入力"],
    write: ["Continue the text", "続きを書く"],
    again: ["Try again", "もう一つ"],
    stop: ["Stop", "停止"],
    "take-over": ["Keep and continue", "採用して続ける"],
    "begin-itself": ["complete while typing", "入力に合わせて書く"],
    max_tokens: ["Maximum tokens", "最大トークン数"],
    temperature: ["Temperature", "温度"],
    top_p: ["Top-p", "top-p"],
    seed: ["Seed", "シード"],
    "stop-text": ["Stop before", "この文字列の前で停止"],
    "stop-hint": ["\\n is a new line", "\\n は改行"],
    random: ["random", "ランダム"],
    writing: ["Writing…", "生成中…"],
    "ended-stop": ["Finished after {seconds} s.", "自然に終わりました（{seconds} 秒）。"],
    "ended-length": ["Reached the maximum length after {seconds} s.", "最大の長さに達しました（{seconds} 秒）。"],
    stopped: ["Stopped.", "停止しました。"],
    "bad-setting": ["{name} must be {range}.", "{name}：{range}を指定してください。"],
    "at-least-0": ["a number of at least 0", "0 以上の数"],
    "above-0-to-1": ["a number above 0 and at most 1", "0 より大きく 1 以下の数"],
    "whole-from-1": ["a whole number of at least 1", "1 以上の整数"],
    "whole-or-none": ["a whole number of at least 0, or empty", "0 以上の整数、または空欄"],
    labels: ["Labels", "ラベル"],
    classifying: ["Classifying…", "分類中…"],
    label: ["Label", "ラベル"],
    probability: ["Probability", "確率"],
    cut: [
      "The text is too long: the model read only a part of it.",
      "文が長いため、モデルはその一部だけを読みました。",
    ],
    key: ["Key", "キー"],
    "key-title": ["This server requires an API key", "このサーバーにはキーが必要です"],
    "key-note": [
      "Ask the administrator of the server for a key. It is kept only until you close this tab.",
      "サーバーの管理者から受け取ってください。キーはこのタブの中だけに保存され、閉じると消えます。",
    ],
    "key-wrong": ["This key is not valid.", "このキーは正しくありません。"],
    "key-use": ["Use key", "使う"],
    "key-later": ["Not now", "あとで"],
    "key-forget": ["Forget key", "キーを消す"],
    "key-missing": ["The server requires a key.", "キーがないとサーバーは応答しません。"],
    "key-give": ["Enter a key", "キーを入力"],
    answered: ["The server answered {status}.", "サーバーの応答：{status}"],
    unreachable: [
      "The server cannot be reached. Retrying in {n} s.",
      "サーバーに接続できません。{n} 秒後にもう一度試します。",
    ],
    full: [
      "The server is busy. Retrying in {n} s.",
      "サーバーが混み合っています。{n} 秒後にもう一度試します。",
    ],
    stopping: [
      "The server is shutting down. Retrying in {n} s.",
      "サーバーは停止しようとしています。{n} 秒後にもう一度試します。",
    ],
    "loading-models": [
      "The server is loading its models. Retrying in {n} s.",
      "モデルを読み込み中です。{n} 秒後にもう一度試します。",
    ],
  });
}

// The name of a language code in the language of the page, or "" for an unknown language
export function languageName(code) {
  if (!code || code === "und") return "";
  try {
    return new Intl.DisplayNames([inJapanese() ? "ja" : "en"], { type: "language" }).of(code);
  } catch {
    return code; // not a language code, but a custom name
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

// The name of a model in the menu of models
export function modelName(model) {
  const [source, target] = [languageName(model.source), languageName(model.target)];
  const task = say(`task-${model.family}`);
  return model.family === "translation" && source && target
    ? `${task}: ${source} → ${target} (${model.id})`
    : `${task}: ${model.id}`;
}
