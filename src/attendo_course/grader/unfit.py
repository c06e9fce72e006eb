"""What keeps somebody else's function from being checked at all."""

from __future__ import annotations

from attendo.display.i18n import Localized


class UnfitError(Exception):
    """A file that cannot be run, or what is no function of three arrays, said in both languages.

    The message is in English, behind the file and the line; `check` and `check_file` raise it as an AttendoError.

    >>> str(UnfitError(Localized("it must run", "実行できること"), "ben.py", 3))
    'ben.py:3: it must run'
    """

    def __init__(self, said: Localized, file: str | None = None, line: int | None = None):
        where = [str(part) for part in (file, line) if part is not None]
        super().__init__(":".join(where) + ": " + said.en if where else said.en)
        self.said, self.line = said, line

    @property
    def within(self) -> Localized:
        """What is said, without the file.

        >>> UnfitError(Localized("it must run", "実行できること"), "ben.py", 3).within.ja
        '3 行目：実行できること'
        """
        if self.line is None:
            return self.said
        return Localized(f"line {self.line}: {self.said.en}", f"{self.line} 行目：{self.said.ja}")
