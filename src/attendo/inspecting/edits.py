"""Edits of a model's computation by module path, for example to disable heads or to replace attention weights.

    with recording(model, edits=[Off("decoder.blocks.0.cross_attention", heads=(2,))]) as record:
        record.model(src, tgt)

Edits apply only to the copy `record.model`, and only until the `with` block ends. Edits apply to complete forward
passes and to the steps of decoding. A path is a module path or a shell pattern. Several edits of one layer are applied
in the given order. In all edits, `heads` selects the heads, and None selects all heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.nn.attention import masked_softmax

Heads = tuple[int, ...] | None
PatchedPart = Literal["output", "mixed", "weights"]


@dataclass(frozen=True)
class Off:
    """Disable heads of an attention layer: their outputs before the output projection become 0.

    With `heads=None`, the output of the whole layer or feed-forward network becomes 0, including the bias of its last
    projection (Michel et al. 2019, "Are Sixteen Heads Really Better than One?", ξ_h = 0).
    """

    path: str
    heads: Heads = None


@dataclass(frozen=True, eq=False)
class OffByRow:
    """Disable heads in single rows of a batch, where `off[row, head]` is True. One batch can therefore test many heads.

    The rows are those of the layer's input, for example one row per hypothesis during decoding. When beam search
    reorders the hypotheses, `off` is not reordered.
    """

    path: str
    off: Bool[Tensor, "rows heads"]


@dataclass(frozen=True)
class Temper:
    """Replace a layer's factor β in softmax(β · scores). With β = 0, all weights are equal. β = ∞ is hard attention."""

    path: str
    inverse_temperature: float
    heads: Heads = None


@dataclass(frozen=True, eq=False)
class Patch:
    """Replace a part of a module's computation by given values, for example by the values of another run.

    With values of another run, the edit is activation patching (Meng et al. 2022; Wang et al. 2022, "Interpretability
    in the Wild"). With a constant vector, for example a mean over many positions, the edit is mean ablation.

    Attributes:
        path: The path of an attention layer or feed-forward network. The output of a block, an embedding or a stack
            (the residual stream) can also be replaced, but only by its exact path.
        value: A tensor that broadcasts to the recorded part: `[batch, len, d_model]` for "output",
            `[batch, heads, q_len, value_dim]` for "mixed" and `[batch, heads, q_len, k_len]` for "weights".
        part: The replaced part. "mixed" and "weights" are parts of an attention layer.
        heads: The replaced heads of "mixed" and "weights".
        positions: The replaced positions (queries) of each call, where -1 is the last position. None replaces all
            positions.
    """

    path: str
    value: Float[Tensor, "*shape"]
    part: PatchedPart = "output"
    heads: Heads = None
    positions: tuple[int, ...] | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the values are equal at all positions of all rows."""
        rows = 1 if self.part == "output" else 2
        sizes = self.value.shape[: -rows - 1] + self.value.shape[-2:-1]
        return self.positions is None and self.part != "weights" and all(size == 1 for size in sizes)


Edit = Off | OffByRow | Temper | Patch


class LayerEdits:
    """The edits of one attention layer or feed-forward network, in order, as functions of its intermediate values."""

    def __init__(self, path: str, edits: Sequence[Edit]) -> None:
        self.path = path
        self.edits = tuple(edits)

    def tempers(self, inverse_temperature: float) -> bool:
        """Return whether the edited weights differ from softmax(inverse_temperature · scores)."""
        return any(
            (isinstance(edit, Patch) and edit.part == "weights")
            or (isinstance(edit, Temper) and edit.inverse_temperature != inverse_temperature)
            for edit in self.edits
        )

    @property
    def on_output(self) -> bool:
        """Whether an edit replaces the output of the layer."""
        return any(_whole(edit) for edit in self.edits)

    def weights(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        scores: Float[Tensor, "batch heads q_len k_len"],
        allowed: Bool[Tensor, "batch_or_1 heads_or_1 q_len k_len"] | None,
    ) -> Float[Tensor, "batch heads q_len k_len"]:
        """Return the attention weights after the edits Temper and Patch. `weights` are the unedited weights."""
        for edit in self.edits:
            if isinstance(edit, Temper):
                new = self._tempered(edit, scores, allowed)
                if edit.heads is None:
                    weights = new
                else:
                    weights = weights.clone()
                    weights[:, list(edit.heads)] = new
            elif isinstance(edit, Patch) and edit.part == "weights":
                weights = self._patched(edit, weights)
        return weights

    def mixed(
        self, mixed: Float[Tensor, "batch heads q_len value_dim"]
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Return the outputs of the heads (`mixed`) after the edits Off, OffByRow and Patch."""
        for edit in self.edits:
            if isinstance(edit, Off) and edit.heads is not None:
                mixed = mixed.masked_fill(_chosen(edit.heads, mixed.shape[1], mixed.device), 0.0)
            elif isinstance(edit, OffByRow):
                mixed = mixed.masked_fill(self._rows_off(edit, mixed), 0.0)
            elif isinstance(edit, Patch) and edit.part == "mixed":
                mixed = self._patched(edit, mixed)
        return mixed

    def output(self, output: Float[Tensor, "*batch d_out"]) -> Float[Tensor, "*batch d_out"]:
        """Return the output of the module after the edits Off and Patch of the whole output."""
        for edit in self.edits:
            if _whole(edit):
                is_patch = isinstance(edit, Patch)
                output = self._patched(edit, output) if is_patch else torch.zeros_like(output)
        return output

    def _tempered(self, edit: Temper, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if edit.heads is not None:
            heads = list(edit.heads)
            scores = scores[:, heads]
            allowed = allowed if allowed is None or allowed.shape[1] == 1 else allowed[:, heads]
        seen = scores > -math.inf  # a bias of -inf is a mask, which would be lost at β = 0
        return masked_softmax(scores, seen if allowed is None else allowed & seen, edit.inverse_temperature)

    def _patched(self, edit: Patch, part: Tensor) -> Tensor:
        try:
            new = edit.value.to(part).expand_as(part)
        except RuntimeError:
            raise AttendoError(
                f"Patch {edit.path!r}: value has shape {list(edit.value.shape)} (expected a shape that broadcasts to "
                f"{list(part.shape)}, the shape of {self.path}.{edit.part})"
            ) from None
        if edit.heads is None and edit.positions is None:
            return new
        chosen = torch.full((part.shape[-2], 1), edit.positions is None, device=part.device)
        for position in edit.positions or ():
            if not -part.shape[-2] <= position < part.shape[-2]:
                raise AttendoError(f"Patch {edit.path!r}: no position {position} (expected 0 to {part.shape[-2] - 1})")
            chosen[position] = True
        if edit.heads is not None:
            chosen = chosen & _chosen(edit.heads, part.shape[1], part.device)
        return torch.where(chosen, new, part)

    def _rows_off(self, edit: OffByRow, mixed: Tensor) -> Bool[Tensor, "batch heads queries_or_1 1"]:
        (rows, _), (batch, _, q_len, _) = edit.off.shape, mixed.shape
        off = edit.off.to(mixed.device)
        if rows == batch:
            return off[:, :, None, None]
        # in the steps of a search, the rows of a source are consecutive queries (DecoderCache.fold)
        per_source = rows // batch if batch and rows % batch == 0 else 0
        if not per_source or q_len % per_source or not self.path.endswith("cross_attention"):
            raise AttendoError(f"OffByRow {edit.path!r}: off has {rows} rows, but {self.path} has a batch of {batch}")
        folded = off.unflatten(0, (batch, per_source)).transpose(1, 2)  # [sources, heads, rows of each]
        return folded.repeat_interleave(q_len // per_source, dim=2)[..., None]


def resolve(
    edits: Sequence[Edit], places: Mapping[str, int | None], states: Collection[str] = ()
) -> dict[str, LayerEdits]:
    """Return the edits by module path. `places` contains the number of heads by path (None: feed-forward network).

    `states` are the paths of other modules, whose output only `Patch` can replace.

    Raises AttendoError for an unknown path or head, or a negative β.

    >>> places = {"blocks.0.self_attention": 4, "blocks.0.feed_forward": None}
    >>> [*resolve([Temper("*", 2.0)], places)], [*resolve([Off("*")], places)]
    (['blocks.0.self_attention'], ['blocks.0.self_attention', 'blocks.0.feed_forward'])
    >>> resolve([Off("blocks.0.self_attention", heads=(4,))], places)
    Traceback (most recent call last):
    attendo.errors.AttendoError: Off 'blocks.0.self_attention': no head 4 (expected 0 to 3 in blocks.0.self_attention)
    """
    found: dict[str, list[Edit]] = {path: [] for path in (*places, *states)}
    for edit in edits:
        is_state = isinstance(edit, Patch) and edit.path in states
        for path in [edit.path] if is_state else _matched(edit, places):
            _check(edit, path, places.get(path))
            found[path].append(edit)
    return {path: LayerEdits(path, of_place) for path, of_place in found.items() if of_place}


def paths_in_short(paths: Iterable[str]) -> str:
    """Return module paths as a short text. Paths that differ only in their first number are combined.

    >>> paths_in_short(["blocks.0.norm", "blocks.0.feed_forward", "blocks.1.norm", "blocks.1.feed_forward"])
    'blocks.0-1.norm, blocks.0-1.feed_forward'
    """
    numbers: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        before, number, behind = [*re.split(r"\b(\d+)\b", path, maxsplit=1), "", ""][:3]
        numbers.setdefault((before, behind), []).append(number)
    return ", ".join(
        f"{before}{found[0] if len(found) == 1 else f'{found[0]}-{found[-1]}'}{behind}"
        for (before, behind), found in numbers.items()
    )


def _whole(edit: Edit) -> bool:
    """Return whether the edit applies to the whole output instead of heads."""
    is_off = isinstance(edit, Off) and edit.heads is None
    return is_off or (isinstance(edit, Patch) and edit.part == "output")


def _chosen(heads: Heads, n_heads: int, device: torch.device) -> Bool[Tensor, "heads 1 1"]:
    chosen = torch.full((n_heads, 1, 1), heads is None, device=device)
    if heads is not None:
        chosen[list(heads)] = True
    return chosen


def _matched(edit: Edit, places: Mapping[str, int | None]) -> list[str]:
    name, whole = type(edit).__name__, _whole(edit)
    fitting = [path for path, n_heads in places.items() if whole or n_heads is not None]
    # an exact path is never read as a pattern
    is_exact = edit.path in places
    matched = [edit.path] if is_exact else [path for path in fitting if fnmatchcase(path, edit.path)]
    if not matched:
        kinds = "attention layer or feed-forward network" if whole else "attention layer"
        raise AttendoError(f"{name} {edit.path!r} matches no {kinds}. Available: {paths_in_short(fitting)}")
    return matched


def _check(edit: Edit, path: str, n_heads: int | None) -> None:
    named = f"{type(edit).__name__} {edit.path!r}"
    if n_heads is None:
        if not _whole(edit) or (isinstance(edit, Patch) and edit.heads is not None):
            raise AttendoError(f"{named}: this module has no heads. Edit its whole output instead")
        return
    if isinstance(edit, OffByRow):
        if edit.off.ndim != 2 or edit.off.shape[1] != n_heads or edit.off.dtype != torch.bool:
            raise AttendoError(
                f"{named}: off is {edit.off.dtype} {list(edit.off.shape)} (expected bool [rows, {n_heads}])"
            )
        return
    if isinstance(edit, Temper) and not edit.inverse_temperature >= 0:
        raise AttendoError(f"{named}: inverse_temperature={edit.inverse_temperature} must be at least 0")
    if isinstance(edit, Patch) and edit.part == "output" and edit.heads is not None:
        raise AttendoError(f'{named}: the output of a layer has no heads. Use part="mixed" for heads')
    if isinstance(edit, Patch) and edit.part == "mixed" and edit.value.ndim < 3:
        raise AttendoError(
            f"{named}: value has shape {list(edit.value.shape)} (expected [heads, queries or 1, value_dim])"
        )
    for head in edit.heads or ():
        if not 0 <= head < n_heads:
            raise AttendoError(f"{named}: no head {head} (expected 0 to {n_heads - 1} in {path})")
