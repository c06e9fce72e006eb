"""Claims about known inputs, which are computed all at once, and generated inputs, one by one (C15, C23)."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.models import DecoderLM, EncoderDecoder
from attendo.nn.cache import DecoderCache
from attendo.nn.masks import Mask
from attendo_course.book import translated
from attendo_course.claims.architecture import longest_chain
from attendo_course.claims.claim import Finding, above, below, equals, shown
from attendo_course.claims.samples import (
    built,
    changed,
    largest,
    normal,
    numbered,
    random_attention,
    small_config,
    unrolled,
)
from attendo_course.pictures import Picture

if TYPE_CHECKING:
    from attendo.decoding.protocols import Hypothesis

Layer = Callable[[Float[Tensor, "1 q_len d"], Float[Tensor, "1 k_len d"]], Float[Tensor, "1 q_len d"]]
"""A function from some of the tokens, and from all tokens, to new vectors of the former."""

Shift = Callable[[Float[Tensor, "batch len d"]], Float[Tensor, "batch len d"]]

BEGIN, END, VOCAB = 0, 1, 12


def shift_right(x: Float[Tensor, "batch len d"]) -> Float[Tensor, "batch len d"]:
    """Insert a vector of zeros at the beginning and drop the last vector: position t then contains vector t - 1.

    The sources are Kikuta 2025, exercise 3.7, and Vaswani et al. 2017, section 3.1 (the decoder input is offset by
    one position).

    >>> shift_right(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten()
    tensor([0., 1., 2.])
    """
    return F.pad(x, (0, 0, 1, 0))[:, :-1]


def _language_model() -> DecoderLM:
    config = small_config(VOCAB, 32, architecture="decoder", n_encoder_layers=0, n_decoder_layers=2)
    return built(lambda: DecoderLM(config)).requires_grad_(False)


def _translator() -> EncoderDecoder:
    # the embedding of padding is 0, as what shift_right puts first
    config = small_config(VOCAB, 32, n_encoder_layers=2, n_decoder_layers=2, pad_id=BEGIN, tie="none")
    model = built(lambda: EncoderDecoder(config), 60).requires_grad_(False)
    model.output_proj.weight.mul_(3.0)  # surer than random weights are: its texts have several words, and end
    return model


def _ids(seed: int, *shape: int) -> Int[Tensor, "batch len"]:
    return torch.randint(2, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def _milliseconds(compute: Callable[[], object]) -> float:
    start = time.perf_counter()
    compute()
    return 1000.0 * (time.perf_counter() - start)


class _Counted:
    """A model step that counts its calls."""

    def __init__(self, model: DecoderLM | EncoderDecoder):
        self.model, self.calls = model, 0

    def __call__(self, token_ids: Tensor, cache: DecoderCache) -> Tensor:
        self.calls += 1
        return self.model.step(token_ids, cache)[:, -1]


def positions_do_not_wait(layer: Layer | None = None, n: int = 64, d: int = 32) -> Finding:
    """Check that one call for all positions gives the same results as n calls for one position each.

    The source is the slides on the Transformer. `layer` is the tested layer (default: self-attention). Times are
    reported, but not checked.

    >>> positions_do_not_wait().holds
    True
    >>> positions_do_not_wait(lambda some, every: some.cumsum(1)).holds
    False
    """
    from attendo.decoding.beam import DecodingConfig, beam_search
    from attendo.decoding.options import SpecialIds

    attend = random_attention(0, d, 4, d**-0.5)
    layer = layer or attend
    x = normal(1, 1, n, d)
    together = layer(x, x)
    alone = torch.cat([layer(x[:, t : t + 1], x) for t in range(n)], dim=1)
    model, text = _language_model(), _ids(2, 1, 24)
    at_once = model(text)
    prefixes = torch.stack([model(text[:, : t + 1])[0, -1] for t in range(24)])
    cell = built(lambda: nn.RNNCell(d, d))
    lengths = (1, n // 4, n // 2, n, 2 * n)
    chains = [
        [longest_chain(compute(rows.requires_grad_())) for rows in (normal(1, m, d) for m in lengths)]
        for compute in (lambda rows: layer(rows[None], rows[None]), lambda rows: unrolled(cell, rows))
    ]
    step = _Counted(model)
    (found,) = beam_search(step, model.start(1, 16), [16], DecodingConfig(beam=1), SpecialIds(bos_id=BEGIN, eos_id=END))
    generated = len(found[0].token_log_probs)
    calls = translated("{n} calls, one position: ms", n=n)
    with torch.no_grad():
        times = (
            shown(translated("one call, {n} positions: ms", n=n), _milliseconds(lambda: layer(x, x))),
            shown(calls, _milliseconds(lambda: [layer(x[:, t : t + 1], x) for t in range(n)])),
            shown(translated("RNN, {n} steps: ms", n=n), _milliseconds(lambda: unrolled(cell, x[0]))),
        )
    checks = (
        below("|one call - n calls|", largest(together - alone), 1e-12),
        below("causal stack: |all at once - each prefix by itself|", largest(at_once[0] - prefixes), 1e-12),
        equals("layer: steps in a row, 2n more than n", chains[0][-1] - chains[0][-2], 0, 0.0),
        equals("RNN: steps in a row, 2n / n", chains[1][-1] / chains[1][-2], 2.0, 0.1),
        equals("generating: calls per token", step.calls / generated, 1.0, 0.0, counterexample=True),
        *times,
    )
    title = translated("longest chain of operations by the number of positions")
    labels = tuple(f"n = {m}" for m in lengths)
    return Finding(checks, Picture("curves", title, np.array(chains, dtype=float), ("layer", "RNN"), labels))


def _greedy_by_recomputing(model: EncoderDecoder, src: Tensor, limit: int) -> list[int]:
    """Return a greedily decoded text. The complete text is recomputed for each token."""
    text = [BEGIN]
    while len(text) <= limit and text[-1] != END:
        logits = model(src, torch.tensor([text]))[0, -1]
        logits[BEGIN] = -torch.inf
        text.append(int(logits.argmax()))
    return text[1:]


def _search(model: EncoderDecoder, src: Tensor, beam: int, limit: int) -> Hypothesis:
    from attendo.decoding.beam import DecodingConfig, beam_search
    from attendo.decoding.options import SpecialIds

    special = SpecialIds(bos_id=BEGIN, eos_id=END, banned_ids=(BEGIN,))
    config = DecodingConfig(beam=beam, length_penalty=0.0)
    cache = model.start(src, rows_per_source=beam, capacity=limit)
    return beam_search(_Counted(model), cache, [limit], config, special)[0][0]


def _step_by_step(model: EncoderDecoder, src: Tensor, fed: Tensor) -> Tensor:
    cache = model.start(src, capacity=fed.shape[1])
    return torch.cat([model.step(fed[:, t : t + 1], cache) for t in range(fed.shape[1])], dim=1)


def _taught_log_prob(model: EncoderDecoder, src: Tensor, written: list[int]) -> float:
    """Return the log-probability of a text that is passed as targets."""
    from attendo.training.losses import token_losses

    text = torch.tensor([BEGIN, *written])
    return -float(token_losses(model(src, text[None, :-1])[0], text[1:]).sum())


def targets_or_prediction(shift: Shift = shift_right, n: int = 9, limit: int = 12) -> Finding:
    """Check that one call computes the logits of all known targets, and that a cache avoids recomputation otherwise.

    Known targets are shifted one position to the right. The source is Kikuta 2025, exercise 3.7. `shift` is the
    tested function on the embedded targets `[batch, len, d_model]`.

    >>> targets_or_prediction().holds
    True
    >>> targets_or_prediction(lambda x: x.roll(1, dims=1)).holds
    False
    """
    model, src, tgt = _translator(), _ids(0, 1, 7), _ids(1, 1, n)
    tokens, memory = model.target_embedding.tokens, model.encode(src)
    places = model.target_embedding(torch.full((1, n), BEGIN))  # the embedding of 0s: the positions alone

    def logits(shifted: Shift, targets: Tensor) -> Tensor:
        x = shifted(tokens(targets)) + places
        return model.output(model.decoder(x, memory, Mask(causal=True)))

    fed = torch.cat([torch.full((1, 1), BEGIN), tgt[:, :-1]], dim=1)
    taught, embedded = logits(shift, tgt), tokens(tgt)
    # [s, t]: how far logits t move as target s becomes another
    moves = torch.stack([logits(shift, changed(tgt, s, 3, VOCAB))[0] - taught[0] for s in range(n)]).norm(dim=-1)
    leaks = [logits(lambda x: x, changed(tgt, t, 3, VOCAB))[0, t] - logits(lambda x: x, tgt)[0, t] for t in range(n)]
    greedy, beam = _search(model, src, 1, limit), _search(model, src, 4, limit)
    written = [*greedy.token_ids, *([END] if greedy.finished else [])]
    anew = _greedy_by_recomputing(model, src, limit)
    log_prob = _taught_log_prob(model, src, written)
    cached = translated("targets given: |all at once - step by step on a cache|")
    leak = translated("no shift: logits t, another target t: change")
    checks = (
        equals("shift: largest entry at place 1", largest(shift(embedded)[:, 0]), 0.0, 0.0),
        equals("shift: |x'[2:] - x[:n-1]|", largest(shift(embedded)[:, 1:] - embedded[:, :-1]), 0.0, 0.0),
        below("logits: |shifted embeddings - begin id in front|", largest(taught - model(src, fed)), 1e-12),
        below(cached, largest(taught - _step_by_step(model, src, fed)), 1e-12),
        equals("logits 1..t, another target t: change", largest(moves.tril()), 0.0, 0.0),
        above(leak, min(map(largest, leaks)), 0.1, counterexample=True),
        equals("predicted: tokens that differ, beam 1 and recomputed", _differing(written, anew), 0, 0.0),
        above("tokens of that text", len(set(written)), 3.0),
        below("its log-probability: |cached - as targets|", abs(log_prob - greedy.log_prob), 1e-10),
        above("log-probability of the text: beam 4 - beam 1", beam.log_prob - greedy.log_prob, 0.0),
    )
    title = translated("change of logits t (row) as target s (column) changes")
    return Finding(checks, Picture("matrix", title, moves.T.numpy(), numbered("t", n), numbered("s", n)))


def _differing(first: list[int], second: list[int]) -> int:
    return sum(a != b for a, b in zip_longest(first, second))


CLAIMS = {"C15": positions_do_not_wait, "C23": targets_or_prediction}
