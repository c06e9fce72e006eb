"""Errata 30 to 37: the weather post's data, loss and training, in the draft, the finished post and Shumi-Note."""

from attendo.display.i18n import Localized
from attendo_course.errata.erratum import Erratum, Snippet

_DRAFT = "S3 weather post, draft"
_FINISHED = "S3 weather post, finished version"

ERRATA = (
    Erratum(
        number=30,
        source=f"{_DRAFT}, _MARKOV2",
        title=Localized("A second chain that is the first", "1 つ目と同じ 2 つ目の連鎖"),
        wrong=Localized(
            "_MARKOV2 is _MARKOV once more, entry by entry. Its keys are single days, so it can't depend on two: after"
            " rain, cloud and after sun, cloud it says the same.",
            "_MARKOV2 は _MARKOV とまったく同じ内容である。鍵が 1 日分なので 2 日に依存しようがなく、雨・曇の後と晴・"
            "曇の後の確率が同じになる。",
        ),
        right=Localized(
            "A second-order chain has a row for each pair of days, 9 of them (here: tomorrow follows yesterday). The"
            " post needs none; later versions dropped it.",
            "2 次の連鎖は 2 日の組ごとに行を持ち、9 行になる（ここでは例として、明日が昨日だけで決まる連鎖とした）。記"
            "事には不要で、後の版では消えている。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
from attendo.data.weather import STATES, TRANSITION
MARKOV = dict(zip(STATES, TRANSITION))
MARKOV2 = dict(MARKOV)
def tomorrow(yesterday, today):
    return MARKOV2[today]
same = tomorrow("rain", "cloud") == tomorrow("sun", "cloud")
len(MARKOV2), MARKOV2 == MARKOV, same""",
            r"\(3, True, True\)",
        ),
        right_code=Snippet(
            """\
from itertools import product
from attendo.data.weather import STATES, TRANSITION
MARKOV = dict(zip(STATES, TRANSITION))
MARKOV2 = {pair: MARKOV[pair[0]] for pair in product(STATES, repeat=2)}
def tomorrow(yesterday, today):
    return MARKOV2[yesterday, today]
same = tomorrow("rain", "cloud") == tomorrow("sun", "cloud")
len(MARKOV2), MARKOV2 == MARKOV, same""",
            r"\(9, False, False\)",
        ),
    ),
    Erratum(
        number=31,
        source=f"{_DRAFT}, prev[-2:]",
        title=Localized("An emoji of two code points", "2 つの符号位置からなる絵文字"),
        wrong=Localized(
            "prev[-2:] takes the last day, if each emoji is two code points: the symbol and U+FE0F. In a text without"
            " U+FE0F it takes two days, a key that the table doesn't have.",
            "prev[-2:] は、どの絵文字も記号と U+FE0F の 2 つの符号位置からなるときに限り、最後の日になる。U+FE0F のな"
            "い文では 2 日分が取り出され、表にない鍵となる。",
        ),
        right=Localized(
            "Days are numbers, read from the text once; the last one is days[-1], however it was written.",
            "文を一度だけ番号の列に直す。最後の日は、書き方によらず days[-1] である。",
        ),
        mark="run",
        wrong_code=Snippet(
            r"""
from attendo.data.weather import SYMBOLS, TRANSITION
MARKOV = dict(zip(SYMBOLS, TRANSITION))
written = "\U0001f327\ufe0f\u2601\ufe0f", "\U0001f327\u2601"
[MARKOV.get(prev[-2:]) for prev in written], len(SYMBOLS[1])""".lstrip(),
            r"\(\[\(0\.3, 0\.4, 0\.3\), None\], 2\)",
        ),
        right_code=Snippet(
            r"""
from attendo.data.weather import SYMBOLS, TRANSITION
code_points = [symbol[0] for symbol in SYMBOLS]
def read(text):
    return [code_points.index(c) for c in text if c != "\ufe0f"]
written = "\U0001f327\ufe0f\u2601\ufe0f", "\U0001f327\u2601"
[TRANSITION[read(prev)[-1]] for prev in written], read(written[1])""".lstrip(),
            r"\(\[\(0\.3, 0\.4, 0\.3\), \(0\.3, 0\.4, 0\.3\)\], \[0, 1\]\)",
        ),
    ),
    Erratum(
        number=32,
        source=f"{_DRAFT}, get_embedding",
        title=Localized("An embedding without its width", "幅の軸がない埋め込み"),
        wrong=Localized(
            "get_embedding returns one number a day, shape (T,), where the model multiplies w_q by d_in × T. Should T"
            " happen to be d_in, the product exists, and mixes the days.",
            "get_embedding は 1 日に 1 つの数、形 (T,) を返すが、モデルは w_q に d_in × T を掛ける。たまたま T = d_in"
            " のときは積が計算できてしまい、日どうしが混ざる。",
        ),
        right=Localized(
            "The axis stays even where d_in = 1: (1, T) in columns, (T, 1) in rows.",
            "d_in = 1 でも軸を残す。列で並べるなら (1, T)、行で並べるなら (T, 1) である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
from attendo_course.weather_embeddings import scalar_embedding
days = torch.tensor([0, 1, 1, 2, 0, 0, 2, 1, 0, 0])  # T = 10
e = scalar_embedding("ramp")(days[None])[0, :, 0]
w_q = torch.ones(6, 1)  # d_attn × d_in
tuple((w_q @ e).shape)""",
            r"RuntimeError: size mismatch, got input \(6\), mat \(6x1\), vec \(10\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo_course.presets import weather_blog
from attendo_course.weather_embeddings import scalar_embedding
days = torch.tensor([0, 1, 1, 2, 0, 0, 2, 1, 0, 0])  # T = 10
e = scalar_embedding("ramp")(days[None])
w_q = torch.ones(6, 1)  # d_attn × d_in
tuple((w_q @ e[0].T).shape), tuple(weather_blog(d_in=1)(e, e).shape)""",
            r"\(\(6, 10\), \(1, 10, 3\)\)",
        ),
    ),
    Erratum(
        number=33,
        source=f"{_DRAFT}, loss_fn",
        title=Localized(
            "A loss that is a gradient, of the wrong loss", "勾配を返す損失関数、しかも誤った損失"
        ),
        wrong=Localized(
            "Decorated with jax.grad, loss_fn returns gradients (-2 below, where the loss is 1); y and pred_y are not"
            " defined. A squared error on codes makes cloud (0) the best guess wherever rain (-1) and sun (1) are"
            " equally likely.",
            "jax.grad で修飾したので、loss_fn は損失でなく勾配を返す（下の例では損失 1 に対して -2）。y と pred_y は未"
            "定義である。番号の 2 乗誤差では、雨（-1）と晴（1）が半々のとき、めったに起きない曇（0）が最良の予測になっ"
            "てしまう。",
        ),
        right=Localized(
            "Value and gradient, each by its name (filter_value_and_grad there). The loss is the cross-entropy over 3"
            " classes: least at the true probabilities, where it is their entropy.",
            "値と勾配の両方を得る（Equinox なら filter_value_and_grad）。損失は 3 クラスの交差エントロピーとする。これ"
            "は真の確率で最小になり、最小値はそのエントロピーである。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
def grad(loss):  # as jax.grad
    def gradient(w):
        w = w.clone().requires_grad_()
        return torch.autograd.grad(loss(w), w)[0]
    return gradient
@grad
def loss_fn(w):
    return (w - 3) ** 2
try:
    ((y - pred_y) ** 2).mean()
except NameError as error:
    undefined = str(error)
p = torch.tensor([0.49, 0.02, 0.49])  # of rain, cloud, sun
codes = torch.tensor([-1.0, 0.0, 1.0])
errors = ((codes[:, None] - codes) ** 2) @ p
best = ("rain", "cloud", "sun")[errors.argmin()]
loss_fn(torch.tensor(2.0)).item(), undefined, best""",
            r"\(-2\.0, \"name 'y' is not defined\", 'cloud'\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.data.weather import entropy
from attendo.training.losses import token_losses
w = torch.tensor(2.0, requires_grad=True)
loss = (w - 3) ** 2
loss.backward()
p = torch.tensor([0.49, 0.02, 0.49]).double()  # of rain, cloud, sun
logits = p.log().expand(3, 3).clone().requires_grad_()
losses = token_losses(logits, torch.arange(3)) @ p
losses.backward()
best = bool(logits.grad.sum(0).abs().max() < 1e-9)  # no slope left
(loss.item(), w.grad.item(), best,
 round(losses.item(), 4), round(entropy(p.numpy()).item(), 4))""",
            r"\(1\.0, -2\.0, True, 0\.7773, 0\.7773\)",
        ),
    ),
    Erratum(
        number=34,
        source=f"{_DRAFT}, make_dataset",
        title=Localized("A look-up by an array, and no result", "配列による辞書引きと、返らない結果"),
        wrong=Localized(
            "TOKEN_EMBEDDING[e] asks a dict for an array; had it worked, nothing is appended and nothing returned."
            " There the file ends: no optimizer, loop, evaluation or generation. The weights begin as N(0, 1),"
            " whatever the width.",
            "TOKEN_EMBEDDING[e] は配列を鍵に辞書を引く。たとえ引けても、何も追加せず何も返さない。ファイルはそこで終わ"
            "り、最適化も学習ループも評価も生成もない。重みの初期値は幅によらず N(0, 1) である。",
        ),
        right=Localized(
            "Look up by the last day, TOKEN_EMBEDDING[weathers[-2:]], or by its number; return the days and the day"
            " that follows each. Initial weights get a variance of 2/(d_in + d_out).",
            "最後の日を鍵にする（TOKEN_EMBEDDING[weathers[-2:]]）か、番号で引く。各日の列とその翌日を返す。重みの初期値"
            "の分散は 2/(d_in + d_out) とする。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import numpy as np
TOKEN_EMBEDDING = {"rain": -1.0, "cloud": 0.0, "sun": 1.0}
def make_dataset(days, key):
    inputs, targets = [], []
    for t in range(10, len(days)):
        target = TOKEN_EMBEDDING[key(days[t])]
try:
    found = make_dataset(["rain"] * 12, np.array)  # e, an array
except TypeError as error:
    found = str(error)
found, make_dataset(["rain"] * 12, str)""",
            r"\(\".*unhashable type: 'numpy\.ndarray'.*\", None\)",
        ),
        right_code=Snippet(
            """\
import numpy as np
from attendo.data.weather import generate
def make_dataset(days, T):
    windows = np.lib.stride_tricks.sliding_window_view(days, T + 1)
    return windows[:, :T], windows[:, T]
days = generate(20, np.random.Generator(np.random.PCG64(11111)))
inputs, targets = make_dataset(days, 10)
inputs.shape, inputs[0].tolist(), targets.tolist()""",
            r"\(\(10, 10\), \[1, 0, 0, 0, 0, 0, 0, 1, 2, 0\], \[0, 0, 1, 1, 1, 2, 1, 0, 1, 2\]\)",
        ),
    ),
    Erratum(
        number=35,
        source=f"{_FINISHED}, causal_mask",
        title=Localized("The past is hidden, not the future", "未来でなく過去を隠すマスク"),
        wrong=Localized(
            "tri(k=-1) with a row for each query strikes out the keys before it: the last day sees only itself."
            " Position 0 sees all of them, and accuracy and generation read position 0.",
            "行がクエリのとき、tri(k=-1) はそれより前のキーを消す。最後の日に見えるのは自分だけである。すべてが見える"
            "のは位置 0 で、正解率も生成も位置 0 から読んでいる。",
        ),
        right=Localized(
            "Allow keys ≤ query and read the last position. The mistake is real, but not why attention lost: under the"
            " right mask, too, one layer of one head without residual or FFN gets .38 to .53 on dotmod, a linear model"
            " .76.",
            "クエリ以前のキーを許し、最後の位置を読む。なお、アテンションが線形モデルに負けた原因はこの誤りではな"
            "い。dotmod の正解率は、正しいマスクでも残差接続と FFN のない 1 層 1 ヘッドでは 0.38–0.53 にとどまり、線形"
            "モデルは 0.76 である。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import numpy as np, torch
from attendo.nn.attention import masked_softmax
struck_out = torch.from_numpy(np.tri(4, k=-1, dtype=bool))
A = masked_softmax(torch.zeros(4, 4), ~struck_out)
seen = [(row > 0).sum().item() for row in A]  # keys that a query sees
seen, [round(a, 4) for a in A[-1].tolist()]""",
            r"\(\[4, 3, 2, 1\], \[0\.0, 0\.0, 0\.0, 1\.0\]\)",
        ),
        right_code=Snippet(
            """\
import torch
from attendo.nn.attention import masked_softmax
from attendo.nn.masks import causal
A = masked_softmax(torch.zeros(4, 4), causal(4, 4))
seen = [(row > 0).sum().item() for row in A]  # keys that a query sees
seen, [round(a, 4) for a in A[-1].tolist()]""",
            r"\(\[1, 2, 3, 4\], \[0\.25, 0\.25, 0\.25, 0\.25\]\)",
        ),
    ),
    Erratum(
        number=36,
        source=f"{_FINISHED}, training loop and tasks",
        title=Localized("Full minibatches, shifted days", "分割されないミニバッチ、ずれた日"),
        wrong=Localized(
            "The shuffled indices are never sliced. All 10 positions predict day 11, and their losses are summed."
            " 1-4-8 draws anew at lengths 4 and 8, so days 5 and 9 are free. dotmod's y is 0, 1, 2 in the text and 1,"
            " 2, 3 in the code: cloud or rain counts. Two sums of the formulas (the softmax's, v_attr's) have a wrong"
            " index.",
            "並べ替えた添字を分割していない。10 個の位置すべてに 11 日目を予測させ、損失を足している。1-4-8 は長さ 4"
            " と 8 で引き直すので、自由なのは 5 日目と 9 日目になる。dotmod の y は本文では 0, 1, 2、コードでは 1, 2,"
            " 3 で、数えられるのが曇か雨かが変わる。式では softmax の分母と v_attr の和の添字も誤っている。",
        ),
        right=Localized(
            "Slices of the permutation; day 11 is asked of the last position alone; draws at lengths 3 and 7, days 4"
            " and 8; one numbering, 1 to 3 as in the code, in which rain days count (y(2 - y) mod 3).",
            "並べ替えた添字を分割する。11 日目は最後の位置だけで予測する。引き直すのは長さ 3 と 7（4 日目と 8 日目）と"
            "し、番号はコードの 1–3 に統一する。y(2 - y) mod 3 により、雨の日だけが数えられる。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import numpy as np, torch
from attendo.training.losses import token_losses
def free_days(redrawn):  # the table's answer is 0; a draw gives 1
    days = []
    while len(days) < 11:
        days.append(1 if len(days) in (0, *redrawn) else 0)
    return [t + 1 for t, day in enumerate(days) if day]
order = np.random.default_rng(0).permutation(6)
batches = [len(order) for start in range(0, 6, 2)]
logits, day_11 = torch.zeros(10, 3), 2
loss = token_losses(logits, torch.tensor([day_11] * 10)).sum().item()
counted = [y * (2 - y) % 3 for y in (0, 1, 2)]
batches, free_days([4, 8]), round(loss, 3), counted""",
            r"\(\[6, 6, 6\], \[1, 5, 9\], 10\.986, \[0, 1, 0\]\)",
        ),
        right_code=Snippet(
            """\
import numpy as np, torch
from attendo.training.losses import token_losses
def free_days(redrawn):  # the table's answer is 0; a draw gives 1
    days = []
    while len(days) < 11:
        days.append(1 if len(days) in (0, *redrawn) else 0)
    return [t + 1 for t, day in enumerate(days) if day]
order = np.random.default_rng(0).permutation(6)
batches = [len(order[start : start + 2]) for start in range(0, 6, 2)]
logits, day_11 = torch.zeros(10, 3), 2
loss = token_losses(logits[-1:], torch.tensor([day_11])).sum().item()
counted = [y * (2 - y) % 3 for y in (1, 2, 3)]
batches, free_days([3, 7]), round(loss, 3), counted""",
            r"\(\[2, 2, 2\], \[1, 4, 8\], 1\.099, \[1, 0, 0\]\)",
        ),
    ),
    Erratum(
        number=37,
        source="S3 Shumi-Note, training step and plot",
        title=Localized("Adam begins anew at every step", "毎ステップ初期化される Adam"),
        wrong=Localized(
            "The jitted step doesn't return opt_state, so every step is Adam's first: 1e-2 long, whatever the"
            " gradient, and the loss stalls. batch_size = 100 is never read (16 is what runs), and the plot's axis"
            " “Counts” is the position.",
            "JIT されたステップが opt_state を返さないので、毎回が Adam の 1 歩目になる。勾配の大きさによらず 1e-2 ず"
            "つ動き、損失が下げ止まる。また batch_size = 100 は使われず（実際は 16）、図の軸 Counts は位置である。",
        ),
        right=Localized(
            "The state goes from step to step: the steps shrink with the gradient, and the loss goes on falling.",
            "状態を次のステップに引き継ぐ。勾配とともに歩幅も小さくなり、損失は下がり続ける。",
        ),
        mark="run",
        wrong_code=Snippet(
            """\
import torch
x = torch.tensor(1.005, dtype=torch.float64, requires_grad=True)
lengths = []
for step in range(500):
    optimizer = torch.optim.Adam([x], lr=1e-2)  # the state is lost
    before, x.grad = x.item(), x.detach().clone()  # of x²/2
    optimizer.step()
    lengths.append(abs(x.item() - before))
loss = x.item() ** 2 / 2
round(lengths[0], 4), round(lengths[-1], 4), round(loss, 7)""",
            r"\(0\.01, 0\.01, 1\.25e-05\)",
        ),
        right_code=Snippet(
            """\
import torch
x = torch.tensor(1.005, dtype=torch.float64, requires_grad=True)
lengths = []
optimizer = torch.optim.Adam([x], lr=1e-2)
for step in range(500):
    before, x.grad = x.item(), x.detach().clone()  # of x²/2
    optimizer.step()
    lengths.append(abs(x.item() - before))
loss = x.item() ** 2 / 2
round(lengths[0], 4), round(lengths[-1], 4), round(loss, 7)""",
            r"\(0\.01, 0\.0, 0\.0\)",
        ),
    ),
)
