"""The HTML page of the microscope, which is either self-contained or queries a running program."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from functools import cache
from typing import Any

from attendo.display.i18n import Language
from attendo.display.web import asset, hash_of, one_script
from attendo.errors import AttendoError, install_command
from attendo.files import json_of
from attendo.microscope.protocol import LookRequest, canonical
from attendo.microscope.session import Session

Widget = Any
"""An `anywidget.AnyWidget`. The package anywidget is optional."""

BRIDGE = """
function render({ model, el }) {
  const view = Math.random().toString(36).slice(2); // randomUUID wants https
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.title = "attendo look";
  frame.height = String(model.get("height"));
  Object.assign(frame.style, { width: "100%", border: "0" });
  frame.srcdoc = model.get("page");
  const ask = ({ source, data }) => {
    if (source !== frame.contentWindow || data?.attendo !== 1) return;
    model.send({ attendo: 1, view, id: data.id, name: data.name, body: data.body });
  };
  const tell = (told, buffers) => {
    if (told?.attendo !== 1 || told.view !== view) return;
    const { view: mine, ...answer } = told;
    const bytes = buffers?.[0]; // a DataView, or another view of bytes
    if (bytes) answer.buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    frame.contentWindow?.postMessage(answer, "*");
  };
  window.addEventListener("message", ask);
  model.on("msg:custom", tell);
  el.append(frame);
  return () => {
    window.removeEventListener("message", ask);
    model.off("msg:custom", tell);
  };
}
export default { render };
"""


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
        _esm = BRIDGE
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


MODULES = (
    *("words", "dom", "colors", "numbers", "source", "state", "late", "misfits", "app", "shown", "views"),
    *("cells", "saving", "locks", "chips", "input", "heads", "heat", "lines", "detail", "steps", "curves"),
    *("slider", "sweep", "matrices", "compared", "switches", "rollout", "lens", "next"),
    *("svgpen", "treedraw", "tree", "why", "positions", "classes", "film", "main"),
)
"""The JavaScript modules, in the order in which they are joined.

While a module is loaded, it uses only earlier modules.
"""
ASSETS = "microscope/assets/look"
STYLES = ("look", "views")


def live_page(language: Language = "en", model: Mapping[str, Any] | None = None) -> str:
    """Return the microscope page that queries its server. `model` is an answer to the request `model` to include."""
    return _page("'self'", "null" if model is None else _data({"live": model}), language)


def framed_page(request: LookRequest) -> str:
    """Return the page in the frame of a notebook widget, which forwards requests. `request` is the first request."""
    return _page("'none'", _data({"frame": request.body}), "en")


def saved_page(
    session: Session, request: LookRequest, language: Language = "en", head: Mapping[str, Any] | None = None
) -> str:
    """Return the self-contained microscope page of one text, with all answers for the unchanged model.

    Other texts and combined edits require the live page. `head` contains the path and the number of the head to open
    (default: the sharpest head).
    """
    answers: dict[str, Any] = {} if head is None else {"opens": {"layer": head["path"], "head": head["head"]}}
    numbers = []
    for name, body, answer in session.usual_answers(request, head):
        question = f"{name} {canonical(body)}"
        if isinstance(
            answer, bytes
        ):  # a separate element, because the page decodes only the data that it draws
            data = base64.b64encode(answer).decode()
            numbers.append(
                f'<script type="text/plain" data-answer="{html.escape(question)}">{data}</script>\n'
            )
        else:
            answers[question] = answer
    return _page("'none'", _data(answers), language, "".join(numbers))


def _data(answers: Mapping[str, Any]) -> str:
    """Return JSON for a script element, in which "<" is escaped."""
    return json_of(answers).replace("<", "\\u003c")


def _page(connect: str, answers: str, language: Language, numbers: str = "") -> str:
    style, script = joined()
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; img-src data: blob:;"
        f" connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    page = asset(f"{ASSETS}/look.html").replace('lang="en"', f'lang="{language}"', 1)
    # the answers come last, because they may contain text that looks like a mark
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
    """Return the joined style sheets and the joined JavaScript modules of the microscope page."""
    styles = "\n".join(asset(f"{ASSETS}/{name}.css") for name in STYLES)
    return styles, one_script(asset(f"{ASSETS}/{name}.js") for name in MODULES)
