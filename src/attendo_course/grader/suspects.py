"""The usual mistakes in an attention function, each computed on purpose from attendo's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.attention import attention, attention_scores, attention_weights, masked_softmax
from attendo.nn.masks import causal
from attendo_course.grader.student import Case, RefusedError, Student

TOLERANCE = 1e-6
"""Between a function's output and a mistake's: a mistake made in float32 is still recognized."""


@dataclass(frozen=True)
class Suspect:
    """A mistake: the output it leads to for an input and a scale, and the words for it.

    misshapes: with it, some inputs give a wrong shape or an exception.
    """

    hint: Localized
    output: Callable[[Case, float | None], Tensor]
    misshapes: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """What explains a function's output: a usual mistake, a wrong scale, both, neither; or a random part."""

    mistake: Suspect | None = None
    scale: Localized | None = None
    random: Localized | None = None

    @property
    def hint(self) -> Localized | None:
        """All of it in words."""
        if self.random is not None or self.mistake is None:
            return self.random or self.scale
        hint, scale = self.mistake.hint, self.scale
        return (
            hint
            if scale is None
            else Localized(f"{hint.en}; and {scale.en}", f"{hint.ja}。さらに、{scale.ja}")
        )


def _scores(case: Case, scale: float | None) -> Tensor:
    return attention_scores(case.query, case.key, scale)


def _weights(case: Case, scale: float | None) -> Tensor:
    return attention_weights(case.query, case.key, case.mask, scale)


def _right(case: Case, scale: float | None) -> Tensor:
    return attention(case.query, case.key, case.value, case.mask, scale)


def _softmax_over(axis: int) -> Callable[[Case, float | None], Tensor]:
    def output(case: Case, scale: float | None) -> Tensor:
        turned = _scores(case, scale).transpose(axis, -1)
        return masked_softmax(turned).transpose(axis, -1) @ case.value

    return output


def _over_everything(case: Case, scale: float | None) -> Tensor:
    scores = _scores(case, scale)
    return masked_softmax(scores.flatten(-2)[..., None, :]).reshape(scores.shape) @ case.value


def _tokens_as_columns(case: Case, scale: float | None) -> Tensor:
    factor = case.query.shape[-2] ** -0.5 if scale is None else scale
    return attention(case.query.mT, case.key.mT, case.value.mT, scale=factor).mT


def _with_causal_mask(case: Case, scale: float | None) -> Tensor:
    mask = causal(case.query.shape[-2], case.key.shape[-2])
    return attention(case.query, case.key, case.value, mask, scale)


def _with_causal_mask_from_the_start(case: Case, scale: float | None) -> Tensor:
    """With `tril` as it comes: query i sees keys 0 to i, also where there are more keys than queries."""
    q_len, k_len = case.query.shape[-2], case.key.shape[-2]
    mask = causal(max(q_len, k_len), max(q_len, k_len))[:q_len, :k_len]
    return attention(case.query, case.key, case.value, mask, scale)


CAUSAL = Localized(
    "a causal mask is built in; attention without a mask sees every key",
    "因果マスクが組み込まれている。マスクなしのアテンションはすべてのキーを見る",
)


MISTAKES = (
    Suspect(
        Localized(
            "the softmax runs over the queries; it must run over the keys, the last axis of the scores",
            "softmax がクエリの軸に沿っている。スコアの最後の軸であるキーの軸に沿って取ること",
        ),
        _softmax_over(-2),
    ),
    Suspect(
        Localized(
            "the softmax runs over the first axis, a batch axis here; take the last one, axis -1",
            "softmax が先頭の軸（ここではバッチの軸）に沿っている。最後の軸 -1 を指定すること",
        ),
        _softmax_over(0),
    ),
    Suspect(
        Localized(
            "the softmax runs over axis 1, which is no key axis once there is a batch; take axis -1",
            "softmax が軸 1 に沿っている。バッチがあると軸 1 はキーの軸ではない。軸 -1 を指定すること",
        ),
        _softmax_over(1),
    ),
    Suspect(
        Localized(
            "the softmax runs over all scores at once; each query needs a softmax of its own",
            "softmax がスコア全体に対して取られている。クエリごとに取ること",
        ),
        _over_everything,
    ),
    Suspect(
        Localized(
            "the softmax is missing: the scores themselves weigh the values",
            "softmax がなく、スコアがそのまま重みになっている",
        ),
        lambda case, scale: _scores(case, scale) @ case.value,
    ),
    Suspect(
        Localized(
            "exp without division by its sum over the keys",
            "exp を取ったあと、キーについての和で割っていない",
        ),
        lambda case, scale: _scores(case, scale).exp() @ case.value,
    ),
    Suspect(
        Localized("the softmax is taken twice", "softmax が二重に適用されている"),
        lambda case, scale: masked_softmax(_weights(case, scale)) @ case.value,
    ),
    Suspect(
        Localized(
            "the scale comes after the softmax; multiply the scores before it",
            "softmax のあとでスケールを掛けている。softmax の前のスコアに掛けること",
        ),
        lambda case, scale: (
            _weights(case, 1.0) @ case.value * (case.query.shape[-1] ** -0.5 if scale is None else scale)
        ),
    ),
    Suspect(
        Localized("the scores have the wrong sign", "スコアの符号が逆である"),
        lambda case, scale: _right(case, -(case.query.shape[-1] ** -0.5 if scale is None else scale)),
    ),
    Suspect(
        Localized("query and key have changed places", "クエリとキーが入れ替わっている"),
        lambda case, scale: _right(replace(case, query=case.key, key=case.query), scale),
        misshapes=True,
    ),
    Suspect(
        Localized(
            "the weights are transposed before they meet the values",
            "バリューに掛ける前に重みの行列が転置されている",
        ),
        lambda case, scale: _weights(case, scale).mT @ case.value,
        misshapes=True,
    ),
    Suspect(
        Localized("the values stand in reverse order", "バリューの並びが逆になっている"),
        lambda case, scale: _right(replace(case, value=case.value.flip(-2)), scale),
    ),
    Suspect(
        Localized("the keys are used as values", "バリューの代わりにキーが使われている"),
        lambda case, scale: _right(replace(case, value=case.key), scale),
    ),
    Suspect(
        Localized("key and value have changed places", "キーとバリューが入れ替わっている"),
        lambda case, scale: _right(replace(case, key=case.value, value=case.key), scale),
    ),
    Suspect(
        Localized(
            "tokens are taken for columns; here each row is a token",
            "列をトークンとして扱っている。ここでは行がトークンである",
        ),
        _tokens_as_columns,
        misshapes=True,
    ),
    Suspect(CAUSAL, _with_causal_mask),
    Suspect(CAUSAL, _with_causal_mask_from_the_start),
    Suspect(
        Localized(
            "only the best key counts: an argmax where a softmax belongs",
            "最大のキーだけを見ている。softmax ではなく argmax になっている",
        ),
        lambda case, scale: attention(case.query, case.key, case.value, inverse_temperature=math.inf),
    ),
    Suspect(
        Localized(
            "every key weighs the same: the scores have no effect",
            "すべてのキーの重みが等しい。スコアが効いていない",
        ),
        lambda case, scale: attention(case.query, case.key, case.value, inverse_temperature=0.0),
    ),
)

MASK_MISTAKES = (
    Suspect(
        Localized("the mask is not used", "マスクが使われていない"),
        lambda case, scale: _right(replace(case, mask=None), scale),
    ),
    Suspect(
        Localized(
            "the mask is reversed: True means may attend (torch's key_padding_mask says the opposite)",
            "マスクの向きが逆である。True は「見てよい」を意味する（torch の key_padding_mask は逆）",
        ),
        lambda case, scale: _right(replace(case, mask=_given_mask(case).logical_not()), scale),
    ),
    Suspect(
        Localized(
            "the mask multiplies the weights after the softmax, so they no longer sum to 1; mask the scores",
            "softmax のあとの重みにマスクを掛けているため、和が 1 にならない。スコアのほうにマスクをかけること",
        ),
        lambda case, scale: _weights(replace(case, mask=None), scale) * _given_mask(case) @ case.value,
    ),
    Suspect(
        Localized(
            "the mask multiplies the scores, and a score of 0 still has weight; set masked scores to -inf",
            "スコアにマスクを掛けている。スコア 0 にも重みがつくので、マスクした位置は -inf にすること",
        ),
        lambda case, scale: masked_softmax(_scores(case, scale) * _given_mask(case)) @ case.value,
    ),
    Suspect(
        Localized(
            "the mask is added as 0 and 1; add 0 where a query may attend and -inf where not",
            "マスクの 0 と 1 をそのまま足している。見てよい位置に 0、そうでない位置に -inf を足すこと",
        ),
        lambda case, scale: masked_softmax(_scores(case, scale) + _given_mask(case)) @ case.value,
    ),
    Suspect(
        Localized(
            "the mask is transposed: its rows are the queries", "マスクが転置されている。行がクエリに対応する"
        ),
        lambda case, scale: _right(replace(case, mask=_given_mask(case).mT), scale),
    ),
)

RANDOM = Localized(
    "two calls with the same input differ: dropout or another random part is on",
    "同じ入力で二度呼ぶと結果が異なる。ドロップアウトなどの乱数が働いている",
)

Scale = tuple[Localized | None, Callable[[Case], float | None]]

SCALES: tuple[Scale, ...] = (
    (None, lambda case: None),
    (
        Localized(
            "forgot the scale: multiply the scores by 1/√head_dim",
            "スケールを忘れている。スコアに 1/√head_dim を掛けること",
        ),
        lambda case: 1.0,
    ),
    (
        Localized(
            "scaled by 1/head_dim (or by 1/√head_dim twice); it must be 1/√head_dim once",
            "1/head_dim 倍になっている（あるいは 1/√head_dim が二度掛かっている）。1/√head_dim を一度だけ掛けること",
        ),
        lambda case: 1 / case.query.shape[-1],
    ),
    (
        Localized("multiplied by √head_dim; divide by it", "√head_dim を掛けている。割ること"),
        lambda case: case.query.shape[-1] ** 0.5,
    ),
    (
        Localized(
            "scaled by the number of keys or tokens; it must be by the width: 1/√head_dim",
            "キー（トークン）の個数でスケールしている。幅によること：1/√head_dim",
        ),
        lambda case: case.key.shape[-2] ** -0.5,
    ),
    (
        Localized(
            "scaled by the width of the values; it must be by that of the keys",
            "バリューの幅でスケールしている。キーの幅によること",
        ),
        lambda case: case.value.shape[-1] ** -0.5,
    ),
)


def _given_mask(case: Case) -> Tensor:
    assert case.mask is not None
    return case.mask


def diagnose(student: Student, cases: Sequence[Case], mistakes: Sequence[Suspect] = MISTAKES) -> Diagnosis:
    """The one of the usual mistakes, alone or with a wrong scale, that gives the function's output on all of `cases`.

    Inputs for which the function raises say nothing.

    >>> from attendo_course.grader.trials import draw
    >>> mine = Student(lambda query, key, value: attention(query, key, value, scale=1.0), "mine")
    >>> diagnose(mine, [draw((2, 2, 2, 2)), draw((2, 3, 4, 5))]).hint.en
    'forgot the scale: multiply the scores by 1/√head_dim'
    """
    tried = [(case, _output_of(student, case)) for case in cases]
    given = [(case, output) for case, output in tried if output is not None]
    if any(_differs(student, case, output) for case, output in given[:2]):
        return Diagnosis(random=RANDOM)
    for words, scale_of in SCALES:
        if words is not None and _explains(_right, scale_of, given):
            return Diagnosis(scale=words)
        for mistake in mistakes:
            if _explains(mistake.output, scale_of, given):
                return Diagnosis(mistake, words)
    return Diagnosis()


def _explains(
    output: Callable[[Case, float | None], Tensor],
    scale_of: Callable[[Case], float | None],
    given: Sequence[tuple[Case, Tensor]],
) -> bool:
    """Whether a mistake gives what the function gave: on at least two inputs, not all of them also right."""
    matches, tells = 0, False
    for case, found in given:
        try:
            wrong = output(case, scale_of(case))
        except (RuntimeError, IndexError, TypeError):  # the mistake wants shapes that the function does not
            return False
        if not _same(wrong, found):
            return False
        matches += 1
        tells = tells or not _same(_right(case, None), found)
    return matches >= 2 and tells


def _output_of(student: Student, case: Case) -> Tensor | None:
    try:
        return student(case).output.detach().double()
    except RefusedError:
        return None


def _differs(student: Student, case: Case, output: Tensor) -> bool:
    again = _output_of(student, case)
    return again is None or not _same(again, output)


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, TOLERANCE, TOLERANCE, equal_nan=True)
