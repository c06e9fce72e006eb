"""What a hidden vector knows of the text around it (C16), and what can be read from it (C26)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.model_config import Positions
from attendo.models import EncoderClassifier, MaskedLM, ModelConfig
from attendo.nn.layers import pool
from attendo_course.claims.built import built
from attendo_course.claims.claim import Check, Claim, Finding, above, below, equals, shown
from attendo_course.claims.samples import largest

WORDS = ("river", "savings", "dog", "man", "bank", "floods", "lends", "bites")
ABOUT_BANKS = ("river bank floods", "savings bank lends", "river bank lends", "dog bites bank")
"""Sentences that have one word in common; in the first three it stands at the same place."""


def _sentence(text: str) -> Int[Tensor, "1 len"]:
    return torch.tensor([[WORDS.index(word) for word in text.split()]])


def _model_of_words(positions: Positions) -> MaskedLM:
    config = ModelConfig(
        architecture="masked",
        vocab_size=len(WORDS),
        d_model=16,
        d_ff=32,
        n_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=0,
        dropout=0.0,
        max_len=8,
        positions=positions,
    )
    return built(lambda: MaskedLM(config)).requires_grad_(False)


def _at(states: Float[Tensor, "1 len d"], text: str, word: str) -> Float[Tensor, " d"]:
    return states[0, text.split().index(word)]


def words_in_context(positions: Positions = "sinusoidal") -> Finding:
    """A static vector is the same in each text; a hidden one depends on the other words, and on their order.

    Slides on the Transformer. positions: those of the model that is to see the order of words.

    >>> words_in_context().holds
    True
    >>> words_in_context("none").holds
    False
    """
    model, blind = _model_of_words(positions), _model_of_words("none")
    first, second = ABOUT_BANKS[:2]
    static = [_at(model.embedding.tokens(_sentence(text)), text, "bank") for text in ABOUT_BANKS]
    hidden = [_at(model.hidden(_sentence(text)), text, "bank") for text in ABOUT_BANKS]
    without = [_at(blind.hidden(_sentence(text)), text, "bank") for text in (first, second)]
    one, other = "dog bites man", "man bites dog"
    bags = [pool(model.embedding.tokens(_sentence(text)), "mean") for text in (one, other)]
    pairs = {}
    for name, net in (("with", model), ("none", blind)):
        states, reversed_states = net.hidden(_sentence(one)), net.hidden(_sentence(other))
        moved = [
            _at(states, one, word) - _at(reversed_states, other, word) for word in ("dog", "bites", "man")
        ]
        pairs[name] = [vector.norm().item() for vector in moved]
    same = Localized("static: |bank by the river - bank of savings|", "静的：|川の bank - 貯蓄の bank|")
    differ = Localized("hidden: |bank by the river - bank of savings|", "隠れ状態：|川の bank - 貯蓄の bank|")
    cosine = Localized("hidden: their cosine", "隠れ状態：両者のコサイン")
    context = Localized(
        "no positions: |bank by the river - bank of savings|", "位置なし：|川の bank - 貯蓄の bank|"
    )
    bag = Localized(
        "static: |mean of 'dog bites man' - of 'man bites dog'|",
        "静的：dog bites man と man bites dog の平均の差",
    )
    ordered = Localized(
        "with positions: least |word - same word, reversed|", "位置あり：語順を逆にしたときの同じ語の差の最小"
    )
    unordered = Localized(
        "no positions: largest |word - same word, reversed|", "位置なし：語順を逆にしたときの同じ語の差の最大"
    )
    checks = (
        equals(same, largest(static[0] - static[1]), 0.0, 0.0),
        above(differ, (hidden[0] - hidden[1]).norm().item(), 1.0),
        shown(cosine, F.cosine_similarity(hidden[0], hidden[1], dim=0).item()),
        above(context, (without[0] - without[1]).norm().item(), 1.0),
        below(bag, largest(bags[0] - bags[1]), 1e-12),
        above(ordered, min(pairs["with"]), 0.1),
        below(unordered, max(pairs["none"]), 1e-12, counterexample=True),
    )
    units = F.normalize(torch.stack(hidden), dim=-1)
    title = Localized("cosines of the hidden vectors of 'bank'", "「bank」の隠れ状態のコサイン")
    return Finding(checks, Picture("matrix", title, (units @ units.T).numpy(), ABOUT_BANKS))


LETTERS, N_TEXTS, LENGTH = 6, 256, 8
LENGTHS = (2, 4, 8, 16, 32, 64)

Read = Callable[[Float[Tensor, "texts len d"]], Float[Tensor, "texts len d"]]


def _as_it_is(memory: Float[Tensor, "texts len d"]) -> Float[Tensor, "texts len d"]:
    return memory


def _flat(rows: Float[Tensor, "texts len d"]) -> Float[Tensor, "n d"]:
    return rows.flatten(0, 1)


def _texts(seed: int, length: int = LENGTH) -> Int[Tensor, "texts len"]:
    """Random letters."""
    return torch.randint(LETTERS, (N_TEXTS, length), generator=torch.Generator().manual_seed(seed))


def has_more_early_letters(texts: Int[Tensor, "texts len"]) -> Int[Tensor, " texts"]:
    """The task that the encoder is trained on: 1 where letters of the first half of the alphabet prevail.

    >>> has_more_early_letters(torch.tensor([[0, 1, 5], [0, 4, 5]]))
    tensor([1, 0])
    """
    return ((texts < LETTERS // 2).sum(1) > texts.shape[1] // 2).long()


def trained_encoder(steps: int = 60, seed: int = 0) -> EncoderClassifier:
    """An encoder and a classifier of texts by `has_more_early_letters`, trained by plain gradient descent.

    >>> trained_encoder(steps=0).config.d_model
    16
    """
    from attendo.training.losses import token_losses  # a claim that is only listed loads no training

    config = ModelConfig(
        architecture="classifier",
        vocab_size=LETTERS,
        d_model=16,
        d_ff=32,
        n_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=0,
        dropout=0.0,
        max_len=128,
        n_classes=2,
    )
    model, texts = built(lambda: EncoderClassifier(config), seed), _texts(seed + 1)
    targets = has_more_early_letters(texts)
    for _ in range(steps):
        loss = token_losses(model(texts), targets).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return model.requires_grad_(False)


def probe_accuracy(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], other: Float[Tensor, "m d"], truth: Int[Tensor, " m"]
) -> float:
    """Share of other vectors that a linear map to one-hot labels, fitted by least squares to x, names right.

    >>> eye = torch.eye(3)
    >>> probe_accuracy(eye, torch.arange(3), eye, torch.arange(3))
    1.0
    """
    with_bias, others = (F.pad(rows, (0, 1), value=1.0) for rows in (x, other))
    solved = torch.linalg.lstsq(with_bias, F.one_hot(labels).to(x.dtype), driver="gelsd").solution
    return ((others @ solved).argmax(-1) == truth).double().mean().item()


def memory_serves_other_tasks(read: Read = _as_it_is, steps: int = 60) -> Finding:
    """Hidden vectors of an encoder trained on one task, read by a linear map for others. NYU 2020, week 12-3.

    A demonstration: the accuracies are of one seed, on texts that neither training nor probe has seen. read: what
    is kept of the memory `[texts, len, d]` before it is read.

    >>> memory_serves_other_tasks().holds
    True
    >>> memory_serves_other_tasks(lambda memory: memory.mean(1, keepdim=True).expand_as(memory)).holds
    False
    """
    model, untrained = trained_encoder(steps), trained_encoder(0)

    def memory(texts: Tensor, model: EncoderClassifier = model) -> Tensor:
        return read(model.encoder(model.embedding(texts)))

    train, test = _texts(11), _texts(12)
    states, others = memory(train), memory(test)
    places = torch.arange(LENGTH).repeat(N_TEXTS)
    own = probe_accuracy(_flat(states), train.flatten(), _flat(others), test.flatten())
    place = probe_accuracy(_flat(states), places, _flat(others), places)
    before = probe_accuracy(_flat(memory(train, untrained)), places, _flat(memory(test, untrained)), places)
    left = probe_accuracy(
        _flat(states[:, 1:]), train[:, :-1].flatten(), _flat(others[:, 1:]), test[:, :-1].flatten()
    )
    nearest = torch.cdist(_flat(others)[:500], _flat(states)).argmin(1)
    neighbor = (train.flatten()[nearest] == test.flatten()[:500]).double().mean().item()
    first, mean = [], []
    for length in LENGTHS:
        texts, fresh = _texts(21, length), _texts(22, length)
        rows, new = memory(texts), memory(fresh)
        first.append(probe_accuracy(_flat(rows), texts.flatten(), _flat(new), fresh.flatten()))
        pooled = pool(rows, "mean"), pool(new, "mean")
        mean.append(probe_accuracy(pooled[0], texts[:, 0], pooled[1], fresh[:, 0]))
    trained = Localized("its own task: accuracy on new texts", "本来のタスク：新しい文での正解率")
    names = (
        Localized(
            "probe, the letter itself: accuracy, chance .17", "プローブ（その文字）：正解率、偶然なら 0.17"
        ),
        Localized("probe, its place: accuracy, chance .13", "プローブ（位置）：正解率、偶然なら 0.13"),
        Localized(
            "probe, the letter to its left: accuracy, chance .17",
            "プローブ（左隣の文字）：正解率、偶然なら 0.17",
        ),
        Localized("nearest hidden vector has the same letter: share", "最も近い隠れ状態が同じ文字である割合"),
    )
    longest = Localized("64 letters, probe of each vector: accuracy", "64 文字、各ベクトルのプローブ：正解率")
    one = Localized(
        "64 letters, one mean vector, first letter: accuracy",
        "64 文字、平均ベクトル 1 本から先頭の文字：正解率",
    )
    accuracy = (model(test).argmax(-1) == has_more_early_letters(test)).double().mean().item()
    checks: list[Check] = [
        equals(Localized(f"text of {t}: vectors in memory", f"長さ {t} の文：メモリのベクトル数"), n, t, 0.0)
        for t, n in ((t, memory(_texts(31, t)).shape[1]) for t in (1, 8, 128))
    ]
    checks.append(above(trained, accuracy, 0.9))
    checks += [
        above(name, value, least)
        for name, value, least in zip(names, (own, place, left, neighbor), (0.9, 0.3, 0.25, 0.9), strict=True)
    ]
    faded = Localized("its place: accuracy before - after training", "位置：学習前と学習後の正解率の差")
    checks.append(above(faded, before - place, 0.1))
    checks += [above(longest, first[-1], 0.9), below(one, mean[-1], 0.35, counterexample=True)]
    title = Localized("accuracy of the probe by length of text", "プローブの正解率と文の長さ")
    values = np.array([first, mean])
    labels = tuple(str(length) for length in LENGTHS)
    return Finding(tuple(checks), Picture("curves", title, values, ("each vector", "one mean"), labels))


C16 = Claim(
    id="C16",
    source="Slides on the Transformer",
    statement=Localized(
        "Word2Vec gives a word one vector, whatever stands around it and in whatever order; self-attention takes the"
        " other words into account, and positional encodings add their order.",
        "Word2Vec は文脈や語順によらず、語に一つのベクトルを与える。セルフアテンションは周りの語を考慮し、"
        "位置符号化が語順の情報"
        "を加える。",
    ),
    derivation=Localized(
        "A static vector is a row of a table, E[w]: the same wherever w stands. A mean of such rows does not depend on"
        " the order of the words, for addition commutes.\n"
        "Self-attention mixes: h_p = Σ_q a_pq v_q with a_pq > 0. Another word q changes v_q and the weights, and so"
        " h_p: the same word has another vector in another text.\n"
        "But MHA(PX) = P·MHA(X) (C09): a word takes its vector along when the words are reordered. 'dog bites man'"
        " and 'man bites dog' give the same three vectors.\n"
        "With PE[p] added to its input, the row of a word depends on its place: x_w + PE[1] is not x_w + PE[3]."
        " Now the two sentences differ.\n"
        "The weights are random here: the property is one of the architecture, training only puts it to use.",
        "静的なベクトルは表の行 E[w] であり、w がどこにあっても同じである。そうした行の平均は、足し算が可換なので語順"
        "によらない。\n"
        "セルフアテンションは h_p = Σ_q a_pq v_q（a_pq > 0）と混ぜる。別の語 q は v_q と重みを変え、"
        "したがって h_p を変える。同"
        "じ語でも文が違えばベクトルが違う。\n"
        "ただし MHA(PX) = P·MHA(X)（C09）なので、語を並べ替えると語は自分のベクトルを持って移動する。dog bites man と"
        " man bites dog では同じ 3 本のベクトルになる。\n"
        "入力に PE[p] を足すと、語の行は位置による。x_w + PE[1] は x_w + PE[3] ではないので、二つの文は区別される。\n"
        "ここでの重みは乱数である。この性質は構造によるものであり、学習はそれを利用するだけである。",
    ),
    condition=Localized(
        "Order needs positions (or a causal mask): by itself, self-attention sees a set of words. Distances alone do"
        " not suffice: they are the same in a text read backwards.",
        "語順を区別するには、位置の情報（または因果マスク）が必要である。セルフアテンションだけでは、語の集合しか見えない。距離だけ"
        "では足りない。逆順に読んだ文でも距離は同じだからである。",
    ),
    compute=words_in_context,
)

C26 = Claim(
    id="C26",
    source="NYU Deep Learning 2020, week 12-3",
    statement=Localized(
        "The encoder's hidden vectors represent what the tokens mean, and serve tasks that the encoder was not trained"
        " for.",
        "エンコーダの隠れ状態はトークンの意味を表し、学習時とは無関係なタスクにも利用できる。",
    ),
    derivation=Localized(
        "This is an observation, not a theorem; here it is made on one small encoder.\n"
        "It learns to say whether early letters prevail in a text. Then its weights are frozen, and a linear map"
        " (least squares on one-hot labels) is to read something else from single hidden vectors of new texts.\n"
        "Which letter, at which place, behind which other letter: each is read better than by chance, because"
        " residual connections carry the input upwards and attention adds the neighbors.\n"
        "What the task does not ask for fades as training goes on: the place is read less and less well.\n"
        "A text of t tokens has a memory of t vectors, t·d numbers: it grows with the text.\n"
        "A single vector does not: d numbers for t letters. Of 64 letters their mean hardly tells the first.",
        "これは定理ではなく観察であり、ここでは小さなエンコーダ一つで確かめる。\n"
        "エンコーダは、文にアルファベット前半の文字が多いかどうかを学習する。その後は重みを固定し、新しい文の隠れ状態"
        " 1 本から、線形写像（one-hot ラベルへの最小二乗）で別のことを読み取る。\n"
        "どの文字か、どの位置か、左隣はどの文字か。いずれも偶然より正しく読み取れる。残差接続が入力を上の層へ運び、"
        "アテンションが周りの情報を加えるからである。\n"
        "タスクに不要な情報は学習が進むと薄れる。位置は次第に読み取りにくくなる。\n"
        "t トークンの文のメモリは t 本のベクトル、つまり t·d 個の数であり、文とともに大きくなる。\n"
        "1 本のベクトルではそうはいかない。t 文字に対して d 個の数しかなく、64 文字の平均からは先頭の文字がほとんど"
        "わからない。",
    ),
    condition=Localized(
        "The memory, one vector a token, is meant. A single vector for the whole text is a bottleneck: the longer the"
        " text, the less can be read from it.",
        "トークンごとに 1 本のベクトルをもつメモリについての主張である。文全体で 1 本のベクトルはボトルネックであり、"
        "文が長いほど読み取れる情報は少ない。",
    ),
    compute=memory_serves_other_tasks,
)
