"""Files that are complete or absent: atomic writing, and folders that can be verified.

Errors of the operating system (a full disk, a missing permission) are raised as OSError, and earlier files stay
unchanged.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

from attendo.errors import NOT_NUMBERS, AttendoError

MANIFEST = "manifest.json"
_CHUNK = 1 << 26  # some systems refuse a write of 2 GiB or more
_ASIDE = ".old"
_LEFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}(?P<end>\.tmp|\.old)")
_REMEDY = "Restore the file, or save the folder again"


class DamagedFile(OSError):
    """A file that is missing, cut short or changed since its manifest was written."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to disk; readers see either the old or the new file, never a part.

    A symbolic link is followed. Raises OSError on failure, which leaves the old file; a killed process can leave a
    hidden file `.NAME.….tmp`, which is never read.
    """
    path = path.resolve()
    temporary = _beside(path)
    try:
        _write_synced(temporary, data.encode() if isinstance(data, str) else data)
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):  # name the file that was asked for, not the hidden one (or none)
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """Yield a text file to write (UTF-8, line ends unchanged), which atomically becomes `path` when the block ends."""
    path = path.resolve()
    temporary = _beside(path)
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path, replace: bool = False, mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty hidden folder, which atomically becomes `path` when the block ends without an error.

    All files are flushed to disk first and get the folder's `mode` less the umask. An error removes the folder. Raises
    FileExistsError if `path` exists and is not empty, at the start or at the end. `replace` moves an existing folder
    aside; after a crash in between, `mend_folder` restores it.
    """
    if path.is_symlink() or not path.is_absolute() or ".." in path.parts:
        path = path.resolve()  # but not a path through a descriptor, which would then no longer be used
    if not replace and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} already exists")
    temporary = _beside(path)
    temporary.mkdir(mode)
    try:
        yield temporary
        file_mode = temporary.stat().st_mode & 0o666
        for folder, _, names in os.walk(temporary, topdown=False):
            for name in names:
                Path(folder, name).chmod(file_mode)
                _sync_file(Path(folder, name))
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
    """Remove a folder atomically for readers: it is renamed to a hidden name first."""
    aside = _beside(path)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def mend_folder(folder: Path) -> None:
    """Clean up after killed processes: remove unfinished folders and restore replaced ones."""
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
    """Hold a lock on a file until the block ends; False if another process holds it.

    The system releases the lock when a process ends. File systems without locks always grant it.
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
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, extra: dict[str, Any]) -> None:
    """Write `manifest.json` after the last file: size and SHA-256 of each file, `extra`, and a digest of itself."""
    files = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / MANIFEST
    }
    manifest = {"files": files, "extra": json.loads(json.dumps(extra))}  # keys that are no text become text
    manifest["digest"] = _digest(manifest)
    write_atomic(folder / MANIFEST, _text(manifest))


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Check all files in the folder's manifest and return its `extra`. Raises DamagedFile at the first difference."""
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
    """The files that a folder's manifest lists, with the size and SHA-256 of each. Raises DamagedFile."""
    return _read_manifest(folder)[0]


def manifest_hash(folder: Path) -> str:
    """Return a SHA-256 over the file names and hashes in a manifest. Raises DamagedFile if the manifest is damaged."""
    return _digest({name: entry["sha256"] for name, entry in manifest_files(folder).items()})


def _read_manifest(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The `files` and `extra` of a folder's manifest, once its digest and its form are found right."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        manifest = json.loads(data)
        whole = data == _text(manifest).encode()  # to the last byte, spaces included
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
    """A manifest as text of its file."""
    return json.dumps(manifest, indent=1) + "\n"


def _inside(name: str) -> bool:
    """Return whether a name from a manifest stays in its folder; nothing outside is ever read."""
    pure = PurePosixPath(name)
    return not pure.is_absolute() and ".." not in pure.parts


def _digest(values: dict[str, Any]) -> str:
    """The SHA-256 of JSON values: keys sorted, no spaces, ASCII only."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _beside(path: Path) -> Path:
    """A fresh hidden name in the same folder, hence on the same file system."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _write_synced(path: Path, data: bytes) -> None:
    """Create `path` with these bytes, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    """Wait until a file that is already written has reached the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Wait until the names in a folder have reached the disk (Windows has no such call and needs none)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_of(value: Any, *, in_ascii: bool = True) -> str:
    """A value as compact JSON. Raises AttendoError for NaN and infinity: a model has diverged."""
    try:
        return json.dumps(value, ensure_ascii=in_ascii, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise AttendoError(NOT_NUMBERS) from None


def with_facts(safetensors: bytes, **facts: str) -> bytes:
    """Add facts to the metadata of a safetensors file, sorted, because the library writes them in random order."""
    end = 8 + int.from_bytes(safetensors[:8], "little")
    header = json.loads(safetensors[8:end])
    header["__metadata__"] = dict(sorted({**header.get("__metadata__", {}), **facts}.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(safetensors)[end:]))
