"""Files through a model: one line for each, in constant memory, and the same bytes however often it is killed."""

import fcntl
import gzip
import signal
import tracemalloc

import pytest
from forked import dying, in_child

from attendo.errors import AttendoError
from attendo.inference import batch_files
from attendo.inference.batch_files import Progress, through_file

CALLS = ("write", "fsync", "replace", "open", "unlink")


def shout(first, lines):
    return [f"{n}: {line.upper()}" for n, line in enumerate(lines, first)], {"empty": lines.count("")}


def finished(source, out, work=shout, **request):
    *_, last = through_file(source, out, work, request)
    return last


def refusal(source, out, **request):
    with pytest.raises(AttendoError) as caught:
        finished(source, out, **request)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def listed(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def source(tmp_path):
    """Ten lines, three to a chunk."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"\xef\xbb\xbfrain\r\n\n\xe9\x9b\xaa\nsnow\r\r\n \nhail\nfog\n\n\nthe end")
    return path


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 3)


def half_done(source, out, **request):
    """What a kill in the second chunk leaves: one chunk and a torn line."""
    for progress in through_file(source, out, shout, request):
        if progress.done == 3:
            break
    with out.with_name("out.txt.part").open("ab") as part:
        part.write(b"4: TORN" * 99)


# ---- the library


def test_one_result_for_each_line_in_order(source, tmp_path):
    out = tmp_path / "out.txt"
    seen = list(through_file(source, out, shout, {}))
    wanted = "1: RAIN|2: |3: 雪|4: SNOW\r|5:  |6: HAIL|7: FOG|8: |9: |10: THE END|"
    assert out.read_bytes().decode() == wanted.replace("|", "\n")
    assert [progress.done for progress in seen] == [0, 3, 6, 9, 10]
    assert seen[-1] == Progress(done=10, total=10, resumed=0, counts={"empty": 3})
    assert listed(tmp_path) == ["in.txt", "out.txt"]


def test_gzip_and_the_empty_file(source, tmp_path):
    packed, plain = tmp_path / "in.gz", tmp_path / "out.txt"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    finished(source, plain)
    finished(packed, tmp_path / "out2.txt")
    assert (tmp_path / "out2.txt").read_bytes() == plain.read_bytes()
    (tmp_path / "empty").touch()
    assert finished(tmp_path / "empty", tmp_path / "nothing") == Progress(0, 0, 0, {})
    assert (tmp_path / "nothing").read_bytes() == b""


def test_it_goes_on_where_it_was_stopped(source, tmp_path):
    out, calls = tmp_path / "out.txt", []

    def noted(first, lines):
        calls.append(first)
        return shout(first, lines)

    half_done(source, out, beam=4)
    assert finished(source, out, noted, beam=4) == Progress(10, 10, 3, {"empty": 3})
    assert calls == [4, 7, 10]
    finished(source, tmp_path / "whole")
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()


def test_other_options_or_another_input_are_refused(source, tmp_path):
    out = tmp_path / "out.txt"
    half_done(source, out, beam=4, model="a" * 64)
    begun, remedy = f"{out}.part was started with", f"remove {out}.part and out.txt.part.json to start again"
    said = refusal(source, out, beam=2, model="a" * 64)
    assert said == f"{begun} beam 4, now it is 2. Use the same options, or {remedy}"
    assert f"{begun} model aaaaaaaaaaaa…, now it is bbbbbbbbbbbb…" in refusal(source, out, beam=4, model="b" * 64)
    assert f"{begun} beam 4, now it is null" in refusal(source, out, model="a" * 64)
    source.write_bytes(source.read_bytes() + b".")
    assert refusal(source, out, beam=4, model="a" * 64).startswith(f"{source} has changed since {out}.part")


def test_what_is_damaged_is_refused(source, tmp_path):
    out, part, journal = (tmp_path / name for name in ("out.txt", "out.txt.part", "out.txt.part.json"))
    half_done(source, out)
    whole = part.read_bytes()
    for damaged in (whole[:10], b"x" + whole[1:]):
        part.write_bytes(damaged)
        assert refusal(source, out).startswith(f"{part} was changed after it was written. Restore it, or remove")
    part.write_bytes(whole)
    for text in ("{", "[]", '{"format": 2}', '{"format": 1}'):
        before = journal.read_bytes()
        journal.write_text(text)
        assert refusal(source, out).startswith(f"{journal} is damaged. To fix this, remove {part} and")
        journal.write_bytes(before)
    journal.unlink()
    assert refusal(source, out) == f"{part} exists, but out.txt.part.json does not. Move {part} away"
    assert part.read_bytes() == whole


def test_what_is_there_is_not_written_over(source, tmp_path):
    out = tmp_path / "out.txt"
    out.write_text("mine")
    assert refusal(source, out) == f"{out} already exists. Choose another name, or remove it"
    assert refusal(source, source) == f"{source} is also the input. Give the output another name"
    assert "Give a file in an existing folder" in refusal(source, tmp_path / "no" / "out.txt")
    assert "Give a file in an existing folder" in refusal(source, tmp_path)
    assert "no such file" in refusal(tmp_path / "no.txt", tmp_path / "new")
    assert (out.read_text(), listed(tmp_path)) == ("mine", ["in.txt", "out.txt"])


def test_a_bad_line_is_found_before_the_first_is_done(source, tmp_path):
    source.write_bytes(source.read_bytes() + b"\nsn\xffow\n")
    said = refusal(source, tmp_path / "out.txt")
    assert said == f"{source}:11: invalid UTF-8 (byte 0xff at position 3); save the file as UTF-8"
    source.write_bytes(b"x" * 1_100_000)
    assert refusal(source, tmp_path / "out.txt").startswith(f"{source}:1: too long; split the row")
    assert listed(tmp_path) == ["in.txt"]


def test_two_processes_do_not_write_one_file(source, tmp_path):
    half_done(source, tmp_path / "out.txt")
    part = tmp_path / "out.txt.part"
    with part.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = part.read_bytes()
        assert (
            refusal(source, tmp_path / "out.txt") == f"{part} is being written by another process. Wait until it ends"
        )
    assert part.read_bytes() == before


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 2_000)
    monkeypatch.setattr(batch_files, "CHUNK_CHARACTERS", 20_000)
    source = tmp_path / "in.txt"
    source.write_text("a line of some length\n" * 30_000 + "y" * 30_000 + "\n")
    tracemalloc.start()
    try:
        assert finished(source, tmp_path / "out.txt").done == 30_001
        assert tracemalloc.get_traced_memory()[1] < 600_000
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out.txt").stat().st_size > 800_000


# ---- killed


def test_a_kill_at_any_call_loses_and_repeats_nothing(source, tmp_path, monkeypatch):
    out = tmp_path / "out.txt"
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 5)
    finished(source, tmp_path / "whole")
    at = 1
    while status := in_child(lambda at=at: dying(lambda: finished(source, out), at, CALLS)):
        assert status == signal.SIGKILL
        assert finished(source, out).counts == {"empty": 3}
        assert out.read_bytes() == (tmp_path / "whole").read_bytes()
        assert not list(tmp_path.glob("out.txt.part*"))
        out.unlink()
        for file in tmp_path.glob(".*.tmp"):  # what an atomic write was making, which nothing reads
            file.unlink()
        at += 1
    assert at > 15
