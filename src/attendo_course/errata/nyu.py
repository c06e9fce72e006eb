"""Errata 1 to 10: the listings and the formula of NYU Deep Learning 2020, week 12-3 (Japanese edition)."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

_PAGE = "S1 NYU Deep Learning 2020, week 12-3"

ERRATA = (
    Erratum(
        number=1,
        source=f"{_PAGE}, positional encoding",
        title=Localized("The index of the sine lost its i", "正弦の添字から i が落ちている"),
        wrong=Localized(
            "The first line of the formula reads E(p, 2): every sine goes to entry 2, and the last one stays there.",
            "式の 1 行目が E(p, 2) である。正弦がすべて成分 2 に書き込まれ、最後の値だけが残る。",
        ),
        right=Localized(
            "E(p, 2i) for i = 0, …, d/2 - 1: the sines fill the even entries, as on the English page.",
            "i = 0, …, d/2 - 1 について E(p, 2i) とする。英語版のとおり、正弦は偶数番目の成分を埋める。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import math
d, row = 6, [0.0] * 6
for i in range(d // 2):
    angle = 1 / 10000 ** (2 * i / d)  # position p = 1
    row[2] = math.sin(angle)
    row[2 * i + 1] = math.cos(angle)
[round(entry, 4) for entry in row]""",
            r"\[0\.0, 0\.5403, 0\.0022, 0\.9989, 0\.0, 1\.0\]",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.positions import sinusoidal_encoding
row = sinusoidal_encoding(torch.tensor(1), 6, dtype=torch.float64)
[round(entry, 4) for entry in row.tolist()]""",
            r"\[0\.8415, 0\.5403, 0\.0464, 0\.9989, 0\.0022, 1\.0\]",
        ),
    ),
    Erratum(
        number=2,
        source=f"{_PAGE}, EncoderLayer and Encoder",
        title=Localized("super().__init__() is missing", "super().__init__() がない"),
        wrong=Localized(
            "The constructors of EncoderLayer and Encoder assign modules without having called that of nn.Module.",
            "EncoderLayer と Encoder が、nn.Module のコンストラクタを呼ばずにモジュールを代入している。",
        ),
        right=Localized(
            "super().__init__() comes first; only then can a module hold others.",
            "最初に super().__init__() を呼ぶ。その後でなければモジュールは他のモジュールを持てない。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads):
        self.mha = nn.MultiheadAttention(d_model, num_heads)
    def forward(self, x):
        return self.mha(x, x, x)[0]
EncoderLayer(8, 2)(torch.ones(1, 3, 8)).shape""",
            r"AttributeError: cannot assign module before Module\.__init__\(\) call",
        ),
        right_code=Snippet(
            """\
import torch
from torch import nn
from attendo.nn.attention import Attention
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.mha = Attention(d_model, num_heads)
    def forward(self, x):
        return self.mha(x, x)
EncoderLayer(8, 2)(torch.ones(1, 3, 8)).shape""",
            r"torch\.Size\(\[1, 3, 8\]\)",
        ),
    ),
    Erratum(
        number=3,
        source=f"{_PAGE}, EncoderLayer",
        title=Localized("self.cnn is used and never made", "self.cnn を作らずに使っている"),
        wrong=Localized(
            "forward calls self.cnn, but the constructor builds only the attention and two norms.",
            "forward が self.cnn を呼ぶが、コンストラクタはアテンションと 2 つの正規化しか作らない。",
        ),
        right=Localized(
            "The layer also owns the position-wise feed-forward net, d_model → conv_hidden_dim → d_model.",
            "層は位置ごとのフィードフォワード網 d_model → conv_hidden_dim → d_model も持つ。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
class EncoderLayer(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.layernorm2 = nn.LayerNorm(d_model, eps=1e-6)
    def forward(self, out1):
        return self.layernorm2(out1 + self.cnn(out1))
EncoderLayer(8)(torch.ones(1, 3, 8)).shape""",
            r"AttributeError: 'EncoderLayer' object has no attribute 'cnn'",
        ),
        right_code=Snippet(
            """\
import torch
from torch import nn
from attendo.nn.attention import Attention
from attendo.nn.blocks import EncoderBlock, Residual
from attendo.nn.layers import FeedForward
def residual():
    return Residual(nn.LayerNorm(8, eps=1e-6), norm_first=False)
block = EncoderBlock(Attention(8, 2), FeedForward(8, 32), residual)
block(torch.ones(1, 3, 8)).shape""",
            r"torch\.Size\(\[1, 3, 8\]\)",
        ),
    ),
    Erratum(
        number=4,
        source=f"{_PAGE}, Encoder",
        title=Localized("self.num_layers is used and never set", "self.num_layers を設定せずに使っている"),
        wrong=Localized(
            "forward counts to self.num_layers, which the constructor takes as an argument and does not keep.",
            "forward は self.num_layers まで数えるが、コンストラクタは引数として受け取るだけで保存しない。",
        ),
        right=Localized(
            "Keep it, or better go through the list of layers itself, which can't disagree with its own length.",
            "保存するか、むしろ層のリストそのものを順にたどる。それなら長さが食い違うことはない。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
class Encoder(nn.Module):
    def __init__(self, num_layers):
        super().__init__()
        layers = (nn.Linear(8, 8) for _ in range(num_layers))
        self.enc_layers = nn.ModuleList(layers)
    def forward(self, x):
        for i in range(self.num_layers):
            x = self.enc_layers[i](x)
        return x
Encoder(2)(torch.ones(1, 3, 8)).shape""",
            r"AttributeError: 'Encoder' object has no attribute 'num_layers'",
        ),
        right_code=Snippet(
            """\
import torch
from torch import nn
from attendo.nn.attention import Attention
from attendo.nn.blocks import Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward
def residual():
    return Residual(nn.LayerNorm(8, eps=1e-6), norm_first=False)
def block():
    return EncoderBlock(Attention(8, 2), FeedForward(8, 32), residual)
encoder = Encoder(block() for _ in range(2))
len(encoder.blocks), encoder(torch.ones(1, 3, 8)).shape""",
            r"\(2, torch\.Size\(\[1, 3, 8\]\)\)",
        ),
    ),
    Erratum(
        number=5,
        source=f"{_PAGE}, group_heads",
        title=Localized("A line ends in a dot", "行がピリオドで終わっている"),
        wrong=Localized(
            "The expression is broken after contiguous(). with nothing that holds the two lines together.",
            "式が contiguous(). の直後で改行され、2 行をつなぐものが何もない。",
        ),
        right=Localized(
            "Parentheses let it run over lines. The result is what Attention hands to its last projection.",
            "式全体を括弧で囲めば複数行に書ける。その値は Attention が出力の射影に渡すものと等しい。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
source = '''
def group_heads(x):
    return x.transpose(1, 2).contiguous().
        view(x.shape[0], -1, x.shape[1] * x.shape[3])
'''
compile(source, "group_heads", "exec")""",
            r"SyntaxError: invalid syntax \(group_heads, line 3\)",
        ),
        right_code=Snippet(
            """\
import torch
from torch import nn
from attendo.nn.attention import Attention
def group_heads(x):
    return (
        x.transpose(1, 2).contiguous()
        .view(x.shape[0], -1, x.shape[1] * x.shape[3])
    )
attention = Attention(4, 2, out_proj=nn.Identity())
x = torch.linspace(-1, 1, 12).view(1, 3, 4)
query = attention.q_proj(x).unflatten(-1, (2, 2)).transpose(1, 2)
H = group_heads(attention.attend(query, *attention.keys_values(x)))
H.shape, torch.allclose(H, attention(x, x))""",
            r"\(torch\.Size\(\[1, 3, 4\]\), True\)",
        ),
    ),
    Erratum(
        number=6,
        source=f"{_PAGE}, scaled_dot_product_attention",
        title=Localized("Names that nobody defined", "定義されていない名前"),
        wrong=Localized(
            "nn_Softargmax is defined nowhere on the page, np and torch are not imported, and the methods of"
            " MultiHeadAttention stand outside their class.",
            "nn_Softargmax はページのどこにも定義がなく、np と torch は import されず、MultiHeadAttention の"
            "メソッドはクラスの外に置かれている。",
        ),
        right=Localized(
            "It is the softmax over the last axis, the keys; the notebook makes it another name of nn.Softmax.",
            "これは最後の軸、すなわちキーについての softmax である。ノートブックでは nn.Softmax の別名としている。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
q, K = torch.tensor([[1.0, 0.0]]), torch.eye(2)
scores = q / 2**0.5 @ K.mT
A = nn_Softargmax(dim=-1)(scores)
[round(a, 4) for a in A[0].tolist()]""",
            r"NameError: name 'nn_Softargmax' is not defined",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import attention_weights
q, K = torch.tensor([[1.0, 0.0]]), torch.eye(2)
A = attention_weights(q.double(), K.double())
[round(a, 4) for a in A[0].tolist()]""",
            r"\[0\.6698, 0\.3302\]",
        ),
    ),
    Erratum(
        number=7,
        source=f"{_PAGE}, TransformerClassifier.forward",
        title=Localized("New random layers at every call", "呼び出すたびに新しい乱数の層ができる"),
        wrong=Localized(
            "forward builds Encoder(), without arguments, and nn.Linear: another answer each time, nothing to train.",
            "forward の中で Encoder()（引数なし）と nn.Linear を作る。毎回答えが変わり、学習するパラメータもない。",
        ),
        right=Localized(
            "Both are built once, in the constructor; forward only uses them.",
            "どちらもコンストラクタで一度だけ作り、forward では使うだけにする。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from torch import nn
class TransformerClassifier(nn.Module):
    def forward(self, ids):
        x = nn.Embedding(20, 4)(ids)
        return nn.Linear(4, 2)(x.amax(1))
model, ids = TransformerClassifier(), torch.tensor([[3, 5, 2]])
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    first, second = model(ids), model(ids)
torch.equal(first, second), sum(p.numel() for p in model.parameters())""",
            r"\(False, 0\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.models import EncoderClassifier, ModelConfig
from attendo.models import parameter_count
config = ModelConfig(
    architecture="classifier", vocab_size=20, n_classes=2,
    d_model=4, d_ff=8, n_heads=2, n_encoder_layers=1,
    n_decoder_layers=0, dropout=0.0, pooling="max",
)
model, ids = EncoderClassifier(config), torch.tensor([[3, 5, 2]])
torch.equal(model(ids), model(ids)), parameter_count(model)""",
            r"\(True, 262\)",
        ),
    ),
    Erratum(
        number=8,
        source=f"{_PAGE}, TransformerClassifier.forward",
        title=Localized(
            "torch.max gives two things, and comes too late", "torch.max は 2 つを返し、しかも順序が違う"
        ),
        wrong=Localized(
            "The last line returns torch.max(x, dim=1), a pair of values and indices, and takes it after the dense"
            " layer: another model of the same shapes.",
            "最後の行は torch.max(x, dim=1) をそのまま返すが、これは値と位置の組である。しかも全結合層の後で最大を"
            "取っており、形が同じだけの別のモデルになる。",
        ),
        right=Localized(
            "Encoder, then the largest value over time, then the dense layer, as in the notebook.",
            "ノートブックのように、エンコーダ、時間方向の最大値、全結合層の順とする。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
states = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # 1 text, 2 tokens
W = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
logits = torch.max(states @ W.mT, dim=1)
torch.is_tensor(logits), logits[0].tolist()""",
            r"\(False, \[\[1\.0, 1\.0\]\]\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.layers import pool
states = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # 1 text, 2 tokens
W = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
logits = pool(states, "max") @ W.mT
torch.is_tensor(logits), logits.tolist()""",
            r"\(True, \[\[2\.0, 0\.0\]\]\)",
        ),
    ),
    Erratum(
        number=9,
        source=f"{_PAGE}, TransformerClassifier",
        title=Localized("A class without a constructor", "コンストラクタのないクラス"),
        wrong=Localized(
            "The class is called with num_layers=1, d_model=32, … but has no __init__ that takes them; the longest"
            " text, maximum_position_encoding, is not among them.",
            "num_layers=1, d_model=32, … を渡して呼ぶが、それを受け取る __init__ がない。最大長"
            " maximum_position_encoding も渡されていない。",
        ),
        right=Localized(
            "A constructor that takes them, with 10000 positions as in the notebook: 1,612,802 trained numbers.",
            "これらを受け取るコンストラクタを置き、位置は 10000 個とする。学習するパラメータは 1,612,802 個である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
from torch import nn
class TransformerClassifier(nn.Module):
    def forward(self, x):
        return x
model = TransformerClassifier(num_layers=1, d_model=32, num_heads=2)
sum(p.numel() for p in model.parameters())""",
            r"TypeError: \S*__init__\(\) got an unexpected keyword argument 'num_layers'",
        ),
        right_code=Snippet(
            """\
from attendo.models import EncoderClassifier, ModelConfig
from attendo.models import parameter_count
config = ModelConfig(
    architecture="classifier", vocab_size=50002, n_classes=2,
    d_model=32, d_ff=128, n_heads=2, n_encoder_layers=1,
    n_decoder_layers=0, max_len=10000, pad_id=1, pooling="max",
    attention_bias=False, attention_out_bias=True, norm_eps=1e-6,
    embedding_scale=False, embedding_norm_eps=1e-12, dropout=0.0,
)
parameter_count(EncoderClassifier(config))""",
            r"1612802",
        ),
    ),
    Erratum(
        number=10,
        source=f"{_PAGE}, Example Use",
        title=Localized("Which cross-entropy?", "どの交差エントロピーか"),
        wrong=Localized(
            "The text says binary cross-entropy, but the model has two logits, which that loss does not take.",
            "本文は二値交差エントロピーと言うが、モデルのロジットは 2 つあり、この損失にはそのまま渡せない。",
        ),
        right=Localized(
            "Cross-entropy of two classes, as the notebook has it; equal to the binary one of the difference z₁ - z₀.",
            "ノートブックのとおり 2 クラスの交差エントロピーである。差 z₁ - z₀ の二値交差エントロピーに等しい。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
import torch.nn.functional as F
z = torch.tensor([[1.0, 2.0], [0.0, 3.0]])  # 2 texts, 2 logits
y = torch.tensor([1, 0])
F.binary_cross_entropy_with_logits(z, y.float()).tolist()""",
            r"ValueError: Target size \(torch\.Size\(\[2\]\)\) must be the same as input size .*\[2, 2\].*",
        ),
        right_code=Snippet(
            """\
import torch
import torch.nn.functional as F
from attendo.training.losses import token_losses
z = torch.tensor([[1.0, 2.0], [0.0, 3.0]]).double()
y = torch.tensor([1, 0])
two_classes = token_losses(z, y)
bce = F.binary_cross_entropy_with_logits
binary = bce(z[:, 1] - z[:, 0], y.double(), reduction="none")
[[round(loss, 4) for loss in both.tolist()]
 for both in (two_classes, binary)]""",
            r"\[\[0\.3133, 3\.0486\], \[0\.3133, 3\.0486\]\]",
        ),
    ),
)
