// @ts-check
// "As a request": the command that asks the server for what is on the screen.
import { el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { keptKey } from "../shared/asking.js";
import { copyButton } from "./tools.js";

// In single quotes, a shell changes nothing but the single quote
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// Form feeds and the like are escaped by JSON already; other control characters would disturb a terminal
function curlOf({ path, body }) {
  const json = JSON.stringify(body, null, 1).replace(
    /[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  const start = `curl ${quoted(new URL(path, location.href.split("#")[0]).href)}`;
  const key = keptKey() ? ['-H "Authorization: Bearer $ATTENDO_KEY"'] : []; // never the key itself
  const lines = [start, "-H 'Content-Type: application/json'", ...key, `-d ${quoted(json)}`];
  return { json, curl: lines.join(" \\\n  ") };
}

/**
 * @param {object} app
 * @param {() => { path: string, body: object } | null} asked the request for what is on the screen
 */
export function makeRequest(app, asked) {
  let shown = { json: "", curl: "" };
  const code = el("code", {});
  const note = el("p", { class: "note" });
  const copyCurl = copyButton(app, () => shown.curl, say("serve-copy-curl"), { id: "copy-curl" });
  const copyJson = copyButton(app, () => shown.json, say("serve-copy-json"));
  const bar = el("div", { class: "bar" }, copyCurl, copyJson);
  const card = el("div", { class: "card" }, note, el("pre", {}, code), bar);
  const root = el("details", { class: "request", ontoggle: update }, el("summary", {}, say("serve-request")), card);
  function update() {
    if (!root.open) return; // a long text need not be quoted for nobody
    const request = asked();
    if (request) shown = curlOf(request);
    code.textContent = request ? shown.curl : "";
    bar.hidden = !request;
    note.textContent = say(!request ? "serve-request-empty" : keptKey() ? "serve-request-key" : "serve-request-note");
  }
  return { root, update };
}
