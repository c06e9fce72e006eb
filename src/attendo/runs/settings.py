"""RunConfig: the sections of a run's config.toml, joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attendo.config import build, check_keys, read_toml, to_table
from attendo.data.tokenizer_training import TokenizerConfig
from attendo.errors import AttendoError
from attendo.models import ModelConfig
from attendo.runs.task_specs import TaskSpec
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.lora import LoraConfig, nearest
from attendo.training.optimizer import BUDGETS, TrainingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


EMBEDDED = ("forecasts", "stdlib")
"""Names of corpora that stand for a file."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All sections of a run, complete. extra: sections that only this kind of task has."""

    family: TaskSpec
    model: ModelConfig
    tokenizer: TokenizerConfig
    data: Any
    training: TrainingConfig
    checkpoint: CheckpointConfig
    lora: LoraConfig
    extra: Mapping[str, Any]

    @classmethod
    def from_tables(cls, family: TaskSpec, tables: Tables, where: str) -> RunConfig:
        """Parses every table. Raises AttendoError naming the first wrong table, key or value in `where`."""
        check_tables(family, tables, where)
        found = {name: section(kind, tables, name, where) for name, kind in sections(family).items()}
        extra = {name: found.pop(name) for name in family.extra}
        return cls(family=family, extra=extra, **found)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sections as plain values for `from_tables`, without [lora] at rank 0."""
        values = {**vars(self), **self.extra}
        names = [name for name in sections(self.family) if name != "lora" or self.lora.rank]
        return {name: to_table(values[name]) for name in names}


Tables = Mapping[str, Mapping[str, Any]]
T = TypeVar("T", bound="DataclassInstance")


def sections(family: TaskSpec) -> dict[str, type[Any]]:
    """The tables of a configuration file and their types."""
    return {
        "model": ModelConfig,
        "tokenizer": TokenizerConfig,
        "data": family.data,
        "training": TrainingConfig,
        "checkpoint": CheckpointConfig,
        "lora": LoraConfig,
        **family.extra,
    }


def section(kind: type[T], tables: Tables, name: str, where: str) -> T:
    """One table as its dataclass."""
    return build(kind, tables.get(name, {}), f"{where} [{name}]")


def check_names(family: TaskSpec, tables: Mapping[str, Any], where: str) -> None:
    """Raises AttendoError for a table or a key that no section has."""
    kinds = sections(family)
    for name, table in tables.items():
        if name not in kinds:
            raise AttendoError(f"unknown table [{name}] in {where}; known are {', '.join(kinds)}")
        if not isinstance(table, Mapping):
            raise AttendoError(f"{name} in {where} is a value; it must be a table, [{name}]")
        check_keys(kinds[name], table, f"{where} [{name}]")


def check_tables(family: TaskSpec, tables: Mapping[str, Any], where: str) -> None:
    """Raises AttendoError for a wrong table, key or value, before anything slow begins."""
    check_names(family, tables, where)
    model = {"architecture": family.architecture, **family.model, **tables.get("model", {})}
    if model["architecture"] != family.architecture:
        raise AttendoError(
            f"{where} [model]: architecture={model['architecture']!r} is not for {family.name}; leave it out"
        )
    # placeholders for values that are chosen later, so that the given values are checked now
    stand_in = {"vocab_size": 1000} | ({"n_classes": 2} if family.architecture == "classifier" else {})
    build(ModelConfig, stand_in | model, f"{where} [model]")
    training = tables.get("training", {})
    end = {} if training.keys() & BUDGETS else {"epochs": 1}
    build(TrainingConfig, end | training, f"{where} [training]")
    kinds = sections(family)
    for name in kinds.keys() - {"model", "training", "data"}:
        section(kinds[name], tables, name, where)
    if section(TokenizerConfig, tables, "tokenizer", where).kind == "uncased" and family.writes:
        raise AttendoError(
            f"{where} [tokenizer]: kind='uncased' forgets case and spaces, so no text can be written with it; choose"
            " bpe, unigram, word, character or byte"
        )


def data_of(family: TaskSpec, folder: Path) -> Any:
    """The [data] of a run folder."""
    path = folder / "config.toml"
    return section(family.data, read_toml(path), "data", str(path))


def with_absolute_files(tables: Tables) -> dict[str, dict[str, Any]]:
    """The tables with absolute paths in [data], so that the run resumes from anywhere."""
    result = {name: dict(table) for name, table in tables.items()}
    data = result.get("data", {})
    for name in ("train", "valid", "against"):
        files = data.get(name)
        if isinstance(files, list | tuple) and not (files and files[0] in EMBEDDED):
            data[name] = [str(Path(file).absolute()) for file in files]
    return result


def preset_tables(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a preset that comes with attendo. Raises AttendoError naming the known presets."""
    known = preset_names()
    if name not in known:
        raise AttendoError(f"no preset is called {name!r}; {nearest(name, known)}")
    return read_toml(_presets() / f"{name}.toml")


def preset_names() -> list[str]:
    """The presets that come with attendo.

    >>> "base" in preset_names()
    True
    """
    return sorted(path.stem for path in _presets().glob("*.toml"))


def _presets() -> Path:
    return Path(str(resources.files("attendo"))) / "presets"


def joined(*layers: Tables) -> dict[str, dict[str, Any]]:
    """Tables merged key by key; the later value wins.

    The four budgets of [training] are one setting: a later budget replaces any earlier one.

    >>> joined({"model": {"d_model": 64, "n_heads": 2}}, {"model": {"d_model": 128}})
    {'model': {'d_model': 128, 'n_heads': 2}}
    """
    result: dict[str, dict[str, Any]] = {}
    for tables in layers:
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise AttendoError(f"{name} is a value; it must be a table, [{name}]")
            before = result.get(name, {})
            if name == "training" and table.keys() & BUDGETS:
                before = {key: value for key, value in before.items() if key not in BUDGETS}
            result[name] = before | dict(table)
    return result
