"""Files that are whole or absent: atomic writing, and folders that can be verified.

Whatever the operating system refuses (a full disk, a missing
right) comes out as the OSError it is, with what stood there before untouched.
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
_REMEDY = "restore it or save the folder again"


class DamagedFile(OSError):
    """A file that is missing, cut short or changed since its manifest was written."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) so that a reader finds the old file or the new one, never a part.

    The bytes go to a hidden file beside, reach the disk, and replace `path` in one step. A symbolic link is
    followed. Raises OSError when the system refuses; the old file then stays as it was. A killed process can
    leave the hidden file `.NAME.….tmp` behind, which nothing reads.
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
    """Yield a text file to write (UTF-8, ends of lines as given), which becomes `path` when the block ends.

    So what is too long to be held is written as `write_atomic` writes; on an error nothing has changed.
    """
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
    """Yield an empty hidden folder beside `path`, which becomes `path` when the block ends without an error.

    All files in it reach the disk before the one rename, with the folder's `mode` less the umask: some libraries write
    files that only their owner can read. On an error the folder is removed and nothing else
    has changed. Raises FileExistsError if `path` is there already with anything in it, at the start or, when
    another process was quicker, at the end. replace: what was there steps aside just before, and is removed then;
    should the process die in between, `mend_folder` puts it back.
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
    """Remove a folder so that nobody finds a part of it: it takes a hidden name first."""
    aside = _beside(path)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def mend_folder(folder: Path) -> None:
    """Clear up in a folder what killed processes left: remove the unfinished, put back what was to be replaced.

    Nobody else may be writing there meanwhile.
    """
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
    """Hold a lock on a file, made with its folder if need be, until the block ends; False if another process holds it.

    The system gives the lock back when a process ends, however it ends. On a file system without locks, it is granted.
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
    """Write `manifest.json` into `folder`: size and SHA-256 of each file in it, and `extra` (JSON values).

    Call it after the last file. The last key, `digest`, is the SHA-256 of the rest as canonical JSON, so that
    the manifest vouches for itself too.
    """
    files = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / MANIFEST
    }
    manifest = {"files": files, "extra": json.loads(json.dumps(extra))}  # keys that are no text become text
    manifest["digest"] = _digest(manifest)
    write_atomic(folder / MANIFEST, _text(manifest))


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Check every file that the folder's manifest lists, and return the manifest's `extra`.

    Files it doesn't list are left alone. Raises DamagedFile naming the first file that is missing, of another
    size or of other content; the manifest itself is such a file.
    """
    files, extra = _read_manifest(folder)
    for name, entry in files.items():
        file = folder / name
        if not file.is_file():
            raise DamagedFile(f"{file} is missing; {_REMEDY}")
        size = file.stat().st_size
        if size != entry["size"]:
            raise DamagedFile(f"{file} has {size} bytes where {entry['size']} were written; {_REMEDY}")
        if sha256_file(file) != entry["sha256"]:
            raise DamagedFile(f"{file} is not as it was written; {_REMEDY}")
    return extra


def manifest_files(folder: Path) -> dict[str, dict[str, Any]]:
    """The files that a folder's manifest lists, with the size and SHA-256 of each. Raises DamagedFile."""
    return _read_manifest(folder)[0]


def manifest_hash(folder: Path) -> str:
    """A SHA-256 over the names and contents of the files that a folder's manifest lists.

    Raises DamagedFile if the manifest isn't whole; the files are not read.
    """
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
        raise DamagedFile(f"{path} is missing; {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound, files, extra = False, {}, {}
    if not sound:
        raise DamagedFile(f"{path} is not as it was written; {_REMEDY}")
    return files, extra


def _text(manifest: dict[str, Any]) -> str:
    """A manifest as it stands in its file."""
    return json.dumps(manifest, indent=1) + "\n"


def _inside(name: str) -> bool:
    """Whether a name from a manifest stays in its folder: nothing outside is read, whoever wrote it."""
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
    """A safetensors file with these facts added to its metadata, all in sorted order.

    The library writes its metadata in random order; so equal weights give equal files.
    """
    end = 8 + int.from_bytes(safetensors[:8], "little")
    header = json.loads(safetensors[8:end])
    header["__metadata__"] = dict(sorted({**header.get("__metadata__", {}), **facts}.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(safetensors)[end:]))
