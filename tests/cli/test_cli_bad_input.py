"""Bad input, typed as a user would: each ends in one line that names the file and the remedy, or in an account."""

import shutil

import pytest
from command_line import attendo, refused, settings
from corpus_files import write
from tiny_corpus import SMALL, pairs_file

QUICK = [*settings(SMALL), "--steps", "2"]


def train(*options):
    return attendo("train", "translation", *options, *QUICK)


def train_refused(*options, **wanted):
    return refused("train", "translation", *options, *QUICK, **wanted)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"), 60)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train("--train", pairs, "--out", folder).code == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of a run that a test may damage."""
    return shutil.copytree(trained, tmp_path / "run")


# ---- files that cannot be used


def test_a_missing_file_is_named_before_anything_slow(tmp_path, pairs, trained):
    missing, out = tmp_path / "no.tsv", tmp_path / "run"
    said = f"{missing}: no such file; check the path"
    assert train_refused("--train", missing, "--out", out) == said
    assert train_refused("--train", pairs, "--valid", missing, "--out", out) == said
    assert train_refused("--train-source", pairs, "--train-target", missing, "--out", out) == said
    assert refused("doctor", missing) == said
    assert refused("doctor", pairs, "--against", missing) == said
    assert refused("evaluate", trained, missing) == said
    assert refused("score", trained, missing) == said
    config = tmp_path / "no.toml"
    assert train_refused("--config", config).startswith(f"{config}: no such file")
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty (expected at least one row of data)"),
        ("rain\nsnow\n", "none of 2 rows can be used: 2 wrong number of columns: lines 1, 2"),
        ("rain\t\n\tsnow\n", "1 no target: line 1, 1 no source: line 2; fill the field or delete the row"),
        ("rain\t雨\nsnow\t雪\nhail\tひょう\n", "3 usable rows are too few to hold out validation rows"),
        ("rain\t雨\n" * 30, "all 30 rows have the same source"),
    ],
    ids=["empty", "one column", "empty fields", "three rows", "only duplicates"],
)
def test_a_file_that_cannot_train(tmp_path, content, said):
    file, out = write(tmp_path / "f.tsv", content), tmp_path / "run"
    error = train_refused("--train", file, "--out", out)
    assert str(file) in error
    assert said in error
    assert not out.exists()


def test_an_empty_text_is_not_a_missing_option(tmp_path, pairs):
    given = "--train", pairs, "--out", tmp_path / "run"
    assert train_refused(*given, "--from=").startswith("--from : not a language code")
    assert train_refused(*given, "--columns=").startswith("invalid --columns ''")


def test_few_rows_and_duplicates_train_with_a_validation_file(tmp_path, pairs):
    for name, content in (("three", "rain\t雨\nsnow\t雪\nhail\tひょう\n"), ("same", "rain\t雨\n" * 30)):
        file = write(tmp_path / f"{name}.tsv", content)
        outcome = train("--train", file, "--valid", pairs, "--out", tmp_path / name)
        assert outcome.code == 0, outcome.err
    assert "29 duplicates" in outcome.err
    said = train_refused("--train", file, "--valid", pairs, "--out", tmp_path / "d", "--drop", "duplicate")
    assert "did you mean duplicates?" in said


def test_unequal_parallel_files_are_refused_with_both_counts(tmp_path, monkeypatch):
    source = write(tmp_path / "s.txt", "".join(f"rain {i}\n" for i in range(30)))
    target = write(tmp_path / "t.txt", "".join(f"雨 {i}\n" for i in range(29)))
    out = tmp_path / "run"
    said = f"{source} has 30 lines but {target} has 29 (expected"
    assert said in train_refused("--train-source", source, "--train-target", target, "--out", out)
    assert said in refused("doctor", source, target)
    monkeypatch.chdir(tmp_path)  # names are as they were given
    said = "s.txt has 30 lines but t.txt has 29 (expected equal numbers: line n"
    assert train_refused("--train-source", "s.txt", "--train-target", "t.txt", "--out", out).startswith(said)
    assert refused("doctor", "s.txt", "t.txt").startswith(said)
    assert not out.exists()


# ---- rows that cannot be used


BAD_ROWS = {
    "invalid UTF-8": b"rain\xff\t\xe9\x9b\xa8",
    "NUL character": b"ra\0in\t\xe9\x9b\xa8",
    "no target": b"rain\t  ",
    "empty line": b"",
    "wrong number of columns": b"rain",
    "too long": b"x" * 1_100_000 + b"\ty",
}


def test_a_bad_row_does_not_train_is_accounted_for_and_stops_a_strict_run(tmp_path, pairs, trained):
    bad = b"\n".join(BAD_ROWS.values()) + b"\n"
    file = write(tmp_path / "f.tsv", bad + pairs.read_bytes())
    outcome = train("--train", file, "--out", tmp_path / "run")
    assert outcome.code == 0
    assert "66 rows read, 60 used, 6 skipped" in outcome.err
    # it is learned from every usable text, so equal files mean equal texts
    tokenizers = [folder / "tokenizer.json" for folder in (tmp_path / "run", trained)]
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    said = train_refused("--train", file, "--out", tmp_path / "strict", "--strict")
    assert said.startswith(f"{file}:1: {next(iter(BAD_ROWS))}")
    outcome = attendo("doctor", file)
    assert outcome.code == 1 and "66 rows read, 60 used, 6 skipped" in outcome.out
    assert all(f"1  {reason}, line {line}" in outcome.out for line, reason in enumerate(BAD_ROWS, 1))


def test_a_line_too_long_to_translate_names_itself(trained):
    said = refused("translate", trained, stdin=b"x" * 3_000_000)
    assert said.startswith("stdin:1: too long; split the row")


def test_lines_before_one_that_is_not_utf_8_are_translated(trained):
    outcome = attendo("translate", trained, stdin=b"rain\n\nsn\xffow\nhail\n")
    assert outcome.code == 2
    assert outcome.out.count("\n") == 2
    assert outcome.error == "stdin:3: invalid UTF-8 (byte 0xff at position 3). Send UTF-8"


def test_an_argument_that_is_not_utf_8(trained):
    assert refused("translate", trained, "ra\udcffin").startswith("TEXT number 1 is not valid UTF-8")


# ---- settings


def test_an_error_line_commands_no_terminal(tmp_path):
    """The words of a file that somebody else wrote."""
    file = tmp_path / "other.toml"
    file.write_text('["\\u001b]0;title\\u0007\\u202e\\u009b2J"]\n', encoding="utf-8")
    assert r"\u{1b}]0;title\u{7}\u{202e}\u{9b}2J" in train_refused("--config", file)


def test_an_unknown_key_is_answered_with_the_nearest_right_one(tmp_path, pairs):
    config = write(tmp_path / "F.toml", "[model]\nd_modle = 64\n")
    said = train_refused("--train", pairs, "--out", tmp_path / "run", "--config", config)
    assert said == f"unknown key model.d_modle in {config}; did you mean d_model?"
    said = train_refused("--train", pairs, "--out", tmp_path / "run", "--set", "training.learningrate=1")
    assert said == "unknown key training.learningrate in --set; did you mean learning_rate?"
    assert "unknown table [modle] in --set" in train_refused("--set", "modle.d_model=64")


def test_a_model_that_is_no_translator_is_refused(tmp_path):
    settings = ["--set", "model.architecture=decoder", "--set", "model.n_encoder_layers=0"]
    said = refused("train", "translation", "--train", "forecasts", "--out", tmp_path / "run", *settings)
    assert said.endswith("architecture='decoder' does not apply to translation. Leave it out")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.n_heads=3", "d_model=16 is not divisible by n_heads=3; try n_heads="),
        ("model.d_model=wide", 'model.d_model = "wide"'),
        ("training.schedule=linear", 'training.schedule = "linear"'),
        ("tokenizer.vocab_size=0", "vocab_size=0 must be at least 1"),
        ("decoding.n_best=9", "n_best=9 must be between 1 and beam=4"),
        ("model.positions=inverse", "Set position_start=1"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_slow(tmp_path, setting, said):
    out = tmp_path / "run"
    missing = tmp_path / "not looked for yet.tsv"
    assert said in refused("train", "translation", "--train", missing, "--out", out, *QUICK, "--set", setting)
    assert not out.exists()


# ---- run folders


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path, pairs, trained):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    said = train_refused("--train", pairs, "--out", trained)
    assert said == (f"{trained} already holds a run. Give another --out, or resume it: attendo resume {trained}")
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before
    assert "is a file" in train_refused("--train", pairs, "--out", pairs)
    assert "is not empty" in train_refused("--train", pairs, "--out", pairs.parent)


def test_no_run_folder(tmp_path, pairs):
    for command in (
        ["translate", tmp_path / "no", "rain"],
        ["info", tmp_path / "no"],
        ["resume", tmp_path / "no"],
    ):
        assert refused(*command).startswith(f"{tmp_path / 'no'}: no such run folder")
    assert "has no config.toml" in refused("translate", tmp_path, "rain")
    assert "has no config.toml" in refused("evaluate", tmp_path, pairs)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ["config.toml", "card.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("kept", [None, 0.0, 0.5, 0.97])
def test_a_run_folder_with_a_file_missing_or_cut_short(folder, pairs, name, kept):
    file = folder / name
    data = file.read_bytes()
    if kept is None:
        file.unlink()
    else:
        file.write_bytes(data[: int(kept * len(data))])
    commands = [["translate", folder, "rain"], ["score", folder, pairs], ["evaluate", folder, pairs]]
    if name != "model.safetensors":  # which the card and a checkpoint do without
        commands += [["info", folder], ["resume", folder]]
    for command in commands:
        assert name in refused(*command)
    file.write_bytes(data)
    assert attendo("translate", folder, "rain").code == 0


def test_a_config_cut_at_the_end_of_any_line_is_noticed(folder):
    """Whatever stands last is a setting that would silently become its default."""
    config = folder / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    for n in range(1, len(lines)):
        config.write_text("".join(lines[:n]))
        message = refused("info", folder)
        assert "config.toml is truncated" in message or "config.toml is not valid TOML" in message, n


def test_a_folder_without_a_checkpoint_is_not_said_to_go_on(tmp_path, pairs):
    """As a disk leaves it that was full at the first: there is nothing that `resume` could take."""
    (tmp_path / "config.toml").touch()
    (tmp_path / "model.safetensors").touch()
    said = train_refused("--train", pairs, "--out", tmp_path)
    assert said.endswith("no checkpoint to resume from. Give another --out, or remove it")
