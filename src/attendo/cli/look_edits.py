"""What `attendo look --off` and `--beta` ask for, checked against the model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from attendo.microscope.ask import AskedEdit
    from attendo.models import Model

HARD = ("inf", "infinity", "∞", "hard")
"""What says that β is infinite, in letters of any case."""


def asked_edits(model: Model, off: list[str], beta: str | None) -> list[AskedEdit]:
    """What --off and --beta ask for. BadParameter names an option that asks for what isn't there."""
    from attendo.microscope.ask import AskedEdit

    edits = [_off(model, given) for given in off]
    if beta is not None:
        edits.append(AskedEdit(kind="beta", path="*", beta=_beta(beta)))
    return edits


def _off(model: Model, given: str) -> AskedEdit:
    """One PATH or PATH:HEAD; a path may be a shell pattern."""
    from attendo.microscope.ask import AskedEdit
    from attendo.microscope.layers import attention_layers, effect_paths

    path, colon, number = given.partition(":")
    parts, layers = effect_paths(model), attention_layers(model)
    matched = [part for part in parts if part == path] or [p for p in parts if fnmatchcase(p, path)]
    if not matched:
        raise typer.BadParameter(f"--off {given}: there is no such layer; {_nearest(path, parts)}")
    if not colon:
        return AskedEdit(kind="off", path=path)
    if path in parts and path not in layers:
        raise typer.BadParameter(f"--off {given}: a feed-forward net has no heads; leave out {colon}{number}")
    head = int(number) if number.isascii() and number.isdigit() else 0
    most = min((layers[part].n_heads for part in matched if part in layers), default=0)
    if not most:
        raise typer.BadParameter(f"--off {given}: feed-forward nets have no heads; leave out {colon}{number}")
    if not 1 <= head <= most:
        raise typer.BadParameter(f"--off {given}: the head behind the colon is 1 to {most}")
    return AskedEdit(kind="off", path=path, head=head - 1)


def _nearest(path: str, parts: list[str]) -> str:
    """What may be meant, or all there is."""
    from difflib import get_close_matches

    from attendo.inspecting.edits import paths_in_short

    near = get_close_matches(path, parts, n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else f"there are {paths_in_short(parts)}"


def _beta(text: str) -> Any:
    """A number from 0, or "inf", which may also be said otherwise; as the page's address has it (state.js)."""
    try:
        value = float("inf" if text.lower() in HARD else text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise typer.BadParameter(f"--beta {text} must be a number from 0, or inf")
    return "inf" if value == float("inf") else value
