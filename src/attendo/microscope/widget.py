"""The live page in a notebook, through anywidget: Python answers what the page asks, and no server runs.

The page stands in an <iframe sandbox="allow-scripts allow-downloads" srcdoc=…>, where it can neither open a connection
nor read the notebook. Its questions are messages; `id` is a number or text of the page's choice, which comes back:

    page → parent    {attendo: 1, id, name, body}
    parent → page    {attendo: 1, id, answer}      an object
                     {attendo: 1, id, buffer}      an ArrayBuffer, for a question with a binary answer ("tensor")
                     {attendo: 1, id, error}       a sentence

The page sends by `parent.postMessage(question, "*")` (its own origin is opaque) and takes only events whose `source` is
`parent`. Between the notebook and Python, the bridge adds `view`, since one widget may be shown several times: each
takes its own answers. `id="answers"` holds {"frame": body} in such a page: the body of its first question `look`.
"""

from __future__ import annotations

from typing import Any

from attendo.errors import AttendoError
from attendo.files import json_of
from attendo.microscope.ask import Ask
from attendo.microscope.look_page import framed_page
from attendo.microscope.session import Session

Widget = Any
"""An `anywidget.AnyWidget`; that package is an extra."""

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


def widget_of(session: Session, ask: Ask, height: int) -> Widget:
    """The page of a look as a widget, live as long as Python runs. Raises AttendoError without anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise AttendoError('a widget needs anywidget: pip install "attendo[notebook]"') from None

    class LookWidget(anywidget.AnyWidget):
        _esm = BRIDGE
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    widget = LookWidget(page=framed_page(ask), height=height)

    def on_message(_: Any, told: Any, buffers: Any) -> None:
        if (reply := reply_to(session, told)) is not None:
            widget.send(*reply)

    widget.on_msg(on_message)
    return widget


def reply_to(session: Session, told: Any) -> tuple[dict[str, Any], list[bytes]] | None:
    """What goes back for a message: the answer, and bytes beside it if it is one of those; None if it is none of ours.

    A fault becomes a sentence, as a server would tell it: a notebook shows nobody what a message's handler raises.
    """
    if not isinstance(told, dict) or told.get("attendo") != 1:
        return None
    back = {name: told.get(name) for name in ("attendo", "view", "id")}
    name, body = told.get("name"), told.get("body")
    if not isinstance(name, str) or not isinstance(body, dict):
        return back | {"error": "a question is {attendo: 1, id, name, body}"}, []
    try:
        answer = session.answer(name, body)
        if not isinstance(answer, bytes):
            json_of(answer)  # a number that is none would be lost on the way, without a word
    except AttendoError as error:
        return back | {"error": str(error)}, []
    except Exception as error:  # noqa: BLE001  (see above)
        return back | {"error": f"a fault in attendo: {type(error).__name__}: {error}"}, []
    return (back, [answer]) if isinstance(answer, bytes) else (back | {"answer": answer}, [])
