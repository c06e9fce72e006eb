// Rows of tokens: one of a row takes the Tab key, arrows go from one to the next; each stands for a query or
// a key of the open layer.

// stops: the elements of a row, of which the arrows, Home and End focus one after another
export function roving(row, stops) {
  stops.forEach((stop, i) => (stop.tabIndex = i === 0 ? 0 : -1));
  const go = (to) => {
    for (const stop of stops) if (stop.tabIndex === 0) stop.tabIndex = -1;
    stops[to].tabIndex = 0;
  };
  row.addEventListener("focusin", ({ target }) => stops.includes(target) && go(stops.indexOf(target)));
  row.addEventListener("keydown", (event) => {
    const at = stops.indexOf(event.target);
    if (at < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: stops.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    stops[to]?.focus();
  });
  return row;
}

// What a token of a side is in the open layer: a query, else a key, else nothing
function spotOf(app, side, i) {
  const layer = app.openLayer();
  if (layer?.queries === side && i < layer.q_len) return { query: i, key: app.strongestKey(i) };
  if (layer?.keys === side && i < layer.k_len) return { query: app.chosen().query, key: i, by: "key" };
  return null;
}

// A token points as the pictures do: with the mouse over it or the focus on it, and holds by a click or Enter
export function pointsAt(app, chip, side, i) {
  const point = () => app.point(spotOf(app, side, i));
  const leave = () => app.point(null);
  const told = (live) => document.getElementById("readout")?.setAttribute("aria-live", live);
  const handlers = {
    pointerenter: point,
    pointerleave: leave,
    focus: () => (point(), told("polite")), // read aloud where the keys move, not where the mouse passes
    blur: () => (leave(), told("off")),
    click: () => {
      const spot = spotOf(app, side, i);
      if (spot) app.hold(spot);
    },
  };
  for (const [name, fn] of Object.entries(handlers)) chip.addEventListener(name, fn);
  return chip;
}
