"""Quantization of a run: a new run folder with weights of 16, 8 or 4 bits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

from safetensors import safe_open
from torch import Tensor, nn

from attendo.bundle import EXAMPLES, load_bundle, load_model, save_description, save_tensors
from attendo.decoding.native.library import NoLibrary, quantized
from attendo.errors import AttendoError
from attendo.files import atomic_folder
from attendo.interop.requirements import require_new
from attendo.models import DecoderLM, EncoderDecoder, Model
from attendo.nn.layers import TokenEmbedding
from attendo.quantized import GROUP, SCALE


def quantize(folder: Path, out: Path, bits: Literal[16, 8, 4]) -> None:
    """Write a copy of a run whose linear layers have 16 bits (bfloat16), 8 bits or 4 bits (integers with scales).

    The copy computes exactly what the original run computes with the same `bits`. Embeddings are stored in bfloat16, and
    also an output layer that shares their weights. In 4 bits, an output layer of its own has 8 bits. Matrices whose
    width is no multiple of 32, norms and biases do not change.

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
    new = replace(bundle, card={**bundle.card, "bits": bits})
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        step = int((file.metadata() or {}).get("step", 0))
    try:
        tensors = _tensors(model, bits)
    except NoLibrary as reason:
        raise AttendoError(f"{folder} cannot be quantized without the compiled functions: {reason}") from None
    with atomic_folder(out) as fresh:
        save_description(fresh, new)
        for name in {*bundle.card.get("files", {}), EXAMPLES}:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, fresh / name)
        save_tensors(fresh, tensors, new, step)


def _tensors(model: Model, bits: int) -> dict[str, Tensor]:
    """Return the tensors to store, by name."""
    linear: set[int] = set()
    tables: set[int] = set()
    for module in model.modules():
        match module:
            case nn.Linear():
                linear.add(id(module.weight))
            case TokenEmbedding():
                tables.add(id(module.weight))
            case _:
                pass
    output = id(model.output_proj.weight) if isinstance(model, DecoderLM | EncoderDecoder) else None
    found = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        is_integer = id(parameter) in linear - tables and bits < 16 and tensor.shape[1] % GROUP == 0
        if is_integer:
            few = 8 if id(parameter) == output else bits
            found[name], found[name + SCALE] = quantized(tensor, few)
        else:
            is_half = id(parameter) in tables or (bits == 16 and id(parameter) in linear)
            found[name] = tensor.bfloat16() if is_half else tensor
    return cast("dict[str, Tensor]", found)
