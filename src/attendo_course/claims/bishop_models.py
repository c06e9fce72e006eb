"""Bishop & Bishop 2024, chapter 12: the exercises on models of text (12.11 to 12.16), each a few lines."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.models import ModelConfig, build_model
from attendo_course.claims.claim import Check, above, below, equals

TEXT = ["the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"]


def bag_of_words_counts(text: list[str] = TEXT) -> tuple[Check, ...]:
    """12.11: Σ_n ln p(x_n) is largest where p is the relative frequency; any other p costs KL(f‖p) more a word.

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
        above(
            Localized(
                "12.11 least loss of 200 other tables - that of the frequencies",
                "12.11 他の 200 の表の最小損失と頻度の損失の差",
            ),
            least - best,
            0.0,
        ),
        equals(Localized("12.11 loss - best loss - KL", "12.11 損失 − 最良の損失 − KL"), gap, 0.0),
    )


def tables_explode(vocab: int = 10, length: int = 5) -> tuple[Check, ...]:
    """12.12: a table of p(x_n | x_1..x_{n-1}) has V^{n-1} rows of V - 1 free numbers: V^n - V^{n-1}.

    >>> all(check.holds for check in tables_explode())
    True
    """
    free = [np.zeros((vocab,) * (n - 1)).size * (vocab - 1) for n in range(1, length + 1)]
    whole = Localized("12.12 free numbers of all tables = V^N - 1", "12.12 すべての表の自由な数 = V^N − 1")
    growth = Localized("12.12 each table: V times the last", "12.12 各表は前の V 倍")
    return (equals(whole, sum(free), vocab**length - 1), equals(growth, free[-1] / free[-2], vocab))


def n_gram_from_counts(text: list[str] = TEXT) -> tuple[Check, ...]:
    """12.13: the maximum-likelihood bigram is the count of pairs over the count of their first words.

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
        below(
            Localized(
                "12.13 loss of the counts - of a smoothed table", "12.13 度数の表と平滑化した表の損失の差"
            ),
            chosen - other,
            0.0,
        ),
        equals(Localized("12.13 rows sum to 1: largest error", "12.13 行の和と 1 の差の最大"), rows, 0.0),
    )


def recurrent_inference(length: int = 12) -> tuple[Check, ...]:
    """12.14: h_t = tanh(W x_t + U h_{t-1}): token by token equals all at once, with a state of one size.

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
        equals(Localized("12.14 step by step - at once", "12.14 一歩ずつと一括の差"), difference, 0.0),
        equals(Localized("12.14 numbers kept between steps", "12.14 歩の間に保つ数"), state.numel(), 4),
    )


CHARACTERS = ("<bos>", "<eos>", "情", "報", "通", "信", "力", "情勢", "知", "行", "話", "学", "貨", "例")
FIRST = {"通": 0.4, "情": 0.3, "力": 0.1, "知": 0.1, "行": 0.1}
EVEN = dict.fromkeys(("信", "力", "情勢", "知", "行", "話", "学", "貨", "例", "報"), 0.1)
"""What follows most first characters: ten that are alike."""
AFTER_JO = {"報": 0.2} | dict.fromkeys(("力", "情勢", "知", "行", "話", "学", "貨", "例"), 0.1)


@dataclass
class Prefixes:
    """The rows of a search on a table: each is what was fed so far."""

    rows: list[tuple[int, ...]]

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """New row i continues old row rows[i]."""
        self.rows = [self.rows[row] for row in rows.tolist()]

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """As `reorder`: there is one source."""
        self.reorder(rows)


def next_log_probs(token_ids: Int[Tensor, "rows 1"], cache: Prefixes) -> Float[Tensor, "rows vocab"]:
    """The table of two-character words: FIRST, then EVEN or AFTER_JO, then the end.

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
    """12.15: the most probable token first can miss the most probable text: 通… .04 against 情報 .06.

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
        equals(
            Localized("12.15 probability of the greedy text", "12.15 貪欲法の文の確率"), found[1][0], 0.04
        ),
        equals(Localized("12.15 probability with beam 2", "12.15 ビーム幅 2 の文の確率"), found[2][0], 0.06),
        equals(
            Localized("12.15 beam 2 finds 情報", "12.15 ビーム幅 2 は「情報」を見つける"),
            found[2][1] == "情報",
            1,
        ),
    )


def bert_large_counts() -> tuple[Check, ...]:
    """12.16: V = 30,000, L = 512, 24 layers, 16 heads, d = 1024, d_ff = 4096: embeddings and blocks.

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
        equals(Localized("12.16 matrices", "12.16 行列"), matrices, formula),
        equals(Localized("12.16 matrices, millions", "12.16 行列（百万）"), matrices / 1e6, 333.2, 0.05),
        equals(
            Localized("12.16 with biases and norms, millions", "12.16 バイアスと正規化を含む（百万）"),
            every / 1e6,
            333.6,
            0.05,
        ),
    )
