// @ts-check
// The continuations that a model writes after a text: one, or several variants of which one is shown.
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { settingsOf } from "./options.js";
import { cutPieces, pieceOf, textOf } from "./continuation.js";

// onPiece(variant, piece) while a text is written; onChange() after every other change
export function makeDraft(app, model, { onPiece, onChange }) {
  const latest = makeLatest((error) => (app.failed(error), ended()));
  const draft = {
    texts: [[]], // the pieces of each variant, see continuation.js
    shown: 0,
    body: null, // the request for the texts
    running: false,
    get pieces() {
      return draft.texts[draft.shown];
    },
    get text() {
      return textOf(draft.pieces);
    },
    // begun: the pieces that the continuation begins with; n: the number of variants
    write: (prompt, begun = [], n = 1) => latest.run((signal) => written(prompt, begun, n, signal)),
    choose: (n) => ((draft.shown = n), onChange()),
    keep: (characters) => cutPieces(draft.pieces, 0, characters),
    skip: (characters) => ((draft.texts[draft.shown] = cutPieces(draft.pieces, characters)), onChange()),
    stop: () => (latest.stop(), ended(say("stopped"))),
    replace: (pieces = []) => {
      latest.stop();
      [draft.texts, draft.shown, draft.body] = [[pieces], 0, null];
      ended("");
    },
    end: () => latest.end(),
  };

  function ended(said) {
    draft.running = false;
    if (said !== undefined) app.tell(said);
    onChange();
  }

  async function written(prompt, begun, n, signal) {
    const several = n > 1 ? { n } : {};
    const body = { model: model.id, prompt: prompt + textOf(begun), ...settingsOf(app.state), ...several };
    app.tellLate(say("writing"));
    [draft.body, draft.running] = [body, true];
    [draft.texts, draft.shown] = [Array.from({ length: n }, () => [...begun]), 0];
    onChange();
    const start = performance.now();
    let reason = "stop";
    const streamed = { ...body, stream: true, logprobs: 0 };
    for await (const { choices } of app.server.events("v1/completions", streamed, signal)) {
      reason = choices[0]?.finish_reason ?? reason;
      if (!choices[0]?.text) continue;
      const { index } = choices[0];
      draft.texts[index].push(pieceOf(choices[0]));
      onPiece(index, draft.texts[index].at(-1));
    }
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    ended(say(reason === "length" ? "ended-length" : "ended-stop", { seconds }));
    app.announce(draft.text.slice(0, 300)); // a screen reader need not read out a long text
  }
  return draft;
}
