"""Training runs: from settings to a run folder with its log, its best weights and the advice of the coach."""

import errno
import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.bundle import Bundle, pick_device, save_card, save_description, save_weights, weights_hash
from attendo.config import read_toml
from attendo.custom_modules import RESUME, CustomModules, custom_buffers, name_of_custom_modules, python_line
from attendo.data.batches import Batch, TokenDataset
from attendo.data.corpus_base import Corpus
from attendo.data.held_out import TrainedRows, save_trained_rows
from attendo.data.tokenizers import Tokenizer
from attendo.display.formats import Say
from attendo.errors import AttendoError
from attendo.files import locked, write_atomic
from attendo.inspecting.recording import LayerRecord, recording
from attendo.inspecting.residual_stream import head_contributions
from attendo.models import Model, parameter_count
from attendo.nn.attention import Attention, share_heads
from attendo.nn.blocks import Residual
from attendo.runs.init_from import (
    new_parts,
    rows_before,
    save_adapter,
    shape_of,
    take_weights,
    trained_on_paper,
)
from attendo.runs.settings import (
    RunConfig,
    Tables,
    check_tables,
    choose_tokenizer,
    choose_training,
    joined,
    section,
    with_absolute_files,
)
from attendo.runs.task_specs import TaskSpec
from attendo.runs.tracking import MetricsLog, last_entry
from attendo.training.checkpoints import checkpoints, newest_checkpoint, seed_all, seed_others, seed_rank
from attendo.training.coach import Advice, Coach, HeadMeasure
from attendo.training.distributed import ALONE, Ranks
from attendo.training.loop import train
from attendo.training.run import Clock, Evaluation, Report, Run, Task, report_lines, stopping

SAMPLE_TEXTS = 1000
MUCH_UNKNOWN = 0.1
"""Share of unknown words in the sample texts above which a warning is printed."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of the operating system for a full disk."""
LOCK = "checkpoints/.lock"
"""Path of the file in the run folder that a training process locks."""
COACH = "coach"
"""Name of the coach's memory in the progress of a run, which is saved in checkpoints."""


@dataclass
class TrainingRun:
    """A run in training: its folder, the training loop, the model bundle, the log and the coach."""

    folder: Path
    run: Run
    bundle: Bundle

    def __post_init__(self) -> None:
        self.log = MetricsLog(self.folder, self.run.training.tensorboard and self.run.ranks.is_first)
        dropout = self.bundle.tables["model"]["dropout"]
        fresh = "init_from" not in self.bundle.card
        self.coach = RunCoach(self.run, dropout, fresh)

    def reports(self) -> Iterator[Report]:
        """Train to the end of the run and yield a report of each action. A finished run yields no reports.

        The best model, metrics.jsonl and the card are kept up to date in the run folder.

        Raises:
            AttendoError: Another process is training in the folder, or a file cannot be written.
        """
        if self.has_ended:
            return
        first = self.run.ranks.is_first
        with locked(self.folder / LOCK) if first else nullcontext(True) as free:
            # before the first step, another process may replace the description
            begins = first and not self.run.progress.step
            if not free or (begins and read_toml(self.folder / "config.toml") != self.bundle.tables):
                refuse_second(self.folder)
            try:
                for report in self._completed(train(self.run)):
                    advice = self.coach.advise(report)
                    if report.is_best:
                        self._save_best(report)
                    if first:
                        self.log.add(report)
                    yield report
                    for each in advice:
                        said = Report("advice", report.progress, note=each.note, done=report.done)
                        if first:
                            self.log.add(said, each.rule)
                        yield said
            except OSError as error:
                raise AttendoError(self._refused(error)) from error
            finally:
                self.log.close()

    @property
    def has_ended(self) -> bool:
        """Whether the run is complete and the end is recorded in its log."""
        return self.run.progress.ended is not None and last_entry(self.log.path).get("kind") == "end"

    def to_end(self, say: Say = lambda line: None) -> None:
        """Train to the end of the run.

        In the main thread, Ctrl-C and SIGTERM save the run and then raise KeyboardInterrupt or SystemExit(143).

        Args:
            say: A function that receives the lines that the command prints, without the progress display.
        """
        with stopping(self.stop, ends_process=False) as stopped:
            for report in self.reports():
                for line in report_lines(report):
                    say(line)
        if self.run.stopping and not self.has_ended:
            say(self.saved)
        stopped.leave()

    @property
    def saved(self) -> str:
        """Message after a stop, with the step and the command that resumes the run."""
        return f"stopped and saved at step {self.run.progress.step:,}. To resume: {self._resume()}"

    def _resume(self) -> str:
        if self.bundle.own_parts is None:
            return f"attendo resume {self.folder}"
        return python_line(name_of_custom_modules(self.bundle.own_parts), self.folder, RESUME)

    def stop(self) -> None:
        """Make `reports` save the run and end soon. A signal handler may call this method."""
        self.run.stop()

    def _completed(self, reports: Iterator[Report]) -> Iterator[Report]:
        """Yield the reports. The report of the end has the measures of the model that was kept."""
        deciding = ""
        for report in reports:
            if report.evaluation is not None:
                deciding = report.evaluation.deciding
            kept = self.bundle.card.get("validation")
            if report.kind == "end" and kept and deciding:
                report = replace(report, evaluation=Evaluation(kept, deciding))
            yield report

    def _refused(self, error: OSError) -> str:
        """Return the message for an error of the operating system: what failed, what is intact, and what to do."""
        place, words = error.filename or self.folder, error.strerror or str(error)
        said = f"{place}: {words}"
        first = "fix this"
        if error.errno in FULL:
            who = f" ({words})" if self.run.ranks.world > 1 else ""
            said = f"the disk is full: {place} could not be written{who}"
            first = "make room"
        kept, _ = newest_checkpoint(self.folder / "checkpoints")
        if kept is None:
            return f"{said}. No checkpoint was saved: {first}, remove {self.folder}, and train again"
        return f"{said}. {kept.name} is intact: {first}, then run `{self._resume()}`"

    def _save_best(self, report: Report) -> None:
        assert report.evaluation is not None
        step = report.progress.best_step
        self.bundle.card["validation"] = {"step": step, **report.evaluation.measures}
        self.bundle.card["deciding"] = report.evaluation.deciding
        with self.run.evaluation_weights():
            trained = self.run.executor.trained_weights() if self.run.lora.rank else {}
            if self.run.ranks.is_first:
                save_weights(self.folder, self.run.model, self.bundle, step)
                if trained:
                    save_adapter(self.folder, trained, self.run.lora, self.bundle, step)
                save_card(self.folder, self.bundle.card)


def refuse_second(folder: Path) -> NoReturn:
    """Raise AttendoError for a second process in a folder, because both would overwrite each other's checkpoints."""
    raise AttendoError(f"another process is training in {folder}. Wait until it ends, or stop it")


def is_restarted(folder: Path, ranks: Ranks) -> bool:
    """Return whether torchrun has restarted these processes and the run in the folder has a checkpoint."""
    # a replacement machine counts its restarts from 0
    restarted = any(ranks.gathered(ranks.restarts > 0))
    return restarted and ranks.broadcast(newest_checkpoint(folder / "checkpoints")[0] is not None)


def new_run(
    family: TaskSpec,
    tables: Tables,
    folder: Path,
    say: Say = lambda line: None,
    clock: Clock | None = None,
    device: str = "auto",
    init_from: Path | None = None,
    ranks: Ranks = ALONE,
    own_parts: CustomModules | None = None,
) -> TrainingRun:
    """Return a new run, after reading the data, training the tokenizer and choosing the missing settings.

    Args:
        family: The kind of task.
        tables: The settings, as in config.toml.
        folder: The run folder to create.
        say: A function that receives the printed lines.
        clock: The clock for time budgets (default: a new clock).
        device: The device: "auto", "cpu" or "cuda".
        init_from: The folder of a run whose tokenizer, model shape and matching weights are used.
        ranks: The processes of the run. The first process prepares the run, and the other processes read its files.
        own_parts: A function that adds custom modules to the new model.

    Raises:
        AttendoError: The folder already contains a run, settings are invalid, or the data cannot be used.
    """
    clock = clock or Clock()  # the time budget includes the preparation
    # torchrun may restart a run that has no checkpoint yet
    if not ranks.restarts or checkpoints(folder / "checkpoints"):
        require_no_run(folder)
    found = chosen(family, tables, say, say, device, init_from, ranks)
    config, corpus, material = found.config, found.corpus, found.material
    kept = with_absolute_files(config.tables())
    bundle = Bundle(kept, found.tokenizer, new_card(config) | corpus.facts(), own_parts)
    if own_parts is not None:
        if config.lora.rank or config.training.frozen:
            raise AttendoError(
                "lora.rank and training.frozen do not support custom modules. Leave them out, and freeze parameters"
                " in your module (parameter.requires_grad = False)"
            )
        bundle.card["own_parts"] = name_of_custom_modules(own_parts)
    if init_from is not None:
        bundle.card |= {"init_from": str(init_from.absolute()), "init_from_weights": weights_hash(init_from)}
    model = new_model(bundle, config, found.device, say)
    if own_parts is not None:
        bundle.card["own_buffers"] = custom_buffers(model)
    task = config.family.task(corpus, material, config.family.user(bundle, model), config.training)
    facts, files = task.describe(), config.family.files(task)
    n_trained = count_trained(config)
    bundle.card |= {
        "parameters": parameter_count(model),
        **({} if n_trained is None else {"trained_parameters": n_trained}),
        "data": facts | {"store": material.facts.key, "content": material.facts.content},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    with ranks.in_turn("description", everywhere=True):
        describe(folder, bundle, corpus, config.family.texts(corpus, task))
        for name, data in files.items():
            write_atomic(folder / name, data)
    padding = f", {facts['padding_share']:.1%} padding" if "padding_share" in facts else ""
    learning = "" if n_trained is None else f", {n_trained:,} trained"
    say(
        f"{bundle.card['parameters']:,} parameters{learning}; {material.n_tokens:,} tokens in"
        f" {facts['batches_per_epoch']:,} batches per epoch{padding}"
    )
    trained = TrainingRun(folder, loop_run(folder, config, model, task, clock, ranks), bundle)
    trained.log.clear()
    return trained


def describe(folder: Path, bundle: Bundle, corpus: Corpus[Any], texts: Iterable[str]) -> None:
    """Write the description of a new run, examples of its validation texts, and the list of its training rows."""
    own = TrainedRows.of(corpus.identifying_texts())
    with locked(folder / LOCK) if (folder / LOCK).exists() else nullcontext(True) as free:
        if not free:  # keep the description and the log of the other process
            refuse_second(folder)
    save_description(folder, bundle, texts)
    if len(own):
        save_trained_rows(folder, corpus.trained, own)


@dataclass(frozen=True)
class Chosen:
    """Parts of a run after the automatic choice of the missing settings."""

    config: RunConfig
    tokenizer: Tokenizer
    corpus: Corpus[Any]
    material: TokenDataset
    device: torch.device


def chosen(
    family: TaskSpec,
    tables: Tables,
    say: Say,
    say_choice: Say,
    device: str,
    init_from: Path | None = None,
    ranks: Ranks = ALONE,
) -> Chosen:
    """Read the data, train or reuse the tokenizer, and choose the missing settings, which are passed to `say_choice`.

    Raises AttendoError if settings are invalid or the data cannot be used.
    """
    check_tables(family, tables, "the settings")
    given = tables
    tables = joined(family.defaults(), tables)
    if (rank := tables.get("lora", {}).get("rank")) and init_from is None:
        raise AttendoError(f"lora.rank={rank} requires a trained model. Give one with `init_from` DIR")
    data = section(family.data, tables, "data", "the settings")
    data.check()
    where = pick_device(device, ranks.local if ranks.world > 1 else None)
    corpus = family.open(data, say)
    if init_from is None:
        tables, tokenizer = choose_tokenizer(tables, family, corpus, say_choice)
    else:
        corpus.trained = rows_before(init_from, family.name, say)
        _ = corpus.size  # prints the row report, and raises an error for sides in the wrong order
        tables, tokenizer = shape_of(init_from, family, given)
        tables = joined(tables, {"model": corpus.model_facts()})
        say_unknown_words(tokenizer, corpus, say)
    tokenizer = family.adapt(tokenizer)
    tables["model"]["vocab_size"] = max(tables["model"]["vocab_size"], tokenizer.vocab_size)
    with ranks.in_turn("store"):
        material = family.material(corpus, tokenizer, tables)
    tables = choose_training(tables, family, material, where, say_choice, init_from)
    config = RunConfig.from_tables(family, tables, "the settings")
    if init_from is not None and config.lora.rank and "trained" not in tables["lora"]:
        tables["lora"]["trained"] = new_parts(init_from, config.model)
        config = RunConfig.from_tables(family, tables, "the settings")
    count_trained(config)  # raises an error for parts that the model does not have
    return Chosen(config, tokenizer, corpus, material, where)


def count_trained(config: RunConfig) -> int | None:
    """Return the number of trainable parameters including adapters, or None if all parameters are trainable.

    Raises AttendoError for an unknown part.
    """
    if not config.lora.rank and not config.training.frozen:
        return None
    return parameter_count(trained_on_paper(config.model, config.training, config.lora))


def new_model(bundle: Bundle, config: RunConfig, device: torch.device, say: Say) -> Model:
    """Build the model of a run at step 0, with random weights from the seed or with the weights of an initial run."""
    seed_all(config.training.seed)
    model = bundle.new_model().to(device)
    if "init_from" in bundle.card:
        say(take_weights(Path(bundle.card["init_from"]), model, bundle.own_parts))
    return model


def loop_run(folder: Path, config: RunConfig, model: Model, task: Task, clock: Clock, ranks: Ranks = ALONE) -> Run:
    """Return the state of the training loop at step 0. Each rank then has its own random numbers."""
    # what prepared the task may have drawn, for example by its first import
    seed_others(config.training.seed)
    if ranks.rank:
        seed_rank(config.training.seed, 0, ranks.rank)
    place = folder / "checkpoints"
    run = Run(model, task, config.training, config.checkpoint, place, clock=clock, ranks=ranks, lora=config.lora)
    run.progress.evaluation_due = getattr(task, "evaluate_first", False)
    return run


def say_unknown_words(tokenizer: Tokenizer, corpus: Corpus[Any], say: Say) -> None:
    """Print a note if many words of the training texts are unknown to a reused tokenizer."""
    ids = [i for row in tokenizer.encode_batch(islice(corpus.texts(), SAMPLE_TEXTS)) for i in row]
    share = ids.count(tokenizer.unk_id) / max(1, len(ids))
    if share > MUCH_UNKNOWN:
        say(f"{share:.0%} of the words are not in the vocabulary of the initial run")


def require_no_run(folder: Path) -> None:
    """Raise AttendoError if the folder contains a run or other files."""
    if (folder / "config.toml").exists():
        can_go_on = bool(checkpoints(folder / "checkpoints"))
        if not (folder / "model.safetensors").exists() and not can_go_on:
            return  # a run that never began: its description may be replaced
        if not can_go_on:
            raise AttendoError(
                f"{folder} already holds a model, but no checkpoint to resume from. Give another `out`, or remove it"
            )
        raise AttendoError(f"{folder} already holds a run. Give another `out`, or resume it: attendo resume {folder}")
    if folder.exists() and not folder.is_dir():
        raise AttendoError(f"{folder} is a file. Give `out` a new or empty folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise AttendoError(f"{folder} is not empty. Give `out` a new or empty folder")


def versions() -> dict[str, str]:
    """Return the versions of the software that trains a model, for the model card."""
    return {
        "attendo": version("attendo"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": sys.platform,
    }


def new_card(config: RunConfig) -> dict[str, Any]:
    """Return the facts of the model card that are known before training."""
    decoding = {name: table for name, table in config.tables().items() if name == "decoding"}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"task": config.family.name, "started": started, **decoding, "versions": versions()}


# ---- attention heads, for the coach


MOST_ROWS, LEAST_ROWS, MOST_POSITIONS = 16, 4, 128
"""Limits of the inputs on which the heads are measured: numbers of rows, and number of positions."""


class RunCoach:
    """Coach of a run that measures the attention heads and stores its memory in the progress of the run."""

    def __init__(self, run: Run, dropout: float, fresh: bool):
        self.coach = Coach(run.training, dropout, run.progress.notes.get(COACH), fresh)
        self.run = run

    def advise(self, report: Report) -> list[Advice]:
        """Return the advice on a report. All ranks must call this method together."""
        heads: list[HeadMeasure] = []
        if self.coach.judges_outputs(report):
            with self.run.executor.whole():
                if self.run.ranks.is_first:
                    heads = measured_heads(cast(Model, self.run.model), self._inputs)
        advice = self.coach.hear(report, heads)
        self.run.progress.notes[COACH] = self.coach.as_json()
        return advice

    @cached_property
    def _inputs(self) -> dict[str, Tensor]:
        """Some rows of a training batch, which are the same at each evaluation."""
        batches = self.run.task.batches(self.run.training.seed, 0, 0)
        return even_inputs(batches[len(batches) // 2].to(self.run.device))


def measured_heads(model: Model, inputs: dict[str, Tensor]) -> list[HeadMeasure]:
    """Measure each attention head on rows of equal length (`even_inputs`).

    The list is empty if there are fewer than LEAST_ROWS rows.

    >>> from attendo.models import DecoderLM, ModelConfig
    >>> sizes = dict(vocab_size=9, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", **sizes))
    >>> ids = torch.arange(28).view(4, 7) % 9
    >>> [head.name for head in measured_heads(model, {"token_ids": ids})]
    ['decoder.blocks.0.self_attention[0]', 'decoder.blocks.0.self_attention[1]']
    """
    if len(next(iter(inputs.values()))) < LEAST_ROWS:
        return []
    streams: dict[str, Tensor] = {}
    with torch.no_grad(), recording(model, ("*.weights", "*.value")) as record:
        record.model.eval()
        for path, module in record.model.named_modules():
            if isinstance(module, Residual):
                name = path.removesuffix("_residual")
                module.register_forward_hook(lambda _, given, __, name=name: streams.update({name: given[0]}))
        record.model.hidden(**inputs)
    return [
        measure for path in record for measure in _layer(path, model.get_submodule(path), record[path], streams[path])
    ]


def _layer(
    path: str, attention: nn.Module, record: LayerRecord, stream: Float[Tensor, "batch len d_model"]
) -> list[HeadMeasure]:
    """Return the measures of the heads of one layer."""
    assert isinstance(attention, Attention)
    weights = record.weights.float()
    spread = 0.5 * (weights - weights.mean(0)).abs().sum(-1).mean((0, 2))
    mixed = weights @ share_heads(record.value.float(), weights.shape[1])
    added = head_contributions(mixed, attention.out_proj.get_parameter("weight").float())
    share = (differing(added, (0, 2)) / differing(stream.float(), (0, 1))).sqrt()
    return [
        HeadMeasure(path, head, *pair) for head, pair in enumerate(zip(spread.tolist(), share.tolist(), strict=True))
    ]


def differing(x: Tensor, over: tuple[int, ...]) -> Tensor:
    """Return the mean square distance of the rows of `x` [batch ... d] from their mean row, over the axes `over`.

    >>> differing(torch.tensor([[[1.0, 7.0]], [[3.0, 7.0]]]), (0, 1))
    tensor(1.)
    """
    return (x - x.mean(0)).square().sum(-1).mean(over)


def even_inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the inputs of a few long rows of a batch (at least the median length), truncated to equal lengths."""
    inputs = batch.inputs
    if batch.reference is not None:
        inputs = {name: tensor[:, 0] for name, tensor in inputs.items()}
    if "token_ids" in inputs:
        return {name: tensor[:MOST_ROWS, :MOST_POSITIONS] for name, tensor in inputs.items()}
    src = inputs["src"]
    lengths = {"src": inputs.get("src_lengths", torch.full((len(src),), src.shape[1], device=src.device))}
    if "tgt" in inputs:
        lengths["tgt"] = (batch.targets != batch.pad_id).sum(1)
    long = torch.stack([length >= length.median() for length in lengths.values()]).all(0)
    rows = long.nonzero().squeeze(1)[:MOST_ROWS]
    return {
        name: inputs[name][rows, : min(MOST_POSITIONS, int(length[rows].min()))] for name, length in lengths.items()
    }
