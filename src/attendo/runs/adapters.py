"""What a run with adapters has learned, alone: a small file beside the merged weights, for the run it began with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from attendo.bundle import Bundle, load_bundle, load_model, weights_hash
from attendo.config import read_toml
from attendo.errors import AttendoError
from attendo.files import with_facts, write_atomic
from attendo.models import Model
from attendo.runs.settings import section
from attendo.training.checkpoints import WEIGHTS, load_weights, weights_of
from attendo.training.distributed import Stored
from attendo.training.lora import LoraConfig, merged_tensors

FORMAT = "attendo adapter 1"
ADAPTER = "adapter.safetensors"


def save_adapter(
    folder: Path, trained: Mapping[str, Tensor], lora: LoraConfig, bundle: Bundle, step: int
) -> None:
    """Replaces adapter.safetensors: A and B of each layer, and the parts that were trained whole.

    Its header names rank and alpha, the step, and the hash of the weights that they were learned on.
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
    """The model of the run that an adapter began with, and the adapter merged in: to the bit what its own run has.

    Only where both are models of one shape; else start from the run with `init_from`. Raises AttendoError where the
    file is none, is damaged, or was learned on other weights.
    """
    model = load_model(folder, load_bundle(folder))
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except FileNotFoundError:
        raise AttendoError(
            f"{file}: no such file; give the adapter.safetensors of a run with lora.rank"
        ) from None
    except SafetensorError as error:
        raise AttendoError(f"{file} is damaged ({error}); copy it back") from None
    if header.get("format") != FORMAT:
        raise AttendoError(f"{file} is no adapter; give the adapter.safetensors of a run with lora.rank")
    if header["base_weights_sha256"] != weights_hash(folder):
        raise AttendoError(
            f"{file} was learned on other weights than {folder} has; give the run it began with"
        )
    scale = float(header["alpha"]) / int(header["rank"])
    load_weights(model, merged_tensors({**weights_of(model), **tensors}, scale), str(file))
    return model


def kept_weights(folder: Path, checkpoint: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint of a run, adapters merged: those of an ordinary model."""
    config = folder / "config.toml"
    tables = read_toml(config) if config.is_file() else {}  # a look at loose checkpoints needs none
    lora = section(LoraConfig, tables, "lora", str(config))
    return merged_tensors(Stored(checkpoint, WEIGHTS), lora.scale)
