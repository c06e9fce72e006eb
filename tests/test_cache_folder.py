"""The cache: what another user owns or may write to is never used, and an error names the variable."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from attendo.cache import cache_folder, opened_or_built, private
from attendo.decoding.native.library import LIBRARY, NoLibrary, is_to_be_made, library
from attendo.errors import AttendoError
from attendo.files import verify_manifest, write_manifest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no owners there")
ME = os.geteuid()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


def read(place: Path) -> str:
    if not place.is_dir():
        raise FileNotFoundError
    verify_manifest(place)
    return (place / "text").read_text()


def asked(text: str = "own") -> str:
    """What is in the cache under the name "entry"; `text` if it was built now."""

    def build(place: Path) -> None:
        (place / "text").write_text(text)
        write_manifest(place, {})

    return opened_or_built(cache_folder() / "entry", read, build)


def planted(base: Path) -> Path:
    """An entry in this folder, whole but of somebody else."""
    (base / "entry").mkdir(parents=True)
    (base / "entry" / "text").write_text("planted")
    write_manifest(base / "entry", {})
    return base / "entry"


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file or folder that of a user who is neither root nor the one of this process."""
    if ME == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 4242)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_folders_are_made_for_their_user_alone_whatever_the_umask(cache):
    before = os.umask(0)
    try:
        assert asked("first") == "first" and asked("second") == "first"
    finally:
        os.umask(before)
    assert {mode(path) for path in (cache.parent, cache, cache / "entry")} == {0o700}
    assert {mode(path) for path in (cache / "entry").iterdir()} == {0o600}


def test_in_a_shared_folder_each_user_has_a_folder(cache):
    planted(cache)
    cache.chmod(0o777)  # as a permissive umask, a shared folder, or a cluster's volume
    assert asked() == "own"
    assert asked("again") == "own"
    assert mode(cache / f"user-{ME}") == 0o700
    (cache / f"user-{ME}").chmod(0o770)
    with pytest.raises(AttendoError, match=rf"other users can write to .*user-{ME} .*set ATTENDO_CACHE"):
        asked()


@pytest.mark.parametrize("part", ["", "text", "manifest.json"])
@pytest.mark.parametrize("how", ["owned", "writable", "linked"])
def test_an_entry_that_others_may_have_written_is_built_again(cache, monkeypatch, part, how):
    entry = planted(cache)
    cache.chmod(0o755)
    if ME != 0 and how == "owned":
        pytest.skip("only root gives files away")
    match how:
        case "owned":
            given_away(entry / part, monkeypatch)
        case "writable":
            (entry / part).chmod(0o775)
        case _:
            aside = shutil.move(entry / part, cache / "aside")
            (entry / part).symlink_to(aside)
    assert asked() == "own"


def test_an_entry_of_this_user_that_nobody_else_may_write_to_is_used(cache):
    planted(cache).chmod(0o755)
    cache.chmod(0o755)
    assert asked() == "planted"


def test_a_cache_of_another_user_is_refused(cache, monkeypatch):
    planted(cache)
    given_away(cache, monkeypatch)
    with pytest.raises(AttendoError, match=r"cache is owned by user \d+, but .*Set ATTENDO_CACHE.*chown"):
        asked()


def test_the_path_stays_that_of_the_folder_that_was_checked(cache):
    if not Path(f"/proc/{os.getpid()}/fd").is_dir():
        pytest.skip("this system has no paths through descriptors")
    with private(cache) as base:
        cache.rename(cache.with_name("aside"))
        planted(cache)
        assert not (base / "entry").exists()


@pytest.mark.parametrize("named", ["/proc/no-such", "{file}", "{file}/below"])
def test_an_unusable_cache_names_the_variable(tmp_path, monkeypatch, named):
    (tmp_path / "file").write_text("")
    place = named.format(file=tmp_path / "file")
    monkeypatch.setenv("ATTENDO_CACHE", place)
    with pytest.raises(AttendoError, match=r"ATTENDO_CACHE") as caught:
        asked()
    assert place in str(caught.value)
    monkeypatch.delenv("ATTENDO_NATIVE", raising=False)
    with pytest.raises(NoLibrary, match=r"ATTENDO_CACHE|no C\+\+ compiler"):
        library.__wrapped__()
    assert not is_to_be_made()


def test_without_a_home_the_variable_is_named(monkeypatch):
    monkeypatch.delenv("ATTENDO_CACHE")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(AttendoError, match=r"no home folder.* ATTENDO_CACHE"):
        asked()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that takes no time: it copies the library that this session has."""
    try:
        made = next(Path(os.environ["ATTENDO_CACHE"]).glob(f"native-*/{LIBRARY}"), None)
        library()
        made = made or next(cache_folder().glob(f"native-*/{LIBRARY}"))
    except NoLibrary as reason:
        pytest.skip(f"nothing is compiled here: {reason}")
    script = tmp_path / "cxx"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\nfor out; do :; done\ncp "{made}" "$out"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path / "other"))
    return tmp_path / "other"


def test_a_library_is_loaded_only_with_its_digest(compiler):
    make = library.__wrapped__
    assert is_to_be_made()
    make()
    assert not is_to_be_made()
    [folder] = compiler.glob("native-*")
    whole = (folder / LIBRARY).read_bytes()
    (folder / LIBRARY).unlink()  # it is mapped
    (folder / LIBRARY).write_bytes(b"no library at all")
    make()  # compiled again
    assert (folder / LIBRARY).read_bytes() == whole
    assert LIBRARY in json.loads((folder / "manifest.json").read_text())["files"]


def test_a_library_of_an_earlier_version_is_left_alone(compiler):
    (compiler / "native").mkdir(parents=True)
    (compiler / "native" / "0123.so").write_text("not loaded")
    library.__wrapped__()
    assert (compiler / "native" / "0123.so").read_text() == "not loaded"
