"""The requirements of an import or export: a new folder, the packages of `attendo[interop]`, and known options."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

from attendo.errors import AttendoError, install_command
from attendo.model_config import ModelConfig


def require_new(out: Path) -> None:
    """Raise AttendoError unless the folder is empty or new, and can be created.

    >>> require_new(Path("/"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: / already exists. Give a folder that is new or empty
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AttendoError(f"{out} already exists. Give a folder that is new or empty")
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise AttendoError(f"{parent} is a file; choose another folder than {out}")


_PACKAGES = {"google": "protobuf"}
"""The names of packages that differ from the names of their modules."""


def required(name: str) -> ModuleType:
    """Import and return a module. Raise AttendoError with an install command if its package is not installed.

    >>> required("json").__name__
    'json'
    >>> required("no_such_package")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attendo.errors.AttendoError: no_such_package is not installed. Run: pip install ...
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        module = (error.name or name).partition(".")[0]
        raise AttendoError(
            f"{_PACKAGES.get(module, module)} is not installed. Run: {install_command('interop')}"
        ) from None


_KNOWN = """
architecture vocab_size d_model d_ff n_heads n_kv_heads head_dim value_dim n_encoder_layers n_decoder_layers max_len
dropout attention_dropout activation_dropout attention_scale attention_bias attention_out_bias attention_norm norm
norm_first norm_eps activation feed_forward_gated feed_forward_bias positions position_base position_start
position_first_index position_order position_buckets position_reach embedding_scale embedding_norm_eps pad_id tie
output_bias d_output output_activation n_classes pooling initialization
"""
KNOWN_OPTIONS = frozenset(_KNOWN.split())
"""The options of ModelConfig that the exports to CTranslate2 and ONNX support."""


def unknown_option(config: ModelConfig) -> str | None:
    """Return the first option that is not in KNOWN_OPTIONS and differs from its default, as "name=value", or None.

    A model with a class per token, or with GELU before the classes, is not supported either.

    >>> unknown_option(ModelConfig(vocab_size=11))
    """
    for name, value in (("pooling", "none"), ("output_activation", "gelu")):
        if getattr(config, name) == value:
            return f"{name}={value!r}"
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in KNOWN_OPTIONS and value != field.default:
            return f"{field.name}={value!r}"
    return None
