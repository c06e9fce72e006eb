"""Response times of the microscope in the system's Chromium: first map, hover, slider, re-run, and memory of the page.

    python benchmarks/microscope.py [--rounds 20]

The benchmark uses two models with random weights. A translator with 6+6 layers and 8 heads (d 512) runs on 30 tokens,
with greedy search and with beam 4. A language model with 12 layers and 12 heads (d 768) runs on 512 tokens. Each figure
is the median over the rounds, on texts that the program has not processed before, with two threads. Run the benchmark
on a quiet machine.

first map: time from the navigation to the drawn map of the first head, by the page's own clock. The browser's window is
open before, because the browser's own work for a new window takes 0.4 s of CPU. The time of a plain forward pass of the
same model and text is printed with it. hover, slider: time that the page's only thread is busy for
one event, including the work in the next frames. A script creates the events at random places. re-run: time from the
request for another β for all attention until the new result is drawn, including the search. memory: private memory of
the renderer process after every layer has been opened, also for a saved page.
"""

import os
import random
import re
import statistics
import threading
import time
from pathlib import Path
from urllib.parse import quote

from turns import shared_options, store

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the command
KINDS = {
    "30 tokens, 6 layers x 8 heads": {
        "family": "translation",
        "search": "greedy",
        "n_tokens": 30,
        "shape": {"d_model": 512, "d_ff": 2048, "n_heads": 8, "n_encoder_layers": 6, "n_decoder_layers": 6},
    },
    "the same, beam 4": {
        "family": "translation",
        "search": "beam",
        "n_tokens": 30,
        "shape": {"d_model": 512, "d_ff": 2048, "n_heads": 8, "n_encoder_layers": 6, "n_decoder_layers": 6},
    },
    "512 tokens, 12 layers x 12 heads": {
        "family": "language-model",
        "search": "greedy",
        "n_tokens": 512,
        "shape": {"d_model": 768, "d_ff": 3072, "n_heads": 12, "n_encoder_layers": 0, "n_decoder_layers": 12},
    },
}
WATCH = """
const frame = window.requestAnimationFrame.bind(window);
window.busy = 0;
window.requestAnimationFrame = act => frame(now => {
    const began = performance.now();
    act(now);
    document.body && document.body.getBoundingClientRect();
    window.busy += performance.now() - began;
});
const look = () => window.attendo?.drawn?.heat ? (window.firstMap = performance.now()) : frame(look);
frame(look);
"""
HOVER = """async places => {
    const canvas = document.querySelector('canvas[data-name="heat"]');
    const box = canvas.getBoundingClientRect();
    const frames = () => new Promise(done => setTimeout(done, 50));
    const costs = [];
    for (const [x, y] of places) {
        const before = window.busy, began = performance.now();
        const place = { clientX: box.x + x * box.width, clientY: box.y + y * box.height, bubbles: true };
        canvas.dispatchEvent(new PointerEvent("pointermove", place));
        canvas.getBoundingClientRect();
        const own = performance.now() - began;
        await frames();
        costs.push(own + window.busy - before);
    }
    return costs;
}"""
SLIDE = """async values => {
    const slider = document.getElementById("beta");
    const frames = () => new Promise(done => setTimeout(done, 120));
    const costs = [];
    for (const value of values) {
        const before = window.busy, began = performance.now();
        slider.value = Number(slider.min || 0) + value * (Number(slider.max || 1) - Number(slider.min || 0));
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        slider.getBoundingClientRect();
        const own = performance.now() - began;
        await frames();
        costs.push(own + window.busy - before);
    }
    return costs;
}"""
RERUN = """async beta => {
    const { app } = window.attendo, drawn = window.attendo.drawn.heat, began = performance.now();
    app.state.set({ edits: [{ kind: "beta", path: "*", head: null, beta }] });
    await app.relook();
    while (window.attendo.drawn.heat === drawn) await new Promise(done => setTimeout(done, 1));
    return performance.now() - began;
}"""
OPEN_ALL = """async () => {
    const { app } = window.attendo;
    for (const stack of app.look.stacks) for (const layer of stack.layers) for (const head of [0, layer.heads - 1]) {
        app.choose(layer.path, head);
        await app.numbers(layer.path);
        await new Promise(done => setTimeout(done, 60));
    }
}"""


def session_of(kind):
    """Return a session for a model with random weights."""
    import torch

    from attendo.data import forecasts
    from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    from attendo.decoding.options import DecodingConfig
    from attendo.inference import Generator, Translator
    from attendo.microscope.session import Session
    from attendo.models import ModelConfig, build_model

    texts = [source for source, _ in forecasts.pairs(400, "train")]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="word", vocab_size=400))
    translates = kind["family"] == "translation"
    torch.manual_seed(1)
    architecture = "encoder-decoder" if translates else "decoder"
    config = ModelConfig(
        architecture=architecture, vocab_size=tokenizer.vocab_size, dropout=0.0, max_len=600, **kind["shape"]
    )
    model = build_model(config).eval()
    search = DecodingConfig(max_length_ratio=1.0, max_length_extra=1)  # random weights do not generate an end
    user = Translator(model, tokenizer, search) if translates else Generator(model, tokenizer)
    return Session.prepared(user)  # as `attendo look --serve` does


def text_of(n_words, seed):
    """Return a text of `n_words` words, which differs for each seed."""
    from attendo.data import forecasts

    words = sorted({word for source, _ in forecasts.pairs(60, "train") for word in source.split()})
    return " ".join(random.Random(seed).choices(words, k=n_words))


def forward_seconds(session, look):
    """Return the seconds of a plain forward pass of the same model on the same tokens."""
    import torch

    result = session._result_of(look["key"])
    with torch.inference_mode():
        began = time.perf_counter()
        result.model(**result.inputs)
        return time.perf_counter() - began


def private_megabytes(name):
    """Return the private memory of the largest renderer process on this machine, in MB."""
    found = [0.0]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            if "--type=renderer" in command and name in command:
                rollup = (folder / "smaps_rollup").read_text()
                found.append(sum(map(int, re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.M))) / 1000)
        except OSError:
            continue  # the process has ended, or belongs to another user
    return max(found)


def measured(browser, kind, rounds):
    """Return the figures of one model."""
    from attendo.microscope.server import LookServer

    session = session_of(kind)
    server = LookServer(session)
    threading.Thread(target=server.run, daemon=True).start()
    n_words = kind["n_tokens"] - 1
    found = {name: [] for name in ("first map", "forward", "beside the forward", "hover", "slider", "re-run")}
    for seed in range(rounds + 1):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(WATCH)
        page.wait_for_timeout(1500)
        state = f"#text={quote(text_of(n_words, seed))}&max_tokens=0&search={kind['search']}"
        page.goto(server.address + state)
        while not page.evaluate("!!(window.attendo?.ready && window.firstMap)"):
            page.wait_for_timeout(20)
        first = page.evaluate("window.firstMap")
        forward = 1000 * forward_seconds(session, page.evaluate("window.attendo.app.look"))
        if seed:  # the first round is a warm-up
            found["first map"].append(first)
            found["forward"].append(forward)
            found["beside the forward"].append(first - forward)
        if seed == rounds:
            found |= events(page, rounds)
            page.evaluate(OPEN_ALL)
            found["memory"] = [private_megabytes("chrom")]
            found["JS heap"] = [page.evaluate("performance.memory.usedJSHeapSize") / 1e6]
        page.close()
    server.stop()
    return {name: summary(values) for name, values in found.items()}


def events(page, rounds):
    """Measure hover, slider and re-run on an open page."""
    draw = random.Random(0)
    page.evaluate("document.querySelector('canvas[data-name=\"heat\"]').scrollIntoView()")
    hover = page.evaluate(HOVER, [[draw.uniform(0.4, 0.95), draw.uniform(0.4, 0.95)] for _ in range(3 * rounds)])
    slider = page.evaluate(SLIDE, [draw.random() for _ in range(rounds)])
    page.wait_for_timeout(2000)
    rerun = [page.evaluate(RERUN, round(draw.uniform(0.5, 2.0), 4)) for _ in range(rounds)]
    return {"hover": hover, "slider": slider, "re-run": rerun}


def summary(values):
    """Return median, quartiles and maximum, in milliseconds or megabytes."""
    if len(values) < 4:
        return {"median": round(statistics.median(values), 2)}
    low, _, high = statistics.quantiles(values, n=4)
    ends = {"lower quartile": low, "upper quartile": high, "largest": max(values)}
    return {"median": round(statistics.median(values), 2), **{name: round(x, 2) for name, x in ends.items()}}


def main():
    """Measure both models, and store the results."""
    options = shared_options(__doc__, rounds=20).parse_args()
    import shutil

    import torch
    from playwright.sync_api import sync_playwright

    torch.set_num_threads(2)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("no Chromium on this machine: install it (apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        )
        version = browser.version
        found = {name: measured(browser, kind, options.rounds) for name, kind in KINDS.items()}
        browser.close()
    for name, figures in found.items():
        print(name)
        for figure, told in figures.items():
            print(f"  {figure:<20} {told}")
    result = {"rounds": options.rounds, "threads": 2, "chromium": version, "figures": found}
    store("microscope", result, options.out)


if __name__ == "__main__":
    main()
