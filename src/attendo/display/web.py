"""The parts of a self-contained web page: its files, its joined scripts, and hashes for its content security policy."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib.resources import files


def one_script(modules: Iterable[str]) -> str:
    """Join JavaScript modules into one script, without imports and exports.

    >>> one_script(['export const a = 1;', 'import { a } from "./a.js";\\nexport const b = a + 1;'])
    'const a = 1;\\nconst b = a + 1;'
    """
    return "\n".join(
        re.sub(r"^import \{[^}]*\} from .*\n|^export ", "", module, flags=re.M) for module in modules
    )


def asset(path: str) -> str:
    """Return a file of the package as text. `path` is relative to src/attendo, with slashes."""
    return (files("attendo") / path).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """Return the hash with which a content security policy allows a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
