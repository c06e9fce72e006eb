"""What attention computes: mixtures, probabilities, a sum over heads, exact zeros (C05, C06, C08, C19)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inspecting.residual_stream import head_contributions, head_matrices
from attendo.nn.attention import Attention, attention, attention_scores, attention_weights, masked_softmax
from attendo.nn.masks import causal
from attendo_course.claims.claim import Claim, Finding, above, below, equals
from attendo_course.claims.samples import largest, normal, numbered, random_attention

Softmax = Callable[[Float[Tensor, "*batch q_len k_len"]], Float[Tensor, "*batch q_len k_len"]]
"""From scores to weights."""


def unscaled_attention(
    query: Float[Tensor, "n d_key"], key: Float[Tensor, "n d_key"], value: Float[Tensor, "n d_value"]
) -> Float[Tensor, "n d_value"]:
    """softmax(QKᵀ)V, without 1/√d. Kikuta 2025, exercise 3.4.

    >>> unscaled_attention(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 3))
    tensor([[1., 1., 1.]])
    """
    return attention(query, key, value, scale=1.0)


def rows_mix_values(
    mix: Callable[[Tensor, Tensor, Tensor], Tensor] = unscaled_attention,
    n: int = 5,
    d_value: int = 3,
    seed: int = 0,
) -> Finding:
    """Row k of softmax(QKᵀ)V is Σ_t a_kt v_t, softmax row by row, no 1/√d. Kikuta 2025, exercise 3.4.

    mix: from query `[n, 4]`, key `[n, 4]`, value `[n, d_value]` to `[n, d_value]`.

    >>> rows_mix_values().holds
    True
    >>> rows_mix_values(attention).holds
    False
    """
    (query, key), value = normal(seed, 2, n, 4), normal(seed + 1, n, d_value)
    weights, mixed = attention_weights(query, key, scale=1.0), mix(query, key, value)
    loops = torch.zeros_like(mixed)
    for k in range(n):
        for t in range(n):
            loops[k] += weights[k, t] * value[t]
    summed = torch.einsum("kt,td->kd", weights, value)
    by_column = attention_weights(key, query, scale=1.0).T
    rows, columns = Localized("A: rows", "A の行数"), Localized("A: columns", "A の列数")
    width = Localized("softmax(QKᵀ)V: columns = d_value", "softmax(QKᵀ)V の列数 = d_value")
    loop = Localized("largest |matrix product - loop|", "|行列積 - ループ| の最大")
    einsum = Localized("largest |matrix product - einsum|", "|行列積 - einsum| の最大")
    unit = Localized("largest |row sum of A - 1|", "|A の行の和 - 1| の最大")
    column = Localized("softmax by column: largest |row sum - 1|", "列ごとの softmax：|行の和 - 1| の最大")
    outside = Localized("how far outputs leave [min v, max v]", "出力が [min v, max v] からはみ出す量")
    beyond = torch.maximum(mixed - value.amax(0), value.amin(0) - mixed).amax().clamp(min=0.0).item()
    checks = (
        equals(rows, weights.shape[0], n, 0.0),
        equals(columns, weights.shape[1], n, 0.0),
        equals(width, mixed.shape[1], d_value, 0.0),
        below(loop, largest(mixed - loops), 1e-12),
        below(einsum, largest(mixed - summed), 1e-12),
        below(unit, largest(weights.sum(-1) - 1.0), 1e-12),
        below(outside, beyond, 1e-12),
        above(column, largest(by_column.sum(-1) - 1.0), 0.1, counterexample=True),
    )
    title = Localized("A = softmax(QKᵀ): row k mixes the values", "A = softmax(QKᵀ)：行 k がバリューを混ぜる")
    return Finding(checks, Picture("matrix", title, weights.numpy(), numbered("q", n), numbered("v", n)))


def weights_are_probabilities(
    softmax: Softmax = masked_softmax, n: int = 8, d_model: int = 16, draws: int = 100, seed: int = 0
) -> Finding:
    """a_nm = exp(x_nᵀx_m) / Σ_m' exp(x_nᵀx_m') > 0 and Σ_m a_nm = 1. Bishop & Bishop 2024, exercise 12.2.

    draws: random sets of n vectors from N(0, I), then the same with every vector stretched to the length 1000.

    >>> weights_are_probabilities().holds
    True
    >>> weights_are_probabilities(lambda scores: scores / scores.sum(-1, keepdim=True)).holds
    False
    """
    x = normal(seed, draws, n, d_model)
    long = 1000.0 * x / x.norm(dim=-1, keepdim=True)
    scores, far = attention_scores(x, x, scale=1.0), attention_scores(long, long, scale=1.0)
    weights, far_weights = softmax(scores), softmax(far)
    unshifted = far.exp() / far.exp().sum(-1, keepdim=True)
    unit = Localized("largest |Σ_m a_nm - 1|", "|Σ_m a_nm - 1| の最大")
    far_unit = Localized("length 1000: largest |Σ_m a_nm - 1|", "長さ 1000：|Σ_m a_nm - 1| の最大")
    nans = Localized("length 1000: NaNs", "長さ 1000：NaN の数")
    logs = Localized("length 1000: least log a_nm, finite", "長さ 1000：log a_nm の最小（有限）")
    naive = Localized(
        "length 1000, maximum not subtracted: NaNs", "長さ 1000、最大値を引かない場合の NaN の数"
    )
    underflow = Localized("length 1000: least a_nm, underflown", "長さ 1000：a_nm の最小（アンダーフロー）")
    checks = (
        below(unit, largest(weights.sum(-1) - 1.0), 1e-12),
        above(Localized("least a_nm", "a_nm の最小"), weights.min().item(), 0.0),
        below(far_unit, largest(far_weights.sum(-1) - 1.0), 1e-12),
        equals(nans, far_weights.isnan().sum().item(), 0.0, 0.0),
        above(logs, far.log_softmax(-1).min().item(), -2e6 - 1.0),
        above(naive, unshifted.isnan().sum().item(), 0.0, counterexample=True),
        equals(underflow, far_weights.min().item(), 0.0, 0.0, counterexample=True),
    )
    title = Localized("weights a_nm of one random set", "ある乱数の集合での重み a_nm")
    return Finding(checks, Picture("matrix", title, weights[0].numpy(), numbered("x", n), numbered("x", n)))


def heads_add_up(
    matrices: Callable[[Attention], Float[Tensor, "heads d_out d_model"]] = head_matrices,
    n: int = 6,
    d_model: int = 16,
    n_heads: int = 4,
    value_dim: int | None = None,
    seed: int = 0,
) -> Finding:
    """Concat(H_1, ..., H_H) Wᵒ = Σ_h A_h X W^(h), W^(h) = W_hᵛ W_hᵒ of rank ≤ D_v. Bishop & Bishop 2024, ex. 12.5.

    matrices: from a layer to its W^(h), as column-vector matrices. value_dim: D_v, d_model / n_heads if None.

    >>> heads_add_up().holds
    True
    >>> heads_add_up(lambda layer: head_matrices(layer).flip(0)).holds
    False
    """
    layer = random_attention(seed, d_model, n_heads, d_model**-0.5, value_dim)
    x = normal(seed + 1, 1, n, d_model)
    query = layer.q_proj(x).unflatten(-1, (n_heads, layer.head_dim)).transpose(1, 2)
    key, value = layer.keys_values(x)
    weights, w = attention_weights(query, key)[0], matrices(layer)  # [heads, n, n], [heads, d_model, d_model]
    parts = weights @ x @ w.mT
    split = head_contributions((weights @ value[0])[None], layer.out_proj.get_parameter("weight"))[0]
    ranks = torch.linalg.matrix_rank(w)
    rank = min(layer.value_dim, d_model)
    total = Localized("largest |Concat·Wᵒ - Σ_h A_h X W^(h)|", "|Concat·Wᵒ - Σ_h A_h X W^(h)| の最大")
    each = Localized(
        "each head: largest |head_h W_hᵒ - A_h X W^(h)|", "ヘッドごと：|head_h W_hᵒ - A_h X W^(h)| の最大"
    )
    low = Localized("least rank of a W^(h): D_v", "W^(h) のランクの最小：D_v")
    high = Localized("largest rank of a W^(h): D_v", "W^(h) のランクの最大：D_v")
    checks = (
        below(total, largest(layer(x, x)[0] - parts.sum(0)), 1e-12),
        below(each, largest(split - parts), 1e-12),
        equals(low, ranks.min().item(), rank, 0.0),
        equals(high, ranks.max().item(), rank, 0.0),
    )
    title = Localized("singular values of W^(h): D_v are not 0", "W^(h) の特異値：0 でないものは D_v 個")
    values = torch.linalg.svdvals(w).numpy()
    return Finding(checks, Picture("matrix", title, values, numbered("h", n_heads), numbered("σ", d_model)))


def masked_weights_are_zero(
    softmax: Callable[[Tensor, Tensor], Tensor] = masked_softmax, n: int = 6, seed: int = 0
) -> Finding:
    """a_qk = 0 exactly where the mask forbids, and nothing that is masked has any effect. NYU 2020, week 12-3.

    softmax: from scores `[n, n]` and a boolean mask (True = may attend) to weights.

    >>> masked_weights_are_zero().holds
    True
    >>> masked_weights_are_zero(lambda scores, mask: (scores - 9.0 * ~mask).softmax(-1)).holds
    False
    """
    scores, value, other = normal(seed, n, n), normal(seed + 1, n, 4), normal(seed + 2, n, 4)
    allowed = causal(n, n)
    weights, free = softmax(scores, allowed), masked_softmax(scores)
    half = n // 2
    changed = torch.cat([value[:half], other[half:]])
    moved_scores = torch.where(allowed, scores, scores + 100.0)
    effect = torch.maximum(
        (weights @ changed - weights @ value)[:half].abs().max(),
        (softmax(moved_scores, allowed) - weights).abs().max(),
    )
    far = masked_softmax(torch.tensor([[1000.0, 0.0]], dtype=torch.float64))
    later = Localized("largest weight of a later token", "後のトークンの重みの最大")
    unit = Localized("largest |row sum - 1|", "|行の和 - 1| の最大")
    least = Localized("least weight of an allowed token", "許されたトークンの重みの最小")
    nothing = Localized("effect of later values and scores", "後のバリューとスコアを変えたときの影響")
    unmasked = Localized("no mask: least weight of a later token", "マスクなし：後のトークンの重みの最小")
    underflow = Localized(
        "no mask, scores 1000 and 0: second weight", "マスクなし、スコア 1000 と 0：第 2 の重み"
    )
    checks = (
        equals(later, weights[~allowed].max().item(), 0.0, 0.0),
        below(unit, largest(weights.sum(-1) - 1.0), 1e-12),
        above(least, weights[allowed].min().item(), 0.0),
        equals(nothing, effect.item(), 0.0, 0.0),
        above(unmasked, free[~allowed].min().item(), 0.0, counterexample=True),
        equals(underflow, far[0, 1].item(), 0.0, 0.0, counterexample=True),
    )
    title = Localized("A under the causal mask", "因果マスクの下での A")
    return Finding(checks, Picture("matrix", title, weights.numpy(), numbered("q", n), numbered("k", n)))


CLAIMS = (
    Claim(
        id="C05",
        source="Kikuta 2025, exercise 3.4",
        statement=Localized(
            "Row k of softmax(QKᵀ)V is the weighted sum of the values, Σ_t a_kt v_t, with the weights of row k.",
            "softmax(QKᵀ)V の第 k 行は、第 k 行の重みで混ぜたバリュー Σ_t a_kt v_t である。",
        ),
        derivation=Localized(
            "Q and K have n rows, so QKᵀ is n × n, and its entry (k, t) is q_k·k_t: query k against key t.\n"
            "The softmax goes along each row, over the keys: a_kt = exp(q_k·k_t) / Σ_t' exp(q_k·k_t').\n"
            "A is n × n and V is n × d_value, so AV is n × d_value.\n"
            "By the rule of the matrix product (AV)_kj = Σ_t a_kt V_tj; for all j at once, row k is Σ_t a_kt v_t.\n"
            "The weights are positive and sum to 1 (C06): each output lies between the values, entry by entry.\n"
            "This exercise has no 1/√d; with it the weights are others, and the rest of the argument is the same.",
            "Q と K は n 行なので QKᵀ は n × n で、成分 (k, t) はクエリ k とキー t の内積 q_k·k_t である。\n"
            "softmax は行ごと、つまりキーについてとる：a_kt = exp(q_k·k_t) / Σ_t' exp(q_k·k_t')。\n"
            "A は n × n、V は n × d_value なので、AV は n × d_value である。\n"
            "行列積の定義より (AV)_kj = Σ_t a_kt V_tj。全 j をまとめると第 k 行は Σ_t a_kt v_t である。\n"
            "重みは正で和が 1（C06）なので、出力の各成分はバリューの成分の最小と最大の間にある。\n"
            "この問題に 1/√d はない。あれば重みの値は変わるが、議論は同じである。",
        ),
        condition=Localized(
            "The softmax runs along the rows, over the keys; taken down the columns, a row does not sum to 1.",
            "softmax は行ごと（キーの方向）に計算する。列ごとに計算すると、一つのクエリの重みの和は 1 でない。",
        ),
        compute=rows_mix_values,
    ),
    Claim(
        id="C06",
        source="Bishop & Bishop 2024, exercise 12.2",
        statement=Localized(
            "The attention weights of a query are positive and sum to 1.",
            "一つのクエリのアテンションの重みは正であり、和は 1 である。",
        ),
        derivation=Localized(
            "a_nm = exp(x_nᵀx_m) / Z_n with Z_n = Σ_m' exp(x_nᵀx_m').\n"
            "exp is positive for every real number, so is Z_n as a sum of such, and so is the quotient.\n"
            "Σ_m a_nm = (Σ_m exp(x_nᵀx_m)) / Z_n = Z_n / Z_n = 1. It follows that a_nm ≤ 1.\n"
            "Subtracting the row's maximum c from every score changes nothing: e^(-c) cancels in the quotient.\n"
            "In floating point it matters: exp(1000²) is infinite and ∞/∞ is NaN, while exp(s - c) ≤ 1 is safe.\n"
            "But exp(s - c) is rounded to 0 where s - c < -745 or so: too small for a 64-bit number.",
            "a_nm = exp(x_nᵀx_m) / Z_n、Z_n = Σ_m' exp(x_nᵀx_m') とする。\n"
            "exp は任意の実数に対して正である。その和 Z_n も正であり、商も正である。\n"
            "Σ_m a_nm = (Σ_m exp(x_nᵀx_m)) / Z_n = Z_n / Z_n = 1。したがって a_nm ≤ 1 でもある。\n"
            "行の最大値 c を各スコアから引いても、商の中で e^(-c) が約分されるので値は変わらない。\n"
            "浮動小数点では差が出る。exp(1000²) は無限大で ∞/∞ は NaN だが、exp(s - c) ≤ 1 なら安全である。\n"
            "ただし s - c がおよそ -745 を下回ると、64 ビットでは表せないので exp(s - c) は 0 に丸められる。",
        ),
        condition=Localized(
            "In floating point, a weight whose score lies far below the largest underflows to exactly 0.",
            "浮動小数点では、スコアが最大値よりはるかに小さい重みはアンダーフローして 0 になる。",
        ),
        compute=weights_are_probabilities,
    ),
    Claim(
        id="C08",
        source="Bishop & Bishop 2024, exercise 12.5",
        statement=Localized(
            "Multi-head attention, heads side by side times Wᵒ, is a sum over heads:"
            " Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_hᵛ W_hᵒ, a matrix of rank D_v at most.",
            "ヘッドを横に並べて Wᵒ を掛けるマルチヘッドアテンションは、ヘッドについての和"
            " Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) に等しい。W^(h) = W_hᵛ W_hᵒ のランクは D_v 以下である。",
        ),
        derivation=Localized(
            "Head h gives H_h = A_h V_h with A_h = softmax(Q_h K_hᵀ/√D_k) and V_h = X W_hᵛ.\n"
            "Cut Wᵒ into blocks of D_v rows, one for each head: W_1ᵒ over ... over W_Hᵒ.\n"
            "A row of blocks times a column of blocks: [H_1, ..., H_H] Wᵒ = Σ_h H_h W_hᵒ.\n"
            "Put H_h in: Σ_h A_h X W_hᵛ W_hᵒ = Σ_h A_h X W^(h).\n"
            "W_hᵛ is D × D_v and W_hᵒ is D_v × D, so W^(h) is D × D, but passes through D_v numbers:\n"
            "its rank is D_v at most, D/H as a rule. Drawn at random it is exactly that.\n"
            "So a head is a choice of tokens (A_h) and a low-rank map of what they hold (W^(h)), and heads just add.",
            "ヘッド h は H_h = A_h V_h、A_h = softmax(Q_h K_hᵀ/√D_k)、V_h = X W_hᵛ を与える。\n"
            "Wᵒ を D_v 行ずつ、ヘッドごとのブロック W_1ᵒ, …, W_Hᵒ に分ける。\n"
            "ブロックの行とブロックの列の積だから [H_1, …, H_H] Wᵒ = Σ_h H_h W_hᵒ。\n"
            "H_h を代入すると Σ_h A_h X W_hᵛ W_hᵒ = Σ_h A_h X W^(h) となる。\n"
            "W_hᵛ は D × D_v、W_hᵒ は D_v × D なので W^(h) は D × D だが、D_v 個の数を経由する。\n"
            "よってランクは D_v 以下（通常は D/H）であり、乱数の行列ではちょうど D_v になる。\n"
            "ヘッドとは、トークンの選択 A_h と、その内容の低ランクの写像 W^(h) であり、結果は単に足される。",
        ),
        compute=heads_add_up,
    ),
    Claim(
        id="C19",
        source="NYU Deep Learning 2020, week 12-3",
        statement=Localized(
            "With the causal mask a token attends to itself and to earlier ones only, and the attention matrix A"
            " shows which values were masked.",
            "因果マスクがあると、トークンは自分自身とそれより前だけを見る。どのバリューがマスクされたかは、"
            "アテンションの行列 A からわかる。",
        ),
        derivation=Localized(
            "The mask sets the scores of forbidden keys to -∞ before the softmax; exp(-∞) = 0.\n"
            "So a_qk is exactly 0 there, and the sum in the denominator has the allowed keys only:\n"
            "the row is the softmax over those, positive and with the sum 1.\n"
            "In Σ_k a_qk v_k later values get the factor 0, and later scores appear in no weight:\n"
            "output q is the same whatever comes behind it, which lets all positions train at once.\n"
            "A is then lower triangular. Conversely, exp(s) > 0 for every finite score: in exact arithmetic\n"
            "a zero can only come from a mask. In floating point it may be an underflow (C06).",
            "マスクは、softmax の前に、許されないキーのスコアを -∞ にする。exp(-∞) = 0 である。\n"
            "よってそこでは小さい数ではなく厳密に a_qk = 0 であり、分母の和には許されたキーだけが残る。\n"
            "つまり行は許されたキーについての softmax で、正であり和は 1 である。\n"
            "Σ_k a_qk v_k の中で後の値の係数は 0 であり、後のスコアはどの重みにも現れない。\n"
            "出力 q はその後に何が来ても同じで、全位置を同時に学習できるのはこのためである。\n"
            "このとき A は下三角行列である。逆に有限のスコアでは exp(s) > 0 なので、厳密な計算なら\n"
            "0 はマスクからしか生じない。浮動小数点ではアンダーフローの場合もある（C06）。",
        ),
        condition=Localized(
            "A mask must be passed (the lecture's code has none), and a zero in floating point may be an underflow.",
            "マスクを渡すことが前提である（講義のコードにはない）。浮動小数点の 0 はアンダーフローの場合もある。",
        ),
        compute=masked_weights_are_zero,
    ),
)
