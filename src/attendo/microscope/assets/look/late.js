// What can wait: the map of the open head is drawn first; the rest comes right behind it, a little at a time.
const SLICE = 8; // ms of work before the page may draw and hear events
const PATIENCE = 300; // ms after which nothing waits for the map any more

// run(fn) calls what has waited. late.hold(): from now on it waits; late.release(): the map is drawn.
export function makeLate(run) {
  const queue = new Set(); // each function once
  let [held, planned, patience] = [false, false, 0];
  let listeners = []; // who waits until nothing is left

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
    // fn runs once, soon, however often it is asked for meanwhile
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
    // once the frame with the map is on the screen
    release: () => held && requestAnimationFrame(() => setTimeout(release)),
    settled: () => (held || queue.size ? new Promise((done) => listeners.push(done)) : Promise.resolve()),
  };
}
