"""The conversion of a model's options between config.json of Hugging Face and ModelConfig."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from attendo.errors import AttendoError
from attendo.interop.huggingface.rotary_scaling import KINDS, described, kind_of, rotation
from attendo.model_config import ModelConfig

Theirs = Mapping[str, Any]
"""The contents of a config.json."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""attendo's name of each activation function, by the foreign name. If several match, the first is written."""


class Option:
    """A conversion of one or more model options, with default values for missing keys."""

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """Return the ModelConfig options for a config.json. Raise AttendoError for an unsupported value."""
        return {}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """Return the keys of config.json, with their values, for a ModelConfig."""
        return {}


@dataclass(frozen=True)
class Same(Option):
    """An option that has different names in ModelConfig (`ours`) and config.json (`theirs`).

    `other` is the key that is read if `theirs` is missing. `written` is the attribute that is written instead of
    `ours`.

    >>> Same("d_model", "n_embd", 768).read({"n_embd": 64}), Same("d_model", "n_embd", 768).read({})
    ({'d_model': 64}, {'d_model': 768})
    """

    ours: str
    theirs: str
    default: Any
    other: str | None = None
    written: str | None = None

    def read(self, theirs: Theirs) -> dict[str, Any]:
        found = theirs.get(self.theirs)
        if self.other is not None and found is None:
            return {self.ours: theirs.get(self.other, self.default)}
        return {self.ours: theirs.get(self.theirs, self.default)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {self.theirs: getattr(ours, self.written or self.ours)}


@dataclass(frozen=True)
class Fixed(Option):
    """Options that are constant in a model family and do not depend on config.json.

    >>> Fixed({"norm": "rms"}).read({}), Fixed({"norm": "rms"}).write(ModelConfig(vocab_size=9))
    ({'norm': 'rms'}, {})
    """

    ours: Mapping[str, Any]

    def read(self, theirs: Theirs) -> dict[str, Any]:
        return dict(self.ours)


@dataclass(frozen=True)
class Must(Option):
    """A key of config.json with only one supported value. If `checked` is False, other values are ignored.

    >>> Must("use_sliding_window", False).read({"use_sliding_window": True})
    Traceback (most recent call last):
    attendo.errors.AttendoError: config.json: use_sliding_window=true is not supported (supported: false)
    """

    theirs: str
    value: Any
    checked: bool = True

    def read(self, theirs: Theirs) -> dict[str, Any]:
        found = theirs.get(self.theirs, self.value)
        if self.checked and found not in (self.value, None):
            raise _no_counterpart(self.theirs, found, self.value)
        return {}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {self.theirs: self.value}


@dataclass(frozen=True)
class Activation(Option):
    """The activation function, whose name is stored under the key `theirs` in config.json.

    >>> Activation("hidden_act", "gelu").read({"hidden_act": "gelu_new"})
    {'activation': 'gelu_tanh'}
    """

    theirs: str
    default: str

    def read(self, theirs: Theirs) -> dict[str, Any]:
        name = theirs.get(self.theirs, self.default)
        if name not in ACTIVATIONS:
            raise _no_counterpart(self.theirs, name, *ACTIVATIONS)
        return {"activation": ACTIVATIONS[name]}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {self.theirs: _their_activation(ours)}


@dataclass(frozen=True)
class GatedActivation(Option):
    """T5's combined name of the activation function and the gate: "relu", "gated-gelu" or "gated-silu"."""

    default: str

    def read(self, theirs: Theirs) -> dict[str, Any]:
        word = theirs.get("feed_forward_proj", self.default)
        *gated, name = word.split("-")
        name = "gelu_new" if gated and name == "gelu" else name
        if gated not in ([], ["gated"]) or name not in ACTIVATIONS:
            raise _no_counterpart("feed_forward_proj", word, "relu", "gated-gelu", "gated-silu")
        return {"activation": ACTIVATIONS[name], "feed_forward_gated": bool(gated)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        name = _their_activation(ours)
        word = f"gated-{'gelu' if name == 'gelu_new' else name}" if ours.feed_forward_gated else name
        return {"feed_forward_proj": word}


def _their_activation(ours: ModelConfig) -> str:
    return next(name for name, own in ACTIVATIONS.items() if own == ours.activation)


@dataclass(frozen=True)
class Tied(Option):
    """The option of whether the input embedding and the output layer share their matrix."""

    default: bool

    def read(self, theirs: Theirs) -> dict[str, Any]:
        return {"tie": "all" if theirs.get("tie_word_embeddings", self.default) else "none"}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {"tie_word_embeddings": ours.tie != "none"}


@dataclass(frozen=True)
class InnerWidth(Option):
    """The option d_ff, which defaults to 4 · d_model if config.json contains null (GPT-2)."""

    theirs: str
    width: str
    default: int

    def read(self, theirs: Theirs) -> dict[str, Any]:
        return {"d_ff": theirs.get(self.theirs) or 4 * theirs.get(self.width, self.default)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {self.theirs: ours.d_ff}


@dataclass(frozen=True)
class Both(Option):
    """A number that is one option in attendo, but two keys for encoder and decoder in config.json."""

    ours: str
    theirs: str
    default: int

    def read(self, theirs: Theirs) -> dict[str, Any]:
        names = (f"encoder_{self.theirs}", f"decoder_{self.theirs}")
        encoder, decoder = (theirs.get(name, self.default) for name in names)
        if encoder != decoder:
            raise AttendoError(
                f"config.json: {names[0]}={encoder} and {names[1]}={decoder} differ (expected equal values "
                "for encoder and decoder)"
            )
        return {self.ours: encoder}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        value = getattr(ours, self.ours)
        return {f"encoder_{self.theirs}": value, f"decoder_{self.theirs}": value}


@dataclass(frozen=True)
class OneSize(Option):
    """Two keys of config.json that must have equal values."""

    theirs: str
    other: str

    def read(self, theirs: Theirs) -> dict[str, Any]:
        one, two = theirs.get(self.other), theirs.get(self.theirs)
        if two not in (None, one):
            raise AttendoError(
                f"config.json: {self.theirs}={two} and {self.other}={one} differ (expected equal values)"
            )
        return {}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {self.theirs: getattr(ours, self.other)}


@dataclass(frozen=True)
class Length(Option):
    """The option max_len of a model whose position table begins with `unused` rows.

    If `unused` is None, the number of unused rows is the padding id plus 1.
    """

    default: int
    unused: int | None = 0

    def read(self, theirs: Theirs) -> dict[str, Any]:
        rows = theirs.get("max_position_embeddings", self.default)
        return {"max_len": rows - self._unused(theirs.get("pad_token_id", 1))}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {"max_position_embeddings": ours.max_len + self._unused(ours.pad_id or 0)}

    def _unused(self, pad_id: int) -> int:
        return pad_id + 1 if self.unused is None else self.unused


@dataclass(frozen=True)
class Heads(Option):
    """The number of query heads, the number of key and value heads, and their width (default: d_model / n_heads)."""

    has_width: bool = True

    def read(self, theirs: Theirs) -> dict[str, Any]:
        n_heads = theirs.get("num_attention_heads", 32)
        n_kv_heads = theirs.get("num_key_value_heads") or n_heads
        found = {"n_heads": n_heads, "n_kv_heads": None if n_kv_heads == n_heads else n_kv_heads}
        width = theirs.get("head_dim") if self.has_width else None
        if width is not None and width * n_heads != theirs.get("hidden_size"):
            found["head_dim"] = width
        return found

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        n_kv_heads = ours.n_kv_heads or ours.n_heads
        width = {"head_dim": ours.head_width} if self.has_width else {}
        return {"num_attention_heads": ours.n_heads, "num_key_value_heads": n_kv_heads, **width}


@dataclass(frozen=True)
class RotaryBase(Option):
    """The base and the scaling of RoPE, which newer files store in `rope_parameters`.

    LongRoPE limits the context to the original context, because longer texts have other frequencies. `bases` contains
    the older keys of the bases in blocks without and with a window, and their defaults, if these bases differ. With
    `scales_local`, the older key `rope_scaling` also scales blocks with a window, which attendo does not support.

    >>> bases = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    >>> RotaryBase(bases=bases).read({"hidden_size": 8, "num_attention_heads": 2, "rope_theta": 100})
    {'position_base': 100.0, 'local_position_base': 10000.0}
    """

    partial: bool = False
    bases: Mapping[str, float] | None = None
    scales_local: bool = False

    def read(self, theirs: Theirs) -> dict[str, Any]:
        tables, local, kinds = theirs.get("rope_parameters") or {}, None, KINDS
        if self.bases is not None:
            (base, default), (key, local) = self.bases.items()
            theirs = {**theirs, "rope_theta": theirs.get(base, default)}
            inside = tables.get("sliding_attention") or {}
            local, kinds = float(inside.get("rope_theta", theirs.get(key, local))), ("default", "linear")
            local_scaling = {"sliding_attention": inside}
            local_scaling |= {"rope_scaling": theirs.get("rope_scaling") or {}} if self.scales_local else {}
            for place, table in local_scaling.items():
                if (kind := kind_of(table)) != "default":
                    raise _no_counterpart(f"{place}.rope_type", kind, "default")
        scaling = theirs.get("rope_scaling") or tables.get("full_attention", tables)
        if (kind := kind_of(scaling)) not in kinds:
            raise _no_counterpart("rope_type", kind, *kinds)
        width = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
        base, n_rotated, omega, factor = rotation(theirs, width)
        if n_rotated % 2 or (n_rotated < width and not self.partial):
            raise _no_counterpart("partial_rotary_factor", n_rotated / width, 1.0)
        found: dict[str, Any] = {"position_base": base}
        if local is not None:
            found["local_position_base"] = local
        if kind not in ("default", "dynamic") or n_rotated < width:
            found["position_frequencies"] = tuple(omega.tolist())
        if factor != 1.0:  # of queries and keys
            found["attention_scale"] = factor**2 / math.sqrt(theirs.get("query_pre_attn_scalar", width))
        if kind in ("longrope", "su"):
            original = theirs.get("original_max_position_embeddings")
            found["max_len"] = original or scaling["original_max_position_embeddings"]
        return found

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        base, own = ours.wavelength_base, ours.position_frequencies
        table = {"rope_theta": base, "rope_type": "default"}
        table |= {} if own is None else described(own, base)
        if self.bases is None:
            return {"rope_theta": base, "rope_parameters": table}
        local = {"rope_theta": ours.local_position_base or base, "rope_type": "default"}
        return {"rope_parameters": {"full_attention": table, "sliding_attention": local}}


@dataclass(frozen=True)
class NoRope(Option):
    """The blocks without rotary positions: every n-th block of SmolLM3.

    >>> NoRope().read({"no_rope_layers": [1, 0, 1, 0], "num_hidden_layers": 4})
    {'no_rope_interval': 2}
    """

    @staticmethod
    def rotated(theirs: Theirs) -> list[int]:
        """Return 1 for each block with rotary positions, and 0 for each block without."""
        n = theirs.get("num_hidden_layers", 36)
        return (theirs.get("no_rope_layers") or _rotated(theirs.get("no_rope_layer_interval", 4), n))[:n]

    def read(self, theirs: Theirs) -> dict[str, Any]:
        wanted = self.rotated(theirs)
        interval = wanted.index(0) + 1 if 0 in wanted else 0
        if wanted != (known := _rotated(interval, len(wanted))):
            raise _no_counterpart("no_rope_layers", wanted, known)
        return {"no_rope_interval": interval}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {"no_rope_layers": _rotated(ours.no_rope_interval, ours.n_decoder_layers)}


def _rotated(interval: int, n: int) -> list[int]:
    return [int(not interval or number % interval != 0) for number in range(1, n + 1)]


@dataclass(frozen=True)
class Windows(Option):
    """The windows of self-attention, in all blocks or in those that `layer_types` names.

    Attributes:
        used: The default of `use_sliding_window`.
        default: The default of the window.
        is_local: The function that returns whether a block (from 0) has a window, without `layer_types`. If it is
            None, all blocks have windows.
        half: Whether the key is `local_attention`, a window that contains half of its positions on each side.
        kept: Whether windows as long as the context are kept, because blocks with a window have their own base of RoPE.

    >>> Windows().read({"sliding_window": 64, "num_hidden_layers": 2, "max_position_embeddings": 99})
    {'attention_windows': (64,)}
    >>> Windows(is_local=lambda theirs, n: n % 2 == 0).read({"sliding_window": 64, "num_hidden_layers": 4})
    {'attention_windows': (64, 0)}
    """

    used: bool = True
    default: int | None = 4096
    is_local: Callable[[Theirs, int], bool] | None = None
    half: bool = False
    kept: bool = False

    def read(self, theirs: Theirs) -> dict[str, Any]:
        window = theirs.get("local_attention" if self.half else "sliding_window", self.default)
        window = window // 2 + 1 if self.half and window is not None else window
        longest = theirs.get("max_position_embeddings", math.inf)
        n, is_local = theirs.get("num_hidden_layers", 32), self.is_local
        kinds = ["sliding_attention"] * n
        if is_local is not None:
            names = ("full_attention", "sliding_attention")
            kinds = theirs.get("layer_types") or [names[bool(is_local(theirs, i))] for i in range(n)]
            if strange := set(kinds) - set(names):
                raise _no_counterpart("layer_types", sorted(strange), *names)
        is_used = (self.kept or theirs.get("use_sliding_window", self.used)) and "sliding_attention" in kinds
        if self.kept and is_used:
            window = min(window or longest, longest)
        elif window is None or window >= longest or not is_used:
            return {"local_position_base": None}
        return {"attention_windows": repeating([window * kind.startswith("sliding") for kind in kinds])}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        n, window = ours.n_decoder_layers or ours.n_encoder_layers, max(ours.attention_windows, default=0)
        windows = islice(cycle(ours.attention_windows or (0,)), n)
        kinds = ["sliding_attention" if window else "full_attention" for window in windows]
        if self.half:
            return {"local_attention": 2 * max(window - 1, 0), "layer_types": kinds}
        found = {"sliding_window": window or None, "use_sliding_window": window > 0}
        return found | ({} if self.is_local is None else {"layer_types": kinds})


def repeating(windows: Sequence[int]) -> tuple[int, ...]:
    """Return the shortest beginning of a list whose repetition is the list.

    >>> repeating([64, 0, 64, 0, 64])
    (64, 0)
    """
    n = len(windows)
    return next(tuple(windows[:k]) for k in range(1, n + 1) if all(windows[i] == windows[i % k] for i in range(n)))


@dataclass(frozen=True)
class QueryScalar(Option):
    """The number whose inverse square root is the scale of the scores.

    >>> QueryScalar().read({"query_pre_attn_scalar": 4})
    {'attention_scale': 0.5}
    """

    def read(self, theirs: Theirs) -> dict[str, Any]:
        return {"attention_scale": theirs.get("query_pre_attn_scalar", 256) ** -0.5}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        scale = ours.head_width**-0.5 if ours.attention_scale is None else max(ours.attention_scale, 1e-6)
        return {"query_pre_attn_scalar": max(round(scale**-2), 1)}


@dataclass(frozen=True)
class ClassifierPooling(Option):
    """The pooling of classifiers: the vector of the first token (`first` in config.json), or the mean.

    >>> ClassifierPooling("bos", "late").read({"classifier_pooling": "bos"})
    {'pooling': 'first'}
    """

    first: str = "cls"
    default: str = "cls"

    def read(self, theirs: Theirs) -> dict[str, Any]:
        name = theirs.get("classifier_pooling", self.default)
        return {"pooling": "first" if name == self.first else name}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        return {"classifier_pooling": self.first if ours.pooling == "first" else "mean"}


def _no_counterpart(key: str, found: Any, *known: Any) -> AttendoError:
    wanted = ", ".join(json.dumps(value) for value in known)
    return AttendoError(f"config.json: {key}={json.dumps(found)} is not supported (supported: {wanted})")
