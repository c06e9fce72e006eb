// Where answers come from: the server that sent this page, what was saved in it, or the page around it.
import { bytesOf } from "./numbers.js";
import { say } from "./words.js";

// Keys sorted, no spaces: the name under which a saved page keeps an answer
function canonicalJson(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).filter((name) => value[name] !== undefined);
  return `{${names
    .sort()
    .map((name) => `${JSON.stringify(name)}:${canonicalJson(value[name])}`)
    .join(",")}}`;
}

// source.ask(name, body) → Promise of the answer (of an ArrayBuffer for "tensor"); an Error with plain words
// else. source.first: the question `look` that a saved page answers; source.opens: the layer and head that it opens.
export function makeSource() {
  const saved = JSON.parse(document.getElementById("answers").textContent);
  const has = () => true; // whether a question has an answer here
  if (saved === null || "live" in saved)
    return { live: true, first: null, model: saved?.live, has, ...withAhead(askServer) };
  if ("frame" in saved) return { live: true, first: saved.frame, has, ...withAhead(askParent()) };
  const first = Object.keys(saved).find((name) => name.startsWith("look "));
  // Python writes some numbers otherwise, as 1.0
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

// ahead(name, body): a question put before its answer is needed; the next ask of the same takes that answer
function withAhead(ask) {
  const early = new Map();
  const named = (name, body) => `${name} ${canonicalJson(body ?? {})}`;
  return {
    ahead: (name, body) => {
      const answer = ask(name, body);
      answer.catch(() => null); // who asks hears of it
      early.set(named(name, body), answer);
    },
    ask: (name, body, slices) => {
      const answer = early.get(named(name, body));
      early.delete(named(name, body));
      return answer ?? ask(name, body, slices);
    },
  };
}

// The key that the page at / of `attendo serve` was given; the tab that it opens has it, too
function withKey() {
  const key = sessionStorage.getItem("attendo-key");
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function askServer(name, body) {
  let answer;
  try {
    answer = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...withKey() },
      body: canonicalJson(body ?? {}),
    });
  } catch {
    throw new Error(say("no-server"));
  }
  if (!answer.ok) throw new Error(await errorText(answer));
  return name === "tensor" ? answer.arrayBuffer() : answer.json();
}

// A page inside a notebook asks the page around it, which hands the question on
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

async function errorText(answer) {
  const text = await answer.text();
  try {
    const { error, detail } = JSON.parse(text);
    return String(error?.message ?? error ?? detail ?? text);
  } catch {
    return text || `${answer.status} ${answer.statusText}`;
  }
}

// slices: where in the numbers of the whole layer those of the one head stand that is asked for
async function askSaved(answers, name, body, slices) {
  const whole = slices ? { ...body, head: undefined } : body;
  const question = `${name} ${canonicalJson(whole ?? {})}`;
  // numbers stand in elements of their own, and are read one layer at a time
  const numbers = [...document.querySelectorAll("script[data-answer]")].find(
    (one) => one.dataset.answer === question,
  );
  if (numbers) return slices ? slicesOf(numbers.textContent, slices) : bytesOf(numbers.textContent).buffer;
  const answer = answers.get(question);
  if (answer === undefined) throw new Error(say("not-live"));
  if (answer?.error) throw new Error(answer.error);
  return answer;
}

// Bytes [from, to) of a text in base64, of which 4 characters are 3 bytes; only those are read
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
