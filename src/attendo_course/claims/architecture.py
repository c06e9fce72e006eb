"""How large attention is (C20), and the claims about the architecture in one tuple."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.models import parameter_count
from attendo.nn.attention import Attend, Attention, attention
from attendo_course.claims.blocks import C18
from attendo_course.claims.built import built
from attendo_course.claims.claim import Claim, Finding, above, below, equals
from attendo_course.claims.contexts import C16, C26
from attendo_course.claims.generation import C15, C23
from attendo_course.claims.reach import C14, C22
from attendo_course.claims.samples import normal


def numbers_kept(compute: Callable[[], object]) -> int:
    """How many numbers a computation keeps for its backward pass, in the largest tensor.

    >>> numbers_kept(lambda: torch.ones(3, requires_grad=True).exp())
    3
    """
    sizes = [0]

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return max(sizes)


def size_is_free_of_length(
    layer: Callable[[int], nn.Module] | None = None, d_in: int = 4, d_attn: int = 6, d_out: int = 3
) -> Finding:
    """(d_in + 1)(2 d_attn + d_out) numbers for any length, (d_in L + 1) d_out of a linear map; but O(L²) memory.

    The weather post. layer: from L to the layer that is counted, single-head attention with biases unless given.

    >>> size_is_free_of_length().holds
    True
    >>> size_is_free_of_length(lambda length: nn.Linear(4 * length, 3)).holds
    False
    """

    def single_head(length: int) -> Attention:
        return Attention(d_in, 1, head_dim=d_attn, value_dim=d_out, out_proj=nn.Identity())

    lengths = (1, 5, 6, 10, 20, 40)
    sizes = [parameter_count(built(lambda n=n: (layer or single_head)(n))) for n in lengths]
    linear = [parameter_count(built(lambda n=n: nn.Linear(d_in * n, d_out))) for n in lengths]
    attended, same = built(lambda: single_head(10)), []
    for n in (5, 10, 40):
        x = normal(n, 1, n, d_in)
        same.append(attended(x, x).shape[1] == n)

    def kept(n: int, attend: Callable[..., Tensor]) -> int:
        query, key, value = (normal(seed, 1, 1, n, d_attn).requires_grad_() for seed in range(3))
        return numbers_kept(lambda: attend(query, key, value))

    ours, theirs = (
        Localized("attention: parameters", "アテンション：パラメータ数"),
        Localized("linear map", "線形写像"),
    )
    formula = Localized("(d_in + 1)(2 d_attn + d_out)", "(d_in + 1)(2 d_attn + d_out)")
    spread = Localized(
        "attention: largest - least count, L = 1 to 40",
        "アテンション：L = 1〜40 でのパラメータ数の最大 - 最小",
    )
    runs = Localized("lengths that one layer takes, of 3", "一つの層で処理できた長さ（3 種のうち）")
    square = Localized("L = 64: numbers kept, L²", "L = 64：保存される数 L²")
    growth = Localized("numbers kept, L = 128 / 64", "保存される数の比 L = 128 / 64")
    fused = Localized(
        "fused kernel: numbers kept, L = 128 / 64", "融合カーネル：保存される数の比 L = 128 / 64"
    )
    short = Localized(
        "L = 5: attention - linear map, parameters", "L = 5：アテンションと線形写像のパラメータ数の差"
    )
    checks = (
        equals(ours, sizes[3], 75, 0.0),
        equals(formula, (d_in + 1) * (2 * d_attn + d_out), sizes[3], 0.0),
        equals(
            Localized(f"{theirs.en}, L = 10: parameters", f"{theirs.ja}、L = 10：パラメータ数"),
            linear[3],
            123,
            0.0,
        ),
        equals(spread, max(sizes) - min(sizes), 0, 0.0),
        equals(Localized("L = 6: both have", "L = 6：両者は同数"), linear[2], sizes[2], 0.0),
        above(short, sizes[1] - linear[1], 0, counterexample=True),
        equals(runs, sum(same), 3, 0.0),
        equals(square, kept(64, attention), 64 * 64, 0.0),
        equals(growth, kept(128, attention) / kept(64, attention), 4.0, 0.0),
        below(fused, kept(128, Attend()) / kept(64, Attend()), 2.5, counterexample=True),
    )
    title = Localized("parameters by length", "パラメータ数と長さ")
    values, labels = np.array([sizes, linear], dtype=float), tuple(str(n) for n in lengths)
    return Finding(checks, Picture("curves", title, values, ("attention", "linear map"), labels))


C20 = Claim(
    id="C20",
    source="Weather post, finished version",
    statement=Localized(
        "The number of attention's parameters does not depend on the length L of the text, as that of a linear map"
        " does; its memory grows as L².",
        "アテンションのパラメータ数は、線形写像とは違って文の長さ L によらない。一方、必要なメモリは L² で増える。",
    ),
    derivation=Localized(
        "W_q and W_k have d_attn × d_in numbers and W_v has d_out × d_in; with the biases"
        " 2(d_in + 1)d_attn + (d_in + 1)d_out = (d_in + 1)(2 d_attn + d_out). L is not in it.\n"
        "A linear map from all L vectors at once has d_in·L·d_out numbers and d_out biases: (d_in L + 1) d_out.\n"
        "For d_in = 4, d_attn = 6, d_out = 3 and L = 10 that is 5·15 = 75 against 41·3 = 123. Both have 75 at L = 6;"
        " for shorter texts the linear map is the smaller one.\n"
        "The same matrices serve every position, so one layer takes texts of any length.\n"
        "But each pair of tokens has a weight: L² numbers a head, kept for the backward pass.\n"
        "A fused kernel computes them block by block, keeps one number a row (log Σ exp) and recomputes the rest.",
        "W_q と W_k は d_attn × d_in 個、W_v は d_out × d_in 個の数をもつ。バイアスを含めて"
        " 2(d_in + 1)d_attn + (d_in + 1)d_out = (d_in + 1)(2 d_attn + d_out) であり、L は現れない。\n"
        "L 個のベクトル全部からの線形写像は d_in·L·d_out 個の数と d_out 個のバイアスをもち、(d_in L + 1) d_out であ"
        "る。\n"
        "d_in = 4、d_attn = 6、d_out = 3、L = 10 では 5·15 = 75 に対して 41·3 = 123。L = 6 でともに 75 となり、それよ"
        "り短ければ線形写像の方が小さい。\n"
        "どの位置にも同じ行列を使うので、一つの層で任意の長さの文を扱える。\n"
        "ただしトークンの組ごとに重みがある。ヘッドあたり L² 個の数であり、逆伝播のために保存される。\n"
        "融合カーネルはブロックごとに計算し、行ごとに数を一つ（log Σ exp）だけ保存して、残りは計算し直す。",
    ),
    condition=Localized(
        "Attention is the smaller one for more than 6 tokens; and the L² weights need memory only where they are kept,"
        " which a fused kernel avoids.",
        "パラメータが線形写像より少ないのは 6 トークンを超える場合である。また L² 個の重みがメモリを占めるのは、それを"
        "保存する場合であり、融合カーネルは保存しない。",
    ),
    compute=size_is_free_of_length,
)

CLAIMS = (C14, C15, C16, C18, C20, C22, C23, C26)
