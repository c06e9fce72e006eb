"""Whether a function leaves its work to a library's attention."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import torch
from torch.nn import functional

from attendo.display.i18n import Localized
from attendo_course.grader.student import NoAnswerError, Student
from attendo_course.grader.trials import draw

OURS = ("attendo.nn.attention", "attendo_course.algorithms.", "attendo_course.lecture")
WHOLE = (torch.nn.MultiheadAttention.forward.__code__, functional.multi_head_attention_forward.__code__)


def borrowed(student: Student) -> tuple[Localized, ...]:
    """A remark that names the attention which a function calls, attendo's or torch's: what two small inputs show.

    >>> from attendo.nn.attention import attention
    >>> borrowed(Student(lambda query, key, value: attention(query, key, value), "mine"))[0].en
    'it leaves the work to attendo.nn.attention.attention'
    >>> borrowed(Student(lambda query, key, value: (query @ key.mT).softmax(-1) @ value, "mine"))
    ()
    """
    called: list[str] = []

    def note(frame: FrameType, event: str, what: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            ours = module.startswith(OURS) and "<" not in frame.f_code.co_qualname
            if ours or frame.f_code in WHOLE:
                called.append(f"{module}.{frame.f_code.co_qualname}")
        elif event == "c_call" and what is functional.scaled_dot_product_attention:
            called.append("torch's scaled_dot_product_attention")

    case, former = draw((2, 2, 2, 2), student.lead), sys.getprofile()
    allowed = torch.ones(*student.lead, 2, 2, dtype=torch.bool)
    sys.setprofile(note)
    try:
        for mask in (None, allowed):
            with suppress(NoAnswerError):
                student(replace(case, mask=mask))
    finally:
        sys.setprofile(former)
    if not called:
        return ()
    return (Localized(f"it leaves the work to {called[0]}", f"計算を {called[0]} に任せている"),)
