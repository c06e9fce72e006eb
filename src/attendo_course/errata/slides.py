"""Errata 44 to 48: the slides ChatGPTの仕組みを理解したい! 3, Transformer編."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

_SLIDES = "S4 slides ChatGPTの仕組みを理解したい! 3"

ERRATA = (
    Erratum(
        number=44,
        source=f"{_SLIDES}, self-attention",
        title=Localized("Columns here, rows there", "列の式と行の式の混在"),
        wrong=Localized(
            "Q = W^(Q)X takes tokens as columns, but A = QKᵀ takes them as rows: the result is d × d, one number for"
            " each pair of features. Where n = d, not even the shape tells.",
            "Q = W^(Q)X ではトークンが列だが、A = QKᵀ ではトークンを行とみなしている。結果は d × d で、トークンではなく"
            "特徴の組ごとの値になる。n = d のときは形からも気づけない。",
        ),
        right=Localized(
            "Rows throughout: Q = XW, A = QKᵀ, n × n; or columns throughout: A = KᵀQ, its transpose, softmax over"
            " columns, Z = VA.",
            "行で通すなら Q = XW, A = QKᵀ で n × n になる。列で通すなら A = KᵀQ（その転置）とし、softmax を列ごとにと"
            "り、Z = VA とする。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
X = torch.linspace(-1, 1, 12).view(4, 3)  # d = 4, n = 3: token columns
W_q, W_k = torch.eye(4), torch.eye(4).flip(0)
Q, K = W_q @ X, W_k @ X
(Q @ K.mT).shape""",
            r"torch\.Size\(\[4, 4\]\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_scores
X = torch.linspace(-1, 1, 12).view(4, 3)  # d = 4, n = 3: token columns
W_q, W_k = torch.eye(4), torch.eye(4).flip(0)
Q, K = W_q @ X, W_k @ X
by_rows = attention_scores(Q.mT, K.mT, scale=1.0)
by_rows.shape, torch.allclose(by_rows, (K.mT @ Q).mT)""",
            r"\(torch\.Size\(\[3, 3\]\), True\)",
        ),
    ),
    Erratum(
        number=45,
        source=f"{_SLIDES}, self-attention",
        title=Localized("Scores without 1/√d_k", "1/√d_k のないスコア"),
        wrong=Localized(
            "The softmax is taken of QKᵀ as it is. Its entries grow with √d_k, so in wide heads one key takes all the"
            " weight and the gradient vanishes.",
            "QKᵀ をそのまま softmax に渡している。値は √d_k に比例して大きくなるので、幅の広いヘッドでは 1 つのキーが"
            "重みを独占し、勾配が消える。",
        ),
        right=Localized(
            "softmax(QKᵀ/√d_k), the default of attendo; the slides' form is the option scale=1.",
            "softmax(QKᵀ/√d_k) とする。attendo の既定値であり、スライドの形は scale=1 という選択肢として残る。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_weights
Q = torch.ones(1, 64).double()
K = torch.tensor([[0.0], [1.0], [2.0]]).double().expand(3, 64) / 8
A = attention_weights(Q, K, scale=1.0)
[round(a, 4) for a in A[0].tolist()]""",
            r"\[0\.0, 0\.0003, 0\.9997\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_weights
Q = torch.ones(1, 64).double()
K = torch.tensor([[0.0], [1.0], [2.0]]).double().expand(3, 64) / 8
A = attention_weights(Q, K)
[round(a, 4) for a in A[0].tolist()]""",
            r"\[0\.09, 0\.2447, 0\.6652\]",
        ),
    ),
    Erratum(
        number=46,
        source=f"{_SLIDES}, the softmax example",
        title=Localized("A softmax that is none", "softmax ではない softmax"),
        wrong=Localized(
            "(12, 8, -1, 19) is turned into (.3, .2, .01, .49). Each pair of weights would need another inverse"
            " temperature β = Δ log a / Δ s. Also, two steps are numbered 2; the second of them is step 3.",
            "(12, 8, -1, 19) が (0.3, 0.2, 0.01, 0.49) になるとしているが、重みの組ごとに逆温度 β = Δ log a / Δ s が"
            "異なってしまう。また手順 2 が 2 つあり、後のほうは 3 である。",
        ),
        right=Localized(
            "The softmax gives (9.1e-4, 1.7e-5, 2.1e-9, .99907), β = 1 for every pair. No temperature gives the"
            " slide's numbers; τ = 9.3 comes nearest, still .05 off: (.249, .162, .061, .528).",
            "softmax は (9.1e-4, 1.7e-5, 2.1e-9, 0.99907) で、どの組も β = 1 である。スライドの値になる温度はなく、"
            "最も近い τ = 9.3 の (0.249, 0.162, 0.061, 0.528) でも最大 0.05 ずれる。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
scores = torch.tensor([19.0, 12.0, 8.0, -1.0]).double()  # in order
weights = torch.tensor([0.49, 0.3, 0.2, 0.01]).double()
beta = weights.log().diff() / scores.diff()
[round(a, 5) for a in weights.tolist()], [
    round(b, 3) for b in beta.tolist()
]""",
            r"\(\[0\.49, 0\.3, 0\.2, 0\.01\], \[0\.07, 0\.101, 0\.333\]\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import masked_softmax
scores = torch.tensor([19.0, 12.0, 8.0, -1.0]).double()  # in order
weights = masked_softmax(scores[None])[0]
beta = weights.log().diff() / scores.diff()
[round(a, 5) for a in weights.tolist()], [
    round(b, 3) for b in beta.tolist()
]""",
            r"\(\[0\.99907, 0\.00091, 2e-05, 0\.0\], \[1\.0, 1\.0, 1\.0\]\)",
        ),
    ),
    Erratum(
        number=47,
        source=f"{_SLIDES}, multi-head attention",
        title=Localized("Heads are not hard to parallelize", "ヘッドの並列化は難しくない"),
        wrong=Localized(
            "Several heads are said to be harder to compute in parallel, as if each were a pass of its own.",
            "ヘッドを増やすと並列計算が難しくなるとし、ヘッドごとに計算し直すかのように述べている。",
        ),
        right=Localized(
            "Heads are one more axis of a batched product: one call for all. With d_k = d/h, h heads cost the products"
            " of one head of width d.",
            "ヘッドは行列積のバッチの軸が 1 つ増えるだけで、1 回の呼び出しで済む。d_k = d/h なら h 個のヘッドの演算量は"
            "幅 d のヘッド 1 つと同じである。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch.overrides import TorchFunctionMode
products = []  # multiplications and additions of each
class Counting(TorchFunctionMode):
    def __torch_function__(self, call, types, args=(), kwargs=None):
        out = call(*args, **(kwargs or {}))
        if "matmul" in call.__name__:
            products.append(2 * out.numel() * args[0].shape[-1])
        return out
Q = torch.linspace(-1, 1, 160).view(5, 8, 4).transpose(0, 1)
with Counting():
    H = [(q @ q.mT / 2).softmax(-1) @ q for q in Q]  # head by head
len(products), sum(products)""",
            r"\(16, 3200\)",
        ),
        right_code=Snippet(
            """\
import torch
from torch.overrides import TorchFunctionMode
from attendo.nn.attention import attention
products = []  # multiplications and additions of each
class Counting(TorchFunctionMode):
    def __torch_function__(self, call, types, args=(), kwargs=None):
        out = call(*args, **(kwargs or {}))
        if "matmul" in call.__name__:
            products.append(2 * out.numel() * args[0].shape[-1])
        return out
Q = torch.linspace(-1, 1, 160).view(5, 8, 4).transpose(0, 1)
one = Q.transpose(0, 1).reshape(1, 5, 32)  # one head, as wide as all
with Counting():
    attention(Q, Q, Q)  # 8 heads, together
eight = len(products), sum(products)
products.clear()
with Counting():
    attention(one, one, one)
eight, (len(products), sum(products))""",
            r"\(\(2, 3200\), \(2, 3200\)\)",
        ),
    ),
    Erratum(
        number=48,
        source=f"{_SLIDES}, encoder and decoder",
        title=Localized("Who makes K and V", "K と V を作るのは誰か"),
        wrong=Localized(
            "The encoder is said to make K and V, as if all decoder layers read the same ones. The causal mask of the"
            " decoder goes unmentioned.",
            "エンコーダが K と V を作り、デコーダの全層が同じものを使うかのようである。因果マスクへの言及もない。",
        ),
        right=Localized(
            "The encoder makes h^Enc, once. Each decoder layer projects its own K and V from it (they can be kept for"
            " the whole sentence), and its self-attention is causal (erratum 13).",
            "エンコーダは h^Enc を一度だけ作る。デコーダの各層がそこから自分の K と V を作り（文の間は保存しておけ"
            "る）、セルフアテンションには因果マスクをかける（正誤 13）。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    layers = [Attention(8, 2), Attention(8, 2)]
    memory, y = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
shared = layers[0].keys_values(memory)  # "the encoder's K and V"
[torch.allclose(layer.attend_to(y, *shared), layer(y, memory))
 for layer in layers]""",
            r"\[True, False\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    layers = [Attention(8, 2), Attention(8, 2)]
    memory, y = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
own = [layer.keys_values(memory) for layer in layers]
[torch.allclose(layer.attend_to(y, *K_V), layer(y, memory))
 for layer, K_V in zip(layers, own)]""",
            r"\[True, True\]",
        ),
    ),
)
