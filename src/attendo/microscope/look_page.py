"""The HTML page of the microscope, which is either self-contained or queries a running program."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from typing import Any

from attendo.display.i18n import Language
from attendo.display.web import Served, asset, data_elements, live_document, saved_document
from attendo.errors import AttendoError, install_command
from attendo.files import json_of
from attendo.microscope.protocol import LookRequest, canonical
from attendo.microscope.session import Session

Widget = Any
"""An `anywidget.AnyWidget`. The package anywidget is optional."""


def widget_of(session: Session, request: LookRequest, height: int) -> Widget:
    """Return the microscope page for a request as a notebook widget, which is live while Python runs.

    Raise AttendoError if anywidget is not installed.
    """
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise AttendoError(f"a widget requires anywidget. Run: {install_command('notebook')}") from None

    class LookWidget(anywidget.AnyWidget):
        _esm = asset("bridge.js")
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    widget = LookWidget(page=framed_page(request), height=height)

    def on_message(_: Any, message: Any, buffers: Any) -> None:
        if (reply := reply_to(session, message)) is not None:
            widget.send(*reply)

    widget.on_msg(on_message)
    return widget


def reply_to(session: Session, message: Any) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the reply to a message of the widget and its binary buffers, or None for unrelated messages.

    An error becomes a text in the reply, because a notebook does not show exceptions of message handlers.
    """
    if not isinstance(message, dict) or message.get("attendo") != 1:
        return None
    back = {name: message.get(name) for name in ("attendo", "view", "id")}
    name, body = message.get("name"), message.get("body")
    if not isinstance(name, str) or not isinstance(body, dict):
        return back | {"error": "a question is {attendo: 1, id, name, body}"}, []
    try:
        answer = session.answer(name, body)
        if not isinstance(answer, bytes):
            json_of(answer)  # raises for non-finite numbers, which would be lost silently
    except AttendoError as error:
        return back | {"error": str(error)}, []
    except Exception as error:  # noqa: BLE001  (see above)
        return back | {"error": f"a bug in attendo: {type(error).__name__}: {error}"}, []
    return (back, [answer]) if isinstance(answer, bytes) else (back | {"answer": answer}, [])


BEGIN, ENTRY, STYLE = "look/opening.js", "look/main.js", "look/look.css"


def live_page(
    language: Language = "en", model: Mapping[str, Any] | None = None, root: str = "", back: str | None = None
) -> Served:
    """Return the microscope page that queries its server, whose root has the relative address `root`.

    The page includes `model`, an answer to the request `model`. It links back to the relative address `back`.
    """
    answers = json_of({"live": model, "back": back})
    return live_document((BEGIN, ENTRY), STYLE, data_elements({"answers": answers}), language, root)


def framed_page(request: LookRequest) -> str:
    """Return the page in the frame of a notebook widget, which forwards requests. `request` is the first request."""
    answers = json_of({"frame": request.body})
    return saved_document(ENTRY, STYLE, data_elements({"answers": answers}), "en")


def saved_page(
    session: Session, request: LookRequest, language: Language = "en", head: Mapping[str, Any] | None = None
) -> str:
    """Return the self-contained microscope page of one text, with all answers for the unchanged model.

    Other texts and combined edits require the live page. `head` contains the path and the number of the head to open
    (default: the head that the answer names).
    """
    answers: dict[str, Any] = {} if head is None else {"opens": {"layer": head["path"], "head": head["head"]}}
    numbers = []
    for name, body, answer in session.usual_answers(request, head):
        question = f"{name} {canonical(body)}"
        if isinstance(answer, bytes):
            # a separate element, because the page decodes only the data that it draws
            data = base64.b64encode(answer).decode()
            name = html.escape(question)
            numbers.append(f'<script type="text/plain" data-answer="{name}">{data}</script>\n')
        else:
            answers[question] = answer
    data = "".join(numbers) + data_elements({"answers": json_of(answers)})
    return saved_document(ENTRY, STYLE, data, language)
