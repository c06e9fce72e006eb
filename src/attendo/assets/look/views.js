// @ts-check
// Functions that several views share: when to draw, how to send requests, what only a live page has.
import { say } from "../shared/words.js";
import { clear, field, select } from "../shared/dom.js";

const SOON = 150; // ms: a faster answer requires no waiting message

// A function that draws now, or when the part is next visible: hidden tabs cost no time
export function drawWhenShown(root, draw) {
  let waiting = false;
  const shown = () => root.getClientRects().length > 0;
  new ResizeObserver(() => {
    if (!waiting || !shown()) return;
    waiting = false;
    draw();
  }).observe(root);
  return () => {
    waiting = !shown();
    if (!waiting) draw();
  };
}

// ask(name, body) of one view → the answer, or null after a newer request or an error. The error message is
// shown in `place`, and `part`, which would show the answer, is hidden
export function questions(app, place, part) {
  let newest = 0;
  return async (name, body) => {
    const mine = ++newest;
    // the result is no longer cached: the view sends the request again when it is next visible
    const wanted = () => mine === newest && body.key === app.look?.key;
    const wait = setTimeout(() => wanted() && (place.textContent = say("loading")), SOON);
    try {
      const answer = await app.busy(app.source.ask(name, body));
      if (!wanted()) return null;
      place.textContent = "";
      part.hidden = false;
      return answer;
    } catch (error) {
      if (wanted()) {
        place.textContent = error.message;
        part.hidden = true;
        app.fail(error);
      }
      return null;
    } finally {
      clearTimeout(wait);
    }
  };
}

// A menu of stacks, if there are several
export function stackChoice(place, names, chosen, onchange) {
  clear(place);
  if (names.length < 2) return;
  const options = names.map((name) => [name, say(`stack-${name}`)]);
  place.append(field(say("stack"), select(options, chosen, onchange)));
}

// A control that sends a request which a saved page cannot answer: a saved page does not have it
export function onlyLive(app, control) {
  if (!app.source.live) control.hidden = true;
  return control;
}

// The decimal places with which numbers of this size have two different digits
export function decimals(most) {
  return most > 0 ? Math.max(2, Math.min(4, 2 - Math.floor(Math.log10(most)))) : 2;
}
