"""An attention map as one self-contained page: opens offline, asks nothing of any server."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from pathlib import Path

from attendo.files import write_atomic
from attendo.microscope.attention_map import AttentionMap


def write_html(seen: AttentionMap, path: Path) -> None:
    """Writes the page of a map: every layer and head, with the values to 4 digits."""
    write_atomic(path, page_text(seen))


def page_text(seen: AttentionMap) -> str:
    """The page. Whatever the pieces hold, they are data: no text of theirs is ever read as HTML or script."""
    parts = files("attendo.microscope") / "assets"
    page, style, script = (
        (parts / name).read_text(encoding="utf-8") for name in ("map.html", "map.css", "map.js")
    )
    # the browser runs this script and this style, nothing else, and opens no connection
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    # the data come last: what they hold can't be taken for a mark
    for mark, text in (("POLICY", policy), ("STYLE", style), ("SCRIPT", script), ("DATA", _data(seen))):
        page = page.replace(f"@@{mark}@@", text, 1)
    return page


def _data(seen: AttentionMap) -> str:
    """The map as JSON that can stand inside a script element; the weights as binary numbers of 4 bytes each."""
    data = {
        "source": seen.source,
        "target": seen.target,
        "sourcePieces": seen.source_pieces,
        "targetPieces": seen.target_pieces,
        "shape": seen.weights.shape,
        "sharpestLayer": seen.sharpest_layer,
        "weights": base64.b64encode(seen.weights.astype("<f4").tobytes()).decode(),
    }
    # only "<" could end the element, and JSON lets it be written otherwise
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
