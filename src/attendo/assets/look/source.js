// @ts-check
// The source of answers: the server of the page, data saved in the page, or a surrounding notebook.
import { makeServer } from "../shared/asking.js";
import { say } from "../shared/words.js";
import { bytesOf } from "./numbers.js";

// JSON with sorted keys and without spaces: the name of an answer in a saved page
function canonicalJson(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).filter((name) => value[name] !== undefined);
  const pair = (name) => `${JSON.stringify(name)}:${canonicalJson(value[name])}`;
  return `{${names.sort().map(pair).join(",")}}`;
}

// source.ask(name, body) → Promise of the answer (an ArrayBuffer for "tensor"), or an Error with a plain message.
// source.first: the request `look` that a saved page answers; source.opens: the layer and head that it opens.
// tell(text, waits): shows why the page waits
/** @param {(text: string, waits?: boolean) => void} tell @returns {import("../types/page.js").Source} */
export function makeSource(tell) {
  const saved = JSON.parse(document.getElementById("answers").textContent);
  const always = { has: () => true }; // whether the page can answer a request
  if ("live" in saved)
    return {
      live: true,
      first: null,
      model: saved.live,
      back: saved.back,
      ...always,
      ...withAhead(askServer(tell, saved.back)),
    };
  if ("frame" in saved) return { live: true, first: saved.frame, framed: true, ...always, ...withAhead(askParent()) };
  const first = Object.keys(saved).find((name) => name.startsWith("look "));
  // Python writes some numbers in another form, such as 1.0
  const asWritten = (question) => question.replace(/ (.*)/s, (_, body) => ` ${canonicalJson(JSON.parse(body))}`);
  const answers = new Map(Object.entries(saved).map(([question, answer]) => [asWritten(question), answer]));
  return {
    live: false,
    first: first === undefined ? null : JSON.parse(first.slice("look ".length)),
    opens: saved.opens,
    has: (name, body) => Boolean(answers.get(`${name} ${canonicalJson(body)}`)),
    ...withAhead((name, body, slices) => askSaved(answers, name, body, slices)),
  };
}

// ahead(name, body): send a request before its answer is needed; the next equal request gets this answer
function withAhead(ask) {
  const early = new Map();
  const named = (name, body) => `${name} ${canonicalJson(body ?? {})}`;
  return {
    ahead: (name, body) => {
      const answer = ask(name, body);
      answer.catch(() => null); // the error is reported to the code that asks
      early.set(named(name, body), answer);
    },
    ask: (name, body, slices) => {
      const answer = early.get(named(name, body));
      early.delete(named(name, body));
      return answer ?? ask(name, body, slices);
    },
  };
}

// The tab that the page at / of `attendo serve` opens has its API key. A server of its own ends with the program, so
// it is not asked again.
function askServer(tell, back) {
  const server = makeServer(tell, back === null ? 0 : Infinity);
  return (name, body = {}) => (name === "tensor" ? server.bytes : server.ask)(`api/${name}`, body);
}

// A page inside a notebook sends requests to the surrounding page, which forwards them
function askParent() {
  const waiting = new Map();
  let last = 0;
  window.addEventListener("message", ({ source, data }) => {
    if (source !== window.parent || data?.attendo !== 1 || !waiting.has(data.id)) return;
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error === undefined) resolve(data.buffer ?? data.answer);
    else reject(new Error(data.error));
  });
  return (name, body) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      window.parent.postMessage({ attendo: 1, id: last, name, body: body ?? {} }, "*");
    });
}

// slices: the ranges of the requested head in the numbers of the whole layer
async function askSaved(answers, name, body, slices) {
  const whole = slices ? { ...body, head: undefined } : body;
  const question = `${name} ${canonicalJson(whole ?? {})}`;
  // the numbers are in separate elements, and are decoded one layer at a time
  const numbers = [...document.scripts].find((one) => one.dataset.answer === question);
  if (numbers) return slices ? slicesOf(numbers.textContent, slices) : bytesOf(numbers.textContent).buffer;
  const answer = answers.get(question);
  if (answer === undefined) throw new Error(say("not-live"));
  if (answer?.error) throw new Error(answer.error);
  return answer;
}

// Bytes [from, to) of a base64 text, in which 4 characters are 3 bytes; only these characters are decoded
function slicesOf(base64, slices) {
  const out = new Uint8Array(slices.reduce((sum, [from, to]) => sum + to - from, 0));
  let at = 0;
  for (const [from, to] of slices) {
    const some = bytesOf(base64.slice(4 * Math.floor(from / 3), 4 * Math.ceil(to / 3)));
    out.set(some.subarray(from % 3, (from % 3) + to - from), at);
    at += to - from;
  }
  return out.buffer;
}
