"""attendo evaluate of a translator: rows in the wrong order are refused, or told."""

import json

import pytest
from command_line import refused
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.cli.evaluate import _matrix_lines, warn_of_order
from attendo.data import forecasts
from attendo.errors import AttendoError

ENGLISH = {"source": "en", "target": "ja"}
SAID = "the run translates from en, but the source is "
PAIRS = forecasts.pairs(6, "valid")


def test_rows_the_other_way_round_are_refused(tmp_path):
    run = save_run(tmp_path / "run", tiny_translator(tiny_tokenizer()))
    card, config = run / "card.json", run / "config.toml"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"languages": ENGLISH}))
    config.write_text('[data]\ntrain = ["pairs.tsv"]\n\n' + config.read_text())
    files = [tmp_path / "test.ja", tmp_path / "test.en"]
    for file, side in zip(files, (1, 0), strict=True):
        file.write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    said = refused("evaluate", run, *files, "--beam", "1")
    assert said == f"{SAID}Japanese. Give the files in the other order"


def test_only_what_speaks_against_the_languages_is_told(capsys):
    swapped = [(target, source) for source, target in PAIRS]
    for languages, pairs in ((ENGLISH, PAIRS), ({"source": None, "target": None}, swapped), ({}, swapped)):
        warn_of_order(languages, pairs, are_parallel=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(AttendoError, match=r"\. Choose the columns with --columns SOURCE,TARGET$"):
        warn_of_order(ENGLISH, swapped, are_parallel=False)
    warn_of_order(ENGLISH | {"target": None}, swapped, are_parallel=False)
    assert capsys.readouterr().err == f"warning: {SAID}Japanese. Choose the columns with --columns SOURCE,TARGET\n"
    warn_of_order(ENGLISH, [(source, source) for source, _ in PAIRS], are_parallel=True)
    said = capsys.readouterr().err
    assert said.startswith("warning: ") and said.endswith("the target is Latin. Check the rows\n")


def test_a_confusion_matrix_with_long_labels_has_numbers_for_columns():
    labels = [f"question about topic {n}" for n in range(10)]
    lines = _matrix_lines(labels, [[1000 * (row == column) for column in range(10)] for row in range(10)])
    assert max(map(len, lines)) <= 79 and lines[1].endswith("prediction (by number)")
    assert lines[3].split() == ["label", *map(str, range(1, 11))] and lines[5].startswith("1 quest")
    assert _matrix_lines(["a", "b"], [[1, 0], [0, 1]])[3].split() == ["label", "a", "b"]
