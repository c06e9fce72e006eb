"""RunConfig: the sections of a run's config.toml, joined; and the section about its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attendo.config import build, check_keys, read_toml, to_table
from attendo.data.corpora import PairSource, parse_columns
from attendo.data.doctor import parse_drop
from attendo.data.lines import require_file
from attendo.data.tokenizer_training import TokenizerConfig
from attendo.decoding.beam import DecodingConfig
from attendo.errors import AttendoError
from attendo.models import ModelConfig
from attendo.training.optimizer import TrainingConfig
from attendo.training.state import CheckpointConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BUDGETS = {"steps", "epochs", "minutes", "cpu_minutes"}
FORECASTS = "forecasts"
"""The name of the embedded corpus, where a file is expected."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which rows train and which validate. Paths are kept absolute, so that a run resumes from anywhere.

    train, valid: one file with columns, or two parallel ones; without `valid` some rows are split off. columns:
    as on the command line. source_language, target_language: codes for the card. drop: checks of the doctor
    whose rows are left out.
    """

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    columns: str | None = None
    header: bool = False
    reverse: bool = False
    strict: bool = False
    drop: str = ""
    source_language: str | None = None
    target_language: str | None = None

    def __post_init__(self):
        if not self.train:
            raise ValueError("train names no file; give --train F, or --train-source F --train-target F")

    def training_source(self) -> PairSource:
        """Where the training pairs are read from."""
        return self._source(self.train)

    def validation_source(self) -> PairSource | None:
        """Where the validation pairs are read from, if files were given."""
        return self._source(self.valid) if self.valid else None

    def source(
        self, files: Sequence[Path], columns: str | None = None, header: bool | None = None
    ) -> PairSource:
        """Where other pairs are read from in the run's direction; columns and header as in training unless given."""
        data = replace(
            self,
            columns=self.columns if columns is None else columns,
            header=self.header if header is None else header,
        )
        if len(files) == 2 and (columns or header):
            raise AttendoError("two parallel files have no columns; leave out --columns and --header")
        return data._source(tuple(map(str, files)))

    def drops(self) -> frozenset[str]:
        """The checks of the doctor whose rows are left out."""
        return parse_drop(self.drop)

    @property
    def embedded(self) -> bool:
        """Whether the pairs come from the built-in grammar of weather forecasts."""
        return self.train == (FORECASTS,)

    def check(self) -> None:
        """Raises AttendoError for a missing file or an option that cannot be read, before anything slow begins."""
        if self.embedded:
            if self.valid or self.drop:
                raise AttendoError(
                    f"--train {FORECASTS} brings its own validation rows; leave out --valid and --drop"
                )
            return
        sources = [self.training_source(), self.validation_source()]
        for file in (file for source in sources if source is not None for file in source.files):
            require_file(file)
        if "leaks" in self.drops() and not self.valid:
            raise AttendoError("--drop leaks: there is no other file to compare with; give one with --valid")

    def _source(self, files: tuple[str, ...]) -> PairSource:
        columns = None
        if self.columns is not None and len(files) == 1:
            first, second = parse_columns(self.columns)
            columns = (first, second)
        return PairSource(
            tuple(Path(f) for f in files), columns, self.header and len(files) == 1, self.reverse
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All sections of a translation run, complete."""

    model: ModelConfig
    tokenizer: TokenizerConfig
    data: DataConfig
    training: TrainingConfig
    checkpoint: CheckpointConfig
    decoding: DecodingConfig

    @classmethod
    def from_tables(cls, tables: Tables, where: str) -> RunConfig:
        """Parses every table. Raises AttendoError naming the first wrong table, key or value in `where`."""
        check_tables(tables, where)
        return cls(**{name: section(kind, tables, name, where) for name, kind in SECTIONS.items()})

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sections as plain values; `from_tables` is the way back."""
        return {name: to_table(getattr(self, name)) for name in SECTIONS}


Tables = Mapping[str, Mapping[str, Any]]
T = TypeVar("T", bound="DataclassInstance")
SECTIONS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "checkpoint": CheckpointConfig,
    "decoding": DecodingConfig,
}


def section(kind: type[T], tables: Tables, name: str, where: str) -> T:
    """One table as its dataclass."""
    return build(kind, tables.get(name, {}), f"{where} [{name}]")


def check_names(tables: Mapping[str, Any], where: str) -> None:
    """Raises AttendoError for a table or a key that no section has."""
    for name, table in tables.items():
        if name not in SECTIONS:
            raise AttendoError(f"unknown table [{name}] in {where}; known are {', '.join(SECTIONS)}")
        if not isinstance(table, Mapping):
            raise AttendoError(f"{name} in {where} is a value; it must be a table, [{name}]")
        check_keys(SECTIONS[name], table, f"{where} [{name}]")


def check_tables(tables: Mapping[str, Any], where: str) -> None:
    """Raises AttendoError for a wrong table, key or value, before anything slow begins."""
    check_names(tables, where)
    # what is chosen later is stood in for, so that the values given are checked now
    model = build(ModelConfig, {"vocab_size": 1000, **tables.get("model", {})}, f"{where} [model]")
    if model.architecture != "encoder-decoder":
        raise AttendoError(
            f"{where} [model]: architecture={model.architecture!r} can't translate; leave it out"
        )
    training = tables.get("training", {})
    build(
        TrainingConfig,
        training if BUDGETS & training.keys() else {"epochs": 1, **training},
        f"{where} [training]",
    )
    for name in ("tokenizer", "checkpoint", "decoding"):
        section(SECTIONS[name], tables, name, where)


def data_of(folder: Path) -> DataConfig:
    """The [data] of a run folder."""
    path = folder / "config.toml"
    return section(DataConfig, read_toml(path), "data", str(path))


def with_absolute_files(tables: Tables) -> dict[str, dict[str, Any]]:
    """The tables with every file of [data] named from the root, so that the run resumes from anywhere."""
    result = {name: dict(table) for name, table in tables.items()}
    data = result.get("data", {})
    for name in ("train", "valid"):
        if isinstance(data.get(name), list | tuple) and list(data[name]) != [FORECASTS]:
            data[name] = [str(Path(file).absolute()) for file in data[name]]
    return result


def preset_tables(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a preset that comes with attendo. Raises AttendoError naming those there are."""
    folder = Path(str(files("attendo"))) / "presets"
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        near = get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise AttendoError(f"no preset is called {name!r}; {remedy}")
    return read_toml(folder / f"{name}.toml")


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
