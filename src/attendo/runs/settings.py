"""RunConfig: the sections of a run's config.toml, joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attendo.config import build, check_keys, read_toml, to_table
from attendo.data.tokenizer_training import TokenizerConfig
from attendo.errors import AttendoError
from attendo.models import ModelConfig
from attendo.runs.task_specs import TaskSpec
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.lora import LoraConfig
from attendo.training.optimizer import TrainingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BUDGETS = {"steps", "epochs", "minutes", "cpu_minutes"}
EMBEDDED = ("forecasts", "stdlib")
"""Names of corpora that need no file, where a file is expected."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All sections of a run, complete; data is of the family's type, extra what only this family has."""

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
        """The sections as plain values, without [lora] where there is none; `from_tables` is the way back."""
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
    # what is chosen later is stood in for, so that the values given are checked now
    stand_in = {"vocab_size": 1000} | ({"n_classes": 2} if family.architecture == "classifier" else {})
    build(ModelConfig, stand_in | model, f"{where} [model]")
    training = tables.get("training", {})
    build(
        TrainingConfig,
        training if BUDGETS & training.keys() else {"epochs": 1, **training},
        f"{where} [training]",
    )
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
    """The tables with every file of [data] named from the root, so that the run resumes from anywhere."""
    result = {name: dict(table) for name, table in tables.items()}
    data = result.get("data", {})
    for name in ("train", "valid", "against"):
        if isinstance(data.get(name), list | tuple) and tuple(data[name])[:1] not in [
            (corpus,) for corpus in EMBEDDED
        ]:
            data[name] = [str(Path(file).absolute()) for file in data[name]]
    return result


def preset_tables(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a preset that comes with attendo. Raises AttendoError naming those there are."""
    known = preset_names()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise AttendoError(f"no preset is called {name!r}; {remedy}")
    return read_toml(_presets() / f"{name}.toml")


def preset_names() -> list[str]:
    """The presets that come with attendo.

    >>> "base" in preset_names()
    True
    """
    return sorted(path.stem for path in _presets().glob("*.toml"))


def _presets() -> Path:
    return Path(str(files("attendo"))) / "presets"


def joined(*layers: Tables) -> dict[str, dict[str, Any]]:
    """Tables laid over one another, key by key; the later one wins.

    The four budgets of [training] are one setting: a later one takes the place of any earlier one.

    >>> joined({"model": {"d_model": 64, "n_heads": 2}}, {"model": {"d_model": 128}})
    {'model': {'d_model': 128, 'n_heads': 2}}
    """
    result: dict[str, dict[str, Any]] = {}
    for tables in layers:
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise AttendoError(f"{name} is a value; it must be a table, [{name}]")
            before = result.get(name, {})
            if name == "training" and BUDGETS & table.keys():
                before = {key: value for key, value in before.items() if key not in BUDGETS}
            result[name] = before | dict(table)
    return result
