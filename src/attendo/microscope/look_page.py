"""The microscope's page: one document of plain modules, live beside a program or whole in a file."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from functools import cache
from typing import Any

from attendo.display.i18n import Language
from attendo.display.web import asset, hash_of, one_script
from attendo.files import json_of
from attendo.microscope.ask import Ask, canonical
from attendo.microscope.session import Session, question_of

MODULES = (
    *("words", "dom", "colors", "numbers", "source", "state", "late", "misfits", "app", "shown", "views"),
    *("cells", "saving", "locks", "chips", "input", "heads", "heat", "lines", "detail", "steps", "curves"),
    *("slider", "sweep", "matrices", "compared", "switches", "rollout", "lens", "next"),
    *("svgpen", "treedraw", "tree", "why", "positions", "classes", "film", "main"),
)
"""In the order in which they are joined: each uses while it is loaded only those before it."""
ASSETS = "microscope/assets/look"
STYLES = ("look", "views")


def live_page(language: Language = "en", model: Mapping[str, Any] | None = None) -> str:
    """The page that asks the program which it came from; model: what `model` answers, so that it need not ask that."""
    return _page("'self'", "null" if model is None else _data({"live": model}), language)


def framed_page(ask: Ask) -> str:
    """The page inside another, which hands its questions on (`widget`); ask: its first look."""
    return _page("'none'", _data({"frame": question_of(ask)}), "en")


def saved_page(
    session: Session, ask: Ask, language: Language = "en", head: Mapping[str, Any] | None = None
) -> str:
    """The page of one look by itself: it opens offline, and asks nothing of anything.

    It holds the answers to what a page asks of a look at the model as it is; what needs the model again (other texts,
    heads switched off together) is for the live page, and the file says so. head: path and number of the one that is
    open at first; if None, the page opens the sharpest.
    """
    answers: dict[str, Any] = {} if head is None else {"opens": {"layer": head["path"], "head": head["head"]}}
    numbers = []
    for name, body, answer in session.usual_answers(ask, head):
        question = f"{name} {canonical(body)}"
        if isinstance(
            answer, bytes
        ):  # in an element of its own: the page decodes what it draws, not all at once
            data = base64.b64encode(answer).decode()
            numbers.append(
                f'<script type="text/plain" data-answer="{html.escape(question)}">{data}</script>\n'
            )
        else:
            answers[question] = answer
    return _page("'none'", _data(answers), language, "".join(numbers))


def _data(answers: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element: only "<" could end it, and JSON lets it be written otherwise."""
    return json_of(answers).replace("<", "\\u003c")


def _page(connect: str, answers: str, language: Language, numbers: str = "") -> str:
    style, script = joined()
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; img-src data: blob:;"
        f" connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    page = asset(f"{ASSETS}/look.html").replace('lang="en"', f'lang="{language}"', 1)
    # the answers come last: what they hold can't be taken for a mark
    for mark, text in (
        ("POLICY", policy),
        ("STYLE", style),
        ("SCRIPT", script),
        ("NUMBERS", numbers),
        ("ANSWERS", answers),
    ):
        page = page.replace(f"@@{mark}@@", text, 1)
    return page


@cache
def joined() -> tuple[str, str]:
    """The styles as one, and the modules as one."""
    styles = "\n".join(asset(f"{ASSETS}/{name}.css") for name in STYLES)
    return styles, one_script(asset(f"{ASSETS}/{name}.js") for name in MODULES)
