// @ts-check
// Requests to the server: with the key, repeated while the server is full, and canceled when no longer needed.
import { button, el } from "./dom.js";
import { say } from "./words.js";

const KEY = "attendo-key"; // in the session storage, which ends with the tab
const UNREACHABLE_WAIT = 5; // seconds

let ownKey = ""; // where storage is not allowed, the key is kept until the page is left

export function keptKey() {
  try {
    return sessionStorage.getItem(KEY) ?? ownKey;
  } catch {
    return ownKey;
  }
}

export function keepKey(key) {
  ownKey = key;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // storage is not allowed: the page asks for the key again
  }
}

class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The error message of an answer, from the server if it sent one
async function problemOf(answer) {
  const text = await answer.text();
  let said = "";
  try {
    const { error, detail } = JSON.parse(text);
    said = String(error?.message ?? error ?? detail ?? "");
  } catch {
    // not JSON: a proxy between the page and the server responded
  }
  return new Problem(said || say("answered", { status: answer.status }), answer.status);
}

function seconds(answer) {
  const wait = Number(answer.headers.get("Retry-After"));
  return Number.isFinite(wait) && wait > 0 ? Math.min(wait, 120) : 2;
}

function pause(ms, signal) {
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

let keyAsked = null; // a Promise while the dialog for the key is open

// tell(text, waits): shows the reason for waiting; patience: how often an unreachable server is asked again
export function makeServer(tell, patience = Infinity) {
  async function waited(key, wait, signal) {
    for (let left = wait; left > 0; left--) {
      tell(say(key, { n: left }), true);
      await pause(1000, signal).finally(() => left === 1 && tell(""));
    }
  }

  // The response of a route, when there is one; a request with a body is a POST
  async function answered(path, body, signal) {
    for (let failures = 0; ;) {
      const key = keptKey();
      let answer;
      try {
        answer = await fetch(path, {
          method: body ? "POST" : "GET",
          headers: {
            ...(body && { "Content-Type": "application/json" }),
            ...(key && { Authorization: `Bearer ${key}` }),
          },
          body: body && JSON.stringify(body),
          signal,
          cache: "no-store",
        });
      } catch (error) {
        signal?.throwIfAborted();
        if (!(error instanceof TypeError)) throw error;
        if (++failures > patience) throw new Problem(say("no-server"), 0);
        await waited("unreachable", UNREACHABLE_WAIT, signal);
        continue;
      }
      if (answer.ok) return answer;
      if (answer.status === 401) {
        if (keptKey() === key) await (keyAsked ??= askKey(key !== "").finally(() => (keyAsked = null)));
        signal?.throwIfAborted();
      } else if (answer.status === 429) await waited("full", seconds(answer), signal);
      else if (answer.status === 503) {
        const { message } = await problemOf(answer);
        await waited(message.includes("loading") ? "loading-models" : "stopping", seconds(answer), signal);
      } else throw await problemOf(answer);
    }
  }

  return {
    ask: async (path, body, signal) => (await answered(path, body, signal)).json(),
    bytes: async (path, body, signal) => (await answered(path, body, signal)).arrayBuffer(),
    // The events of a stream, one at a time
    async *events(path, body, signal) {
      const answer = await answered(path, body, signal);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          if (!block.startsWith("data: ")) continue; // a comment that keeps the connection open
          const data = block.slice("data: ".length);
          if (data === "[DONE]") return;
          const event = JSON.parse(data);
          if (event.error) throw new Problem(event.error.message, 0);
          yield event;
        }
      }
    },
  };
}

// run(work(signal)) runs only the newest request: a new request, or stop(), cancels the previous one, also on the
// server; after end(), no requests run.
export function makeLatest(onProblem) {
  let current = new AbortController();
  let over = false;
  return {
    stop: () => current.abort(),
    end: () => ((over = true), current.abort()),
    async run(work) {
      if (over) return;
      current.abort();
      const own = (current = new AbortController());
      try {
        await work(own.signal);
      } catch (error) {
        if (!own.signal.aborted) onProblem(error);
      }
    },
  };
}

// Resolves when there is a key to try; rejects if the reader enters none
function askKey(wrong) {
  const input = el("input", {
    id: "key",
    type: "password",
    autocomplete: "off",
    required: true,
    maxLength: 500,
    "aria-describedby": "key-note",
  });
  const later = button(say("key-later"), () => root.close());
  const form = el(
    "form",
    {},
    el("h2", { id: "key-title" }, say("key-title")),
    wrong ? el("p", { class: "alert", role: "alert" }, say("key-wrong")) : null,
    el("label", {}, el("span", {}, say("key")), input),
    el("p", { class: "note", id: "key-note" }, say("key-note")),
    el("div", { class: "bar" }, el("button", { type: "submit", class: "main" }, say("key-use")), later),
  );
  const root = el("dialog", { "aria-labelledby": "key-title" }, form);
  document.body.append(root);
  root.showModal();
  input.focus();
  return /** @type {Promise<void>} */ (
    new Promise((resolve, reject) => {
      let given = false;
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        keepKey(input.value.trim());
        given = true;
        root.close();
      });
      root.addEventListener("close", () => {
        root.remove();
        if (given) resolve();
        else reject(new Error(say("key-missing")));
      });
    })
  );
}
