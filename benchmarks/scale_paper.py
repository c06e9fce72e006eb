"""The tables of docs/en/cost-model.md that require no measurement: three models on up to 1,000 accelerators.

    python benchmarks/scale_paper.py

attendo.training.costs and scaling compute all values from the figures in the document. Nothing is measured.
"""

import math

from attendo.models import ModelConfig
from attendo.runs.planning import job_of
from attendo.training.costs import (
    ACCELERATORS,
    MFU,
    Cells,
    Formats,
    Load,
    hidden_from,
    on_paper,
    sharded_bytes,
    training_flops,
    training_memory,
    training_multiplications,
    update_time,
)

VOCAB = 37_000
PAIR = 30  # tokens of each side
CONTEXT = 4096
CRITICAL = {"big": 400e3, "2048": 400e3, "7B": 2.5e6}
H100 = ACCELERATORS["h100"]
HOUR = 3600.0
YEARS = {"one in 5.8 years": 54 * 24 * 16_384 / 419, "one in 11 months": 7.9 * 1024}
"""Hours between failures of one accelerator: 419 in 54 days of 16,384 (Llama team 2024); 7.9 hours of a job of 1,024
(Kokolis et al. 2025).
"""


def checkpoint_interval(saving: float, between_failures: float) -> float:
    """Return the seconds of work between checkpoints that lose the least time. A checkpoint takes `saving` seconds.

    √(2 δ M) · (1 + √(δ/2M)/3 + δ/18M) - δ (Daly 2006), whose first factor is from Young 1974. For δ ≥ 2M it is M.

    >>> round(checkpoint_interval(60.0, 86_400.0))  # a minute to save, a failure a day
    3180
    """
    if saving >= 2 * between_failures:
        return between_failures
    ratio = saving / (2 * between_failures)
    first = math.sqrt(2 * saving * between_failures)
    return first * (1 + math.sqrt(ratio) / 3 + ratio / 9) - saving


def lost_share(interval: float, saving: float, restart: float, between_failures: float) -> float:
    """Return the share of time that random failures (a Poisson process) cost: 1 - work done / time passed.

    Work τ between checkpoints takes M e^{R/M} (e^{(τ+δ)/M} - 1) (Daly 2006), with δ seconds to save, R to restart and M
    between failures. For small τ, the share is δ/τ + τ/2M + R/M.

    >>> round(lost_share(3180.0, 60.0, 300.0, 86_400.0), 4)
    0.0401
    """
    m = between_failures
    passed = m * math.exp(restart / m) * math.expm1((interval + saving) / m)
    return 1.0 - interval / passed


def models():
    """Return three models by name: the paper's big model, 12+12 layers with d 2048, and a decoder of 7 billion."""
    shared = {"vocab_size": VOCAB, "attention_bias": False}
    big = ModelConfig(d_model=1024, d_ff=4096, n_heads=16, n_encoder_layers=6, n_decoder_layers=6, **shared)
    wide = ModelConfig(d_model=2048, d_ff=8192, n_heads=32, n_encoder_layers=12, n_decoder_layers=12, **shared)
    seven = ModelConfig(
        architecture="decoder",
        vocab_size=32_000,
        d_model=4096,
        d_ff=11_008,
        n_heads=32,
        n_encoder_layers=0,
        n_decoder_layers=32,
        norm="rms",
        norm_first=True,
        feed_forward_gated=True,
        activation="silu",
        attention_bias=False,
        feed_forward_bias=False,
        positions="rotary",
        max_len=CONTEXT,
        dropout=0.0,
        tie="none",
    )
    return {"big": on_paper(big), "2048": on_paper(wide), "7B": on_paper(seven)}


def row_of(model):
    """Return the load, the cells and the number of counted tokens of one row, which is a sentence pair or a window."""
    if model.config.architecture == "decoder":
        pairs = CONTEXT * CONTEXT / 2
        return Load(target=CONTEXT, output=CONTEXT, target_pairs=pairs), Cells(0, CONTEXT, CONTEXT), CONTEXT
    load = Load(PAIR, PAIR, PAIR, PAIR**2, PAIR**2 / 2, PAIR**2)
    return load, Cells(PAIR, PAIR, PAIR, PAIR**2, 0, PAIR**2), PAIR


def job(name, model, tokens):
    """Return the training job of a model with `tokens` target tokens per update."""
    load, _, per_row = row_of(model)
    return job_of(model, tokens / per_row * training_flops(training_multiplications(model), load))


def memory(model, tokens, checkpointing=False):
    """Return the bytes of an accelerator that processes `tokens` target tokens at once, in bfloat16."""
    _, cells, per_row = row_of(model)
    rows = tokens / per_row
    scaled = Cells(*(rows * value for value in vars(cells).values()))
    return training_memory(model, scaled, Formats(half=True, on_gpu=True), checkpointing=checkpointing)


def table(heads, rows):
    """Print a table in Markdown."""
    print("\n| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def main():
    """Print all tables."""
    all_models = models()
    rows = []
    for name, model in all_models.items():
        of = job(name, model, 1.0)
        states = memory(model, 0.0)
        held = states.weights + states.gradients + states.states
        activations = memory(model, 8192).activations
        recomputed = memory(model, 8192, True).activations
        rows.append(
            (name, f"{of.parameters:,}", f"{of.flops / 1e9:.2f} GFLOP", f"{held / 1e9:.1f} GB",
             f"{held / 1e9 / 1000:.3f} GB", f"{activations / 1e9:.1f} GB", f"{recomputed / 1e9:.1f} GB")
        )  # fmt: skip
    table(["model", "parameters", "a target token", "states", "a 1,000th", "activations", "recomputed"], rows)

    rows = []
    for name, model in all_models.items():
        for world in (8, 64, 512, 1000):
            one = job(name, model, 8192.0 * world)
            cells = []
            for sharding in ("ddp", "fsdp2"):
                time = update_time(one, world, H100, sharding)
                cells += [f"{1e3 * time.traffic:.1f}", f"{time.compute / time.total:.0%}",
                          f"{8192 * hidden_from(one, world, H100, sharding):,.0f}"]  # fmt: skip
            rows.append((name, f"{world:,}", f"{1e3 * time.compute:.1f}", *cells))
    heads = ["model", "N", "products ms", "DDP traffic ms", "busy", "hidden from"]
    table([*heads, "FSDP2 traffic ms", "busy", "hidden from"], rows)

    rows = []
    for name, model in all_models.items():
        tokens = CRITICAL[name]
        one = job(name, model, tokens)
        sharding = "fsdp2"
        speeds = []
        for world in (1, 8, 64, 512, 1000):
            time = update_time(one, world, H100, sharding)
            speeds.append(f"{1e3 * time.total:.0f} ms, {time.compute / time.total:.0%}")
        rows.append((name, f"{tokens:,.0f}", *speeds))
    table(["model", "tokens an update", "N = 1", "8", "64", "512", "1,000"], rows)

    rows = []
    for name, model in all_models.items():
        per_row = row_of(model)[2]
        one = job(name, model, 1.0)
        each = H100.flops * MFU / one.flops
        saved = 12 * one.parameters
        rows.append((name, f"{each:,.0f}", f"{1000 * each:,.0f}", f"{each / per_row:,.1f}",
                     f"{saved / 1e9:.1f} GB", f"{saved / 1e9:.0f} s", f"{saved / 1e9 / 125:.2f} s"))  # fmt: skip
    table(["model", "tokens/s each", "tokens/s", "rows/s each", "checkpoint", "one writer", "125 writers"], rows)

    rows = []
    for said, hours in YEARS.items():
        for saving in (1.0, 10.0, 100.0):
            between = hours * HOUR / 1000
            interval = checkpoint_interval(saving, between)
            lost = [lost_share(x, saving, 600.0, between) for x in (interval, HOUR)]
            rows.append((said, f"{24 / hours * 1000:.2f}", f"{between / HOUR:.1f} h", f"{saving:.0f} s",
                         f"{interval / 60:.0f} min", f"{lost[0]:.1%}", f"{lost[1]:.1%}"))  # fmt: skip
    heads = ["an accelerator fails", "a day of 1,000", "between", "saving stops work", "best interval"]
    table([*heads, "lost then", "lost with an hour"], rows)

    seven = all_models["7B"]
    short = Load(target=2048, output=2048, target_pairs=2048**2 / 2)
    flops = training_flops(training_multiplications(seven), short) / 2048
    share = flops * 1e12 / (82_432 * HOUR * ACCELERATORS["a100"].flops)
    print(f"\n7B, 10^12 tokens in 82,432 A100-hours (Touvron et al. 2023): {share:.1%} of the peak")
    hours = 1e12 * job("7B", seven, 1.0).flops / (1000 * H100.flops * MFU) / HOUR
    print(f"7B, 10^12 tokens on 1,000 H100 at {MFU:.0%}: {hours:.0f} hours")
    one, states = job("7B", seven, CRITICAL["7B"]), memory(seven, 0.0)
    held = states.weights + states.gradients + states.states
    for sharding in ("ddp", "fsdp2"):
        each = memory(seven, 4096, True)
        n_bytes = sharded_bytes(one, 1000, held, each.activations + each.loss, sharding)
        print(f"7B on each of 1,000, {sharding}, 4,096 tokens recomputed: {n_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
