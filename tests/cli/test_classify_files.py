"""attendo classify --input: what a table holds goes into another one, row by row."""

import csv
import json

import pytest
from command_line import attendo, refused
from tiny_classifiers import COUNTS, config, saved

import attendo as library
from attendo.data.corpora import read_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    card = {"task": "classification", "labels": COUNTS}
    return saved(tmp_path_factory.mktemp("classifier") / "run", config(), card)


def test_a_table_of_texts_gets_its_labels(folder, tmp_path):
    table, out = tmp_path / "new.csv", tmp_path / "labels.csv"
    table.write_text('id,body\n1,"it will\nsnow ."\n2,\n3,rain\n4,a,b\n')
    asked = ["classify", folder, "--input", table, "--output", out, "--columns", "text=body"]
    outcome = attendo(*asked)
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert f"{table}: 4 rows read, 2 used, 2 skipped (1 no text: line 4, " in outcome.err
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = library.load(folder).classify(["it will\nsnow .", "rain"])
    assert [(row["line"], row["label"], row["text"]) for row in rows] == [
        ("2", found[0].label, "it will\nsnow ."),
        ("4", "", ""),
        ("5", found[1].label, "rain"),
        ("6", "", ""),
    ]
    assert [row["probability"] for row in rows] == [
        f"{found[0].probability:.4f}",
        "",
        f"{found[1].probability:.4f}",
        "",
    ]
    assert refused(*asked) == f"{out} already exists. Choose another name, or remove it"
    unknown = refused(*asked[:4], "--output", tmp_path / "b.csv", "--columns", "text")
    assert "has no column 'text' (found: 'id', 'body'). Fix --columns, or use column numbers" in unknown
    assert "must end in .csv, .tsv, .jsonl, .parquet, .xlsx" in refused(*asked[:4], "--output", tmp_path / "a.txt")
    as_json = [*asked[:4], "--json", "--columns", "text=body", "--keep"]
    lines = [json.loads(line) for line in attendo(*as_json, "id").out.splitlines()]
    assert [(line["line"], line["id"], line["label"]) for line in lines] == [
        (2, "1", found[0].label), (4, "2", None), (5, "3", found[1].label), (6, "", None)
    ]  # fmt: skip
    assert lines[0]["probabilities"] == pytest.approx(found[0].probabilities)
    table.write_text("body,cut\nrain,1\n")
    assert "already has a column 'cut'" in refused(*as_json, "cut")
    assert "--json and --output cannot be combined" in refused(*asked, "--json")


@pytest.mark.parametrize("ends", [(".csv", ".xlsx"), (".xlsx", ".parquet")])
def test_a_spreadsheet_is_labeled_like_a_csv_file_with_a_byte_order_mark(folder, tmp_path, ends):
    tables = {end: (tmp_path / f"new{end}", tmp_path / f"labels{end}") for end in ends}
    rows = [("id", "body"), ("=7", "rain"), ("@8", "snow")]
    for table, _ in tables.values():
        if table.suffix == ".csv":
            table.write_text("".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8-sig")
        else:
            book = pytest.importorskip("openpyxl").Workbook()
            for row in rows:
                book.active.append(row)
            book.active["A2"].data_type = "s"
            book.save(table)
    (source, _), (_, out) = tables[ends[0]], tables[ends[1]]
    asked = ["--input", source, "--output", out, "--columns", "text=body", "--keep", "id"]
    outcome = attendo("classify", folder, *asked)
    assert outcome.code == 0, outcome.err
    written = read_rows(out, ("text", "label", "line"), ("id", "label", "text"))
    found = library.load(folder).classify(["rain", "snow"])
    assert [row.fields for row in written] == [("=7", found[0].label, "rain"), ("@8", found[1].label, "snow")]


def test_columns_of_the_input_are_kept_before_what_was_found(folder, tmp_path):
    table, lines = tmp_path / "new.csv", tmp_path / "new.txt"
    table.write_text("id,price,text\n7,,rain\n8,0.5,\n9,1\n")
    jsonl = tmp_path / "new.jsonl"
    jsonl.write_text('{"id": 7, "text": "rain"}\n{"id": 8, "price": 0.5, "text": null}\n{"id": 9}\n')
    lines.write_text("rain\n")
    start = ["classify", folder, "--input"]
    for file, kept in ((table, "id,price"), (jsonl, "id, price")):
        out = tmp_path / f"{file.suffix[1:]}.csv"
        outcome = attendo(*start, file, "--output", out, "--columns", "text=text", "--keep", kept)
        assert outcome.code == 0, outcome.err
        assert "3 rows read, 1 used, 2 skipped (1 no text: line " in outcome.err
        with out.open(newline="") as written:
            rows = list(csv.DictReader(written))
        assert list(rows[0]) == ["id", "price", "line", "label", "probability", "text"]
        told = [(row["id"], row["price"], row["text"], row["label"] != "") for row in rows]
        assert told == [("7", "", "rain", True), ("8", "0.5", "", False), ("", "", "", False)]
    end = ["--output", tmp_path / "b.csv", "--keep"]
    assert "'opened' (found: 'id', 'price', 'text'). Fix --columns or --keep" in refused(
        *start, table, "--columns", "3", *end, "id,opened"
    )
    assert "already has a column 'label'. Give this column by its number" in refused(*start, table, *end, "label")
    assert "one column is named twice" in refused(*start, table, *end, "id,id")
    assert "for example id,opened" in refused(*start, table, *end, "id,")
    assert refused(*start, lines, *end, "id") == f"{lines}: a text file has no columns. Remove --keep"
