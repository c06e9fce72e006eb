// @ts-check
// Linear probes: what can be read from the states of each layer, on labeled texts that the program was given.
import { barOf, scrolled, tableHead, tableRow } from "../shared/bars.js";
import { el, percent } from "../shared/dom.js";
import { say } from "../shared/words.js";

export function makeProbes({ model }, root) {
  const { stack, accuracy, control, majority, n_train: train, n_test: test } = model.probes;
  // the standard error of a smoothed share, because 100% of a few texts is not certain
  const smoothed = (share) => (share * test + 1) / (test + 2);
  const error = (share) => percent(Math.sqrt((smoothed(share) * (1 - smoothed(share))) / test));
  const rows = accuracy.map((share, n) => {
    const name = n ? say("layer", { n }) : say("lens-embedding");
    return tableRow(name, [
      [barOf(share), ` ${percent(share)} ± ${error(share)}`],
      [barOf(control[n]), ` ${percent(control[n])}`],
    ]);
  });
  const columns = ["layer", "accuracy", "control"].map((key) => [say(`probes-${key}`)]);
  const sizes = say("probes-sizes", { stack: say(`stack-${stack}`), train, test, majority: percent(majority) });
  root.append(
    el("p", { class: "note" }, sizes),
    scrolled(say("part-probes"), el("table", {}, tableHead(columns), el("tbody", {}, rows))),
    el("p", { class: "note" }, `${say("probes-note")} `, el("cite", {}, say("probes-source"))),
  );
}
