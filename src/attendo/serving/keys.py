"""Keys: who may ask."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from attendo.errors import AttendoError


class Keys:
    """Keys as SHA-256 digests; they themselves are not kept. Comparing takes as long for a wrong one as for a right.

    >>> keys = Keys(["correct horse"])
    >>> bool(keys), keys.admit(b"correct horse"), keys.admit(b"battery staple")
    (True, True, False)
    >>> bool(Keys())
    False
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, key: bytes) -> bool:
        """Whether it is one of them."""
        digest, found = hashlib.sha256(key).digest(), False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found


def read_keys(file: Path) -> Keys:
    """The keys of a file: one a line; empty lines and those that begin with # are none.

    Raises AttendoError, which never shows a key, for a file that can't be read, holds none, or holds one that no header
    can carry.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise AttendoError(f"{file}: the keys can't be read ({why}); give a file of one key a line") from None
    keys: list[str] = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise AttendoError(
                f"{file}, line {number}: a key has letters, digits and signs of ASCII, and no space"
            )
        keys.append(key)
    if not keys:
        raise AttendoError(f"{file} has no key; write one a line, for instance that of: openssl rand -hex 32")
    return Keys(keys)
