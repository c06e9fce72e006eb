"""Errata 11 to 20: what NYU Deep Learning 2020, week 12-3, says about attention, and its notebook 15-transformer."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

_PAGE = "S1 NYU Deep Learning 2020, week 12-3"
_NOTEBOOK = "S1 notebook 15-transformer"

ERRATA = (
    Erratum(
        number=11,
        source=f"{_PAGE}, MultiHeadAttention",
        title=Localized("d_input does not make cross-attention", "d_input ではクロスアテンションにならない"),
        wrong=Localized(
            "The text below the constructor says that a given d_input turns the block into cross-attention.",
            "コンストラクタの下の説明では、d_input を与えると cross-attention になるとされている。",
        ),
        right=Localized(
            "It sets widths only. Attention is cross where the inputs differ: X_k = X_v = h^Enc, not X_q.",
            "入力の幅を決めるだけである。クロスアテンションになるのは X_k = X_v = h^Enc と X_q が別のときである。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
y = torch.linspace(-1, 1, 12).view(1, 3, 4)  # 3 target tokens
given = nn.MultiheadAttention(4, 2, kdim=4, vdim=4, batch_first=True)
_, A = given(y, y, y, average_attn_weights=False)
A.shape  # each target token looks at target tokens""",
            r"torch\.Size\(\[1, 2, 3, 3\]\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.inspecting.recording import recording
from attendo.nn.attention import Attention
y = torch.linspace(-1, 1, 12).view(1, 3, 4)  # 3 target tokens
memory = torch.linspace(-1, 1, 20).view(1, 5, 4)  # 5 source tokens
with recording(Attention(4, 2)) as record:  # no widths given
    record.model(y, memory)
record[record.paths[0]].weights.shape""",
            r"torch\.Size\(\[1, 2, 3, 5\]\)",
        ),
    ),
    Erratum(
        number=12,
        source=f"{_PAGE}, scaled_dot_product_attention",
        title=Localized("There is no mask for A to show", "A に現れるはずのマスクがない"),
        wrong=Localized(
            "A is said to tell which values were masked, but no mask exists, neither of padding nor causal. The"
            " Japanese page calls H the positional encoding of the values.",
            "どのバリューがマスクされたかを A で見ると言うが、パディングのマスクも因果マスクも存在しない。"
            "また日本語版は H をバリューの positional encoding と呼んでいる。",
        ),
        right=Localized(
            "With a mask, A is exactly 0 there. H is just a representation of the values: their weighted mean.",
            "マスクがあれば、その重みは厳密に 0 になる。H は単にバリューの表現、すなわちバリューの加重平均である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
Q, K = torch.zeros(3, 4), torch.ones(3, 4)  # the third token is padding
A = (Q @ K.mT / 4**0.5).softmax(-1)
[[round(a, 2) for a in row] for row in A.tolist()]""",
            r"\[\[0\.33, 0\.33, 0\.33\], \[0\.33, 0\.33, 0\.33\], \[0\.33, 0\.33, 0\.33\]\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_weights
from attendo.nn.masks import Mask
Q, K = torch.zeros(3, 4), torch.ones(3, 4)  # the third token is padding
mask = Mask(causal=True, key_lengths=torch.tensor([2]))
A = attention_weights(Q, K, mask.dense(3, 3)[0, 0])
[[round(a, 2) for a in row] for row in A.tolist()]""",
            r"\[\[1\.0, 0\.0, 0\.0\], \[0\.5, 0\.5, 0\.0\], \[0\.5, 0\.5, 0\.0\]\]",
        ),
    ),
    Erratum(
        number=13,
        source=f"{_PAGE}, Decoder Module",
        title=Localized("The decoder's causal mask is left out", "デコーダの因果マスクが抜けている"),
        wrong=Localized(
            "No mask is described: trained on all positions at once, each would see the word it is to predict.",
            "デコーダの説明にマスクがない。全位置を同時に学習させると、各位置が予測すべき単語を見てしまう。",
        ),
        right=Localized(
            "Its self-attention is causal; the figure implies it: ŷ_0, …, ŷ_{t-1} go in, states 1, …, t come out.",
            "デコーダのセルフアテンションは因果的である。図の入力 ŷ_0, …, ŷ_{t-1} と出力 1, …, t はこれを前提とする。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(8, 2, batch_first=True)
    y, other = torch.randn(2, 1, 4, 8).unbind()
other[:, :3] = y[:, :3]  # only the last word differs
change = attend(y, y, y)[0] - attend(other, other, other)[0]
[step > 1e-4 for step in change.abs().amax((0, 2)).tolist()]""",
            r"\[True, True, True, True\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention
from attendo.nn.masks import Mask
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    attend = Attention(8, 2)
    y, other = torch.randn(2, 1, 4, 8).unbind()
other[:, :3] = y[:, :3]  # only the last word differs
mask = Mask(causal=True)
change = attend(y, y, mask) - attend(other, other, mask)
[step > 1e-4 for step in change.abs().amax((0, 2)).tolist()]""",
            r"\[False, False, False, True\]",
        ),
    ),
    Erratum(
        number=14,
        source=f"{_PAGE}, and notebook 15-transformer",
        title=Localized("Dropout that drops nothing", "何も落とさないドロップアウト"),
        wrong=Localized(
            "Four classes take a dropout p; none of them uses it, and there is no dropout layer anywhere.",
            "4 つのクラスがドロップアウト率 p を受け取るが、どれも使わず、ドロップアウトの層もどこにもない。",
        ),
        right=Localized(
            "It acts on each sub-layer's output, in training only: two passes differ then, and agree in evaluation.",
            "各サブ層の出力に学習時だけ働かせる。2 回の計算は、学習時には異なり、評価時には一致する。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
class AddNorm(nn.Module):
    def __init__(self, d_model, p):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
    def forward(self, x, sublayer):
        return self.norm(x + sublayer(x))
layer, x = AddNorm(8, p=0.5), torch.linspace(-1, 1, 24).view(3, 8)
training = torch.equal(layer(x, torch.sin), layer(x, torch.sin))
layer.eval()
training, torch.equal(layer(x, torch.sin), layer(x, torch.sin))""",
            r"\(True, True\)",
        ),
        right_code=Snippet(
            """\
import torch
from torch import nn
from attendo.nn.blocks import Residual
layer = Residual(nn.LayerNorm(8), norm_first=False, dropout=0.5)
x = torch.linspace(-1, 1, 24).view(3, 8)
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    training = torch.equal(layer(x, torch.sin), layer(x, torch.sin))
layer.eval()
training, torch.equal(layer(x, torch.sin), layer(x, torch.sin))""",
            r"\(False, True\)",
        ),
    ),
    Erratum(
        number=15,
        source=f"{_PAGE}, Hard Attention and Soft Attention",
        title=Localized("A norm of 1 is not enough", "ノルムが 1 というだけでは足りない"),
        wrong=Localized(
            "‖a‖₀ = 1 is said to give a one-hot, ‖a‖₁ = 1 a sum of 1; (0, 7) and (-0.5, 0.5) satisfy them.",
            "‖a‖₀ = 1 なら one-hot、‖a‖₁ = 1 なら係数の和が 1 としているが、(0, 7) と (-0.5, 0.5) もこれを満たす。",
        ),
        right=Localized(
            "Both also need a ≥ 0 and Σa = 1. The arg max and the softmax give such weights: points of the simplex.",
            "どちらにも a ≥ 0 と Σa = 1 が要る。argmax と softmax の与える重みはこれを満たす、単体上の点である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
hard, soft = torch.tensor([0.0, 7.0]), torch.tensor([-0.5, 0.5])
# for each: its norm, its least entry, its sum
[(a.norm(p).item(), a.amin().item(), a.sum().item())
 for a, p in ((hard, 0), (soft, 1))]""",
            r"\[\(1\.0, 0\.0, 7\.0\), \(1\.0, -0\.5, 0\.0\)\]",
        ),
        right_code=Snippet(
            """\
import math, torch
from attendo.nn.attention import masked_softmax
scores = torch.tensor([0.0, math.log(3.0)])
hard = masked_softmax(scores[None], inverse_temperature=math.inf)[0]
soft = masked_softmax(scores[None])[0]
[tuple(round(x.item(), 4) for x in (a.norm(p), a.amin(), a.sum()))
 for a, p in ((hard, 0), (soft, 1))]""",
            r"\[\(1\.0, 0\.0, 1\.0\), \(1\.0, 0\.25, 1\.0\)\]",
        ),
    ),
    Erratum(
        number=16,
        source=f"{_PAGE}, Queries, keys and values, and MultiHeadAttention",
        title=Localized("Two sizes of a head", "ヘッドの大きさが 2 通りある"),
        wrong=Localized(
            "In the text a head has width d, W_h is d × hd and β = 1/√d; in the code a head has d/h, W_h is d × d and"
            " β = 1/√d_k. They can't be mixed.",
            "本文ではヘッドの幅が d、W_h は d × hd、β = 1/√d であり、コードではヘッドの幅が d/h、W_h は d × d、"
            "β = 1/√d_k である。混ぜては使えない。",
        ),
        right=Localized(
            "The width of a head is a choice: without biases 4hd² weights in the text's form, 4d² in the code's."
            " β = 1/√(width of a head) is both.",
            "ヘッドの幅は選択できる。重みの数はバイアスを除き、本文の形で 4hd²、コードの形で 4d² である。"
            "β = 1/√（ヘッドの幅）とすればどちらにも当てはまる。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
d, h = 8, 2
heads = torch.ones(3, h, d // h)  # as in the code
W_h = torch.ones(d, h * d)  # as in the text
(heads.flatten(1) @ W_h.mT).shape""",
            r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(3x8 and 16x8\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.models import parameter_count
from attendo.nn.attention import Attention
x = torch.ones(1, 3, 8)
text = Attention(8, 2, head_dim=8, bias=False)
code = Attention(8, 2, bias=False)
[(parameter_count(both), both(x, x).shape) for both in (text, code)]""",
            r"\[\(512, torch\.Size\(\[1, 3, 8\]\)\), \(256, torch\.Size\(\[1, 3, 8\]\)\)\]",
        ),
    ),
    Erratum(
        number=17,
        source=f"{_PAGE}, Queries, keys and values, and Semantic Representations",
        title=Localized("No rotation, and not of x_i", "回転ではなく、x_i の表現でもない"),
        wrong=Localized(
            "q, k, v are called rotations of x, and cross-attention's output the representation of the word x_i.",
            "q, k, v を x の回転と呼び、クロスアテンションの出力を単語 x_i の意味表現としている。",
        ),
        right=Localized(
            "W x is a rotation only if WᵀW = I (and det W = 1); a trained W also stretches. Cross-attention gives one"
            " vector for each target position y_i; those of the x_i come from the encoder.",
            "W x が回転になるのは WᵀW = I（かつ det W = 1）のときだけで、学習した W は伸縮もする。"
            "クロスアテンションが与えるのは目標側の位置 y_i ごとのベクトルであり、x_i の表現はエンコーダの出力である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention
x, y = torch.full((1, 5, 2), 0.5**0.5), torch.ones(1, 3, 2)
cross = Attention(2, 1, bias=False)
cross.q_proj.weight.data = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
norms = x[0, 0].norm(), cross.q_proj(x)[0, 0].norm()
[round(norm.item(), 4) for norm in norms], cross(y, x).shape == x.shape""",
            r"\(\[1\.0, 1\.4577\], False\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import Attention
x, y = torch.full((1, 5, 2), 0.5**0.5), torch.ones(1, 3, 2)
cross = Attention(2, 1, bias=False)
cross.q_proj.weight.data = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
norms = x[0, 0].norm(), cross.q_proj(x)[0, 0].norm()
[round(norm.item(), 4) for norm in norms], cross(y, x).shape == y.shape""",
            r"\(\[1\.0, 1\.0\], True\)",
        ),
    ),
    Erratum(
        number=18,
        source=f"{_PAGE}, Japanese page",
        title=Localized("Slips of translation that change the meaning", "意味を変える訳の誤り"),
        wrong=Localized(
            "The encoder's inputs are handled one after another (順次); their bypass around attention is gone; the"
            " feed-forward net is one of position information (位置情報). Stray: σ, V\\Vert, alpha_i and times without"
            " a backslash.",
            "エンコーダの入力が「順次」処理されるとし、アテンションを迂回する残差接続が消え、フィードフォワード網が"
            "「位置情報」のものになっている。余分な σ や V\\Vert、バックスラッシュのない alpha_i と times もある。",
        ),
        right=Localized(
            "All inputs enter at once (同時に), each also past the attention; the net is position-wise (位置ごとの)."
            " One call for all positions equals one call for each. Row j of Xᵀx is the product of x_j and x.",
            "すべての入力は同時に入り、アテンションを迂回もする。フィードフォワード網は位置ごとのものである。全位置を一度に"
            "計算した結果は、位置ごとに計算した結果と等しい。Xᵀx の第 j 行は x_j と x のスカラー積である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
x, rows = torch.eye(2), []
for t in range(2):  # one after another: only the past is there
    past = x[: t + 1]
    rows.append(attention(x[t : t + 1], past, past, scale=1.0))
[[round(h, 4) for h in row] for row in torch.cat(rows).tolist()]""",
            r"\[\[1\.0, 0\.0\], \[0\.2689, 0\.7311\]\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention
x = torch.eye(2, dtype=torch.float64)
H = attention(x, x, x, scale=1.0)  # all at once
each = [attention(x[t : t + 1], x, x, scale=1.0) for t in range(2)]
assert torch.allclose(H, torch.cat(each), atol=1e-12)
[[round(h, 4) for h in row] for row in H.tolist()]""",
            r"\[\[0\.7311, 0\.2689\], \[0\.2689, 0\.7311\]\]",
        ),
    ),
    Erratum(
        number=19,
        source=f"{_NOTEBOOK}, create_sinusoidal_embeddings",
        title=Localized("A parameter written in place", "パラメータへの上書き"),
        wrong=Localized(
            "The table of sines is written in place into the weight of nn.Embedding, a leaf that requires a gradient:"
            " an error since torch 1.8. The E = E.to(device) at the end only renames a local variable.",
            "勾配を求める葉である nn.Embedding の重みに正弦の表を上書きしており、torch 1.8 以降はエラーになる。"
            "最後の E = E.to(device) は局所変数を付け替えるだけで効果がない。",
        ),
        right=Localized(
            "A fixed table is a buffer: no gradient, nothing to train, and it moves with its module.",
            "固定の表はバッファとする。勾配も学習もなく、モジュールとともにデバイスや型が変わる。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
angles = torch.arange(4.0)[:, None] / torch.tensor([1.0, 100.0])
table = nn.Embedding(4, 4)
table.weight[:, 0::2] = angles.sin()
table.weight[:, 1::2] = angles.cos()
len(list(table.parameters())), table.weight[1]""",
            r"RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place operation.*",
        ),
        right_code=Snippet(
            """\
from functools import partial
import torch
from attendo.nn.positions import FixedPositions, sinusoidal_encoding
table = FixedPositions(partial(sinusoidal_encoding, d_model=4)).double()
row = table(torch.tensor([1]), end=4)[0]
n_trained = len(list(table.parameters()))
n_trained, row.dtype, [round(entry, 3) for entry in row.tolist()]""",
            r"\(0, torch\.float64, \[0\.841, 0\.54, 0\.01, 1\.0\]\)",
        ),
    ),
    Erratum(
        number=20,
        source=f"{_NOTEBOOK}, training and evaluation",
        title=Localized("Accuracies that are none", "正解率とは言えない正解率"),
        wrong=Localized(
            "Batch accuracies are averaged, so the short last batch counts as much as a full one; the printed figures"
            " (.861 valid, .805 test) differ, and no reason is given. Padding attends and wins the maximum. torchtext"
            ".legacy is gone, nothing is seeded, evaluation keeps the graph, the model on display has more layers.",
            "ミニバッチごとの正解率を平均するため、短い最後のミニバッチも満杯のものと同じ重みになる。表示された値"
            "（検証 0.861、テスト 0.805）の差には説明がない。パディングも重みを受け、最大値に選ばれる。torchtext.legacy"
            " はもうなく、乱数の種も no_grad もなく、表示の層数も違う。",
        ),
        right=Localized(
            "Count the right answers of all texts and divide once; leave padding out of attention and pooling. Had the"
            " sums been divided by the last batch's index, one less than the 16 and 153 batches, the true figures"
            " would be .807 and .799: that would explain most of the gap.",
            "全文章の正解数を数えて一度だけ割り、パディングはアテンションとプーリングから除く。もしバッチ数（16 と"
            " 153）より 1 小さい最後の番号で割ったのなら、正しい値は 0.807 と 0.799 であり、差の大半に説明がつく。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
batches = [[1, 1, 1, 0], [1, 1, 0, 1], [1]]  # 1 is a right answer
total = 0.0
for index, batch in enumerate(batches):
    total += sum(batch) / len(batch)
pooled = torch.tensor([[[1.0], [5.0], [9.0]]]).amax(1)  # 9 is padding
# divided by the last index, by the number, what the maximum picks
round(total / index, 4), round(total / len(batches), 4), pooled.item()""",
            r"\(1\.25, 0\.8333, 9\.0\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.layers import pool
batches = [[1, 1, 1, 0], [1, 1, 0, 1], [1]]  # 1 is a right answer
n_right, n_texts = sum(map(sum, batches)), sum(map(len, batches))
states = torch.tensor([[[1.0], [5.0], [9.0]]])  # the last is padding
pooled = pool(states, "max", lengths=torch.tensor([2]))
round(n_right / n_texts, 4), pooled.item()""",
            r"\(0\.7778, 5\.0\)",
        ),
    ),
)
