"""What can be seen of a run in its losses, and what to do about it: each rule is a pure function of plain numbers.

A rule gives an Advice or None; those of outputs and heads are in `coach_collapse`. The thresholds lie well outside all
that sound runs show: docs/log.md has the figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from statistics import fmean, median
from textwrap import wrap

BLOCK = 10
"""Steps whose losses are averaged before a rule looks at them."""
EARLY_BLOCKS, RECENT_BLOCKS, LONG_BLOCKS = 5, 10, 60
"""Of the start that a loss must have left behind, of what it is now, and of a standstill at few tokens."""
JUMP_BLOCKS = 20
"""Before a leap."""
PATIENCE, AFTER_WARMUP = 400, 200
"""Steps before a loss must have fallen at all."""
JUMP, JUMP_SPREADS, JUMP_NATS, UNTRAINED = 1.3, 6.0, 0.1, 1.25
"""A leap: times the median, robust standard deviations and nats above it; and times an untrained model's loss."""
FALL, STILL_UNTRAINED, RISE, HIGH_RATE = 0.02, 0.95, 1.01, 0.02
"""The share of a loss that must be gone where it is near the untrained model's or the rate this high; a rise."""
FEW_TOKENS, STANDSTILL, STILL_HIGH = 256, 0.025, 0.6
"""Tokens in an update; the share of a loss that must be gone within 300 steps; the share of the early loss left."""
OVER_BEST, FAR_OVER_BEST, OVER_NATS = 1.05, 1.25, 0.02
"""Times the lowest validation loss, with and without the deciding measure's agreement, and nats above it."""
EVALUATIONS = 3
"""In a row that must say the same before the coach does."""
WIDTH, INDENT = 79, "    "


@dataclass(frozen=True)
class Advice:
    """What the rule of this name has seen, and the remedy; neither has a capital or a full stop."""

    rule: str
    seen: str
    remedy: str

    @property
    def note(self) -> str:
        """Both, for a log.

        >>> Advice("no_fall", "the loss is high", "lower it").note
        'the loss is high; lower it'
        """
        return f"{self.seen}; {self.remedy}"


def advice_lines(note: str) -> list[str]:
    """The note of an Advice for a terminal, three lines at most.

    >>> advice_lines("the loss is high; lower it")
    ['coach: the loss is high; lower it']
    """
    # what is to be typed stays together
    whole = re.sub(r"(--set|attendo) (?=\w)", "\\1\xa0", f"coach: {note}")
    lines = wrap(whole, WIDTH, subsequent_indent=INDENT, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def much_lower(learning_rate: float) -> str:
    """The setting of a tenth of the rate.

    >>> much_lower(0.14)
    '--set training.learning_rate=0.014'
    """
    return f"--set training.learning_rate={learning_rate / 10:.2g}"


# ---- losses of training


def loss_jump(
    blocks: Sequence[float], untrained: float | None, step: int, learning_rate: float
) -> Advice | None:
    """A loss that leaps up, or is above that of the untrained model.

    blocks: mean losses (nats) of BLOCK steps each, oldest first, the last being what is looked at. untrained: the first
    of the run, if its weights were drawn. A leap is to JUMP times the median, and out of the spread: JUMP_SPREADS
    robust standard deviations (1.4826 times the median distance from it), after Marian's --throw-on-divergence.

    >>> loss_jump([2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 6.0], 8.0, 500, 0.002).seen
    'the loss leapt from 2.00 to 6.00 before step 500'
    >>> loss_jump([2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.3], 8.0, 500, 0.002)
    """
    now, before = blocks[-1], blocks[-1 - JUMP_BLOCKS : -1]
    if untrained is not None and len(blocks) >= 3 and min(blocks[-3:]) > UNTRAINED * untrained:
        return Advice(
            "loss_jump",
            f"at step {step:,} the loss is {now:.2f}, above the {untrained:.2f} of the untrained model",
            f"take a much lower rate: {much_lower(learning_rate)}",
        )
    if len(before) < RECENT_BLOCKS:
        return None
    middle = median(before)
    spread = 1.4826 * median(abs(loss - middle) for loss in before)
    if now < JUMP * middle or now - middle < max(JUMP_SPREADS * spread, JUMP_NATS):
        return None
    return Advice(
        "loss_jump",
        f"the loss leapt from {middle:.2f} to {now:.2f} before step {step:,}",
        f"if it does not come back, take half the rate: --set training.learning_rate={learning_rate / 2:.2g}",
    )


def no_fall(
    blocks: Sequence[float], early: float, untrained: float, step: int, warmup: int, peak: float
) -> Advice | None:
    """A loss that is no lower than at the start, long after the warm-up.

    blocks, untrained: as in `loss_jump`. early: mean loss of steps 51 to 100. peak: the highest rate so far. A loss
    that has left the untrained model's behind may stand still for long at a sound rate, as masked models' do before
    they attend to anything; then only a rise counts.

    >>> no_fall([6.9] * 20, 6.95, 7.0, 800, 400, 0.002).seen
    'after 800 steps the loss is 6.90, and was 6.95 by step 100'
    >>> no_fall([6.9] * 20, 6.95, 7.0, 500, 400, 0.002), no_fall([6.9] * 20, 6.95, 9.0, 800, 400, 0.002)
    (None, None)
    """
    if step < max(PATIENCE, warmup + AFTER_WARMUP) or len(blocks) < RECENT_BLOCKS:
        return None
    now = median(blocks[-RECENT_BLOCKS:])  # a leap is another matter
    suspect = now >= STILL_UNTRAINED * untrained or peak >= HIGH_RATE
    if now < ((1 - FALL) if suspect else RISE) * early:
        return None
    other = much_lower(peak) if peak >= 1e-4 else "--set training.learning_rate=0.001"
    return Advice(
        "no_fall",
        f"after {step:,} steps the loss is {now:.2f}, and was {early:.2f} by step 100",
        f"nothing is learned at this rate: {other} may do; `attendo doctor` checks the data",
    )


def long_warmup(warmup: int, end: int | None, learning_rate: float) -> Advice | None:
    """A run that ends before its rate has reached the peak. end: its last step, None while it is not known.

    >>> long_warmup(400, 300, 0.002).seen
    'the rate warms up for 400 steps, and the run ends after 300'
    >>> long_warmup(400, 4000, 0.002), long_warmup(400, None, 0.002)
    (None, None)
    """
    if end is None or end > warmup or warmup < 2:
        return None
    return Advice(
        "long_warmup",
        f"the rate warms up for {warmup:,} steps, and the run ends after {end:,}",
        f"so it never reaches {learning_rate:.2g}: --set training.warmup_steps={max(1, end // 10)}, or train longer",
    )


def small_batch(
    blocks: Sequence[float], early: float, tokens: float, batch_tokens: int, accumulation: int
) -> Advice | None:
    """A loss that stays high at an unchanged rate, where an update sees very few tokens.

    blocks, early: as in `no_fall`, all at the peak of the rate. tokens: read in one update. On the corpora of
    docs/log.md a trained model's gradient has as much noise as signal at some 10,000 tokens or more (the simple noise
    scale of McCandlish et al. 2018, eq. 2.9); at FEW_TOKENS the noise rules.

    >>> small_batch([4.1] * 60, 5.4, 58.2, 64, 1).seen
    'the loss has been about 4.10 for 600 steps, and an update sees 58 tokens'
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
        f"the loss has been about {now:.2f} for {LONG_BLOCKS * BLOCK} steps, and an update sees {tokens:.0f} tokens",
        f"larger batches get further: --set training.batch_tokens={batch_tokens * times}, or"
        f" --set training.accumulation={accumulation * times}",
    )


# ---- validation


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: its step, the mean training loss since the last one, the validation loss, both in nats.

    is_best: whether the deciding measure was the best so far.
    """

    step: int
    training_loss: float
    validation_loss: float
    is_best: bool


def overfitting(evaluations: Sequence[Evaluated], dropout: float) -> Advice | None:
    """A validation loss that has been rising while the training loss fell.

    evaluations: from the one of the lowest validation loss on. The last two are OVER_BEST times it, and the deciding
    measure has not been best for EVALUATIONS of them; or all those are FAR_OVER_BEST times it.

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
    more = f", or --set model.dropout={min(0.5, dropout + 0.1):.1g}" if dropout < 0.5 else ""
    return Advice(
        "overfitting",
        f"since step {best.step:,} validation loss rose from {best.validation_loss:.3g} to {now.validation_loss:.3g},"
        f" training loss fell from {best.training_loss:.3g} to {now.training_loss:.3g}",
        f"rows are learned by heart: give more{more}; --set training.patience=3 ends a run there",
    )
