"""Which model the block diagram shows: a preset, and settings laid over it."""

from __future__ import annotations

from collections.abc import Sequence

from attendo.config import override
from attendo.errors import AttendoError
from attendo.model_config import ModelConfig
from attendo.tasks.families import family_of
from attendo.tasks.settings import check_names, joined, preset_tables, section

PRESET = "base"
VOCABULARY = 37_000
"""Of Vaswani et al. 2017, section 5.1: shared by English and German."""


def chosen_model(preset: str | None = None, assignments: Sequence[str] = ()) -> ModelConfig:
    """The [model] of a preset ("base" if None) with each `model.key=value` set.

    A vocabulary that neither says is the preset's tokenizer's, else that of Vaswani et al. 2017. Raises AttendoError
    for an unknown preset or key, and for a setting that is not of the model.

    >>> chosen_model("big", ["model.n_heads=8"]).n_heads
    8
    """
    tables = preset_tables(PRESET if preset is None else preset)
    given = override({}, assignments)
    check_names(family_of("translation"), given, "--set")
    if others := given.keys() - {"model"}:
        name = sorted(others)[0]
        raise AttendoError(f"[{name}] changes nothing in the figure of a model; set model.KEY=VALUE only")
    vocab_size = tables.get("tokenizer", {}).get("vocab_size", VOCABULARY)
    whole = joined({"model": {"vocab_size": vocab_size}}, {"model": tables.get("model", {})}, given)
    return section(ModelConfig, whole, "model", "the settings")
