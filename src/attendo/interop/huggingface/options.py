"""One option of a model, as Hugging Face's config.json and as ModelConfig have it, and from each to the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from attendo.errors import AttendoError
from attendo.model_config import ModelConfig

Theirs = Mapping[str, Any]
"""What a config.json holds."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of activations, and ours; of several for one, the first is written."""


class Option(Protocol):
    """One or more options; what a file leaves out has the value that it has there by default."""

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """Options of ModelConfig. Raises AttendoError naming the key whose value the core has no option for."""
        ...

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """Keys of config.json."""
        ...


@dataclass(frozen=True)
class Same:
    """A value that both have, under two names.

    >>> Same("d_model", "n_embd", 768).read({"n_embd": 64}), Same("d_model", "n_embd", 768).read({})
    ({'d_model': 64}, {'d_model': 768})
    """

    ours: str
    theirs: str
    default: Any

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """The value under our name."""
        return {self.ours: theirs.get(self.theirs, self.default)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """The value under their name."""
        return {self.theirs: getattr(ours, self.ours)}


@dataclass(frozen=True)
class Fixed:
    """Options that all models of a family have alike.

    >>> Fixed({"norm": "rms"}).read({}), Fixed({"norm": "rms"}).write(ModelConfig(vocab_size=9))
    ({'norm': 'rms'}, {})
    """

    ours: Mapping[str, Any]

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """They, whatever the file says."""
        return dict(self.ours)

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Must:
    """Something of theirs that the core does in one way only.

    >>> Must("use_sliding_window", False).read({"use_sliding_window": True})
    Traceback (most recent call last):
    attendo.errors.AttendoError: config.json: use_sliding_window=true has no counterpart here, only false has
    """

    theirs: str
    value: Any

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """Nothing, or AttendoError."""
        found = theirs.get(self.theirs, self.value)
        if found not in (self.value, None):
            raise _no_counterpart(self.theirs, found, self.value)
        return {}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """The one value."""
        return {self.theirs: self.value}


@dataclass(frozen=True)
class Said:
    """Something of theirs that is read whatever it is, and written as one thing."""

    theirs: str
    value: Any

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """Nothing."""
        return {}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """The one value."""
        return {self.theirs: self.value}


@dataclass(frozen=True)
class Activation:
    """The activation, by its name there.

    >>> Activation("hidden_act", "gelu").read({"hidden_act": "gelu_new"})
    {'activation': 'gelu_tanh'}
    """

    theirs: str
    default: str

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """Our name of it."""
        name = theirs.get(self.theirs, self.default)
        if name not in ACTIVATIONS:
            raise _no_counterpart(self.theirs, name, *ACTIVATIONS)
        return {"activation": ACTIVATIONS[name]}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """Their first name of it."""
        return {self.theirs: next(name for name, own in ACTIVATIONS.items() if own == ours.activation)}


@dataclass(frozen=True)
class Tied:
    """Whether input and output share their matrix."""

    default: bool

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """The value of `tie`."""
        return {"tie": "all" if theirs.get("tie_word_embeddings", self.default) else "none"}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """Whether they are one."""
        return {"tie_word_embeddings": ours.tie != "none"}


@dataclass(frozen=True)
class InnerWidth:
    """d_ff, which is 4 · d_model where the file has null (GPT-2)."""

    theirs: str
    width: str
    default: int

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """The width of the inner layer."""
        return {"d_ff": theirs.get(self.theirs) or 4 * theirs.get(self.width, self.default)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """It, always as a number."""
        return {self.theirs: ours.d_ff}


@dataclass(frozen=True)
class Both:
    """A number that encoder and decoder may have each their own of there, and share here."""

    ours: str
    theirs: str
    default: int

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """The number of both."""
        names = (f"encoder_{self.theirs}", f"decoder_{self.theirs}")
        encoder, decoder = (theirs.get(name, self.default) for name in names)
        if encoder != decoder:
            raise AttendoError(
                f"config.json: {names[0]}={encoder} and {names[1]}={decoder} differ; here encoder and decoder have"
                " as many"
            )
        return {self.ours: encoder}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """It, twice."""
        value = getattr(ours, self.ours)
        return {f"encoder_{self.theirs}": value, f"decoder_{self.theirs}": value}


@dataclass(frozen=True)
class OrSame:
    """A number that is another one where the file leaves it out."""

    ours: str
    theirs: str
    other: str
    default: int

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """The number."""
        found = theirs.get(self.theirs)
        return {self.ours: theirs.get(self.other, self.default) if found is None else found}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """It, said."""
        return {self.theirs: getattr(ours, self.ours)}


@dataclass(frozen=True)
class OneSize:
    """Two numbers of theirs that are one here."""

    theirs: str
    other: str

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """Nothing, or AttendoError."""
        one, two = theirs.get(self.other), theirs.get(self.theirs)
        if two not in (None, one):
            raise AttendoError(
                f"config.json: {self.theirs}={two} and {self.other}={one} differ; here they are one"
            )
        return {}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """The one number."""
        return {self.theirs: getattr(ours, self.other)}


@dataclass(frozen=True)
class Length:
    """max_len, where the table of positions begins with rows for what has none.

    unused: how many rows the file's number counts that no token stands at: None, those up to the padding's id.
    """

    default: int
    unused: int | None = 0

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """How long a text may be."""
        return {"max_len": theirs.get("max_position_embeddings", self.default) - self._before(theirs)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """How long the table is."""
        pad_id = ours.pad_id or 0
        return {"max_position_embeddings": ours.max_len + self._before({"pad_token_id": pad_id})}

    def _before(self, theirs: Theirs) -> int:
        return theirs.get("pad_token_id", 1) + 1 if self.unused is None else self.unused


@dataclass(frozen=True)
class Heads:
    """Heads of queries, of keys and values, and their width, which is d_model / n_heads where the file is silent."""

    has_width: bool = True
    default_width: int | None = None

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """n_heads, n_kv_heads, head_dim, the last two None where they are what they would be without."""
        n_heads = theirs.get("num_attention_heads", 32)
        n_kv_heads = theirs.get("num_key_value_heads") or n_heads
        found: dict[str, Any] = {
            "n_heads": n_heads,
            "n_kv_heads": None if n_kv_heads == n_heads else n_kv_heads,
        }
        width = (theirs.get("head_dim") or self.default_width) if self.has_width else None
        if width is not None and width * n_heads != theirs.get("hidden_size"):
            found["head_dim"] = width
        return found

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """All three as numbers."""
        width = {"head_dim": ours.head_width} if self.has_width else {}
        return {
            "num_attention_heads": ours.n_heads,
            "num_key_value_heads": ours.n_kv_heads or ours.n_heads,
            **width,
        }


@dataclass(frozen=True)
class Width:
    """The width of a head, always said there."""

    theirs: str
    default: int

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """head_dim."""
        return {"head_dim": theirs.get(self.theirs, self.default)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """It as a number."""
        return {self.theirs: ours.head_width}


@dataclass(frozen=True)
class Turned:
    """The base of rotary positions, in newer files among `rope_parameters`; no stretching of them."""

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """position_base."""
        table = theirs.get("rope_parameters") or {}
        stretched = theirs.get("rope_scaling") or table
        kind = stretched.get("rope_type", stretched.get("type", "default"))
        if kind != "default":
            raise _no_counterpart("rope_type", kind, "default")
        if (share := table.get("partial_rotary_factor", theirs.get("partial_rotary_factor", 1.0))) != 1.0:
            raise _no_counterpart("partial_rotary_factor", share, 1.0)
        return {"position_base": float(table.get("rope_theta", theirs.get("rope_theta", 10000.0)))}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """As newer and as older files have it."""
        base = ours.wavelength_base
        return {"rope_theta": base, "rope_parameters": {"rope_theta": base, "rope_type": "default"}}


@dataclass(frozen=True)
class Net:
    """T5's one word for activation and gate: "relu", "gated-gelu", "gated-silu" …"""

    default: str

    def read(self, theirs: Theirs) -> dict[str, Any]:
        """activation and feed_forward_gated."""
        *gated, name = theirs.get("feed_forward_proj", self.default).split("-")
        name = "gelu_new" if gated and name == "gelu" else name
        if gated not in ([], ["gated"]) or name not in ACTIVATIONS:
            raise _no_counterpart(
                "feed_forward_proj", theirs.get("feed_forward_proj"), "relu", "gated-gelu", "gated-silu"
            )
        return {"activation": ACTIVATIONS[name], "feed_forward_gated": bool(gated)}

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """The one word."""
        name = next(name for name, own in ACTIVATIONS.items() if own == ours.activation)
        word = f"gated-{'gelu' if name == 'gelu_new' else name}" if ours.feed_forward_gated else name
        return {"feed_forward_proj": word}


def _no_counterpart(key: str, found: Any, *known: Any) -> AttendoError:
    """What to say of a key of config.json whose value the core has no option for."""
    wanted = " and ".join(json.dumps(value) for value in known)
    has = "has" if len(known) == 1 else "have"
    return AttendoError(
        f"config.json: {key}={json.dumps(found)} has no counterpart here, only {wanted} {has}"
    )
