"""Drawing of the figures about temperature, entropy and the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attendo.display.i18n import Language
from attendo_course.book import passage, translated
from attendo_course.figures import style
from attendo_course.figures.arrays import EntropyByDimension, Rates, WeightsByTemperature, weights_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED_BETA = 20.0
QUANTILES = (0.1, 0.9)


def draw_temperature(found: WeightsByTemperature, figure: Figure, language: Language) -> None:
    """Draw one curve per score over log β, with separate points for β = 0 and β = ∞.

    >>> from matplotlib.figure import Figure
    >>> from attendo_course.figures.arrays import temperature
    >>> figure = Figure()
    >>> draw_temperature(temperature(), figure, "en")
    >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    ['s = 1', 's = 0.5', 's = 0.2']
    """
    scores = ", ".join(f"{score:g}" for score in found.scores)
    title = translated("From soft to hard attention")
    note = passage("draw_curves.draw_temperature", scores=scores)
    style.heading(figure, language, title, note)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    low, high = float(found.betas[0]), float(found.betas[-1])
    ends = (low / 4, high * 4)
    for key, (color, size) in enumerate(zip((style.BLUE, style.VERMILION, style.GREEN), (14, 9.5, 5), strict=True)):
        axes.plot(found.betas, found.weights[:, key], color=color, label=f"s = {found.scores[key]:g}")
        for at, beta, weights in ((ends[0], low, found.soft), (ends[1], high, found.hard)):
            nearest = found.weights[0 if beta == low else -1, key]
            axes.plot([at, beta], [weights[key], nearest], color=color, linewidth=1.2, linestyle=":")
            axes.plot([at], [weights[key]], "o", color=color, markersize=size, clip_on=False)
    _mark_beta(axes, found)
    n_keys = len(found.scores)
    for at, text, height in ((ends[0], f"1/{n_keys}", found.soft[0]), (ends[1], "one-hot", 0.5)):
        axes.annotate(
            text,
            (at, height),
            xytext=(0, 12),
            textcoords="offset points",
            ha="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    decades = [10.0**power for power in range(round(np.log10(low)), round(np.log10(high)) + 1)]
    axes.set_xticks([ends[0], *decades, ends[1]], ["0", *(f"{beta:g}" for beta in decades), "∞"])
    axes.minorticks_off()
    axes.set_xlim(ends[0] / 2, ends[1] * 2)
    axes.set_ylim(-0.03, 1.04)
    style.label_axes(axes, language, translated("inverse temperature β"), translated("attention weight"))
    axes.legend(loc="center left", bbox_to_anchor=(0.13, 0.72))


def _mark_beta(axes: Axes, found: WeightsByTemperature) -> None:
    """Write the weight of the best key at one β into the graph."""
    weight = float(weights_at(found.scores, MARKED_BETA).max())
    axes.plot([MARKED_BETA], [weight], "o", color=style.INK, markersize=6, zorder=3)
    axes.annotate(
        f"β = {MARKED_BETA:g}: {weight:.5f}",
        (MARKED_BETA, weight),
        xytext=(12, -34),
        textcoords="offset points",
        fontsize=11.5,
        arrowprops={"arrowstyle": "-", "color": style.FAINT, "linewidth": 0.9},
    )


def draw_entropy(found: EntropyByDimension, figure: Figure, language: Language) -> None:
    """Draw the mean entropy over the draws with and without the scale, in a band that contains most draws.

    >>> from matplotlib.figure import Figure
    >>> from attendo_course.figures.arrays import entropies
    >>> figure = Figure()
    >>> draw_entropy(entropies((4, 64), draws=5), figure, "en")
    >>> figure.axes[0].get_ylabel()
    'entropy (nats)'
    """
    draws = found.scaled.shape[1]
    n_keys = round(np.exp(found.uniform))
    low, high = (f"{share:.0%}".rstrip("%") for share in QUANTILES)
    title = translated("Why the scores are divided by √d")
    note = passage("draw_curves.draw_entropy", n_keys=n_keys, draws=draws, low=low, high=high)
    style.heading(figure, language, title, note)
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    names = translated("softmax(qKᵀ/√d)"), translated("softmax(qKᵀ)")
    for entropies, name, color, rise in zip(
        (found.scaled, found.unscaled), names, (style.BLUE, style.VERMILION), (0, 9), strict=True
    ):
        axes.fill_between(
            found.dimensions, *np.quantile(entropies, QUANTILES, axis=1), color=color, alpha=0.18, linewidth=0
        )
        mean = entropies.mean(1)
        axes.plot(found.dimensions, mean, "o-", color=color, markersize=5)
        axes.annotate(
            f"{name.text(language)}\n{mean[-1]:.2f}",
            (found.dimensions[-1], mean[-1]),
            xytext=(10, rise),
            textcoords="offset points",
            color=color,
            va="center",
            fontsize=11.5,
            fontweight=style.emphasis(language),
            annotation_clip=False,
        )
    axes.axhline(found.uniform, color=style.FAINT, linewidth=1.2, linestyle="--")
    uniform = translated("uniform: ln {n_keys} = {found.uniform:.4f}", n_keys=n_keys, found=found)
    axes.text(found.dimensions[0], found.uniform + 0.05, uniform.text(language), fontsize=11, color=style.FAINT)
    axes.set_xticks(found.dimensions, [f"{d}" for d in found.dimensions])
    axes.minorticks_off()
    axes.set_ylim(0, 3.1)
    style.label_axes(axes, language, translated("dimension d of query and key"), translated("entropy (nats)"))


def draw_noam(found: Rates, figure: Figure, language: Language) -> None:
    """Draw one curve per number of warm-up steps, with the peak of the first curve as a number.

    >>> from matplotlib.figure import Figure
    >>> from attendo_course.figures.arrays import rates
    >>> figure = Figure()
    >>> draw_noam(rates(), figure, "en")
    >>> any("6.98771 × 10⁻⁴ at step 4,000" in text.get_text() for text in figure.axes[0].texts)
    True
    """
    title = translated("The learning rate of the Transformer")
    note = passage("draw_curves.draw_noam")
    style.heading(figure, language, title, note)
    axes = figure.add_subplot()
    colors = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILION)
    order = sorted(range(len(found.warmups)), key=lambda row: found.warmups[row])
    for row in order:
        main = row == 0
        axes.plot(
            found.steps,
            found.rates[row] * 1e4,
            color=colors[row % len(colors)],
            linewidth=3.0 if main else 1.6,
            zorder=3 if main else 2,
            label=f"w = {found.warmups[row]:,}",
        )
    peak, warmup = float(found.peaks[0]), found.warmups[0]
    axes.plot([warmup], [peak * 1e4], "o", color=style.INK, markersize=8, zorder=4)
    marked = translated("peak {peak} at step {warmup:,}", peak=style.scientific(peak), warmup=warmup)
    axes.annotate(
        marked.text(language),
        (warmup, peak * 1e4),
        xytext=(30, 22),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": style.FAINT, "linewidth": 0.9},
    )
    last, end = int(found.steps[-1]), float(found.rates[0, -1])
    axes.annotate(
        style.scientific(end),
        (last, end * 1e4),
        xytext=(-4, 22),
        textcoords="offset points",
        ha="right",
        arrowprops={"arrowstyle": "-", "color": style.FAINT, "linewidth": 0.9},
    )
    axes.set_title(f"d = {found.d_model}", loc="left", color=style.FAINT, fontsize=12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(0, last * 1.01)
    axes.set_ylim(0, float(found.peaks.max()) * 1.06e4)
    style.label_axes(axes, language, translated("step s"), translated("learning rate × 10⁴"))
    axes.legend(loc="upper right", title=translated("warm-up steps").text(language))
