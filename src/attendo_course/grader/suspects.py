"""The common mistakes in an attention function, each reproduced with functions of attendo."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.attention import attention, attention_scores, attention_weights, masked_softmax
from attendo.nn.masks import causal
from attendo_course.book import passage, translated
from attendo_course.grader.student import Case, RefusedError, Student

TOLERANCE = 1e-6
"""The tolerance between the outputs of a function and of a mistake. It also recognizes a mistake in float32."""


@dataclass(frozen=True)
class Suspect:
    """A common mistake: its description, and the output that it causes for an input and a scale.

    `misshapes` is True if the mistake causes a wrong shape or an exception for some inputs.
    """

    hint: Localized
    output: Callable[[Case, float | None], Tensor]
    misshapes: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """The explanation of a function's output: a common mistake, a wrong scale, both, neither, or randomness."""

    mistake: Suspect | None = None
    scale: Localized | None = None
    random: Localized | None = None

    @property
    def hint(self) -> Localized | None:
        """The complete diagnosis as text."""
        if self.random is not None or self.mistake is None:
            return self.random or self.scale
        hint, scale = self.mistake.hint, self.scale
        return hint if scale is None else translated("{hint.en}; and {scale.en}", hint=hint, scale=scale)


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
    """Apply an unshifted `tril` mask: query i attends to keys 0 to i, even if there are more keys than queries."""
    q_len, k_len = case.query.shape[-2], case.key.shape[-2]
    mask = causal(max(q_len, k_len), max(q_len, k_len))[:q_len, :k_len]
    return attention(case.query, case.key, case.value, mask, scale)


CAUSAL = translated("a causal mask is built in; attention without a mask sees every key")


MISTAKES = (
    Suspect(passage("suspects.text"), _softmax_over(-2)),
    Suspect(
        translated("the softmax runs over the first axis, a batch axis here; take the last one, axis -1"),
        _softmax_over(0),
    ),
    Suspect(passage("suspects.text-2"), _softmax_over(1)),
    Suspect(
        translated("the softmax runs over all scores at once; each query needs a softmax of its own"),
        _over_everything,
    ),
    Suspect(
        translated("the softmax is missing: the scores themselves weigh the values"),
        lambda case, scale: _scores(case, scale) @ case.value,
    ),
    Suspect(
        translated("exp without division by its sum over the keys"),
        lambda case, scale: _scores(case, scale).exp() @ case.value,
    ),
    Suspect(
        translated("the softmax is taken twice"),
        lambda case, scale: masked_softmax(_weights(case, scale)) @ case.value,
    ),
    Suspect(
        translated("the scale comes after the softmax; multiply the scores before it"),
        lambda case, scale: (
            _weights(case, 1.0) @ case.value * (case.query.shape[-1] ** -0.5 if scale is None else scale)
        ),
    ),
    Suspect(
        translated("the scores have the wrong sign"),
        lambda case, scale: _right(case, -(case.query.shape[-1] ** -0.5 if scale is None else scale)),
    ),
    Suspect(
        translated("query and key have changed places"),
        lambda case, scale: _right(replace(case, query=case.key, key=case.query), scale),
        misshapes=True,
    ),
    Suspect(
        translated("the weights are transposed before they meet the values"),
        lambda case, scale: _weights(case, scale).mT @ case.value,
        misshapes=True,
    ),
    Suspect(
        translated("the values stand in reverse order"),
        lambda case, scale: _right(replace(case, value=case.value.flip(-2)), scale),
    ),
    Suspect(
        translated("the keys are used as values"),
        lambda case, scale: _right(replace(case, value=case.key), scale),
    ),
    Suspect(
        translated("key and value have changed places"),
        lambda case, scale: _right(replace(case, key=case.value, value=case.key), scale),
    ),
    Suspect(
        translated("tokens are taken for columns; here each row is a token"),
        _tokens_as_columns,
        misshapes=True,
    ),
    Suspect(CAUSAL, _with_causal_mask),
    Suspect(CAUSAL, _with_causal_mask_from_the_start),
    Suspect(
        translated("only the best key counts: an argmax where a softmax belongs"),
        lambda case, scale: attention(case.query, case.key, case.value, inverse_temperature=math.inf),
    ),
    Suspect(
        translated("every key weighs the same: the scores have no effect"),
        lambda case, scale: attention(case.query, case.key, case.value, inverse_temperature=0.0),
    ),
)

MASK_MISTAKES = (
    Suspect(translated("the mask is not used"), lambda case, scale: _right(replace(case, mask=None), scale)),
    Suspect(
        passage("suspects.text-3"),
        lambda case, scale: _right(replace(case, mask=_given_mask(case).logical_not()), scale),
    ),
    Suspect(
        passage("suspects.text-4"),
        lambda case, scale: _weights(replace(case, mask=None), scale) * _given_mask(case) @ case.value,
    ),
    Suspect(
        passage("suspects.text-5"),
        lambda case, scale: masked_softmax(_scores(case, scale) * _given_mask(case)) @ case.value,
    ),
    Suspect(
        translated("the mask is added as 0 and 1; add 0 where a query may attend and -inf where not"),
        lambda case, scale: masked_softmax(_scores(case, scale) + _given_mask(case)) @ case.value,
    ),
    Suspect(
        translated("the mask is transposed: its rows are the queries"),
        lambda case, scale: _right(replace(case, mask=_given_mask(case).mT), scale),
    ),
)

RANDOM = translated("two calls with the same input differ: dropout or another random part is on")

Scale = tuple[Localized | None, Callable[[Case], float | None]]

SCALES: tuple[Scale, ...] = (
    (None, lambda case: None),
    (translated("forgot the scale: multiply the scores by 1/√head_dim"), lambda case: 1.0),
    (
        translated("scaled by 1/head_dim (or by 1/√head_dim twice); it must be 1/√head_dim once"),
        lambda case: 1 / case.query.shape[-1],
    ),
    (translated("multiplied by √head_dim; divide by it"), lambda case: case.query.shape[-1] ** 0.5),
    (
        translated("scaled by the number of keys or tokens; it must be by the width: 1/√head_dim"),
        lambda case: case.key.shape[-2] ** -0.5,
    ),
    (
        translated("scaled by the width of the values; it must be by that of the keys"),
        lambda case: case.value.shape[-1] ** -0.5,
    ),
)


def _given_mask(case: Case) -> Tensor:
    assert case.mask is not None
    return case.mask


def diagnose(student: Student, cases: Sequence[Case], mistakes: Sequence[Suspect] = MISTAKES) -> Diagnosis:
    """Return the common mistake, alone or with a wrong scale, that explains the function's output on all of `cases`.

    Inputs for which the function raises an exception are ignored.

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
    """Return whether a mistake explains the output for at least two inputs, of which at least one output is wrong."""
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
