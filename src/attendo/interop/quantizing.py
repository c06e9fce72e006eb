"""Quantization of a run: a new run folder with weights of 16, 8 or 4 bits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from safetensors import safe_open
from torch import Tensor, nn

from attendo.bundle import EXAMPLES, load_bundle, load_model, save_description, save_tensors
from attendo.decoding.native.library import NoLibrary, library, quantized
from attendo.errors import AttendoError
from attendo.files import atomic_folder
from attendo.interop.requirements import require_new
from attendo.models import Model
from attendo.nn.layers import TokenEmbedding
from attendo.quantized import GROUP, SCALE


def quantize(folder: Path, out: Path, bits: Literal[16, 8, 4]) -> None:
    """Write a copy of a run whose linear layers have 16 bits (bfloat16), 8 bits or 4 bits (integers with scales).

    If the weights of the run are bfloat16 numbers, the copy computes what the run computes with the same `bits`.
    Embeddings are stored in bfloat16, and also an output layer that shares their weights. In 4 bits, another output
    layer has 8 bits. Norms, biases, and matrices whose width is no multiple of 32 do not change.

    Args:
        folder: The run folder.
        out: The new run folder.
        bits: The bits of each weight.

    Raises:
        AttendoError: The run is quantized already, `out` is not empty, or there is no C++ compiler.

    >>> quantize(Path("none"), Path("out"), 8)
    Traceback (most recent call last):
    attendo.errors.AttendoError: none: no such run folder; give the folder that `attendo train … --out` wrote
    """
    bundle = load_bundle(folder)
    if (known := bundle.card.get("bits", 32)) != 32:
        raise AttendoError(f"{folder} is quantized to {known} bits already. Quantize the original run")
    require_new(out)
    model = load_model(folder, bundle, mapped=True)
    bundle.card["bits"] = bits
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        step = int((file.metadata() or {}).get("step", 0))
    try:
        tensors = _tensors(model, bits)
    except NoLibrary as reason:
        raise AttendoError(f"{folder} cannot be quantized without the compiled functions: {reason}") from None
    with atomic_folder(out) as fresh:
        save_description(fresh, bundle)
        for name in {*bundle.card.get("files", {}), EXAMPLES}:
            if Path(name).name != name:
                raise AttendoError(
                    f"{folder / 'card.json'}: {name!r} is not a file of the run. Restore card.json"
                )
            if (folder / name).is_file():
                shutil.copyfile(folder / name, fresh / name)
        save_tensors(fresh, tensors, bundle, step)


def _tensors(model: Model, bits: int) -> dict[str, Tensor]:
    """Return the tensors to store, by name."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, TokenEmbedding)}
    matrices = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)} - tables
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[name] = parameter.detach().float()
        if id(parameter) in tables or (bits == 16 and id(parameter) in matrices):
            tensors[name] = tensors[name].bfloat16()
        elif id(parameter) in matrices and parameter.shape[1] % GROUP == 0:
            few = 8 if name == "output_proj.weight" else bits
            tensors[name], tensors[name + SCALE] = quantized(tensors[name], few)
            library().attendo_release(parameter.data_ptr(), parameter.nbytes)
    return tensors
