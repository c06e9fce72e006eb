"""Beam search, sampling, constraints, shortlists, and backends that run a model during decoding.

Each public name is imported when it is first used. Importing `DecodingConfig` alone therefore does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.decoding.backends import best_backend, best_decoder, eager_backend, eager_decoder, ensemble
    from attendo.decoding.logit_filters import SamplingConfig
    from attendo.decoding.options import DecodingConfig, SpecialIds
    from attendo.decoding.protocols import Hypothesis
    from attendo.decoding.sampling import Sampling
    from attendo.decoding.searcher import SearchBackend, Searcher
    from attendo.decoding.shortlist import Shortlist
    from attendo.decoding.trace import SearchTrace

_HOMES = {
    "DecodingConfig": "options",
    "Hypothesis": "protocols",
    "Sampling": "sampling",
    "SamplingConfig": "logit_filters",
    "SearchBackend": "searcher",
    "SearchTrace": "trace",
    "Searcher": "searcher",
    "Shortlist": "shortlist",
    "SpecialIds": "options",
    "best_backend": "backends",
    "best_decoder": "backends",
    "eager_backend": "backends",
    "eager_decoder": "backends",
    "ensemble": "backends",
}

__all__ = [
    "DecodingConfig",
    "Hypothesis",
    "Sampling",
    "SamplingConfig",
    "SearchBackend",
    "SearchTrace",
    "Searcher",
    "Shortlist",
    "SpecialIds",
    "best_backend",
    "best_decoder",
    "eager_backend",
    "eager_decoder",
    "ensemble",
]


def __getattr__(name: str) -> Any:
    """Import and return a public object by its name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attendo.decoding' has no attribute {name!r}")
    return getattr(import_module(f"attendo.decoding.{_HOMES[name]}"), name)
