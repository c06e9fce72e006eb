"""The conversion of a Hugging Face folder or GGUF file to a run folder: model, tokenizer, settings and task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attendo.bundle import Bundle, embeds_texts, save_description, save_weights, use_of
from attendo.config import build
from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.options import DecodingConfig
from attendo.display.formats import Say
from attendo.errors import AttendoError, is_failure
from attendo.files import atomic_folder
from attendo.interop.gguf_files import GgufFile, hugging_face_files
from attendo.interop.huggingface.chat_templates import with_chat_template
from attendo.interop.huggingface.model_files import config_of, read_json, read_model
from attendo.interop.huggingface.tokenizers import read_tokenizer
from attendo.interop.requirements import require_new
from attendo.model_config import ModelConfig
from attendo.models import Model, parameter_count
from attendo.nn.layers import Pooling
from attendo.runs.task_specs import task_of
from attendo.runs.training_run import versions

_NOTHING_SAID = 20
"""The default max_length of older files, which was not chosen for the model."""

POOLINGS: Mapping[Pooling, str] = {
    "first": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}
"""The names of the pooling methods in 1_Pooling/config.json of sentence-transformers."""


def import_model(
    source: Path,
    out: Path,
    say: Say = lambda line: None,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Bundle:
    """Convert a Hugging Face model folder or a GGUF file to a run folder, and return the description of the run.

    Args:
        source: The Hugging Face folder with config.json, safetensors and tokenizer files, or the GGUF file.
        out: The run folder to create.
        say: The function that receives progress messages.
        source_language: The source language of a translator. A multilingual model requires a language code from its
            vocabulary, such as "en_XX".
        target_language: The target language of a translator, in the same format as `source_language`.

    Raises:
        AttendoError: The model is incomplete, damaged, contradictory or not supported, so nothing is written.

    >>> import_model(Path("nowhere"), Path("out"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere: no such file or folder. Download the model first: pip install \
huggingface_hub, then hf download NAME --local-dir nowhere
    """
    if not source.exists():
        raise AttendoError(
            f"{source}: no such file or folder. Download the model first: pip install huggingface_hub,"
            f" then hf download NAME --local-dir {source.name}"
        )
    require_new(out)
    try:
        with hugging_face_files(source) if source.is_file() else nullcontext((source, None)) as (folder, gguf):
            bundle, model = _read(folder, gguf, source_language, target_language, say)
    except (AttendoError, OSError):
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise AttendoError(
            f"{source} is not a valid model ({type(error).__name__}: {str(error)[:200]}). Download it again"
        ) from error
    with atomic_folder(out, parents=True) as folder:
        save_description(folder, bundle)
        save_weights(folder, model, bundle, 0)
    kind, use = bundle.card["imported"]["model_type"], use_of(bundle.card["task"], model.config.architecture)
    say(f"{kind}: {bundle.card['parameters']:,} parameters. Use it with `attendo {use} {out}`")
    return bundle


def _read(
    source: Path, gguf: GgufFile | None, source_language: str | None, target_language: str | None, say: Say
) -> tuple[Bundle, Model]:
    """Return the description of the run, and the model."""
    theirs = read_json(source / "config.json")
    # raises for unsupported options before other files are read
    if config_of(theirs).pooling == "none":
        raise AttendoError(
            f"config.json: {theirs['architectures'][0]} gives labels to tokens, and attendo only exports such models."
            " Give a text classifier"
        )
    tokenizer = read_tokenizer(source, theirs, source_language=source_language, target_language=target_language)
    model = read_model(source, theirs, gguf)
    if model.config.architecture == "decoder":
        tokenizer = with_chat_template(source, theirs, tokenizer, say)
    config, pooling = _pooled(model.config, source)
    labels = _labels(theirs, config.n_classes)
    if labels:  # attendo sorts labels
        order = torch.tensor(sorted(range(len(labels)), key=labels.__getitem__))
        model.output_proj.weight.data = model.output_proj.weight.data[order]
        model.output_proj.bias.data = model.output_proj.bias.data[order]
    bundle = Bundle(_tables(config, source, pooling, len(tokenizer.specials.begin)), tokenizer, {})
    if labels:
        bundle.tables["data"] = {"max_tokens": config.max_len - tokenizer.specials.n_around_text}
    bundle.card = _card(bundle, theirs, labels) | {"parameters": parameter_count(model)}
    bundle.card["imported"]["from"] = "huggingface" if gguf is None else "gguf"
    if config.architecture == "encoder-decoder":
        codes = {"source": source_language, "target": target_language}
        bundle.card["languages"] = {side: code and code.partition("_")[0] for side, code in codes.items()}
    return bundle, model


def _pooled(config: ModelConfig, source: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the configuration and the embedding settings of a sentence embedder, with the pooling of its folder."""
    if not embeds_texts(config):
        return config, {}
    names = [Path(module.get("path", "")).name for module in _modules(source)]
    said = next((read_json(source / name / "config.json") for name in names if name.endswith("_Pooling")), {})
    on = [ours for ours, theirs in POOLINGS.items() if said.get(theirs)]
    other = [
        name
        for name, value in said.items()
        if name.startswith("pooling_mode") and value and name not in POOLINGS.values()
    ]
    if other or len(on) > 1:
        raise AttendoError(f"1_Pooling/config.json: unsupported pooling {', '.join(other or on)}")
    pooling = on[0] if on else "mean"
    normalize = any(name.endswith("_Normalize") for name in names)
    return build(ModelConfig, asdict(config) | {"pooling": pooling}, "config.json"), {
        "pooling": pooling,
        "normalize": normalize,
    }


def _modules(source: Path) -> list[dict[str, Any]]:
    path = source / "modules.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _tables(config: ModelConfig, source: Path, pooling: dict[str, Any], n_begin: int) -> dict[str, dict[str, Any]]:
    options = {name: value for name, value in asdict(config).items() if value is not None}
    path = source / "generation_config.json"
    how = read_json(path) if path.is_file() else read_json(source / "config.json")
    tables: dict[str, dict[str, Any]] = {"model": options, "tokenizer": {"kind": "imported"}}
    match config.architecture:
        case "encoder-decoder":
            tables["decoding"] = asdict(_search(how, config, n_begin))
        case "decoder":
            found = asdict(_sampling(how))
            tables["decoding"] = {name: value for name, value in found.items() if value is not None}
        case _:
            pass
    return tables | ({"embedding": pooling} if pooling else {})


def _search(how: Mapping[str, Any], config: ModelConfig, n_begin: int) -> DecodingConfig:
    """Return the beam search settings that are closest to those of `generate`."""
    most = how.get("max_new_tokens") or (how.get("max_length") or 0) - n_begin
    beam = how.get("num_beams") or 1
    said = most > _NOTHING_SAID
    limit = {"max_length_ratio": 0.0, "max_length_extra": min(most, config.max_len - n_begin)} if said else {}
    return DecodingConfig(
        beam=beam,
        length_penalty=float(how.get("length_penalty", 1.0) or 0.0),
        length_norm="plain",
        no_repeat_ngram=how.get("no_repeat_ngram_size") or 0,
        refill=beam > 1,
        **limit,
    )


def _sampling(how: Mapping[str, Any]) -> SamplingConfig:
    """Return the sampling settings of `generate`. If `generate` does not sample, the temperature is 0 (greedy)."""
    drawn = bool(how.get("do_sample"))
    return SamplingConfig(
        temperature=float(how.get("temperature") or 1.0) if drawn else 0.0,
        top_k=(how.get("top_k") or 0) if drawn else 0,
        top_p=float(how.get("top_p") or 1.0) if drawn else 1.0,
        repetition_penalty=float(how.get("repetition_penalty") or 1.0),
    )


def _labels(theirs: Mapping[str, Any], n_classes: int) -> list[str]:
    """Return the names of the classes, in order. Raise AttendoError for one class or equal names."""
    if n_classes == 1:
        raise AttendoError("config.json: the model has one output, which is a score. Give a model with labels")
    names = theirs.get("id2label") or {}
    labels = [str(names.get(str(n), f"LABEL_{n}")) for n in range(n_classes)]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise AttendoError(f"config.json: id2label contains {twice!r} twice. Give each class its own name")
    return labels


def _card(bundle: Bundle, theirs: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
    config = bundle.model_config
    own = "embedding" if embeds_texts(config) else task_of(config.architecture)
    return {
        "task": own if bundle.tokenizer.chat is None else "chat",
        "imported": {"model_type": theirs["model_type"], "name": theirs.get("_name_or_path")},
        **({"labels": dict.fromkeys(sorted(labels), 1)} if labels else {}),
        **({"decoding": bundle.tables["decoding"]} if "decoding" in bundle.tables else {}),
        "versions": versions(),
    }
