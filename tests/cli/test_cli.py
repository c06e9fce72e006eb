"""The commands as a user types them: results on stdout, progress on stderr, exit codes, one line per error."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr
from importlib.metadata import EntryPoint

import pytest
from command_line import attendo, refused, settings, stopped_at
from tiny_corpus import SMALL, pairs_file

import attendo as library
from attendo.cli import build_app
from attendo.cli.reporting import numbered_chunks
from attendo.data import forecasts
from attendo.display.i18n import Localized
from attendo.inference.translator import Candidate, Translation, Translator
from attendo_course.lessons.lesson import Lesson

NAMES = (
    "demo, train, train translation, train classification, train language-model, train masked-language-model, resume,"
    " verify-resume, plan, translate, shortlist, score, evaluate, compare, report, look, serve, import, export, info,"
    " doctor, claims, errata, figure, lesson, classify, generate, embed"
)
COMMANDS = [[], *(name.split() for name in NAMES.split(", "))]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pairs):
    """(folder, outcome) of a short training run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = ["--train", pairs, "--out", folder, "--from", "en", "--to", "ja", *settings(SMALL)]
    outcome = attendo("train", "translation", *options)
    assert outcome.code == 0, outcome.err
    return folder, outcome


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the run that a test may change."""
    return shutil.copytree(trained[0], tmp_path / "run")


# ---- help, usage, errors


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_80_columns_and_has_an_example(command):
    outcome = attendo(*command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    example = f"attendo {' '.join(command)}" if command else "Start with: attendo demo"
    assert example in outcome.out.partition("\n")[2]


@pytest.mark.parametrize("command", [[], ["train"]])
def test_no_command_gives_help(command):
    outcome = attendo(*command)
    assert outcome.code == 0
    assert outcome.out.startswith("Usage:")


def test_a_plugin_that_cannot_be_loaded_warns(monkeypatch):
    broken = EntryPoint("mine", "no_such_package:add", "attendo.commands")
    monkeypatch.setattr("attendo.cli.entry_points", lambda group: [broken])
    with redirect_stderr(io.StringIO()) as said:
        app = build_app()
    assert "warning: the commands of no_such_package:add cannot be loaded" in said.getvalue()
    assert "claims" not in [command.name for command in app.registered_commands]


def test_the_version():
    assert attendo("--version").out == f"attendo {library.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "translation", "--step", "3"], "No such option: --step"),
        (["train", "translation", "--steps", "many"], "'--steps'"),
        (["train", "translation", "--threads", "0"], "'--threads'"),
        (["train", "translation", "--train", "F"], "--out DIR, the new run folder, is missing"),
        (["train", "translation", "--out", "DIR"], "Give --train F"),
        (
            ["train", "translation", "--train-source", "F"],
            "--train-source and --train-target must be given together",
        ),
        (
            ["train", "translation", "--steps", "3", "--minutes", "1"],
            "--steps and --minutes cannot be combined",
        ),
        (["train", "translation", "--preset", "smal"], "did you mean small?"),
        (["train", "translation", "--preset", "x"], "available: base, big, demo, lecture, small, tiny"),
        (["train", "translation", "--set", "d_model"], "expected section.key=value"),
        (["train", "translation", "--set", "training.steps=-1"], "steps=-1 must be above 0"),
        (["train", "translation", "--train", "forecasts", "--out", "no", "--valid", "F"], "Remove --valid"),
        (
            ["resume", "DIR", "--steps", "3", "--more-steps", "1"],
            "--steps and --more-steps cannot be combined",
        ),
        (["translate"], "DIR"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line(arguments, said):
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["trian"], "attendo"),
        (["--no-such"], "attendo"),
        (["generate"], "attendo generate"),
        (["translate", "DIR", "--bem", "4"], "attendo translate"),
        (["train", "translation", "--steps", "many"], "attendo train translation"),
        (["train", "translation", "--out", "DIR"], "attendo train translation"),
    ],
    ids=str,
)
def test_wrong_usage_names_the_help_of_its_command(arguments, command):
    assert refused(*arguments).endswith(f"; see {command} --help")


def test_debug_shows_where_an_error_came_from(tmp_path):
    outcome = attendo("doctor", tmp_path / "no.tsv", "--debug")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: ")


def test_a_fault_of_our_own_is_one_line_too(monkeypatch, pairs):
    def fail(*arguments):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("attendo.data.doctor.examine", fail)
    assert refused("doctor", pairs, code=1).startswith("RuntimeError: two lines. This is a bug in attendo")


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from attendo.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "figure"]  # prints a list and imports little
    run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")


# ---- train, resume


def test_training_leaves_a_run_folder_and_says_what_it_did(trained):
    folder, outcome = trained
    names = "config.toml model.safetensors tokenizer.json card.json examples.json metrics.jsonl checkpoints"
    assert {path.name for path in folder.iterdir()} == {*names.split(), "trained_rows.safetensors"}
    assert outcome.out == ""
    for said in ("120 rows read, 120 used", "held out for validation", "step 5: BLEU", "done: all 12 steps"):
        assert said in outcome.err
    assert "\r" not in outcome.err  # no live line where there is no terminal


def test_a_lesson_in_japanese_is_so_to_its_last_line(monkeypatch):
    lesson = Lesson(
        "small",
        "Vaswani et al. 2017, table 3",
        Localized("word", "語"),
        Localized("why", "問い"),
        1.0,
        lambda options: iter(()),
    )
    monkeypatch.setattr("attendo_course.lessons.find_lesson", lambda name: lesson)
    assert attendo("lesson", "small", "--language", "ja").err.startswith("CPU 時間：")
    assert attendo("lesson", "small").err.endswith(" s of CPU time\n")


def test_the_later_setting_wins(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nd_model = 64\nd_ff = 96\ndropout = 0.3\n[training]\nepochs = 2\nseed = 5\n")
    options = ["--preset", "tiny", "--config", file, "--set", "model.d_ff=80", "--set", "training.seed=6"]
    outcome = attendo("train", "translation", *options, "--seed", "7", "--steps", "9", "--print-config")
    assert outcome.code == 0
    tables = tomllib.loads(outcome.out)
    assert tables["model"] == {  # d_model, dropout of the file; d_ff of --set; the rest of the preset
        "d_model": 64,
        "d_ff": 80,
        "n_heads": 4,
        "n_encoder_layers": 2,
        "n_decoder_layers": 2,
        "dropout": 0.3,
    }
    assert tables["training"] == {"seed": 7, "steps": 9}  # one budget takes the place of another


@pytest.mark.parametrize("preset", ["tiny", "small", "base", "big", "demo"])
def test_each_preset_is_sound(preset):
    assert attendo("train", "translation", "--preset", preset, "--print-config").code == 0


def test_resuming_goes_on_and_a_finished_run_says_so(folder):
    finished = attendo("resume", folder)
    assert finished.code == 0
    assert "has finished (all 12 steps done)" in finished.err
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["kind"] == "end"
    assert "has already made 12 steps" in refused("resume", folder, "--steps", "12")
    more = attendo("resume", folder, "--more-steps", "2")
    assert more.code == 0
    assert "done: all 14 steps done" in more.err
    assert (folder / "checkpoints" / "step-14").is_dir()


def test_a_stopped_run_has_saved_and_goes_on(tmp_path, pairs):
    out = tmp_path / "run"
    test = pairs_file(tmp_path, 5, "test.tsv")  # without its rows it goes on, too
    options = ["--train", pairs, "--out", out, *settings(SMALL), "--steps", "6"]
    options += ["--against", test, "--drop", "leaks"]
    with stopped_at(3, signal.SIGTERM):
        stopped = attendo("train", "translation", *options)
    assert stopped.code == 143
    assert f"stopped and saved at step 3. To resume: attendo resume {out}" in stopped.err
    assert [path.name for path in (out / "checkpoints").glob("step-*")] == ["step-3"]
    resumed = attendo("resume", out)
    assert resumed.code == 0
    assert f"resumed step-3 of {out}: 3 of 6 steps" in resumed.err
    assert "done: all 6 steps done" in resumed.err
    assert tomllib.loads((out / "config.toml").read_text())["data"]["against"] == [str(test)]
    assert json.loads((out / "card.json").read_text())["data"]["pairs"] == 92


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_before_the_first_step_says_that_nothing_is_kept(tmp_path, pairs, monkeypatch, number):
    def interrupted(*arguments, **settings):
        signal.raise_signal(number)

    monkeypatch.setattr("attendo.runs.training_run.new_model", interrupted)
    handler = signal.getsignal(signal.SIGTERM)
    own = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background process
    stopped = attendo("train", "translation", "--train", pairs, "--out", tmp_path / "run", *settings(SMALL))
    signal.signal(signal.SIGINT, own)
    assert stopped.code == 128 + number
    assert stopped.err.endswith("stopped before the first step; nothing was saved\n")
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not (tmp_path / "run").exists()


def test_ctrl_c_in_the_middle_of_a_command_ends_it(tmp_path, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("attendo.cli._command", interrupted)
    assert (attendo("info", tmp_path).code, attendo("info", tmp_path).err) == (130, "stopped\n")


# ---- translate, score, evaluate, info


def test_one_line_out_for_each_line_in(trained):
    lines = ["On Monday it will rain.", "", "snow\u2028in Oslo", " ", "it is cool"]
    data = b"\xef\xbb\xbf" + "\r\n".join(lines).encode()  # a BOM, CRLF, no line break at the end
    outcome = attendo("translate", trained[0], "--beam", "2", stdin=data)
    wanted = [found.text for found in library.load(trained[0]).translate(lines, beam=2)]
    assert outcome.code == 0
    assert outcome.out.split("\n") == [*wanted, ""]
    assert (wanted[1], wanted[3]) == ("", "")
    assert attendo("translate", trained[0], *lines, "--beam", "2").out == outcome.out
    assert attendo("translate", trained[0]).out == ""


def test_a_generated_line_break_is_written_as_a_space(trained, monkeypatch):
    found = Candidate("rain\r\nand\nsnow", (), 0.0, 0.0, (), True)
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **_: [Translation("", (found,))] * len(texts))
    assert attendo("translate", trained[0], stdin=b"a\nb\n").out == "rain and snow\n" * 2


def test_n_best_lines_and_json(trained):
    plain = attendo("translate", trained[0], "rain", "snow", "--beam", "3", "--n-best", "2")
    rows = [line.split("\t") for line in plain.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])
    outcome = attendo("translate", trained[0], "rain", "snow", "--beam", "3", "--n-best", "2", "--json")
    values = [json.loads(line) for line in outcome.out.splitlines()]
    assert [(value["line"], value["source"]) for value in values] == [(1, "rain"), (2, "snow")]
    found = [f"{candidate['score']:.4f}" for value in values for candidate in value["translations"]]
    assert found == [row[1] for row in rows]
    assert "must be between 1 and beam" in refused("translate", trained[0], "rain", "--n-best", "9")


def test_lines_are_translated_as_they_come():
    """A program that sends a line and waits for its translation must get it."""

    class Slow:
        blocks = iter([b"one\ntw", b"o\n", b"three"])

        def read1(self, size):
            return next(self.blocks, b"")

    stream = Slow()
    chunks = numbered_chunks(stream)
    assert next(chunks) == (1, ["one"])
    assert next(stream.blocks) == b"o\n"  # nothing was read ahead
    stream.blocks = iter([b"o\n", b"three"])
    assert list(chunks) == [(2, ["two"]), (3, ["three"])]


def test_scores_of_given_targets(trained, pairs):
    outcome = attendo("score", trained[0], pairs)
    found = library.load(trained[0]).score(forecasts.pairs(120, "train")[:3])
    assert "120 rows read, 120 used" in outcome.err
    lines = outcome.out.splitlines()
    assert len(lines) == 120
    for line, candidate in zip(lines, found, strict=False):
        assert list(map(float, line.split("\t"))) == pytest.approx([candidate.log_prob, candidate.score], abs=2e-4)
    first = json.loads(attendo("score", trained[0], pairs, "--json").out.splitlines()[0])
    assert (first["line"], len(first["token_log_probs"])) == (1, len(found[0].token_ids) + 1)


def test_evaluating(trained, pairs, tmp_path):
    test = tmp_path / "test.tsv"
    test.write_text("".join(pairs.read_text().splitlines(keepends=True)[:5]) + "only one column\n")
    out = tmp_path / "found.txt"
    outcome = attendo("evaluate", trained[0], test, "--tokenize", "none", "--out", out)
    assert outcome.code == 0
    assert "6 rows read, 5 used, 1 skipped (1 wrong number of columns: line 6)" in outcome.err
    bleu, chrf, exact, perplexity = outcome.out.splitlines()
    assert bleu.startswith("BLEU ") and "tok:none" in bleu
    assert chrf.startswith("chrF2 ") and "nc:6" in chrf
    assert exact.startswith("exact match ") and exact.endswith("/5")
    assert perplexity.startswith("perplexity ")
    assert len(out.read_text().split("\n")) == 6
    values = json.loads(attendo("evaluate", trained[0], test, "--json").out)
    assert {"bleu", "chrf", "exact", "loss", "perplexity", "cpu_seconds"} <= values.keys()
    assert f"perplexity {values['perplexity']:.3f}" in perplexity
    assert "tok:char" in values["scores"][0]["signature"]  # Japanese without spaces


def test_evaluating_reads_pairs_as_in_training(folder, tmp_path):
    """In the run's direction, with its columns; two parallel files too."""
    config = folder / "config.toml"
    text = config.read_text().replace("reverse = false", "reverse = true")
    config.write_text(text.replace("header = false", 'header = false\ncolumns = "ja,en"'))
    rows = forecasts.pairs(4, "test")
    csv = tmp_path / "test.csv"
    csv.write_text("en,n,ja\n" + "".join(f'"{en}",1,{ja}\n' for en, ja in rows))
    sides = tmp_path / "test.ja", tmp_path / "test.en"
    for path, column in zip(sides, (1, 0), strict=True):
        path.write_text("".join(row[column] + "\n" for row in rows))
    wanted = sum(candidate.log_prob for candidate in library.load(folder).score(rows))
    for files in ([csv], sides, [csv, "--columns", "target=ja,source=en"]):
        lines = attendo("score", folder, *files).out.splitlines()
        assert sum(float(line.split("\t")[0]) for line in lines) == pytest.approx(wanted, abs=0.01)


def test_the_card_in_80_columns(trained, monkeypatch):
    monkeypatch.chdir(trained[0].parent)
    outcome = attendo("info", "run")
    assert outcome.code == 0
    assert all(len(line) <= 80 or "pairs.tsv" in line for line in outcome.out.splitlines())
    for said in [
        "translation, en → ja",
        "1+1 layers",
        "96 pairs",
        "step 12",
        "ended: all 12",
        "model.safetensors",
    ]:
        assert said in outcome.out
    values = json.loads(attendo("info", "run", "--json").out)
    assert values["task"] == "translation"
    assert values["config"]["training"]["steps"] == 12
    assert values["progress"]["step"] == 12
