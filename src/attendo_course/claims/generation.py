"""All positions at once where the inputs are known, one after the other where they are not (C15, C23)."""

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

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig
from attendo.nn.cache import DecoderCache
from attendo.nn.masks import Mask
from attendo_course.claims.built import built, changed, unrolled
from attendo_course.claims.claim import Claim, Finding, above, below, equals, shown
from attendo_course.claims.reach import longest_chain
from attendo_course.claims.samples import largest, normal, numbered, random_attention

if TYPE_CHECKING:
    from attendo.decoding.protocols import Hypothesis

Layer = Callable[[Float[Tensor, "1 q_len d"], Float[Tensor, "1 k_len d"]], Float[Tensor, "1 q_len d"]]
"""From some of the tokens and all of them to what becomes of the former."""

Shift = Callable[[Float[Tensor, "batch len d"]], Float[Tensor, "batch len d"]]

BEGIN, END, VOCAB = 0, 1, 12


def shift_right(x: Float[Tensor, "batch len d"]) -> Float[Tensor, "batch len d"]:
    """A vector of zeros comes first and the last vector goes: place t then holds what stood at t - 1.

    Kikuta 2025, exercise 3.7; Vaswani et al. 2017, section 3.1 (the decoder's input is offset by one).

    >>> shift_right(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten()
    tensor([0., 1., 2.])
    """
    return F.pad(x, (0, 0, 1, 0))[:, :-1]


def _language_model() -> DecoderLM:
    config = ModelConfig(
        architecture="decoder",
        vocab_size=VOCAB,
        d_model=16,
        d_ff=32,
        n_heads=2,
        n_encoder_layers=0,
        n_decoder_layers=2,
        dropout=0.0,
        max_len=32,
    )
    return built(lambda: DecoderLM(config)).requires_grad_(False)


def _translator() -> EncoderDecoder:
    config = ModelConfig(
        vocab_size=VOCAB,
        d_model=16,
        d_ff=32,
        n_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=2,
        dropout=0.0,
        max_len=32,
        pad_id=BEGIN,  # its embedding is 0, as what shift_right puts first
        tie="none",
    )
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
    """A model's step that counts its calls."""

    def __init__(self, model: DecoderLM | EncoderDecoder):
        self.model, self.calls = model, 0

    def __call__(self, token_ids: Tensor, cache: DecoderCache) -> Tensor:
        self.calls += 1
        return self.model.step(token_ids, cache)[:, -1]


def positions_do_not_wait(layer: Layer | None = None, n: int = 64, d: int = 32) -> Finding:
    """One call for all positions gives what n calls for one position each give. Slides on the Transformer.

    layer: self-attention unless given. Times are reported and decide nothing.

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
    (found,) = beam_search(
        step, model.start(1, 16), [16], DecodingConfig(beam=1), SpecialIds(bos_id=BEGIN, eos_id=END)
    )
    generated = len(found[0].token_log_probs)
    stack = Localized(
        "causal stack: |all at once - each prefix by itself|", "因果スタック：|一括 - 接頭辞ごと|"
    )
    steps = Localized("layer: steps in a row, 2n more than n", "この層：逐次ステップ数、2n と n の差")
    recurrent = Localized("RNN: steps in a row, 2n / n", "RNN：逐次ステップ数の比 2n / n")
    waits = Localized("generating: calls per token", "生成時：1 トークンあたりの呼び出し回数")
    once = Localized(f"one call, {n} positions: ms", f"一括 {n} 位置：ミリ秒")
    calls = Localized(f"{n} calls, one position: ms", f"1 位置ずつ {n} 回：ミリ秒")
    loop = Localized(f"RNN, {n} steps: ms", f"RNN {n} ステップ：ミリ秒")
    with torch.no_grad():
        times = (
            shown(once, _milliseconds(lambda: layer(x, x))),
            shown(calls, _milliseconds(lambda: [layer(x[:, t : t + 1], x) for t in range(n)])),
            shown(loop, _milliseconds(lambda: unrolled(cell, x[0]))),
        )
    checks = (
        below(Localized("|one call - n calls|", "|一括 - n 回|"), largest(together - alone), 1e-12),
        below(stack, largest(at_once[0] - prefixes), 1e-12),
        equals(steps, chains[0][-1] - chains[0][-2], 0, 0.0),
        equals(recurrent, chains[1][-1] / chains[1][-2], 2.0, 0.1),
        equals(waits, step.calls / generated, 1.0, 0.0, counterexample=True),
        *times,
    )
    title = Localized(
        "longest chain of operations by the number of positions", "位置の数に対する、最長の逐次計算の長さ"
    )
    labels = tuple(f"n = {m}" for m in lengths)
    return Finding(checks, Picture("curves", title, np.array(chains, dtype=float), ("layer", "RNN"), labels))


def _greedy_by_recomputing(model: EncoderDecoder, src: Tensor, limit: int) -> list[int]:
    """The most probable token again and again, the whole text computed anew each time."""
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
    """The log-probability of a text that is given as targets."""
    from attendo.training.losses import token_losses

    text = torch.tensor([BEGIN, *written])
    return -float(token_losses(model(src, text[None, :-1])[0], text[1:]).sum())


def targets_or_prediction(shift: Shift = shift_right, n: int = 9, limit: int = 12) -> Finding:
    """Targets given: all logits at once, from targets one place to the right; none: predicted, on a cache.

    Kikuta 2025, exercise 3.7. shift: what is done to the embedded targets `[batch, len, d_model]`.

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
    moves = torch.stack([logits(shift, changed(tgt, s, 3, VOCAB))[0] - taught[0] for s in range(n)]).norm(
        dim=-1
    )
    leaks = [
        logits(lambda x: x, changed(tgt, t, 3, VOCAB))[0, t] - logits(lambda x: x, tgt)[0, t]
        for t in range(n)
    ]
    greedy, beam = _search(model, src, 1, limit), _search(model, src, 4, limit)
    written = [*greedy.token_ids, *([END] if greedy.finished else [])]
    anew = _greedy_by_recomputing(model, src, limit)
    log_prob = _taught_log_prob(model, src, written)
    zeros = Localized("shift: largest entry at place 1", "シフト：先頭の成分の最大")
    rest = Localized("shift: |x'[2:] - x[:n-1]|", "シフト：|x'[2:] - x[:n-1]|")
    begin = Localized(
        "logits: |shifted embeddings - begin id in front|", "ロジット：|埋め込みのシフト - 開始 ID を前置|"
    )
    cached = Localized(
        "targets given: |all at once - step by step on a cache|", "目標あり：|一括 - キャッシュで逐次|"
    )
    future = Localized("logits 1..t, another target t: change", "目標 t を変えたときのロジット 1..t の変化")
    leak = Localized(
        "no shift: logits t, another target t: change", "シフトなし：目標 t を変えたときのロジット t の変化"
    )
    same = Localized(
        "predicted: tokens that differ, beam 1 and recomputed", "予測：ビーム幅 1 と再計算で異なるトークン数"
    )
    taught_again = Localized(
        "its log-probability: |cached - as targets|", "その対数確率：|キャッシュ - 目標として|"
    )
    wider = Localized("log-probability of the text: beam 4 - beam 1", "見つけた文の対数確率：ビーム幅 4 - 1")
    checks = (
        equals(zeros, largest(shift(embedded)[:, 0]), 0.0, 0.0),
        equals(rest, largest(shift(embedded)[:, 1:] - embedded[:, :-1]), 0.0, 0.0),
        below(begin, largest(taught - model(src, fed)), 1e-12),
        below(cached, largest(taught - _step_by_step(model, src, fed)), 1e-12),
        equals(future, largest(moves.tril()), 0.0, 0.0),
        above(leak, min(map(largest, leaks)), 0.1, counterexample=True),
        equals(same, _differing(written, anew), 0, 0.0),
        above(Localized("tokens of that text", "その文のトークン数"), len(set(written)), 3.0),
        below(taught_again, abs(log_prob - greedy.log_prob), 1e-10),
        above(wider, beam.log_prob - greedy.log_prob, 0.0),
    )
    title = Localized(
        "change of logits t (row) as target s (column) changes",
        "目標 s（列）を変えたときのロジット t（行）の変化",
    )
    return Finding(checks, Picture("matrix", title, moves.T.numpy(), numbered("t", n), numbered("s", n)))


def _differing(first: list[int], second: list[int]) -> int:
    return sum(a != b for a, b in zip_longest(first, second))


C15 = Claim(
    id="C15",
    source="Slides on the Transformer",
    statement=Localized(
        "Self-attention works on all positions in parallel.",
        "セルフアテンションは全位置を並列に計算する。",
    ),
    derivation=Localized(
        "Row t of softmax(QKᵀ/√d)V needs q_t and all keys and values, but no other row of the result.\n"
        "So n calls with one query each and one call with n queries compute the same numbers; the single call is\n"
        "one matrix product, of which every core or every lane of a chip can take a part.\n"
        "Norms and feed-forward nets look at one position each: a whole stack keeps this property.\n"
        "Under the causal mask row t sees rows 1 to t only, so one pass over the text gives what each prefix by\n"
        "itself would: training on n tokens is one call.\n"
        "The longest chain of operations does not grow with n. An RNN's does: h_t waits for h_(t-1).\n"
        "When a text is generated its tokens are not known in advance: then there is one call for each.",
        "softmax(QKᵀ/√d)V の第 t 行に必要なのは q_t と全部のキー・バリューであり、結果の他の行は要らない。\n"
        "よって、クエリ 1 個ずつの n 回の呼び出しと、クエリ n 個の 1 回の呼び出しは同じ数を計算する。後者は一つの\n"
        "行列積であり、どのコアや演算器にも一部を分担させられる。\n"
        "正規化と順伝播層は 1 位置ずつ見るので、層を重ねてもこの性質は保たれる。\n"
        "因果マスクの下で第 t 行は 1〜t 行だけを見る。したがって文全体の 1 回の計算が、接頭辞ごとの計算と同じ\n"
        "結果を与え、n トークンの学習は 1 回の呼び出しで済む。\n"
        "最も長い演算の連鎖は n によらない。RNN では h_t が h_(t-1) を待つので n に比例する。\n"
        "文を生成するときは、トークンが前もってわからないので、1 トークンごとに 1 回の呼び出しになる。",
    ),
    condition=Localized(
        "The inputs of all positions must be known, as in training and in the encoder; generating a text takes a call"
        " for each token.",
        "学習時やエンコーダのように、全位置の入力が既知であることが条件である。文の生成では、トークンごとに 1 回の"
        "呼び出しが要る。",
    ),
    compute=positions_do_not_wait,
)

C23 = Claim(
    id="C23",
    source="Kikuta 2025, exercise 3.7",
    statement=Localized(
        "One model has two modes: with targets it gives the logits of all positions at once, from targets shifted to"
        " the right behind a vector of zeros; without, it predicts token by token, keeping keys and values.",
        "一つのモデルに二つの動作がある。目標文があれば、零ベクトルを先頭に置いて右に一つずらした目標文から、全位置の"
        "ロジットを一度に出す。なければ、キーとバリューを保存しながら 1 トークンずつ予測する。",
    ),
    derivation=Localized(
        "Logits at place t are to predict target t from targets 1 to t - 1. Shift: x'_1 = 0 and x'_t = x_(t-1).\n"
        "With the causal mask place t then reads x_1, ..., x_(t-1) only. So logits 1 to t stay as they are when"
        " target t changes, and all n can be trained in one call.\n"
        "A vector of zeros is the embedding of a begin id whose row is 0: to shift vectors or to put that id in front"
        " of the ids is the same. Positions are added afterwards.\n"
        "Without targets: begin, take a token from the last logits, feed it, repeat. What place t adds to keys and"
        " values never changes later, so a cache of them replaces the recomputation: O(t) scores a step, not O(t²).\n"
        "Along the text so found, the cached logits are those that teacher forcing gives: same probability.\n"
        "Beam 1 is that greedy loop; a wider beam keeps the best few beginnings instead of one.",
        "位置 t のロジットは、目標 1〜t - 1 から目標 t を予測する。右シフトは x'_1 = 0、x'_t = x_(t-1) である。\n"
        "因果マスクがあれば位置 t は x_1, …, x_(t-1) だけを読む。目標 t を変えてもロジット 1〜t は変わらないので、"
        "n 個すべてを 1 回の呼び出しで学習できる。\n"
        "零ベクトルは、行が 0 である開始 ID の埋め込みに等しい。ベクトルをずらすことと、その ID を先頭に置くことは同じ"
        "である。位置の情報はその後で足す。\n"
        "目標がなければ、開始から最後のロジットでトークンを選び、それを入力することを繰り返す。位置 t のキーとバリュー"
        "は後で変わらないので、保存すれば再計算が要らない。1 ステップのスコアは O(t²) 個でなく O(t) 個で済む。\n"
        "見つけた文に沿ったキャッシュのロジットは、教師強制のロジットと一致し、文の確率も同じである。\n"
        "ビーム幅 1 はこの貪欲な繰り返しであり、幅を広げると、最良のプレフィックスを一つでなく数個残す。",
    ),
    condition=Localized(
        "All at once works only with the shift and the causal mask: without the shift a place reads the very target"
        " that it is to predict.",
        "一度に計算できるのは、右シフトと因果マスクがある場合に限る。シフトしなければ、予測すべき目標そのものを"
        "その位置が読んでしまう。",
    ),
    compute=targets_or_prediction,
)
