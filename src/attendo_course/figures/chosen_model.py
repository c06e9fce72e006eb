"""Which model the block diagram shows: a preset, and settings laid over it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from attendo.config import override, read_toml, to_table
from attendo.errors import AttendoError
from attendo.model_config import ModelConfig
from attendo.runs.settings import check_names, joined, preset_names, preset_tables, section
from attendo.runs.task_specs import family_of
from attendo_course.presets import PRESETS

PRESET = "base"
VOCABULARY = 37_000
"""Of Vaswani et al. 2017, section 5.1: shared by English and German."""


def chosen_model(preset: str | None = None, assignments: Sequence[str] = ()) -> ModelConfig:
    """The [model] of a preset ("base" if None) with each `model.key=value` set.

    preset: one of the training presets, of the sources' models (`attendo_course.presets`), a file of settings or a run
    folder. A vocabulary that none says is the preset's tokenizer's, else that of Vaswani et al. 2017. Raises
    AttendoError for an unknown preset or key, and for a setting that is not of the model.

    >>> chosen_model("big", ["model.n_heads=8"]).n_heads, chosen_model("gpt2_small").architecture
    (8, 'decoder')
    """
    tables = _preset_tables(PRESET if preset is None else preset)
    given = override({}, assignments)
    check_names(family_of("translation"), given, "--set")
    if others := given.keys() - {"model"}:
        name = sorted(others)[0]
        raise AttendoError(f"[{name}] changes nothing in the figure of a model; set model.KEY=VALUE only")
    vocab_size = tables.get("tokenizer", {}).get("vocab_size", VOCABULARY)
    whole = joined({"model": {"vocab_size": vocab_size}}, {"model": tables.get("model", {})}, given)
    return section(ModelConfig, whole, "model", "the settings")


def _preset_tables(preset: str) -> dict[str, dict[str, Any]]:
    """The tables of a training preset, a source's model, a file or a run folder."""
    path = Path(preset)
    if path.suffix == ".toml" or path.is_dir():
        return read_toml(path / "config.toml" if path.is_dir() else path)
    if preset in PRESETS:
        config = _source_model(preset)
        if config is None:
            raise AttendoError(
                f"{preset} is a single attention, which has no blocks to draw; take a whole model"
            )
        return {"model": to_table(config)}
    if preset in preset_names():
        return preset_tables(preset)
    known = [*preset_names(), *(name for name in PRESETS if _source_model(name) is not None)]
    near = get_close_matches(preset, known, n=1)
    remedy = (
        f"did you mean {near[0]}?"
        if near
        else f"there are {', '.join(known)}, or give F.toml or a run folder"
    )
    raise AttendoError(f"no preset is called {preset!r}; {remedy}")


def _source_model(name: str) -> ModelConfig | None:
    """The config of a source's model; None for a single attention."""
    with torch.device("meta"):  # the numbers are not needed
        config = getattr(PRESETS[name].build(), "config", None)
    return config if isinstance(config, ModelConfig) else None
