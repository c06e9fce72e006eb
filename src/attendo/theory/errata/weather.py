"""Errata 21 to 29: the weather post's formulas, plots and attention."""

from __future__ import annotations

from attendo.theory.errata.erratum import Erratum, Snippet
from attendo.theory.words import Words

POST = "S3 weather post"

ERRATA = (
    Erratum(
        21,
        f"{POST}, SingleQueryAttention",
        Words("The value's weights are never set", "値の重みが設定されない"),
        Words(
            "The constructor sets w_k and b_k twice and w_v and b_v not at all; a module with declared fields refuses"
            " to be built.",
            "コンストラクタが w_k と b_k を二度設定し、w_v と b_v を設定しない。"
            "フィールドを宣言したモジュールは構築できない。",
        ),
        Words(
            "Set W_v ∈ R^{d_out×d_in} and b_v ∈ R^{d_out} once, beside W_k.",
            "W_k と並べて W_v ∈ R^{d_out×d_in} と b_v ∈ R^{d_out} を一度ずつ設定する。",
        ),
        "run",
        Snippet(
            """class SingleQueryAttention:
    __slots__ = ("w_k", "w_v")
    def __init__(self):
        self.w_k = "for keys"
        self.w_k = "for values"  # meant to be w_v
SingleQueryAttention().w_v""",
            r"AttributeError: .*w_v.*",
        ),
        Snippet(
            """from attendo.nn.attention import Attention
from torch import nn
one = Attention(4, 1, head_dim=6, value_dim=3, out_proj=nn.Identity())
one.k_proj.weight.shape[0], one.v_proj.weight.shape[0]""",
            r"\(6, 3\)",
        ),
    ),
    Erratum(
        22,
        f"{POST}, SingleQueryAttention",
        Words(
            "A constant declared under one name, set under another, and trained",
            "宣言と代入で名前が違い、学習までされる定数",
        ),
        Words(
            "The field sqrt_d_attn is declared, self.d_attn assigned; and as an array, √d_attn would be a parameter"
            " that training moves.",
            "宣言されたフィールドは sqrt_d_attn、代入されるのは self.d_attn である。"
            "しかも配列なので √d_attn が学習で動いてしまう。",
        ),
        Words(
            "One name, and a plain float: 1/√d_attn is a constant of the layer.",
            "名前を一つにし、ただの浮動小数とする。1/√d_attn は層の定数である。",
        ),
        "run",
        Snippet(
            """import torch
from torch import nn
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.sqrt_d_attn = nn.Parameter(torch.tensor(2.0))
layer = Scaled()
(torch.tensor(6.0) / layer.sqrt_d_attn).backward()
len(list(layer.parameters())), layer.sqrt_d_attn.grad.item()""",
            r"\(1, -1\.5\)",
        ),
        Snippet(
            """from attendo.nn.attention import Attend
leaf = Attend(scale=0.5)
len(list(leaf.parameters())), leaf.scale""",
            r"\(0, 0\.5\)",
        ),
    ),
    Erratum(
        23,
        f"{POST}, SingleQueryAttention",
        Words("Not a single query, and the output turned round", "単一クエリではなく、出力の向きも違う"),
        Words(
            "The class handles all queries at once (its scores are T×T), and alpha @ v.T is T×d_out although the input"
            " is d_in×T.",
            "このクラスは全クエリを一度に扱い（スコアは T×T）、"
            "入力が d_in×T なのに alpha @ v.T は T×d_out になる。",
        ),
        Words(
            "With columns as tokens the output is v @ alpha.T, d_out×T.",
            "列がトークンなら出力は v @ alpha.T で、d_out×T となる。",
        ),
        "run",
        Snippet(
            """import torch
T, d_attn, d_out = 5, 6, 3
q, k, v = torch.ones(d_attn, T), torch.ones(d_attn, T), torch.ones(d_out, T)
alpha = (q.T @ k / d_attn**0.5).softmax(-1)
tuple(alpha.shape), tuple((alpha @ v.T).shape)""",
            r"\(\(5, 5\), \(5, 3\)\)",
        ),
        Snippet(
            """import torch
from attendo.nn.attention import attention
T, d_attn, d_out = 5, 6, 3
q, k, v = torch.ones(d_attn, T), torch.ones(d_attn, T), torch.ones(d_out, T)
columns = attention(q.T, k.T, v.T).T  # = v @ alpha.T
tuple(columns.shape), tuple(attention(q.T[:1], k.T, v.T).T.shape)""",
            r"\(\(3, 5\), \(3, 1\)\)",
        ),
    ),
    Erratum(
        24,
        f"{POST}, text on the weights' shapes",
        Words("All weights given one shape", "すべての重みが同じ形とされる"),
        Words(
            "All W are said to be d_attn×e, and W_p d_p×L although it is added to an embedding of width d_e.",
            "W はすべて d_attn×e とされ、W_p は d_p×L なのに幅 d_e の埋め込みに足される。",
        ),
        Words(
            "W_q and W_k are d_attn×d_in, W_v is d_out×d_in, and d_p = d_e.",
            "W_q と W_k は d_attn×d_in、W_v は d_out×d_in で、d_p = d_e である。",
        ),
        "run",
        Snippet(
            """import torch
W_e, W_p = torch.zeros(4, 3), torch.zeros(6, 10)  # d_e = 4, d_p = 6
W_e[:, 0] + W_p[:, 0]""",
            r"RuntimeError: The size of tensor a \(4\) must match the size of tensor b \(6\).*",
        ),
        Snippet(
            """from attendo.nn.attention import Attention
from attendo.nn.positions import LearnedPositions
from torch import nn
a = Attention(4, 1, head_dim=6, value_dim=3, out_proj=nn.Identity())
shapes = [tuple(p.weight.shape) for p in (a.q_proj, a.k_proj, a.v_proj)]
shapes, LearnedPositions(4, 10).weight.shape[1]""",
            r"\(\[\(6, 4\), \(6, 4\), \(3, 4\)\], 4\)",
        ),
    ),
    Erratum(
        25,
        f"{POST}, definition of the context",
        Words("The context runs over the vocabulary", "文脈の添字が語彙を走る"),
        Words(
            "The context is written e_0, ..., e_{N_V}, one for each word of the vocabulary; [N_V] and ℓ are mixed"
            " with L.",
            "文脈が e_0, ..., e_{N_V} と、語彙の語ごとに書かれている。[N_V] の範囲や ℓ と L も混同されている。",
        ),
        Words(
            "It runs over the sequence, e_1, ..., e_T, whatever the vocabulary; [N_V] = {1, ..., N_V}.",
            "文脈は系列 e_1, ..., e_T であり、語彙の大きさによらない。[N_V] = {1, ..., N_V} である。",
        ),
        "run",
        Snippet(
            """import torch
text, W_e = torch.tensor([0, 0, 1, 2, 1]), torch.eye(3)
context = W_e  # e_1 ... e_{N_V}: one column a word
context.shape[1] == len(text)""",
            r"False",
        ),
        Snippet(
            """import torch
from attendo.theory.algorithms import token_embedding
text, W_e = [1, 1, 2, 3, 2], torch.eye(3)
context = torch.stack([token_embedding(v, W_e) for v in text], dim=1)
context.shape[1] == len(text)""",
            r"True",
        ),
    ),
    Erratum(
        26,
        f"{POST}, positional embedding",
        Words("The formula is not the one it is credited to", "式の出典が違う"),
        Words(
            "The base is L and i starts at 1, credited to Vaswani et al.; it is the form of Phuong & Hutter, in which"
            " the first pair already turns slower than one radian a step.",
            "底が L で i が 1 から始まる式が Vaswani らのものとされるが、Phuong & Hutter の形である。"
            "そこでは最初の組から"
            "すでに 1 歩 1 ラジアンより遅い。",
        ),
        Words(
            "Vaswani et al.: base 10000 and i ≥ 0, so that the first sine is sin p.",
            "Vaswani らの式は底が 10000、i ≥ 0 であり、最初の正弦は sin p である。",
        ),
        "run",
        Snippet(
            """import torch
from attendo.nn.positions import sinusoidal_encoding
row = sinusoidal_encoding(torch.tensor(1), 4, 50.0, first_index=1)
[round(x, 6) for x in row.tolist()]""",
            r"\[0\.14095, 0\.990017, 0\.019999, 0\.9998\]",
        ),
        Snippet(
            """import torch
from attendo.nn.positions import sinusoidal_encoding
row = sinusoidal_encoding(torch.tensor(1), 4)
[round(x, 6) for x in row.tolist()]""",
            r"\[0\.841471, 0\.540302, 0\.01, 0\.99995\]",
        ),
    ),
    Erratum(
        27,
        f"{POST}, plot of the positional embedding",
        Words("The plot does not draw the formula", "プロットが式どおりではない"),
        Words(
            "The plotting code swaps sine and cosine against its own formula, gives row 1 frequency 1, starts at 0, and"
            " draws a fifth row that the formula does not define for an odd d_e.",
            "プロットのコードは自身の式に対して正弦と余弦を取り違え、1 行目の周波数を 1 とし、0 から始め、"
            "奇数の d_e では式が"
            "定めない 5 行目まで描く。",
        ),
        Words(
            "By the formula with L = 50, d_e = 5 the first four rows at t = 1 are .2076, .9782, .0437, .9990.",
            "式のとおりなら、L = 50、d_e = 5、t = 1 の最初の 4 行は .2076, .9782, .0437, .9990 である。",
        ),
        "run",
        Snippet(
            """import math
L, d_e, x = 50, 5, 1
even = lambda i: math.sin(x / L ** (i / d_e))
odd = lambda i: math.cos(x / L ** ((i - 1) / d_e))
[round((even if i % 2 == 0 else odd)(i), 6) for i in range(1, 6)]""",
            r"\[0\.540302, 0\.207607, 0\.978212, 0\.043721, 0\.999044\]",
        ),
        Snippet(
            """import torch
from attendo.nn.positions import sinusoidal_encoding
row = sinusoidal_encoding(torch.tensor(1), 5, 50.0, first_index=1)[:4]
[round(x, 6) for x in row.tolist()]""",
            r"\[0\.207607, 0\.978212, 0\.043721, 0\.999044\]",
        ),
    ),
    Erratum(
        28,
        f"{POST}, reading of the positional embedding",
        Words(
            "It is the position, and two components share a frequency",
            "埋め込まれるのは位置で、二成分が周波数を共有する",
        ),
        Words(
            "Each component is said to embed the word at a frequency of its own.",
            "各成分が単語をそれぞれ異なる周波数で埋め込むと書かれている。",
        ),
        Words(
            "The position is embedded, whatever the word; and a sine and its cosine share one frequency: d components"
            " have d/2 frequencies.",
            "埋め込まれるのは単語ではなく位置である。正弦と余弦の組は一つの周波数を共有し、"
            "d 成分の周波数は d/2 個である。",
        ),
        "run",
        Snippet(
            """d = 8
frequencies_as_said = d  # one for each component
frequencies_as_said""",
            r"8",
        ),
        Snippet(
            """import torch
from attendo.nn.positions import sinusoidal_encoding
PE = sinusoidal_encoding(torch.arange(3), 8, dtype=torch.float64)
sine, cosine = PE[:, 0::2], PE[:, 1::2]
angles = torch.atan2(sine[1], cosine[1])  # the angle each pair turns a step
len(angles.unique()), torch.allclose((2 * angles).sin(), sine[2])""",
            r"\(4, True\)",
        ),
    ),
    Erratum(
        29,
        f"{POST}, positions of the weather",
        Words("Positions beyond the length collide", "長さを超えた位置は衝突する"),
        Words(
            "The text adds 1/t, the code (i+1)/L; L changes from 50 to 10 while 20 days are generated: with L = 10 only"
            " 40 of the 60 pairs of weather and day differ.",
            "本文は 1/t を、コードは (i+1)/L を足す。L は 50 から 10 に変わるが 20 日分を生成するので、"
            "L = 10 では天気と日の"
            " 60 通りのうち 40 通りしか区別できない。",
        ),
        Words(
            "L must be at least the number of days; 1/t stays distinct for all 20.",
            "L は日数以上でなければならない。1/t なら 20 日すべてを区別できる。",
        ),
        "run",
        Snippet(
            """from attendo.theory.weather_embeddings import distinct_sums, scalar_embedding
distinct_sums(scalar_embedding("ramp", length=10), 20)""",
            r"40",
        ),
        Snippet(
            """from attendo.theory.weather_embeddings import distinct_sums, scalar_embedding
distinct_sums(scalar_embedding("inverse"), 20)""",
            r"60",
        ),
    ),
)
