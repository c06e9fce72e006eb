"""Files are whole or absent: after a full disk, a kill at any system call, a flipped byte."""

import errno
import json
import os
import signal

import numpy as np
import pytest
from forked import dying, in_child
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from attendo import files


def listed(folder):
    return sorted(file.name for file in folder.iterdir())


def killed(path, call, what):
    """The exit code of a process that writes a file or a folder, and dies before its n-th system call."""

    def act():
        if what == "file":
            files.write_atomic(path, "the new text")
            return
        with files.atomic_folder(path, replace=what == "replace") as folder:
            for name in ("a.txt", "b.txt"):
                (folder / name).write_text("whole")

    calls = ("write", "fsync", "replace", "rename")
    return os.waitstatus_to_exitcode(in_child(lambda: dying(act, call, calls)))


def test_text_and_bytes_replace_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    files.write_atomic(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    files.write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    files.write_atomic(path, b"")
    assert path.read_bytes() == b""
    assert listed(tmp_path) == ["a.txt"]


def test_a_new_file_has_the_rights_of_any_other(tmp_path):
    files.write_atomic(tmp_path / "ours", "")
    (tmp_path / "other").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_replaced_file_keeps_its_rights(tmp_path):
    path = tmp_path / "a"
    path.touch()
    for mode in (0o600, 0o666):  # narrower and wider than those of a new file
        path.chmod(mode)
        files.write_atomic(path, "new")
        assert path.stat().st_mode & 0o777 == mode


def test_the_files_of_a_folder_have_the_rights_of_any_other_whatever_wrote_them(tmp_path):
    before = os.umask(0o027)
    try:
        with files.atomic_folder(tmp_path / "a") as folder:
            save_file({"x": np.zeros(1)}, folder / "x.safetensors")
            (folder / "y").touch(0o600)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()] == [0o640, 0o640]


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("target")
    files.write_atomic(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path, monkeypatch, failing):
    path = tmp_path / "model.bin"
    files.write_atomic(path, b"old")
    real_write, calls = os.write, []

    def full(*args):
        calls.append(args)
        if failing == "write" and len(calls) == 1:
            return real_write(args[0], bytes(args[1])[:2])  # the disk takes a part, then no more
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match=r"No space left on device.*model\.bin'$") as caught:
        files.write_atomic(path, b"a new and longer text")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert listed(tmp_path) == ["model.bin"]


@pytest.mark.parametrize(("call", "expected"), [(1, "old"), (2, "old"), (3, "old"), (4, "the new text")])
def test_a_kill_at_any_call_leaves_the_old_file_or_the_new(tmp_path, call, expected):
    """The calls in order: write, fsync of the file, replace, fsync of the folder."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    assert killed(path, call, "file") == -signal.SIGKILL
    assert path.read_text() == expected


def test_that_was_every_call(tmp_path):
    assert killed(tmp_path / "a.txt", 5, "file") == 0
    assert killed(tmp_path / "a", 6, "folder") == 0


@pytest.mark.parametrize("call", [1, 3, 4, 5])
def test_a_kill_leaves_no_folder_or_a_whole_one(tmp_path, call):
    """The calls in order: fsync of a.txt, b.txt and their folder; rename; fsync of the parent."""
    path = tmp_path / "step-1"
    assert killed(path, call, "folder") == -signal.SIGKILL
    if call < 5:
        assert not path.exists()
    else:
        assert [file.read_text() for file in path.iterdir()] == ["whole", "whole"]


def test_a_folder_appears_whole(tmp_path):
    path = tmp_path / "new" / "step-1"
    with pytest.raises(FileNotFoundError), files.atomic_folder(path):
        raise AssertionError("not reached")
    with files.atomic_folder(path, parents=True) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a.txt").write_text("text")
        assert not path.exists()
    assert (path / "deep" / "a.txt").read_text() == "text"
    assert listed(tmp_path / "new") == ["step-1"]


def test_an_error_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), files.atomic_folder(tmp_path / "step-1") as folder:
        (folder / "a.txt").write_text("text")
        raise KeyError
    assert listed(tmp_path) == []


def test_a_folder_with_anything_in_it_is_not_replaced(tmp_path):
    path = tmp_path / "step-1"
    with files.atomic_folder(path):
        path.mkdir()  # another process, in vain
    with files.atomic_folder(path) as folder:
        (folder / "a.txt").write_text("first")
    with pytest.raises(FileExistsError, match="step-1 already exists"), files.atomic_folder(path):
        raise AssertionError("not reached")
    other = tmp_path / "step-2"
    with pytest.raises(FileExistsError, match="step-2 already exists"), files.atomic_folder(other) as folder:
        (folder / "a.txt").write_text("late")
        other.mkdir()
        (other / "a.txt").write_text("first")  # another process was quicker
    assert [(tmp_path / name / "a.txt").read_text() for name in listed(tmp_path)] == ["first", "first"]


def test_a_digest_is_that_of_the_standard(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert files.sha256_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "deep" / "b.txt").write_text("text")
    files.write_manifest(tmp_path, {"step": 3, "name": "é", "none": None})
    return tmp_path


def test_a_manifest_returns_its_extra_and_ends_with_its_digest(folder):
    assert files.verify_manifest(folder) == {"step": 3, "name": "é", "none": None}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest) == ["files", "extra", "digest"]
    assert manifest["files"]["deep/b.txt"]["size"] == 4
    (folder / "new.txt").write_text("a stranger")
    files.verify_manifest(folder)
    files.write_manifest(folder, {1: (2,)})
    assert files.verify_manifest(folder) == {"1": [2]}


def test_what_is_wrong_with_a_folder_is_named(folder):
    (folder / "a.bin").write_bytes(bytes(255))
    with pytest.raises(files.DamagedFile, match=r"a\.bin has 255 bytes \(expected 256\)\. Restore the file, or"):
        files.verify_manifest(folder)
    (folder / "a.bin").write_bytes(bytes(256))
    with pytest.raises(files.DamagedFile, match=r"a\.bin has changed since it was written"):
        files.verify_manifest(folder)
    (folder / "a.bin").write_bytes(bytes(range(256)))
    (folder / "deep" / "b.txt").unlink()
    with pytest.raises(OSError, match=r"b\.txt is missing"):
        files.verify_manifest(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(files.DamagedFile, match=r"manifest\.json is missing"):
        files.verify_manifest(folder)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"digest": 1, "files": [], "extra": {}}', "[" * 99_999])
def test_a_manifest_of_another_form_is_named(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(files.DamagedFile, match=r"manifest\.json has changed since it was written"):
        files.verify_manifest(folder)


def test_a_manifest_reads_nothing_outside_its_folder(folder):
    entry = {"size": 0, "sha256": ""}
    for name in ("/etc/passwd", "../secret"):
        manifest = {"files": {name: entry}, "extra": {}}
        manifest["digest"] = files._digest(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(files.DamagedFile, match=r"manifest\.json has changed since it was written"):
            files.verify_manifest(folder)


def test_any_flipped_bit_is_found_or_means_nothing(folder):
    sizes = {name: (folder / name).stat().st_size for name in ("manifest.json", "a.bin", "deep/b.txt")}

    @given(st.sampled_from(sorted(sizes)), st.integers(min_value=0), st.integers(0, 7))
    def flipped(name, position, bit):
        file = folder / name
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[position % len(whole)] ^= 1 << bit
        file.write_bytes(changed)
        try:
            if name == "manifest.json" and _same(whole, changed):
                assert files.verify_manifest(folder)["step"] == 3
            else:
                with pytest.raises(files.DamagedFile, match=file.name):
                    files.verify_manifest(folder)
        finally:
            file.write_bytes(whole)

    flipped()


def _same(whole, changed):
    """Whether two manifests differ in their white space only."""
    try:
        return json.loads(whole) == json.loads(bytes(changed))
    except (ValueError, RecursionError):
        return False


# ---- folders that are replaced, removed and mended, and locks


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6])
def test_a_kill_while_a_folder_is_replaced_loses_neither(tmp_path, call):
    """The calls in order: fsync of a.txt, b.txt and their folder; two renames; fsync of the parent."""
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "a.txt").write_text("old")
    assert killed(path, call, "replace") == -signal.SIGKILL
    files.mend_folder(tmp_path)
    assert listed(tmp_path) == ["step-1"]
    texts = [(path / name).read_text() for name in listed(path)]
    assert texts == (["whole", "whole"] if call == 6 else ["old"])


def test_that_was_every_call_of_a_replacement(tmp_path):
    (tmp_path / "step-1").mkdir()
    assert killed(tmp_path / "step-1", 7, "replace") == 0
    assert listed(tmp_path) == ["step-1"] and listed(tmp_path / "step-1") == ["a.txt", "b.txt"]


def test_a_replacement_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "a.txt").write_text("old")
    with pytest.raises(KeyError), files.atomic_folder(path, replace=True):
        raise KeyError
    assert listed(tmp_path) == ["step-1"] and (path / "a.txt").read_text() == "old"
    rename, calls = os.rename, []

    def second_fails(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(*arguments)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(OSError, match="No space left"), files.atomic_folder(path, replace=True) as new:
        (new / "a.txt").write_text("new")
    monkeypatch.undo()
    assert listed(tmp_path) == ["step-1"] and (path / "a.txt").read_text() == "old"


def test_mending_takes_away_what_is_unfinished_and_nothing_else(tmp_path):
    (tmp_path / ".step-2.0123456789ab.tmp").mkdir()
    (tmp_path / ".step-2.0123456789ab.tmp" / "a.txt").touch()
    (tmp_path / ".card.json.0123456789ab.tmp").touch()
    (tmp_path / ".step-1.0123456789ab.old").mkdir()
    (tmp_path / ".step-3.0123456789ab.old").mkdir()
    kept = [".git", ".lock", ".x.0123.tmp", "a.0123456789ab.tmp", "card.json", "step-1"]
    for name in kept:
        (tmp_path / name).mkdir()
    files.mend_folder(tmp_path)
    assert listed(tmp_path) == sorted([*kept, "step-3"])
    files.mend_folder(tmp_path)
    assert listed(tmp_path) == sorted([*kept, "step-3"])


def test_mending_follows_no_link(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".step-2.0123456789ab.tmp").symlink_to(tmp_path / "mine")
    files.mend_folder(tmp_path / "here")
    assert listed(tmp_path / "here") == [] and listed(tmp_path / "mine") == ["a.txt"]


def test_a_removed_folder_is_never_seen_in_part(tmp_path, monkeypatch):
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "a.txt").touch()
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # the process dies here
    files.remove_folder(path)
    monkeypatch.undo()
    (left,) = listed(tmp_path)
    assert left.startswith(".step-1.")
    files.mend_folder(tmp_path)
    assert listed(tmp_path) == []


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    path = tmp_path / ".lock"
    with files.locked(path) as first:
        assert first
        with files.locked(path) as second:
            assert not second
        with files.locked(path) as third:
            assert not third  # the second gave back nothing that it did not hold
    with pytest.raises(KeyError), files.locked(path) as again:
        assert again
        raise KeyError

    def hold():
        with files.locked(path) as last:
            os.kill(os.getpid(), signal.SIGKILL if last else signal.SIGTERM)

    assert [in_child(hold) for _ in range(2)] == [signal.SIGKILL] * 2  # the first left no lock behind


def test_the_hash_of_a_folder_is_that_of_its_files(folder):
    before = files.manifest_hash(folder)
    files.write_manifest(folder, {"other": 1})
    assert files.manifest_hash(folder) == before  # what else the manifest says does not count
    (folder / "a.bin").write_bytes(b"changed")
    assert files.manifest_hash(folder) == before  # the files are not read
    files.write_manifest(folder, {})
    changed = files.manifest_hash(folder)
    assert changed != before
    (folder / "a.bin").rename(folder / "b.bin")
    files.write_manifest(folder, {})
    assert files.manifest_hash(folder) not in (before, changed)  # a name counts as well
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(files.DamagedFile):
        files.manifest_hash(folder)
