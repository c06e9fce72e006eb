"""The cache: token stores and compiled code in folders that only their user can write to."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from attendo.errors import AttendoError
from attendo.files import DamagedFile, atomic_folder, remove_folder

S = TypeVar("S")
_REMEDY = "Set the environment variable ATTENDO_CACHE to a folder that this user can write to"


def cache_folder() -> Path:
    """Return the folder of token stores and compiled libraries: $ATTENDO_CACHE, or ~/.cache/attendo."""
    if named := os.environ.get("ATTENDO_CACHE"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "attendo"
    except RuntimeError:
        raise AttendoError(f"the cache has no place: this user has no home folder. {_REMEDY}") from None


def opened_or_built(folder: Path, opened: Callable[[Path], S], build: Callable[[Path], None]) -> S:
    """Return what `opened` makes of a folder in the cache, which `build` fills if it is missing or damaged.

    A folder or file that another user owns or may write to counts as damaged, so nothing of it is used.

    Args:
        folder: The folder, in the cache. In a cache folder that other users may write to, each user has a folder.
        opened: Raises FileNotFoundError if there is no such folder, DamagedFile if it is not whole.
        build: Fills an empty hidden folder, which then gets its name in one step. Of several processes that build the
            same folder, the first one's is used by all.

    Raises:
        AttendoError: The cache folder cannot be used or written to, or another user owns it.
    """
    with private(folder.parent) as base:
        place = base / folder.name
        try:
            try:
                return _opened(place, opened)
            except FileNotFoundError:
                pass
            except DamagedFile:
                discard(place)
            with contextlib.suppress(FileExistsError), atomic_folder(place, mode=0o700) as new:
                build(new)  # where another process was quicker, its folder holds the same
            return _opened(place, opened)
        except OSError as error:
            named = error.filename is not None and str(error.filename).startswith(str(base))
            if not named and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise  # about a file that `build` reads
            said = (error.strerror or str(error)).replace(str(base), str(base.resolve()))
            raise AttendoError(f"{folder} cannot be written to the cache: {said}. {_REMEDY}") from error


@contextlib.contextmanager
def private(folder: Path) -> Iterator[Path]:
    """Yield the cache folder, or this user's part of a shared cache folder, which is created if necessary.

    The path refers to an open descriptor, so renames on the way cannot redirect it. Raises AttendoError if the folder
    is unusable or has another owner.
    """
    try:
        descriptor = _descriptor(folder)
    except NotADirectoryError:
        raise AttendoError(f"the cache folder {folder} is not a folder. {_REMEDY}") from None
    except OSError as error:
        raise AttendoError(
            f"the cache folder {folder} cannot be used: {error.strerror}. {_REMEDY}"
        ) from error
    if descriptor is None:
        yield folder
        return
    try:
        held = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        yield held if held.is_dir() else _reached_safely(folder)
    finally:
        os.close(descriptor)


def discard(place: Path) -> None:
    """Take a folder out of the cache, unless another process was quicker."""
    with contextlib.suppress(FileNotFoundError):
        remove_folder(place)


def _descriptor(folder: Path) -> int | None:
    """An open descriptor of the folder that is private to this user; None on Windows, which has no such owners."""
    _make(folder)
    if os.name == "nt":
        return None
    _require_owner(folder, folder.lstat())
    if _others_may_write(folder.stat()):  # a shared folder, or the volume of a cluster
        folder = folder / f"user-{os.geteuid()}"
        _make(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _require_owner(folder, os.fstat(descriptor))
        if _others_may_write(os.fstat(descriptor)):
            raise AttendoError(
                f"other users can write to the cache folder {folder} (expected mode 0700). Remove the folder, "
                "or set ATTENDO_CACHE to another folder"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make(folder: Path) -> None:
    """Make a folder and those that it is in, each for this user alone."""
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _opened(place: Path, opened: Callable[[Path], S]) -> S:
    """What `opened` returns for a folder that no other user can write to."""
    if os.name != "nt":
        for path in (place, *(place.iterdir() if place.is_dir() else ())):
            found = path.lstat()
            if (
                found.st_uid not in (0, os.geteuid())
                or stat.S_ISLNK(found.st_mode)
                or _others_may_write(found)
            ):
                raise DamagedFile(f"{path} may have been written by another user")
    return opened(place)


def _others_may_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _require_owner(folder: Path, found: os.stat_result) -> None:
    """Raise AttendoError where neither root nor this user owns a folder or link: its owner can change what runs."""
    if found.st_uid not in (0, me := os.geteuid()):
        raise AttendoError(
            f"the cache folder {folder} is owned by user {found.st_uid}, but this process runs as user {me}. "
            f"Set ATTENDO_CACHE to a folder that user {me} owns, or change the owner: chown {me} {folder}"
        )


def _reached_safely(folder: Path) -> Path:
    """The folder itself, on systems without paths through descriptors."""
    for parent in folder.resolve().parents:
        found = parent.stat()
        if _others_may_write(found) and not found.st_mode & stat.S_ISVTX:
            raise AttendoError(
                f"other users can rename folders in {parent}, above the cache. Set ATTENDO_CACHE to another folder"
            )
    return folder
