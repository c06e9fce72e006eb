"""The page on teaching: its files run, and its commands print what it shows."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from command_line import attendo
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.nn import attention as attention_module

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {language: (DOCS / language / "teaching.md").read_text(encoding="utf-8") for language in ("en", "ja")}
FILE = re.compile(r'^```python title="(.+?)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```\n(\$ .*?)^```", re.MULTILINE | re.DOTALL)
DOCSTRING = re.compile(r'""".*?"""', re.DOTALL)
LEFT_OUT = "…"
HANDED_IN = {"aoi": "solution.py", "ben": "mine.py"}


def commands(page):
    """(command, the lines that it is shown to print), as the page has them."""
    found = []
    for block in SHOWN.findall(page):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def japanese():
    """Those that say something in Japanese; pictures are drawn once."""
    return [
        (command, shown)
        for command, shown in commands(PAGES["ja"])
        if command.endswith("--language ja")
        and ("--out" not in command or "claims" in command)
        and "runs/demo" not in command
    ]


def stretches(shown):
    """The lines between those that are left out, each without an end of its own."""
    return [part.strip("\n") for part in re.split(rf"^{LEFT_OUT}$", "\n".join(shown), flags=re.MULTILINE)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The files of the English page, three students' answers, and in runs/demo a model of six words' width."""
    folder = tmp_path_factory.mktemp("class")
    files = dict(FILE.findall(PAGES["en"]))
    for name, code in files.items():
        (folder / name).write_text(code, encoding="utf-8")
    (folder / "class").mkdir()
    for student, name in HANDED_IN.items():
        (folder / "class" / f"{student}.py").write_text(files[name], encoding="utf-8")
    (folder / "class" / "chie.py").write_text("def attention(query, key, value:\n", encoding="utf-8")
    save_run(folder / "runs" / "demo", tiny_translator(tiny_tokenizer("word"), n_heads=2, d_model=32))
    return folder


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Runs a command of the page in that folder: what it prints."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))

    def printed(command):
        program, *words = shlex.split(command)
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
            torch.set_printoptions(profile="default", sci_mode=None)  # the page's programs set their own
            return capsys.readouterr().out
        outcome = attendo(*words)
        fails = words[:2] == ["claims", "--check"] and words[2] in ("mine.py:attention", "class:attention")
        assert outcome.code == int(fails), outcome
        return outcome.out + outcome.err

    return printed


@pytest.mark.parametrize(("command", "shown"), [*commands(PAGES["en"]), *japanese()])
def test_a_command_prints_what_the_page_shows(run, command, shown):
    given = run(command)
    if "runs/demo" in command or "in_a_model" in command:  # the demo's own model is not trained here
        shown = [line for line in shown if line.startswith(("wrote", "保存：", "as the model's"))]
        assert all(line in given for line in shown) and given
        return
    at = 0
    for part in stretches(shown):
        assert part in given[at:], part
        at = given.index(part, at) + len(part)


def test_the_usual_mistakes_say_what_the_page_tells(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    names = runpy.run_path("three.py")
    torch.set_printoptions(profile="default", sci_mode=None)
    names |= runpy.run_path(attention_module.__file__)  # without the shape checks of the tests
    told = [re.findall(r"^\| `(attention\(.*?\))` \| `(\w+: .*?)` \|", page, re.MULTILINE) for page in PAGES.values()]
    assert told[0] == told[1] and len(told[0]) == 4
    for written, wanted in told[0]:
        with pytest.raises(Exception) as caught:
            exec(compile(written, "teaching.md", "exec"), names)
        assert f"{caught.type.__name__}: {caught.value}" == wanted


def test_in_japanese_the_page_has_the_same_code_and_commands():
    files = [{name: DOCSTRING.sub("", code) for name, code in FILE.findall(page)} for page in PAGES.values()]
    assert files[0] == files[1]
    assert all(compile(code, name, "exec") for name, code in FILE.findall(PAGES["ja"]))
    asked = [[command.replace(" --language ja", "") for command, _ in commands(page)] for page in PAGES.values()]
    assert asked[0] == asked[1]
