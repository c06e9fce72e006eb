"""The check of an attention: a limit on its time, and functions that are taken out of files."""

import signal
import threading
import time
from contextlib import suppress

import pytest
from attentions import outcome, plain

from attendo.errors import AttendoError
from attendo_course import check
from attendo_course.grader import loading
from attendo_course.grader.checker import check_file
from attendo_course.grader.loading import UnfitError, load_function


@pytest.fixture
def quick(monkeypatch):
    if not hasattr(signal, "setitimer"):
        pytest.skip("no alarm on this system")
    monkeypatch.setattr(loading, "SECONDS", 0.2)


def hanging(query, key, value):
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # noqa: BLE001
            continue


def hanging_with_a_batch(query, key, value):
    while query.ndim > 2:
        pass
    return plain(query, key, value)


def hanging_with_a_mask(query, key, value, mask=None):
    while mask is not None and not mask.all():
        pass
    return plain(query, key, value)


@pytest.mark.parametrize(
    ("function", "failing"),
    [(hanging, "shapes"), (hanging_with_a_batch, "shapes"), (hanging_with_a_mask, "mask")],
)
def test_a_call_without_end_is_stopped_and_fails_with_its_input(quick, function, failing):
    start = time.monotonic()
    report = check(function)
    assert time.monotonic() - start < 10
    failure = outcome(report, failing).failure
    assert (report.failed, failure.got.en) == ((failing,), "no result after 0.2 s")
    assert "a loop does not end" in failure.hint.en
    assert [found.status for found in report.outcomes[-4:]] == ["not tried"] * 4
    assert {found.note.en for found in report.outcomes[-4:]} == {"a call took too long"}
    assert failure.case.query.ndim == (3 if function is hanging_with_a_batch else 2)
    assert "on        query [" in repr(report) and "0.2 秒たっても" in "\n".join(report.lines("ja"))


def test_a_swallowed_alarm_comes_again_and_a_former_timer_goes_on(quick, monkeypatch):
    monkeypatch.setattr(loading, "AGAIN", 0.05)
    with pytest.raises(loading.TimeUpError), loading.time_limit():
        with suppress(loading.TimeUpError):
            time.sleep(5)
        time.sleep(5)
    former = signal.getsignal(signal.SIGALRM)
    try:
        signal.setitimer(signal.ITIMER_REAL, 500)
        with loading.time_limit():
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 0.2
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert signal.getsignal(signal.SIGALRM) == former


def test_another_thread_has_no_limit(quick):
    found = []
    thread = threading.Thread(target=lambda: found.append(check(plain).ok))
    thread.start()
    thread.join()
    assert found == [True]


# ---- files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from other import softmax\n"
        "@dataclass\n"
        "class Sizes:\n"
        "    d: 'int' = 4\n"
        "def right(query, key, value):\n"
        "    return softmax(query @ key.mT / query.shape[-1] ** 0.5) @ value\n"
        "def second():\n"
        "    pass\n"
        "number = 3\n"
        "assert __name__ != '__main__'\n"
    )
    (tmp_path / "other.py").write_text("import torch\ndef softmax(x):\n    return x.softmax(-1)\n")
    return path


def test_a_function_is_loaded_from_a_file_with_its_neighbors(file):
    assert check(load_function(f"{file}:right")).ok
    assert sorted(path.name for path in file.parent.glob("mine*")) == ["mine.py"]


def test_a_file_without_end_is_stopped(file, quick):
    file.write_text("import time\n\ntime.sleep(60)\n")
    with pytest.raises(UnfitError, match=r"mine\.py:3: no result after 0\.2 s; running the file must"):
        load_function(f"{file}:right")


def test_the_report_names_what_the_file_names(file):
    place = file.parent / "module.py"
    place.write_text(
        "import torch\n"
        "class Mod(torch.nn.Module):\n"
        "    def forward(self, query, key, value):\n"
        "        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value\n"
        "attention = Mod()\n"
    )
    report = check_file(f"{place}:attention")
    assert report.lines()[0] == "attention: 8 of 10 properties hold, mask not offered"
    with pytest.raises(AttendoError) as caught:
        check_file(f"{place}:Mod")
    assert str(caught.value).startswith(f"{place}: Mod is a class; give an instance of it")


def test_input_is_at_its_end_and_a_prompt_is_no_print(file, capsys):
    file.write_text("def asks(query, key, value):\n    input('?')\n    return value\n")
    report = check_file(f"{file}:asks")
    assert [remark.en for remark in report.remarks] == ["it asks for input and gets none; the arrays come as arguments"]
    assert outcome(report, "shapes").failure.got.en.startswith("it asks for input")
    assert capsys.readouterr().out == ""
    file.write_text("x = 1\ninput('?')\n")
    with pytest.raises(AttendoError, match=r"mine\.py:2: it asks for input and gets none; take it out"):
        check_file(f"{file}:f")


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("F", None, "write FILE.py:FUNCTION"),
        (":f", None, "write FILE.py:FUNCTION"),
        ("no.py:f", None, "no.py: No such file or directory; give a Python file"),
        (".:f", None, "Is a directory"),
        ("mine.py:third", None, "third is not a function in this file; it has: right, second"),
        ("mine.py:number", None, "number is not a function in this file"),
        ("new.py:f", "x = 1", "f is not a function in this file; it has: no functions"),
        ("new.py:f", "x = 1\ny = (\n", "new.py:2: syntax error: '(' was never closed"),
        ("new.py:f", "x = 1\nx = x / 0\n", "new.py:2: ZeroDivisionError: division by zero"),
        ("new.py:f", "import sys\n\nsys.exit(3)", "new.py:3: SystemExit: 3"),
        ("new.py:f", "import nothing_of_this_name", "new.py:1: ModuleNotFoundError"),
        ("new.py:f", "x = '\0'", "null bytes"),
        ("new.py:f", b"x = '\xff'", "syntax error"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(file, place, text, said, monkeypatch):
    monkeypatch.chdir(file.parent)
    if text is not None:
        (file.parent / "new.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UnfitError) as caught:
        load_function(place)
    assert said in str(caught.value) and "\n" not in str(caught.value)
