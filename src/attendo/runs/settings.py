"""Settings of a run: the sections of config.toml, checked and merged, and the automatic choice of missing settings.

The rules of the choice are derived from the hyperparameter grids in docs/log.md. Each choice is printed before training
and written to config.toml in the run folder. Settings from the user or from a preset are not changed.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch

from attendo.bundle import load_bundle
from attendo.config import build, check_keys, read_toml, to_table
from attendo.data.batches import Batch, TokenDataset
from attendo.data.corpus_base import Corpus
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer, is_spaced
from attendo.display.formats import Say
from attendo.errors import AttendoError, nearest
from attendo.models import ModelConfig, build_model
from attendo.runs.task_specs import TASK_SPECS, Size, TaskSpec, family_of
from attendo.training.acceleration import compiling_pays, fastest_precision, fastest_products
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.costs import on_paper
from attendo.training.loop import update
from attendo.training.optimizer import BUDGETS, LoraConfig, TrainingConfig
from attendo.training.run import Run, Task

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Tables = Mapping[str, Mapping[str, Any]]
EMBEDDED = ("forecasts", "stdlib")
"""Names of embedded corpora, which can be given in place of a file."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run, in sections. `extra` contains sections that only some kinds of tasks have."""

    family: TaskSpec
    model: ModelConfig
    tokenizer: TokenizerConfig
    data: Any
    training: TrainingConfig
    checkpoint: CheckpointConfig
    lora: LoraConfig
    extra: Mapping[str, Any]

    @classmethod
    def from_tables(cls, family: TaskSpec, tables: Tables, where: str) -> "RunConfig":
        """Build the configuration from tables. Raises AttendoError for the first invalid entry."""
        check_tables(family, tables, where)
        found = {name: section(kind, tables, name, where) for name, kind in sections(family).items()}
        extra = {name: found.pop(name) for name in family.extra}
        return cls(family=family, extra=extra, **found)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the sections as plain values for `from_tables`. The section [lora] is left out if its rank is 0."""
        values = {**vars(self), **self.extra}
        names = [name for name in sections(self.family) if name != "lora" or self.lora.rank]
        return {name: to_table(values[name]) for name in names}


T = TypeVar("T", bound="DataclassInstance")


def sections(family: TaskSpec) -> dict[str, type[Any]]:
    """Return the dataclass of each table of a configuration file, by table name."""
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
    """Return one table as an instance of its dataclass."""
    return build(kind, tables.get(name, {}), f"{where} [{name}]")


def check_names(family: TaskSpec, tables: Mapping[str, Any], where: str) -> None:
    """Raise AttendoError for a table or key that does not exist in any section."""
    kinds = sections(family)
    for name, table in tables.items():
        if name not in kinds:
            raise AttendoError(f"unknown table [{name}] in {where} (expected {', '.join(kinds)})")
        if not isinstance(table, Mapping):
            raise AttendoError(f"{name} in {where} must be a table, [{name}], not a value")
        check_keys(kinds[name], table, f"{where} [{name}]")


def check_tables(family: TaskSpec, tables: Mapping[str, Any], where: str) -> None:
    """Raise AttendoError for an invalid table, key or value, before slow work begins."""
    check_names(family, tables, where)
    model = {"architecture": family.architecture, **family.model, **tables.get("model", {})}
    if model["architecture"] != family.architecture:
        raise AttendoError(
            f"{where} [model]: architecture={model['architecture']!r} does not apply to {family.name}. Leave it out"
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
            f"{where} [tokenizer]: kind='uncased' drops case and spaces, so it cannot generate text. Choose bpe,"
            " unigram, word, character or byte"
        )


def data_of(task: str, folder: Path) -> Any:
    """Return the [data] section of a run folder. An imported model has the default values."""
    family = family_of(task)
    path = folder / "config.toml"
    tables = dict(read_toml(path))
    if "data" not in tables and tables.get("tokenizer", {}).get("kind") == "imported":
        tables["data"] = {"train": [str(folder / "imported")]}  # no training files: only the defaults matter
    # an assistant is also a language model, with data settings of another kind
    others = {field.name for spec in TASK_SPECS.values() for field in fields(spec.data)}
    others -= {field.name for field in fields(family.data)}
    tables["data"] = {name: value for name, value in tables.get("data", {}).items() if name not in others}
    return section(family.data, tables, "data", str(path))


def with_absolute_files(tables: Tables) -> dict[str, dict[str, Any]]:
    """Return the tables with absolute paths of files. The run can then be resumed from any folder."""
    result = {name: dict(table) for name, table in tables.items()}
    data = result.get("data", {})
    for name in ("train", "valid", "against"):
        files = data.get(name)
        if isinstance(files, list | tuple) and not (files and files[0] in EMBEDDED):
            data[name] = [str(Path(file).absolute()) for file in files]
    for table in result.values():
        if "function" in table:  # a reward function, FILE.py:NAME
            table["function"] = str(Path(table["function"]).absolute())
    return result


def preset_tables(name: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a preset of attendo. Raises AttendoError with a suggestion for an unknown preset."""
    known = preset_names()
    if name not in known:
        raise AttendoError(f"unknown preset {name!r}; {nearest(name, known)}")
    return read_toml(_presets() / f"{name}.toml")


def preset_names() -> list[str]:
    """Return the names of the presets of attendo.

    >>> "base" in preset_names()
    True
    """
    return sorted(path.stem for path in _presets().glob("*.toml"))


def _presets() -> Path:
    return Path(str(resources.files("attendo"))) / "presets"


def joined(*layers: Tables) -> dict[str, dict[str, Any]]:
    """Merge tables key by key. Later values replace earlier values.

    If a later [training] table sets a limit of the run, all earlier limits are removed.

    >>> joined({"model": {"d_model": 64, "n_heads": 2}}, {"model": {"d_model": 128}})
    {'model': {'d_model': 128, 'n_heads': 2}}
    """
    result: dict[str, dict[str, Any]] = {}
    for tables in layers:
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise AttendoError(f"{name} must be a table, [{name}], not a value")
            before = result.get(name, {})
            if name == "training" and table.keys() & BUDGETS:
                before = {key: value for key, value in before.items() if key not in BUDGETS}
            result[name] = before | dict(table)
    return result


# ---- the automatic choice, from the data, the measured speed and the budget


VOCABULARIES = ((5_000, 1_000), (20_000, 2_000), (100_000, 4_000), (500_000, 8_000), (3_000_000, 16_000))
LARGEST_VOCABULARY = 32_000
"""Vocabulary size for more rows than VOCABULARIES lists. Each token should occur often enough to be learned."""
SCRIPT_TEXTS = 1000
"""Number of texts that are searched for spaces between words."""
FEWEST_EPOCHS = 15
FEWEST_STEPS = 4_000
PROBE_SECONDS, FEWEST_UPDATES = 2.0, 4
ENCODER_PARTS = {"embedding", "encoder"}
"""The parts of a classifier below its output layer, which is fitted before the first step if they are frozen."""
FEWEST_DEFAULT = 2_000
"""The minimum number of steps if no limit is set, up to the most epochs of the task."""
FEWEST_LIMITED = 1_000
"""The minimum number of steps of a time budget that is limited to `most_epochs`."""
CLEARLY_MORE = 1.5
"""The factor by which a time budget must exceed the limit before it is limited, because its steps are an estimate."""
MANY_EPOCHS = 100
"""The number of epochs above which a warning is printed."""
UPDATING_SHARE = 0.9
"""Share of a time budget for updates. The rest is reserved for reading, evaluations and saving."""


def choose_tokenizer(
    tables: Tables, family: TaskSpec, corpus: Corpus[Any], say: Say
) -> tuple[dict[str, dict[str, Any]], Tokenizer]:
    """Train the tokenizer. Return the completed tables and the tokenizer.

    The default depends on the kind of task, and on whether the words of the corpus are separated by spaces. If the kind
    of task has no default, it is BPE, with a vocabulary size that depends on the size of the corpus.
    """
    chosen = {name: dict(table) for name, table in tables.items()}
    table = chosen.setdefault("tokenizer", {})
    n_rows, texts = corpus.size
    if "kind" not in table and any(family.tokenizers):
        spaced = is_spaced(islice(corpus.texts(), SCRIPT_TEXTS))
        chosen["tokenizer"] = table = {**family.tokenizers[spaced], **table}
    config = section(TokenizerConfig, chosen, "tokenizer", "the settings")
    automatic = config.vocab_size is None and config.kind in ("bpe", "unigram")
    if automatic:
        table["vocab_size"] = vocabulary_for(n_rows)
    while True:
        try:
            config = section(TokenizerConfig, chosen, "tokenizer", "the settings")
            tokenizer = train_tokenizer(corpus.texts(), config)
            break
        except AttendoError:
            # a script with many characters may require more entries than the number of rows suggests
            if not automatic or table["vocab_size"] >= LARGEST_VOCABULARY:
                raise
            table["vocab_size"] *= 2
    chosen.setdefault("model", {}).update(corpus.model_facts(), vocab_size=tokenizer.vocab_size)
    say(f"tokenizer: {tokenizer.kind}, {tokenizer.vocab_size:,} entries for {texts}")
    return chosen, tokenizer


def vocabulary_for(n_rows: int) -> int:
    """Return the vocabulary size for a corpus of this many rows.

    >>> vocabulary_for(50_000), vocabulary_for(10_000_000)
    (4000, 32000)
    """
    return next((size for most, size in VOCABULARIES if n_rows <= most), LARGEST_VOCABULARY)


def choose_training(
    tables: Tables,
    family: TaskSpec,
    material: TokenDataset,
    device: torch.device,
    say: Say,
    init_from: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Complete the tables [model] and [training], and print the choice.

    Choose the largest size for which the corpus has enough rows (`least_rows`) and that completes FEWEST_EPOCHS epochs
    or FEWEST_STEPS steps within the time budget. If no size meets these conditions, choose the smallest size.
    """
    chosen = {name: dict(table) for name, table in tables.items()}
    training = chosen.setdefault("training", {})
    training["precision"] = training.get("precision") or fastest_precision(device)
    if training["precision"] == "float32" and "products" not in training:
        training["products"] = fastest_products(device)
    training.setdefault("prefetch", 2 if device.type == "cuda" else 0)
    training.setdefault("batch_tokens", batch_tokens_for(material.n_tokens))
    batches = material.batches(training["batch_tokens"], 0, 0)
    steps_per_epoch = len(batches) / training.get("accumulation", 1)
    if not training.keys() & BUDGETS:
        head_only = family.architecture == "classifier" and {*training.get("frozen", ())} >= ENCODER_PARTS
        training |= {"steps": 1} if head_only else {"epochs": default_epochs(family, steps_per_epoch)}
    sizes = sizes_for(family.sizes, chosen["model"], material.n_rows)
    shapes = [size.table({**family.model, **chosen["model"]}) for size in sizes]
    adapters = chosen.get("lora", {})
    model, steps = _fitting_size(shapes, training, steps_per_epoch, batches, device, adapters)
    chosen["model"] = model
    most = max(family.most_epochs * steps_per_epoch, FEWEST_LIMITED)
    if _seconds(training) and steps > CLEARLY_MORE * most:
        most = int(most)
        say(
            f"the time is enough for {steps:,} steps, but the run ends after {most:,}"
            f" ({most / steps_per_epoch:.0f} epochs): more rarely help. `training.steps` sets another end"
        )
        steps = most
        training |= {"steps": most}
        for limit in ("minutes", "cpu_minutes"):
            training.pop(limit, None)
    elif steps > MANY_EPOCHS * steps_per_epoch:
        say(f"warning: more than {MANY_EPOCHS} epochs rarely help. Give more rows or a shorter run")
    model.setdefault("dropout", dropout_for(steps / steps_per_epoch))
    config = section(ModelConfig, chosen, "model", "the settings")
    tuned = init_from is not None and not adapters.get("rank") and is_mostly_of(init_from, config)
    training.setdefault("learning_rate", learning_rate_for(model["d_model"], tuned=tuned))
    training.setdefault("warmup_steps", max(10, min(400, steps // 10)))
    interval = steps // 12 if math.isinf(family.most_epochs) else min(steps // 12, round(steps_per_epoch))
    training.setdefault("evaluate_every", max(20, interval))
    if device.type == "cuda" and "compile" not in training:
        run = probe_run(model, training, device, adapters)
        step = partial(update, run, [batches[len(batches) // 2]])
        training["compile"] = compiling_pays(run.executor.trained_model, step)
    layers = "+".join(str(n) for n in (model["n_encoder_layers"], model["n_decoder_layers"]) if n)
    say(f"model: {layers} layers, d_model {model['d_model']}, dropout {model['dropout']}, {training['precision']}")
    if device.type == "cpu" and training["precision"] == "float16":
        say("warning: float16 is for GPUs. On a CPU use `training.precision=bfloat16`, or float32")
    say(
        f"about {steps:,} steps of {training['batch_tokens']:,} tokens, {steps / steps_per_epoch:.1f} epochs;"
        f" peak learning rate {training['learning_rate']:.2g}"
    )
    return chosen


def default_epochs(family: TaskSpec, steps_per_epoch: float) -> float:
    """Return the number of epochs if no limit is set: more for a small corpus of a kind that has `most_epochs`.

    >>> from attendo.runs.task_specs import CLASSIFICATION
    >>> [default_epochs(CLASSIFICATION, n) for n in (50, 400, 2000)]
    [30, 6, 6]
    """
    if math.isinf(family.most_epochs):
        return family.default_epochs
    return min(family.most_epochs, max(family.default_epochs, math.ceil(FEWEST_DEFAULT / steps_per_epoch)))


def is_mostly_of(folder: Path, config: ModelConfig) -> bool:
    """Return whether a model receives at least half of its parameters from the run that it starts from."""
    counts = tensors_beside(folder, config).values()
    return 2 * sum(n for n, new in counts if not new) >= sum(n for n, _ in counts)


def tensors_beside(folder: Path, config: ModelConfig) -> dict[str, tuple[int, bool]]:
    """Return the size of each tensor of a model by name, and whether the initial run's model lacks the tensor.

    A tensor with rows for new tokens also counts as new, with the size of these rows.
    """
    before = load_bundle(folder).model_config
    theirs = {name: tensor.shape for name, tensor in on_paper(before).named_parameters()}
    found: dict[str, tuple[int, bool]] = {}
    for name, tensor in on_paper(config).named_parameters():
        shape = theirs.get(name, torch.Size())
        new = tensor[before.vocab_size :] if is_larger(tensor.shape, shape, before.vocab_size) else tensor
        found[name] = new.numel(), tensor.shape != shape
    return found


def is_larger(shape: torch.Size, before: torch.Size, vocab_size: int) -> bool:
    """Return whether a tensor with one row per token (`vocab_size` rows before) has rows for new tokens."""
    return before[:1] == (vocab_size,) and shape[1:] == before[1:] and shape[0] > vocab_size


def _fitting_size(
    shapes: list[dict[str, Any]],
    training: dict[str, Any],
    steps_per_epoch: float,
    batches: Sequence[Batch],
    device: torch.device,
    lora: Mapping[str, Any],
) -> tuple[dict[str, Any], int]:
    """Return the first [model] table that fits the time budget, and the approximate number of steps."""
    budget = _seconds(training)
    if budget is None:
        return shapes[0], training.get("steps") or max(1, int(training["epochs"] * steps_per_epoch))
    enough = min(FEWEST_EPOCHS * steps_per_epoch, FEWEST_STEPS)
    for number, shape in enumerate(shapes, 1):
        pace = measured_pace(shape, training, batches, device, PROBE_SECONDS, FEWEST_UPDATES, lora)
        steps = int(budget * UPDATING_SHARE / pace)
        if steps >= enough or number == len(shapes):
            return shape, steps
    raise AssertionError("there is a size")


def sizes_for(sizes: Sequence[Size], model: Mapping[str, Any], n_rows: int) -> list[Size]:
    """Return the model sizes to try, largest first. If `model` has a width, return only the size nearest to it."""
    if "d_model" in model:
        return [min(sizes, key=lambda size: abs(size.d_model - model["d_model"]))]
    return [size for size in sizes if size.least_rows <= n_rows]


def learning_rate_for(d_model: int, *, tuned: bool = False) -> float:
    """Return the peak learning rate: 2e-3 · √(256 / d_model), or a tenth of it for fine-tuning (`tuned`).

    >>> learning_rate_for(256), round(learning_rate_for(512), 5), learning_rate_for(256, tuned=True)
    (0.002, 0.00141, 0.0002)
    """
    return (2e-4 if tuned else 2e-3) * (256 / d_model) ** 0.5


def dropout_for(epochs: float) -> float:
    """Return the dropout for a number of epochs. More passes over the same rows require more dropout.

    >>> dropout_for(5), dropout_for(25), dropout_for(60)
    (0.1, 0.2, 0.3)
    """
    return 0.1 if epochs < 20 else 0.2 if epochs < 40 else 0.3


def batch_tokens_for(n_tokens: int) -> int:
    """Return the batch size in tokens for a corpus of this many target tokens. Small corpora have smaller batches.

    >>> batch_tokens_for(700_000), batch_tokens_for(100_000_000)
    (2048, 8192)
    """
    limits = {300_000: 1024, 3_000_000: 2048, 30_000_000: 4096}
    return next((size for most, size in limits.items() if n_tokens < most), 8192)


def measured_pace(
    model: dict[str, Any],
    training: dict[str, Any],
    batches: Sequence[Batch],
    device: torch.device,
    seconds: float = PROBE_SECONDS,
    fewest: int = FEWEST_UPDATES,
    lora: Mapping[str, Any] | None = None,
) -> float:
    """Measure the seconds per update for a model size: the median over batches from the whole epoch.

    The measurement takes `seconds` and at least `fewest` updates. The first update is not counted. On a GPU or with the
    limit `minutes`, wall time is measured, otherwise CPU time.
    """
    run = probe_run(model, training, device, lora)
    clock = time.monotonic if "minutes" in training or device.type == "cuda" else time.process_time
    paces: list[float] = []
    began = clock()
    for number in np.linspace(0, len(batches) - 1, 40).astype(int):
        start = clock()
        update(run, [batches[number]])
        paces.append(clock() - start)
        if clock() - began > seconds and len(paces) >= fewest:
            break
    return float(np.median(paces[1:] or paces)) * training.get("accumulation", 1)


def probe_run(
    model: dict[str, Any],
    training: dict[str, Any],
    device: torch.device,
    lora: Mapping[str, Any] | None = None,
) -> Run:
    """Return a temporary run without a task, for trial updates with the given [model], [training] and [lora] tables."""
    settings = {key: value for key, value in training.items() if key not in BUDGETS} | {"steps": 1_000_000}
    network = build_model(section(ModelConfig, {"model": model}, "model", "the settings")).to(device)
    config = section(TrainingConfig, {"training": settings}, "training", "the settings")
    adapted = section(LoraConfig, {"lora": lora or {}}, "lora", "the settings")
    return Run(network, cast(Task, None), config, CheckpointConfig(), None, lora=adapted)


def _seconds(training: dict[str, Any]) -> float | None:
    minutes = training.get("minutes", training.get("cpu_minutes"))
    return None if minutes is None else 60.0 * minutes
