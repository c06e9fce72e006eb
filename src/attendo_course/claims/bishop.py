"""Claim C25: the other exercises of Bishop & Bishop 2024, chapter 12, with a few lines of code each."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.display.charts import Picture
from attendo.models import ModelConfig, build_model
from attendo.nn.attention import attention, attention_weights
from attendo_course.book import translated
from attendo_course.claims.claim import Check, Finding, above, below, equals
from attendo_course.claims.positions import only_distance_counts, shifting_rotates, sines_alone_lose_it
from attendo_course.claims.samples import largest, normal

TEXT = ["the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"]


def bag_of_words_counts(text: list[str] = TEXT) -> tuple[Check, ...]:
    """Check exercise 12.11: Σ_n ln p(x_n) is largest for the relative frequencies f.

    Any other p costs KL(f‖p) more per word.

    >>> all(check.holds for check in bag_of_words_counts())
    True
    """
    frequencies = np.array(list(Counter(text).values())) / len(text)
    best = -(frequencies * np.log(frequencies)).sum()
    others = np.random.default_rng(0).dirichlet(np.ones(len(frequencies)), 200)
    least = min(-(frequencies * np.log(p)).sum() for p in others)
    p = others[0]
    gap = -(frequencies * np.log(p)).sum() - best - (frequencies * np.log(frequencies / p)).sum()
    return (
        above("12.11 least loss of 200 other tables - that of the frequencies", least - best, 0.0),
        equals("12.11 loss - best loss - KL", gap, 0.0),
    )


def tables_explode(vocab: int = 10, length: int = 5) -> tuple[Check, ...]:
    """Check exercise 12.12: a table of p(x_n | x_1..x_{n-1}) has V^{n-1} rows of V - 1 free numbers (V^n - V^{n-1}).

    >>> all(check.holds for check in tables_explode())
    True
    """
    free = [np.zeros((vocab,) * (n - 1)).size * (vocab - 1) for n in range(1, length + 1)]
    whole = translated("12.12 free numbers of all tables = V^N - 1")
    growth = translated("12.12 each table: V times the last")
    return (equals(whole, sum(free), vocab**length - 1), equals(growth, free[-1] / free[-2], vocab))


def n_gram_from_counts(text: list[str] = TEXT) -> tuple[Check, ...]:
    """Check exercise 12.13: the maximum-likelihood bigram is the pair count divided by the count of the first word.

    >>> all(check.holds for check in n_gram_from_counts())
    True
    """
    words = sorted(set(text))
    pairs, firsts = Counter(pairwise(text)), Counter(text[:-1])
    table = np.array([[pairs[a, b] / max(firsts[a], 1) for b in words] for a in words])
    chosen = -sum(n * math.log(pairs[a, b] / firsts[a]) for (a, b), n in pairs.items())
    smoothed = 0.9 * table + 0.1 / len(words)
    other = -sum(n * math.log(smoothed[words.index(a), words.index(b)]) for (a, b), n in pairs.items())
    rows = max(abs(row.sum() - 1.0) for row, word in zip(table, words, strict=True) if firsts[word])
    return (
        below("12.13 loss of the counts - of a smoothed table", chosen - other, 0.0),
        equals("12.13 rows sum to 1: largest error", rows, 0.0),
    )


def recurrent_inference(length: int = 12) -> tuple[Check, ...]:
    """Check exercise 12.14: h_t = tanh(W x_t + U h_{t-1}) is equal if computed token by token and at once.

    The state that is passed from step to step has a fixed size.

    >>> all(check.holds for check in recurrent_inference())
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.RNN(3, 4, batch_first=True).double().requires_grad_(False)
    x = torch.randn(1, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state, outputs = torch.zeros(1, 1, 4, dtype=torch.float64), []
    for t in range(length):
        output, state = network(x[:, t : t + 1], state)
        outputs.append(output)
    difference = float((torch.cat(outputs, 1) - network(x)[0]).abs().max())
    return (
        equals("12.14 step by step - at once", difference, 0.0),
        equals("12.14 numbers kept between steps", state.numel(), 4),
    )


CHARACTERS = ("<bos>", "<eos>", "情", "報", "通", "信", "力", "情勢", "知", "行", "話", "学", "貨", "例")
FIRST = {"通": 0.4, "情": 0.3, "力": 0.1, "知": 0.1, "行": 0.1}
EVEN = dict.fromkeys(("信", "力", "情勢", "知", "行", "話", "学", "貨", "例", "報"), 0.1)
"""The second characters after most first characters: ten characters with equal probabilities."""
AFTER_JO = {"報": 0.2} | dict.fromkeys(("力", "情勢", "知", "行", "話", "学", "貨", "例"), 0.1)


@dataclass
class Prefixes:
    """The cache of a beam search on a table of probabilities: one row per hypothesis, with its tokens so far."""

    rows: list[tuple[int, ...]]

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the rows: the new row i continues the old row rows[i]."""
        self.rows = [self.rows[row] for row in rows.tolist()]

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Keep only the hypotheses with these row numbers."""
        self.reorder(rows)


def next_log_probs(token_ids: Int[Tensor, "rows 1"], cache: Prefixes) -> Float[Tensor, "rows vocab"]:
    """Return the log-probabilities of two-character words from a table: FIRST, then EVEN or AFTER_JO, then the end.

    >>> next_log_probs(torch.tensor([[0]]), Prefixes([()])).exp()[0, 4].item()
    0.4
    """
    cache.rows = [(*row, int(token)) for row, token in zip(cache.rows, token_ids[:, 0], strict=True)]
    logits = torch.full((len(cache.rows), len(CHARACTERS)), -1e9, dtype=torch.float64)
    for number, row in enumerate(cache.rows):
        second = AFTER_JO if CHARACTERS[row[-1]] == "情" else EVEN
        for word, probability in (FIRST, second, {"<eos>": 1.0})[len(row) - 1].items():
            logits[number, CHARACTERS.index(word)] = math.log(probability)
    return logits


def greedy_is_not_best() -> tuple[Check, ...]:
    """Check exercise 12.15: the text with the best first token (通…, .04) is not the best text (情報, .06).

    >>> all(check.holds for check in greedy_is_not_best())
    True
    """
    from attendo.decoding.beam import DecodingConfig, beam_search
    from attendo.decoding.options import SpecialIds

    special = SpecialIds(bos_id=0, eos_id=1, banned_ids=(0,))
    found = {}
    for beam in (1, 2):
        config = DecodingConfig(beam=beam, length_penalty=0.0)
        best = beam_search(next_log_probs, Prefixes([()] * beam), [3], config, special)[0][0]
        found[beam] = (math.exp(best.log_prob), "".join(CHARACTERS[i] for i in best.token_ids))
    return (
        equals("12.15 probability of the greedy text", found[1][0], 0.04),
        equals("12.15 probability with beam 2", found[2][0], 0.06),
        equals("12.15 beam 2 finds 情報", found[2][1] == "情報", 1),
    )


def bert_large_counts() -> tuple[Check, ...]:
    """Check exercise 12.16: the parameters of embeddings and blocks of BERT large.

    The sizes are V = 30,000, L = 512, 24 layers, 16 heads, d = 1024 and d_ff = 4096.

    >>> all(check.holds for check in bert_large_counts())
    True
    """
    config = ModelConfig(
        architecture="masked",
        vocab_size=30_000,
        d_model=1024,
        d_ff=4096,
        n_heads=16,
        n_encoder_layers=24,
        n_decoder_layers=0,
        max_len=512,
        positions="learned",
        activation="gelu",
    )
    with torch.device("meta"):
        model = build_model(config)
    parts = [p for n, p in model.named_parameters() if n.startswith(("embedding", "encoder"))]
    matrices = sum(p.numel() for p in parts if p.ndim == 2)
    every = sum(p.numel() for p in parts)
    formula = 24 * (4 * 1024**2 + 2 * 1024 * 4096) + (30_000 + 512) * 1024
    return (
        equals("12.16 matrices", matrices, formula),
        equals("12.16 matrices, millions", matrices / 1e6, 333.2, 0.05),
        equals("12.16 with biases and norms, millions", every / 1e6, 333.6, 0.05),
    )


def weights_are_at_most_one(n: int = 50) -> tuple[Check, ...]:
    """Check exercise 12.1: a ≥ 0 and Σa = 1 imply a ≤ 1.

    >>> all(check.holds for check in weights_are_at_most_one())
    True
    """
    weights = attention_weights(5.0 * normal(0, n, 4), 5.0 * normal(1, n, 4))
    return (
        above("12.1 smallest weight", float(weights.min()), -1e-15),
        below("12.1 largest weight", float(weights.max()), 1.0 + 1e-12),
    )


def orthogonal_inputs(n: int = 4, long: float = 10.0) -> tuple[Check, ...]:
    """Check exercise 12.3: for orthogonal x_n, y_n = softmax(XXᵀ)X approaches x_n as the length of x_n grows.

    At length 1, y_n is far from x_n.

    >>> all(check.holds for check in orthogonal_inputs())
    True
    """
    unit = torch.eye(n, dtype=torch.float64)
    weights = attention_weights(unit, unit, scale=1.0)
    far = attention(long * unit, long * unit, long * unit, scale=1.0)
    near = attention(unit, unit, unit, scale=1.0)
    return (
        equals("12.3 unit length: weight of itself", weights[0, 0].item(), 0.475, 5e-4),
        equals("12.3 unit length: of each other", weights[0, 1].item(), 0.175, 5e-4),
        above("12.3 unit length: |y - x|", largest(near - unit), 0.5, counterexample=True),
        below("12.3 length 10: |y - x|", largest(far - long * unit), 1e-10),
    )


def one_large_sparse_matrix(n: int = 4, d: int = 3) -> tuple[Check, ...]:
    """Check exercise 12.6: AXW is (A ⊗ Wᵀ) on the stacked tokens: n²d² entries from only n² + d² different numbers.

    >>> all(check.holds for check in one_large_sparse_matrix())
    True
    """
    x, w = normal(0, n, d), normal(1, d, d)
    a = attention_weights(x, x)
    large = torch.kron(a, w.T.contiguous())
    direct = attention(x, x, x @ w)
    return (
        equals("12.6 (A⊗Wᵀ)vec(X) - AXW", largest(large @ x.flatten() - direct.flatten()), 0.0),
        equals("12.6 entries of the matrix", large.numel(), (n * d) ** 2),
        below("12.6 numbers behind them", a.numel() + w.numel(), large.numel()),
    )


def random_directions_are_nearly_orthogonal(low: int = 3, high: int = 1000) -> tuple[Check, ...]:
    """Check exercise 12.8: the cosine of two random unit vectors has mean 0 and standard deviation 1/√D.

    >>> all(check.holds for check in random_directions_are_nearly_orthogonal())
    True
    """
    checks = []
    for d in (low, high):
        a, b = (torch.nn.functional.normalize(normal(seed, 2000, d), dim=-1) for seed in (0, 1))
        spread = float((a * b).sum(-1).square().mean().sqrt())
        name = translated("12.8 D = {d}: spread of the cosine times √D", d=d)
        checks.append(equals(name, spread * math.sqrt(d), 1.0, 0.08))
    a, b = (torch.nn.functional.normalize(normal(seed, 2000, low), dim=-1) for seed in (0, 1))
    name = translated("12.8 D = {low}: largest |cosine|", low=low)
    return (*checks, above(name, float((a * b).sum(-1).abs().max()), 0.9, counterexample=True))


def concatenation_is_a_sum(n: int = 5, d: int = 4, d_p: int = 3) -> tuple[Check, ...]:
    """Check exercise 12.9: a linear map of concatenated positions adds two linear maps, [x; r]W = xW_x + rW_r.

    >>> all(check.holds for check in concatenation_is_a_sum())
    True
    """
    x, r, w = normal(0, n, d), normal(1, n, d_p), normal(2, d + d_p, d)
    difference = torch.cat([x, r], -1) @ w - (x @ w[:d] + r @ w[d:])
    return (equals("12.9 [x; r]W - (xW_x + rW_r)", largest(difference), 0.0),)


def positions_by_relation() -> tuple[Check, ...]:
    """Check exercise 12.10: a matrix shifts sines with cosines (C01, C02), but not sines alone (C03).

    >>> all(check.holds for check in positions_by_relation())
    True
    """
    held = [shifting_rotates().holds, only_distance_counts().holds, sines_alone_lose_it().holds]
    return (equals("12.10 C01, C02 and C03 that hold", sum(held), 3),)


EXERCISES = (
    weights_are_at_most_one,
    orthogonal_inputs,
    one_large_sparse_matrix,
    random_directions_are_nearly_orthogonal,
    concatenation_is_a_sum,
    positions_by_relation,
    bag_of_words_counts,
    tables_explode,
    n_gram_from_counts,
    recurrent_inference,
    greedy_is_not_best,
    bert_large_counts,
)


def other_exercises() -> Finding:
    """Check exercises 12.1, 12.3, 12.6 and 12.8 to 12.16.

    >>> other_exercises().holds
    True
    """
    lengths = np.linspace(0.0, 4.0, 41)
    own = np.exp(lengths**2) / (np.exp(lengths**2) + 3.0)
    title = translated("12.3: weight of itself among four orthogonal vectors, by length")
    labels = tuple(f"|x| = {length:g}" for length in lengths)
    checks = tuple(check for exercise in EXERCISES for check in exercise())
    return Finding(checks, Picture("curves", title, own[None], ("a",), labels))


CLAIMS = {"C25": other_exercises}
