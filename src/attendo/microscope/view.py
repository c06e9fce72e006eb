"""`attendo.look`: a model's attention in Python, as text, numbers, images, a page and a notebook widget."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from attendo.display.i18n import Language
from attendo.display.width import fitted
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.inference import load
from attendo.inspecting.edits import Edit, Off, Temper
from attendo.inspecting.measures import entropy
from attendo.microscope.answers import compared, outcome, stacks_of
from attendo.microscope.attention_map import (
    AttentionMap,
    Stack,
    Steps,
    answer_text,
    map_figure,
    map_of,
    map_text,
    steps_of,
    weights_of,
    write_picture,
)
from attendo.microscope.look_page import saved_page
from attendo.microscope.protocol import Baseline, EditRequest, LookRequest, Outcome
from attendo.microscope.run_model import LookResult, User, attention_layers, attention_paths, usual_search
from attendo.microscope.run_model import look as look_at
from attendo.microscope.session import Session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attendo.microscope.look_page import Widget

HEIGHT = 760
"""The height of the page in a notebook, in CSS pixels."""
LONGEST_TEXT = 100
"""The maximum columns of the input and output in the representation of a view."""
MOST_TOKENS = 160
"""The maximum number of source or target tokens for which a notebook shows the page instead of the map."""


@dataclass(frozen=True, eq=False)
class View:
    """A model output with its attention. `str` returns a map for the terminal, and a notebook shows the page.

    In arguments, the numbers of layers and heads begin at 0. In maps, images and tables, the numbers of layers and
    heads begin at 1. A `stack` is "encoder", "decoder" or "cross". If a `stack` is None, the last of these stacks in
    the model is used.
    """

    result: LookResult

    @property
    def outcome(self) -> Outcome:
        """The output of the model: a text with its log-probability and score, or labels with probabilities."""
        return outcome(self.result)

    @property
    def change(self) -> Baseline | None:
        """The output of the unchanged model with the log-probability differences, or None if there are no edits."""
        return None if not self.result.request.edits else compared(self.result, self._as_it_is)

    @property
    def paths(self) -> list[str]:
        """The module paths of the attention layers, in the order of the model."""
        return list(attention_layers(self.result.model))

    def weights(self, path: str) -> Float[np.ndarray, "heads queries keys"]:
        """Return the attention weights of a layer.

        Args:
            path: A module path of `paths`.

        Raises:
            AttendoError: The model has no attention layer with this path.
        """
        if path not in self.paths:
            raise AttendoError(f"unknown attention layer {path!r} (expected {', '.join(self.paths)})")
        return weights_of(self.result, path)

    def heads(self) -> list[dict[str, Any]]:
        """Return the path, the number and the measures of each head (entropy, maximum, distance, patterns)."""
        layers = [layer for stack in stacks_of(self.result) for layer in stack["layers"]]
        return [
            {"path": layer["path"], "head": head} | {name: values[head] for name, values in layer["measures"].items()}
            for layer in layers
            for head in range(layer["heads"])
        ]

    def map(self, stack: Stack | None = None) -> AttentionMap:
        """Return the attention weights of a stack, with the tokens of queries and keys.

        Args:
            stack: The stack of layers to show.
        """
        return map_of(self.result, stack)

    def figure(self, stack: Stack | None = None, layer: int | None = None, head: int | None = None) -> Figure:
        """Return a matplotlib heat map of one attention head or of the mean over heads.

        Args:
            stack: The stack of layers to show.
            layer: The number of the layer, from 0 (default: the layer with the sharpest attention).
            head: The number of the head, from 0 (default: the mean over all heads).

        Raises:
            AttendoError: The stack, layer or head does not exist, or matplotlib is not installed.
        """
        return map_figure(self.map(stack), layer, head)

    def save(
        self,
        path: str | Path,
        stack: Stack | None = None,
        layer: int | None = None,
        head: int | None = None,
        language: Language = "en",
    ) -> None:
        """Write the page (.html), the heat map (.png, .svg) or the table of weights (.csv) to a file.

        The page is self-contained and works offline. The table has one row per attention weight.

        Args:
            path: The output file, whose extension selects the format.
            stack: The stack of layers to show.
            layer: The number of the layer, from 0 (default: the sharpest layer, or all layers for a table).
            head: The number of the head, from 0 (default: the mean over all heads, or all heads for a table).
            language: The language of the page or the image, "en" or "ja".

        Raises:
            AttendoError: The extension is not supported, or `figure` raises AttendoError for the same arguments.
        """
        path = Path(path)
        match path.suffix.lower():
            case ".html":
                write_atomic(path, self.page(language, self.opened(stack, layer, head)))
            case ".png" | ".svg":
                write_picture(self.map(stack), path, layer, head, language)
            case ".csv":
                write_atomic(path, table_text(self.map(stack), layer, head).encode("utf-8-sig"))
            case _:
                raise AttendoError(f"{path} must end in .html, .png, .svg or .csv, for example {path.stem}.html")

    def widget(self, height: int = HEIGHT) -> Widget:
        """Return the live page as a notebook widget that queries the model in Python.

        Args:
            height: The height of the widget in pixels.

        Raises:
            AttendoError: anywidget is not installed.
        """
        from attendo.microscope.look_page import widget_of

        return widget_of(self.session, self.result.request, height)

    @cached_property
    def session(self) -> Session:
        """The session that computes the answers to the page's requests."""
        session = Session(self.result.user, self.result.folder)
        session.remember(self.result)
        return session

    def opened(
        self, stack: Stack | None = None, layer: int | None = None, head: int | None = None
    ) -> dict[str, Any] | None:
        """Return the path and the number of the head that the page opens first, or None if the page chooses a head.

        Args:
            stack: The stack that contains the head.
            layer: The number of the layer, from 0 (default: the layer with the sharpest attention).
            head: The number of the head, from 0 (default: the head of the layer with the sharpest attention).

        Raises:
            AttendoError: The stack, layer or head does not exist.
        """
        if stack is None and layer is None and head is None:
            return None
        shown = self.map(stack)
        shown.shown(layer, head)  # raises
        layer = shown.sharpest_layer if layer is None else layer
        if head is None:
            head = int(entropy(torch.from_numpy(shown.weights[layer])).argmin())
        return {"path": attention_paths(self.result.model)[shown.stack][layer], "head": head}

    def steps(self, query: int, stack: Stack | None = None, layer: int | None = None, head: int | None = None) -> Steps:
        """Return the intermediate results of the attention of one query in one head.

        Args:
            query: The number of the query, from 0.
            stack: The stack that contains the head.
            layer: The number of the layer, from 0 (default: the layer with the sharpest attention).
            head: The number of the head, from 0 (default: the head of the layer with the sharpest attention).

        Raises:
            AttendoError: The query, stack, layer or head does not exist.
        """
        opened = self.opened(self.map(stack).stack, layer, head)
        assert opened is not None, "a stack was chosen"
        return steps_of(self.result, opened["path"], opened["head"], query)

    def page(self, language: Language = "en", head: Mapping[str, Any] | None = None) -> str:
        """Return the self-contained HTML page, which works offline.

        Args:
            language: The language of the page, "en" or "ja".
            head: The path and the number of the head to open, as returned by `opened`.
        """
        return saved_page(self.session, self.result.request, language, head)

    def __str__(self) -> str:
        return map_text(self.map())

    def __repr__(self) -> str:
        text = fitted(self.result.request.text, LONGEST_TEXT)
        answer = fitted(answer_text(self.result), LONGEST_TEXT)
        return f"View({text!r} → {answer!r})"

    def _repr_html_(self) -> str:
        """Return the display in a notebook: the page in a frame, or the map as text if the page would be large."""
        if max(len(self.result.source), len(self.result.target)) > MOST_TOKENS:
            said = (
                f"Only the map is shown, because a page of over {MOST_TOKENS} tokens is large. .save('page.html')"
                " writes the page, and .widget() shows it live."
            )
            return f"<pre>{html.escape(repr(self))}\n\n{html.escape(str(self))}\n\n{said}</pre>"
        title = html.escape(f"attendo look: {fitted(self.result.request.text, LONGEST_TEXT)}")
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" height="{HEIGHT}" '
            f'style="width: 100%; border: 0" srcdoc="{html.escape(self.page())}"></iframe>'
        )

    @cached_property
    def _as_it_is(self) -> LookResult:
        return look_at(self.result.user, self.result.request.without_edits(), self.result.folder)


def look(
    model: User | str | Path,
    text: str,
    *,
    target: str | None = None,
    beam: int | None = None,
    max_tokens: int = 20,
    edits: Sequence[EditRequest | Edit] = (),
) -> View:
    """Run a model on a text and return a view of its attention.

    Args:
        model: A loaded model of any task, or a run folder.
        text: The input text.
        target: An output to use instead of the decoded output: a translation, or the continuation of a prompt.
        beam: The beam size (default: as in the run for a translator, and 1 (greedy) for a language model).
        max_tokens: The maximum number of tokens that a language model generates.
        edits: Changes to the model, such as `Off` and `Temper` of `attendo.inspecting`.

    Returns:
        A view of the output, its attention, and the measures of every head.

    Raises:
        AttendoError: The text is empty, or an edit refers to a layer or head that does not exist.
    """
    user, folder = (load(model, bits=32), Path(model)) if isinstance(model, str | Path) else (model, None)
    return View(look_at(user, ask_for(user, text, target, beam, max_tokens, edits), folder))


def ask_for(
    user: User,
    text: str,
    target: str | None = None,
    beam: int | None = None,
    max_tokens: int = 20,
    edits: Sequence[EditRequest | Edit] = (),
) -> LookRequest:
    """Return the request for `look`. Raise AttendoError for a number out of range, and for an unsupported edit."""
    searched = usual_search(user) if beam is None else "greedy" if beam == 1 else "beam"
    search = "forced" if target is not None else searched
    requests = tuple(asked for edit in edits for asked in _asked(edit))
    try:
        return LookRequest(
            text=text,
            search=search,
            beam=beam if search == "beam" else None,
            target=target,
            max_tokens=max_tokens,
            edits=requests,
        )
    except ValueError as error:
        raise AttendoError(str(error)) from None


def _asked(edit: EditRequest | Edit) -> Iterator[EditRequest]:
    """Yield an edit as requests for single heads."""
    match edit:
        case EditRequest():
            yield edit
        case Off(path, heads):
            for head in (None,) if heads is None else heads:
                yield EditRequest(kind="off", path=path, head=head)
        case Temper(path, beta, heads):
            for head in (None,) if heads is None else heads:
                level = "inf" if beta == float("inf") else beta
                yield EditRequest(kind="beta", path=path, head=head, beta=level)
        case _:
            name = type(edit).__name__
            raise AttendoError(f"look supports only Off and Temper. For {name}, use model.recording")


def table_text(shown: AttentionMap, layer: int | None = None, head: int | None = None) -> str:
    """Return attention weights as CSV, with 6 digits and one row per layer, head, query and key.

    The numbers in the table begin at 1. `layer` and `head`, from 0, select one layer and one head. Raise AttendoError
    if the layer or head does not exist.
    """
    shown.shown(layer, head)  # raises
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    writer.writerow(["layer", "head", "query", "key", "query_piece", "key_piece", "weight"])
    n_layers, n_heads = shown.weights.shape[:2]
    for number in range(n_layers) if layer is None else (layer,):
        for one in range(n_heads) if head is None else (head,):
            rows = zip(shown.query_pieces, shown.weights[number, one], strict=True)
            for i, (query, row) in enumerate(rows, 1):
                for j, (key, weight) in enumerate(zip(shown.key_pieces, row.tolist(), strict=True), 1):
                    pieces = (guarded(query), guarded(key))
                    writer.writerow([number + 1, one + 1, i, j, *pieces, f"{weight:.6g}"])
    return table.getvalue()


def guarded(piece: str) -> str:
    """Return a token as a CSV cell. An apostrophe is added if a spreadsheet would read it as a formula (OWASP).

    >>> guarded("=1+1"), guarded("rain")
    ("'=1+1", 'rain')
    """
    return f"'{piece}" if piece.startswith(("=", "+", "-", "@", "\t", "\r")) else piece
