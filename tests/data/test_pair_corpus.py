"""From the files a run names to its store and validation pairs: nothing lost, nothing on both sides."""

from pathlib import Path

import pytest
from corpus_files import write
from tiny_corpus import pairs_file

from attendo.data.pair_corpus import PairCorpus, PairData
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError


def corpus(*files, said=None, **options):
    lines = [] if said is None else said
    return PairCorpus(PairData(train=tuple(map(str, files)), **options), lines.append)


def test_validation_pairs_are_split_off_and_train_no_more(tmp_path):
    said = []
    found = corpus(pairs_file(tmp_path, 200), said=said)
    train = {source for _, source, _ in found.rows()}
    held = {source for source, _ in found.validation(1000)[0]}
    assert len(train) + len(held) == 200 and not train & held
    assert found.n_pairs == len(train) == 160
    assert any("40 of 200 pairs are held out" in line for line in said)
    assert any("200 rows read, 200 used, 0 skipped" in line for line in said)


def test_a_validation_file_leaves_all_pairs_to_training(tmp_path):
    valid = pairs_file(tmp_path, 30, "valid.tsv")
    found = corpus(pairs_file(tmp_path, 120), valid=(str(valid),))
    assert found.n_pairs == len(list(found.rows())) == 120
    assert len(found.validation(1000)[0]) == 30
    assert list(map(len, found.validation(10))) == [10, 30]


def test_dropped_rows_are_out_of_the_store(tmp_path):
    file = pairs_file(tmp_path, 100)
    file.write_text(file.read_text(encoding="utf-8") * 2, encoding="utf-8")
    valid = str(pairs_file(tmp_path, 5, "valid.tsv"))
    found = corpus(file, valid=(valid,), drop="duplicates,leaks")
    assert found.n_pairs == 95
    store = found.store(train_tokenizer(found.texts(), TokenizerConfig(vocab_size=600)))
    assert len(store) == 95 and store.row_numbers.max() <= 100


def test_the_store_is_another_for_other_rows_or_another_reading(tmp_path):
    file = pairs_file(tmp_path, 100)
    first = corpus(file)
    tokenizer = train_tokenizer(first.texts(), TokenizerConfig(vocab_size=600))
    keys = [
        first.store(tokenizer).facts.key,
        corpus(file).store(tokenizer).facts.key,
        corpus(file, reverse=True).store(tokenizer).facts.key,
    ]
    assert keys[0] == keys[1] != keys[2]
    with file.open("a", encoding="utf-8") as more:
        more.write("one\t一つ\n")
    assert corpus(file).store(tokenizer).facts.key not in keys


def test_two_parallel_files_are_one_corpus(tmp_path):
    pairs = [line.split("\t") for line in pairs_file(tmp_path, 60).read_text(encoding="utf-8").splitlines()]
    one = write(tmp_path / "a.en", "".join(f"{source}\n" for source, _ in pairs))
    other = write(tmp_path / "a.ja", "".join(f"{target}\n" for _, target in pairs))
    found = corpus(one, other, valid=(str(one), str(other)))
    assert [(source, target) for _, source, target in found.rows()] == [tuple(pair) for pair in pairs]


def test_one_of_two_parallel_files_is_no_table(tmp_path):
    names = [str(write(tmp_path / name, "rain\n")) for name in ("a.en", "a.ja")]
    with pytest.raises(AttendoError, match="give both: `train_source` F `train_target` F"):
        _ = corpus(names[0]).report
    with pytest.raises(AttendoError, match="give both: `valid_source` F `valid_target` F"):
        _ = corpus(*names, valid=(names[1],)).report


def test_the_embedded_corpus_needs_no_file_and_turns_round(monkeypatch):
    monkeypatch.setattr("attendo.data.pair_corpus.FORECAST_PAIRS", 50)
    found = corpus("forecasts")
    assert found.embedded and found.n_pairs == len(list(found.rows())) == 50
    (_, source, target), *_ = found.rows()
    assert source.isascii() and not target.isascii()
    (_, source, target), *_ = corpus("forecasts", reverse=True).rows()
    assert not source.isascii() and target.isascii()


def test_too_few_rows_to_split_ask_for_a_validation_file(tmp_path):
    with pytest.raises(AttendoError, match="`valid`"):
        _ = corpus(pairs_file(tmp_path, 3)).n_pairs


def test_languages_that_the_scripts_speak_against_are_named(tmp_path):
    pairs = [line.split("\t") for line in pairs_file(tmp_path, 60).read_text(encoding="utf-8").splitlines()]
    names = [str(tmp_path / "a.en"), str(tmp_path / "a.ja")]
    for side, name in enumerate(names):
        write(Path(name), "".join(f"{pair[side]}\n" for pair in pairs))

    def warned(*files, source, target, **options):
        said = []
        _ = corpus(*files, said=said, source_language=source, target_language=target, **options).report
        return said[1:]

    assert warned(*names, source="en", target="ja") == []
    assert warned(*names, source="ja", target="en", reverse=True) == []
    assert warned(*names, source="kl", target=None) == []  # Greenlandic, whose script is not in the table
    assert warned(tmp_path / "pairs.tsv", source="ja", target=None) == [
        "warning: `source_language` ja, but the source is Latin: give `reverse`"
    ]
    assert warned(*names, source="en", target="ru")[0].endswith("check the data, or fix `target_language`")
    swapped = {"source": "ja", "target": "en"}
    said = "`source_language` ja, but the source is Latin: swap the files, or give `reverse`"
    assert warned(*names, **swapped) == [f"warning: {said}"]  # what an older run goes on with
    lines = []
    with pytest.raises(AttendoError, match=f"^{said}$"):  # what a new one begins by
        _ = corpus(*names, said=lines, source_language="ja", target_language="en").size
    assert len(lines) == 1 and "warning" not in lines[0]
    with pytest.raises(AttendoError, match=r"remove `reverse`, or swap `source_language` and `target_language`$"):
        _ = corpus(*names, source_language="en", target_language="ja", reverse=True).size


RAIN = {
    "en": ("It rains in the north today, {}.", "She told us yesterday that nobody would come, {}."),
    "fr": ("Il pleut aujourd'hui dans le nord, {}.", "Elle nous a dit hier que personne ne viendrait, {}."),
    "de": ("Heute regnet es im Norden, {}.", "Sie hat uns gestern gesagt, dass niemand kommt, {}."),
    "da": ("Jeg ved ikke, hvad hun lavede i går, {}.", "Nu er de hjemme hos os efter deres arbejde, {}."),
    "nb": ("Jeg vet ikke hva hun gjorde i går, {}.", "Nå er de hjemme hos oss etter jobben sin, {}."),
}


def in_two_languages(tmp_path, source, target):
    sides = [[RAIN[side][n % 2].format(n) for n in range(60)] for side in (source, target)]
    return write(tmp_path / f"{source}{target}.tsv", "".join(map("{}\t{}\n".format, *sides)))


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("nb", "da"), ("de", "en")])
def test_languages_of_one_script_in_the_wrong_order_end_a_new_run(tmp_path, source, target):
    file = in_two_languages(tmp_path, source, target)
    right, wrong = (
        {"source_language": source, "target_language": target},
        f"^`source_language` {target}, but the source is ",
    )
    assert corpus(file, **right).size[0] > 0
    turned = {"source_language": target, "target_language": source}
    with pytest.raises(AttendoError, match=f"{wrong}.*: give `reverse`$"):
        _ = corpus(file, **turned).size
    assert corpus(file, reverse=True, **turned).size[0] > 0
    said = []
    _ = corpus(file, said=said, **right | {"source_language": "it"}).size
    assert said[1].startswith("warning: `source_language` it, but the source is ") and "check the data" in said[1]


@pytest.mark.parametrize("row", ["{0:03}-11 {0}:30", "w{0} w{1} w{0}", "a b c d {1}", "{0} {1}", "No. {0}: X{1}Y"])
def test_what_is_in_no_language_raises_no_alarm(tmp_path, row):
    file = write(tmp_path / "a.tsv", "".join(f"{row}\t{row}\n".format(n, n * n) for n in range(400)))
    said = []
    _ = corpus(file, said=said, source_language="en", target_language="fr").size
    assert not any("warning" in line for line in said)


@pytest.mark.parametrize(
    ("code", "likely"),
    [("english", "did you mean en?"), ("jp", "did you mean ja?"), ("xx", "use a code such as en, ja")],
)
def test_what_is_no_language_code_begins_no_run(tmp_path, code, likely):
    file = pairs_file(tmp_path, 60)
    with pytest.raises(AttendoError, match=rf"^`target_language` {code}: not a language code \(BCP 47\); {likely}"):
        _ = corpus(file, target_language=code).size
    assert corpus(file, target_language=code).n_pairs  # an older run goes on


def test_given_columns_are_those_of_the_direction_and_are_not_turned_again():
    data = PairData(train=("a.tsv",), columns="1,2", reverse=True)
    assert data.source([Path("b.tsv")]).reverse
    given = data.source([Path("b.tsv")], columns="2,1")
    assert (given.columns, given.reverse) == (("2", "1"), False)


@pytest.mark.parametrize("bad", ["a" + " " * 20_000 + "b", "a" * 20_000, "e" + "\u0301" * 9_000])
def test_a_row_without_end_neither_trains_nor_validates_and_is_said(tmp_path, bad):
    """Attention over half a million tokens would not end for hours; the tokenizer reads them in a second."""
    rows = [f"it rains in town {n}\tes regnet in {n}\n" for n in range(60)]
    train = write(tmp_path / "train.tsv", "".join([*rows[:30], f"{bad}\tb\n", *rows[30:], f"a\t{bad}\n"]))
    valid = write(tmp_path / "valid.tsv", "".join([*rows[:5], f"a\t{bad}\n"]))
    said = []
    found = corpus(train, said=said, valid=(str(valid),), max_tokens=100)
    tokenizer = train_tokenizer(found.texts(), TokenizerConfig(vocab_size=600))
    store = found.store(tokenizer, 100)
    assert sorted({*range(1, 63)} - {*store.row_numbers.tolist()}) == [31, 62]
    assert said[-1] == "2 pairs with more than 100 tokens skipped (lines 31, 62)"
    again = found.store(tokenizer, 100)  # from the cache
    assert again.facts == store.facts and said[-1] == said[-2]
    assert [len(part) for part in found.validation(10, tokenizer, 100)] == [5, 5]
    assert said[-1] == "1 of 6 validation pairs have more than 100 tokens and are not used"
    assert len(found.store(tokenizer)) == 62  # an older run's


def test_test_rows_are_looked_for_and_with_drop_left_out(tmp_path):
    file, test = pairs_file(tmp_path, 100), str(pairs_file(tmp_path, 8, "test.tsv"))
    valid = str(write(tmp_path / "valid.tsv", "".join(file.read_text("utf-8").splitlines(True)[90:95])))
    said = []
    told = corpus(file, said=said, against=(test,))
    assert told.n_pairs == 80 and said[0].endswith("; 8 leaks")
    tokenizer = train_tokenizer(told.texts(), TokenizerConfig(vocab_size=600))
    assert told.store(tokenizer).facts.key == corpus(file).store(tokenizer).facts.key
    left = corpus(file, against=(test,), valid=(valid,), drop="leaks")
    assert left.n_pairs == 87
    store = left.store(tokenizer)
    assert set(store.row_numbers.tolist()) == {*range(9, 91), *range(96, 101)}
    with Path(test).open("a", encoding="utf-8") as more:
        more.write("one\t一つ\n")
    again = corpus(file, against=(test,), valid=(valid,), drop="leaks").store(tokenizer)
    assert again.facts.key != store.facts.key


def test_test_rows_may_stand_in_two_parallel_files(tmp_path):
    file = pairs_file(tmp_path, 60)
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[:3]]
    sides = [str(write(tmp_path / f"test.{n}", "".join(f"{row[n]}\n" for row in rows))) for n in (0, 1)]
    valid = (str(pairs_file(tmp_path, 1, "valid.tsv")),)
    options = {"valid": valid, "drop": "leaks"}
    assert corpus(file, against=sides, columns="1,2", **options).n_pairs == 57
    assert corpus(*sides, against=(str(file),), **options).data.compared()[0].columns is None
    with pytest.raises(AttendoError, match="give both: `against` SOURCE `against` TARGET"):
        _ = corpus(file, against=sides[:1]).report
    with pytest.raises(AttendoError, match="not from 3"):
        corpus(file, against=(*sides, sides[0])).data.check()


def test_dropping_leaks_says_what_to_compare_with(tmp_path):
    file = str(pairs_file(tmp_path, 3))
    with pytest.raises(AttendoError, match=r"Give one with `against` or `valid`$"):
        PairData(train=(file,), drop="leaks").check()
    with pytest.raises(AttendoError, match="`against` SOURCE `against` TARGET, or `valid_source` and"):
        PairData(train=(file, file), drop="leaks").check()
