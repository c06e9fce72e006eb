"""From a model to the config.json and the tensors that `transformers` reads: the tables, read the other way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attendo.bundle import embeds_texts
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop.huggingface.reading import FAMILIES, config_of
from attendo.interop.huggingface.table import Head, Table
from attendo.interop.huggingface.weights import expanded
from attendo.model_config import ModelConfig
from attendo.models import Model
from attendo.nn.positions import sinusoidal_encoding

_WRITTEN = (
    "marian",
    "pegasus",
    "bart",
    "mbart",
    "t5",
    "gpt2",
    "llama",
    "qwen2",
    "qwen3",
    "bert",
    "distilbert",
)
"""Families, those that are more widely supported first."""

_UNTOLD = {"dropout", "attention_dropout", "activation_dropout", "initialization", "pad_id", "max_len"}
"""Options that no logit depends on."""

_BIASES = ("attention_bias", "attention_out_bias", "feed_forward_bias", "output_bias")


@dataclass(frozen=True)
class Place:
    """Where a model goes: a family, its table, the class and the config.json."""

    family: str
    table: Table
    name: str
    head: Head
    theirs: Mapping[str, Any]


def place_of(config: ModelConfig) -> Place:
    """The first family that has all options of a model. Raises AttendoError naming what keeps it from the nearest one.

    >>> place_of(ModelConfig(vocab_size=9)).name, place_of(ModelConfig(vocab_size=9, norm_first=True)).name
    ('MarianMTModel', 'PegasusForConditionalGeneration')
    >>> place_of(ModelConfig(vocab_size=9, positions="alibi"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: positions='alibi' is in no model of transformers that is like this one otherwise
    """
    nearest: list[str] | None = None
    for place in _places(config):
        differing = _differing(config, place)
        if not differing:
            return place
        if nearest is None or len(differing) < len(nearest):
            nearest = differing
    names = " and ".join(f"{name}={getattr(config, name)!r}" for name in (nearest or ["architecture"])[:3])
    verb = "is" if len(nearest or [1]) == 1 else "are"
    raise AttendoError(f"{names} {verb} in no model of transformers that is like this one otherwise")


def write_model(model: Model, folder: Path, more: Mapping[str, Any] | None = None) -> str:
    """Writes config.json and model.safetensors into a folder that is there; the name of their class.

    more: keys of config.json that are none of the model's shape, as the ids of special tokens. Raises AttendoError as
    `place_of` does. For an example see `read_model`.

    >>> from tempfile import mkdtemp
    >>> from attendo.models import build_model
    >>> write_model(build_model(ModelConfig(vocab_size=9, d_model=8, n_heads=2, d_ff=8)), Path(mkdtemp()))
    'MarianMTModel'
    """
    place = place_of(model.config)
    theirs = {**place.theirs, **(more or {}), "torch_dtype": "float32"}
    save_file(_tensors_of(model, place), folder / "model.safetensors", {"format": "pt"})
    write_atomic(folder / "config.json", json.dumps(theirs, indent=1, ensure_ascii=False) + "\n")
    return place.name


def _tensors_of(model: Model, place: Place) -> dict[str, Tensor]:
    """Their tensors by their names.

    Where positions are sines and cosines in turns here and in halves there, the features of the residual stream are put
    in another order: all that reads or writes it is permuted, and the function is the same.
    """
    config, theirs = model.config, place.theirs
    tied = bool(theirs.get("tie_word_embeddings", True))
    named = dict(model.named_parameters(remove_duplicate=False))
    ours = {name: tensor.detach().cpu() for name, tensor in model.named_parameters(remove_duplicate=tied)}
    if _is_permuted(config, place):
        ours = dict(_permuted(ours, config.d_model))
    found: dict[str, Tensor] = {}
    for row, there in expanded((*place.table.weights, *place.head.weights), ours):
        weights = [name.removesuffix("bias") + "weight" for name in row.ours]
        if there:
            found[row.theirs] = row.write([ours[name] for name in row.ours], theirs, config.head_width)
            if row.plus is not None:
                found[row.plus] = found[row.theirs].new_zeros(theirs["type_vocab_size"], config.d_model)
        elif place.table.biased and row.ours[0].endswith(".bias") and weights[0] in named:
            found[row.theirs] = row.write(
                [torch.zeros(len(named[name])) for name in weights], theirs, config.head_width
            )
    if not tied and place.head.architecture == "encoder-decoder":
        # no two of a file may share their memory
        found = {name: tensor.clone() for name, tensor in found.items()}
    for name in place.table.sinusoids:
        rows = torch.arange(config.max_len)
        found[name] = sinusoidal_encoding(rows, config.d_model, order="halves", dtype=torch.float32)
    return found


def _places(config: ModelConfig) -> Iterator[Place]:
    for family in _WRITTEN:
        for table in filter(lambda table: table.written, FAMILIES[family]):
            for name, head in table.heads.items():
                has_classes = head.ours.get("n_classes") != 0
                if head.architecture != config.architecture or has_classes == embeds_texts(config):
                    continue
                theirs: dict[str, Any] = {"model_type": family, "architectures": [name]}
                for option in table.options:
                    theirs |= option.write(config)
                if config.n_classes:
                    theirs["id2label"] = {str(n): f"LABEL_{n}" for n in range(config.n_classes)}
                if table.when(theirs):
                    yield Place(family, table, name, head, theirs)


def _differing(config: ModelConfig, place: Place) -> list[str]:
    """Options whose value is lost on the way there and back."""
    try:
        back = config_of(place.theirs, config.output_bias or None)
    except AttendoError:
        return [field for field in asdict(config) if field not in _UNTOLD]
    wanted, found = _told(config), _told(back)
    if place.table.biased:
        for name in _BIASES:  # of those that ours lacks, zeros
            wanted[name] = wanted[name] or found[name]
    if _is_permuted(config, place):
        wanted["position_order"] = "halves"
    if wanted["tie"] == "all" and found["tie"] == "input":
        wanted["tie"] = "input"  # the one matrix is written twice
    lost = [name for name in wanted if wanted[name] != found[name]]
    return [name for name in lost if "positions" not in lost or not name.startswith("position_")]


def _told(config: ModelConfig) -> dict[str, Any]:
    """What a model computes by, each option with the value that it has where it is left out."""
    width = config.head_width
    out_bias = config.attention_bias if config.attention_out_bias is None else config.attention_out_bias
    whole = replace(
        config,
        n_kv_heads=config.n_kv_heads or config.n_heads,
        head_dim=width,
        value_dim=config.value_dim or width,
        attention_out_bias=out_bias,
        attention_scale=width**-0.5 if config.attention_scale is None else config.attention_scale,
        position_base=config.wavelength_base,
    )
    told = {name: value for name, value in asdict(whole).items() if name not in _UNTOLD}
    if config.architecture == "decoder" and told["tie"] == "output":
        told["tie"] = "all"
    if config.architecture == "masked":
        told["d_output"] = told["d_output"] or config.d_model
        told["tie"] = "all" if told["tie"] == "output" else told["tie"]
    return told


def _is_permuted(config: ModelConfig, place: Place) -> bool:
    fixed = config_of(place.theirs)
    return (config.positions, config.position_order, fixed.position_order) == (
        "sinusoidal",
        "sincos",
        "halves",
    )


def _permuted(ours: Mapping[str, Tensor], d_model: int) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with the features of the residual stream in the order of their halves."""
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    for name, tensor in ours.items():
        # of what writes into the stream, and of norms, the rows are its features
        writes = name.endswith(("out_proj.weight", "out_proj.bias")) or "norm" in name
        yield name, tensor[order] if writes else tensor if tensor.ndim == 1 else tensor[:, order]
