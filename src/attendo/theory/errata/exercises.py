"""Errata 38 to 43: solutions to 原論文から解き明かす生成AI, chapter 3, and to Bishop & Bishop, chapter 12."""

from attendo.theory.errata.erratum import Erratum, Snippet
from attendo.words import Words

_KIKUTA = "S0 solutions to Kikuta 2025"
_BISHOP = "S2 solutions to Bishop & Bishop 2024"

ERRATA = (
    Erratum(
        number=38,
        source=f"{_KIKUTA}, 3.1",
        title=Words("Bilinear, not linear", "線形ではなく双線形"),
        wrong=Words(
            "PE_{p+k} is called a linear combination of PE_p and PE_k. No fixed coefficients on the entries of both do"
            " it: the nearest linear form misses by more than 1.",
            "PE_{p+k} は PE_p と PE_k の線形結合だとしている。しかし両者の成分に定数係数を掛けて足しても表せず、"
            "最良の線形式でも誤差が 1 を超える。",
        ),
        right=Words(
            "It is bilinear: each entry is a sum of products, one factor from PE_p and one from PE_k; so it is linear"
            " in PE_p alone, PE_{p+k} = M_k PE_p. d must be even: at d = 3 the last sine has no cosine, and nothing"
            " fits.",
            "双線形である。各成分は PE_p の成分と PE_k の成分の積の和なので、PE_p だけについては線形で PE_{p+k} = M_k"
            " PE_p となる。d は偶数でなければならない。d = 3 では最後の正弦に余弦の相手がなく、表せない。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.positions import sinusoidal_encoding
places = torch.arange(0, 1600, 100)  # far apart: all phases turn
def error(d):  # of the nearest linear form in PE_p and PE_k
    PE = sinusoidal_encoding(places, d, dtype=torch.float64)
    p, k = torch.cartesian_prod(torch.arange(8), torch.arange(8)).mT
    terms = torch.cat([PE[p], PE[k]], dim=-1)
    nearest = terms @ torch.linalg.pinv(terms) @ PE[p + k]
    return round((nearest - PE[p + k]).abs().max().item(), 4)
error(4), error(3)""",
            r"\(1\.3919, 1\.3383\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.positions import sinusoidal_encoding
from attendo.theory.shifts import shift_matrix
places = torch.arange(0, 1600, 100)  # far apart: all phases turn
def error(d):  # of the nearest bilinear form
    PE = sinusoidal_encoding(places, d, dtype=torch.float64)
    p, k = torch.cartesian_prod(torch.arange(8), torch.arange(8)).mT
    terms = torch.einsum("ni,nj->nij", PE[p], PE[k]).flatten(1)
    nearest = terms @ torch.linalg.pinv(terms) @ PE[p + k]
    return round((nearest - PE[p + k]).abs().max().item(), 4)
PE = sinusoidal_encoding(places, 4, dtype=torch.float64)
M_k = shift_matrix(500, 4, dtype=torch.float64)
error(4), error(3), torch.allclose(PE[:11] @ M_k.mT, PE[5:])""",
            r"\(0\.0, 0\.3087, True\)",
        ),
    ),
    Erratum(
        number=39,
        source=f"{_KIKUTA}, 3.4",
        title=Words("A softmax without its axis", "軸の示されない softmax"),
        wrong=Words(
            "k, the offset of 3.1, is now the number of a row; the sum has no start, the softmax no axis. Taken down"
            " the columns, the weights of a query no longer add up to 1.",
            "3.1 でずれを表した k が、ここでは行の番号になっている。和には始点がなく、softmax には軸の指定がない。列方"
            "向にとると、1 つのクエリの重みの和は 1 にならない。",
        ),
        right=Words(
            "softmax over each row; row k of the result is Σ_{t=1}^n a_{k,t} v_t. That 1/√d_k is absent is that book's"
            " definition: scale=1.0 here. The default scale gives other numbers.",
            "softmax は行ごとに計算し、結果の第 k 行は Σ_{t=1}^n a_{k,t} v_t である。1/√d_k がないのはこの本の定義で、"
            "ここでは scale=1.0 にあたる。既定のスケールでは値が変わる。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
Q = K = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]).double()
V = torch.tensor([[1.0], [2.0], [3.0]]).double()
A = (Q @ K.mT).softmax(0)
[[round(x, 4) for x in column.tolist()] for column in (
    A.sum(-1), (A @ V)[:, 0],
)]""",
            r"\[\[0\.5936, 0\.9619, 1\.4445\], \[0\.7807, 1\.6189, 3\.6004\]\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention, attention_weights
Q = K = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]).double()
V = torch.tensor([[1.0], [2.0], [3.0]]).double()
A = attention_weights(Q, K, scale=1.0)
by_sums = [sum(A[k, t] * V[t] for t in range(3)) for k in range(3)]
[[round(x, 4) for x in column.tolist()] for column in (
    A.sum(-1), attention(Q, K, V, scale=1.0)[:, 0],
    torch.cat(by_sums), attention(Q, K, V)[:, 0],  # with 1/√d_k
)]""",
            r"\[\[1\.0, 1\.0, 1\.0\], \[1\.733, 2\.267, 2\.8509\], \[1\.733, 2\.267, 2\.8509\], "
            r"\[1\.7967, 2\.2033, 2\.7225\]\]",
        ),
    ),
    Erratum(
        number=40,
        source=f"{_KIKUTA}, 3.2, 3.3 and the support page",
        title=Words("The shapes of W₁ and W₂", "W₁ と W₂ の形"),
        wrong=Words(
            "W₁ ∈ R^{d×d_ff}, W₂ ∈ R^{d_ff×d}: then W₁x doesn't exist for x ∈ R^d. (And the solutions of 3.2 and 3.3"
            " are only links.)",
            "W₁ ∈ R^{d×d_ff}、W₂ ∈ R^{d_ff×d} とすると、x ∈ R^d に対して W₁x が定義されない（また 3.2 と 3.3 の解答は"
            "リンクだけである）。",
        ),
        right=Words(
            "W₁ ∈ R^{d_ff×d} and W₂ ∈ R^{d×d_ff}, as nn.Linear stores them. The figure of 3.2 is `attendo figure"
            " position-heatmap`.",
            "W₁ ∈ R^{d_ff×d}、W₂ ∈ R^{d×d_ff} が正しく、nn.Linear の重みもこの形である。3.2 の図は"
            " `attendo figure position-heatmap` で描ける。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
d, d_ff = 2, 3
x, W_1, W_2 = torch.ones(d), torch.ones(d, d_ff), torch.ones(d_ff, d)
(W_2 @ (W_1 @ x).relu()).shape""",
            r"RuntimeError: size mismatch, got .*",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.feedforward import FeedForward
d, d_ff = 2, 3
x, net = torch.ones(d), FeedForward(d, d_ff, bias=False)
W_1, W_2 = net.in_proj.weight, net.out_proj.weight
y = W_2 @ (W_1 @ x).relu()
tuple(W_1.shape), tuple(W_2.shape), torch.allclose(net(x), y)""",
            r"\(\(3, 2\), \(2, 3\), True\)",
        ),
    ),
    Erratum(
        number=41,
        source=f"{_BISHOP}, 12.2",
        title=Words("The exponent of the weights", "重みの指数"),
        wrong=Words(
            "The exponents of the first line read Σ_k x_m, which does not know n: all rows of weights are the same."
            " The last line has - 1 for = 1.",
            "1 行目の指数が Σ_k x_m となっていて n を含まない。これでは重みの行がすべて同じになる。また最後の行は"
            "「= 1」とすべきところが「- 1」となっている。",
        ),
        right=Words(
            "a_nm = exp(x_nᵀx_m)/Σ_{m'} exp(x_nᵀx_{m'}) > 0, and Σ_m a_nm = 1.",
            "正しくは a_nm = exp(x_nᵀx_m)/Σ_{m'} exp(x_nᵀx_{m'}) > 0、Σ_m a_nm = 1 である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import masked_softmax
X = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
A = masked_softmax(X.sum(-1).expand(2, 2))
[[round(a, 4) for a in row.tolist()] for row in A], [
    round(total, 4) for total in (A.sum(-1) - 1).abs().tolist()
]""",
            r"\(\[\[0\.2689, 0\.7311\], \[0\.2689, 0\.7311\]\], \[0\.0, 0\.0\]\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_weights
X = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
A = attention_weights(X, X, scale=1.0)
[[round(a, 4) for a in row.tolist()] for row in A], [
    round(total, 4) for total in A.sum(-1).tolist()
]""",
            r"\(\[\[0\.7311, 0\.2689\], \[0\.018, 0\.982\]\], \[1\.0, 1\.0\]\)",
        ),
    ),
    Erratum(
        number=42,
        source=f"{_BISHOP}, 12.7",
        title=Words("The lost P", "失われた P"),
        wrong=Words(
            "The last step of the chain drops the leading P: Att(PX) = Att(X), as if order were invisible in the"
            " output. And π: N → N, which would permute all numbers.",
            "変形の最後で左端の P が落ち、Att(PX) = Att(X) になっている。出力が順序によらないという誤った主張である。"
            "また π: N → N では自然数全体の置換になってしまう。",
        ),
        right=Words(
            "Att(PX) = P Att(X): the outputs move along with the tokens (equivariance). π permutes {1, …, N}, and a row"
            " still sums to 1, for Σ over π(n') is Σ over n'.",
            "Att(PX) = P Att(X) である。出力はトークンとともに並び替わる（同変性）。π は {1, …, N} の置換であり、π(n') "
            "についての和は n' についての和に等しいので、行の和は 1 のままである。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
def Att(X):
    return attention(X, X, X)
X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]).double()
P = torch.eye(3).double()[[2, 0, 1]]
round((Att(P @ X) - Att(X)).abs().max().item(), 4)""",
            r"0\.9259",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
def Att(X):
    return attention(X, X, X)
X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]).double()
P = torch.eye(3).double()[[2, 0, 1]]
round((Att(P @ X) - P @ Att(X)).abs().max().item(), 4)""",
            r"0\.0",
        ),
    ),
    Erratum(
        number=43,
        source=f"{_BISHOP}, 12.5",
        title=Words("How wide a head's term is", "各ヘッドの項の幅"),
        wrong=Words(
            "Att(Q_h, K_h, XW^(h)) is given the width D_v of a value head. Terms that narrow don't add up to an output"
            " of width D.",
            "Att(Q_h, K_h, XW^(h)) の幅を、バリューのヘッドの幅 D_v としている。その幅では、和が幅 D の出力にならな"
            "い。",
        ),
        right=Words(
            "W^(h) = W_h^v W_h^o is D × D, so each term has width D, and the terms add up. What stays of D_v is the"
            " rank: D_v at most.",
            "W^(h) = W_h^v W_h^o は D × D なので、各項の幅は D であり、足し合わせることができる。D_v が残るのはランク"
            "で、高々 D_v である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention
from attendo.inspecting.contributions import head_matrices
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    layer, X = Attention(6, 3, bias=False), torch.randn(1, 5, 6)
total = torch.zeros(5, layer.value_dim)  # N × D_v
for W_h in head_matrices(layer).detach():
    total += (X @ W_h.mT)[0]
total.shape""",
            r"RuntimeError: The size of tensor a \(2\) must match the size of tensor b \(6\) .*",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention, attention
from attendo.inspecting.contributions import head_matrices
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    layer, X = Attention(6, 3, bias=False), torch.randn(1, 5, 6)
W, total = head_matrices(layer), torch.zeros(5, 6)  # N × D
query = layer.q_proj(X).unflatten(-1, (3, 2))[0].transpose(0, 1)
key, _ = layer.keys_values(X)
for Q, K, W_h in zip(query, key[0], W):
    total = total + attention(Q, K, X[0] @ W_h.mT)
same = torch.allclose(total, layer(X, X)[0], atol=1e-6)
tuple(total.shape), same, torch.linalg.matrix_rank(W).tolist()""",
            r"\(\(5, 6\), True, \[2, 2, 2\]\)",
        ),
    ),
)
