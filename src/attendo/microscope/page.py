"""An attention map as one self-contained page: opens offline, asks nothing of any server."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from pathlib import Path

from attendo.files import write_atomic
from attendo.microscope.attention_map import AttentionMap

DIGITS = 4


def write_html(seen: AttentionMap, path: Path) -> None:
    """Writes the page of a map: every layer and head, with the values."""
    write_atomic(path, page_text(seen))


def page_text(seen: AttentionMap) -> str:
    """The page. Whatever the pieces hold, they are data: no text of theirs is ever read as HTML or script."""
    data = {
        "source": seen.source,
        "target": seen.target,
        "sourcePieces": seen.source_pieces,
        "targetPieces": seen.target_pieces,
        "layer": seen.sharpest_layer,
        "weights": seen.weights.round(DIGITS).tolist(),
    }
    # inside a script element only "<" could end it; JSON lets it be written otherwise
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    parts = files("attendo.microscope") / "assets"
    style, script = ((parts / name).read_text(encoding="utf-8") for name in ("map.css", "map.js"))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    page = (parts / "map.html").read_text(encoding="utf-8")
    for mark, text in (("POLICY", policy), ("STYLE", style), ("SCRIPT", script), ("DATA", embedded)):
        page = page.replace(f"@@{mark}@@", text, 1)
    return page


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
