"""Drawing of the figure "gpt": a GPT on one page, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attendo.display.i18n import Language, Localized
from attendo_course.book import passage, translated
from attendo_course.figures.cells import Cells, CellStyle, draw_cells, mark, tint, written
from attendo_course.figures.next_word import NextWord, trained
from attendo_course.figures.sketch import Sketch
from attendo_course.figures.style import FAINT, GREEN, INK, ORANGE, RULE
from attendo_course.one_page import TEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 15.0, 19.5  # inches
LEFT, EDGE = 1.15, 0.36  # of the cells, whose row names are to the left; of the panels
GAP = 0.42  # between two matrices
PLAIN = CellStyle(width=0.38, height=0.21, size=7.5, label=9.0)
SHARES = replace(PLAIN, positive=ORANGE, limit=1.0)
SMALL = replace(PLAIN, width=0.14, height=0.14, digits=None)
WIDE = replace(PLAIN, width=0.5, height=0.25, size=8.5)
CHANCES = replace(WIDE, positive=GREEN, limit=1.0)


@dataclass(frozen=True)
class _Matrix:
    """A matrix with its name and formula, the sign and the space before it, and the number of heads in its columns."""

    numbers: Tensor
    name: str
    formula: str = ""
    style: CellStyle = PLAIN
    columns: Sequence[str] = ()
    sign: str = "→"
    space: float = GAP
    heads: int = 1


def draw_gpt(found: NextWord, figure: Figure, language: Language) -> None:
    """Draw all steps from a text to the next word, from top to bottom.

    >>> from matplotlib.figure import Figure
    >>> from attendo_course.figures.next_word import next_word
    >>> figure = Figure()
    >>> draw_gpt(next_word(), figure, "en")
    >>> "mat 0.65" in {text.get_text() for text in figure.axes[0].texts}
    True
    """
    page = _Page(found, figure, language)
    for draw_part in (page.input, page.first_layer, page.second_layer, page.output):
        top = page.y + 0.26
        draw_part()
        page.panel(top, page.y + 0.18)
        page.y -= 0.22
    page.repeat()


class _Page:
    """The page, which is filled from top to bottom. `y` is the height in inches where the next step begins."""

    def __init__(self, found: NextWord, figure: Figure, language: Language):
        self.sketch = Sketch(figure, language, WIDTH, HEIGHT)
        self.found, self.steps = found, found.steps
        self.number = 0
        _, weights, losses = trained()
        n_weights, n_words = sum(w.numel() for w in weights.values()), len(TEXT.split())
        values = {"weights": f"{n_weights:,}", "words": n_words, "first": losses[0], "last": losses[-1]}
        title = translated("A GPT on one page: from text to the next word")
        self.sketch.heading(title, passage("draw_gpt.note", **values))
        self.y = self.first_line = HEIGHT - 0.95
        self.text(found.words)
        self.y -= 0.62

    def text(self, words: Sequence[str]) -> None:
        """Write the words of a text, with a background for a word that the prompt does not have."""
        x = LEFT
        for i, word in enumerate(words):
            width = self.sketch.width_of(word, 13, bold=True)
            if i == len(self.found.words):
                box = {"facecolor": tint(GREEN, 0.69), "edgecolor": "none", "zorder": 1}
                self.sketch.rounded((x + width / 2, self.y), width + 0.16, 0.32, **box)
            self.sketch.text((x, self.y), word, 13, bold=True)
            x += width + 0.17

    def panel(self, top: float, bottom: float) -> None:
        """Draw the background of a part of the model."""
        center = (EDGE + WIDTH - 0.2) / 2, (top + bottom) / 2
        style = {"facecolor": "#f6f7f9", "edgecolor": RULE, "linewidth": 0.8, "zorder": 0}
        self.sketch.rounded(center, WIDTH - 0.2 - EDGE, top - bottom, **style)

    def step(self, title: Localized, sentence: Localized) -> None:
        """Write the number, the title and the sentence of the next step."""
        self.number += 1
        language = self.sketch.language
        text = f"{self.number}  {title.text(language)}"
        self.sketch.text((EDGE + 0.15, self.y), text, 11.5, bold=True)
        after = EDGE + 0.3 + self.sketch.width_of(text, 11.5, bold=True)
        self.sketch.text((after, self.y), sentence.text(language), 10)

    def row(self, parts: Sequence[_Matrix], rows: Sequence[str]) -> list[Cells]:
        """Draw matrices from left to right below the last step, each after its sign, at the same middle height."""
        heights = [part.style.height * (len(part.numbers) if part.numbers.ndim > 1 else 1) for part in parts]
        has_columns = any(part.columns for part in parts)
        middle = self.y - (0.68 if has_columns else 0.46) - max(heights) / 2
        places: list[Cells] = []
        x = LEFT
        for part, height in zip(parts, heights, strict=True):
            if places:
                self.sketch.text((x + part.space / 2, middle), part.sign, 12, ha="center", color=FAINT)
                x += part.space
            # captions in one line, also above a matrix without columns
            room = has_columns and part.style != SMALL
            columns = part.columns or [""] * part.numbers.shape[-1] * room
            place = draw_cells(
                self.sketch,
                (x, middle + height / 2),
                part.numbers.numpy(),
                style=part.style,
                caption=part.name,
                detail=part.formula,
                rows=() if places else rows,
                columns=columns,
            )
            for head in range(1, part.heads):
                line = place.column(head * place.n_columns / part.heads - 0.5)
                ends = [place.top, place.bottom]
                self.sketch.axes.plot([line, line], ends, color=INK, linewidth=1.6, zorder=4)
            places.append(place)
            x = place.right
        self.y = middle - max(heights) / 2 - 0.36
        return places

    def input(self) -> None:
        """Draw the ids, the embeddings and the positions."""
        steps = self.steps
        self.step(translated("From text to vectors"), passage("draw_gpt.input"))
        ids = _Matrix(self.found.ids[:, None].double(), "id", style=replace(PLAIN, digits=0, limit=math.inf))
        words, positions = _Matrix(steps.words, "E[id]"), _Matrix(steps.positions, "P", sign="+")
        self.row([ids, words, positions, _Matrix(steps.x, "x", "= E[id] + P", sign="=")], self.found.words)

    def first_layer(self) -> None:
        """Draw every result of the first layer."""
        layer, words = self.steps.layers[0], self.found.words
        later = torch.ones_like(layer.scores, dtype=torch.bool).triu(1)
        masked = layer.scores.masked_fill(later, -math.inf)
        query, key, value = (side_by_side(heads) for heads in (layer.query, layer.key, layer.value))
        self.step(translated("Layer 1: query, key and value"), passage("draw_gpt.vectors"))
        self.row(
            [
                _Matrix(layer.normed_1, "norm(x)"),
                _Matrix(query, "Q", "= norm(x) W_Q", heads=2),
                _Matrix(key, "K", "= norm(x) W_K", heads=2, sign=""),
                _Matrix(value, "V", "= norm(x) W_V", heads=2, sign=""),
            ],
            words,
        )
        self.step(translated("Layer 1: attention"), passage("draw_gpt.attention"))
        heads = []
        for head, n in enumerate("₁₂"):
            scores, weights, mixed = masked[head], layer.weights[head], layer.mixed[head]
            heads += [
                _Matrix(scores, f"S{n}", f"= Q{n}K{n}ᵀ / √4", columns=words, sign="", space=0.8),
                _Matrix(weights, f"A{n}", f"= softmax(S{n})", SHARES, words),
                _Matrix(mixed, f"A{n}V{n}"),
            ]
        self.row(heads, words)
        self.step(translated("Layer 1: residual connection"), passage("draw_gpt.residual"))
        self.row(
            [
                _Matrix(layer.attended, "H", "= [A₁V₁ A₂V₂] W_O"),
                _Matrix(layer.middle, "y", "= x + H"),
                _Matrix(layer.normed_2, "norm(y)"),
            ],
            words,
        )
        self.step(translated("Layer 1: feed-forward network"), passage("draw_gpt.feed_forward"))
        self.row(
            [
                _Matrix(layer.hidden, "F", "= ReLU(norm(y) W_1 + b_1)"),
                _Matrix(layer.fed, "G", "= F W_2 + b_2"),
                _Matrix(layer.output, "x′", "= y + G"),
            ],
            words,
        )

    def second_layer(self) -> None:
        """Draw the results of the second layer without numbers, except for the weights and the output."""
        layer, words = self.steps.layers[1], self.found.words
        query, key, value, mixed = map(side_by_side, (layer.query, layer.key, layer.value, layer.mixed))
        seen = int(layer.weights[:, -1].mean(0).argmax())
        first, second = layer.weights[:, -1, seen].tolist()
        sentence = passage("draw_gpt.second", seen=words[seen], first=first, second=second)
        self.step(translated("Layer 2"), sentence)
        self.row(
            [
                _Matrix(layer.normed_1, "norm(x′)", style=SMALL),
                _Matrix(query, "Q", style=SMALL, heads=2),
                _Matrix(key, "K", style=SMALL, heads=2, sign=""),
                _Matrix(value, "V", style=SMALL, heads=2, sign=""),
                _Matrix(layer.weights[0], "A₁", "= softmax(S₁)", SHARES, words, space=0.9),
                _Matrix(layer.weights[1], "A₂", "= softmax(S₂)", SHARES, words, sign="", space=0.6),
                _Matrix(mixed, "A₁V₁ A₂V₂", style=SMALL, heads=2),
            ],
            (),
        )
        self.y += 0.3
        places = self.row(
            [
                _Matrix(layer.attended, "H", style=SMALL),
                _Matrix(layer.middle, "y′", style=SMALL),
                _Matrix(layer.normed_2, "norm(y′)", style=SMALL),
                _Matrix(layer.hidden, "F", style=SMALL),
                _Matrix(layer.fed, "G", style=SMALL),
                _Matrix(layer.output, "x″", "= y′ + G", space=0.9),
            ],
            (),
        )
        mark(self.sketch, places[-1], GREEN, row=len(words) - 1)

    def output(self) -> None:
        """Draw the logits, the probabilities, and the line from 0 to 1 from which the next word is drawn."""
        found = self.found
        self.step(translated("From vector to the next word"), passage("draw_gpt.output"))
        last = _Matrix(self.steps.normed[-1], "norm(x″)", translated("last row").text(self.sketch.language))
        logits = _Matrix(self.steps.logits[-1], "logits", "= norm(x″) Eᵀ", WIDE, found.vocabulary)
        above = self.row([last, logits], found.words[-1:])[1]
        corner, numbers = (above.left, above.bottom - 0.42), found.probabilities.numpy()
        place = draw_cells(self.sketch, corner, numbers, style=CHANCES, caption="p", detail="= softmax(logits)")
        self.parts_of_the_line(place.left, place.right - place.left, place.bottom - 0.3)

    def parts_of_the_line(self, left: float, width: float, top: float) -> None:
        """Draw a part of the line for each word, as long as its probability, and the random number below the line."""
        from matplotlib.patches import Rectangle

        found, sketch = self.found, self.sketch
        x, height = left, 0.3
        for word, share in zip(found.vocabulary, found.probabilities.tolist(), strict=True):
            style = {"facecolor": tint(GREEN, share), "edgecolor": "white", "linewidth": 0.8}
            sketch.axes.add_artist(Rectangle((x, top - height), share * width, height, **style))
            if share > 0.1:
                text = f"{word} {written(share, 2)}"
                sketch.text((x + share * width / 2, top - height / 2), text, 9.5, ha="center")
            x += share * width
        u, below = left + found.u * width, top - height
        sketch.line([(u, below - 0.26), (u, below - 0.02)])
        for x, text in ((left, "0"), (u, f"u = {written(found.u, 2)}"), (left + width, "1")):
            sketch.text((x, below - (0.36 if x == u else 0.14)), text, 9.5, ha="center")
        self.y = top - height - 0.7

    def repeat(self) -> None:
        """Write the text with the new word, and draw the arrow back to the beginning."""
        self.y -= 0.02
        found, language = self.found, self.sketch.language
        self.text([*found.words, found.vocabulary[found.next_id]])
        self.sketch.text((LEFT + 3.6, self.y), passage("draw_gpt.repeat").text(language), 10)
        edge, end = 0.18, LEFT - 0.1
        self.sketch.line([(end, self.y), (edge, self.y), (edge, self.first_line), (end, self.first_line)], FAINT)


def side_by_side(heads: Tensor) -> Tensor:
    """Return the heads [heads, len, head_dim] side by side, [len, heads · head_dim].

    >>> side_by_side(torch.tensor([[[1, 2]], [[3, 4]]]))
    tensor([[1, 2, 3, 4]])
    """
    return heads.transpose(0, 1).flatten(1)
