"""Quantization of a run: a new run folder with weights of 16, 8 or 4 bits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn

from attendo.bundle import EXAMPLES, load_bundle, load_model, save_description, save_tensors
from attendo.decoding.native.library import NoLibrary, library, quantized
from attendo.errors import AttendoError
from attendo.files import atomic_folder
from attendo.interop.requirements import require_new
from attendo.models import Model
from attendo.nn.layers import TokenEmbedding
from attendo.quantized import GROUP, SCALE, without_values


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
        if bits < 16:
            library()
    except NoLibrary as reason:
        raise AttendoError(f"{folder} cannot be quantized without the compiled functions: {reason}") from None
    with atomic_folder(out, parents=True) as fresh:
        save_description(fresh, bundle)
        for name in {*bundle.card.get("files", {}), EXAMPLES}:
            if Path(name).name != name:
                raise AttendoError(f"{folder / 'card.json'}: {name!r} is not a file of the run. Restore card.json")
            if (folder / name).is_file():
                shutil.copyfile(folder / name, fresh / name)
        shapes, tensors = _stored(model, bits)
        save_tensors(fresh, shapes, bundle, step, tensors)


def _stored(model: Model, bits: int) -> tuple[dict[str, Tensor], Iterator[Tensor]]:
    """Return the tensors to store: types and shapes in an order that aligns all tensors, and the computed tensors."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, TokenEmbedding)}
    matrices = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)} - tables
    parts: list[tuple[int, str, Tensor]] = []
    for name, parameter in model.named_parameters():
        few = 32
        if id(parameter) in tables or (bits == 16 and id(parameter) in matrices):
            few = 16
        elif id(parameter) in matrices and parameter.shape[1] % GROUP == 0:
            few = 8 if name == "output_proj.weight" else bits
        parts.append((few, name, parameter.detach()))
    parts.sort(key=lambda part: (32, 8, 4, 16).index(part[0]))
    shapes = {}
    for few, name, parameter in parts:
        if few > 8:
            shapes[name] = parameter.to("meta", torch.float32 if few == 32 else torch.bfloat16)
        else:
            n_out, n_in = parameter.shape
            shapes[name], shapes[name + SCALE] = without_values(n_out, n_in, few, "meta")
    return shapes, (tensor for few, _, parameter in parts for tensor in _computed(few, parameter))


def _computed(few: int, parameter: Tensor) -> Iterator[Tensor]:
    if few > 8:
        yield parameter.float() if few == 32 else parameter.float().bfloat16()
    else:
        yield from quantized(parameter, few)
        library().attendo_release(parameter.data_ptr(), parameter.nbytes)
