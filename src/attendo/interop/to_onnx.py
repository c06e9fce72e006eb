"""A trained model as ONNX graphs that onnxruntime runs, on any system and from any language.

    out/encoder.onnx    a translator's encoder: from source ids to the keys and values of its memory
    out/decoder.onnx    the next n tokens of every row: from their ids and what stands before to logits
    out/model.onnx      a classifier or masked model: from ids to logits
    out/weights.bin     the numbers of all graphs, each matrix once
    out/onnx.json       the graphs' inputs and outputs, the special ids, and how to loop

and tokenizer.json and card.json as they are. The graphs are made from the modules of the model, part by part
(`onnx_modules`, `onnx_attention`); nothing is traced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attendo.bundle import Bundle, save_card
from attendo.data.special_tokens import Around
from attendo.data.tokenizers import Kind, Tokenizer
from attendo.files import write_atomic
from attendo.inference.generation import special_ids
from attendo.interop.onnx_graph import needed, weights_file
from attendo.interop.onnx_models import graphs_of
from attendo.interop.onnx_runner import opened
from attendo.model_config import Architecture, ModelConfig
from attendo.models import Model

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

__all__ = ["opened", "why_not", "write"]

FORMAT = 1
_READ = [
    "token_ids: for each text the ids `text.before`, its own and `text.behind`, as the model was trained; rows that are"
    " shorter are filled behind with `ids.pad`. lengths: how many ids of each row are real, at least 1, at most"
    " max_len.",
]
_STEP = [
    "Run decoder.onnx. logits[:, -1] tells of the token after each row's last; never take one of `ids.never`.",
    "For the next step: token_ids = the chosen ids, [rows, 1]; lengths + 1; each past_… = the present_… of its name. A"
    " row has ended with `ids.eos`, or where its length is max_len.",
    "Rows may be dropped, repeated and put in another order (a beam search does), by the same choice of rows in all"
    " inputs.",
    "Several tokens may be given in one step. Rows of different lengths stand with their ends in one line: padding is"
    " in front, in token_ids and in past_… alike, and lengths counts what is real, the tokens of this step with it.",
]
_LOOPS = {
    "encoder-decoder": [
        "source_ids: for each text the ids `source.before`, its own and `source.behind`; rows that are shorter are"
        " filled behind with `ids.pad`. source_lengths: how many ids of each row are real, at least 1, at most"
        " max_len. Run encoder.onnx once.",
        "Begin with token_ids = `begin` for every row, [rows, n]; lengths = n for every row; past_key_… and"
        " past_value_… of no length, [rows, heads, 0, width]; memory_lengths = source_lengths; memory_key_… and"
        " memory_value_… from the encoder, for a beam each row of these as often as it has hypotheses.",
        *_STEP,
    ],
    "decoder": [
        "Begin with token_ids = `prompt.before` and the ids of the prompt, [rows, n]; lengths = n for every row;"
        " past_key_… and past_value_… of no length, [rows, heads, 0, width].",
        *_STEP,
    ],
    "classifier": [
        *_READ,
        "Run model.onnx. softmax(logits / temperature) are the probabilities of the labels, in the order of `labels` in"
        " card.json; the temperature is validation.temperature there, else 1. Where there are no labels, logits are the"
        " vectors of the texts.",
    ],
    "masked": [
        *_READ,
        "Run model.onnx. logits[row, i] tells which token stands at place i; states are the vectors of the tokens, and"
        " their mean over the real ones is a vector of the text.",
    ],
}
# fmt: off
_OPTIONS = {
    "architecture", "vocab_size", "d_model", "d_ff", "n_heads", "n_kv_heads", "head_dim", "value_dim",
    "n_encoder_layers", "n_decoder_layers", "max_len", "dropout", "attention_dropout", "activation_dropout",
    "attention_scale", "attention_bias", "attention_out_bias", "attention_norm", "norm", "norm_first",
    "norm_eps", "activation", "feed_forward_gated", "feed_forward_bias", "positions", "position_base",
    "position_start", "position_first_index", "position_order", "position_buckets", "position_reach",
    "embedding_scale", "embedding_norm_eps", "pad_id", "tie", "output_bias", "d_output",
    "output_activation", "n_classes", "pooling", "initialization",
}
# fmt: on
_CHOICES = {
    "architecture": ("encoder-decoder", "classifier", "decoder", "masked"),
    "norm": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "positions": ("sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative", "none"),
    "output_activation": ("tanh", "relu"),
    "pooling": ("max", "mean", "first"),
}


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """In a clause, why a model of this shape can't become ONNX graphs; None: it can. kind: of its tokenizer, any.

    What has no form here is refused, an option that came to ModelConfig later too, and not passed over.

    >>> why_not(ModelConfig(vocab_size=11, positions="rotary"), "bpe") is None
    True
    """
    del kind
    for field in fields(config):
        value = getattr(config, field.name)
        known = (
            value == field.default
            if field.name not in _OPTIONS
            else value in _CHOICES.get(field.name, (value,))
        )
        if not known:
            return f"{field.name}={value!r} has no form in ONNX yet"
    return None


def write(folder: Path, bundle: Bundle, model: Model, out: Path) -> None:
    """Writes the graphs of a model, their weights and their description into the empty folder `out`.

    folder: the run folder, which is not read: all is in bundle and model. Raises AttendoError without `onnx`.

    >>> import tempfile
    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> from attendo.models import build_model
    >>> tokenizer = train_tokenizer(["a b"], TokenizerConfig(kind="byte", vocab_size=260))
    >>> model = build_model(ModelConfig(architecture="decoder", vocab_size=260, d_model=8, n_encoder_layers=0)).eval()
    >>> with tempfile.TemporaryDirectory() as out:
    ...     write(Path(), Bundle({}, tokenizer), model, Path(out))
    ...     theirs, names = opened(Path(out)).logits([[2, 70]])[0], sorted(path.name for path in Path(out).iterdir())
    >>> names
    ['card.json', 'decoder.onnx', 'onnx.json', 'tokenizer.json', 'weights.bin']
    >>> bool(abs(theirs - model(torch.tensor([[2, 70]]))[0].detach().numpy()).max() < 1e-5)
    True
    """
    del folder
    needed()
    config, graphs = model.config, dict[str, Any]()
    with weights_file(out / "weights.bin", model) as weights, torch.no_grad():
        for name, graph in graphs_of(model, weights):
            made = graph.model(name)
            write_atomic(out / f"{name}.onnx", made.SerializeToString())
            graphs[f"{name}.onnx"] = _described(made)
    description = {
        "format": FORMAT,
        "architecture": config.architecture,
        "weights": "weights.bin",
        "vocab_size": config.vocab_size,
        "max_len": config.max_len,
        **_special_ids(bundle.tokenizer, config.architecture),
        "decoding": bundle.tables.get("decoding", {}),
        "graphs": graphs,
        "loop": _LOOPS[config.architecture],
    }
    write_atomic(out / "onnx.json", json.dumps(description, indent=1, ensure_ascii=False) + "\n")
    bundle.tokenizer.save(out / "tokenizer.json")
    save_card(out, bundle.card)


def _special_ids(tokenizer: Tokenizer, architecture: Architecture) -> dict[str, Any]:
    """The ids that stand for no text, and where the model wants them."""
    own = tokenizer.specials
    ids = {"pad": own.pad_id, "unk": own.unk_id, "bos": own.bos_id, "eos": own.eos_id}
    match architecture:
        case "encoder-decoder":
            return {
                "ids": {**ids, "never": [*tokenizer.never]},
                "source": _around(own.around_source),
                "begin": [*own.begin],
            }
        case "decoder":
            never = [*special_ids(tokenizer).banned_ids]
            return {"ids": {**ids, "never": never}, "prompt": {"before": [*own.before_prompt]}}
        case "classifier" | "masked":
            return {"ids": ids, "text": _around(own.around_text)}


def _around(ids: Around) -> dict[str, list[int]]:
    return {"before": [*ids[0]], "behind": [*ids[1]]}


def _described(graph: ModelProto) -> dict[str, Any]:
    """The inputs and outputs of a graph: names, types and axes."""

    def axes(value: ValueInfoProto) -> list[str | int]:
        return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]

    def told(values: Iterable[ValueInfoProto]) -> list[dict[str, Any]]:
        kinds = {1: "float32", 7: "int64"}
        return [
            {"name": value.name, "type": kinds[value.type.tensor_type.elem_type], "shape": axes(value)}
            for value in values
        ]

    return {"inputs": told(graph.graph.input), "outputs": told(graph.graph.output)}
