"""The checks of a ModelConfig: choices, ranges, and options that do not fit each other."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

_BELOW = 1 << 24
"""Upper limit of every size: larger than in any model, and small enough that a product of two sizes cannot overflow."""
_AT_LEAST = {
    1: ("vocab_size", "d_model", "d_ff", "n_heads", "head_dim", "value_dim", "max_len", "d_output"),
    0: (
        "norm_eps",
        "embedding_norm_eps",
        "dropout",
        "attention_dropout",
        "activation_dropout",
        "n_classes",
        "no_rope_interval",
    ),
    -_BELOW: ("n_kv_heads", "n_encoder_layers", "n_decoder_layers", "position_buckets", "position_reach"),
}
_USED_WITH = {
    "n_classes": ("architecture", ("classifier",)),
    "pooling": ("architecture", ("classifier",)),
    "d_output": ("architecture", ("masked", "classifier")),
    "output_activation": ("architecture", ("classifier",)),
    "output_norm": ("architecture", ("classifier",)),
    "norm_first_block": ("architecture", ("encoder-decoder", "classifier", "masked")),
    "output_softcap": ("architecture", ("decoder",)),
    "position_base": ("positions", ("sinusoidal", "rotary")),
    "position_frequencies": ("positions", ("rotary",)),
    "position_start": ("positions", ("sinusoidal", "ramp", "inverse")),
    "position_first_index": ("positions", ("sinusoidal",)),
    "no_rope_interval": ("positions", ("rotary",)),
    "local_position_base": ("positions", ("rotary",)),
    "position_order": ("positions", ("sinusoidal",)),
    "position_buckets": ("positions", ("relative",)),
    "position_reach": ("positions", ("relative",)),
}
"""Options that have an effect only with certain values of another option. With other values they are rejected."""


def require_shape(config: Any) -> None:
    """Raise ValueError if an option of a model has a value that is not allowed or does not fit the other options.

    >>> from attendo.model_config import ModelConfig
    >>> ModelConfig(vocab_size=11, positions="rotary", no_rope_interval=-1)
    Traceback (most recent call last):
    ValueError: no_rope_interval=-1 must be at least 0 and below 16,777,216
    """
    for name, choices in _choices(type(config)).items():
        if (value := getattr(config, name)) not in choices:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, choices))}")
    for least, names in _AT_LEAST.items():
        for name in names:
            value = getattr(config, name)
            below = 1 if name.endswith("dropout") else _BELOW
            if value is not None and (value is True or not least <= value < below):
                raise ValueError(f"{name}={str(value)[:40]} must be at least {least} and below {below:,}")
    for name, (other, values) in _USED_WITH.items():
        value = getattr(config, name)
        used = getattr(config, other) in values
        if not used and value != type(config).__dataclass_fields__[name].default:
            raise ValueError(
                f"{name}={value!r} has no effect with {other}={getattr(config, other)!r}. Remove it, or set "
                f"{other} to {' or '.join(values)}"
            )
    _require_layers(config)
    _require_heads(config)
    _require_positions(config)
    if config.pad_id is not None and not 0 <= config.pad_id < config.vocab_size:
        raise ValueError(f"pad_id={config.pad_id} must be at least 0 and below {config.vocab_size}")
    if config.tie != "none" and config.d_output not in (None, config.d_model):
        raise ValueError(
            f"d_output={config.d_output} differs from d_model={config.d_model}, so the output cannot share "
            "the embedding matrix. Set tie='none'"
        )


def _require_layers(config: Any) -> None:
    has = {"n_encoder_layers": config.architecture != "decoder"}
    has["n_decoder_layers"] = config.architecture in ("encoder-decoder", "decoder")
    for name, there in has.items():
        value = getattr(config, name)
        if (value < 1) if there else value:
            wanted = "at least 1" if there else "0"
            raise ValueError(f"{name}={value} must be {wanted} with architecture={config.architecture!r}")
    if not (config.norm_first or config.norm_first_block):
        raise ValueError("norm_first_block=False has no effect with norm_first=False. Set norm_first=True")
    if config.output_norm and config.d_output is None:
        raise ValueError("output_norm=True requires a hidden layer before the logits. Set d_output")


def _require_heads(config: Any) -> None:
    divided = [] if config.head_dim is not None else [("d_model", "n_heads")]
    for whole, part in (*divided, ("n_heads", "n_kv_heads")):
        number = getattr(config, whole)
        wanted = getattr(config, part)
        if wanted is not None and (wanted < 1 or number % wanted):
            divisors = [n for n in range(1, number + 1) if number % n == 0]
            best = min(divisors, key=lambda n: abs(n - wanted))
            raise ValueError(f"{whole}={number} is not divisible by {part}={wanted}; try {part}={best}")


def _require_positions(config: Any) -> None:
    for window in config.attention_windows:
        if not (type(window) is int and 0 <= window < _BELOW):
            raise ValueError(f"attention_windows has the entry {window} (expected 0 or a number of tokens)")
    for name in ("attention_softcap", "output_softcap", "local_position_base"):
        if (value := getattr(config, name)) is not None and not 0.0 < value < math.inf:
            raise ValueError(f"{name}={value} must be a number above 0")
    if config.local_position_base is not None and not any(config.attention_windows):
        raise ValueError("local_position_base has no effect without attention_windows. Remove it")
    if config.positions == "rotary" and config.head_width % 2:
        raise ValueError(f"positions='rotary' requires an even head_dim, not {config.head_width}")
    if config.position_frequencies is not None and 2 * len(config.position_frequencies) != config.head_width:
        raise ValueError(f"position_frequencies must have {config.head_width // 2} numbers (head_dim / 2)")
    if config.position_base != "length" and not 0.0 < config.position_base < math.inf:
        raise ValueError(f"position_base={config.position_base} must be a number above 0, or 'length'")
    if config.positions == "relative" and not 4 <= config.position_buckets < 2 * config.position_reach:
        raise ValueError(
            f"position_buckets={config.position_buckets} must be at least 4 and less than 2 * "
            f"position_reach={2 * config.position_reach}"
        )
    if config.positions == "inverse" and config.position_start == 0:
        raise ValueError("position_start=0 divides by 0 with positions='inverse'. Set position_start=1")


@cache
def _choices(config: type) -> dict[str, tuple[Any, ...]]:
    """Return the allowed values of each option that is a Literal."""
    return {name: get_args(hint) for name, hint in get_type_hints(config).items() if get_origin(hint) is Literal}
