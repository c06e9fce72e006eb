"""Errata 49 and 50: the paper "Formal Algorithms for Transformers", and an implementation of it."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

ERRATA = (
    Erratum(
        number=49,
        source="R Phuong & Hutter 2022, arXiv 2207.09238, algorithms 6, 8, 9, 12, 14 and 15",
        title=Localized("Slips and open ends of the algorithms", "アルゴリズムの誤記と境界の不備"),
        wrong=Localized(
            "A9: W_u ∈ R^{N_V×d_e} meets vectors of width d_f. A6: no ε, so a vector of equal entries gives 0/0. A8"
            " counts i but its body reads l, and neither it nor A14 guards ℓ_max. τ = 0 is described, but p^{1/τ}"
            " isn't defined there. A12's loss is empty where nothing was masked (as a mean: NaN). A15 may never stop"
            " (it is cut off after 999 tokens here).",
            "A9: W_u ∈ R^{N_V×d_e} を幅 d_f のベクトルに掛けている。A6: ε がなく、成分がすべて等しいと 0/0 になる。A8 "
            "は i で数えながら本体では l を使い、A14 とともに ℓ_max を確かめない。τ = 0 に触れているが p^{1/τ} は定義"
            "されない。A12 の損失は何もマスクされなければ空になる（平均なら NaN）。A15 は止まらないことがある（ここでは"
            " 999 トークンで打ち切った）。",
        ),
        right=Localized(
            "W_u is N_V × d_f; ε can be given; one name for the layer; a text longer than ℓ_max is refused with a"
            " message; τ = 0 takes the most probable token; an empty loss is 0 and changes nothing; A15 has a limit"
            " and says whether it was met before eos.",
            "W_u は N_V × d_f とし、ε を指定できるようにする。層の番号は 1 つの名前に揃える。ℓ_max を超える文は"
            "メッセージを添えて拒み、τ = 0 では最も確率の高いトークンを選ぶ。空の損失は 0 で、何も更新しない。A15 には"
            "上限を設け、eos で終わったかどうかを返す。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from itertools import islice, repeat, takewhile
from attendo_course.algorithms import layer_norm, unembedding
from torch.nn.functional import cross_entropy
def outcome(form):
    try:
        return form()
    except Exception as error:
        return type(error).__name__
tuple(outcome(form) for form in (
    lambda: unembedding(torch.ones(5, 2), torch.ones(9, 8)).shape,
    lambda: layer_norm(torch.ones(2), torch.ones(2)).tolist(),
    lambda: [l for i in (1, 2)],  # A8: counts i, reads l
    lambda: torch.ones(8, 6)[:, 6].shape,  # W_p, position 7 of 6
    lambda: [p ** (1 / 0) for p in (0.5, 0.3, 0.2)],  # τ = 0
    lambda: cross_entropy(torch.ones(0, 9), torch.ones(0).long()).item(),
    lambda: len(list(islice(takewhile(lambda y: y < 9, repeat(1)), 999))),
))""",
            r"\('RuntimeError', \[nan, nan\], 'NameError', 'IndexError', 'ZeroDivisionError', nan, 999\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.models import MaskedLM
from attendo_course.algorithms import *
sizes = dict(N_V=9, ell_max=6, H=2, d_e=8, d_mlp=16)
ed = build_formal_ed(formal_ed_config(**sizes, L_enc=2, L_dec=2))
torch.nn.init.zeros_(ed.output_proj.weight)  # all tokens alike
bert = MaskedLM(formal_e_config(**sizes, L=1, d_f=5))
try:
    far = EDTransformer([1] * 7, [8], ed)
except ValueError as error:
    far = str(error)
one = torch.ones(2)
p = torch.tensor([0.5, 0.3, 0.2])
(tuple(ETransformer([8, 1], bert).shape),
 layer_norm(one, one, eps=1e-5).tolist(), len(ed.decoder.blocks), far,
 distribution(p.log(), tau=0.0).tolist(),
 e_loss([8, 1], [8, 1], bert).item(), EDInference([1], ed, tau=0.0))""",
            r"\(\(9, 2\), \[0\.0, 0\.0\], 2, 'z has 7 tokens, "
            r"but positions end at ell_max=6; shorten it', \[1\.0, 0\.0, 0\.0\], 0\.0, "
            r"Inferred\(x_hat=\[8, 1, 1, 1, 1, 1, 1\], ended=False\)\)",
        ),
    ),
    Erratum(
        number=50,
        source="R myazdani's implementation of algorithms 1 to 10 of 2207.09238",
        title=Localized("No oracle", "検証の基準にはならない実装"),
        wrong=Localized(
            "The layer norm runs over the whole tensor, with the unbiased deviation; A3 multiplies query and key entry"
            " by entry; the decoder's mask is ℓ_max × ℓ_max whatever the length; in training the decoder sees the"
            " token that it is to predict, so a model that only copies has no loss.",
            "層正規化をテンソル全体にわたって、しかも不偏標準偏差で行う。A3 では内積 qᵀk の代わりに成分ごとの積を使う。"
            "デコーダのマスクは長さによらず ℓ_max × ℓ_max のままである。学習ではデコーダが予測すべきトークン自身を"
            "見ているので、入力を写すだけのモデルの損失が 0 になる。",
        ),
        right=Localized(
            "Each token is normed by itself, the variance divided by d; the score qᵀk is one number; the mask has the"
            " text's length; column t predicts x[t+1], and copying is punished.",
            "トークンごとに正規化し、分散は d で割る。スコア qᵀk は 1 つの数である。マスクは文の長さに合わせる。第 t "
            "列は x[t+1] を予測するので、写すだけのモデルの損失は大きい。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.training.losses import token_losses
X = torch.tensor([[1.0, 3.0], [10.0, 30.0]]).double()  # 2 tokens
normed = (X - X.mean()) / X.std()
by_token = (X[0] - X[0].mean()) / X[0].std()
scores = X[0] * X  # of the first query
try:
    masked = (X @ X.mT).masked_fill(~torch.ones(6, 6).bool().tril(), 0)
except RuntimeError as error:
    masked = type(error).__name__
x = torch.tensor([3, 1, 4, 2])
copied = 20 * torch.nn.functional.one_hot(x).double()  # logits
loss = token_losses(copied, x).sum()
rounded = [v.round(decimals=4).tolist() for v in (normed, by_token)]
*rounded, tuple(scores.shape), masked, round(loss.item(), 4)""",
            r"\(\[\[-0\.7552, -0\.6042\], \[-0\.0755, 1\.4349\]\], \[-0\.7071, 0\.7071\], \(2, 2\), "
            r"'RuntimeError', 0\.0\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_scores
from attendo.nn.masks import causal
from attendo.nn.layers import layer_norm
from attendo.training.losses import token_losses
X = torch.tensor([[1.0, 3.0], [10.0, 30.0]]).double()  # 2 tokens
normed = layer_norm(X, eps=0.0)
scores = attention_scores(X[:1], X, scale=1.0)[0]
masked = (X @ X.mT).masked_fill(~causal(2, 2), 0)
x = torch.tensor([3, 1, 4, 2])
copied = 20 * torch.nn.functional.one_hot(x).double()  # logits
loss = token_losses(copied[:-1], x[1:]).sum()
rounded = [v.round(decimals=4).tolist() for v in (normed, normed[0])]
*rounded, tuple(scores.shape), masked.tolist(), round(loss.item(), 4)""",
            r"\(\[\[-1\.0, 1\.0\], \[-1\.0, 1\.0\]\], \[-1\.0, 1\.0\], \(2,\), \[\[10\.0, 0\.0\], "
            r"\[100\.0, 1000\.0\]\], 60\.0\)",
        ),
    ),
)
