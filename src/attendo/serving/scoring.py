"""The log-probability of each token of given texts, and the most probable tokens at each position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.data.token_stream import Document
from attendo.data.tokenizers import MARK, SpecialTokens, Tokenizer
from attendo.errors import NOT_NUMBERS, AttendoError
from attendo.inference import Generator, Translator
from attendo.inference.alignment import teacher_forced
from attendo.inference.perplexity import Window, document_windows
from attendo.serving.dependencies import ApiRequest
from attendo.serving.engine import PASS_CHARACTERS
from attendo.serving.registry import ServedModel
from attendo.training.losses import Trainable

TOKENS_AT_ONCE = 1000
"""The approximate number of tokens in a batch of scoring chunks (see `engine.PASS_CHARACTERS`)."""
CHARACTERS_OF_A_TOKEN = PASS_CHARACTERS // TOKENS_AT_ONCE


@dataclass(frozen=True)
class TokenScore:
    """The log-probability of a token in nats, and the most probable token ids at its position."""

    token_id: int
    log_prob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ScoringChunk:
    """A window of a text for `text_scores`, or a source and a target without end token for `pair_scores`."""

    source: Sequence[int]
    target: Sequence[int]
    window: Window | None = None

    def n_tokens(self) -> int:
        """Return the number of tokens of the chunk."""
        return len(self.source) + len(self.target)

    def characters(self) -> int:
        """Return the estimated number of characters in the chunk, which limits the size of a batch."""
        return CHARACTERS_OF_A_TOKEN * self.n_tokens()


def scoring_chunks(
    token_ids: Sequence[int], context: int, specials: SpecialTokens, *, ended: bool
) -> list[ScoringChunk]:
    """Split a text into the same windows as `attendo evaluate`. If `ended` is true, the end token is also scored."""
    document = Document(np.array(token_ids, np.int64), 0, 0, ended)
    if not document.n_targets:
        return []
    windows = document_windows(document, context, context, specials)
    return [ScoringChunk(window.token_ids.tolist(), (), window) for window in windows]


def text_scores(generator: Generator, parts: Sequence[ScoringChunk], n: int) -> list[list[TokenScore]]:
    """Return the scores of the tokens of each window, with the n most probable tokens at each position."""
    model = cast("Trainable", generator.scorer())
    found = []
    for part in parts:
        assert part.window is not None
        token_ids, targets, n_scored = part.window
        with torch.inference_mode():
            row = torch.from_numpy(token_ids)[None].to(model.output_proj.weight.device)
            logits = model.output_proj(model.hidden(token_ids=row)[0])
            found.append(_scores(logits[-n_scored:], targets[-n_scored:].tolist(), n))
    return found


def pair_scores(translator: Translator, pairs: Sequence[ScoringChunk], n: int) -> list[list[TokenScore]]:
    """Return the scores of each pair's target and end token, with the n most probable tokens at each position.

    The PyTorch model computes the scores, which equal the scores of the search up to rounding.
    """
    tokenizer = translator.tokenizer
    first = len(tokenizer.specials.begin) - 1
    found = []
    for pair in pairs:
        inputs, wanted = teacher_forced(tokenizer, [list(pair.source)], [list(pair.target)], translator.device)
        with torch.inference_mode():
            logits = translator.model(**inputs)[0, first:]
            found.append(_scores(logits, wanted[0, first:].tolist(), n))
    return found


def _scores(logits: Float[Tensor, "len vocab"], wanted: Sequence[int], n: int) -> list[TokenScore]:
    log_probs = logits.double().log_softmax(-1)
    own = log_probs[range(len(wanted)), wanted].tolist()
    if not all(map(math.isfinite, own)):
        raise AttendoError(NOT_NUMBERS)
    best = log_probs.topk(min(n, log_probs.shape[-1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenScore(token, value, tuple(zip(ids, values, strict=True)))
        for token, value, (ids, values) in zip(wanted, own, rows, strict=True)
    ]


async def run_text_scores(
    request: ApiRequest, served: ServedModel, texts: Sequence[Sequence[ScoringChunk]], n: int
) -> list[list[TokenScore]]:
    """Compute `text_scores` for the windows of texts, in the engine's thread."""
    every = [window for windows in texts for window in windows]
    found = iter(await _run(request, served, ("texts", n), every, partial(text_scores, served.user, n=n)))
    return [[score for _ in windows for score in next(found)] for windows in texts]


async def run_pair_scores(
    request: ApiRequest, served: ServedModel, pairs: Sequence[ScoringChunk], n: int
) -> Sequence[list[TokenScore]]:
    """Compute `pair_scores` of sentence pairs in the engine's thread."""
    return await _run(request, served, ("pairs", n), pairs, partial(pair_scores, served.user, n=n))


async def _run(
    request: ApiRequest, served: ServedModel, kind: tuple[str, int], chunks: Sequence[ScoringChunk], run: Any
) -> Sequence[list[TokenScore]]:
    cost = sum(map(ScoringChunk.n_tokens, chunks))
    return await request.run_forward(served, kind, chunks, run, cost, ScoringChunk.characters)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token. A byte that is only a part of a character is written as <E3>."""
    return tokenizer.pieces([token])[0].replace(MARK, " ")
