// @ts-check
// Deferred work: the map of the open head is drawn first, and the rest follows in small slices.
const SLICE = 8; // ms of work before the page can draw and handle events
const PATIENCE = 300; // ms after which work no longer waits for the map

// run(fn) runs deferred functions. late.hold(): defer from now on; late.release(): the map is drawn.
export function makeLate(run) {
  const queue = new Set(); // contains each function once
  let [held, planned, patience] = [false, false, 0];
  const listeners = []; // callbacks for the moment when no work is left

  function work() {
    planned = false;
    const end = performance.now() + SLICE;
    for (const fn of queue) {
      if (held) return;
      queue.delete(fn);
      run(fn);
      if (performance.now() > end) break;
    }
    plan();
  }
  function plan() {
    if (held || planned) return;
    if (queue.size) {
      planned = true;
      setTimeout(work);
    } else for (const done of listeners.splice(0)) done();
  }
  function release() {
    clearTimeout(patience);
    held = false;
    plan();
  }
  return {
    // fn runs once, soon, even if it is requested several times meanwhile
    add: (fn) => {
      queue.delete(fn);
      queue.add(fn);
      plan();
    },
    hold: () => {
      clearTimeout(patience);
      patience = setTimeout(release, PATIENCE);
      held = true;
    },
    // when the frame with the map is on the screen
    release: () => held && requestAnimationFrame(() => setTimeout(release)),
    settled: () => (held || queue.size ? new Promise((done) => listeners.push(done)) : Promise.resolve()),
  };
}
