"""The other exercises of Bishop & Bishop 2024, chapter 12, with a few lines of code each (C25, C28 to C37)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.models import ModelConfig, build_model
from attendo.nn.attention import attention, attention_weights
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import largest, normal, numbered
from attendo_course.pictures import Picture

TEXT = ["the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"]


def weights_are_at_most_one(n: int = 50) -> Finding:
    """Check exercise 12.1: a ≥ 0 and Σa = 1 imply a ≤ 1.

    >>> weights_are_at_most_one().holds
    True
    """
    weights = attention_weights(5.0 * normal(0, n, 4), 5.0 * normal(1, n, 4))
    checks = (
        above("smallest weight", float(weights.min()), -1e-15),
        below("largest |Σ_m a_nm - 1|", largest(weights.sum(-1) - 1.0), 1e-12),
        below("largest weight", float(weights.max()), 1.0 + 1e-12),
    )
    return Finding(checks)


def orthogonal_inputs(n: int = 4, long: float = 10.0) -> Finding:
    """Check exercise 12.3: for orthogonal x_n, y_n = softmax(XXᵀ)X approaches x_n as the length of x_n grows.

    At length 1, y_n is far from x_n.

    >>> orthogonal_inputs().holds
    True
    """
    unit = torch.eye(n, dtype=torch.float64)
    weights = attention_weights(unit, unit, scale=1.0)
    far = attention(long * unit, long * unit, long * unit, scale=1.0)
    near = attention(unit, unit, unit, scale=1.0)
    checks = (
        equals("unit length: weight of itself", weights[0, 0].item(), 0.475, 5e-4),
        equals("unit length: of each other", weights[0, 1].item(), 0.175, 5e-4),
        above("unit length: |y - x|", largest(near - unit), 0.5, counterexample=True),
        below("length 10: |y - x|", largest(far - long * unit), 1e-10),
    )
    lengths = np.linspace(0.0, 4.0, 41)
    own = np.exp(lengths**2) / (np.exp(lengths**2) + 3.0)
    title = translated("weight of itself among four orthogonal vectors, by length")
    labels = tuple(f"|x| = {length:g}" for length in lengths)
    return Finding(checks, Picture("curves", title, own[None], ("a",), labels))


def one_large_matrix(n: int = 4, d: int = 3) -> Finding:
    """Check exercise 12.6: AXW is (A ⊗ I)(I ⊗ Wᵀ) = A ⊗ Wᵀ on the stacked tokens, for fixed A.

    The matrix has n²d² entries from only n² + d² different numbers, and its factors consist mostly of zeros.

    >>> one_large_matrix().holds
    True
    """
    x, w = normal(0, n, d), normal(1, d, d)
    a = attention_weights(x, x)
    mixing, mapping = (torch.kron(*pair) for pair in ((a, torch.eye(d)), (torch.eye(n), w.T.contiguous())))
    large, direct = torch.kron(a, w.T.contiguous()), attention(x, x, x @ w)
    twice = attention(2 * x, 2 * x, 2 * x @ w)
    checks = (
        equals("(A⊗Wᵀ)vec(X) - AXW", largest(large @ x.flatten() - direct.flatten()), 0.0),
        equals("(A⊗I)(I⊗Wᵀ) - A⊗Wᵀ", largest(mixing @ mapping - large), 0.0),
        equals("entries of the matrix", large.numel(), (n * d) ** 2),
        equals("A⊗I: entries that are not 0", mixing.count_nonzero().item(), n * n * d, 0.0),
        equals("I⊗Wᵀ: entries that are not 0", mapping.count_nonzero().item(), n * d * d, 0.0),
        below("numbers behind them", a.numel() + w.numel(), large.numel()),
        above(
            "A from 2X: |attention(2X) - 2·attention(X)|",
            largest(twice - 2 * direct),
            0.1,
            counterexample=True,
        ),
    )
    labels = tuple(f"{token}.{i + 1}" for token in numbered("y", n) for i in range(d))
    title = translated("I⊗Wᵀ: one block per token, all equal")
    return Finding(checks, Picture("matrix", title, mapping.abs().numpy(), labels))


def random_directions_are_nearly_orthogonal(low: int = 3, high: int = 1000) -> Finding:
    """Check exercise 12.8: the cosine of two random unit vectors has mean 0 and standard deviation 1/√D.

    >>> random_directions_are_nearly_orthogonal().holds
    True
    """

    def cosines(d: int) -> Float[Tensor, " draws"]:
        a, b = (torch.nn.functional.normalize(normal(seed, 2000, d), dim=-1) for seed in (0, 1))
        return (a * b).sum(-1)

    checks = []
    for d in (low, high):
        spread = float(cosines(d).square().mean().sqrt())
        name = translated("D = {d}: spread of the cosine times √D", d=d)
        checks.append(equals(name, spread * math.sqrt(d), 1.0, 0.08))
    name = translated("D = {low}: largest |cosine|", low=low)
    checks.append(above(name, largest(cosines(low)), 0.9, counterexample=True))
    widths = [2**power for power in range(1, 10)]
    spreads = np.array([[float(cosines(d).square().mean().sqrt()) for d in widths]])
    title = translated("spread of the cosine of random vectors, by D")
    return Finding(tuple(checks), Picture("curves", title, spreads, ("cos",), tuple(f"D = {d}" for d in widths)))


def concatenation_is_a_sum(n: int = 5, d: int = 4, d_p: int = 3) -> Finding:
    """Check exercise 12.9: a linear map of concatenated positions adds two linear maps, [x; r]W = xW_x + rW_r.

    >>> concatenation_is_a_sum().holds
    True
    """
    x, r, w = normal(0, n, d), normal(1, n, d_p), normal(2, d + d_p, d)
    difference = torch.cat([x, r], -1) @ w - (x @ w[:d] + r @ w[d:])
    wide = normal(3, n, d)
    shared = torch.cat([x, wide], -1) @ torch.cat([w[:d], w[:d]]) - (x + wide) @ w[:d]
    return Finding(
        (
            below("[x; r]W - (xW_x + rW_r)", largest(difference), 1e-12),
            below("W_x = W_r: [x; r]W - (x + r)W_x", largest(shared), 1e-12),
        )
    )


def bag_of_words_counts(text: list[str] = TEXT) -> Finding:
    """Check exercise 12.11: Σ_n ln p(x_n) is largest for the relative frequencies f.

    Any other p costs KL(f‖p) more per word.

    >>> bag_of_words_counts().holds
    True
    """
    frequencies = np.array(list(Counter(text).values())) / len(text)
    best = -(frequencies * np.log(frequencies)).sum()
    others = np.random.default_rng(0).dirichlet(np.ones(len(frequencies)), 200)
    least = min(-(frequencies * np.log(p)).sum() for p in others)
    p = others[0]
    gap = -(frequencies * np.log(p)).sum() - best - (frequencies * np.log(frequencies / p)).sum()
    return Finding(
        (
            above("least loss of 200 other tables - that of the frequencies", least - best, 0.0),
            equals("loss - best loss - KL", gap, 0.0),
        )
    )


def tables_explode(vocab: int = 10, length: int = 5) -> Finding:
    """Check exercise 12.12: a table of p(x_n | x_1..x_{n-1}) has V^{n-1} rows of V - 1 free numbers (V^n - V^{n-1}).

    >>> tables_explode().holds
    True
    """
    free = [np.zeros((vocab,) * (n - 1)).size * (vocab - 1) for n in range(1, length + 1)]
    whole = translated("free numbers of all tables = V^N - 1")
    growth = translated("each table: V times the last")
    checks = (equals(whole, sum(free), vocab**length - 1), equals(growth, free[-1] / free[-2], vocab))
    title = translated("log₁₀ of the free numbers of table n, V = {vocab}", vocab=vocab)
    return Finding(checks, Picture("curves", title, np.log10([free]), ("log₁₀",), numbered("n = ", length)))


def n_gram_from_counts(text: list[str] = TEXT) -> Finding:
    """Check exercise 12.13: the maximum-likelihood bigram is the pair count divided by the count of the first word.

    >>> n_gram_from_counts().holds
    True
    """
    words = sorted(set(text))
    pairs, firsts = Counter(pairwise(text)), Counter(text[:-1])
    table = np.array([[pairs[a, b] / max(firsts[a], 1) for b in words] for a in words])
    chosen = -sum(n * math.log(pairs[a, b] / firsts[a]) for (a, b), n in pairs.items())
    smoothed = 0.9 * table + 0.1 / len(words)
    other = -sum(n * math.log(smoothed[words.index(a), words.index(b)]) for (a, b), n in pairs.items())
    rows = max(abs(row.sum() - 1.0) for row, word in zip(table, words, strict=True) if firsts[word])
    checks = (
        below("loss of the counts - of a smoothed table", chosen - other, 0.0),
        equals("rows sum to 1: largest error", rows, 0.0),
    )
    title = translated("p(next word | word) from counts: one row per word")
    return Finding(checks, Picture("matrix", title, table, tuple(words), tuple(words)))


def recurrent_inference(length: int = 12) -> Finding:
    """Check exercise 12.14: h_t = tanh(W x_t + U h_{t-1}) is equal if computed token by token and at once.

    The state that is passed from step to step has a fixed size.

    >>> recurrent_inference().holds
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.RNN(3, 4, batch_first=True).double().requires_grad_(False)
    x = normal(0, 1, length, 3)
    state, outputs = torch.zeros(1, 1, 4, dtype=torch.float64), []
    for t in range(length):
        output, state = network(x[:, t : t + 1], state)
        outputs.append(output)
    difference = float((torch.cat(outputs, 1) - network(x)[0]).abs().max())
    return Finding(
        (
            equals("step by step - at once", difference, 0.0),
            equals("numbers kept between steps", state.numel(), 4),
        )
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


def greedy_is_not_best() -> Finding:
    """Check exercise 12.15: the text with the best first token (通…, .04) is not the best text (情報, .06).

    >>> greedy_is_not_best().holds
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
    checks = (
        equals("probability of the greedy text", found[1][0], 0.04),
        equals("probability with beam 2", found[2][0], 0.06),
        equals("beam 2 finds 情報", found[2][1] == "情報", 1),
    )
    after = {first: AFTER_JO if first == "情" else EVEN for first in FIRST}
    table = np.array([[p * after[first].get(second, 0.0) for second in EVEN] for first, p in FIRST.items()])
    title = translated("p(first, second): first characters are rows, second characters are columns")
    return Finding(checks, Picture("matrix", title, table, tuple(FIRST), tuple(EVEN)))


def bert_large_counts() -> Finding:
    """Check exercise 12.16: the parameters of embeddings and blocks of BERT large.

    The sizes are V = 30,000, L = 512, 24 layers, 16 heads, d = 1024 and d_ff = 4096.

    >>> bert_large_counts().holds
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
    return Finding(
        (
            equals("matrices", matrices, formula),
            equals("matrices, millions", matrices / 1e6, 333.2, 0.05),
            equals("with biases and norms, millions", every / 1e6, 333.6, 0.05),
            below("340 million less all parameters, in percent", 100 * (1 - every / 340e6), 2.0),
            above("340 million less all parameters, millions", 340 - every / 1e6, 6.0, counterexample=True),
        )
    )


CLAIMS = {
    "C25": weights_are_at_most_one,
    "C28": orthogonal_inputs,
    "C29": one_large_matrix,
    "C30": random_directions_are_nearly_orthogonal,
    "C31": concatenation_is_a_sum,
    "C32": bag_of_words_counts,
    "C33": tables_explode,
    "C34": n_gram_from_counts,
    "C35": recurrent_inference,
    "C36": greedy_is_not_best,
    "C37": bert_large_counts,
}
