"""What attention does not see: the order of tokens; and what is no rotation (C09, C12, C13)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.nn.attention import attention_weights, masked_softmax
from attendo.nn.masks import Mask
from attendo.nn.positions import sinusoidal_encoding
from attendo_course.claims.claim import Claim, Finding, above, below, equals
from attendo_course.claims.samples import largest, normal, numbered, random_attention

Layer = Callable[[Float[Tensor, "n d_model"]], Float[Tensor, "n d_out"]]
"""From one set of tokens to as many outputs."""

Lookup = Callable[[Float[Tensor, "n d_model"], Float[Tensor, "m d_model"]], Float[Tensor, "n d_out"]]
"""From tokens, and those they attend to, to outputs."""


def order_goes_through(layer: Layer | None = None, n: int = 6, seed: int = 0) -> Finding:
    """MHA(PX) = P·MHA(X) for every permutation P, without positions or a mask. Bishop & Bishop 2024, exercise 12.7.

    layer: from `[n, 8]` to `[n, d_out]`; two heads of self-attention with weights from N(0, 1) if None.

    >>> order_goes_through().holds
    True
    >>> order_goes_through(lambda x: x.cumsum(0)).holds
    False
    """
    heads = random_attention(seed, 8, 2, std=1.0)
    apply = layer or (lambda tokens: heads(tokens[None], tokens[None])[0])
    x, scores = normal(seed + 1, n, 8), normal(seed + 2, n, n)
    permutation = torch.arange(n).roll(2).flip(0)
    p = torch.eye(n, dtype=torch.float64)[permutation]
    places = sinusoidal_encoding(torch.arange(n), 8, dtype=torch.float64)
    past = Mask(causal=True)
    masked, masked_after = heads(x[None], x[None], past)[0], heads((p @ x)[None], (p @ x)[None], past)[0]
    weights = masked_softmax(scores)
    orthogonal = Localized("largest |PᵀP - I|", "|PᵀP - I| の最大")
    rows = Localized("largest |σ(PA) - Pσ(A)|", "|σ(PA) - Pσ(A)| の最大")
    columns = Localized("largest |σ(APᵀ) - σ(A)Pᵀ|", "|σ(APᵀ) - σ(A)Pᵀ| の最大")
    same = Localized("largest |MHA(PX) - P·MHA(X)|", "|MHA(PX) - P·MHA(X)| の最大")
    moved = Localized("not invariant: largest |MHA(PX) - MHA(X)|", "不変ではない：|MHA(PX) - MHA(X)| の最大")
    placed = Localized(
        "with positions E: |MHA(PX+E) - P·MHA(X+E)|", "位置符号化 E あり：|MHA(PX+E) - P·MHA(X+E)|"
    )
    behind = Localized("causal mask: |MHA(PX) - P·MHA(X)|", "因果マスクあり：|MHA(PX) - P·MHA(X)|")
    checks = (
        equals(orthogonal, largest(p.T @ p - torch.eye(n)), 0.0, 0.0),
        below(rows, largest(masked_softmax(p @ scores) - p @ weights), 1e-12),
        below(columns, largest(masked_softmax(scores @ p.T) - weights @ p.T), 1e-12),
        below(same, largest(apply(p @ x) - p @ apply(x)), 1e-12),
        above(moved, largest(apply(p @ x) - apply(x)), 1.0),
        above(placed, largest(apply(p @ x + places) - p @ apply(x + places)), 1.0, counterexample=True),
        above(behind, largest(masked_after - p @ masked), 1.0, counterexample=True),
    )
    before, after = attention_weights(x, x), attention_weights(p @ x, p @ x)
    title = Localized(
        "A of X, and A of PX: the same rows and columns in another order",
        "X の A と PX の A：同じ行と列の並べ替え",
    )
    names = numbered("x", n)
    beside = torch.cat([before, after], dim=1).numpy()
    return Finding(
        checks, Picture("matrix", title, beside, names, names + tuple(names[i] for i in permutation))
    )


def set_distance(first: Float[Tensor, "n d"], second: Float[Tensor, "m d"]) -> float:
    """The Hausdorff distance: how far any row of one set lies from the nearest of the other, at most.

    >>> set_distance(torch.tensor([[0.0], [3.0]]), torch.tensor([[3.0], [0.0]]))
    0.0
    """
    distances = (first[:, None] - second).norm(dim=-1)
    return float(torch.maximum(distances.amin(0).max(), distances.amin(1).max()))


def sets_to_sets(lookup: Lookup | None = None, seed: int = 0) -> Finding:
    """A set of any size goes in, one of the same size comes out; no order is seen. NYU Deep Learning 2020, week 12-3.

    lookup: from tokens `[n, 8]` and memory `[m, 8]` to `[n, d_out]`; two heads of attention if None.

    >>> sets_to_sets().holds
    True
    >>> sets_to_sets(lambda x, memory: x + memory[0]).holds
    False
    """
    heads = random_attention(seed, 8, 2, std=8**-0.5)
    apply = lookup or (lambda tokens, memory: heads(tokens[None], memory[None])[0])
    x = normal(seed + 1, 7, 8)
    shuffled = x[torch.tensor([3, 0, 6, 1, 5, 2, 4])]
    places = sinusoidal_encoding(torch.arange(7), 8, dtype=torch.float64)
    doubled = torch.cat([x, x[:1]])
    seen = [apply(tokens + places, tokens + places) for tokens in (shuffled, x)]
    memory = Localized(
        "memory shuffled: largest change of an output", "参照先を並べ替えたときの出力の変化の最大"
    )
    as_set = Localized(
        "all shuffled: distance of the sets of outputs", "全体を並べ替えたときの出力の集合の距離"
    )
    placed = Localized(
        "with positions, shuffled: the same distance", "位置符号化を加えて並べ替えたときの同じ距離"
    )
    twice = Localized(
        "x₁ twice in the memory: change of an output", "参照先で x₁ を 2 回にしたときの出力の変化"
    )
    sizes = {t: Localized(f"outputs for {t} tokens", f"トークン {t} 個に対する出力の数") for t in (1, 2, 7)}
    checks = [
        *(equals(name, len(apply(x[:t], x[:t])), t, 0.0) for t, name in sizes.items()),
        below(memory, largest(apply(x, shuffled) - apply(x, x)), 1e-12),
        below(as_set, set_distance(apply(shuffled, shuffled), apply(x, x)), 1e-12),
        above(placed, set_distance(*seen), 0.1, counterexample=True),
        above(twice, largest(apply(x, doubled) - apply(x, x)), 0.01, counterexample=True),
    ]
    same = torch.cdist(apply(x, x), apply(shuffled, shuffled)) < 1e-9
    title = Localized(
        "equal outputs: of the set (rows), of the set shuffled",
        "等しい出力：元の集合（行）と並べ替えた集合（列）",
    )
    picture = Picture("matrix", title, same.double().numpy(), numbered("h", 7), numbered("h", 7))
    return Finding(tuple(checks), picture)


def random_rotation(seed: int, d: int) -> Float[Tensor, "d d"]:
    """A random orthogonal matrix of determinant 1.

    >>> round(torch.linalg.det(random_rotation(0, 5)).item(), 12)
    1.0
    """
    q, _ = torch.linalg.qr(normal(seed, d, d))
    q[:, 0] *= torch.linalg.det(q).sign()
    return q


def only_orthogonal_maps_rotate(w: Float[Tensor, "d d"] | None = None, seed: int = 0) -> Finding:
    """|Wx| = |x| for every x if and only if WᵀW = I; a rotation has det W = 1, too. NYU Deep Learning 2020, week 12-3.

    w: the matrix that must be a rotation; a random one of width 8 if None.

    >>> only_orthogonal_maps_rotate().holds
    True
    >>> only_orthogonal_maps_rotate(random_attention(0, 8, 2, 0.5).q_proj.weight).holds
    False
    """
    w = random_rotation(seed, 8) if w is None else w
    d = len(w)
    x, y = normal(seed + 1, 100, d), normal(seed + 2, 100, d)
    drawn = normal(seed + 3, d, d) * d**-0.5  # as a projection starts out: lengths are kept on average
    stretch = torch.linalg.svdvals(drawn)
    excess, directions = torch.linalg.eigh(drawn.T @ drawn - torch.eye(d))
    worst = excess.abs().argmax()
    reached = (drawn @ directions[:, worst]).square().sum() - 1.0
    mirror = w.clone()
    mirror[0] = -mirror[0]
    lost = torch.linalg.svd(drawn[: d // 2]).Vh[-1]
    norm = torch.linalg.matrix_norm(drawn.T @ drawn - torch.eye(d), 2).item()
    gram = Localized("largest |WᵀW - I|", "|WᵀW - I| の最大")
    length = Localized("largest ||Wx| - |x||", "||Wx| - |x|| の最大")
    product = Localized("largest |Wx·Wy - x·y|", "|Wx·Wy - x·y| の最大")
    only_if = Localized(
        "any W: largest ||Wx|² - 1| for |x| = 1, less ‖WᵀW - I‖",
        "任意の W：|x| = 1 での ||Wx|² - 1| の最大と ‖WᵀW - I‖ の差",
    )
    long = Localized("W from N(0, 1/d): largest |Wx|/|x|", "N(0, 1/d) から引いた W：|Wx|/|x| の最大")
    short = Localized("W from N(0, 1/d): least |Wx|/|x|", "N(0, 1/d) から引いた W：|Wx|/|x| の最小")
    narrow = Localized(
        "W of d/2 rows: |Wx| for some x with |x| = 1", "d/2 行の W：|x| = 1 のある x での |Wx|"
    )
    flipped = Localized("a reflection keeps lengths; its determinant", "鏡映も長さを保つが、その行列式は")
    checks = (
        below(gram, largest(w.T @ w - torch.eye(d)), 1e-12),
        below(length, largest((x @ w.T).norm(dim=-1) - x.norm(dim=-1)), 1e-12),
        below(product, largest(((x @ w.T) * (y @ w.T)).sum(-1) - (x * y).sum(-1)), 1e-12),
        equals(Localized("det W", "det W"), torch.linalg.det(w).item(), 1.0),
        equals(only_if, abs(reached.item()) - norm, 0.0, 1e-12),
        above(long, stretch[0].item(), 1.2, counterexample=True),
        below(short, stretch[-1].item(), 0.8, counterexample=True),
        equals(narrow, (drawn[: d // 2] @ lost).norm().item(), 0.0, 1e-12, counterexample=True),
        equals(flipped, torch.linalg.det(mirror).item(), -1.0, counterexample=True),
    )
    angles = torch.linspace(0.0, 2 * torch.pi, 37, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()])
    curves = torch.stack([(m @ circle).norm(dim=0) for m in (random_rotation(seed, 2), normal(seed, 2, 2))])
    title = Localized("|Wx| for unit x by angle (degrees)", "単位ベクトル x の角度（度）と |Wx|")
    names = ("WᵀW = I", "W ~ N(0, 1)")
    return Finding(
        checks, Picture("curves", title, curves.numpy(), names, tuple(str(a) for a in range(0, 370, 10)))
    )


CLAIMS = (
    Claim(
        id="C09",
        source="Bishop & Bishop 2024, exercise 12.7",
        statement=Localized(
            "Multi-head self-attention is equivariant: permuted tokens give the same outputs, permuted likewise,"
            " MHA(PX) = P·MHA(X).",
            "マルチヘッドセルフアテンションは置換に対して同変である。トークンを並べ替えると、出力も同じように"
            "並べ替わるだけである：MHA(PX) = P·MHA(X)。",
        ),
        derivation=Localized(
            "P has a single 1 in each row and column; its columns are orthonormal, so PᵀP = I.\n"
            "σ, the softmax of each row, treats rows alike: σ(PA) = Pσ(A).\n"
            "Within a row it treats entries alike, for the sum in the denominator has no order: σ(APᵀ) = σ(A)Pᵀ.\n"
            "Now PX in place of X: Q becomes PQ, K becomes PK, V becomes PV.\n"
            "σ(PQ(PK)ᵀ/√D_k) PV = σ(P(QKᵀ/√D_k)Pᵀ) PV = P σ(QKᵀ/√D_k) PᵀP V = P·Att(Q, K, V).\n"
            "Each head passes P on; side by side, [PH_1, ..., PH_H] Wᵒ = P[H_1, ..., H_H]Wᵒ.\n"
            "The P in front stays: the layer is equivariant, not invariant.\n"
            "Positions break it: PX + E is not P(X + E). So does a mask that knows the order.",
            "P は各行・各列に 1 が一つだけある行列で、列は正規直交だから PᵀP = I。\n"
            "行ごとの softmax σ はどの行も同じに扱うので σ(PA) = Pσ(A)。\n"
            "行の中でも、分母の和に順序はないので、どの成分も同じに扱う：σ(APᵀ) = σ(A)Pᵀ。\n"
            "X を PX に替えると、Q は PQ、K は PK、V は PV になる。\n"
            "σ(PQ(PK)ᵀ/√D_k) PV = σ(P(QKᵀ/√D_k)Pᵀ) PV = P σ(QKᵀ/√D_k) PᵀP V = P·Att(Q, K, V)。\n"
            "P は各ヘッドを通り抜け、並べても [PH_1, …, PH_H] Wᵒ = P[H_1, …, H_H]Wᵒ である。\n"
            "先頭の P は残る。つまり同変であって、不変ではない。\n"
            "PX + E は P(X + E) ではないので、位置符号化 E を加えると崩れる。順序を使うマスクでも崩れる。",
        ),
        condition=Localized(
            "Without positions in the input and without a mask that depends on the order.",
            "入力に位置の情報がなく、順序に依存するマスクもない場合に限る。",
        ),
        compute=order_goes_through,
    ),
    Claim(
        id="C12",
        source="NYU Deep Learning 2020, week 12-3",
        statement=Localized(
            "Attention maps a set to a set: it takes any number of vectors, gives as many, and sees no order.",
            "アテンションは集合を集合に写す。ベクトルは何個でもよく、同じ個数の出力を返し、順序は見ない。",
        ),
        derivation=Localized(
            "The parameters know the widths of vectors, not their number t: A is t × t and AV has t rows.\n"
            "One output is Σ_m a_m v_m with a_m = exp(q·k_m) / Σ_m' exp(q·k_m').\n"
            "Both are sums over what is attended to, and a sum has no order: shuffle the pairs (k_m, v_m) together,\n"
            "and the output stays. Shuffle the queries, and the outputs are shuffled with them (C09).\n"
            "As sets, {outputs of PX} = {outputs of X}.\n"
            "But a sum counts: an element that is there twice gets twice the weight. So the set is a multiset.",
            "パラメータの大きさはベクトルの幅だけで決まり、個数 t によらない。A は t × t、AV は t 行である。\n"
            "一つの出力は Σ_m a_m v_m、a_m = exp(q·k_m) / Σ_m' exp(q·k_m') である。\n"
            "どちらも参照先についての和であり、和に順序はない。組 (k_m, v_m) を並べ替えても\n"
            "出力は変わらない。クエリを並べ替えると、出力も一緒に並べ替わる（C09）。\n"
            "集合としては {PX の出力} = {X の出力} である。\n"
            "ただし和は個数を数える。同じ要素が二つあれば重みも 2 倍になるので、正しくは多重集合である。",
        ),
        condition=Localized(
            "Without positions or an order-dependent mask; and the sets are multisets: twice in, counted twice.",
            "位置の情報も順序に依存するマスクもない場合に限る。集合は多重集合とし、重複する要素は重複して数える。",
        ),
        compute=sets_to_sets,
    ),
    Claim(
        id="C13",
        source="NYU Deep Learning 2020, week 12-3",
        statement=Localized(
            "Query, key and value are rotations of x: q = W_q x, k = W_k x, v = W_v x.",
            "クエリ・キー・バリューは x の回転である：q = W_q x、k = W_k x、v = W_v x。",
        ),
        derivation=Localized(
            "|Wx|² = xᵀWᵀWx. If WᵀW = I this is |x|² for every x, and (Wx)ᵀ(Wy) = xᵀy in the same way.\n"
            "Conversely let |Wx| = |x| for every x, and S = WᵀW - I. S is symmetric and xᵀSx = 0 for every x;\n"
            "with an eigenvector of length 1 for x, each eigenvalue of S is 0. So S = 0.\n"
            "In numbers: the largest ||Wx|² - 1| over unit vectors is the spectral norm of WᵀW - I, whatever W.\n"
            "Orthogonal matrices have det ±1: those with -1 mirror, and rotations are those with +1.\n"
            "Nothing in training keeps W orthogonal, and a W of d' < d rows sends some x to 0.\n"
            "What is true of any W: it is linear, a mixture of rotation, stretching and projection.",
            "|Wx|² = xᵀWᵀWx である。WᵀW = I なら任意の x で |x|² に等しく、同様に (Wx)ᵀ(Wy) = xᵀy。\n"
            "逆に任意の x で |Wx| = |x| とし、S = WᵀW - I とおく。S は対称で、任意の x で xᵀSx = 0 である。\n"
            "x に長さ 1 の固有ベクトルをとると、S の固有値はすべて 0 とわかる。よって S = 0。\n"
            "数値では、どの W でも、単位ベクトルでの ||Wx|² - 1| の最大は WᵀW - I のスペクトルノルムに等しい。\n"
            "直交行列の行列式は ±1 であり、-1 なら鏡映を含み、+1 のものが回転である。\n"
            "学習は W を直交に保たない。また d' < d 行の W は、ある x を 0 に写す。\n"
            "任意の W について言えるのは線形性であり、回転・伸縮・射影の組み合わせということである。",
        ),
        condition=Localized(
            "True only where W is square with WᵀW = I and det W = 1; trained projections are not.",
            "W が正方で WᵀW = I かつ det W = 1 の場合に限る。学習された射影はそうではない。",
        ),
        compute=only_orthogonal_maps_rotate,
    ),
)
