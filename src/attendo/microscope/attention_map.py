"""The attention of a stack as data, as text for a terminal and as a figure, and the computation of one query."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float

from attendo.display.charts import CELL, shade, shade_legend, standing
from attendo.display.i18n import Language, sentence
from attendo.display.width import columns, fitted, flowed, isolated, padded, shown
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.inspecting.measures import entropy
from attendo.microscope.answers import MANY, darkest, layer_of, outcome
from attendo.microscope.run_model import LookResult, attention_paths
from attendo.nn.attention import share_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

Stack = Literal["encoder", "decoder", "cross"]

TIE = 1e-5
"""The maximum difference in nats between mean entropies that count as equal."""
MARKS = {" ": "␠", "\n": "⏎", "\t": "⇥"}
"""The visible characters for whitespace in tokens."""


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of all heads of a stack, with the tokens of queries and keys.

    Attributes:
        stack: The stack: "encoder", "decoder" or "cross".
        query_pieces: The tokens of the queries. In cross-attention, the queries are the predicted tokens, ending with
            the end token, or with … if the output was truncated. In self-attention, the queries are tokens that the
            model reads.
        key_pieces: The tokens of the keys, which are tokens that the model reads.
        weights: The attention weights `[layers, heads, queries, keys]`. A row sums to 1, or is 0 if all keys are
            masked.
        text: The input text.
        answer: The output of the model.
    """

    stack: Stack
    query_pieces: tuple[str, ...]
    key_pieces: tuple[str, ...]
    weights: Float[np.ndarray, "layers heads queries keys"]
    text: str = ""
    answer: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.query_pieces), len(self.key_pieces))
        if self.weights.ndim != 4 or self.weights.shape[2:] != shape or 0 in self.weights.shape:
            raise AttendoError(
                f"weights of shape {self.weights.shape} do not fit {shape[0]} query and {shape[1]} key pieces; "
                f"they are [layers, heads, queries, keys]"
            )

    @cached_property
    def sharpest_layer(self) -> int:
        """The number of the layer, from 0, whose attention averaged over heads has the smallest mean entropy."""
        return int(np.argmin(self._spreads))

    @cached_property
    def _spreads(self) -> list[float]:
        """The mean entropy of the rows of each layer."""
        return [float(entropy(torch.from_numpy(self.shown(layer)))) for layer in range(len(self.weights))]

    def shown(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "queries keys"]:
        """Return the weights of a head, or the mean over the heads of a layer.

        Args:
            layer: The number of the layer, from 0 (default: the layer with the sharpest attention).
            head: The number of the head, from 0 (default: the mean over all heads).

        Raises:
            AttendoError: The layer or the head does not exist.
        """
        layer = self.sharpest_layer if layer is None else layer
        n_layers, n_heads = self.weights.shape[:2]
        for what, number, n in (("layer", layer, n_layers), ("head", head or 0, n_heads)):
            if not 0 <= number < n:
                raise AttendoError(f"there is no {what} {number + 1}; {self.stack} has 1 to {n}")
        return self.weights[layer].mean(0) if head is None else self.weights[layer, head]

    def darkest(self, layer: int | None = None, head: int | None = None) -> float:
        """Return the weight above which an image of `shown` uses the darkest color.

        Args:
            layer: The number of the layer, as in `shown`.
            head: The number of the head, as in `shown`.
        """
        return darkest(self.shown(layer, head), causal=self.stack == "decoder")

    def caption(self, layer: int | None = None, head: int | None = None, language: Language = "en") -> str:
        """Return the caption of an image of `shown`, which marks the sharpest layer.

        Args:
            layer: The number of the layer, as in `shown`.
            head: The number of the head, as in `shown`.
            language: The language of the caption, "en" or "ja".
        """
        layer = self.sharpest_layer if layer is None else layer
        n_layers, n_heads = self.weights.shape[:2]
        first, *others = sorted(self._spreads)
        is_clear = bool(others) and others[0] - first > TIE  # by more than rounding errors
        sharpest = head is None and layer == self.sharpest_layer and is_clear
        if head is not None:
            heads = sentence("map.head", head=head + 1, n_heads=n_heads)
        else:
            heads = sentence("map.mean" if n_heads > 1 else "map.only_head", n_heads=n_heads)
        return sentence(
            "map.caption",
            stack=sentence(f"map.stack.{self.stack}"),
            layer=layer + 1,
            n_layers=n_layers,
            sharpest=sentence("map.sharpest") if sharpest else "",
            heads=heads,
        ).text(language)


def map_of(result: LookResult, stack: Stack | None = None) -> AttentionMap:
    """Return the attention of a stack (default: the last stack of the model).

    Raise AttendoError if the model has no such stack.
    """
    paths = attention_paths(result.model)
    stack = cast(Stack, [*paths][-1]) if stack is None else stack
    if stack not in paths:
        raise AttendoError(f"this model has no {stack} attention (expected {', '.join(paths)})")
    queries = {"encoder": result.source, "decoder": result.target, "cross": result.wanted}[stack]
    keys = result.target if stack == "decoder" else result.source
    return AttentionMap(
        stack=stack,
        query_pieces=pieces_of(result, queries),
        key_pieces=pieces_of(result, keys),
        weights=np.stack([weights_of(result, path) for path in paths[stack]]),
        text=result.request.text,
        answer=answer_text(result),
    )


def pieces_of(result: LookResult, ids: tuple[int | None, ...]) -> tuple[str, ...]:
    """Return the texts of token ids. The value None, which marks a truncated output, becomes …."""
    return tuple("…" if token is None else result.piece(token) for token in ids)


def weights_of(result: LookResult, path: str) -> Float[np.ndarray, "heads queries keys"]:
    """Return the recorded weights of an attention layer, in float32 or float64."""
    weights = result.record[path].weights[0]
    return (weights if weights.element_size() == 8 else weights.float()).cpu().numpy()


def answer_text(result: LookResult) -> str:
    """Return the output as text: a translation, a continuation, a label with its probability, or a completed text."""
    found = outcome(result)
    if "labels" in found:
        best = found["labels"][0]
        return f"{best['label']} ({best['probability']:.1%})"
    return found.get("text", "")


def visible(piece: str) -> str:
    """Return a token with visible whitespace and control characters. An empty token is shown as ∅.

    >>> visible("a b"), visible("\\x1b[31m"), visible("")
    ('a␠b', '\\\\u{1b}[31m', '∅')
    """
    marked = (MARKS.get(c) or (shown(c) if shown(c) != c else "␠" if c.isspace() else c) for c in piece)
    return "".join(marked) or "∅"


NARROWEST = 40
MOST_BLOCKS = 4
"""The maximum number of blocks of columns. With more keys, neighboring keys share a cell."""
EVEN = 1e-5
"""The maximum relative difference between weights that count as equal."""
LONGEST = 16
"""The maximum width of a label, in columns."""


def map_text(
    shown: AttentionMap,
    width: int = 80,
    layer: int | None = None,
    head: int | None = None,
    language: Language = "en",
    hint: str = "",
) -> str:
    """Return an attention map as text, with one line per query and one shaded cell per key.

    Each line ends with the key that has the largest weight. Wide maps are split into blocks of columns. If there are
    more than MOST_BLOCKS blocks, neighboring keys share a cell, which shows their largest weight. `layer` and `head`
    are those of `AttentionMap.shown`. `hint` follows the legend. Raise AttendoError for a `width` below 40 columns.
    """
    if width < NARROWEST:
        raise AttendoError(f"a map does not fit into {width} columns (expected {NARROWEST} or more)")
    weights = shown.shown(layer, head)
    longest = min(LONGEST, width // 5)
    labels = [fitted(visible(piece), longest) for piece in shown.query_pieces]
    names = [fitted(visible(piece), longest) for piece in shown.key_pieces]
    left = max(map(columns, labels))
    strongest = weights.argmax(-1)
    even = [_is_even(row[: i + 1] if shown.stack == "decoder" else row) for i, row in enumerate(weights)]
    tie = sentence("map.even").text(language)
    ends = [
        f" {tie if level else isolated(names[key])} {row[key]:.0%}" if row[key] > 0 else ""
        for key, row, level in zip(strongest, weights, even, strict=True)
    ]
    room = (width - left - 1 - max(map(columns, ends))) // CELL
    lines = flowed(shown.caption(layer, head, language), width)
    lines += flowed(sentence(f"map.read.{shown.stack}").text(language), width)
    scale = shown.darkest(layer, head)
    lines += flowed(shade_legend(language, scale) + hint, width)
    weights = weights / scale
    if len(names) > MOST_BLOCKS * room:
        ends = [
            f"{end} no. {key + 1}" if end and not level else end
            for key, end, level in zip(strongest, ends, even, strict=True)
        ]
        room = width - left - 1 - max(map(columns, ends))
        return "\n".join([*lines, *_together(weights, labels, ends, room, width, language)])
    room = -(-len(names) // -(-len(names) // room))  # blocks of nearly equal width
    for start in range(0, len(names), room):
        block = range(start, min(start + room, len(names)))
        lines.append("")
        if len(block) < len(names):
            part = sentence("map.part", first=block.start + 1, last=block.stop, n=len(names))
            lines.append(part.text(language))
        lines += [f"{'':{left}} {line}".rstrip() for line in standing(names[block.start : block.stop])]
        for label, row, best, end in zip(labels, weights, strongest, ends, strict=True):
            cells = "".join(shade(float(row[key])) * CELL for key in block)
            lines.append(f"{padded(label, left)} {cells}{end if best in block else ''}".rstrip())
    return "\n".join(lines)


def _is_even(row: Float[np.ndarray, " keys"]) -> bool:
    """Return whether a query attends to several keys equally, without a largest weight."""
    return len(row) > 1 and float(np.ptp(row)) <= EVEN * float(row.max())


def _together(
    weights: Float[np.ndarray, "queries keys"],
    labels: list[str],
    ends: list[str],
    room: int,
    width: int,
    language: Language,
) -> list[str]:
    """Return one block in which neighboring keys share a column."""
    n, left = weights.shape[1], max(map(columns, labels))
    each = -(-n // room)
    starts = range(0, n, each)
    largest = np.maximum.reduceat(weights, [*starts], axis=1)
    cells = ["".join(map(shade, row)) for row in largest.tolist()]
    rows = zip(labels, cells, ends, strict=True)
    return [
        *flowed(sentence("map.together", each=each, n=n).text(language), width),
        "",
        f"{'':{left}} 1{n:>{len(starts) - 1}}",
        *(f"{padded(label, left)} {line}{end}".rstrip() for label, line, end in rows),
    ]


LONGEST_LABEL = 24
CELL_WIDTH, CELL_HEIGHT = 0.42, 0.32  # inches
LARGEST_SIDE = 24.0  # inches; more tokens make the cells smaller, not the image larger
DOTS_PER_INCH, MOST_DOTS = 260, 3120  # MOST_DOTS limits a side, so large images are fast
LEAST_NUMBERED = 0.095
INK, FAINT = "#1b2430", "#5b6673"
SUFFIXES = (".png", ".svg")


def write_picture(
    shown: AttentionMap,
    path: Path,
    layer: int | None = None,
    head: int | None = None,
    language: Language = "en",
) -> None:
    """Write the figure of `map_figure` to a .png or .svg file. Equal maps produce identical bytes.

    Raise AttendoError for other file extensions.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise AttendoError(f"{path} must end in .png or .svg, for example {path.with_suffix('.png').name}")
    figure = map_figure(shown, layer, head, language)
    from attendo.display.fonts import figure_bytes

    dots = min(DOTS_PER_INCH, MOST_DOTS / max(figure.get_size_inches()))
    write_atomic(path, figure_bytes(figure, suffix, dots))


def map_figure(
    shown: AttentionMap, layer: int | None = None, head: int | None = None, language: Language = "en"
) -> Figure:
    """Return a heat map of an attention head with queries as rows and keys as columns.

    `layer` and `head` are those of `AttentionMap.shown`. Characters that no installed font can draw are shown as "?".
    Without an installed Japanese font, all labels are in English. Raise AttendoError if matplotlib is not installed, or
    if the layer or head does not exist.
    """
    from attendo.display.fonts import drawn, fonts_for  # raises if matplotlib is not installed

    weights = shown.shown(layer, head)
    said = _words(shown, layer, head, language)
    pieces = [fitted(visible(piece), LONGEST_LABEL) for piece in (*shown.key_pieces, *shown.query_pieces)]
    fonts, drawable = fonts_for("".join([*pieces, *said]))
    if language != "en" and not set("".join(said)) <= drawable:
        said = _words(shown, layer, head, "en")
    n_rows, n_columns = weights.shape
    width, height = 2.4 + CELL_WIDTH * max(10, n_columns), 2.0 + CELL_HEIGHT * n_rows
    size = (min(LARGEST_SIDE, width), min(LARGEST_SIDE, height))
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    bar = heat_map(axes, weights, "GnBu", 0.0, shown.darkest(layer, head))
    labels = [drawn(piece, drawable) for piece in pieces]
    _label(axes, labels[:n_columns], labels[n_columns:], fonts)
    caption, across, down, measured, in_cells = said
    axes.set_xlabel(across, fontsize=9, color=FAINT, family=fonts)
    axes.set_ylabel(down, fontsize=9, color=FAINT, family=fonts)
    detailed = max(n_rows, n_columns) <= MANY  # cells have borders and show percentages
    if detailed:
        _number(axes, weights)
    bar.ax.tick_params(labelsize=8, labelcolor=FAINT, length=0)
    bar.set_label(in_cells if detailed else measured, fontsize=8, color=FAINT, family=fonts)
    figure.suptitle(caption, fontsize=11, color=INK, family=fonts)
    return figure


def heat_map(
    axes: Axes,
    values: Float[np.ndarray, "rows columns"],
    colors: str,
    least: float,
    largest: float,
    *,
    ticks: Sequence[float] | None = None,
) -> Colorbar:
    """Draw values as colored cells with the first row on top, and return the color bar.

    >>> from matplotlib.figure import Figure
    >>> float(heat_map(Figure().add_subplot(), np.eye(2), "GnBu", 0.0, 0.5).vmax)
    0.5
    """
    image = axes.imshow(
        values, cmap=colors, vmin=least, vmax=largest, aspect="auto", origin="upper", interpolation="nearest"
    )
    bar = axes.figure.colorbar(image, ax=axes, ticks=ticks, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    return bar


def _words(shown: AttentionMap, layer: int | None, head: int | None, language: Language) -> list[str]:
    """Return the caption, the names of both axes, and the label of the color bar without and with numbers in cells."""
    names = (f"map.keys.{shown.stack}", f"map.queries.{shown.stack}", "map.weight", "map.weight_in_cells")
    return [shown.caption(layer, head, language), *(sentence(name).text(language) for name in names)]


def _label(axes: Axes, across: list[str], down: list[str], fonts: list[str]) -> None:
    """Label both axes with as many tokens as there is room for."""
    step_across = 1 + int(len(across) * CELL_WIDTH / LARGEST_SIDE)
    step_down = 1 + int(len(down) * CELL_HEIGHT / LARGEST_SIDE)
    axes.set_xticks(range(0, len(across), step_across), across[::step_across])
    axes.set_yticks(range(0, len(down), step_down), down[::step_down])
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set(family=fonts, parse_math=False, fontsize=10, color=INK)  # "$" in a piece is a dollar
    for label in axes.get_xticklabels():
        label.set(rotation=60, ha="left", va="center", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _number(axes: Axes, weights: Float[np.ndarray, "queries keys"]) -> None:
    """Draw borders between the cells, and the percentage in each cell with a large weight."""
    axes.set_xticks([s - 0.5 for s in range(1, len(weights[0]))], minor=True)
    axes.set_yticks([t - 0.5 for t in range(1, len(weights))], minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color="white", linewidth=1.5)
    for t, row in enumerate(weights):
        for s, weight in enumerate(row):
            if weight >= LEAST_NUMBERED:
                color = "white" if weight > 0.6 else INK
                axes.text(s, t, f"{weight * 100:.0f}", ha="center", va="center", fontsize=7.5, color=color)


@dataclass(frozen=True)
class KeyStep:
    """The computation of the attention to one key.

    Attributes:
        piece: The token of the key.
        k: The key vector.
        v: The value vector.
        product: The dot product q·k.
        score: The scaled product plus the position bias, if there is one.
        masked: Whether the key is masked.
        power: exp(β · (score - largest score)), or 0 if the key is masked.
        weight: The attention weight: `power` divided by the sum of all powers.
    """

    piece: str
    k: tuple[float, ...]
    v: tuple[float, ...]
    product: float
    score: float
    masked: bool
    power: float
    weight: float


@dataclass(frozen=True)
class Steps:
    """The intermediate results of the attention of one query in one head, as in the tab "Steps" of the page.

    Attributes:
        piece: The token of the query.
        written: The predicted token in cross-attention, or None in self-attention.
        q: The query vector of this head.
        scale: The factor of the products q·k.
        biased: Whether the scores include a position bias.
        beta: The inverse temperature β of the softmax.
        off: Whether the head is switched off.
        keys: The computation for each key.
        output: The output vector Σ weight · v, before an edit replaces it.
    """

    path: str
    head: int
    query: int
    piece: str
    written: str | None
    q: tuple[float, ...]
    head_dim: int
    scale: float
    biased: bool
    beta: float
    off: bool
    keys: tuple[KeyStep, ...]
    output: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest score of the unmasked keys, or -inf if all keys are masked."""
        return max((key.score for key in self.keys if not key.masked), default=-math.inf)

    @property
    def sum(self) -> float:
        """The sum of the exponentials of all keys."""
        return math.fsum(key.power for key in self.keys)

    @property
    def scale_is_root(self) -> bool:
        """Whether the scale is 1/√head_dim."""
        return math.isclose(self.scale, self.head_dim**-0.5)

    def as_json(self) -> dict[str, Any]:
        """Return the steps as a JSON object. A score of null means -∞, and β = "inf" means hard attention."""
        facts = dataclasses.asdict(self)
        for key in facts["keys"]:
            key["score"] = key["score"] if math.isfinite(key["score"]) else None
        return facts | {"beta": self.beta if math.isfinite(self.beta) else "inf", "sum": self.sum}


def steps_of(result: LookResult, path: str, head: int, query: int) -> Steps:
    """Return the computation of one query in one head, both numbered from 0.

    Raise AttendoError if the query does not exist.
    """
    layer, record = layer_of(result, path), result.record[path]
    if not 0 <= query < layer["q_len"]:
        raise AttendoError(f"there is no query {query + 1}; the map has rows 1 to {layer['q_len']}")
    q = record.query[0, head, query]
    key, value = (share_heads(part, layer["heads"])[0, head] for part in (record.key, record.value))
    products, scores = (key @ q).tolist(), record.scores[0, head, query].tolist()
    weights, beta = record.weights[0, head, query], float(layer["beta"][head])
    reach = query + layer["k_len"] - layer["q_len"] if layer["causal"] else layer["k_len"]
    masked = [j > reach or score == -math.inf for j, score in enumerate(scores)]
    top = max((score for score, out in zip(scores, masked, strict=True) if not out), default=0.0)
    pieces = pieces_of(result, result.ids(layer["keys"]))
    cross = layer["queries"] != layer["keys"]
    return Steps(
        path=path,
        head=head,
        query=query,
        piece=pieces_of(result, result.ids(layer["queries"]))[query],
        written=pieces_of(result, result.wanted)[query] if cross else None,
        q=tuple(q.tolist()),
        head_dim=layer["head_dim"],
        scale=layer["scale"],
        biased=bool(layer["slopes"] or layer["biases"]),
        beta=beta,
        off=head in layer["off"],
        keys=tuple(
            KeyStep(piece, tuple(k), tuple(v), product, score, out, _power(score, top, beta, weight, out), weight)
            for piece, k, v, product, score, out, weight in zip(
                pieces, key.tolist(), value.tolist(), products, scores, masked, weights.tolist(), strict=True
            )
        ),
        output=tuple((weights @ value).tolist()),
    )


def _power(score: float, top: float, beta: float, weight: float, masked: bool) -> float:
    """Return exp(β · (score - top)), 0 for a masked key, and the weight itself for hard attention."""
    if masked:
        return 0.0
    return weight if math.isinf(beta) else math.exp(beta * (score - top))
