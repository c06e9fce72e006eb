"""The cache: token stores and compiled code in folders that only their user can write to."""

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
        raise AttendoError(f"no cache folder: this user has no home folder. {_REMEDY}") from None


def opened_or_built(folder: Path, opened: Callable[[Path], S], build: Callable[[Path], None]) -> S:
    """Open a folder in the cache by `opened`, and build it first if it is missing or damaged.

    `opened` raises FileNotFoundError or DamagedFile. A folder or file that another user owns or can write to also
    counts as damaged. `build` fills an empty hidden folder, which is then renamed atomically; all processes use the
    first result. Raises AttendoError if the cache folder cannot be used or written to, or another user owns it.
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
                build(new)  # if another process was faster, its folder has the same contents
            return _opened(place, opened)
        except OSError as error:
            named = error.filename is not None and str(error.filename).startswith(str(base))
            if not named and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise  # the error concerns a file that `build` reads
            said = (error.strerror or str(error)).replace(str(base), str(base.resolve()))
            raise AttendoError(f"{folder} cannot be written to the cache: {said}. {_REMEDY}") from error


@contextlib.contextmanager
def private(folder: Path) -> Iterator[Path]:
    """Yield the cache folder, or the current user's subfolder of a shared cache folder. Missing folders are created.

    The path refers to an open file descriptor, so another user cannot redirect it by renaming a folder. Raises
    AttendoError if the folder cannot be used or has another owner.
    """
    try:
        descriptor = _descriptor(folder)
    except NotADirectoryError:
        raise AttendoError(f"the cache folder {folder} is not a folder. {_REMEDY}") from None
    except OSError as error:
        raise AttendoError(f"the cache folder {folder} cannot be used: {error.strerror}. {_REMEDY}") from error
    if descriptor is None:
        yield folder
        return
    try:
        held = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        yield held if held.is_dir() else _reached_safely(folder)
    finally:
        os.close(descriptor)


def discard(place: Path) -> None:
    """Remove a folder from the cache. No error is raised if another process has already removed the folder."""
    with contextlib.suppress(FileNotFoundError):
        remove_folder(place)


def _descriptor(folder: Path) -> int | None:
    """Return an open descriptor of the folder that is private to this user, or None on Windows."""
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
    """Create a folder and its missing parents, accessible by this user only."""
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _opened(place: Path, opened: Callable[[Path], S]) -> S:
    """Return what `opened` returns for the folder, after a check that no other user can write to it."""
    if os.name != "nt":
        for path in (place, *(place.iterdir() if place.is_dir() else ())):
            found = path.lstat()
            if found.st_uid not in (0, os.geteuid()) or stat.S_ISLNK(found.st_mode) or _others_may_write(found):
                raise DamagedFile(f"{path} may have been written by another user")
    return opened(place)


def _others_may_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _require_owner(folder: Path, found: os.stat_result) -> None:
    """Raise AttendoError unless root or this user owns the folder or link, because an owner can replace its code."""
    if found.st_uid not in (0, me := os.geteuid()):
        raise AttendoError(
            f"the cache folder {folder} is owned by user {found.st_uid}, but this process runs as user {me}. "
            f"Set ATTENDO_CACHE to a folder that user {me} owns, or change the owner: chown {me} {folder}"
        )


def _reached_safely(folder: Path) -> Path:
    """Return the folder itself if no other user can rename it, for systems without paths through descriptors."""
    for parent in folder.resolve().parents:
        found = parent.stat()
        if _others_may_write(found) and not found.st_mode & stat.S_ISVTX:
            raise AttendoError(
                f"other users can rename folders in {parent}, above the cache. Set ATTENDO_CACHE to another folder"
            )
    return folder
