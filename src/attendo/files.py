"""Atomic writing, so that a file is either complete or absent, and folders whose files can be verified.

Errors of the operating system, such as a full disk or a missing permission, raise OSError. After an error, existing
files are unchanged.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

from attendo.errors import NOT_NUMBERS, AttendoError

MANIFEST = "manifest.json"
_CHUNK = 1 << 26  # some systems reject a write of 2 GiB or more
_ASIDE = ".old"
_LEFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}(?P<end>\.tmp|\.old)")
_REMEDY = "Restore the file, or save the folder again"


class DamagedFile(OSError):
    """The error for a file that is missing, truncated or changed since its manifest was written."""


def write_atomic(
    path: Path, data: bytes | str | Iterable[bytes | memoryview], begin: Callable[[], bytes] | None = None
) -> None:
    """Write `data` to a file atomically. Text is encoded as UTF-8, and readers see either the old or the new file.

    Parts are written one after the other. Then the result of `begin` replaces the first bytes of the file.

    Symbolic links are followed, and an existing file keeps its permissions. If writing fails, the function raises
    OSError and the old file remains. A killed process can leave a hidden file `.NAME.….tmp`, which is never read.
    """
    path = path.resolve()
    data = data.encode() if isinstance(data, str) else data
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        with _replacing(path) as temporary:
            # the umask can only narrow the mode of a new file, so private data stays private
            parts = [data] if isinstance(data, bytes) else data
            _write_synced(temporary, parts, 0o666 if mode is None else mode, begin)
            if mode is not None:
                with contextlib.suppress(OSError):  # some file systems have no permissions
                    temporary.chmod(mode)
    except OSError as error:  # the message names the requested file instead of the hidden one
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """Yield a text file for writing, which atomically becomes `path` after the block. Line endings are unchanged."""
    with _replacing(path.resolve()) as temporary, temporary.open("x", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden name, whose file replaces `path` after the block. After an error, the file is removed."""
    temporary = _beside(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    _sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path, replace: bool = False, mode: int = 0o777, parents: bool = False) -> Iterator[Path]:
    """Yield an empty hidden folder, which becomes `path` atomically when the block ends without an error.

    Before the folder is renamed, all files are flushed to disk and get the permissions `mode` minus the umask. After an
    error, the hidden folder is removed. Raises FileExistsError if `path` exists and is not empty, at the start or at
    the end of the block. With `replace`, an existing folder is moved aside first. If the process crashes before the new
    folder is in place, `mend_folder` restores the old folder. With `parents`, missing parent folders are created.
    """
    if path.is_symlink() or not path.is_absolute() or ".." in path.parts:
        path = path.resolve()  # a path through a file descriptor must stay as it is
    if not replace and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} already exists")
    temporary = _beside(path)
    temporary.mkdir(mode, parents)
    try:
        yield temporary
        file_mode = temporary.stat().st_mode & 0o666
        for folder, _, names in os.walk(temporary, topdown=False):
            for name in names:
                Path(folder, name).chmod(file_mode)
                with Path(folder, name).open("rb+") as file:
                    os.fsync(file.fileno())
            _sync_folder(Path(folder))
        old = _beside(path).with_suffix(_ASIDE)
        if replace and path.exists():
            path.rename(old)
        try:
            temporary.rename(path)
        except OSError as error:
            if old.exists():
                old.rename(path)
            elif path.exists():
                raise FileExistsError(f"{path} already exists") from error
            raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder. The folder is first renamed to a hidden name, so readers never see a partly removed folder."""
    aside = _beside(path)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def mend_folder(folder: Path) -> None:
    """Clean up a folder after killed processes: remove unfinished files and folders, and restore replaced folders."""
    for path in folder.iterdir():
        if (match := _LEFT.fullmatch(path.name)) is None:
            continue
        if match["end"] == _ASIDE and not (folder / match["name"]).exists():
            path.rename(folder / match["name"])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    _sync_folder(folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock on a file until the block ends. Yields False if another process holds the lock, otherwise True.

    The operating system releases the lock when the process ends. File systems without locks always yield True.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    except OSError:
        pass
    try:
        yield True
    finally:
        lock.release()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits. The file is read in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, extra: dict[str, Any]) -> None:
    """Write `manifest.json` with the size and SHA-256 of each file in a folder, `extra`, and a digest of these values.

    All other files must be written before the manifest.
    """
    files = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / MANIFEST
    }
    manifest = {"files": files, "extra": json.loads(json.dumps(extra))}  # all keys become text
    manifest["digest"] = _digest(manifest)
    write_atomic(folder / MANIFEST, _text(manifest))


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Check all files in a folder's manifest and return its `extra`. Raises DamagedFile for the first damaged file."""
    files, extra = _read_manifest(folder)
    for name, entry in files.items():
        file = folder / name
        if not file.is_file():
            raise DamagedFile(f"{file} is missing. {_REMEDY}")
        size = file.stat().st_size
        if size != entry["size"]:
            raise DamagedFile(f"{file} has {size} bytes (expected {entry['size']}). {_REMEDY}")
        if sha256_file(file) != entry["sha256"]:
            raise DamagedFile(f"{file} has changed since it was written. {_REMEDY}")
    return extra


def manifest_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the size and SHA-256 of each file in a manifest. Raises DamagedFile if the manifest is damaged."""
    return _read_manifest(folder)[0]


def manifest_hash(folder: Path) -> str:
    """Return a SHA-256 of the file names and hashes in a manifest. Raises DamagedFile if the manifest is damaged."""
    return _digest({name: entry["sha256"] for name, entry in manifest_files(folder).items()})


def _read_manifest(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return `files` and `extra` of a folder's manifest, after a check of its digest and structure."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        manifest = json.loads(data)
        whole = data == _text(manifest).encode()  # equal in every byte, including spaces
        digest = manifest.pop("digest")
        files, extra = manifest["files"], manifest["extra"]
        sound = whole and digest == _digest(manifest)
        sound = sound and all({"size", "sha256"} <= e.keys() and _inside(name) for name, e in files.items())
    except FileNotFoundError:
        raise DamagedFile(f"{path} is missing. {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound, files, extra = False, {}, {}
    if not sound:
        raise DamagedFile(f"{path} has changed since it was written. {_REMEDY}")
    return files, extra


def _text(manifest: dict[str, Any]) -> str:
    """Return the text of a manifest file."""
    return json.dumps(manifest, indent=1) + "\n"


def _inside(name: str) -> bool:
    """Return whether a file name in a manifest is inside its folder. Files outside are never read."""
    pure = PurePosixPath(name)
    return not pure.is_absolute() and ".." not in pure.parts


def _digest(values: dict[str, Any]) -> str:
    """Return the SHA-256 of values in canonical JSON: sorted keys, no spaces, ASCII only."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _beside(path: Path) -> Path:
    """Return a new hidden name in the same folder, and therefore on the same file system."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _write_synced(
    path: Path, parts: Iterable[bytes | memoryview], mode: int, begin: Callable[[], bytes] | None
) -> None:
    """Create `path` with these bytes. The data is on disk when the function returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        _write(descriptor, parts)
        if begin is not None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            _write(descriptor, [begin()])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, parts: Iterable[bytes | memoryview]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest[:_CHUNK]) :]


def _sync_folder(path: Path) -> None:
    """Flush the file names in a folder to disk. Windows has no such call and does not need it."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_of(value: Any, *, in_ascii: bool = True) -> str:
    """Return a value as compact JSON. Raises AttendoError for NaN and infinity, the signs of a diverged model."""
    try:
        return json.dumps(value, ensure_ascii=in_ascii, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise AttendoError(NOT_NUMBERS) from None


def with_facts(safetensors: bytes, **facts: str) -> list[bytes | memoryview]:
    """Return the parts of a safetensors file with additional metadata. The weights are not copied.

    The metadata is sorted, because the library writes it in random order.
    """
    end = 8 + int.from_bytes(safetensors[:8], "little")
    header = json.loads(safetensors[8:end])
    header["__metadata__"] = dict(sorted({**header.get("__metadata__", {}), **facts}.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return [len(text).to_bytes(8, "little"), text, memoryview(safetensors)[end:]]
