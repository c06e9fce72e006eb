// Rows of tokens: one token per row is in the Tab order, and arrow keys move the focus. Each token represents a
// query or a key of the open layer.

// stops: the elements of a row, which the arrow keys, Home and End focus in order
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

// The role of a token of a side in the open layer: a query, a key, or none
function spotOf(app, side, i) {
  const layer = app.openLayer();
  if (layer?.queries === side && i < layer.q_len) return { query: i, key: app.strongestKey(i) };
  if (layer?.keys === side && i < layer.k_len) return { query: app.chosen().query, key: i, by: "key" };
  return null;
}

// Pointer or focus selects a token's query or key, as in the images; a click or Enter fixes the selection
export function pointsAt(app, chip, side, i) {
  const point = () => app.point(spotOf(app, side, i));
  const leave = () => app.point(null);
  const told = (live) => document.getElementById("readout")?.setAttribute("aria-live", live);
  const handlers = {
    pointerenter: point,
    pointerleave: leave,
    focus: () => (point(), told("polite")), // announced for keyboard moves, but not for mouse moves
    blur: () => (leave(), told("off")),
    click: () => {
      const spot = spotOf(app, side, i);
      if (spot) app.hold(spot);
    },
  };
  for (const [name, fn] of Object.entries(handlers)) chip.addEventListener(name, fn);
  return chip;
}
