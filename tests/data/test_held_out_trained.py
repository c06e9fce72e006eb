"""A run that starts from another validates on rows that the other was not trained on; and says what validates."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from corpus_files import write
from tiny_corpus import SMALL, pairs_file

from attendo.data.corpus_base import KNOWN, RowCorpus
from attendo.data.held_out import NAME, TrainedRows, held_out, source_hash, trained_rows
from attendo.data.pair_corpus import PairData
from attendo.runs.resume import resumed_run
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run

TINY = joined(SMALL, {"training": {"steps": 1}})


def run_on(folder, task, data, start=None):
    said, tables = [], joined(TINY, {"data": data})
    if task == "classification":
        tables = {name: table for name, table in tables.items() if name not in ("decoding", "tokenizer")}
        tables["model"] = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1}
    run = new_run(family_of(task), tables, folder, said.append, init_from=start)
    for _ in run.reports():
        pass
    return run.run.task, said


def texts_file(tmp_path, name, numbers):
    rows = [f"{('good', 'bad')[n % 2]}\tThe room number {n} was {('clean', 'loud')[n % 2]}.\n" for n in numbers]
    return str(write(tmp_path / name, "".join(rows)))


@pytest.mark.parametrize(("task", "column"), [("translation", 0), ("classification", 1)])
def test_rows_of_the_start_do_not_validate(tmp_path, task, column):
    """Trained with a file to validate by, then on that file, too, without one."""
    if task == "translation":
        lines = pairs_file(tmp_path, 150).read_text(encoding="utf-8").splitlines(keepends=True)
        write(tmp_path / "0.tsv", "".join(lines[:100]))
        write(tmp_path / "1.tsv", "".join(lines[100:]))
    else:
        texts_file(tmp_path, "0.tsv", range(100))
        texts_file(tmp_path, "1.tsv", range(100, 150))
    files = [str(tmp_path / name) for name in ("0.tsv", "1.tsv")]
    contents = [Path(file).read_text(encoding="utf-8") for file in files]
    parts = [[line.split("\t")[column] for line in content.splitlines()] for content in contents]
    both = str(write(tmp_path / "both.tsv", "".join(contents)))

    def validating(task):
        return {row[column] if column == 0 else row.text for row in task.all_validation}

    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    run_on(first, task, {"train": [files[0]], "valid": [files[1]]})
    assert len(trained_rows(first, "all")) == len(set(parts[0]))
    found, _ = run_on(second, task, {"train": [both]}, first)
    held = validating(found)
    assert len(held) > 5 and held < set(parts[1])
    trained = trained_rows(second, "all")
    assert not any(row in trained for row in held) and all(row in trained for row in parts[0])
    assert resumed_run(second).run.task.all_validation == found.all_validation
    # a file that is named is left out where it was trained on, and a chain has all
    found, said = run_on(third, task, {"train": [files[1]], "valid": [both]}, second)
    assert any(f"{KNOWN} and are not used" in line for line in said)
    assert validating(found) == held
    assert len(trained_rows(third, "all")) == len({*parts[0], *parts[1]})


def test_an_older_start_is_known_by_its_file_or_a_warning_says_so(tmp_path):
    file, first = pairs_file(tmp_path, 100), tmp_path / "first"
    run_on(first, "translation", {"train": [str(file)], "valid": [str(file)]})
    (first / NAME).unlink()
    _, said = run_on(tmp_path / "second", "translation", {"train": [str(file)]}, first)
    assert f"warning: all rows, or nearly all, {KNOWN}: scores will be inflated" in said
    other = write(tmp_path / "other.tsv", file.read_text(encoding="utf-8"))
    file.unlink()
    _, said = run_on(tmp_path / "third", "translation", {"train": [str(other)], "valid": [str(other)]}, first)
    gone = "has no list of its training rows, and its data files are missing."
    gone += " Validation rows may be among its training rows"
    assert f"warning: {first} {gone}" in said


def test_what_is_held_out_is_new_and_half_of_the_new_rows_train():
    sources = [f"row {n}" for n in range(1000)]
    known = TrainedRows.of(sources[:950])
    held = held_out(sources, trained=known.has)
    assert (held.n_rows, held.n_held_out) == (1000, 25)
    assert held.hashes == set(sorted(map(source_hash, sources[950:]))[:25])
    assert held_out(sources, trained=TrainedRows.of(sources[:990]).has).n_held_out == 0
    assert held_out(sources, trained=TrainedRows().has) == held_out(sources)


@pytest.mark.parametrize(
    ("n", "most", "sizes", "said"),
    [
        (
            1014,
            500,
            (338, 1014),
            ["338 of 1,014 validation pairs are used at each evaluation, all at the end"],
        ),
        (100, 500, (100, 100), []),
        (100, 0, (100, 100), []),
        (
            9000,
            100,
            (100, 1000),
            ["100 of 9,000 validation pairs are used at each evaluation, 1,000 at the end"],
        ),
    ],
)
def test_validation_rows_that_are_not_used_are_said(n, most, sizes, said):
    lines = []
    corpus = SimpleNamespace(data=PairData(train=("F",)), noun="pair", say=lines.append)
    corpus._all_validation = lambda: iter(range(n))
    each, final = RowCorpus._validation(corpus, most, {})
    assert (len(each), len(final)) == sizes and lines == said and set(each) <= set(final)
