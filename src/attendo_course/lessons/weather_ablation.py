"""Do heads, depth and norm help? The question that the weather blog left open, asked of its hardest task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attendo.display.i18n import Localized
from attendo_course.lessons.arrays import margin
from attendo_course.lessons.lesson import Conclusion, Options, Piece, Table
from attendo_course.lessons.weather_contest import DEEP, ONE_LAYER, contest, task_table
from attendo_course.lessons.weather_models import BLOG_ATTENTION, BLOG_HEADS, LINEAR, transformer_contender

VARIANTS = (
    BLOG_ATTENTION,
    BLOG_HEADS,
    transformer_contender(1, 1),
    ONE_LAYER,
    transformer_contender(2, 1),
    DEEP,
    transformer_contender(3, 4),
    transformer_contender(1, 4, norm=False),
    transformer_contender(2, 4, norm=False),
)


@dataclass(frozen=True)
class Effect:
    """The difference that a part makes: its mean over seeds, and half the width of its 95 % interval."""

    name: Localized
    difference: float
    margin: float

    @property
    def verdict(self) -> int:
        """1: it helps, -1: it harms, 0: these seeds do not show either."""
        return 0 if not abs(self.difference) > self.margin else (1 if self.difference > 0 else -1)


def effect_of(
    name: Localized, with_it: Sequence[Sequence[float]], without: Sequence[Sequence[float]]
) -> Effect:
    """The accuracy with a part less that without it, pair by pair of models, seed by seed.

    Student's interval over the seeds; of one seed it is infinite.

    >>> found = effect_of(Localized("norm", "正規化"), [[0.9, 0.8]], [[0.5, 0.6]])
    >>> round(found.difference, 6), round(found.margin, 4), found.verdict
    (0.3, 1.2706, 0)
    """
    by_seed = np.mean(np.array(with_it) - np.array(without), axis=0)
    return Effect(name, float(by_seed.mean()), margin(by_seed.tolist()))


def ablation_step(options: Options) -> Iterator[Piece]:
    """The sum of any ten days, with one part more or less."""
    yield Localized(
        "Do heads, depth and norm help? The blog left this open. The hardest task again, but its ten days are any days,"
        " so that nothing but the sum tells the eleventh, and sequences seldom come twice.",
        "ヘッド数、深さ、正規化は役に立つのか。ブログが残した問いである。最も難しいタスクをもう一度使うが、今度の 10 日"
        "間は任意の並びである。11 日目を決めるのは和だけで、同じ系列はめったに現れない。",
    )
    held = contest("dotmod-any", (LINEAR, *VARIANTS), options.seeds or 5, options.steps)
    yield task_table(held, "dotmod-any")
    accuracy = {
        contender.name: held.values(i, "accuracy") for i, contender in enumerate(held.contenders) if i
    }
    found = effects([accuracy[variant.name] for variant in VARIANTS])
    yield effects_table(found)
    yield Conclusion(answer(found, options.seeds or 5))


def effects(accuracy: Sequence[Sequence[float]]) -> list[Effect]:
    """What each part does; accuracy: by variant, in the order of VARIANTS, and by seed."""
    attention, heads_alone, one_one, one_four, two_one, two_four, three, bare_one, bare_two = accuracy
    return [
        effect_of(
            Localized("4 heads in bare attention", "アテンションのみでの 4 ヘッド"),
            [heads_alone],
            [attention],
        ),
        effect_of(
            Localized("the rest of the block", "ブロックの残りの部分"),
            [one_one, one_four],
            [attention, heads_alone],
        ),
        effect_of(Localized("4 heads in 1 layer", "1 層での 4 ヘッド"), [one_four], [one_one]),
        effect_of(Localized("4 heads in 2 layers", "2 層での 4 ヘッド"), [two_four], [two_one]),
        effect_of(Localized("a second layer", "2 層目"), [two_one, two_four], [one_one, one_four]),
        effect_of(Localized("a third layer", "3 層目"), [three], [two_four]),
        effect_of(Localized("the norms", "正規化"), [one_four, two_four], [bare_one, bare_two]),
    ]


def effects_table(found: Sequence[Effect]) -> Table:
    """One row a part."""
    said = {
        1: Localized("helps", "役に立つ"),
        -1: Localized("harms", "害になる"),
        0: Localized("not shown", "差は示されない"),
    }
    return Table(
        "effects",
        Localized(
            "What each part adds to the accuracy, with its 95 % interval over the seeds",
            "各部分による正答率の増加と、シードにわたる 95 % 信頼区間",
        ),
        (
            Localized("part", "部分"),
            Localized("difference", "差"),
            Localized("interval", "信頼区間"),
            Localized("verdict", "判定"),
        ),
        tuple(
            (
                e.name,
                f"{e.difference:+.3f}",
                "" if math.isinf(e.margin) else f"± {e.margin:.3f}",
                said[e.verdict],
            )
            for e in found
        ),
    )


def answer(found: Sequence[Effect], seeds: int) -> Localized:
    """The sentence that the table amounts to."""
    groups = [[e.name for e in found if e.verdict == verdict] for verdict in (1, -1, 0)]
    english = [
        f"{say}: {', '.join(name.en for name in names)}"
        for say, names in zip(("Helpful", "Harmful", "No difference shown"), groups, strict=True)
        if names
    ]
    japanese = [
        f"{say}:{'、'.join(f'「{name.ja}」' for name in names)}"
        for say, names in zip(("役に立つもの", "害になるもの", "差が示されないもの"), groups, strict=True)
        if names
    ]
    return Localized(
        f"{'. '.join(english)} (for this sum, this width, one learning rate, {seeds} seed{'s' * (seeds > 1)}).",
        f"{'。'.join(japanese)}（この和、この幅、1 つの学習率、シード {seeds} 個での結果）。",
    )
