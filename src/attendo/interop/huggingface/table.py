"""What a family of Hugging Face's models is to attendo: a table of options and of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from attendo.interop.huggingface.options import Option, Theirs
from attendo.interop.huggingface.weights import Row
from attendo.model_config import Architecture


@dataclass(frozen=True)
class Head:
    """A class of a family: what it is here, the options that it sets, and its own rows."""

    architecture: Architecture
    ours: Mapping[str, object] = field(default_factory=dict)
    weights: tuple[Row, ...] = ()


def always(theirs: Theirs) -> bool:
    """Whatever the file says.

    >>> always({})
    True
    """
    return True


@dataclass(frozen=True)
class Table:
    """A family: its options, its weights, and its classes by name.

    prefix: what the names of weights begin with where there is a head, and don't where there is none. passed_over:
    patterns of the names behind it that say nothing: what is computed anew, and heads that aren't read. biased: every
    dense layer has a bias there, zeros for one of ours without. sinusoids: tensors that hold the positions' rows and
    are written, though they are computed anew when they are read. when: whether a config.json of the family is
    described by this table, where it has several; written: whether it is one that models are written by.
    """

    options: tuple[Option, ...]
    weights: tuple[Row, ...]
    heads: Mapping[str, Head]
    prefix: str = ""
    passed_over: tuple[str, ...] = ()
    biased: bool = False
    sinusoids: tuple[str, ...] = ()
    written: bool = True
    when: Callable[[Theirs], bool] = always
