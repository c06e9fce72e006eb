"""The commands `attendo train`, with a subcommand per task, `resume` and `verify-resume`, and their options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from attendo.cli import options as opt
from attendo.cli.reporting import follow, preparing, say, silent
from attendo.display.formats import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from attendo.bundle import TaskName
    from attendo.runs.task_specs import TaskSpec
    from attendo.training.distributed import Ranks
    from attendo.training.run import Clock

UNCHANGED = "the checkpoints are unchanged"
Tables = dict[str, dict[str, Any]]
"""The settings by section and name, as in config.toml."""

Steps = Annotated[int | None, opt.shared("N", "Train for N updates in total.", min=1)]
Epochs = Annotated[float | None, opt.shared("E", "Train for E epochs in total.")]
Minutes = Annotated[float | None, opt.shared("M", "Train for M minutes in total, including preparation.")]
CpuMinutes = Annotated[float | None, opt.shared("M", "Train for M CPU-minutes in total, summed over all threads.")]
Header = Annotated[bool, opt.switch("--header", "Treat the first line of a .tsv file as a header.", default=...)]


ValidData = Annotated[list[str] | None, opt.shared("F", "Validation data (default: part of the training data).")]


class DataOptions(opt.OptionGroup):
    """The options for the data of a task: the base class of dataclasses whose fields are settings in [data]."""

    others: ClassVar[tuple[str, ...]] = ()
    """The names of fields that are no settings in [data]."""

    def settings(self) -> dict[str, Any]:
        """Return the given options as settings, with keys of the form "section.key"."""
        given = self.given().items()
        # an empty text is kept, so that the check of the setting refuses it
        return {f"data.{name}": v for name, v in given if v not in (False, []) and name not in self.others}


@dataclass(frozen=True)
class PairOptions(DataOptions):
    """The options for sentence pairs, of which sources and targets can have separate, parallel files."""

    others = ("train_source", "train_target", "valid_source", "valid_target")

    train: list[str] | None = opt.option("F", "Training data. Give the option twice for two parallel files.")
    valid: list[str] | None = opt.option("F", "Validation data (default: split off from the training data).")
    train_source: str | None = opt.option("F", "Source file of parallel training data.")
    train_target: str | None = opt.option("F", "Target file of parallel training data.")
    valid_source: str | None = opt.option("F", "Source file of parallel validation data.")
    valid_target: str | None = opt.option("F", "Target file of parallel validation data.")
    columns: str | None = opt.option("C", "Columns of pairs or labeled texts, as in `attendo train`.")
    header: Header = False

    def files(self, name: str) -> list[str] | None:
        """Return the files of the option "train" or "valid": the given file, two parallel files, or None."""
        given, way = getattr(self, name), f"--{name}"
        pair = [getattr(self, f"{name}_{side}") for side in ("source", "target")]
        opt.refuse_if(pair.count(None) == 1, f"{way}-source and {way}-target must be given together")
        opt.refuse_if(
            given and len(given) > 1,
            f"{way} names {len(given or ())} files (expected one). Give a folder or a quoted pattern"
            f" ('shards/*.tsv'), or two parallel files with {way}-source and {way}-target",
        )
        opt.refuse_if(given and None not in pair, f"give either {way}, or {way}-source and {way}-target")
        return given or (None if None in pair else pair)

    def settings(self) -> dict[str, Any]:
        """Return the settings. The training and validation data are each one file or two parallel files."""
        return super().settings() | {f"data.{name}": self.files(name) for name in ("train", "valid")}


@dataclass(frozen=True)
class AnyOptions(PairOptions):
    """The data options of the commands `plan` and `trial`, which accept all tasks."""

    column: str | None = opt.option("C", "Text column for language models, as in `attendo train`.")

    def settings_of(self, task: str) -> dict[str, Any]:
        """Return the settings for a task. Raise BadParameter for parallel files if it is not translation."""
        found = DataOptions.settings(self)
        for name in ("train", "valid"):
            if {getattr(self, f"{name}_source"), getattr(self, f"{name}_target")} != {None}:
                opt.refuse_if(
                    task != "translation",
                    f"--{name}-source and --{name}-target apply only to a translator. Use --{name}",
                )
                found[f"data.{name}"] = self.files(name)
        return ({"data.train": ["stdlib"]} if task.endswith("language-model") else {}) | found


@dataclass(frozen=True)
class TranslationOptions(PairOptions):
    """The data options of a translator."""

    train: list[str] | None = opt.option(
        "F", "Sentence pairs: a file, a folder or a pattern 'a/*.tsv' (.csv, .jsonl …)."
    )
    valid: ValidData = None
    columns: str | None = opt.option("C", "Columns by name or number, for example source=en,target=ja or 1,2.")
    source_language: str | None = opt.option("en", "Source language, a BCP 47 code such as en.", "--from")
    target_language: str | None = opt.option("ja", "Target language, a BCP 47 code such as ja.", "--to")
    reverse: bool = opt.switch("--reverse", "Swap the source and target columns, but not --from and --to.")
    drop: str | None = opt.option(
        "NAMES", "Findings whose rows are left out, for example duplicates,leaks (see attendo doctor)."
    )
    against: list[str] | None = opt.option(
        "F", "Test data for --drop leaks. Give the option twice for two parallel files."
    )


@dataclass(frozen=True)
class LabelledOptions(DataOptions):
    """The data options of a model that is trained on labeled texts."""

    train: list[str] | None = opt.option(
        "F", "Labeled texts: a file, a folder or a pattern 'a/*.tsv' (.csv, .jsonl …)."
    )
    valid: ValidData = None
    columns: str | None = opt.option(
        "C", "Columns by name or number, for example label=stars,text=review or 1,2 (label, text)."
    )
    header: Header = False


@dataclass(frozen=True)
class TaggedOptions(DataOptions):
    """The data options of a tagger."""

    train: list[str] | None = opt.option(
        "F", "Tagged texts: a file, a folder or a pattern 'a/*.conll' (.conll, .jsonl …)."
    )
    valid: ValidData = None
    columns: str | None = opt.option("C", "Columns of tables by name, for example spans=entities,text=body.")


@dataclass(frozen=True)
class TextOptions(DataOptions):
    """The data options of a model that is trained on plain texts."""

    train: list[str] | None = opt.option(
        "F", "Text file, folder or table; repeatable (default: Python's standard library)."
    )
    valid: ValidData = None
    column: str | None = opt.option("C", "Text column of .tsv, .csv, .jsonl, .parquet or .xlsx files.")
    header: Header = False
    documents: str | None = opt.option(
        "D", "Document unit in text files: file, line, or blank (separated by blank lines)."
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings. The default data is the source code of Python's standard library."""
        return {"data.train": ["stdlib"]} | super().settings()


Talks = Annotated[
    list[str] | None,
    opt.shared("F", "Conversations, preferences or prompts: a file, a folder or a pattern (.jsonl …)."),
]


@dataclass(frozen=True)
class TalkOptions(DataOptions):
    """The data options of an assistant that is trained on conversations or preferences."""

    others = ("show_loss_mask",)

    train: Talks = None
    valid: ValidData = None
    columns: str | None = opt.option("C", "Columns, for example question=q,answer=a or prompt=p,chosen=a,rejected=b.")
    header: Header = False
    show_loss_mask: int | None = opt.option("N", "Print which tokens of the first N rows are trained, and exit.", min=1)


@dataclass(frozen=True)
class RewardOptions(DataOptions):
    """The data options of an assistant that is trained with a reward function, and the function."""

    others = ("reward",)

    train: Talks = None
    valid: ValidData = None
    columns: str | None = opt.option("C", "Column of messages, or columns such as question=q,answer=a.")
    reward: str | None = opt.option("FILE.py:NAME", "Reward function in a Python file, which is executed.")

    def settings(self) -> dict[str, Any]:
        """Return the settings, among which is the reward function."""
        return super().settings() | {"reward.function": self.reward}


@dataclass(frozen=True)
class SettingOptions(opt.OptionGroup):
    """The options for settings: a preset, a settings file, assignments, and the run to fine-tune."""

    preset: str | None = opt.option(
        "P", "Preset: tiny, small, base, big, or lecture for a classifier (default: chosen from the data)."
    )
    config: Path | None = opt.option("F.toml", "File with settings; --print-config shows the format.")
    set_: list[str] | None = opt.option("K=V", "Setting, for example model.d_model=128; repeatable.", "--set")
    init_from: Path | None = opt.option("DIR", "Run folder of a model to fine-tune (for LoRA, add --set lora.rank=8).")

    def joined(self, family: TaskSpec, options: Mapping[str, Any]) -> Tables:
        """Join the settings of the preset, the file, --set and the options, from lowest to highest priority.

        The options have keys such as "data.train". Missing options are None. Encoder or decoder layers of the preset
        are ignored if the task's model has no encoder or no decoder.
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
class TrainingOptions(opt.OptionGroup):
    """The training options of all tasks: training limit, seed, device, and whether to stop at an unusable row."""

    steps: Steps = None
    epochs: Epochs = None
    minutes: Minutes = None
    cpu_minutes: CpuMinutes = None
    seed: int | None = opt.option("N", "Random seed for weights, data order and dropout (default: 1).")
    threads: opt.Threads = None
    device: opt.Device = "auto"
    strict: bool = opt.switch("--strict", "Stop at the first unusable row instead of skipping it.")

    def settings(self) -> dict[str, Any]:
        """Return the options that are settings, as a dict with keys of the form "section.key"."""
        ends = one_end(steps=self.steps, epochs=self.epochs, minutes=self.minutes, cpu_minutes=self.cpu_minutes)
        own = {"data.strict": self.strict or None, "training.seed": self.seed}
        return own | {f"training.{name}": value for name, value in ends.items()}


def one_end(**ends: Any) -> dict[str, Any]:
    """Return the limit of the run (steps, epochs or time). Raise BadParameter if more than one limit is given."""
    given = {name: value for name, value in ends.items() if value is not None}
    flags = " and ".join(map(opt.flag, given))
    opt.refuse_if(len(given) > 1, f"{flags} cannot be combined. Give only one of them")
    return given


TRANSLATION = """Train a translator from sentence pairs.

Missing settings, such as the model size or the learning rate, are chosen from your data, the measured speed of this
machine and the time budget. The chosen settings are printed. Settings of --config override the preset, assignments
of --set override --config, and all other options override --set. The number of skipped rows is printed for each
reason. Ctrl-C saves a checkpoint, from which `attendo resume` continues.

--init-from fine-tunes a trained model. By default, all weights are trained. With --set lora.rank=8, only LoRA
adapters are trained. With --set 'training.frozen=["encoder"]', everything except the encoder is trained.

--set also selects parts of the model. For example, model.positions can be sinusoidal, learned, rotary, alibi,
relative or none, and model.norm can be layer or rms.

Example: attendo train translation --train pairs.tsv --out runs/mine
"""
CLASSIFICATION = """Train a classifier from labeled texts.

Labels can be any words. Settings that you leave out are chosen from your data and printed. The number of skipped rows
is printed for each reason. For pairs of texts, name the column of the second text: --columns
label=relation,text=claim,second=source.

--init-from starts from the encoder of a masked language model. With --set lora.rank=8, only the output layer and LoRA
adapters in the encoder are trained. With --set 'training.frozen=["encoder"]', the encoder remains unchanged.

Example: attendo train classification --train reviews.tsv --out runs/mine
"""
MULTI_LABEL = """Train a classifier that gives a text any number of labels.

The columns are labels and text. Write several labels with | between them, or as a JSON list. A text without labels has
the list []. Each label is an independent decision with a calibrated probability.

Example: attendo train multi-label --train tickets.csv --columns labels=topics,text=body --out runs/mine
"""
REGRESSION = """Train a model that estimates a number for a text, such as a price or a number of stars.

The columns are number and text. The model also estimates an interval that contains the number with probability 0.8.

Example: attendo train regression --train reviews.csv --columns number=stars,text=review --out runs/mine
"""
TAGGING = """Train a tagger that finds spans with labels in texts, such as names or dates.

A CoNLL file (.conll, .bio, .iob, .txt or .tsv) has a token and its tag (BIO or BIOES) on each line, and a blank
line after each sentence. A .jsonl, .csv or .parquet file has the columns text and spans, a JSON list of [start,
end, label] in characters. Rows with invalid or overlapping spans are skipped and counted.

Example: attendo train tagging --train names.conll --out runs/mine
"""
LANGUAGE_MODEL = """Train a model that continues texts.

The default data is the source code of Python's standard library.
--set tokenizer.kind=character|byte|word|bpe|unigram selects the tokenizer. --set model.max_len=N sets the context
length in tokens. --init-from DIR fine-tunes another model on your texts. --set lora.rank=8 then trains only LoRA
adapters.

Example: attendo train language-model --train notes.txt --out runs/mine
"""
MASKED = """Train an encoder to predict masked tokens.

You can fine-tune the encoder as a classifier (attendo train classification --init-from), or compute vectors of texts
(attendo embed). --set masking.rule=80/10/10 masks tokens as BERT does. The rule "plain" masks every chosen token.

Example: attendo train masked-language-model --train notes.txt --out runs/mine
"""
CHAT = """Train an assistant from conversations.

A .jsonl file has the key messages, a list of objects with role (system, user or assistant) and content, or the keys
question and answer. Tables have the columns question and answer. Only the assistant's turns are trained.

--init-from starts from a language model or an imported model, which is recommended. An imported model keeps its chat
template. Other models get three new tokens. With --set lora.rank=8, only LoRA adapters and an embedding with new tokens
are trained.

Example: attendo train chat --train talks.jsonl --init-from runs/mine --out runs/assistant
"""
PREFERENCE = """Train an assistant to prefer the better of two answers (DPO).

A row has a prompt, a chosen answer and a rejected answer. Each of the three can be a text, or a list of messages in
.jsonl and .parquet files. --init-from names the assistant, which is also the reference model. Its log-probabilities are
computed once and saved in the run folder. --set preference.beta=0.1 is the weight of the reference model.

Example: attendo train preference --train pairs.jsonl --init-from runs/assistant --out runs/better
"""
REWARD = """Train an assistant with a reward function (REINFORCE with a leave-one-out baseline).

The assistant answers prompts, and answers with a high reward become more probable. The reward function receives the
messages, an answer and the reference answer, and returns a number. Prompts have the format of conversations. If the
last message is from the assistant, it is the reference answer.

--init-from names the assistant. --set reward.answers=8 is the number of answers per prompt, and --set
reward.max_tokens=128 is their maximum length. An answer that does not end gets the reward 0 (reward.unfinished).

Example: attendo train reward --train prompts.jsonl --reward score.py:score --init-from runs/assistant --out runs/b
"""

TASKS: tuple[tuple[TaskName, type[DataOptions], str, str], ...] = (
    ("translation", TranslationOptions, "Train a translator from sentence pairs.", TRANSLATION),
    ("classification", LabelledOptions, "Train a classifier from labeled texts.", CLASSIFICATION),
    ("multi-label", LabelledOptions, "Train a classifier that gives any number of labels.", MULTI_LABEL),
    ("regression", LabelledOptions, "Train a model that estimates a number for a text.", REGRESSION),
    ("tagging", TaggedOptions, "Train a tagger that finds names and other spans in texts.", TAGGING),
    ("language-model", TextOptions, "Train a model that continues texts.", LANGUAGE_MODEL),
    ("masked-language-model", TextOptions, "Train an encoder, as a start for classifiers.", MASKED),
    ("chat", TalkOptions, "Train an assistant from conversations.", CHAT),
    ("preference", TalkOptions, "Train an assistant to prefer the better of two answers.", PREFERENCE),
    ("reward", RewardOptions, "Train an assistant with a reward function.", REWARD),
)
"""The name, data options, short help and help of each task."""


def train_app() -> typer.Typer:
    """Return the command `train` with a subcommand per task."""
    train = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    train.callback()(tasks)
    for name, options, short_help, help in TASKS:
        train.command(name, short_help=short_help, help=help)(_task_command(name, options))
    return train


def tasks(context: typer.Context) -> None:
    """Train a model on your own files. The task is the first argument.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def _task_command(task: TaskName, options: type[DataOptions]) -> Callable[..., int]:
    """Return the command that trains a model for a task."""

    def command(
        *,
        out: Path | None = opt.option("DIR", "New run folder."),
        data: DataOptions,
        chosen: SettingOptions,
        training: TrainingOptions,
        print_config: bool = opt.switch("--print-config", "Print the settings as TOML and exit."),
    ) -> int:
        with preparing():
            from attendo.config import dump_toml
            from attendo.runs.task_specs import family_of
            from attendo.training.run import Clock

            clock = Clock.of_process()
            family = family_of(task)
            tables = chosen.joined(family, data.settings() | training.settings())
        if isinstance(data, TalkOptions) and data.show_loss_mask:
            return _show_loss_mask(family, tables, chosen.init_from, data.show_loss_mask)
        if print_config:
            print(dump_toml(tables), end="")
            return 0
        if out is None:
            raise typer.BadParameter("--out DIR, the new run folder, is missing")
        require_data(tables)
        return _train(family, tables, out, training, clock, chosen.init_from)

    command.__annotations__["data"] = options
    return opt.with_groups(command)


def _show_loss_mask(family: TaskSpec, given: Tables, init_from: Path | None, n_rows: int) -> int:
    """Print the tokens of the first conversations. Lines with > contain the tokens that are trained."""
    from itertools import groupby, islice

    from attendo.bundle import load_bundle
    from attendo.data.chat_corpus import template_of, versions
    from attendo.runs.settings import choose_tokenizer, joined, section

    tables = joined(family.defaults(), given)
    require_data(tables)
    corpus: Any = family.open(section(family.data, tables, "data", "the settings"), silent)
    if init_from is None:
        _, tokenizer = choose_tokenizer(tables, family, corpus, silent)
    else:
        tokenizer = load_bundle(init_from).tokenizer
    tokenizer = family.adapt(tokenizer)
    for row in islice(corpus.rows(), n_rows):
        for talk in versions(row):
            print(f"{corpus.data.train[0]}:{row.number}")
            ids, mask = template_of(tokenizer).encode(tokenizer, talk)
            tokens = zip(tokenizer.pieces(ids), mask, strict=True)
            for counts, group in groupby(tokens, key=lambda token: token[1]):
                print(">" if counts else " ", *(piece for piece, _ in group))
    return 0


def require_data(tables: Tables) -> None:
    """Raise BadParameter if the settings contain no training data."""
    opt.refuse_if(not tables.get("data", {}).get("train"), "no training data. Give --train F")


def _train(
    family: TaskSpec,
    tables: Tables,
    out: Path,
    training: TrainingOptions,
    clock: Clock,
    init_from: Path | None,
) -> int:
    import torch

    from attendo.bundle import usage
    from attendo.interop.exporting import not_exportable, only_here
    from attendo.runs.resume import joined_run, resumed_run
    from attendo.runs.training_run import is_restarted, new_run

    device = training.device
    threads = training.threads
    opt.use_threads(threads)
    with ranks_of(device, tables.get("training", {})) as ranks:
        tell = say if ranks.is_first else silent
        if is_restarted(out, ranks):
            with preparing(UNCHANGED):
                run = resumed_run(out, None, tell, device, threads, clock, ranks)
        elif ranks.is_first:
            with preparing():
                run = new_run(family, tables, out, tell, clock, device, init_from, ranks)
                bundle = run.bundle
                note = only_here(family.name, tables["data"])
                note = note or not_exportable(bundle.model_config, bundle.tokenizer.kind)
                if note:  # print this before the training
                    say(note)
        else:
            run = joined_run(out, tell, device, clock, ranks)
        processes = f"{ranks.world} processes of " if ranks.world > 1 else ""
        tell(f"{processes}{plural(torch.get_num_threads(), 'thread')}; the run is saved in {out}")
        code = 0 if run.has_ended else follow(run)
    if code == 0:
        tell(f"try it: {usage(family.name, family.architecture, out)}")
    return code


def ranks_of(device: str, training: Mapping[str, Any]) -> AbstractContextManager[Ranks]:
    """Join the processes that torchrun started, or return a group that contains only this process."""
    from attendo.bundle import pick_device
    from attendo.training.distributed import joined
    from attendo.training.optimizer import RANK_TIMEOUT

    return joined(pick_device(device).type, training.get("rank_timeout", RANK_TIMEOUT))


def resume(
    folder: opt.Folder,
    steps: Steps = None,
    more_steps: int | None = opt.option("N", "Train for N more updates, counted from the checkpoint.", min=1),
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    threads: int | None = opt.option("N", "Number of CPU threads (default: as in the last training).", min=1),
    device: opt.Device = "auto",
) -> int:
    """Resume a run from its newest checkpoint. The result equals that of an uninterrupted run.

    The options --steps, --epochs, --minutes and --cpu-minutes are totals that include work already done. The option
    --more-steps counts from the checkpoint.

    Example: attendo resume runs/mine --more-steps 2000
    """
    from attendo.training.run import Clock

    clock = Clock.of_process()
    changes = one_end(steps=steps, more_steps=more_steps, epochs=epochs, minutes=minutes, cpu_minutes=cpu_minutes)
    from attendo.config import read_toml
    from attendo.runs.resume import resumed_run

    opt.refuse_if(
        more_steps is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1,
        "--more-steps would count again after each restart by torchrun. Use --steps, the total",
    )
    config = folder / "config.toml"
    with ranks_of(device, read_toml(config).get("training", {}) if config.exists() else {}) as ranks:
        with preparing(UNCHANGED):
            tell = say if ranks.is_first else silent
            run = resumed_run(folder, changes, tell, device, threads, clock, ranks)
        return 0 if run.has_ended else follow(run)


def verify_resume(
    folder: opt.Folder,
    steps: int | None = opt.option("N", "Replay only the first N of these steps, up to a checkpoint.", min=1),
    device: opt.Device = "auto",
) -> int:
    """Check that a resumed run produces identical results.

    The command repeats the last steps, from the checkpoint before the newest checkpoint, and compares them with the log
    of the run. At every step, a hash of the losses, gradient norms and training rows is compared. At the end, the
    weights, optimizer states and random states are compared bit for bit. The run folder is not changed.

    Example: attendo verify-resume runs/mine
    """
    from attendo.runs.resume import verify_resume as verified

    found = verified(folder, steps, say, device)
    print(found)
    return 1 if found.differing else 0
