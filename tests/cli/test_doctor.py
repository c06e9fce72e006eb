"""attendo doctor: its exit code, and what it compares with."""

import json

import pytest
from command_line import attendo, refused
from tiny_corpus import pairs_file


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"))


def test_the_doctor_ends_with_1_if_it_found_something(tmp_path, pairs):
    clean = attendo("doctor", pairs)
    assert (clean.code, clean.err) == (0, "")
    assert all(len(line) <= 80 for line in clean.out.splitlines()[1:])
    leaking = tmp_path / "test.tsv"
    leaking.write_text(pairs.read_text().splitlines()[3] + "\nrain\t雨\n")
    found = attendo("doctor", pairs, "--against", leaking, "--json")
    assert found.code == 1
    assert json.loads(found.out)["findings"]["leaks"]["lines"] == [4]


def test_the_doctor_compares_with_two_parallel_files(tmp_path, pairs):
    rows = [line.split("\t") for line in pairs.read_text().splitlines()]
    held_out = [(rows[3][0], "雨"), ("rain", "雨")]
    for side, name in enumerate(("test.en", "test.ja")):
        (tmp_path / name).write_bytes("".join(f"{pair[side]}\r\n" for pair in held_out).encode())
    files = "--against", tmp_path / "test.en", "--against", tmp_path / "test.ja"
    found = json.loads(attendo("doctor", pairs, *files, "--json").out)
    assert found["findings"]["leaks"]["lines"] == [4]
    assert found["against"]["used"] == 2
    assert "Give a table as a single file" in refused("doctor", pairs, "--against", pairs, "--against", pairs)
    both = "for two parallel files give both: --against SOURCE --against TARGET"
    assert both in refused("doctor", pairs, *files[:2])
    assert "not from 3" in refused("doctor", pairs, *files, "--against", tmp_path / "test.ja")


def test_what_windows_adds_to_text_files_is_said_to_be_taken_off(tmp_path, pairs):
    rows = [line.split("\t") for line in pairs.read_text().splitlines()]
    for side, name in enumerate(("a.en", "a.ja")):
        text = "".join(f"{row[side]}\r\n" for row in rows)
        (tmp_path / name).write_bytes(text.encode("utf-8-sig" if side else "utf-8"))
    clean = attendo("doctor", tmp_path / "a.en", tmp_path / "a.ja")
    said = "  byte order marks and Windows line endings are removed while reading"
    assert clean.code == 0 and clean.out.splitlines()[2] == said and len(said) <= 80
    assert "are removed" not in attendo("doctor", pairs).out


def test_a_table_that_may_be_of_labelled_texts_is_told_how_to_say_so(tmp_path):
    table = tmp_path / "tickets.csv"
    table.write_text("id,category,body\n1,bill,The invoice is wrong.\n")
    assert refused("doctor", table).endswith(
        "Choose with --columns source=NAME,target=NAME for pairs, label=NAME,text=NAME for labeled texts"
    )


def test_pairs_that_look_like_labels_are_told_the_columns_for_labels(tmp_path, pairs):
    rows = [("snow" if n % 3 else "rain", f"it will be number {n} .") for n in range(40)]
    table = tmp_path / "labels.tsv"
    for order, side, columns in ((1, "source", "label=1,text=2"), (-1, "target", "label=2,text=1")):
        table.write_text("".join("\t".join(row[::order]) + "\n" for row in rows))
        said = f"  {side}: only 2 different values; for labels use --columns {columns}"
        assert said in attendo("doctor", table).out.splitlines()
        assert "2 labels" in attendo("doctor", table, "--columns", columns).out
    assert json.loads(attendo("doctor", table, "--json").out)["like_labels"]["columns"] == "label=2,text=1"
    assert "for labels use" not in attendo("doctor", pairs).out
    table.write_text("".join(f"{label}\tyes {n % 5}\n" for n, (label, _) in enumerate(rows)))
    assert "for labels use" not in attendo("doctor", table).out  # no side has texts
