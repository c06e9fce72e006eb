"""The export of a trained model, and the check that the exported model computes the same results as attendo."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from attendo.bundle import load_bundle, load_model
from attendo.data.labelled import has_pairs
from attendo.data.tokenizers import Kind
from attendo.errors import AttendoError
from attendo.files import atomic_folder, write_atomic
from attendo.interop.parity import examples_of, measured
from attendo.interop.requirements import require_new
from attendo.interop.to_ctranslate2 import Quantization
from attendo.interop.to_gguf import FILE, GgufQuantization
from attendo.models import ModelConfig

Target = Literal["huggingface", "ctranslate2", "argos", "onnx", "gguf"]
TARGETS: tuple[Target, ...] = get_args(Target)
_QUANTIZED = ("quantization",)
_TAKEN = {"ctranslate2": _QUANTIZED, "argos": ("languages", "quantization"), "gguf": _QUANTIZED}
_ONLY = {"argos": "encoder-decoder", "gguf": "decoder"}
"""The architecture of the models that a format is meant for."""
REPORT = "attendo-parity.json"
TOO_FAR = 0.02
"""The maximum difference in nats between the results of an unquantized export and those of attendo."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The settings of an export.

    Attributes:
        quantization: Number format of the weights, for CTranslate2, Argos Translate and GGUF.
        languages: Language codes of source and target, for Argos Translate (default: the languages of the run).
    """

    quantization: Quantization | GgufQuantization = "float32"
    languages: tuple[str, str] | None = None


def exportable(config: ModelConfig, kind: Kind, target: Target) -> str | None:
    """Return the reason why a model cannot be exported to a format, or None if the format supports it.

    Args:
        config: The configuration of the model.
        kind: The kind of the tokenizer, for example "bpe".
        target: The export format, for example "onnx".

    >>> exportable(ModelConfig(vocab_size=11), "bpe", "ctranslate2")
    >>> exportable(ModelConfig(vocab_size=11, value_dim=32), "bpe", "argos")
    'value_dim=32 differs from the query head size 64 (CTranslate2 requires equal sizes)'
    >>> exportable(ModelConfig(vocab_size=11), "word", "argos")
    "tokenizer.kind='word' cannot be written as a SentencePiece model (supported: bpe and unigram)"
    """
    return _module(target).why_not(config, kind)


def not_exportable(config: ModelConfig, kind: Kind) -> str | None:
    """Return a line about the supported and unsupported export formats, or None if all formats are supported.

    Args:
        config: The configuration of the model.
        kind: The kind of the tokenizer, for example "bpe".

    >>> not_exportable(ModelConfig(vocab_size=11), "bpe")
    >>> not_exportable(ModelConfig(vocab_size=11, value_dim=32, norm_eps=0.0), "bpe")[:54]
    'export: to onnx; not to huggingface: no model of trans'
    """
    reasons = _reasons(config, kind)
    goes = reasons.pop("", [])
    said = [f"to {', '.join(goes)}"] if goes else []
    said += [f"not to {', '.join(targets)}: {why}" for why, targets in reasons.items()]
    return f"export: {'; '.join(said)}" if reasons else None


def _reasons(config: ModelConfig, kind: Kind) -> dict[str, list[str]]:
    """Return the targets by the reason why they do not support the model. Supported targets have the reason ""."""
    found: dict[str, list[str]] = {}
    for target in TARGETS:
        if _ONLY.get(target, config.architecture) == config.architecture:
            found.setdefault(exportable(config, kind, target) or "", []).append(target)
    return found


def only_here(task: str, data: Mapping[str, Any]) -> str | None:
    """Return the reason why a model with a task and settings [data] cannot be exported to any format, or None.

    >>> only_here("regression", {})
    'models for regression run in attendo only'
    """
    pairs = has_pairs(data.get("columns"))
    if pairs or task in ("multi-label", "regression"):
        return f"{'classifiers of pairs of texts' if pairs else f'models for {task}'} run in attendo only"
    return None


def export(
    folder: Path,
    out: Path,
    target: Target,
    options: ExportOptions | None = None,
    *,
    valid: Sequence[Path] = (),
    most: int = 500,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Export the model of a run folder, and compare the results of the exported model and attendo.

    Args:
        folder: The run folder.
        out: The folder to create, or the file of the format gguf. If the export fails, nothing is left.
        target: The export format.
        options: The options of the export format.
        valid: Data files for the comparison (default: see `examples_of`).
        most: The maximum number of rows in the comparison.
        say: The function that receives progress messages.

    Returns:
        The parity report, which is also written to `attendo-parity.json` if `out` is a folder.

    Raises:
        AttendoError: The format does not support the model, `out` is not empty, a package is missing, or the exported
            model computes different results.

    >>> export(Path("none"), Path("out"), "ctranslate2")
    Traceback (most recent call last):
    attendo.errors.AttendoError: none: no such run folder; give the folder that `attendo train … --out` wrote
    """
    options = ExportOptions() if options is None else options
    bundle = load_bundle(folder)
    share = bundle.card.get("validation", {}).get("share", 1.0)
    if share < 1.0:
        bundle = replace(bundle, card=_encoder_card(bundle.card))
    if (name := bundle.card.get("own_parts")) is not None:
        raise AttendoError(
            f"{folder} has custom modules ({name}), which no other program supports: it cannot be exported"
        )
    if why := only_here(bundle.card.get("task", ""), bundle.tables.get("data", {})):
        raise AttendoError(f"{folder} cannot be exported: {why}")
    shape = bundle.model_config, bundle.tokenizer.kind
    if (why := exportable(*shape, target)) is not None:
        goes = " or ".join(_reasons(*shape).get("", []))
        raise AttendoError(f"{folder} cannot be exported to {target}: {why}{f'. {goes} supports it' if goes else ''}")
    require_new(out)
    model = load_model(folder, bundle)
    examples = examples_of(bundle, valid, most)
    with atomic_folder(out, parents=True) as fresh:
        _module(target).write(folder, bundle, model, fresh, **_settings(target, options))
        say(f"comparing both models on {examples.name}")
        report = {"target": target, **measured(bundle, model, _module(target).opened(fresh), examples)}
        far = report.get("largest_difference") or 0.0
        if options.quantization == "float32" and far > TOO_FAR:
            raise AttendoError(
                f"the {target} export differs from the model (by {far:.2g} nats), so nothing was written. This "
                "is a bug in attendo: please report it"
            )
        if share < 1.0:
            say(f"warning: the export has the encoder alone. In attendo, n-grams have {1 - share:.0%} of the decision")
        write_atomic(fresh / REPORT, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    if target == "gguf":  # a file without a folder
        with tempfile.TemporaryDirectory(dir=out.parent) as between:
            file = (out / FILE).rename(Path(between) / FILE)
            shutil.rmtree(out)
            file.rename(out)
    return report


def _encoder_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the card of a classifier's encoder without the n-grams, which are not exported."""
    left_out = ("validation", "files", "thresholds", "thresholds_from")
    found = card["validation"]
    names = {"step": "step", "accuracy": "accuracy_encoder", "temperature": "encoder_temperature"}
    measures = {name: found[key] for name, key in names.items() if key in found}
    return {key: value for key, value in card.items() if key not in left_out} | {"validation": measures}


def _module(target: Target) -> ModuleType:
    """Return the module of a target, with its functions `why_not`, `write` and `opened`."""
    return import_module(f"attendo.interop.to_{target}")


def _settings(target: Target, options: ExportOptions) -> dict[str, Any]:
    """Return the options for the `write` function of a target. Raise AttendoError for an option without effect."""
    settings = {}
    for name in ("languages", "quantization"):
        value = getattr(options, name)
        if name in _TAKEN.get(target, ()):
            settings[name] = value
        elif value != getattr(ExportOptions(), name):
            raise AttendoError(f"`{name}` has no effect with `target` {target}. Remove it")
    return settings
