"""Beam search, sampling, constraints, shortlists, and backends that run a model during decoding.

Each public name is imported when it is first used. Importing `DecodingConfig` alone therefore does not import torch.
"""

from typing import TYPE_CHECKING

from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.decoding.backends import best_backend, best_decoder, eager_backend, eager_decoder, ensemble
    from attendo.decoding.logit_filters import SamplingConfig
    from attendo.decoding.options import DecodingConfig, SpecialIds
    from attendo.decoding.protocols import Hypothesis
    from attendo.decoding.sampling import Sampling
    from attendo.decoding.searcher import SearchBackend, Searcher
    from attendo.decoding.shortlist import Shortlist
    from attendo.decoding.trace import SearchTrace

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

__getattr__ = names_from(
    __name__,
    backends=["best_backend", "best_decoder", "eager_backend", "eager_decoder", "ensemble"],
    logit_filters=["SamplingConfig"],
    options=["DecodingConfig", "SpecialIds"],
    protocols=["Hypothesis"],
    sampling=["Sampling"],
    searcher=["SearchBackend", "Searcher"],
    shortlist=["Shortlist"],
    trace=["SearchTrace"],
)
