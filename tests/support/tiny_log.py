"""A run folder with nothing but a log and what describes it, for reports."""

import json

NASTY = "</title><script>alert(1)</script> & \"quoted\" 'x'"


def entry(kind, n, seconds, **more):
    times = {"cpu_seconds": seconds, "wall_seconds": seconds}
    return {"kind": kind, "step": n, "epoch": 0, **more, **times}


def step(n, seconds=None, loss=0.0):
    """An update; without a loss of its own that of a run that learns."""
    seconds = n / 10 if seconds is None else seconds
    loss = 8 / (1 + n / 40) if loss == 0.0 else loss
    numbers = {"loss": loss, "rate": 1e-4 * n, "gradient_norm": 1.5, "tokens": round(1000 * seconds)}
    return entry("step", n, seconds, **numbers)


def evaluation(n, best, **measures):
    return entry("evaluation", n, n / 10 + 5, **measures, best=best, note="")


def at(n, kind, note="", **more):
    return entry(kind, n, n / 10, note=note, **more)


ENTRIES = [
    step(20),
    step(40),
    evaluation(40, True, loss=3.0, perplexity=20.1, bleu=12.0, unheard_of=0.5),
    at(40, "checkpoint", "step-40", decay_start=None, end=None),
    at(50, "skipped", "not finite in decoder.blocks.0"),
    step(60, seconds=11.0, loss=None),
    at(70, "advice", NASTY),
    evaluation(80, True, loss=2.5, perplexity=12.2, bleu=17.5),
    evaluation(90, False, loss=2.6, perplexity=13.4, bleu=17.0),
    at(90, "checkpoint", "step-90", decay_start=60, end=100),
    step(100, seconds=20.0),
    at(100, "end", "all 100 steps done", decay_start=60, end=100),
]
CARD = {
    "task": "translation",
    "languages": {"source": "en", "target": NASTY},
    "parameters": 1234567,
    "data": {"pairs": 5000},
}


def log_folder(
    path, entries=ENTRIES, card=CARD, config="[model]\nd_model = 64\nn_heads = 4\n[training]\nsteps = 100\n"
):
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if card is not None:
        (path / "card.json").write_text(json.dumps(card))
    if config is not None:
        (path / "config.toml").write_text(config)
    return path
