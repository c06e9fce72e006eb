"""What can be seen of a run in its outputs and its attention heads, and what to do: the coach's other rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from attendo.training.coach_rules import EVALUATIONS, Advice, much_lower

MANY = 8
"""Outputs, or words of one, from which on there is anything to say of how alike they are."""
ALIKE, VARIED = 0.9, 0.7
"""The share of outputs that are alike, and of what is wanted at most."""
FEW_KINDS, MANY_KINDS = 0.4, 0.8
"""Different texts a row: of outputs at most, of what is wanted at least."""
DEAD = 0.005
"""Of the measures of a head: nothing."""

# ---- outputs


@dataclass(frozen=True)
class Outputs:
    """How alike the outputs for some validation rows are: counts out of `n`, for what was given and what was wanted.

    empty: without text. alike: with the most frequent text. kinds: different texts. repeating: that are mostly one word
    (or sign) over and over. copied: the same as their input.
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
    """Counts of (input, wanted, given) texts.

    >>> outputs([("a b", "x", "y"), ("c d", "z", "y"), ("e", "w", "e")])  # doctest: +ELLIPSIS
    Outputs(n=3, empty=0, alike=2, wanted_alike=1, kinds=2, wanted_kinds=3, repeating=0, ...)
    """
    given, wanted = Counter(s[2] for s in samples), Counter(s[1] for s in samples)
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
    """Whether at least 8 words, or signs where there are fewer words, are mostly the same one.

    >>> is_repeating("of of of of of of of of"), is_repeating("のののののののののの"), is_repeating("a b a b")
    (True, True, False)
    """
    words = text.split()
    parts = words if len(words) >= MANY else list("".join(words))
    return len(parts) >= MANY and Counter(parts).most_common(1)[0][1] >= VARIED * len(parts)


def output_collapse(history: Sequence[Outputs], learning_rate: float) -> Advice | None:
    """Outputs that are all the same or of few kinds, one word over and over, or copies, where what is wanted is not.

    history: of the evaluations after the warm-up, oldest first; the last EVALUATIONS must agree.

    >>> stuck = outputs([(f"source {i}", f"target {i}", "the the") for i in range(20)])
    >>> output_collapse([stuck] * 3, 0.002).seen
    '20 of 20 sample outputs are the same'
    """
    last = history[-EVALUATIONS:]
    if len(last) < EVALUATIONS or min(each.n for each in last) < MANY:
        return None
    now = last[-1]
    lower = f"take a lower rate: {much_lower(learning_rate)}"
    check = "see whether sources and targets belong together, or"
    if all(o.alike >= ALIKE * o.n and o.wanted_alike <= VARIED * o.n for o in last):
        seen = (
            f"{now.alike} of {now.n} sample outputs are {'empty' if now.empty == now.alike else 'the same'}"
        )
        return Advice("output_collapse", seen, f"the input is not used: {check} {lower}")
    if all(o.kinds <= FEW_KINDS * o.n and o.wanted_kinds >= MANY_KINDS * o.n for o in last):
        seen = f"{now.n} sample outputs are only {now.kinds} different texts"
        return Advice("output_collapse", seen, f"the input is hardly used: {check} {lower}")
    if all(o.repeating >= ALIKE * o.n and o.wanted_repeating <= (1 - VARIED) * o.n for o in last):
        seen = f"{now.repeating} of {now.n} sample outputs are one word over and over"
        return Advice("output_collapse", seen, lower)
    if all(o.copied >= ALIKE * o.n and o.wanted_copied <= (1 - VARIED) * o.n for o in last):
        seen = f"{now.copied} of {now.n} sample outputs are copies of their input"
        remedy = "look for rows whose target is their source, and for swapped columns: `attendo doctor`"
        return Advice("output_collapse", seen, remedy)
    return None


# ---- heads


@dataclass(frozen=True)
class HeadMeasure:
    """What one attention head does on some inputs.

    layer: its path. spread: mean total-variation distance of its weights from their mean over the inputs, 0 where it
    looks the same way at all of them. share: of what differs between inputs, how much it adds to the residual stream: a
    root mean square over that of the stream.
    """

    layer: str
    head: int
    spread: float
    share: float

    @property
    def name(self) -> str:
        """Layer and number, from 0."""
        return f"{self.layer}[{self.head}]"


def names_of_dead(heads: Sequence[HeadMeasure]) -> list[str]:
    """The heads that do nothing.

    Those whose weights are the same for all inputs and which add next to nothing: either alone can be sound, since
    heads may look at fixed positions (Voita et al. 2019) or rest on a delimiter (Clark et al. 2019). And all those of a
    layer that together add next to nothing.

    >>> names_of_dead([HeadMeasure("a", 0, 0.0, 0.0), HeadMeasure("a", 1, 0.0, 0.5), HeadMeasure("b", 0, 0.5, 0.001)])
    ['a[0]', 'b[0]']
    """
    shares: dict[str, float] = {}
    for head in heads:
        shares[head.layer] = hypot(shares.get(head.layer, 0.0), head.share)
    return [
        head.name for head in heads if shares[head.layer] < DEAD or (head.spread < DEAD and head.share < DEAD)
    ]


def dead_heads(
    dead: Sequence[str], before: Sequence[str], n_heads: int, learning_rate: float, warmup: int
) -> Advice | None:
    """Heads that did nothing (`names_of_dead`) at this evaluation and at the one before, of n_heads.

    >>> dead_heads(["a[0]", "b[1]"], ["b[1]"], 8, 0.002, 400).seen
    '1 of 8 heads does nothing: b[1]'
    """
    both = [name for name in dead if name in before]
    if not both:
        return None
    more = f" and {len(both) - 1} more" if len(both) > 1 else ""
    return Advice(
        "dead_heads",
        f"{len(both)} of {n_heads} heads {'do' if more else 'does'} nothing: {both[0]}{more}",
        f"a lower rate or a longer warm-up keeps them: {much_lower(learning_rate)},"
        f" --set training.warmup_steps={max(100, 2 * warmup)}",
    )
