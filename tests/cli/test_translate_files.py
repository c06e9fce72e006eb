"""attendo translate --input --output: the lines that stdin gives, and the same bytes however often it is killed."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from unittest.mock import patch

import pytest
from command_line import attendo, refused
from forked import in_child
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.cli import main
from attendo.data import forecasts
from attendo.decoding.beam import BeamSearch
from attendo.inference import batch_files
from attendo.inference.translator import Translator

MAIN = "import sys; from attendo.cli import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 3)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("batch_files") / "run", tiny_translator(tiny_tokenizer(), max_len=64))


def many_lines(n):
    lines = [source for source, _ in forecasts.pairs(n, "train")]
    lines[3] = ""
    lines[7] = " "
    return lines


def test_the_command_gives_the_lines_that_stdin_gives(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 16)
    lines = many_lines(40)
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    outcome = attendo("translate", run_folder, "--input", file, "--output", out, "--longest", "20")
    assert (outcome.code, outcome.out) == (0, "")
    wanted = Translator.load(run_folder).translate(lines, longest=20)
    assert out.read_text().splitlines() == [translation.text for translation in wanted]
    n_split = sum(translation.parts > 1 for translation in wanted)
    assert 0 < n_split < 40
    assert f"{n_split} of 40 texts were translated in parts; --segment none" in outcome.err
    n_endless = sum(not translation.candidates[0].finished for translation in wanted)
    assert f"{n_endless} of 40 translations reached their length limit before their end\n" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("done: 40 lines in ")
    attendo("translate", run_folder, "--input", file, "--output", tmp_path / "json", "--json", "--longest", "20")
    values = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    assert [value["line"] for value in values] == list(range(1, 41))
    assert [value["parts"] for value in values] == [translation.parts for translation in wanted]
    assert [value["loop"] for value in values] == [translation.loop for translation in wanted]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--input", "F"], "--input and --output must be given together"),
        (["--output", "G"], "--input and --output must be given together"),
        (
            ["--input", "F G.TSV", "--output", "G"],
            "as a .txt file, for example: cut -f1 'F G.TSV' > texts.txt",
        ),
        (["--input", "none.tsv", "--output", "G"], "none.tsv: no such file"),
        (["--input", "F.csv.gz", "--output", "G"], "F.csv.gz is a table, but each line is read as one text"),
        (["--input", "F", "--output", "G", "rain"], "TEXT and --input cannot be combined"),
        (["--longest", "2", "rain"], "longest=2 must be 8 to 63"),
        (["--set", "model.d_model=8", "rain"], "only settings of [decoding] can be set here"),
        (["--set", "decoding.no_repeat=3", "rain"], "no_repeat_ngram"),
        (["--set", "decoding.min_length=-1", "rain"], "min_length"),
    ],
    ids=str,
)
def test_wrong_usage(run_folder, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for table in ("F G.TSV", "F.csv.gz"):
        (tmp_path / table).touch()
    assert said in refused("translate", run_folder, *options)


def test_a_table_on_stdin_is_named(run_folder):
    hint = "stdin:1 contains a tab, but each line is read as one text. To translate the first column of a table, run:"
    command = ["translate", run_folder, "--longest", "8", "--beam", "1"]
    assert f"{hint} cut -f1 FILE | attendo translate {run_folder}\n" in attendo(*command, stdin=b"a\tb\n").err
    assert "stdin:1" not in attendo(*command, stdin=b"\ta\nb\tc\n").err


def test_settings_of_the_search(run_folder):
    lines = ["rain", "snow in Oslo", "fog"]
    translator = Translator.load(run_folder)
    plain = [found.text for found in translator.translate(lines)]
    translator.decoding = dataclasses.replace(translator.decoding, min_length=7, no_repeat_ngram=1)
    wanted = [found.text for found in translator.translate(lines)]
    options = ["--set", "decoding.min_length=7", "--set", "decoding.no_repeat_ngram=1"]
    assert attendo("translate", run_folder, *lines, *options).out.splitlines() == wanted != plain


def killed_at_steps(command, n):
    """Runs the command in forks, `n` of them killed while the model takes some step, the last one not."""
    advance = BeamSearch.advance
    taken = 0  # of this process: a fork counts on for itself alone
    for last in [*random.Random(0).choices(range(1, 13), k=n), None]:

        def counted(*arguments, last=last):
            nonlocal taken
            taken += 1
            if taken == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return advance(*arguments)

        with patch.object(BeamSearch, "advance", counted):
            status = in_child(partial(main, list(map(str, command))))
        assert status == (0 if last is None else signal.SIGKILL)


def killed_at_times(command, n):
    """Runs the command in processes of their own, `n` of them killed some time after they got on, the last one not."""
    out, times = command[-1], random.Random(0)
    journal = out.with_name(f"{out.name}.part.json")
    for last in [False] * n + [True]:
        before = journal.read_bytes() if journal.exists() else b""
        process = subprocess.Popen([sys.executable, "-c", MAIN, *map(str, command)], stderr=subprocess.DEVNULL)
        while not last and process.poll() is None and not (journal.exists() and journal.read_bytes() != before):
            time.sleep(0.01)
        if not last:
            time.sleep(0.3 * times.random())
            process.kill()
        assert process.wait() == (0 if last else -signal.SIGKILL)


@pytest.mark.parametrize(
    ("killed", "n_lines", "n"),
    [(killed_at_steps, 120, 3), pytest.param(killed_at_times, 30_000, 5, marks=pytest.mark.full)],
)
def test_a_killed_command_ends_with_the_same_bytes(run_folder, tmp_path, monkeypatch, killed, n_lines, n):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 20)
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("\n".join(many_lines(n_lines)))
    options = ["--threads", "1", "--beam", "1", "--json"]
    command = ["translate", run_folder, *options, "--input", file, "--output"]
    killed([*command, out], n)
    if killed is killed_at_times:
        monkeypatch.undo()  # processes of their own have their own chunks
    assert attendo(*command, tmp_path / "whole").code == 0
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    assert out.read_bytes().count(b"\n") == n_lines
    assert not list(tmp_path.glob("out.txt.part*"))
