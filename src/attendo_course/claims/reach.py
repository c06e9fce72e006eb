"""How far one layer sees, what it costs, and how many layers it takes to see all (C14, C22)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.nn.attention import attention
from attendo.nn.masks import Mask
from attendo_course.claims.built import built, unrolled
from attendo_course.claims.claim import Check, Claim, Finding, above, below, equals
from attendo_course.claims.samples import largest, normal

Spread = Callable[[Float[Tensor, "n n"], int], Float[Tensor, "n n"]]
"""What layer number i (from 0) makes of the rows; entry (p, s) is how much of token s there is at place p."""

Local = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Attention of query, key, value `[n, d]` to the keys fewer than so many places away."""

WIDTHS = (3, 5, 9)
N = 65


def attending(window: int | None = None) -> Spread:
    """Self-attention that weighs all allowed keys alike: what it spreads, any other with positive weights does.

    window: fewer than so many positions apart (r = 2·window - 1 keys in all), None: every key.

    >>> attending(2)(torch.eye(3), 0)[0]
    tensor([0.5000, 0.5000, 0.0000])
    """

    def layer(x: Tensor, number: int) -> Tensor:
        same, mask = x.new_zeros(len(x), 1), Mask(window=window)
        return attention(same, same, x, mask.dense(len(x), len(x))[0, 0])

    return layer


def convolving(k: int, *, dilated: bool = False) -> Spread:
    """A convolution of odd width k with equal weights; dilated: layer i reads k places kⁱ apart, none later.

    >>> convolving(3)(torch.eye(3), 0)[0]
    tensor([0.3333, 0.3333, 0.0000])
    """

    def layer(x: Tensor, number: int) -> Tensor:
        step = k**number if dilated else 1
        sides = ((k - 1) * step, 0) if dilated else (k // 2, k // 2)
        padded = F.pad(x.T[:, None], sides)
        return F.conv1d(padded, x.new_full((1, 1, k), 1 / k), dilation=step)[:, 0].T

    return layer


def seen_by_layer(spread: Spread, n: int = N) -> list[int]:
    """How many tokens the last place depends on after 1, 2, ... layers, until all n or n layers.

    >>> seen_by_layer(attending(2), 4)
    [2, 3, 4]
    """
    x, seen = torch.eye(n, dtype=torch.float64), []
    while len(seen) < n and (not seen or seen[-1] < n):
        x = spread(x, len(seen))
        seen.append(int((x[-1] > 0).sum()))
    return seen


def layers_needed(spread: Spread, n: int = N) -> float:
    """Layers until the last place depends on each of the n tokens; infinite if n layers are too few.

    >>> layers_needed(attending(2), 4), layers_needed(lambda x, number: x, 4)
    (3, inf)
    """
    seen = seen_by_layer(spread, n)
    return len(seen) if seen[-1] == n else math.inf


def products_counted(compute: Callable[[], object]) -> int:
    """Multiplications and additions in the matrix products and convolutions of a computation.

    >>> products_counted(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def longest_chain(output: Tensor) -> int:
    """Operations on the longest path from an input to this output: each has to wait for the one before.

    Read from the graph of automatic differentiation; 0 if nothing that asks for a gradient led here.

    >>> x = torch.ones(1, requires_grad=True)
    >>> longest_chain(x * 2 + 1) - longest_chain(x * 2)
    1
    """
    depth, waiting = {}, [] if output.grad_fn is None else [output.grad_fn]
    while waiting:
        before = [node for node, _ in waiting[-1].next_functions if node is not None]
        unknown = [node for node in before if node not in depth]
        waiting += unknown
        if not unknown:
            depth[waiting.pop()] = 1 + max((depth[node] for node in before), default=0)
    return max(depth.values(), default=0)


def neighborhood_attention(
    query: Float[Tensor, "n d"], key: Float[Tensor, "n d"], value: Float[Tensor, "n d_value"], window: int
) -> Float[Tensor, "n d_value"]:
    """Attention to the keys fewer than `window` places away, and no score is computed for another.

    The same numbers as a banded mask gives. Vaswani et al. 2017, section 4 (restricted self-attention).

    >>> x = torch.eye(4)
    >>> torch.equal(neighborhood_attention(x, x, x, 4), attention(x, x, x))
    True
    """

    def around(rows: Tensor) -> Tensor:
        return F.pad(rows.T, (window - 1, window - 1)).unfold(1, 2 * window - 1, 1)  # [d, n, r]

    there = around(torch.ones_like(query[:, :1]))[0] > 0
    near_key, near_value = (around(rows).permute(1, 2, 0) for rows in (key, value))
    return attention(query[:, None], near_key, near_value, there[:, None])[:, 0]


def _layers(n: int, d: int, k: int = 3) -> dict[str, Callable[[], Tensor]]:
    """One layer of each kind on n random vectors of width d, ready to run."""
    x, w = normal(0, n, d).requires_grad_(), normal(1, d, d, k)
    cell = built(lambda: nn.RNNCell(d, d))
    return {
        "n²d": lambda: attention(x, x, x),
        "nd²": lambda: unrolled(cell, x),
        "knd²": lambda: F.conv1d(x.T[None], w, padding=k // 2),
        "rnd": lambda: neighborhood_attention(x, x, x, (k + 1) // 2),
    }


NAMES = {
    "n²d": Localized("self-attention", "セルフアテンション"),
    "nd²": Localized("RNN", "RNN"),
    "knd²": Localized("convolution", "畳み込み"),
    "rnd": Localized("restricted", "制限つき"),
}


def _costs(n: int = 16, d: int = 8, k: int = 3) -> list[Check]:
    """The first two columns of table 1: how work and waiting grow with n, d and k (r)."""
    growth = {"n²d": (4, 2, 1), "nd²": (2, 4, 1), "knd²": (2, 4, 3), "rnd": (2, 2, 3)}
    small, longer = _layers(n, d, k), _layers(2 * n, d, k)
    others = {"n": longer, "d": _layers(n, 2 * d, k), "k": _layers(n, d, 3 * k)}
    per_step = longest_chain(_layers(n + 1, d, k)["nd²"]()) - longest_chain(small["nd²"]())
    checks = []
    for order, times in growth.items():
        en, ja = NAMES[order].en, NAMES[order].ja
        work = products_counted(small[order])
        for (size, layers), expected in zip(others.items(), times, strict=True):
            if size != "k" or expected > 1:
                ratio = {"n": "2n / n", "d": "2d / d", "k": f"3{order[0]} / {order[0]}"}[size]
                name = Localized(f"{en}, O({order}): work, {ratio}", f"{ja} O({order})：計算量の比 {ratio}")
                checks.append(equals(name, products_counted(layers[order]) / work, expected, 0.0))
        waits = (longest_chain(longer[order]()) - longest_chain(small[order]())) / per_step
        name = Localized(
            f"{en}: further steps in a row, n = 32 / 16", f"{ja}：n = 16 → 32 で増える逐次ステップ数"
        )
        checks.append(equals(name, waits, n if order == "nd²" else 0.0, 0.0))
    return checks


def one_layer_sees_all(attend: Spread | None = None, n: int = N) -> Finding:
    """Path lengths 1 (self-attention), n (RNN), log_k n (dilated convolutions), n/r (restricted), measured.

    Vaswani et al. 2017, table 1. attend: the layer that is to see all n tokens at once. What a layer spreads is
    followed from the identity matrix until the last place holds a part of every token.

    >>> one_layer_sees_all().holds
    True
    >>> one_layer_sees_all(attending(32)).holds
    False
    """
    one = Localized(
        f"self-attention: layers to see {n} tokens",
        f"セルフアテンション：{n} トークンすべてが見えるまでの層数",
    )
    pairs = Localized(
        "self-attention, one layer: pairs of tokens joined",
        "セルフアテンション 1 層：結ばれるトークンの組の数",
    )
    joined = ((attend or attending())(torch.eye(n, dtype=torch.float64), 0) > 0).sum()
    checks = [
        equals(one, layers_needed(attend or attending(), n), 1, 0.0),
        equals(pairs, int(joined), n * n, 0.0),
    ]
    curves = {"self": [n]}
    for k, expected in zip(WIDTHS, (64, 32, 16), strict=True):
        name = Localized(f"convolution, k = {k}: layers", f"畳み込み k = {k}：層数")
        curves[f"conv k={k}"] = seen_by_layer(convolving(k), n)
        checks.append(equals(name, layers_needed(convolving(k), n), expected, 0.0))
    for k, expected in ((2, 7), (3, 4), (9, 2)):
        dilated = convolving(k, dilated=True)
        name = Localized(
            f"dilated convolution, k = {k}: layers, ⌈log_k n⌉", f"拡張畳み込み k = {k}：層数 ⌈log_k n⌉"
        )
        checks.append(equals(name, layers_needed(dilated, n), expected, 0.0))
    curves["dilated k=3"] = seen_by_layer(convolving(3, dilated=True), n)
    x = normal(2, n, 4).requires_grad_()
    (first,) = torch.autograd.grad(unrolled(built(lambda: nn.RNNCell(4, 4), 1), x)[-1].sum(), x)
    steps = Localized(
        "RNN, one layer: tokens the last state depends on", "RNN 1 層：最後の状態が依存するトークン数"
    )
    fading = Localized("RNN: |∂h_n/∂x_1| / |∂h_n/∂x_n|", "RNN：|∂h_n/∂x_1| / |∂h_n/∂x_n|")
    checks.append(equals(steps, int((first.norm(dim=-1) > 0).sum()), n, 0.0))
    checks.append(below(fading, (first[0].norm() / first[-1].norm()).item(), 1e-6))
    checks += _costs()
    points = max(map(len, curves.values()))
    values = np.array([seen + [seen[-1]] * (points - len(seen)) for seen in curves.values()], dtype=float)
    title = Localized(f"tokens seen of {n}, by layers", f"{n} トークンのうち見えている数と層数")
    labels = tuple(str(layer + 1) for layer in range(points))
    return Finding(tuple(checks), Picture("curves", title, values, tuple(curves), labels))


def restricted_attention_is_cheaper(local: Local = neighborhood_attention, n: int = N, d: int = 8) -> Finding:
    """O(rnd) work in O(1) steps a layer, but O(n/r) layers until all is seen. Kikuta 2025, exercise 3.6.

    Vaswani et al. 2017, table 1. r: the keys a query attends to, itself in the middle. local: what is counted and
    compared with the banded mask.

    >>> restricted_attention_is_cheaper().holds
    True
    >>> restricted_attention_is_cheaper(lambda q, k, v, window: attention(q, k, v)).holds
    False
    """
    query, key, value = normal(3, 3, n, d)
    checks, needed, saved = [], [], []
    for r, expected in zip(WIDTHS, (64, 32, 16), strict=True):
        window = (r + 1) // 2
        banded = Mask(window=window).dense(n, n)[0, 0]
        found, masked = local(query, key, value, window), attention(query, key, value, banded)
        work = products_counted(lambda w=window: local(query, key, value, w))
        wasted = products_counted(lambda m=banded: attention(query, key, value, m))
        needed.append(layers_needed(attending(window), n))
        saved.append(wasted / work)
        same = Localized(f"r = {r}: |neighborhood - banded mask|", f"r = {r}：|近傍のみ - 帯状マスク|")
        operations = Localized(f"r = {r}: operations, 4rnd", f"r = {r}：演算数 4rnd")
        layers = Localized(
            f"r = {r}: layers to see {n} tokens", f"r = {r}：{n} トークンすべてが見えるまでの層数"
        )
        exact = Localized(f"r = {r}: layers · (r - 1)/2, n - 1", f"r = {r}：層数·(r - 1)/2 = n - 1")
        full = Localized(f"r = {r}, mask only: operations, 4n²d", f"r = {r}、マスクのみ：演算数 4n²d")
        checks += [
            below(same, largest(found - masked), 1e-12),
            equals(operations, work, 4 * r * n * d, 0.0),
            equals(layers, needed[-1], expected, 0.0),
            equals(exact, needed[-1] * (r - 1) / 2, n - 1, 0.0),
            equals(full, wasted, 4 * n * n * d, 0.0, counterexample=True),
        ]
    chains = [
        longest_chain(local(x, x, x, 2)) for x in (normal(0, m, d).requires_grad_() for m in (n, 2 * n))
    ]
    one = Localized("steps in a row, 2n: more than with n", "逐次ステップ数：2n のとき n より増える数")
    cheaper = Localized(
        "n = 65, r = 3: full / restricted operations", "n = 65、r = 3：全体と制限つきの演算数の比"
    )
    checks.append(equals(one, chains[1] - chains[0], 0, 0.0))
    checks.append(above(cheaper, saved[0], 20.0))
    mask = Mask(window=2).dense(17, 17)[0, 0].double()
    title = Localized("r = 3, n = 17: the scores that are computed", "r = 3、n = 17：計算されるスコア")
    return Finding(tuple(checks), Picture("matrix", title, mask.numpy()))


C14 = Claim(
    id="C14",
    source="Weather post; slides; Vaswani et al. 2017, table 1",
    statement=Localized(
        "One layer of self-attention lets every token see all others; convolutions need many layers for that, and an"
        " RNN has to go through the tokens one after the other.",
        "セルフアテンションは 1 層で全トークンが互いに見える。畳み込みでは多くの層が必要であり、RNN は"
        "トークンを一つずつ順に処理しなければならない。",
    ),
    derivation=Localized(
        "Self-attention: a_pq > 0 for every pair, so one layer joins any two tokens: path 1. The scores and the mean"
        " take n² products of vectors of width d each: O(n²d), and nothing in it waits for another position.\n"
        "RNN: h_t needs h_(t-1), so the first token reaches the last state through n - 1 steps in a row, each a d × d"
        " product: O(nd²). On the way its derivative is a product of n - 1 Jacobians, and fades.\n"
        "Convolution of width k: a layer moves information by (k - 1)/2 places, a stack of L by L(k - 1)/2. From end"
        " to end it is n - 1 places: L = 2(n - 1)/(k - 1), of the order n/k. Here n = 65: 64, 32, 16 for k = 3, 5,"
        " 9.\n"
        "Dilated: if layer i reads places kⁱ apart, L layers read Σ(k - 1)kⁱ + 1 = k^L places: L = ⌈log_k n⌉.\n"
        "Work: scores and mean are 4n²d operations, so d doubled doubles it and n doubled makes it four times as"
        " much; for RNN and convolution it is the other way round. Self-attention costs less where n < d.",
        "セルフアテンション：どの組でも a_pq > 0 なので、1 層で任意の 2 トークンが結ばれる（経路長 1）。"
        "スコアと加重平均は、幅 d"
        " のベクトルの積和がそれぞれ n² 回、つまり O(n²d) であり、他の位置の結果を待つ計算はない。\n"
        "RNN：h_t には h_(t-1) が必要なので、先頭のトークンは n - 1 回の逐次ステップを経て最後の状態に届く。各ステップ"
        "は d × d の積なので O(nd²)。途中の微分は n - 1 個のヤコビ行列の積であり、減衰していく。\n"
        "幅 k の畳み込み：1 層で情報は (k - 1)/2 だけ進み、L 層で L(k - 1)/2 進む。端から端までは n - 1 なので"
        " L = 2(n - 1)/(k - 1)、つまり n/k のオーダーである。n = 65 では k = 3, 5, 9 で 64, 32, 16 層となる。\n"
        "拡張畳み込み：第 i 層が kⁱ 間隔で読むなら、L 層で Σ(k - 1)kⁱ + 1 = k^L 個の位置が見え、L = ⌈log_k n⌉ であ"
        "る。\n"
        "計算量：セルフアテンションは 4n²d 回の演算なので、d を 2 倍にすると 2 倍、"
        "n を 2 倍にすると 4 倍になる。RNN と畳み込み"
        "ではその逆である。n < d ならセルフアテンションの方が安い。",
    ),
    compute=one_layer_sees_all,
)

C22 = Claim(
    id="C22",
    source="Kikuta 2025, exercise 3.6",
    statement=Localized(
        "Self-attention restricted to r neighbors costs O(rnd) a layer instead of O(n²d), in O(1) steps, and the"
        " longest path grows to O(n/r).",
        "r 個の近傍に制限したセルフアテンションは、1 層あたりの計算量が O(n²d) から O(rnd) に減り、"
        "逐次計算は O(1) のままだが、"
        "最大経路長は O(n/r) に伸びる。",
    ),
    derivation=Localized(
        "Each of n queries meets r keys: r scores of d products each, then r values of width d to be mixed.\n"
        "With multiplications and additions that is 2rd + 2rd a query, 4rnd in all: linear in n.\n"
        "No query waits for another one's result: the steps in a row do not depend on n.\n"
        "With itself in the middle, a query sees (r - 1)/2 places to each side, after L layers L(r - 1)/2.\n"
        "The two ends are n - 1 places apart: L = 2(n - 1)/(r - 1) layers, O(n/r).\n"
        "For n = 65 and r = 3, 5, 9 that makes 64, 32 and 16. All of it together, L layers of 4rnd, is O(n²d)"
        " again: near tokens are cheap, far ones are not.",
        "n 個のクエリのそれぞれが r 個のキーと向き合う。スコアは r 個で、それぞれ d 回の積。次に幅 d の値を r 個混ぜ"
        "る。\n"
        "積と和を数えるとクエリあたり 2rd + 2rd、全体で 4rnd であり、n に比例する。\n"
        "どのクエリも他のクエリの結果を待たないので、逐次ステップ数は n によらない。\n"
        "自分を中心に r 個とすると、左右に (r - 1)/2 ずつ見え、L 層では L(r - 1)/2 まで見える。\n"
        "両端は n - 1 離れているので L = 2(n - 1)/(r - 1) 層、つまり O(n/r) が必要である。\n"
        "n = 65、r = 3, 5, 9 では 64, 32, 16 層となる。4rnd の層を L 層重ねた合計は再び O(n²d) である。"
        "近くのトークンは安いが、遠くのトークンはそうではない。",
    ),
    condition=Localized(
        "The scores outside must be left out, not masked: a mask on the full matrix gives the same result and saves"
        " nothing.",
        "範囲外のスコアは、マスクするのではなく、計算しないことが必要である。全体の行列にマスクをかけると、結果は同じ"
        "だが計算量はまったく減らない。",
    ),
    compute=restricted_attention_is_cheaper,
)
