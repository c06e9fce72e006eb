"""attendo train: a subcommand for each kind of task; with it what plan and resume share with training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.options import (
    Device,
    OptionGroup,
    Threads,
    flag,
    option,
    refuse_if,
    switch,
    use_threads,
    with_groups,
)
from attendo.cli.reporting import follow, preparing, say, silent
from attendo.display.formats import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from attendo.bundle import TaskName
    from attendo.runs.task_specs import TaskSpec
    from attendo.training.distributed import Ranks
    from attendo.training.run import Clock

Tables = dict[str, dict[str, Any]]
"""Settings by section, as in config.toml."""

Steps = Annotated[int | None, option("N", "End after N updates in all.", min=1, default=...)]
Epochs = Annotated[float | None, option("E", "End after E passes over the data.", default=...)]
Minutes = Annotated[float | None, option("M", "End after M minutes, preparation counted.", default=...)]
CpuMinutes = Annotated[float | None, option("M", "The same in CPU time of all threads.", default=...)]
Header = Annotated[bool, switch("--header", "The .tsv file starts with a header.", default=...)]
ValidSide = Annotated[str | None, option("F", "The same for validation.", default=...)]


@dataclass(frozen=True)
class ParallelFiles(OptionGroup):
    """The files of a translator's data where each side has its own."""

    train_source: str | None = option("F", "Two parallel files instead of --train: line n")
    train_target: str | None = option("F", "belongs to line n.")
    valid_source: ValidSide = None
    valid_target: ValidSide = None

    def settings(self, train: list[str] | None, valid: list[str] | None) -> dict[str, Any]:
        """The files to train and validate on, each as one file or two parallel ones."""
        return {
            "data.train": files_of("--train", train, self.train_source, self.train_target),
            "data.valid": files_of("--valid", valid, self.valid_source, self.valid_target),
        }


def files_of(name: str, given: list[str] | None, source: str | None, target: str | None) -> list[str] | None:
    """One file, or two parallel ones."""
    refuse_if(
        (source is None) != (target is None), f"{name}-source and {name}-target belong together; give both"
    )
    if given and len(given) > 1:
        raise typer.BadParameter(
            f"{name} names {len(given)} files; give a folder or a quoted pattern ('shards/*.tsv'), or two parallel"
            f" files with {name}-source and {name}-target"
        )
    refuse_if(given and source is not None, f"give {name}, or {name}-source and {name}-target, not both")
    return given or [file for file in (source, target) if file is not None] or None


@dataclass(frozen=True)
class SettingOptions(OptionGroup):
    """Where settings come from: a preset, a file, assignments; and the run to start from."""

    preset: str | None = option("P", "tiny, small, base or big; else chosen.")
    config: Path | None = option("F.toml", "Settings; --print-config shows the form.")
    set_: list[str] | None = option("K=V", "One setting, as model.d_model=128.", "--set")
    init_from: Path | None = option("DIR", "Start from this run, whole or by LoRA (--set lora.rank=8).")

    def joined(self, family: TaskSpec, options: Mapping[str, Any]) -> Tables:
        """All settings given: the preset's, then the file's, then --set, then the options; the later wins.

        Of a preset for another family only the stacks that this one has are used.

        Args:
            family: The kind of task.
            options: The other options as "section.key", None where not given.
        """
        from attendo.config import override, read_toml
        from attendo.runs.settings import check_names, check_tables, joined, preset_tables

        from_file = read_toml(self.config) if self.config else {}
        from_set = override({}, self.set_ or [])
        check_names(family, from_file, str(self.config))
        check_names(family, from_set, "--set")
        from_options: Tables = {}
        for path, value in options.items():
            section, key = path.split(".")
            if value is not None:
                from_options.setdefault(section, {})[key] = value
        lacks = {name: n for name, n in family.model.items() if name.endswith("_layers") and n == 0}
        from_preset = joined(preset_tables(self.preset), {"model": lacks}) if self.preset else {}
        tables = joined(from_preset, from_file, from_set, from_options)
        check_tables(family, tables, "the settings")
        return tables


@dataclass(frozen=True)
class TrainingOptions(OptionGroup):
    """When training ends, where it computes, and what every kind of task has besides."""

    steps: Steps = None
    epochs: Epochs = None
    minutes: Minutes = None
    cpu_minutes: CpuMinutes = None
    seed: int | None = option("N", "Of the weights, the order and the dropout.")
    threads: Threads = None
    device: Device = "auto"
    strict: bool = switch("--strict", "Stop at the first bad row.")

    def settings(self) -> dict[str, Any]:
        """The options that are settings, as "section.key"."""
        ends = one_end(
            steps=self.steps, epochs=self.epochs, minutes=self.minutes, cpu_minutes=self.cpu_minutes
        )
        own = {"data.strict": self.strict or None, "training.seed": self.seed}
        return own | {f"training.{name}": value for name, value in ends.items()}


def one_end(**ends: Any) -> dict[str, Any]:
    """What ends the run, of which at most one may be given."""
    given = {name: value for name, value in ends.items() if value is not None}
    refuse_if(len(given) > 1, f"give one of {' and '.join(map(flag, given))}, not both")
    return given


Out = Annotated[Path | None, option("DIR", "New folder for the run.", default=...)]
PrintConfig = Annotated[bool, switch("--print-config", "Print the settings as TOML and leave.", default=...)]
Labelled = Annotated[
    list[str] | None,
    option("F", "Labelled texts: a file, a folder or 'a/*.tsv'; .csv, .jsonl …", default=...),
]
Texts = Annotated[
    list[str] | None, option("F", "Texts: files, folders, or rows of a column; repeatable.", default=...)
]
Pairs = Annotated[
    list[str] | None, option("F", "Pairs: a file, a folder or 'a quoted/*.tsv'; .csv, .jsonl …", default=...)
]
ValidTexts = Annotated[list[str] | None, option("F", "For validation; else some is split off.", default=...)]


def train_app() -> typer.Typer:
    """The command `train` with a subcommand for each kind of task."""
    train = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    train.callback()(tasks)
    train.command("translation", short_help="A translator from pairs of sentences.")(translation)
    train.command("classification", short_help="A classifier from labelled texts.")(classification)
    texts: dict[TaskName, tuple[str, str]] = {
        "language-model": ("A model that writes on, from texts.", LANGUAGE_MODEL),
        "masked-language-model": ("Finds hidden tokens; a start for classifiers.", MASKED),
    }
    for name, (short, help) in texts.items():
        train.command(name, short_help=short)(_text_task(name, help))
    return train


def tasks(context: typer.Context) -> None:
    """Train a model from your own files.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@with_groups
def translation(
    *,
    out: Out = None,
    train: Pairs = None,
    valid: list[str] | None = option("F", "Validation pairs; else some are split off."),
    parallel: ParallelFiles,
    chosen: SettingOptions,
    columns: str | None = option("C", "source=en,target=ja, or 1,2 by number."),
    header: Header = False,
    from_: str | None = option("en", "Code of the source language (BCP 47).", "--from"),
    to: str | None = option("ja", "Code of the target language (BCP 47).", "--to"),
    reverse: bool = switch("--reverse", "Swap the sides of the data, not --from and --to."),
    training: TrainingOptions,
    drop: str | None = option("NAMES", "Leave rows out: duplicates,leaks (see doctor)."),
    against: list[str] | None = option(
        "F", "Test rows that --drop leaks leaves out; twice for two parallel."
    ),
    print_config: PrintConfig = False,
) -> int:
    """Train a translator from pairs of sentences.

    What you leave open (size, vocabulary, batch, rate) is chosen from your data, this machine's measured speed
    and the budget, and printed. A preset, then --config, then --set, then the other options: the later wins.
    Every row is accounted for. Ctrl-C saves; attendo resume goes on.
    With --init-from a trained model learns on: all of it, adapters alone (--set lora.rank=8), or all but some parts
    (--set 'training.frozen=["encoder"]').
    Parts are settings, too: model.positions is sinusoidal, learned, rotary, alibi, relative or none
    (--set model.positions=alibi), model.norm is layer or rms.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    data = parallel.settings(train, valid) | {
        "data.columns": columns,
        "data.header": header or None,
        "data.source_language": from_,
        "data.target_language": to,
        "data.reverse": reverse or None,
        "data.drop": drop,
        "data.against": against,
    }
    return _begin("translation", chosen, data, training, out, print_config)


@with_groups
def classification(
    *,
    out: Out = None,
    train: Labelled = None,
    valid: ValidTexts = None,
    chosen: SettingOptions,
    columns: str | None = option("C", "label=stars,text=review, or 1,2 by number."),
    header: Header = False,
    training: TrainingOptions,
    print_config: PrintConfig = False,
) -> int:
    """Train a classifier from labelled texts.

    Labels may be any words. What you leave open is chosen from your data and printed; every row is accounted for.
    With --init-from a masked language model's run, the encoder starts from what that has learned; --set lora.rank=8
    trains adapters alone in it, --set 'training.frozen=["encoder"]' leaves it as it is.

    Example: attendo train classification --train reviews.tsv --out runs/mine
    """
    data = {"data.train": train, "data.valid": valid, "data.columns": columns, "data.header": header or None}
    return _begin("classification", chosen, data, training, out, print_config)


def _text_task(task: TaskName, help: str) -> Callable[..., int]:
    """The command of a task that learns from plain texts."""

    def command(
        *,
        out: Out = None,
        train: Texts = None,
        valid: ValidTexts = None,
        chosen: SettingOptions,
        column: str | None = option("C", "The texts' column in .tsv, .csv, .jsonl, .parquet."),
        header: Header = False,
        documents: str | None = option(
            "D", "What a document is in a text file: file, line or blank (lines)."
        ),
        training: TrainingOptions,
        print_config: PrintConfig = False,
    ) -> int:
        data = {
            "data.train": train or ["stdlib"],
            "data.valid": valid or None,
            "data.column": column,
            "data.header": header or None,
            "data.documents": documents,
        }
        return _begin(task, chosen, data, training, out, print_config)

    command.__doc__ = help
    return with_groups(command)


LANGUAGE_MODEL = """Train a model that continues texts.

Without --train it learns from the source of Python's standard library, which every machine has.
--set tokenizer.kind=character|byte|word|bpe|unigram; --set model.max_len=N is the context in tokens.
--init-from DIR goes on from another model on your texts; with --set lora.rank=8 only adapters learn.

Example: attendo train language-model --train notes.txt --out runs/mine
"""
MASKED = """Train an encoder to find hidden tokens again.

Its run is a start for a classifier (train classification --init-from) and gives vectors (embed).
--set masking.rule=80/10/10 hides as BERT does; the plain rule hides every chosen token.

Example: attendo train masked-language-model --train notes.txt --out runs/mine
"""


def _begin(
    task: TaskName,
    chosen: SettingOptions,
    data: dict[str, Any],
    training: TrainingOptions,
    out: Path | None,
    print_config: bool,
) -> int:
    """Joins the settings, and trains with them or prints them."""
    settings = data | training.settings()
    with preparing():
        from attendo.runs.task_specs import family_of
        from attendo.training.run import Clock

        clock = Clock.of_process()
        family = family_of(task)
        tables = chosen.joined(family, settings)
    if print_config:
        from attendo.config import dump_toml

        print(dump_toml(tables), end="")
        return 0
    if out is None:
        raise typer.BadParameter("missing --out DIR, the new folder for the run")
    require_data(tables)
    return _train(family, tables, out, training, clock, chosen.init_from)


def require_data(tables: Tables) -> None:
    """BadParameter for settings without training data."""
    refuse_if(not tables.get("data", {}).get("train"), "no training data: give --train F")


def _train(
    family: TaskSpec,
    tables: Tables,
    out: Path,
    training: TrainingOptions,
    clock: Clock,
    init_from: Path | None,
) -> int:
    import torch

    from attendo.bundle import USES
    from attendo.interop import not_exportable
    from attendo.runs.resume import joined_run, resumed_run
    from attendo.runs.training_run import is_restarted, new_run

    device = training.device
    threads = training.threads
    use_threads(threads)
    with ranks_of(device, tables.get("training", {})) as ranks:
        tell = say if ranks.is_first else silent
        if is_restarted(out, ranks):
            run = resumed_run(out, None, tell, device, threads, clock, ranks)
        elif ranks.is_first:
            with preparing():
                run = new_run(family, tables, out, tell, clock, device, init_from, ranks)
                config = run.bundle.model_config
                tokenizer = run.bundle.tokenizer
                if note := not_exportable(config, tokenizer.kind):  # better known before it is trained
                    say(note)
        else:
            run = joined_run(out, tell, device, clock, ranks)
        processes = f"{ranks.world} processes of " if ranks.world > 1 else ""
        tell(f"{processes}{plural(torch.get_num_threads(), 'thread')}; everything is kept in {out}")
        code = 0 if run.has_ended else follow(run)
    if code == 0:
        tell(f'try it: attendo {USES[family.architecture]} {out} "your text"')
    return code


def ranks_of(device: str, training: Mapping[str, Any]) -> AbstractContextManager[Ranks]:
    """The processes that torchrun has started for this command, or this one alone."""
    from attendo.bundle import pick_device
    from attendo.training.distributed import joined
    from attendo.training.optimizer import RANK_TIMEOUT

    return joined(pick_device(device).type, training.get("rank_timeout", RANK_TIMEOUT))
