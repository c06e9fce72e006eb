"""Errata 21 to 29: the draft of the weather post, its model, its formulas and its plot."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

_DRAFT = "S3 weather post, draft"

ERRATA = (
    Erratum(
        number=21,
        source=f"{_DRAFT}, SingleQueryAttention.__init__",
        title=Localized("W_v and b_v are never set", "W_v と b_v が設定されない"),
        wrong=Localized(
            "The constructor assigns w_k and b_k a second time where w_v and b_v are due. Equinox then refuses the"
            " module: fields that are declared and not initialised (the check is imitated here).",
            "コンストラクタが w_v と b_v を設定すべきところで、w_k と b_k をもう一度設定している。宣言されたフィールド"
            "が初期化されないので、Equinox はモジュールの生成を拒む（ここではその検査を模した）。",
        ),
        right=Localized(
            "A third pair of its own, W_v ∈ R^{d_out×d_in} and b_v ∈ R^{d_out}; only queries and keys share d_attn.",
            "W_v ∈ R^{d_out×d_in} と b_v ∈ R^{d_out} を別に用意する。d_attn を共有するのはクエリとキーだけである。",
        ),
        mark="shown by analogy",
        wrong_code=Snippet(
            """\
import torch
class Attention:
    w_k: torch.Tensor
    b_k: torch.Tensor
    w_v: torch.Tensor
    b_v: torch.Tensor
    def __init__(self, d_in=4, d_attn=6, d_out=3):
        self.w_k, self.b_k = torch.ones(d_attn, d_in), torch.ones(d_attn)
        self.w_k, self.b_k = torch.ones(d_out, d_in), torch.ones(d_out)
def built(module):  # as Equinox does, once __init__ is over
    missing = type(module).__annotations__.keys() - vars(module).keys()
    if missing:
        raise ValueError(f"fields not initialised: {sorted(missing)}")
    return module
[tuple(w.shape) for w in vars(built(Attention())).values()]""",
            r"ValueError: fields not initialised: \['b_v', 'w_v'\]",
        ),
        right_code=Snippet(
            """\
from attendo_course.presets import weather_blog
layer = weather_blog(d_in=4, d_attn=6, d_out=3)
w_k, b_k = layer.k_proj.weight, layer.k_proj.bias
w_v, b_v = layer.v_proj.weight, layer.v_proj.bias
[tuple(w.shape) for w in (w_k, b_k, w_v, b_v)]""",
            r"\[\(6, 4\), \(6,\), \(3, 4\), \(3,\)\]",
        ),
    ),
    Erratum(
        number=22,
        source=f"{_DRAFT}, SingleQueryAttention.__init__",
        title=Localized("√d_attn: another name, and trained", "√d_attn の名前が違い、しかも学習される"),
        wrong=Localized(
            "The field is declared as sqrt_d_attn, but self.d_attn is assigned, a field that doesn't exist. Once it is"
            " called by its name, it is an array among the parameters, and the optimizer moves it.",
            "フィールドは sqrt_d_attn と宣言されているが、代入先は存在しない self.d_attn である。名前を直しても、配列"
            "なのでパラメータの 1 つとみなされ、最適化で値が動いてしまう。",
        ),
        right=Localized(
            "1/√d_attn follows from the shape: a plain (static) number, which no optimizer sees.",
            "1/√d_attn は形から決まる。最適化の対象にならない、ただの（静的な）数とする。",
        ),
        mark="shown by analogy",
        wrong_code=Snippet(
            """\
import torch
class Attention:
    __slots__ = ("sqrt_d_attn",)  # the one field that is declared
    def __init__(self, d_attn, name):
        setattr(self, name, torch.tensor(d_attn**0.5, requires_grad=True))
try:
    refused = Attention(6, "d_attn")
except AttributeError as error:
    refused = type(error).__name__
layer, scores = Attention(6, "sqrt_d_attn"), torch.tensor([0.0, 6.0])
before = layer.sqrt_d_attn.item()
(-(scores / layer.sqrt_d_attn).log_softmax(-1)[1]).backward()
layer.sqrt_d_attn.data -= layer.sqrt_d_attn.grad  # a training step
refused, round(before, 4), round(layer.sqrt_d_attn.item(), 4)""",
            r"\('AttributeError', 2\.4495, 2\.37\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_scores
from attendo_course.presets import weather_blog
layer = weather_blog(d_attn=6)
ones = torch.ones(1, layer.head_dim)
before = layer.head_dim / attention_scores(ones, ones).item()
layer(torch.ones(1, 2, 4), torch.eye(4)[None]).sum().backward()
for parameter in layer.parameters():
    parameter.data -= parameter.grad  # a training step
after = layer.head_dim / attention_scores(ones, ones).item()
list(layer.attend.parameters()), round(before, 4), round(after, 4)""",
            r"\(\[\], 2\.4495, 2\.4495\)",
        ),
    ),
    Erratum(
        number=23,
        source=f"{_DRAFT}, SingleQueryAttention.__call__",
        title=Localized("All queries at once, and rows for columns", "全クエリの処理と、行と列の取り違え"),
        wrong=Localized(
            "The class handles every query, for q.T @ k is T × T, so it isn't the single-query algorithm. Tokens come"
            " in as columns, d_in × T, and leave as rows: alpha @ v.T is T × d_out.",
            "q.T @ k は T × T であり、全クエリを処理しているので、単一クエリのアルゴリズムではない。トークンは列（d_in"
            " × T）で入るのに、alpha @ v.T は T × d_out で、行になって出てくる。",
        ),
        right=Localized(
            "Columns in, columns out: v @ alpha.T, d_out × T, is attention as attendo computes it, transposed. A"
            " single query is a T of 1 on the query's side.",
            "列で入れたら列で返す。v @ alpha.T は d_out × T で、attendo のアテンションの転置に等しい。"
            "単一クエリとは、クエリ側"
            "の長さが 1 の場合である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
x = torch.linspace(-1, 1, 20).view(4, 5)  # d_in = 4, T = 5
w_q, w_k, w_v = torch.eye(6, 4), torch.ones(6, 4), torch.eye(3, 4)
q, k, v = w_q @ x, w_k @ x, w_v @ x
alpha = (q.T @ k / 6**0.5).softmax(-1)
out = alpha @ v.T
tuple(x.shape), tuple(alpha.shape), tuple(out.shape)""",
            r"\(\(4, 5\), \(5, 5\), \(5, 3\)\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
x = torch.linspace(-1, 1, 20).view(4, 5)  # d_in = 4, T = 5
w_q, w_k, w_v = torch.eye(6, 4), torch.ones(6, 4), torch.eye(3, 4)
q, k, v = w_q @ x, w_k @ x, w_v @ x
alpha = (q.T @ k / 6**0.5).softmax(-1)
out = v @ alpha.T
single = attention(q.T[-1:], k.T, v.T)  # the last day's query alone
(tuple(x.shape), tuple(alpha.shape), tuple(out.shape),
 torch.allclose(out, attention(q.T, k.T, v.T).T),
 torch.allclose(out[:, -1:], single.T))""",
            r"\(\(4, 5\), \(5, 5\), \(3, 5\), True, True\)",
        ),
    ),
    Erratum(
        number=24,
        source=f"{_DRAFT}, the shapes of W_q, W_k, W_v and W_p",
        title=Localized("One shape for all matrices", "すべての行列が同じ形"),
        wrong=Localized(
            "W_q, W_k and W_v are all said to be d_attn × e: the output has width d_attn then, six logits for three"
            " kinds of weather. And W_p is d_p × L, but is added to columns of width d_e.",
            "W_q, W_k, W_v がすべて d_attn × e とされている。それでは出力の幅が d_attn になり、3 種の天気に 6 個のロジ"
            "ットが出る。また W_p は d_p × L なのに、幅 d_e の列に足している。",
        ),
        right=Localized(
            "W_q and W_k are d_attn × d_in, W_v is d_out × d_in; a sum needs d_p = d_e.",
            "W_q と W_k は d_attn × d_in、W_v は d_out × d_in である。足すためには d_p = d_e でなければならない。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
d_e, d_p, d_attn, L, N_V = 4, 2, 6, 10, 3
W_e, W_p = torch.ones(d_e, N_V), torch.ones(d_p, L)
W_v, alpha = torch.ones(d_attn, d_e), torch.ones(N_V) / N_V
v_tilde = (W_v @ W_e) @ alpha
try:
    embedded = W_e[:, 0] + W_p[:, 0]
except RuntimeError as error:
    embedded = str(error)
tuple(v_tilde.shape), embedded""",
            r"\(\(6,\), 'The size of tensor a \(4\) must match the size of tensor b \(2\).*'\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.layers import InputEmbedding, TokenEmbedding
from attendo.nn.positions import LearnedPositions
from attendo_course.presets import weather_blog
d_e, d_attn, d_out, L, N_V = 4, 6, 3, 10, 3
embed = InputEmbedding(TokenEmbedding(N_V, d_e), LearnedPositions(d_e, L))
layer = weather_blog(d_in=d_e, d_attn=d_attn, d_out=d_out)
embedded = embed(torch.tensor([[0, 2, 1]]))
v_tilde = layer(embedded, embedded)[0, 0]
tuple(v_tilde.shape), tuple(embedded[0, 0].shape)""",
            r"\(\(3,\), \(4,\)\)",
        ),
    ),
    Erratum(
        number=25,
        source=f"{_DRAFT}, the context of attention",
        title=Localized("A context of vocabulary", "文脈の添字が語彙を走る"),
        wrong=Localized(
            "The context is written e_0, …, e_{N_V}, an index over words, not over time: all texts that end alike get"
            " the same answer. With [N_V] = {1, …, N_V} there is no 0 besides; and L stands beside ℓ.",
            "文脈が e_0, …, e_{N_V} と書かれ、時刻でなく語彙の添字になっている。これでは末尾が同じ文はみな同じ答えにな"
            "る。[N_V] = {1, …, N_V} に 0 はなく、L と ℓ も混在している。",
        ),
        right=Localized(
            "e_1, …, e_T, one for each token of the sequence, T of them whatever N_V; then the days before count.",
            "系列の各トークンの e_1, …, e_T とする。個数は N_V によらず T で、以前の日が答えに効く。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
W_e = torch.eye(3).double()  # N_V = 3, row v: word v
def v_tilde(text):
    context = W_e
    return attention(W_e[text[-1:]], context, context)
one, other = v_tilde([0, 0, 0, 1, 2]), v_tilde([1, 1, 1, 1, 2])
try:
    count = len(W_e[torch.arange(3 + 1)])  # e_0 to e_{N_V}
except IndexError as error:
    count = type(error).__name__
count, torch.equal(one, other)""",
            r"\('IndexError', True\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
W_e = torch.eye(3).double()  # N_V = 3, row v: word v
def v_tilde(text):
    context = W_e[text]
    return attention(W_e[text[-1:]], context, context)
one, other = v_tilde([0, 0, 0, 1, 2]), v_tilde([1, 1, 1, 1, 2])
count = len(W_e[[0, 0, 0, 1, 2]])  # e_1 to e_T
count, torch.equal(one, other)""",
            r"\(5, False\)",
        ),
    ),
    Erratum(
        number=26,
        source=f"{_DRAFT}, positional embedding",
        title=Localized("Not the formula it is credited to", "式の出典の誤り"),
        wrong=Localized(
            "The base is L = ℓ_max and i starts at 1, credited to Vaswani et al.: so it stands in Phuong & Hutter,"
            " which has the same slip. No row turns by 1 radian a step (rows 1 to 4 at t = 1, d_e = 5, L = 50).",
            "底が L = ℓ_max で i が 1 から始まる式を Vaswani らのものとしている。これは Phuong & Hutter の式で、そこに"
            "ある誤りを引き継いだものである。1 歩で 1 ラジアン進む行がない（t = 1, d_e = 5, L = 50 の 1–4 行）。",
        ),
        right=Localized(
            "Vaswani et al. have base 10000, which knows no longest text, and i ≥ 0, so the first pair is sin t, cos"
            " t.",
            "Vaswani らの式の底は文の最大長によらない 10000 で、i ≥ 0 なので最初の組は sin t と cos t である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import math
L, d_e, t = 50, 5, 1
rows = []
for i in (1, 2):
    angle = t / L ** (2 * i / d_e)
    rows += [math.sin(angle), math.cos(angle)]
[round(x, 6) for x in rows]""",
            r"\[0\.207607, 0\.978212, 0\.043721, 0\.999044\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.positions import sinusoidal_encoding
d_e, t = 5, torch.tensor(1)
rows = sinusoidal_encoding(t, d_e, dtype=torch.float64)[:4]
[round(x, 6) for x in rows.tolist()]""",
            r"\[0\.841471, 0\.540302, 0\.025116, 0\.999685\]",
        ),
    ),
    Erratum(
        number=27,
        source=f"{_DRAFT}, plot of the positional embedding",
        title=Localized("The plot draws another formula", "プロットが式と一致しない"),
        wrong=Localized(
            "Even rows get the sine and odd ones the cosine, against the formula above it: the cosine's exponent slips"
            " by a pair, so that row 1 has frequency 1, and a fifth row appears. The axis starts at 0, where t does at"
            " 1.",
            "上の式とは逆に、偶数行が正弦、奇数行が余弦になっている。余弦の指数は 1 組ずれて 1 行目の角周波数が 1 にな"
            "り、式にない 5 行目も現れる。t は 1 から始まるのに、横軸は 0 から始まる。",
        ),
        right=Localized(
            "Row 2i - 1 is sin(t/L^{2i/d_e}), row 2i the cosine of the same, i ≤ d_e/2: four rows for d_e = 5."
            " `attendo figure position-curves` draws both.",
            "2i - 1 行が sin(t/L^{2i/d_e})、2i 行が同じ角の余弦で、i ≤ d_e/2 である。d_e = 5 なら 4 行になる。両者の図"
            "は `attendo figure position-curves` で並べて描ける。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import math
L, d_e, x = 50, 5, 1
rows = [
    math.cos(x / L ** ((i - 1) / d_e)) if i % 2
    else math.sin(x / L ** (i / d_e)) for i in range(1, d_e + 1)
]
[round(y, 6) for y in rows]""",
            r"\[0\.540302, 0\.207607, 0\.978212, 0\.043721, 0\.999044\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.positions import sinusoidal_encoding
L, d_e, t = 50.0, 5, torch.tensor(1)
rows = sinusoidal_encoding(t, d_e, L, first_index=1, dtype=torch.float64)
[round(y, 6) for y in rows[: d_e // 2 * 2].tolist()]""",
            r"\[0\.207607, 0\.978212, 0\.043721, 0\.999044\]",
        ),
    ),
    Erratum(
        number=28,
        source=f"{_DRAFT}, reading of the plot",
        title=Localized("What is encoded, and at how many frequencies", "何がいくつの周波数で埋め込まれるか"),
        wrong=Localized(
            "Each component is said to embed the word, at a frequency of its own. Then both suns of “sun rain sun”"
            " would get one vector, and the vectors would differ in length.",
            "各成分は単語を異なる周波数で埋め込むとしている。もしそうなら、「晴 雨 晴」の 2 つの晴は同じベクトルにな"
            "り、ベクトルの長さもまちまちになる。",
        ),
        right=Localized(
            "It is the position that is embedded, whatever the word. A sine and its cosine share one frequency: d"
            " components have d/2, and every vector has the squared length d/2.",
            "埋め込まれるのは単語でなく位置である。正弦と余弦の組は 1 つの周波数を共有するので、d 成分の周波数は d/2"
            " 個で、ベクトルのノルムの 2 乗は常に d/2 である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
def encode(t):  # component j turns at 50^(-j/4), j = 1 to 4
    omega = 50.0 ** -(torch.arange(1, 5).double() / 4)
    return (t[:, None] * omega).sin()
before, here, after = encode(torch.tensor([6, 7, 8]))
turns = ((before + after) / here).round(decimals=9)  # 2 cos ω
sun, rain, again = encode(torch.tensor([2, 0, 2]))  # by word
norms = encode(torch.arange(1, 51)).square().sum(-1)
torch.equal(sun, again), len(turns.unique()), (norms.std() < 1e-9).item()""",
            r"\(True, 4, False\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.positions import sinusoidal_encoding
def encode(t):
    return sinusoidal_encoding(
        t, 4, 50.0, first_index=1, dtype=torch.float64)
before, here, after = encode(torch.tensor([6, 7, 8]))
turns = ((before + after) / here).round(decimals=9)  # 2 cos ω
sun, rain, again = encode(torch.tensor([1, 2, 3]))  # by position
norms = encode(torch.arange(1, 51)).square().sum(-1)
torch.equal(sun, again), len(turns.unique()), (norms.std() < 1e-9).item()""",
            r"\(False, 2, True\)",
        ),
    ),
    Erratum(
        number=29,
        source=f"{_DRAFT}, get_embedding",
        title=Localized("Two days, one embedding", "異なる日が同じ埋め込みになる"),
        wrong=Localized(
            "The text adds 1/t, the code (i + 1)/L, and L = 50 becomes L = 10 while 20 days are generated. Beyond L"
            " sums collide: rain (-1) on day 11 is cloud (0) on day 1; 40 of 60 pairs stay distinct.",
            "本文は 1/t を足すが、コードは (i + 1)/L である。L は 50 から 10 に変わるのに、20 日分を生成する。L を超え"
            "ると和が衝突し、11 日目の雨（-1）は 1 日目の曇（0）と等しくなる。60 組のうち 40 通りしか区別できない。",
        ),
        right=Localized(
            "t/L needs L ≥ T, here 20; 1/t keeps all 60 apart, too.",
            "t/L なら L ≥ T（ここでは 20）とする。1/t でも 60 組すべてを区別できる。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo_course.weather_embeddings import *
embed = scalar_embedding("ramp", length=10)
rain, cloud = embed(torch.tensor([[0] * 20, [1] * 20]))[..., 0]
torch.isclose(rain[10], cloud[0]).item(), distinct_sums(embed, 20)""",
            r"\(True, 40\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo_course.weather_embeddings import *
inverse = distinct_sums(scalar_embedding("inverse"), 20)
embed = scalar_embedding("ramp", length=20)
rain, cloud = embed(torch.tensor([[0] * 20, [1] * 20]))[..., 0]
(torch.isclose(rain[10], cloud[0]).item(), distinct_sums(embed, 20),
 inverse)""",
            r"\(False, 60, 60\)",
        ),
    ),
)
