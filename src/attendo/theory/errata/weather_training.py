"""Errata 30 to 37: the weather post's data, loss and training, finished versions included."""

from __future__ import annotations

from attendo.theory.errata.erratum import Erratum, Snippet
from attendo.theory.words import Words

POST = "S3 weather post"
FINISHED = "S3 weather post, finished version"

ERRATA = (
    Erratum(
        30,
        f"{POST}, _MARKOV2",
        Words("A second chain that is the first", "二つ目の連鎖が一つ目と同じ"),
        Words(
            "_MARKOV2 is a copy of _MARKOV: keyed by one day, so it can't depend on two.",
            "_MARKOV2 は _MARKOV の写しで、鍵が一日分なので二日に依存できない。",
        ),
        Words(
            "A second-order chain has a row for each pair of days, 9; the first-order one is enough for the post.",
            "二次の連鎖は二日の組ごとに行を持ち、9 行になる。記事の目的には一次の連鎖で足りる。",
        ),
        "run",
        Snippet(
            """first = {"rain": [.6, .3, .1], "cloud": [.3, .4, .3], "sun": [.2, .3, .5]}
second = dict(first)
second == first, len(second)""",
            r"\(True, 3\)",
        ),
        Snippet(
            """from itertools import product
from attendo.data.weather import STATES, transition_matrix
pairs = list(product(STATES, repeat=2))  # one row a pair: second order
len(pairs), transition_matrix().shape""",
            r"\(9, \(3, 3\)\)",
        ),
    ),
    Erratum(
        31,
        f"{POST}, prev[-2:]",
        Words("An emoji is not always two characters", "絵文字は常に二文字とは限らない"),
        Words(
            "prev[-2:] is meant to be the last day: it relies on each emoji being a symbol and U+FE0F. Without the"
            " selector it is two days.",
            "prev[-2:] で最後の日を取り出すが、"
            "これは各絵文字が記号と U+FE0F の二つからなることに頼っている。異体字セレクタが"
            "なければ二日分になる。",
        ),
        Words(
            "Days are numbers, not text: the last one is days[-1].",
            "日は文字列でなく番号で表す。最後の日は days[-1] である。",
        ),
        "run",
        Snippet(
            """with_selector, without = "\\u2601\\ufe0f\\u2600\\ufe0f", "\\u2601\\u2600"
[f"{ord(c):X}" for c in with_selector[-2:]], [f"{ord(c):X}" for c in without[-2:]]""",
            r"\(\['2600', 'FE0F'\], \['2601', '2600'\]\)",
        ),
        Snippet(
            """from attendo.data.weather import STATES
days = [STATES.index("cloud"), STATES.index("sun")]
STATES[days[-1]]""",
            r"sun",
        ),
    ),
    Erratum(
        32,
        f"{POST}, get_embedding",
        Words("An embedding without its width", "幅のない埋め込み"),
        Words(
            "get_embedding gives shape (T,), one number a day, but the model multiplies W_q by a (d_in, T) matrix.",
            "get_embedding は形 (T,) を返すが、モデルは W_q に (d_in, T) の行列を掛ける。",
        ),
        Words(
            "Keep the axis even when d_in is 1.",
            "d_in が 1 でも軸を残す。",
        ),
        "run",
        Snippet(
            """import torch
W_q, e = torch.ones(6, 1), torch.ones(10)  # d_attn x d_in, and (T,)
W_q @ e""",
            r"RuntimeError: .*",
        ),
        Snippet(
            """import torch
from attendo.theory.weather_embeddings import scalar_embedding
e = scalar_embedding("ramp")(torch.zeros(1, 10, dtype=torch.long))
W_q = torch.ones(6, 1)
tuple(e.shape), tuple((W_q @ e[0].T).shape)""",
            r"\(\(1, 10, 1\), \(6, 10\)\)",
        ),
    ),
    Erratum(
        33,
        f"{POST}, loss_fn",
        Words(
            "A loss that is a gradient, of a squared error on categories",
            "損失が勾配になり、カテゴリの二乗誤差になっている",
        ),
        Words(
            "The decorator makes loss_fn return gradients, its body uses undefined names, and it squares the distance"
            " of category codes: the best answer between rain (-1) and sun (1) is then cloud (0), which never came.",
            "デコレータのため loss_fn は勾配を返し、本体は未定義の名前を使い、"
            "カテゴリの番号の差を二乗する。雨 (-1) と晴れ (1) が"
            "半々なら、一度も起きない曇り (0) が最良の答えになってしまう。",
        ),
        Words(
            "Cross-entropy over three classes; value and gradient both.",
            "3 クラスの交差エントロピーを使い、値と勾配の両方を得る。",
        ),
        "run",
        Snippet(
            """import torch
days = torch.tensor([-1.0, 1.0])  # rain, sun, half and half
guesses = torch.tensor([-1.0, 0.0, 1.0])
errors = ((guesses[:, None] - days) ** 2).mean(1)
["rain", "cloud", "sun"][errors.argmin()]""",
            r"cloud",
        ),
        Snippet(
            """import torch
from attendo.training.losses import token_losses
days = torch.tensor([0, 2])  # rain, sun, half and half
logits = torch.zeros(1, 3, requires_grad=True)
loss = token_losses(logits.expand(2, 3), days).mean()
loss.backward()
round(loss.item(), 4), [round(g, 4) for g in logits.grad[0].tolist()]""",
            r"\(1\.0986, \[-0\.1667, 0\.3333, -0\.1667\]\)",
        ),
    ),
    Erratum(
        34,
        f"{POST}, make_dataset",
        Words("A table asked with an array, and nothing returned", "配列で辞書を引き、何も返さない"),
        Words(
            "TOKEN_EMBEDDING[e] looks a dict up by an array, nothing is appended or returned, and the file ends: no"
            " optimizer, loop or evaluation. Weights start at N(0, 1), unscaled.",
            "TOKEN_EMBEDDING[e] は配列で辞書を引こうとする。追加も返却もなく、ファイルはそこで終わり、"
            "最適化も学習ループも評価も"
            "ない。重みは尺度なしの N(0, 1) で始まる。",
        ),
        Words(
            "Ids index a matrix; rows of days and the days after them are returned. Weights start with variance"
            " 2/(inputs + outputs).",
            "番号で行列を引き、日の列とその翌日を返す。重みは分散 2/(入力+出力) で始める。",
        ),
        "run",
        Snippet(
            """import numpy as np
TOKEN_EMBEDDING = {"rain": -1.0, "cloud": 0.0, "sun": 1.0}
e = np.array([-1.0, 0.0])
TOKEN_EMBEDDING[e]""",
            r"TypeError: .*unhashable type: 'numpy\.ndarray'.*",
        ),
        Snippet(
            """import numpy as np
from attendo.data.weather import generate
days = generate(12, np.random.default_rng(0))
rows = np.lib.stride_tricks.sliding_window_view(days, 11)
rows[:, :10].shape, rows[:, 10].shape""",
            r"\(\(2, 10\), \(2,\)\)",
        ),
    ),
    Erratum(
        35,
        f"{FINISHED}, causal_mask",
        Words("The mask hides the past instead of the future", "マスクが未来でなく過去を隠している"),
        Words(
            "tri(k=-1) with rows as queries forbids keys before the query: only position 0 sees everything, and it is"
            " position 0 that is read.",
            "行をクエリとした tri(k=-1) は、クエリより前のキーを禁じる。すべてを見るのは位置 0 だけで、"
            "読み出されるのも位置 0 である。",
        ),
        Words(
            "Keep keys at or before the query and read the last position. (It is a real mistake, but not why attention"
            " lost there: one head in one layer without a residual or feed-forward net is.)",
            "クエリ以前のキーを残し、最後の位置を読む。（確かに誤りだが、"
            "注意が線形モデルに負けた原因ではない。原因は、残差も"
            "フィードフォワード層もない一層一ヘッドの構成である。）",
        ),
        "run",
        Snippet(
            """import numpy as np
forbidden = np.tri(4, k=-1, dtype=bool)  # [query, key]
(~forbidden).sum(axis=1).tolist()  # keys that each position sees""",
            r"\[4, 3, 2, 1\]",
        ),
        Snippet(
            """from attendo.nn.masks import causal
causal(4, 4).sum(1).tolist()  # keys that each position sees""",
            r"\[1, 2, 3, 4\]",
        ),
    ),
    Erratum(
        36,
        f"{FINISHED}, training and tasks",
        Words(
            "Minibatches that are the whole set, days off by one",
            "ミニバッチが全データになり、日が一つずれる",
        ),
        Words(
            "The permuted indices are never cut, so each minibatch is the full set; the 1-4-8 task draws anew at"
            " lengths 4 and 8, which are days 5 and 9; other sums have slipped indices.",
            "並べ替えた添字を切り分けないので、どのミニバッチも全データになる。"
            "1-4-8 の課題は長さ 4 と 8、"
            "すなわち 5 日目と 9 日目で"
            "引き直している。ほかの和の添字にも誤りがある。",
        ),
        Words(
            "Slice the permutation; draw anew at lengths 3 and 7, which are days 4 and 8.",
            "並べ替えた添字を切り分ける。引き直すのは長さ 3 と 7、すなわち 4 日目と 8 日目である。",
        ),
        "run",
        Snippet(
            """import numpy as np
order, size = np.random.default_rng(0).permutation(100), 20
sizes = [len(order) for start in range(0, 100, size)]
days = [length + 1 for length in (4, 8)]  # the day drawn at a length
sizes, days""",
            r"\(\[100, 100, 100, 100, 100\], \[5, 9\]\)",
        ),
        Snippet(
            """import numpy as np
order, size = np.random.default_rng(0).permutation(100), 20
sizes = [len(order[start : start + size]) for start in range(0, 100, size)]
days = [length + 1 for length in (3, 7)]
sizes, days""",
            r"\(\[20, 20, 20, 20, 20\], \[4, 8\]\)",
        ),
    ),
    Erratum(
        37,
        "S3 Shumi-Note, training step",
        Words("Adam that starts anew at every step", "毎回やり直される Adam"),
        Words(
            "The optimizer's state is not returned from the compiled step, so each step is Adam's first: of length 1e-2"
            " whatever the gradient, and the loss stalls. batch_size=100 is not used, and the plot's Counts axis is the"
            " position.",
            "コンパイルされたステップが最適化の状態を返さないので、どの更新も Adam の一歩目になる。"
            "勾配によらず歩幅が 1e-2 となり、"
            "損失が下げ止まる。batch_size=100 は使われず、図の Counts の軸は位置である。",
        ),
        Words(
            "Keep the state between steps.",
            "状態をステップ間で保つ。",
        ),
        "run",
        Snippet(
            """import torch
x, steps = torch.tensor([0.025], requires_grad=True), []
for _ in range(6):
    before = x.item()
    x.grad = 2 * x.detach()  # of x squared
    torch.optim.Adam([x], lr=1e-2).step()  # its state is lost each time
    steps.append(round(x.item() - before, 4))
steps  # back and forth over 0""",
            r"\[-0\.01, -0\.01, -0\.01, 0\.01, -0\.01, 0\.01\]",
        ),
        Snippet(
            """import torch
x, steps = torch.tensor([0.025], requires_grad=True), []
optimizer = torch.optim.Adam([x], lr=1e-2)
for _ in range(200):
    x.grad = 2 * x.detach()
    optimizer.step()
abs(x.item()) < 1e-3""",
            r"True",
        ),
    ),
)
