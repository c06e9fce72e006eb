"""Initialization of a run from another run: tokenizer, model shape, shared weights and LoRA adapters."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from attendo.bundle import Bundle, load_bundle, load_model, weights_hash
from attendo.custom_modules import CustomModules
from attendo.data.held_out import TrainedRows, trained_rows
from attendo.data.tokenizers import Tokenizer
from attendo.display.formats import Say
from attendo.errors import AttendoError
from attendo.files import with_facts, write_atomic
from attendo.models import Model, ModelConfig
from attendo.runs.settings import Tables, is_larger, joined, section, tensors_beside
from attendo.runs.task_specs import TaskSpec, family_of
from attendo.training.checkpoints import load_weights, weights_of
from attendo.training.costs import on_paper
from attendo.training.lora import freeze, merged_tensors, with_adapters
from attendo.training.optimizer import LoraConfig, TrainingConfig

_OWN = {"architecture", "n_classes", "pooling", "d_output", "tie", "output_bias", "dropout"}
"""Keys of [model] that are not copied from the other run. The output layer is copied between equal architectures."""


def shape_of(folder: Path, family: TaskSpec, tables: Tables) -> tuple[dict[str, dict[str, Any]], Tokenizer]:
    """Return the given tables, completed with the tokenizer and model shape of an initial run, and its tokenizer.

    Raises AttendoError for a setting that contradicts the weights of that run.
    """
    bundle = load_bundle(folder)
    theirs = bundle.tables["model"]
    own = _OWN - ({"tie", "output_bias"} if theirs.get("architecture") == family.architecture else set())
    shape = {key: value for key, value in theirs.items() if key not in own}
    for name in ("n_encoder_layers", "n_decoder_layers"):
        if not shape.get(name) or name in family.model:
            shape.pop(name, None)
    if family.writes and bundle.tokenizer.kind == "uncased":
        raise AttendoError(
            f"{folder} has an uncased tokenizer, which cannot generate text. Start from a run whose tokenizer is"
            " bpe, unigram, word, character or byte"
        )
    chosen = {name: dict(table) for name, table in tables.items()}
    theirs = {"model": shape, "tokenizer": bundle.tables.get("tokenizer", {})}
    for table, there in theirs.items():
        wanted = chosen.get(table, {})
        for key in wanted.keys() & there.keys():
            if wanted[key] != there[key] and key != "max_len":
                raise AttendoError(
                    f"{table}.{key}={wanted[key]} differs from {there[key]} in {folder}, the run to start from."
                    " Leave it out"
                )
    chosen["model"] = shape | chosen.get("model", {})
    chosen["tokenizer"] = dict(theirs["tokenizer"])
    return joined(family.defaults(), chosen), bundle.tokenizer


def take_weights(folder: Path, model: nn.Module, own_parts: CustomModules | None = None) -> str:
    """Copy all tensors with equal names and shapes from another run. Return a message with the copied and new parts.

    If the vocabulary has new tokens at its end, their rows are the mean of the other rows, so their logits are moderate
    (Hewitt 2021, "Initializing new word embeddings for pretrained language models"). Raises AttendoError if no tensor
    matches.
    """
    bundle = load_bundle(folder)
    bundle.own_parts = own_parts if "own_parts" in bundle.card else None
    theirs = dict(load_model(folder, bundle).named_parameters())
    own = dict(model.named_parameters())
    shared = [name for name in own if name in theirs and theirs[name].shape == own[name].shape]
    if not shared:
        raise AttendoError(f"{folder} shares no weights with this model. Give a run that has such an encoder")
    n = bundle.model_config.vocab_size
    larger = [name for name in own if name in theirs and is_larger(own[name].shape, theirs[name].shape, n)]
    with torch.no_grad():
        for name in shared:
            own[name].copy_(theirs[name])
        for name in larger:
            own[name].copy_(theirs[name].mean(0))
            own[name][:n] = theirs[name]
    shared += larger
    new = _parts(own.keys() - set(shared))
    text = f"{len(shared)} of {len(own)} tensors are initialized from {folder}: {', '.join(_parts(shared))}"
    return f"{text}; new: {', '.join(new)}" if new else text


def rows_before(folder: Path, task: str, say: Say) -> TrainedRows:
    """Return the training rows of a run and of the runs that it started from, or no rows if it has another task.

    If the run has no list of its training rows, its files are read. If they are missing, a warning is printed.
    """
    bundle = load_bundle(folder)
    data = bundle.tables.get("data", {})
    if bundle.card.get("task") != task or not data.get("train"):
        return TrainedRows()
    if (found := trained_rows(folder, "all")) is not None:
        return found
    try:
        family = family_of(task)
        corpus = family.open(section(family.data, {"data": data}, "data", "config.toml"), lambda line: None)
        return TrainedRows.of(corpus.identifying_texts())
    except AttendoError:
        say(
            f"warning: {folder} has no list of its training rows, and its data files are missing. Validation rows"
            " may be among its training rows"
        )
        return TrainedRows()


def new_parts(folder: Path, config: ModelConfig) -> list[str]:
    """Return the paths of the modules or tensors that another run's model does not have."""
    is_new = {name: new for name, (_, new) in tensors_beside(folder, config).items()}
    shared = {name.partition(".")[0] for name, new in is_new.items() if not new}
    names = (name for name, new in is_new.items() if new)
    tops = (name if name.partition(".")[0] in shared else name.partition(".")[0] for name in names)
    return list(dict.fromkeys(tops))


def trained_on_paper(config: ModelConfig, training: TrainingConfig, lora: LoraConfig) -> Model:
    """Build a model on PyTorch's meta device, with adapters and frozen parts.

    Raises AttendoError for an unknown part.
    """
    model = on_paper(config)
    freeze(model, training.frozen)
    return with_adapters(model, lora)


def _parts(names: Iterable[str]) -> list[str]:
    """Return the parts of a model that the tensors belong to. A block is one part."""
    return sorted({".".join(name.split(".")[: 3 if ".blocks." in name else 1]) for name in names})


# ---- adapters: a small file beside the merged weights


FORMAT = "attendo adapter 1"
ADAPTER = "adapter.safetensors"


def save_adapter(folder: Path, trained: Mapping[str, Tensor], lora: LoraConfig, bundle: Bundle, step: int) -> None:
    """Replace the file adapter.safetensors in a run folder.

    The file contains the LoRA matrices, the fully trained parts, and the hash of the base model's weights.
    """
    header = {
        "format": FORMAT,
        "step": str(step),
        "rank": str(lora.rank),
        "alpha": repr(lora.alpha),
        "base_weights_sha256": bundle.card.get("init_from_weights", ""),
    }
    tensors = {name: tensor.cpu().contiguous() for name, tensor in trained.items()}
    write_atomic(folder / ADAPTER, with_facts(save(tensors, header)))


def with_adapter(folder: Path, file: Path) -> Model:
    """Return the base model with the weights of an adapter merged in. The result is bit-identical to the trained model.

    Args:
        folder: The run folder of the base model.
        file: The adapter file.

    Raises:
        AttendoError: The file is damaged or not an adapter, or the base model has another shape or other weights.
    """
    model = load_model(folder, load_bundle(folder))
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except FileNotFoundError:
        raise AttendoError(f"{file}: no such file. Give the adapter.safetensors of a run with lora.rank") from None
    except SafetensorError as error:
        raise AttendoError(f"{file} is damaged ({error}). Restore it from a copy") from None
    if header.get("format") != FORMAT:
        raise AttendoError(f"{file} is not an adapter (expected the adapter.safetensors of a run with lora.rank)")
    if header["base_weights_sha256"] != weights_hash(folder):
        raise AttendoError(
            f"{file} was trained on other weights than those in {folder}. Give the run that it started from"
        )
    scale = float(header["alpha"]) / int(header["rank"])
    load_weights(model, merged_tensors({**weights_of(model), **tensors}, scale), str(file))
    return model
