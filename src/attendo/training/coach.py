"""The coach: rules that detect problems in training and suggest a remedy. Each rule gives advice once per run.

The coach's memory is saved in every checkpoint, so a resumed run receives the same advice as an uninterrupted run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from math import hypot, log2
from statistics import fmean, median
from typing import Any

from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Report

MANY = 8
"""Smallest number of outputs, or of words in an output, that the rules judge."""
ALIKE, VARIED = 0.9, 0.7
"""Smallest share of equal outputs, and largest share of equal references, for advice on equal outputs."""
FEW_KINDS, MANY_KINDS = 0.4, 0.8
"""Largest number of different outputs per row, and smallest number of different references per row, for advice."""
DEAD = 0.005
"""Value of `spread` and of `share` below which an attention head has no effect."""

# ---- outputs


@dataclass(frozen=True)
class Outputs:
    """Numbers of equal, repetitive and copied texts among the model's outputs for `n` validation rows.

    `alike` counts the most frequent output, `kinds` the different outputs, `repeating` the outputs that mostly repeat
    one word or character, and `copied` the outputs that equal their input. The fields `wanted_…` count the references.
    """

    n: int
    empty: int
    alike: int
    wanted_alike: int
    kinds: int
    wanted_kinds: int
    repeating: int
    wanted_repeating: int
    copied: int
    wanted_copied: int


def outputs(samples: Sequence[tuple[str, str, str]]) -> Outputs:
    """Count equal, repetitive and copied texts in samples of the form (input, reference, output).

    >>> outputs([("a b", "x", "y"), ("c d", "z", "y"), ("e", "w", "e")])  # doctest: +ELLIPSIS
    Outputs(n=3, empty=0, alike=2, wanted_alike=1, kinds=2, wanted_kinds=3, repeating=0, ...)
    """
    given, wanted = (Counter(sample[i] for sample in samples) for i in (2, 1))
    return Outputs(
        n=len(samples),
        empty=given[""],
        alike=max(given.values(), default=0),
        wanted_alike=max(wanted.values(), default=0),
        kinds=len(given),
        wanted_kinds=len(wanted),
        repeating=sum(map(is_repeating, given.elements())),
        wanted_repeating=sum(map(is_repeating, wanted.elements())),
        copied=sum(source == found for source, _, found in samples),
        wanted_copied=sum(source == target for source, target, _ in samples),
    )


def is_repeating(text: str) -> bool:
    """Return whether a text mostly repeats one word, or one character if it has fewer than 8 words.

    At least 8 words or characters are required, of which 70% must be equal.

    >>> is_repeating("of of of of of of of of"), is_repeating("のののののののののの"), is_repeating("a b a b")
    (True, True, False)
    """
    words = text.split()
    parts = words if len(words) >= MANY else list("".join(words))
    return len(parts) >= MANY and Counter(parts).most_common(1)[0][1] >= VARIED * len(parts)


def output_collapse(history: Sequence[Outputs], learning_rate: float) -> Advice | None:
    """Return advice if the outputs are equal, repetitive or copies of the input, although the references are not.

    There is advice only if the problem occurs in each of the last EVALUATIONS evaluations after the warm-up.

    >>> stuck = outputs([(f"source {i}", f"target {i}", "the the") for i in range(20)])
    >>> output_collapse([stuck] * 3, 0.002).seen
    '20 of 20 sample outputs are the same'
    """
    last = history[-EVALUATIONS:]
    if len(last) < EVALUATIONS or min(each.n for each in last) < MANY:
        return None
    now = last[-1]
    lower = f"lower the learning rate: {much_lower(learning_rate)}"
    check = "check that sources and targets are aligned, or"
    if all(o.alike >= ALIKE * o.n and o.wanted_alike <= VARIED * o.n for o in last):
        equal = "empty" if now.empty == now.alike else "the same"
        seen = f"{now.alike} of {now.n} sample outputs are {equal}"
        return Advice("output_collapse", seen, f"the model ignores its input: {check} {lower}")
    if all(o.kinds <= FEW_KINDS * o.n and o.wanted_kinds >= MANY_KINDS * o.n for o in last):
        seen = f"{now.n} sample outputs contain only {now.kinds} different texts"
        return Advice("output_collapse", seen, f"the model hardly uses its input: {check} {lower}")
    if all(o.repeating >= ALIKE * o.n and o.wanted_repeating <= (1 - VARIED) * o.n for o in last):
        seen = f"{now.repeating} of {now.n} sample outputs repeat one word"
        return Advice("output_collapse", seen, lower)
    if all(o.copied >= ALIKE * o.n and o.wanted_copied <= (1 - VARIED) * o.n for o in last):
        seen = f"{now.copied} of {now.n} sample outputs are copies of their input"
        remedy = "check for untranslated rows and swapped columns with `attendo doctor`"
        return Advice("output_collapse", seen, remedy)
    return None


# ---- heads


@dataclass(frozen=True)
class HeadMeasure:
    """Effect of an attention head on some inputs.

    Attributes:
        layer: Path of the attention layer.
        head: Number of the head, from 0.
        spread: Mean total-variation distance between the head's attention weights and their mean over the inputs.
        share: Variation of the head's contribution between inputs (root mean square), relative to that of the residual
            stream.
    """

    layer: str
    head: int
    spread: float
    share: float

    @property
    def name(self) -> str:
        """Path of the layer and number of the head from 0, for example "a[0]"."""
        return f"{self.layer}[{self.head}]"


def names_of_dead(heads: Sequence[HeadMeasure]) -> list[str]:
    """Return the names of the heads that have no effect, alone or as a whole layer.

    A single head has no effect if its weights are equal for all inputs and it adds almost nothing. One of the two
    conditions alone is common, because heads attend to fixed positions (Voita et al. 2019) or to a delimiter (Clark et
    al. 2019).

    >>> names_of_dead([HeadMeasure("a", 0, 0.0, 0.0), HeadMeasure("a", 1, 0.0, 0.5), HeadMeasure("b", 0, 0.5, 0.001)])
    ['a[0]', 'b[0]']
    """
    shares: dict[str, float] = {}
    for head in heads:
        shares[head.layer] = hypot(shares.get(head.layer, 0.0), head.share)
    return [h.name for h in heads if shares[h.layer] < DEAD or (h.spread < DEAD and h.share < DEAD)]


def dead_heads(
    dead: Sequence[str], before: Sequence[str], n_heads: int, learning_rate: float, warmup: int
) -> Advice | None:
    """Return advice on heads that had no effect (`names_of_dead`) at this evaluation and at the previous evaluation.

    >>> dead_heads(["a[0]", "b[1]"], ["b[1]"], 8, 0.002, 400).seen
    '1 of 8 heads has no effect: b[1]'
    """
    both = [name for name in dead if name in before]
    if not both:
        return None
    more = f" and {len(both) - 1} more" if len(both) > 1 else ""
    return Advice(
        "dead_heads",
        f"{len(both)} of {n_heads} heads {'have' if more else 'has'} no effect: {both[0]}{more}",
        f"use a lower learning rate or a longer warm-up: {much_lower(learning_rate)}, "
        f"`training.warmup_steps={max(100, 2 * warmup)}`",
    )


BLOCK = 10
"""Number of training steps in a block. The rules use the mean loss of each block."""
EARLY_BLOCKS, RECENT_BLOCKS, LONG_BLOCKS, JUMP_BLOCKS = 5, 10, 60, 20
"""Numbers of blocks: for the early loss, the present loss, a standstill with few tokens, and the loss before a jump."""
PATIENCE, AFTER_WARMUP = 400, 200
"""Number of steps, and number of steps after the warm-up, before which a loss does not need to have fallen."""
JUMP, JUMP_SPREADS, JUMP_NATS, UNTRAINED = 1.3, 6.0, 0.2, 1.25
"""Limits of `loss_jump`: factor on the median, robust standard deviations and nats above the median, and factor on the
loss of an untrained model.
"""
FALL, STILL_UNTRAINED, RISE, HIGH_RATE = 0.02, 0.95, 1.01, 0.02
"""Limits of `no_fall`: required fall of the loss, share of the untrained loss, rise of the loss, and high learning
rate.
"""
FEW_TOKENS, STANDSTILL, STILL_HIGH = 256, 0.025, 0.6
"""Limits of `small_batch`: tokens per update, required fall of the loss in 300 steps, and share of the early loss."""
OVER_BEST, FAR_OVER_BEST, OVER_NATS = 1.05, 1.25, 0.02
"""Limits of `overfitting`: factors on the lowest validation loss, with and without agreement of the deciding measure,
and nats above that loss.
"""
EVALUATIONS = 3
"""Number of consecutive evaluations that must agree."""
SETTLED = 0.25
"""Share of a run after which outputs and heads are judged. At the beginning of a run, all outputs are similar."""
KEPT_EVALUATIONS = 8


@dataclass(frozen=True)
class Advice:
    """Advice of the coach: rule name, problem and remedy. Both texts begin in lowercase and end without a period."""

    rule: str
    seen: str
    remedy: str

    @property
    def note(self) -> str:
        """Problem and remedy in one line, for a log.

        >>> Advice("no_fall", "the loss is high", "lower it").note
        'the loss is high; lower it'
        """
        return f"{self.seen}; {self.remedy}"


def much_lower(learning_rate: float) -> str:
    """Return the setting for a tenth of this learning rate, as text.

    >>> much_lower(0.14)
    '`training.learning_rate=0.014`'
    """
    return f"`training.learning_rate={learning_rate / 10:.2g}`"


# ---- losses of training


def loss_jump(blocks: Sequence[float], untrained: float | None, step: int, learning_rate: float) -> Advice | None:
    """Return advice if the loss jumps or exceeds the loss of an untrained model.

    `blocks` are mean losses in nats over BLOCK steps each. The last block is a jump if its loss is at least JUMP times
    the median of the blocks before it, and exceeds this median by JUMP_SPREADS robust standard deviations (1.4826 times
    the median absolute deviation), as in Marian's --throw-on-divergence.

    >>> loss_jump([2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 6.0], 8.0, 500, 0.002).seen
    'the loss jumped from 2.00 to 6.00 before step 500'
    >>> loss_jump([2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.3], 8.0, 500, 0.002)
    """
    now, before = blocks[-1], blocks[-1 - JUMP_BLOCKS : -1]
    if untrained is not None and len(blocks) >= 3 and min(blocks[-3:]) > UNTRAINED * untrained:
        return Advice(
            "loss_jump",
            f"at step {step:,} the loss is {now:.2f}, above the {untrained:.2f} of an untrained model",
            f"use a much lower learning rate: {much_lower(learning_rate)}",
        )
    if len(before) < RECENT_BLOCKS:
        return None
    middle = median(before)
    spread = 1.4826 * median(abs(loss - middle) for loss in before)
    if now < JUMP * middle or now - middle < max(JUMP_SPREADS * spread, JUMP_NATS):
        return None
    return Advice(
        "loss_jump",
        f"the loss jumped from {middle:.2f} to {now:.2f} before step {step:,}",
        f"if it does not recover, halve the learning rate: `training.learning_rate={learning_rate / 2:.2g}`",
    )


def no_fall(
    blocks: Sequence[float], early: float, untrained: float, step: int, warmup: int, peak: float
) -> Advice | None:
    """Return advice if the loss is not lower than at the start, long after the warm-up.

    `early` is the mean loss of steps 51 to 100, and `peak` is the highest learning rate so far. A constant loss well
    below that of an untrained model is accepted unless `peak` is high, as masked language models stagnate at first.

    >>> no_fall([6.9] * 20, 6.95, 7.0, 800, 400, 0.002).seen
    'after 800 steps the loss is 6.90 (it was 6.95 by step 100)'
    >>> no_fall([6.9] * 20, 6.95, 7.0, 500, 400, 0.002), no_fall([6.9] * 20, 6.95, 9.0, 800, 400, 0.002)
    (None, None)
    """
    if step < max(PATIENCE, warmup + AFTER_WARMUP) or len(blocks) < RECENT_BLOCKS:
        return None
    now = median(blocks[-RECENT_BLOCKS:])  # a single jump has its own rule
    suspect = now >= STILL_UNTRAINED * untrained or peak >= HIGH_RATE
    if now < ((1 - FALL) if suspect else RISE) * early:
        return None
    other = much_lower(peak) if peak >= 1e-4 else "`training.learning_rate=0.001`"
    return Advice(
        "no_fall",
        f"after {step:,} steps the loss is {now:.2f} (it was {early:.2f} by step 100)",
        f"the model is not learning: try {other}, or check the data with `attendo doctor`",
    )


def long_warmup(warmup: int, end: int | None, learning_rate: float) -> Advice | None:
    """Return advice if the run ends before the learning rate has reached its peak.

    `end` is the last step of the run, or None if the last step is not known yet.

    >>> long_warmup(400, 300, 0.002).seen
    'the learning rate warms up for 400 steps, but the run ends after 300'
    >>> long_warmup(400, 4000, 0.002), long_warmup(400, None, 0.002)
    (None, None)
    """
    if end is None or end > warmup or warmup < 2:
        return None
    return Advice(
        "long_warmup",
        f"the learning rate warms up for {warmup:,} steps, but the run ends after {end:,}",
        f"it never reaches {learning_rate:.2g}: set `training.warmup_steps={max(1, end // 10)}`, or train longer",
    )


def small_batch(
    blocks: Sequence[float], early: float, tokens: float, batch_tokens: int, accumulation: int
) -> Advice | None:
    """Return advice if the loss stays high at a constant learning rate with very few tokens per update.

    The gradient of a trained model has as much noise as signal at about 10,000 tokens per update (docs/log.md;
    McCandlish et al. 2018, eq. 2.9).

    >>> small_batch([4.1] * 60, 5.4, 58.2, 64, 1).seen
    'the loss has stayed at about 4.10 for 600 steps with 58 tokens per update'
    >>> small_batch([4.1] * 60, 5.4, 1900.0, 2048, 1)
    """
    if len(blocks) < LONG_BLOCKS or tokens >= FEW_TOKENS:
        return None
    half = LONG_BLOCKS // 2
    before, now = fmean(blocks[-LONG_BLOCKS:-half]), fmean(blocks[-half:])
    if now < (1 - STANDSTILL) * before or now < STILL_HIGH * early:
        return None
    times = 2 ** round(log2(4 * FEW_TOKENS / max(1.0, tokens)))
    return Advice(
        "small_batch",
        f"the loss has stayed at about {now:.2f} for {LONG_BLOCKS * BLOCK} steps with {tokens:.0f} tokens per update",
        f"use larger batches: `training.batch_tokens={batch_tokens * times}`, or "
        f"`training.accumulation={accumulation * times}`",
    )


# ---- validation


@dataclass(frozen=True)
class Evaluated:
    """Result of one evaluation: mean training loss since the previous evaluation, and validation loss, in nats."""

    step: int
    training_loss: float
    validation_loss: float
    is_best: bool


def overfitting(evaluations: Sequence[Evaluated], dropout: float) -> Advice | None:
    """Return advice if the validation loss rises while the training loss falls.

    The last two validation losses must be at least OVER_BEST times the minimum, while the deciding measure has not
    improved for EVALUATIONS evaluations. Alternatively, the last EVALUATIONS validation losses must be at least
    FAR_OVER_BEST times the minimum.

    >>> rows = [(716, 0.445, 0.481), (895, 0.403, 0.51), (1074, 0.359, 0.51), (1253, 0.318, 0.52)]
    >>> overfitting([Evaluated(*row, is_best=row[0] == 716) for row in rows], 0.1).seen
    'since step 716 validation loss rose from 0.481 to 0.52, training loss fell from 0.445 to 0.318'
    """
    best, later = evaluations[0], evaluations[1:]
    if len(later) < EVALUATIONS:
        return None
    now, last = later[-1], later[-EVALUATIONS:]
    lowest = max(best.validation_loss, 1e-9)
    times = [each.validation_loss / lowest for each in last]
    over = min(times[-2:]) >= OVER_BEST and not any(each.is_best for each in last)
    if not (over or min(times) >= FAR_OVER_BEST) or now.validation_loss - lowest < OVER_NATS:
        return None
    if now.training_loss > 0.95 * best.training_loss:
        return None
    more = f", or `model.dropout={min(0.5, dropout + 0.1):.1g}`" if dropout < 0.5 else ""
    return Advice(
        "overfitting",
        f"since step {best.step:,} validation loss rose from {best.validation_loss:.3g} to "
        f"{now.validation_loss:.3g}, training loss fell from {best.training_loss:.3g} to "
        f"{now.training_loss:.3g}",
        f"the model is overfitting: add data{more}; `training.patience=3` stops the run early",
    )


@dataclass
class Memory:
    """State of the coach during a run, which checkpoints store.

    Attributes:
        said: Names of the rules that have given advice.
        losses: Training losses of the unfinished block.
        blocks: Mean losses of the last LONG_BLOCKS complete blocks.
        untrained, early: Mean loss of steps 1 to 10, and mean losses of the blocks of steps 51 to 100, in nats.
        total, count: Sum and number of the training losses since the last evaluation.
        evaluations: Evaluation with the lowest validation loss, and the evaluations after it.
        outputs: Counts of suspicious outputs in the last evaluations.
        dead: Names of the heads that had no effect at the last evaluation.
        peak, at_peak: Highest learning rate so far, and number of complete blocks since it was reached.
    """

    said: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    untrained: float | None = None
    early: list[float] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    evaluations: list[Evaluated] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    peak: float = 0.0
    at_peak: int = 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Memory:
        """Build the memory from the values that `Coach.as_json` returned."""
        memory = cls(**deepcopy(dict(values)))
        memory.evaluations = [Evaluated(**each) for each in values.get("evaluations", [])]
        memory.outputs = [Outputs(**each) for each in values.get("outputs", [])]
        return memory


class Coach:
    """Coach that gives advice on the reports of a training run. Each rule gives advice once per run.

    `memory` is the state from a checkpoint, as returned by `as_json`. `fresh` states whether the weights were
    initialized at random; otherwise, the loss need not fall much.

    >>> coach = Coach(TrainingConfig(steps=9, warmup_steps=20), dropout=0.1)
    >>> from attendo.training.optimizer import Horizon
    >>> from attendo.training.checkpoints import Progress
    >>> progress = Progress(step=1, horizon=Horizon(None, 9))
    >>> step = Report("step", progress, loss=8.0, rate=1e-4)
    >>> [advice.rule for advice in coach.hear(step)], coach.hear(step)
    (['long_warmup'], [])
    """

    def __init__(
        self,
        training: TrainingConfig,
        dropout: float,
        memory: Mapping[str, Any] | None = None,
        fresh: bool = True,
    ):
        self.training = training
        self.dropout = dropout
        self.fresh = fresh
        self.memory = Memory.from_json(memory or {})

    def as_json(self) -> dict[str, Any]:
        """Return the memory as JSON values of a few kilobytes, which can be saved at every step."""
        return asdict(self.memory)

    def judges_outputs(self, report: Report) -> bool:
        """Return whether the rules on outputs and heads apply to this report."""
        # a note means other weights than those of the run
        is_evaluation = report.kind == "evaluation" and not report.note
        return is_evaluation and report.done >= SETTLED and report.progress.step > self.training.warmup_steps

    def hear(self, report: Report, heads: Sequence[HeadMeasure] = ()) -> list[Advice]:
        """Return the new advice on a report. `heads` are the measures of attention heads at this evaluation, if any."""
        found: list[Advice | None] = []
        if report.kind == "step":
            found = self._step(report)
        elif report.kind == "evaluation" and not report.note:
            found = self._evaluation(report, heads)
        new = [advice for advice in found if advice is not None and advice.rule not in self.memory.said]
        self.memory.said += [advice.rule for advice in new]
        return new

    def _step(self, report: Report) -> list[Advice | None]:
        memory = self.memory
        config = self.training
        step = report.progress.step
        memory.total += report.loss
        memory.count += 1
        memory.losses.append(report.loss)
        if report.rate > memory.peak:
            memory.peak = report.rate
            memory.at_peak = 0
        found = [long_warmup(config.warmup_steps, report.progress.horizon.end, config.learning_rate)]
        if len(memory.losses) < BLOCK:
            return found
        mean = fmean(memory.losses)
        memory.losses.clear()
        memory.blocks = [*memory.blocks, mean][-LONG_BLOCKS:]
        memory.at_peak = memory.at_peak + 1 if report.rate == memory.peak else 0
        if step == BLOCK:
            memory.untrained = mean
        elif EARLY_BLOCKS < step // BLOCK <= 2 * EARLY_BLOCKS:
            memory.early.append(mean)
        return found + self._losses(report)

    def _losses(self, report: Report) -> list[Advice | None]:
        memory = self.memory
        config = self.training
        progress = report.progress
        untrained = memory.untrained if self.fresh else None
        found = [loss_jump(memory.blocks, untrained, progress.step, config.learning_rate)]
        if len(memory.early) < EARLY_BLOCKS:
            return found
        early = fmean(memory.early)
        if untrained is not None:
            warmup = config.warmup_steps
            peak = memory.peak
            found.append(no_fall(memory.blocks, early, untrained, progress.step, warmup, peak))
        if self.fresh and memory.at_peak >= LONG_BLOCKS:
            tokens = progress.tokens / progress.step
            found.append(small_batch(memory.blocks, early, tokens, config.batch_tokens, config.accumulation))
        return found

    def _evaluation(self, report: Report, heads: Sequence[HeadMeasure]) -> list[Advice | None]:
        memory = self.memory
        config = self.training
        evaluation = report.evaluation
        assert evaluation is not None
        found: list[Advice | None] = []
        if "loss" in evaluation.measures and memory.count >= BLOCK:
            mean, loss = memory.total / memory.count, evaluation.measures["loss"]
            self._keep(Evaluated(report.progress.step, mean, loss, report.is_best))
            found.append(overfitting(memory.evaluations, self.dropout))
            memory.total = 0.0
            memory.count = 0
        if self.judges_outputs(report):
            memory.outputs = [*memory.outputs, outputs(evaluation.samples)][-EVALUATIONS:]
            found.append(output_collapse(memory.outputs, config.learning_rate))
            if heads:
                before, memory.dead = memory.dead, names_of_dead(heads)
                rate = config.learning_rate
                warmup = config.warmup_steps
                found.append(dead_heads(memory.dead, before, len(heads), rate, warmup))
        return found

    def _keep(self, evaluated: Evaluated) -> None:
        """Keep the evaluation with the lowest validation loss, and the latest evaluations after it."""
        memory = self.memory
        if not memory.evaluations or evaluated.validation_loss < memory.evaluations[0].validation_loss:
            memory.evaluations = [evaluated]
        else:
            best, *later = memory.evaluations
            memory.evaluations = [best, *[*later, evaluated][-KEPT_EVALUATIONS:]]
