"""The command `attendo plan`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendo.cli.options import OneJson, OptionGroup, argument, option, use_threads, with_groups
from attendo.cli.reporting import say
from attendo.cli.train import AnyOptions, SettingOptions, TrainingOptions, require_data
from attendo.display.formats import duration, plural
from attendo.display.tables import table_lines

if TYPE_CHECKING:
    from attendo.runs.planning import Outcome, PaperPlan, Plan
    from attendo.training.costs import Accelerator

GIB = 2**30
LABEL = 12
BESIDE = "plus 0.3 GiB for Python and torch; malloc may keep another 40%"
COMPILED = "plus up to 0.5 GiB for kernels that oneDNN compiles, one per length"
HOUR, DAY = 3600.0, 86_400.0
FEWEST_TOKENS = 4096
"""The smallest useful batch per accelerator, in tokens. Smaller matrix multiplications do not use its full speed."""
SHARDINGS = {"ddp": "DDP", "fsdp2": "FSDP2"}


@dataclass(frozen=True)
class AcceleratorOptions(OptionGroup):
    """The options for the estimate on accelerators."""

    accelerator: str = option("NAME", "Accelerator type: a100, h100, h200 or b200.", default="h100")
    accelerators: int | None = option("N", "Number of accelerators for an additional estimate.", min=1)
    tokens: float | None = option("T", "Batch size over all accelerators, in tokens (default: as in the run).", min=1)
    mfu: float = option("U", "Assumed model FLOP/s utilization (MFU): share of the peak.", min=0.01, max=1, default=0.4)
    flops: float | None = option("F", "Peak FLOP/s of an accelerator (default: from its data sheet).", min=1)
    memory: float | None = option("B", "Memory of an accelerator, in bytes (default: from its data sheet).", min=1)
    bandwidth: float | None = option("B", "Network bytes/s in each direction (default: from the data sheet).", min=1)
    per_node: int | None = option("N", "Number of accelerators per machine (default: 8).", min=1)
    latency: float | None = option("S", "Network latency in seconds (default: from the data sheet).", min=0)

    def named(self) -> Accelerator:
        """Return the chosen accelerator. The options replace numbers of its data sheet."""
        from attendo.training.costs import named_accelerator

        changes = ("flops", "memory", "bandwidth", "per_node", "latency")
        return named_accelerator(self.accelerator, {name: getattr(self, name) for name in changes})


@with_groups
def plan(
    *,
    task: str = argument("TASK", "Task, for example translation, as in `attendo train`.", default="translation"),
    data: AnyOptions,
    chosen: SettingOptions,
    training: TrainingOptions,
    paper_of: AcceleratorOptions,
    price: float | None = option("P", "Price per hour of one accelerator, or of this machine.", min=0),
    as_json: OneJson = False,
) -> int:
    """Predict the model size, memory, speed and time of a training run before you start it.

    The command reads the data and chooses the settings that you leave out, as `attendo train` does. Then the command
    runs training updates for 5 seconds to measure their speed. Each printed number is marked as measured, counted,
    predicted or assumed. The option --accelerators N adds an estimate for N accelerators.

    Example: attendo plan --train pairs.tsv --accelerators 8 --accelerator h100
    """
    from attendo.runs.planning import carried, plain, plan_run
    from attendo.runs.task_specs import family_of

    accelerator = paper_of.named()
    family = family_of(task)
    tables = chosen.joined(family, data.settings_of(task) | training.settings())
    require_data(tables)
    use_threads(training.threads)
    made = plan_run(family, tables, say, training.device, init_from=chosen.init_from)
    n = paper_of.accelerators
    paper = None if n is None else carried(made, n, accelerator, paper_of.tokens, paper_of.mfu)
    if as_json:
        print(json.dumps(plain(made, paper)))
        return 0
    lines = plan_lines(made, None if paper else price) + (paper_lines(paper, price) if paper else [])
    print("\n".join(lines))
    return 0


def plan_lines(plan: Plan, price: float | None) -> list[str]:
    """Return the plan for this machine as lines of at most 80 columns."""
    lines = [*_size_lines(plan), *_pace_lines(plan)]
    if price is not None:
        hours = plan.seconds / HOUR / (plan.threads if plan.pace.clock == "CPU" else 1)
        lines.append(("cost", f"{hours * price:,.2f} at {price:g} per hour, for the updates"))
    return [f"{label:<{LABEL}} {text}" for label, text in lines]


def _size_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the lines on data, model, operations and memory."""
    batches = f"{plan.batches_per_epoch:,} batches per epoch"
    yield "data", f"{plan.n_rows:,} rows, {plan.n_tokens:,} tokens, {batches}"
    yield "tokenizer", plan.tokenizer
    model = plan.model
    layers = "+".join(str(n) for n in (model.n_encoder_layers, model.n_decoder_layers) if n)
    yield "model", f"{model.architecture}, {layers} layers, d_model {model.d_model}, d_ff {model.d_ff}"
    yield "parameters", f"{plan.n_parameters:,} (counted)"
    for name, count in plan.parameters.items():
        yield "", f"{name} {count:,}"
    if plan.trained != plan.n_parameters:
        adapted = f", with LoRA adapters of rank {plan.lora.rank}" if plan.lora.rank else ""
        yield "", f"trained {plan.trained:,}{adapted}"
    training = plan.training
    sides = {"source": plan.load.source, "target": plan.load.target}
    tokens = " and ".join(f"{n:,.0f} {side}" for side, n in sides.items() if n)
    times = f"{training.accumulation} x " if training.accumulation > 1 else ""
    yield "update", f"{times}{tokens} tokens (mean)"
    total = f"{si(plan.flops * plan.updates)}FLOP in total"
    yield "operations", f"{si(plan.flops)}FLOP per update (counted), {total}"
    memory = plan.memory
    yield "memory", f"{size(memory.peak)} at most (predicted), of {size(plan.machine_memory)} available"
    for parts in (("weights", "states", "gradients"), ("activations", "loss")):
        yield "", ", ".join(f"{name} {size(getattr(memory, name))}" for name in parts)
    yield "", BESIDE
    if plan.device == "cpu" and training.precision in ("bfloat16", "float16"):
        yield "", COMPILED
    if memory.peak >= plan.machine_memory:
        yield "", "too large for this machine: use a smaller model or batch"


def _pace_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the lines on speed and time."""
    pace = plan.pace
    update = f"{seconds_text(pace.seconds, 'CPU-s' if pace.clock == 'CPU' else 's')} per update"
    tokens = f"{plan.tokens_per_update / pace.seconds:,.0f} tokens/s"
    how = "measured" if pace.measured else "assumed"
    yield "speed", f"{update} in {plan.training.precision}, {tokens} ({how})"
    if not pace.measured:
        yield "", f"no update was run: {pace.why}"
    peak = f"{si(pace.peak)}FLOP/s of a 2,048³ matrix multiplication"
    yield "", f"{plan.share_of_peak:.0%} of the {peak} (measured)"
    yield "end", f"{plan.training.planned_end}: {plural(plan.updates, 'update')}, {plan.epochs:.1f} epochs"
    yield "time", f"{span(plan.seconds)} {_time_of(plan)}"
    yield "", f"plus {span(plan.preparation)} of preparation (measured), evaluation and saving"


def _time_of(plan: Plan) -> str:
    if plan.pace.clock == "wall":
        return "for the updates (wall time)"
    return "of CPU time for the updates" + (f" ({plan.threads} threads)" if plan.threads > 1 else "")


def paper_lines(paper: PaperPlan, price: float | None) -> list[str]:
    """Return the estimate for many accelerators: a table, and from which batch size communication costs no time."""
    one = paper.accelerator
    link = f"{si(one.link(paper.world))}B/s to the next accelerator"
    heads = ["", "memory each", "compute", "traffic", "per update", "bound by", "total"]
    heads += [] if price is None else ["cost"]
    lines = [
        "",
        f"estimate for {paper.world:,} x {one.name} in bfloat16; nothing is measured",
        f"{'data sheet':<{LABEL}} {si(one.flops)}FLOP/s, {si(one.memory)}B, {link}",
        f"{'assumed':<{LABEL}} {paper.mfu:.0%} of that peak, {seconds_text(one.latency)} network latency",
        f"{'update':<{LABEL}} {paper.tokens:,.0f} tokens in total, {paper.tokens / paper.world:,.0f} each;"
        f" {plural(paper.updates, 'update')}",
        "",
        *table_lines(heads, [_row(outcome, paper, price) for outcome in paper.outcomes]),
    ]
    for outcome in paper.outcomes:
        name = SHARDINGS[outcome.sharding]
        if not outcome.fits:
            lines.append(f"{name} does not fit into {si(one.memory)}B: use more accelerators or fewer tokens")
        if outcome.hidden_from > 1:
            hidden = paper.tokens * outcome.hidden_from
            lines.append(f"{name}: from {hidden:,.0f} tokens per update, traffic adds no time (--tokens)")
    if round(paper.tokens / paper.world) < FEWEST_TOKENS:
        lines.append(f"batches this small rarely reach {paper.mfu:.0%} of the peak: increase --tokens")
    return lines


def _row(outcome: Outcome, paper: PaperPlan, price: float | None) -> list[str]:
    time = outcome.time
    memory = f"{si(outcome.memory)}B" + ("" if outcome.fits else " !")
    spans = [seconds_text(n) for n in (time.compute, time.traffic, time.total)]
    cost = [] if price is None else [f"{paper.world * outcome.seconds / HOUR * price:,.2f}"]
    return [SHARDINGS[outcome.sharding], memory, *spans, time.binds, span(outcome.seconds), *cost]


def span(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes, hours or days.

    >>> span(0.2), span(107.0), span(300_000.0)
    ('0.2 s', '1:47 min', '3.5 days')
    """
    if seconds < 10:
        return seconds_text(seconds)
    return f"{seconds / DAY:,.1f} days" if seconds > 2 * DAY else duration(seconds)


def si(value: float) -> str:
    """Return a number with three digits and an SI prefix, to be followed by a unit.

    >>> si(15.58e9), si(989e12), si(80e9), si(12.0)
    ('15.6 G', '989 T', '80 G', '12 ')
    """
    prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]
    place = 0
    while value >= 999.5 and place < len(prefixes) - 1:
        value, place = value / 1000, place + 1
    return f"{value:.3g} {prefixes[place]}"


def size(n_bytes: float) -> str:
    """Return a number of bytes in MiB or GiB.

    >>> size(124_655_616), size(25_276_502_016)
    ('119 MiB', '23.5 GiB')
    """
    return f"{n_bytes / GIB:.1f} GiB" if n_bytes >= GIB else f"{n_bytes / 2**20:.0f} MiB"


def seconds_text(seconds: float, unit: str = "s") -> str:
    """Return a duration in seconds as text with three significant digits.

    >>> seconds_text(4.92e-6), seconds_text(0.0029), seconds_text(0.155, "CPU-s"), seconds_text(75.0)
    ('4.92 µs', '2.9 ms', '0.155 CPU-s', '75 s')
    """
    for factor, prefix in ((1e6, "µ"), (1e3, "m")):
        if seconds * factor < 100 and unit == "s":
            return f"{seconds * factor:.3g} {prefix}{unit}"
    return f"{seconds:.3g} {unit}"
