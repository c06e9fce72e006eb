"""attendo evaluate of a translator: rows in the wrong order are told."""

import json

from command_line import attendo
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.cli.evaluating import warn_of_order
from attendo.data import forecasts

ENGLISH = {"source": "en", "target": "ja"}
SAID = "the run translates from en, but the source is "
PAIRS = forecasts.pairs(6, "valid")


def test_rows_the_other_way_round_are_told(tmp_path):
    run = save_run(tmp_path / "run", tiny_translator(tiny_tokenizer()))
    card, config = run / "card.json", run / "config.toml"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"languages": ENGLISH}))
    config.write_text('[data]\ntrain = ["pairs.tsv"]\n\n' + config.read_text())
    files = [tmp_path / "test.ja", tmp_path / "test.en"]
    for file, side in zip(files, (1, 0), strict=True):
        file.write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    found = attendo("evaluate", run, *files, "--beam", "1")
    assert found.code == 0 and "BLEU" in found.out
    [line] = [line for line in found.err.splitlines() if line.startswith(SAID)]
    assert line.endswith(": give the files in the other order")


def test_only_what_speaks_against_the_languages_is_told(capsys):
    swapped = [(target, source) for source, target in PAIRS]
    for languages, pairs in ((ENGLISH, PAIRS), ({"source": None, "target": None}, swapped), ({}, swapped)):
        warn_of_order(languages, pairs, are_parallel=False)
    assert capsys.readouterr().err == ""
    warn_of_order(ENGLISH, swapped, are_parallel=False)
    assert capsys.readouterr().err.endswith(": give --columns the other way round\n")
    warn_of_order(ENGLISH, [(source, source) for source, _ in PAIRS], are_parallel=True)
    assert capsys.readouterr().err.endswith("the target is Latin: look at the rows\n")
