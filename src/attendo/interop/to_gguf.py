"""The export to GGUF: one file with model and tokenizer, which llama.cpp and programs based on it load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.torch import load_file
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor

from attendo.bundle import Bundle
from attendo.data.tokenizers import BYTES, MARK, Kind, Tokenizer
from attendo.errors import AttendoError
from attendo.interop import gguf_files
from attendo.interop.gguf_files import PRE_TOKENIZERS, GgufFile
from attendo.interop.huggingface.chat_templates import jinja_of
from attendo.interop.huggingface.model_files import place_of, read_json, write_model
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import merge_scores
from attendo.interop.to_huggingface import ForeignModel, library_document_of
from attendo.models import Model, ModelConfig

GgufQuantization = Literal["float32", "float16", "bfloat16", "q8_0", "q4_0"]
FILE = "model.gguf"
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
_FILE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 32, "q8_0": 7, "q4_0": 2}
_PROBE = "It's 12345 naïve DON'T\n\n  cats,  (x) — 東京 2.5\t!?\r\n 'll \u0301a"
"""A text that the known pre-tokenizers cut differently."""


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """Return the reason why a model cannot be exported to GGUF, or None if it can be exported.

    >>> why_not(ModelConfig(vocab_size=11), "unigram")
    "tokenizer.kind='unigram' has no equivalent in llama.cpp (supported: bpe, character and byte)"
    """
    if kind in ("word", "uncased", "unigram"):
        return f"tokenizer.kind={kind!r} has no equivalent in llama.cpp (supported: bpe, character and byte)"
    try:
        place = place_of(config)
    except AttendoError as error:
        return str(error)
    if place.family not in (known := gguf_files.ARCHITECTURES):
        return f"the family {place.family} is not supported (supported: {', '.join(known)})"
    if any(config.attention_windows):
        return f"attention_windows={list(config.attention_windows)} is not supported in the family {place.family}"
    if place.family == "qwen3" and config.attention_bias:
        return "attention_bias=True is not supported with attention_norm=True by llama.cpp"
    if place.family != "llama" and place.theirs["rope_parameters"]["rope_type"] == "llama3":
        return f"position_frequencies of Llama 3 are not supported by llama.cpp in the family {place.family}"
    return None


def write(folder: Path, bundle: Bundle, model: Model, out: Path, quantization: GgufQuantization = "float32") -> None:
    """Write the file `model.gguf`. Raise AttendoError if llama.cpp has no such tokenizer.

    Biases, norms, and matrices whose rows are no multiple of 32 are not quantized. With q4_0, the embeddings and the
    output layer are stored as q8_0.

    >>> write(Path("run"), Bundle({}, None), None, Path("none"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'none/...
    """
    gguf: Any = required("gguf")
    with tempfile.TemporaryDirectory(dir=out) as place:
        write_model(model, Path(place))
        theirs = read_json(Path(place, "config.json"))
        tensors = load_file(Path(place, "model.safetensors"))
    writer = gguf.GGUFWriter(out / FILE, theirs["model_type"])
    keys, arrays = _model(theirs, tensors)
    keys |= {"general.name": folder.resolve().name, "general.file_type": _FILE_TYPES[quantization]}
    keys["general.quantization_version"] = gguf.GGML_QUANT_VERSION
    for key, value in (keys | _tokenizer(bundle)).items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if type(value) is int else kind)
    for name, array in arrays.items():
        kind = gguf.GGMLQuantizationType[_type_of(name, array, quantization)]
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _type_of(name: str, array: np.ndarray, quantization: str) -> str:
    if array.ndim == 1:
        return "F32"
    if quantization in ("q8_0", "q4_0") and array.shape[-1] % 32:  # weights with a common scale
        return "F16"
    return "Q8_0" if quantization == "q4_0" and not name.startswith("blk.") else _TYPES[quantization]


def _model(theirs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys and the tensors of a GGUF file for config.json and the tensors of a Hugging Face model."""
    architecture, rope = theirs["model_type"], theirs["rope_parameters"]
    width = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
    keys = {name: theirs[key] for name, key in gguf_files.KEYS.items()}
    keys |= dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length"), width)
    keys |= {"vocab_size": theirs["vocab_size"], "rope.freq_base": float(rope["rope_theta"])}
    arrays = {}
    for name, row in gguf_files.rows_of(architecture, theirs["num_hidden_layers"]).items():
        if row.theirs in tensors:
            tensor = tensors[row.theirs]
            if architecture == "llama" and row.turned:
                tensor = tensor.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
            arrays[name] = tensor.float().numpy()
    if rope["rope_type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    elif rope["rope_type"] == "llama3":
        factors = gguf_files.rope_factors(rope, width, theirs["max_position_embeddings"])
        arrays[gguf_files.ROPE_FACTORS] = factors.numpy()
    return {f"{architecture}.{name}": value for name, value in keys.items()}, arrays


def _tokenizer(bundle: Bundle) -> dict[str, Any]:
    tokenizer = bundle.tokenizer
    own, chat = tokenizer.specials, tokenizer.chat
    ids = {"bos": own.prompt(())[0], "eos": own.eos_id, "unknown": own.unk_id, "padding": own.pad_id}
    ids |= {} if chat is None else {"eot": chat.end_id}
    keys = _vocabulary(tokenizer) | {f"{name}_token_id": i for name, i in ids.items() if i >= 0}
    keys["add_bos_token"] = bool(own.before_prompt)
    found = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return found | ({} if chat is None else {"tokenizer.chat_template": jinja_of(chat, tokenizer.entries)})


def _cut(document: Mapping[str, Any]) -> list[str]:
    """Return the words into which a document of the `tokenizers` library cuts _PROBE."""
    empty = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
    library = LibraryTokenizer.from_str(json.dumps({**document, **empty}))
    text = _PROBE if library.normalizer is None else library.normalizer.normalize_str(_PROBE)
    cuts = library.pre_tokenizer
    return [text] if cuts is None else [word for word, _ in cuts.pre_tokenize_str(text)]


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    types: Any = required("gguf").TokenType
    document, marks = library_document_of(tokenizer)
    model, words = document["model"], _cut(document)
    known = {token["content"] for token in document["added_tokens"]}
    tokens, kinds = list(tokenizer.entries), [1] * tokenizer.vocab_size
    for i, token in enumerate(tokens):
        if i in marks:
            kinds[i] = types.UNKNOWN if i == tokenizer.unk_id else types.CONTROL
        elif i in tokenizer.not_text:  # a row of the embedding matrix without a token
            tokens[i], kinds[i] = f"[PAD{i}]", types.UNUSED
        elif token in known:
            kinds[i] = types.USER_DEFINED
    plain = {"normalizer": None, "added_tokens": []}
    for pre, cuts in PRE_TOKENIZERS.items():
        if model["type"] == "BPE" and _cut({**document, **plain, "pre_tokenizer": cuts}) == words:
            merges = [" ".join(pair) for pair in model["merges"]]
            return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges}
    whole, marked = "".join(words), _PROBE.replace(" ", MARK)
    if model["type"] != "BPE" or whole not in (_PROBE, marked, MARK + marked):
        raise AttendoError("llama.cpp has no tokenizer that cuts or normalizes texts as this model does")
    if whole == _PROBE:  # llama.cpp writes each space as the mark
        tokens[tokens.index(" " if " " in tokens else BYTES[ord(" ")])] = MARK
    scores = merge_scores(model)
    if tokenizer.kind == "bpe":  # the last of several spaces belongs to the next word
        scores |= {token: scores[token] - len(scores) for token in scores if not token.strip(MARK)}
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": [types.BYTE if token in BYTES else kind for token, kind in zip(tokens, kinds, strict=True)],
        "scores": [scores.get(token, -float(len(scores) + i)) for i, token in enumerate(tokens)],
        "add_space_prefix": whole.startswith(MARK),
    }


def opened(out: Path) -> ForeignModel:
    """Read an exported file as a model of `transformers`. Raise AttendoError if a package is missing.

    >>> opened(Path("none"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'none/model.gguf'
    """
    file, transformers = GgufFile(out / FILE), required("transformers")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**file.config()))
    tensors = {name: file.get_tensor(name) for name in file.tensors}
    model.load_state_dict(tensors, strict=False)  # a tied output has no tensor
    return ForeignModel(model.eval(), None)
