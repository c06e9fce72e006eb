"""Where imports and exports write."""

from pathlib import Path

from attendo.errors import AttendoError


def require_new(out: Path) -> None:
    """Raises AttendoError unless a folder can be made there, or an empty one stands there.

    >>> require_new(Path("nowhere/out"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere/out: there is no folder nowhere; make it first
    """
    if not out.absolute().parent.is_dir():
        raise AttendoError(f"{out}: there is no folder {out.parent}; make it first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AttendoError(f"{out} is there already; give a folder that is new or empty")
