"""The export to GGUF: one file with model and tokenizer, which llama.cpp and programs based on it load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from attendo.bundle import Bundle
from attendo.data.tokenizers import BYTES, MARK, Kind, Tokenizer
from attendo.errors import AttendoError
from attendo.interop.gguf_files import (
    ARCHITECTURES,
    BYTE,
    CONTROL,
    KEYS,
    PRE_TOKENIZERS,
    ROPE_FACTORS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufFile,
    cut_text,
    is_turned,
    pre_tokenizer,
    rope_factors,
    tensor_names,
)
from attendo.interop.huggingface.chat_templates import jinja_of
from attendo.interop.huggingface.model_files import place_of, write_model
from attendo.interop.parity import Foreign
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import merge_scores
from attendo.interop.to_huggingface import ForeignModel, library_document_of
from attendo.models import Model, ModelConfig

GgufQuantization = Literal["float32", "float16", "bfloat16", "q8_0", "q4_0"]
FILE = "model.gguf"
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
_BLOCK = 32
"""The number of weights with a common scale in Q8_0 and Q4_0."""
_PROBE = "It's 12345 naïve DON'T\n\n  cats,  (x) — 東京 2.5\t!?\r\n 'll \u0301a"
"""A text that the known pre-tokenizers cut differently."""


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """Return the reason why a model cannot be exported to GGUF, or None if it can be exported.

    >>> llama = dict(norm="rms", norm_first=True, positions="rotary", feed_forward_gated=True, activation="silu")
    >>> llama |= dict(attention_bias=False, feed_forward_bias=False, embedding_scale=False, architecture="decoder")
    >>> why_not(ModelConfig(vocab_size=11, n_encoder_layers=0, **llama), "bpe")
    >>> why_not(ModelConfig(vocab_size=11, n_encoder_layers=0, **llama), "unigram")
    "tokenizer.kind='unigram' has no equivalent in llama.cpp (supported: bpe, character and byte)"
    """
    if kind in ("word", "uncased", "unigram"):
        return f"tokenizer.kind={kind!r} has no equivalent in llama.cpp (supported: bpe, character and byte)"
    try:
        place = place_of(config)
    except AttendoError as error:
        return str(error)
    if place.family not in ARCHITECTURES:
        return f"the family {place.family} is not written as GGUF (supported: {', '.join(ARCHITECTURES)})"
    if place.family == "qwen3" and config.attention_bias:
        return "attention_bias=True is not supported with attention_norm=True by llama.cpp"
    if place.family != "llama" and place.theirs["rope_parameters"]["rope_type"] == "llama3":
        return f"position_frequencies of Llama 3 are not supported by llama.cpp in the family {place.family}"
    return None


def write(
    folder: Path, bundle: Bundle, model: Model, out: Path, quantization: GgufQuantization = "float32"
) -> None:
    """Write the file `model.gguf`. Raise AttendoError if llama.cpp does not support the model or its tokenizer.

    Biases, norms, and matrices whose rows are no multiple of 32 are not quantized. With q4_0, the embeddings and the
    output layer are stored as q8_0.

    >>> write(Path("run"), Bundle({"model": {"vocab_size": 9, "positions": "alibi"}}, None), None, Path("out"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: no model of transformers supports positions='alibi' with the other settings here
    """
    if (why := why_not(bundle.model_config, "bpe")) is not None:
        raise AttendoError(why)
    gguf: Any = required("gguf")
    with tempfile.TemporaryDirectory(dir=out) as place:
        write_model(model, Path(place))
        theirs = json.loads(Path(place, "config.json").read_text(encoding="utf-8"))
        writer = gguf.GGUFWriter(out / FILE, theirs["model_type"])
        for key, value in (_model_keys(theirs, folder) | _tokenizer_keys(bundle)).items():
            kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            kinds |= {str: writer.add_string, list: writer.add_array}
            kinds[type(value)](key, value)
        writer.add_file_type(
            gguf.LlamaFileType[{"float32": "ALL_F32"}.get(quantization, f"MOSTLY_{_TYPES[quantization]}")]
        )
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        with safe_open(Path(place, "model.safetensors"), framework="pt") as tensors:
            for name, array in _tensors(theirs, tensors).items():
                kind = gguf.GGMLQuantizationType[_type_of(name, array, quantization)]
                writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()


def _type_of(name: str, array: np.ndarray, quantization: str) -> str:
    if array.ndim == 1:
        return "F32"
    if quantization in ("q8_0", "q4_0") and array.shape[-1] % _BLOCK:
        return "F16"
    if quantization == "q4_0" and not name.startswith("blk."):
        return "Q8_0"
    return _TYPES[quantization]


def _model_keys(theirs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the keys and values that describe the model."""
    architecture, table = theirs["model_type"], theirs["rope_parameters"]
    width = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
    keys = {name: theirs[key] for name, key in KEYS.items() if key in theirs}
    keys |= {"vocab_size": theirs["vocab_size"], "rope.dimension_count": width}
    keys |= {"attention.key_length": width, "attention.value_length": width}
    if table["rope_type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(table["factor"])}
    return {"general.name": folder.resolve().name} | {f"{architecture}.{key}": keys[key] for key in keys}


def _tensors(theirs: Mapping[str, Any], tensors: Any) -> dict[str, np.ndarray]:
    """Return the tensors by their names in GGUF."""
    architecture, table = theirs["model_type"], theirs["rope_parameters"]
    width = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
    here = set(tensors.keys())
    found = {}
    for name, key in tensor_names(theirs["num_hidden_layers"]).items():
        if key in here:
            tensor = tensors.get_tensor(key)
            if is_turned(architecture, name):
                tensor = tensor.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
            found[name] = tensor.float().numpy()
    if table["rope_type"] == "llama3":
        found[ROPE_FACTORS] = rope_factors(table, width, theirs["max_position_embeddings"]).numpy()
    return found


def _tokenizer_keys(bundle: Bundle) -> dict[str, Any]:
    """Return the keys and values that describe the tokenizer. Raise AttendoError if llama.cpp has no such tokenizer."""
    tokenizer = bundle.tokenizer
    document, marks = library_document_of(tokenizer)
    own, chat = tokenizer.specials, tokenizer.chat
    begin = own.before_prompt or (own.bos_id,)
    ids = {"bos": begin[0], "eos": own.eos_id, "unknown": own.unk_id, "padding": own.pad_id}
    ids |= {} if chat is None else {"eot": chat.end_id}
    keys = _vocabulary(tokenizer, document, marks)
    keys |= {f"{name}_token_id": i for name, i in ids.items() if i >= 0}
    keys["add_bos_token"] = bool(own.before_prompt)
    found = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return found | ({} if chat is None else {"tokenizer.chat_template": jinja_of(chat, tokenizer.entries)})


def _vocabulary(
    tokenizer: Tokenizer, document: Mapping[str, Any], marks: Mapping[int, str]
) -> dict[str, Any]:
    model, words = document["model"], cut_text(document, _PROBE)
    known = {token["content"] for token in document["added_tokens"]}
    tokens, kinds = list(tokenizer.entries), [1] * tokenizer.vocab_size
    for i, token in enumerate(tokens):
        if i in marks:
            kinds[i] = UNKNOWN if i == tokenizer.unk_id else CONTROL
        elif i in tokenizer.not_text:  # a row of the embedding matrix without a token
            tokens[i] = f"[PAD{i}]"
            kinds[i] = UNUSED
        elif token in known:
            kinds[i] = USER_DEFINED
    if model["type"] == "BPE":
        for pre in PRE_TOKENIZERS:
            if cut_text({"pre_tokenizer": pre_tokenizer(pre)}, _PROBE) == words:
                merges = [" ".join(pair) for pair in model["merges"]]
                return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges}
    whole, marked = "".join(words), _PROBE.replace(" ", MARK)
    if model["type"] != "BPE" or whole not in (_PROBE, marked, MARK + marked):
        raise AttendoError("llama.cpp has no tokenizer that cuts or normalizes texts as this model does")
    if whole == _PROBE:  # llama.cpp writes each space as the mark
        tokens[tokens.index(" " if " " in tokens else BYTES[ord(" ")])] = MARK
    ranks = merge_scores(model)
    for i, token in enumerate(tokens):
        if token in BYTES:
            kinds[i] = BYTE
        if tokenizer.kind == "bpe" and token in ranks and not token.strip(MARK):
            ranks[token] -= len(ranks)  # the last of several spaces belongs to the next word
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": kinds,
        "scores": [ranks.get(token, -float(len(ranks) + i)) for i, token in enumerate(tokens)],
        "add_space_prefix": whole.startswith(MARK),
    }


def opened(out: Path) -> Foreign:
    """Read an exported file as a model of `transformers`. Raise AttendoError if a package is missing.

    >>> opened(Path("nowhere"))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere/model.gguf is not a GGUF file, or is damaged or truncated
    """
    file = GgufFile(out / FILE)
    transformers = required("transformers")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**file.config))
    tensors = {name: file.get_tensor(name).float() for name in file.tensors}
    wrong = model.load_state_dict(tensors, strict=False)
    assert not wrong.unexpected_keys and wrong.missing_keys in ([], ["lm_head.weight"]), wrong
    return ForeignModel(model.eval(), None)
