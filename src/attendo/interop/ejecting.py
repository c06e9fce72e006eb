"""The export of a model as one readable file of plain PyTorch, which contains only the code that the model uses."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import cast

import torch
from torch import Tensor

from attendo.bundle import load_bundle, load_model
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop.requirements import unknown_option
from attendo.models import DecoderLM, EncoderDecoder, Model, ModelConfig

TEMPLATE = "eject.template"
_NAMES = {
    "encoder-decoder": ("translator", "Translator", "An encoder-decoder Transformer"),
    "classifier": ("classifier", "Classifier", "A Transformer encoder that classifies texts"),
    "decoder": ("lm", "LanguageModel", "A decoder-only Transformer, a language model,"),
    "masked": ("masked", "MaskedLanguageModel", "A Transformer encoder that predicts masked tokens"),
}
"""The flag of the template, the name of the class and the title of the file, by architecture."""
_ACTIVATIONS = {
    "relu": "F.relu({})",
    "gelu": "F.gelu({})",
    "gelu_tanh": 'F.gelu({}, approximate="tanh")',
    "silu": "F.silu({})",
}
_ADDED = {
    "sinusoidal": ", plus sinusoidal positions",
    "learned": ", plus a learned vector for each position",
    "ramp": ", plus position / MAX_LEN",
    "inverse": ", plus 1 / position",
}


_ABOUT_MEMORY = """

    memory: what x attends to: x itself in self-attention, the encoder's output in cross-attention.
    """


def eject(run: Path, out: Path) -> str:
    """Write the model of a run as one file of plain PyTorch, and return the text of the file.

    The file requires torch and safetensors, but not attendo. `python FILE RUN` loads the weights of the run folder and
    compares the logits with those of attendo.

    Args:
        run: The run folder.
        out: The Python file to create.

    Raises:
        AttendoError: The run cannot be read, has custom modules or is quantized, or `out` already exists.

    >>> eject(Path("none"), Path("model.py"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none: no such run folder; give the folder that `attendo train … --out` wrote
    """
    if out.exists():
        raise AttendoError(f"{out} already exists. Choose another name, or remove the file")
    if not out.absolute().parent.is_dir():
        raise AttendoError(f"{out}: there is no folder {out.parent}. Create the folder first")
    bundle = load_bundle(run)
    if (name := bundle.card.get("own_parts")) is not None:
        raise AttendoError(
            f"{run} has custom modules ({name}), which `attendo eject` cannot write. Eject a run without them,"
            " and add their code to that file"
        )
    if (bits := bundle.card.get("bits", 32)) != 32:
        raise AttendoError(f"{run} is quantized to {bits} bits. Eject the original run")
    if (unknown := unknown_option(bundle.model_config)) is not None:
        raise AttendoError(f"{run}: `attendo eject` does not support {unknown}")
    source = model_source(bundle.model_config, load_model(run, bundle), out.name)
    write_atomic(out, source)
    return source


def model_source(config: ModelConfig, model: Model, file: str) -> str:
    """Return the source code of a model in plain PyTorch.

    Args:
        config: The configuration of the model.
        model: The model in evaluation mode. The source code contains the logits of the model for a few token ids, for a
            check.
        file: The name of the new file, for its module docstring.


    >>> from attendo.models import build_model
    >>> config = ModelConfig(vocab_size=11, d_model=8, n_heads=2, d_ff=16)
    >>> lines = model_source(config, build_model(config).eval(), "model.py").splitlines()
    >>> lines[0]
    '\"\"\"An encoder-decoder Transformer in plain PyTorch, written by `attendo eject`.'
    """
    template = Path(__file__).with_name(TEMPLATE).read_text(encoding="utf-8")
    flags = _flags(config)
    lines = _chosen(iter(template.splitlines()), flags)
    values = {**_sizes(config), **_attention_words(config, flags), **_block_words(config, flags)}
    values |= {**_embedding_words(config, flags), **_output_words(config, flags), "file": file}
    values["expected"] = "\n".join(f"        {row}," for row in _expected(model))
    text = Template("\n".join(lines)).substitute(values)
    return re.sub(r"\n{4,}", "\n\n\n", text) + "\n"


def _chosen(lines: Iterator[str], flags: dict[str, bool]) -> Iterator[str]:
    """Yield the lines of a template, without the branches of %if, %elif and %else whose conditions are false."""
    taken: list[
        bool | None
    ] = []  # for each open condition: None before the chosen branch, True inside it, False after it
    for line in lines:
        word, _, condition = line.removeprefix("%").partition(" ") if line.startswith("%") else ("", "", "")
        if word == "if":
            taken.append(None)
        if word in ("if", "elif", "else"):
            wanted, name = not condition.startswith("not "), condition.removeprefix("not ")
            holds = word == "else" or flags[name] == wanted
            taken[-1] = False if taken[-1] is not None else True if holds else None
        elif word == "end":
            taken.pop()
        elif all(taken):
            yield line


def _flags(config: ModelConfig) -> dict[str, bool]:
    """Return the values of the conditions in the template."""
    positions = ("sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative")
    flags = {flag: config.architecture == name for name, (flag, _, _) in _NAMES.items()}
    flags |= {name: config.positions == name for name in positions}
    flags |= {f"pool_{name}": config.pooling == name for name in ("first", "max", "mean")}
    power_of_2 = config.n_heads & (config.n_heads - 1) == 0
    turned = flags["rotary"] or config.attention_norm
    flags |= {
        "encoder": not flags["lm"],
        "decoder": flags["translator"] or flags["lm"],
        "lengths": not flags["lm"],
        "grouped": config.n_kv_heads not in (None, config.n_heads),
        "wide_values": config.value_dim not in (None, config.head_width),
        "attention_scale": config.attention_scale is not None,
        "attention_norm": config.attention_norm,
        "norm_eps": config.norm == "rms" or config.norm_eps != 1e-5 or config.attention_norm,
        "embedding_norm": config.embedding_norm_eps is not None,
        "max_len": config.positions in ("learned", "ramp"),
        "base": config.positions in ("sinusoidal", "rotary"),
        "halves": config.position_order == "halves",
        "bias": config.positions in ("alibi", "relative"),
        "math": flags["relative"] or (flags["alibi"] and not power_of_2),
        "power_of_2": power_of_2,
        "split_attention": flags["translator"] and turned,
        "attention_norm_here": not flags["translator"] and config.attention_norm,
        "rotary_here": not flags["translator"] and flags["rotary"],
        "padded": config.pad_id is not None,
        "d_output": config.d_output is not None,
        "classes": config.n_classes > 0,
        "dropout": config.dropout > 0,
        "attention_dropout": config.attention_dropout > 0,
        "activation_dropout": config.activation_dropout > 0,
        "gated": config.feed_forward_gated,
        "pre_norm": config.norm_first,
        "shared_embeddings": config.tie in ("all", "input"),
        "tied_output": not flags["classifier"] and config.tie in ("all", "output"),
    }
    return flags


def _sizes(config: ModelConfig) -> dict[str, str]:
    """Return the options that the source code contains as numbers."""
    names = """vocab_size d_model n_encoder_layers n_decoder_layers n_heads n_kv_heads value_dim attention_scale d_ff
        norm_eps embedding_norm_eps max_len position_buckets position_reach pad_id d_output n_classes dropout
        attention_dropout activation_dropout"""
    values = {name: repr(getattr(config, name)) for name in names.split()}
    return values | {"head_dim": str(config.head_width), "position_base": repr(config.wavelength_base)}


def _attention_words(config: ModelConfig, flags: dict[str, bool]) -> dict[str, str]:
    translator, bias = flags["translator"], flags["bias"]
    out_bias = config.attention_bias if config.attention_out_bias is None else config.attention_out_bias
    length = "T" if flags["lm"] else "S"
    own = {"attention_norm": "normalized heads", "rotary": "rotary positions"}
    return {
        "kv_heads": "N_KV_HEADS" if flags["grouped"] else "N_HEADS",
        "value_width": "VALUE_DIM" if flags["wide_values"] else "HEAD_DIM",
        "attention_bias": "" if config.attention_bias else ", bias=False",
        "out_bias": "" if out_bias else ", bias=False",
        "scale": " * ATTENTION_SCALE" if flags["attention_scale"] else " / HEAD_DIM**0.5",
        "scale_formula": " · ATTENTION_SCALE" if flags["attention_scale"] else " / √HEAD_DIM",
        "plus_bias": " + bias" if bias else "",
        "memory": "memory" if translator else "x",
        "about_memory": _ABOUT_MEMORY if translator else "",
        "memory_parameter": "memory: Tensor, " if translator else "",
        "mask_parameter": "mask: Tensor"
        + (", bias: Tensor | float = 0.0" if bias and translator else ", bias: Tensor" if bias else ""),
        "bias_parameter": ", bias: Tensor" if bias else "",
        "bias_argument": ", bias" if bias else "",
        "n_queries": "T" if translator else length,
        "n_keys": length,
        "dropped_weights": "self.dropout(weights)" if flags["attention_dropout"] else "weights",
        "self_attention_parts": " and ".join(word for flag, word in own.items() if flags[flag]),
    }


def _block_words(config: ModelConfig, flags: dict[str, bool]) -> dict[str, str]:
    h = "h" if config.norm_first else "x"
    dropout = "self.dropout({})" if flags["dropout"] else "{}"
    inputs = f"{h}, {h}" if flags["translator"] else h
    bias = ", bias" if flags["bias"] else ""
    activation = _ACTIVATIONS[config.activation]
    inner = activation.format("self.in_proj(x)")
    if config.feed_forward_gated:
        inner = f"{activation.format('self.gate_proj(x)')} * self.in_proj(x)"
    name = config.activation.removesuffix("_tanh")
    formula = f"{name}(x W_gate) ⊙ (x W_in)" if config.feed_forward_gated else f"{name}(x W_in)"
    place = "Decoder" if flags["lm"] else "Encoder"
    return {
        "norm": "nn.RMSNorm" if config.norm == "rms" else "nn.LayerNorm",
        "eps": ", eps=NORM_EPS" if config.norm == "rms" or config.norm_eps != 1e-5 else "",
        "Block": f"{place}Block",
        "Stack": place,
        "SelfAttention": "SelfAttention" if flags["split_attention"] else "Attention",
        "n_layers": f"N_{place.upper()}_LAYERS",
        "not_causal": "causal=False" if flags["translator"] else "",
        "position_bias": "self.position_bias(x.shape[1])" if flags["relative"] else "alibi(x.shape[1]).to(x)",
        "normed": "self.norm(x)" if config.norm_first else "x",
        "stack_norm": ", followed by normalization" if config.norm_first else "",
        "residual_formula": "x + f(norm(x))" if config.norm_first else "norm(x + f(x))",
        "block_attention": dropout.format(f"self.self_attention({inputs}, mask{bias})"),
        "block_cross": dropout.format(f"self.cross_attention({h}, memory, memory_mask)"),
        "block_feed_forward": dropout.format(f"self.feed_forward({h})"),
        "feed_forward_formula": f"({formula}) W_out" if config.feed_forward_gated else f"{formula} W_out",
        "feed_forward_bias": "" if config.feed_forward_bias else ", bias=False",
        "inner": inner,
        "dropped_inner": "self.dropout(inner)" if flags["activation_dropout"] else "inner",
        "activated_states": activation.format("self.output_hidden(states)"),
    }


def _embedding_words(config: ModelConfig, flags: dict[str, bool]) -> dict[str, str]:
    embedded = "self.norm(x)" if flags["embedding_norm"] else "x"
    scale = " times √D" if config.embedding_scale else ""
    skipped, first = int(config.position_order == "cossin"), config.position_first_index
    pairs = "D_MODEL // 2 + 1" if skipped else "(D_MODEL + 1) // 2" if config.d_model % 2 else "D_MODEL // 2"
    cut = "[:, 1 : D_MODEL + 1]" if skipped else "[:, :D_MODEL]" if config.d_model % 2 else ""
    order = {
        "sincos": "PE[p, 2i] = sin(p w_i), PE[p, 2i + 1] = cos(p w_i)",
        "cossin": "PE[p, 2i] = cos(p w_i), PE[p, 2i + 1] = sin(p w_(i+1))",
        "halves": "sin(p w_i) for all i, then cos(p w_i) for all i",
    }
    std = "0.02"
    if config.initialization == "xavier":
        std = "module.weight.shape[1] ** -0.5" if flags["relative"] else "D_MODEL**-0.5"
    linear = f"normal_(module.weight, std={std})" if std == "0.02" else "xavier_uniform_(module.weight)"
    xavier = ": Glorot & Bengio 2010, and N(0, 1 / width) for embeddings"
    start = config.position_start
    return {
        "embedding_scale": " * D_MODEL**0.5" if config.embedding_scale else "",
        "embedding_sum": f"{scale}{_ADDED.get(config.positions, '')}",
        "embedded": f"self.dropout({embedded})" if flags["dropout"] else embedded,
        "positions": "1, n + 1" if start else "n",
        "id_positions": "1, ids.shape[1] + 1" if start else "ids.shape[1]",
        "indices": f"1, {pairs} + 1" if first else pairs,
        "sinusoids_cut": cut,
        "sinusoids_formula": f"{order[config.position_order]}, w_i = POSITION_BASE^(-2i / D)",
        "initialization": xavier if config.initialization == "xavier" else " from N(0, 0.02²)",
        "draw_linear": linear,
        "drawn_embeddings": "nn.Embedding | RelativeBias" if flags["relative"] else "nn.Embedding",
        "embedding_std": std,
    }


def _output_words(config: ModelConfig, flags: dict[str, bool]) -> dict[str, str]:
    _, model, title = _NAMES[config.architecture]
    formulas = {
        "encoder-decoder": "The logits of the next target token, from the source and the target so far",
        "classifier": "The logits of the classes of a text",
        "decoder": "The logits of the next token, from the tokens so far",
        "masked": "The logits of the token at each position, from all other positions",
    }
    vectors = flags["classifier"] and not flags["classes"]
    pooled = (
        f"torch.{config.output_activation}(self.output_hidden(pooled))" if flags["d_output"] else "pooled"
    )
    width = "D_OUTPUT" if flags["d_output"] else "D_MODEL"
    letters = "S the number of tokens"
    if flags["translator"]:
        letters = "S and T the numbers of source and target tokens"
    elif flags["lm"]:
        letters = "T the number of tokens"
    return {
        "Model": "TextEmbedder" if vectors else model,
        "title": "A Transformer encoder that computes a vector of a text" if vectors else title,
        "model_formula": "A vector of each text" if vectors else formulas[config.architecture],
        "letters": letters,
        "output_width": width,
        "output_bias": "" if config.output_bias else ", bias=False",
        "tied_embedding": "self.target_embedding" if flags["translator"] else "self.embedding",
        "classifier_gives": "a vector of each text" if vectors else "the logits of the classes of each text",
        "classifier_width": ("D_OUTPUT" if flags["d_output"] else "D") if vectors else "N_CLASSES",
        "classified": pooled if vectors else f"self.output_proj({pooled})",
    }


@torch.no_grad()
def _expected(model: Model) -> list[list[float]]:
    """Return the logits with which the function `check` of the written file compares its results."""
    ids = torch.arange(6).view(2, 3) % model.config.vocab_size
    lengths = torch.tensor([3, 2])
    model = cast("Model", copy.deepcopy(model).float())
    if isinstance(model, EncoderDecoder):
        found = model(ids, torch.arange(4).view(2, 2) % model.config.vocab_size, lengths)[:, -1]
    elif isinstance(model, DecoderLM):
        found = model(ids)[:, -1]
    else:
        found = model(ids, lengths)
        found = found[:, 0] if found.ndim == 3 else found
    rows: Tensor = found[:, :3].double()
    return [[round(value, 6) for value in row] for row in rows.tolist()]
