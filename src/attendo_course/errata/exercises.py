"""Errata 38, 41 and 42: solutions to 原論文から解き明かす生成AI, chapter 3, and to Bishop & Bishop, chapter 12."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

_KIKUTA = "S0 solutions to Kikuta 2025"
_BISHOP = "S2 solutions to Bishop & Bishop 2024"

ERRATA = (
    Erratum(
        number=38,
        source=f"{_KIKUTA}, 3.1",
        title=Localized("Bilinear, not linear", "線形ではなく双線形"),
        wrong=Localized(
            "PE_{p+k} is called a linear combination of PE_p and PE_k. No fixed coefficients on the entries of both do"
            " it: the nearest linear form misses by more than 1.",
            "PE_{p+k} は PE_p と PE_k の線形結合だとしている。しかし両者の成分に定数係数を掛けて足しても表せず、"
            "最良の線形式でも誤差が 1 を超える。",
        ),
        right=Localized(
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
from attendo_course.shifts import shift_matrix
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
        number=41,
        source=f"{_BISHOP}, 12.2",
        title=Localized("The exponent of the weights", "重みの指数"),
        wrong=Localized(
            "The exponents of the first line read Σ_k x_m, which does not know n: all rows of weights are the same."
            " The last line has - 1 for = 1.",
            "1 行目の指数が Σ_k x_m となっていて n を含まない。これでは重みの行がすべて同じになる。また最後の行は"
            "「= 1」とすべきところが「- 1」となっている。",
        ),
        right=Localized(
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
        title=Localized("The lost P", "失われた P"),
        wrong=Localized(
            "The last step of the chain drops the leading P: Att(PX) = Att(X), as if order were invisible in the"
            " output. And π: N → N, which would permute all numbers.",
            "変形の最後で左端の P が落ち、Att(PX) = Att(X) になっている。出力が順序によらないという誤った主張である。"
            "また π: N → N では自然数全体の置換になってしまう。",
        ),
        right=Localized(
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
)
