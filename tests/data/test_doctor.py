"""Each check of the data doctor finds what was put in and nothing else; dropping is accounted for."""

import random
import resource
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.data import doctor, doctor_checks
from attendo.data.corpora import PairSource, read_pairs
from attendo.data.doctor import even_sample, examine, filtered, parse_drop
from attendo.data.doctor_checks import RECORD, RowTable, later_rows
from attendo.data.doctor_report import CHECKS, OTHER_WAY_ROUND, Report
from attendo.data.row_report import RowReport
from attendo.data.scripts import SCRIPTS, code_points, scripts_and_controls
from attendo.errors import AttendoError

Rows = list[tuple[str, str]]


def source_of(path: Path, rows: Rows) -> PairSource:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8", newline="")
    return PairSource((path,))


def found(report: Report) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {f.check.name: (f.count, f.lines) for f in report.findings if f.count}


def spoken(rng: random.Random, letters: str, words: int = 8) -> str:
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(words))


def two_languages(n_rows: int) -> Rows:
    """Pairs in two made-up languages of one script, which use the same letters unequally often."""
    rng = random.Random(7)
    return [(spoken(rng, "aaabeeostrnlaeot"), spoken(rng, "chschungzwieaen")) for _ in range(n_rows)]


def clean_japanese(n_rows: int) -> Rows:
    rng = random.Random(3)
    return [
        (spoken(rng, "abcdefghij", 5), "".join(rng.choices("あいうえおかきくけこ日本", k=14)) + "。")
        for _ in range(n_rows)
    ]


# --- finding ----------------------------------------------------------------------------------------------


def test_clean_data_gives_no_alarm(tmp_path):
    for rows in (clean_japanese(300), two_languages(1000)):
        report = examine(source_of(tmp_path / "a.tsv", rows), source_of(tmp_path / "b.tsv", [("other", "andere")]))
        assert found(report) == {}
        assert not report.found
        assert all(not finding.not_checked for finding in report.findings)


def test_each_trouble_is_found_with_its_lines(tmp_path):
    rows = clean_japanese(200)
    rows[11] = rows[2]
    rows[50] = rows[2]
    rows[12] = (rows[3][0].upper() + " 7!", rows[3][1].replace("。", " ! "))
    rows[13] = (rows[4][0], "これは別の訳です。")
    rows[14] = (rows[5][0], rows[14][1])
    rows[20] = (rows[20][1], rows[20][0])
    rows[21] = (rows[21][0], rows[21][0])
    rows[22] = (rows[22][0], "Совсем другой язык")
    rows[23] = (rows[23][0], "短" * 200)
    rows[24] = (rows[24][0] + "\x85", rows[24][1])
    rows[25] = (rows[25][0], unicodedata.normalize("NFD", "が" + rows[25][1]))
    report = examine(
        source_of(tmp_path / "a.tsv", rows), source_of(tmp_path / "b.tsv", [(rows[30][0], "x"), ("no", "no")])
    )
    assert found(report) == {
        "duplicates": (2, (12, 51)),
        "near-duplicates": (1, (13,)),
        "leaks": (1, (31,)),
        "several-targets": (2, (14, 15)),
        "length-ratio": (1, (24,)),
        "swapped": (1, (21,)),
        "untranslated": (1, (22,)),
        "wrong-script": (1, (23,)),
        "control-characters": (1, (25,)),
        "normalization": (1, (26,)),
    }
    assert report.found
    assert (report.source.script, report.target.script) == ("Latin", "Japanese")


def test_line_breaks_and_tabs_in_quoted_fields_are_no_control_characters(tmp_path):
    rows = [f'"{source[:9]}\r\n\t{source[9:]}","{target}"' for source, target in clean_japanese(200)]
    path = tmp_path / "a.csv"
    path.write_bytes("\r\n".join(["source,target", *rows, '"a\bb","あいうえお"', ""]).encode())
    assert found(examine(PairSource((path,))))["control-characters"] == (1, (402,))


def test_swapped_rows_of_one_script_are_found_by_their_letters(tmp_path):
    rows = two_languages(600)
    swapped = set(range(10, 600, 40))
    rows = [row[::-1] if i in swapped else row for i, row in enumerate(rows)]
    report = examine(source_of(tmp_path / "a.tsv", rows), drop=parse_drop("swapped"))
    assert {line - 1 for line, verdict in enumerate(report.verdicts) if verdict} == swapped


def test_columns_of_one_language_are_not_called_swapped(tmp_path):
    rng = random.Random(1)
    rows = [(spoken(rng, "abcdefgh"), spoken(rng, "abcdefgh")) for _ in range(1000)]
    report = examine(source_of(tmp_path / "a.tsv", rows))
    assert found(report) == {}
    reasons = {finding.check.name: finding.not_checked for finding in report.findings if finding.not_checked}
    assert reasons == {
        "leaks": "no file to compare with",
        "swapped": "the columns are too alike, or there are too few rows",
    }
    assert any("swapped: not checked" in line for line in report.lines())


def test_japanese_cut_into_words_by_spaces_is_found_on_either_side(tmp_path):
    rows = clean_japanese(60)
    rows[5:] = [(english, " ".join(japanese)) for english, japanese in rows[5:]]
    for turned in (rows, [row[::-1] for row in rows]):
        report = examine(source_of(tmp_path / "a.tsv", turned))
        assert found(report) == {"spaced": (55, (6, 7, 8))}
        assert report.lines()[-1] == f"             ({CHECKS[-1].instead})" and report.found
        assert report.as_json()["findings"]["spaced"]["fix"].startswith("remove the spaces")


@pytest.mark.parametrize(
    "text",
    [
        "今日は雨です。 明日は晴れです。",
        "今日は雨です　明日は晴れです　寒くなります",
        "私は Windows と Linux を使います",
        "山田 太郎",
        "วันนี้ฝนตกหนักมาก พรุ่งนี้แดดออกทั้งวัน และอากาศจะเย็นลงมาก",
        "내일은 비가 올 것이다",
        "trời sẽ mưa vào ngày mai",
    ],
)
def test_spaces_that_a_language_writes_are_no_alarm(tmp_path, text):
    rows = [(f"row {n}", f"{text}{n}") for n in range(20)]
    assert "spaced" not in found(examine(source_of(tmp_path / "a.tsv", rows)))


def test_rows_the_reader_skips_are_in_the_account(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"one\teins\n\xff\tx\n\ntwo\tzwei\n")
    report = examine(PairSource((path,)))
    assert (report.row_report.read, report.row_report.used, report.row_report.n_skipped) == (4, 2, 2)
    assert report.found
    with pytest.raises(AttendoError, match=r"a\.tsv:2: invalid UTF-8"):
        examine(PairSource((path,)), strict=True)


@pytest.mark.parametrize(
    ("text", "script", "odd"),
    [
        ("It will rain, 12 °C", "Latin", False),
        ("明日は雨", "Japanese", False),
        ("明天会下雨", "Han", False),
        ("내일은 비가 온다", "Hangul", False),
        ("Завтра дождь", "Cyrillic", False),
        ("می\u200cخواهم", "Arabic", False),
        ("क्\u200dषत्रिय", "Devanagari", False),
        ("family \U0001f468\u200d\U0001f469\u200d\U0001f467", "Latin", False),
        *((f"odd{odd}inside", "Latin", True) for odd in "\u200b\u00ad\ufeff\u2028\x07\ufffd"),
        ("tab\tand\nbreak", "Latin", False),
        ("12:30", "none", False),
        ("OK", "none", False),
        ("half половин", "Cyrillic", False),
        ("halfhalf половин", "Latin", False),
    ],
)
def test_scripts_and_odd_characters(text, script, odd):
    codes, _, flags = scripts_and_controls(code_points(["x", text, "x"]))
    assert (SCRIPTS[codes[1]], bool(flags[1])) == (script, odd)
    assert not flags[0]
    assert not flags[2]


# --- comparing rows ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.randoms())
def test_later_rows_agree_with_a_plain_loop(keys, rng):
    records = np.zeros(len(keys), RECORD)
    order = list(range(len(keys)))
    rng.shuffle(order)
    for place, line in enumerate(order):
        records[place]["line"], records[place]["source"], records[place]["target"] = line, *keys[line]
    equal, variant = later_rows(records, ("source",), ("target",))
    pairs, sources = set(), set()
    for line, (source, target) in enumerate(keys):
        place = order.index(line)
        assert equal[place] == ((source, target) in pairs)
        assert variant[place] == (source in sources and (source, target) not in pairs)
        pairs.add((source, target))
        sources.add(source)


@pytest.mark.parametrize("rows", [clean_japanese(60), two_languages(1000)], ids=["scripts", "letters"])
def test_rows_to_compare_with_that_stand_the_other_way_round_are_no_safety(tmp_path, rows):
    source = source_of(tmp_path / "a.tsv", rows)
    test = rows[:9]
    report = examine(source, source_of(tmp_path / "b.tsv", [(target, source) for source, target in test]))
    [told] = [line for line in report.lines() if "leaks" in line]
    assert told.strip() == f"–  leaks: not checked, {OTHER_WAY_ROUND}" and len(told) <= 80
    assert report.found and report.summary().endswith(f"; leaks not checked, {OTHER_WAY_ROUND}")
    right = examine(source, source_of(tmp_path / "b.tsv", test))
    assert found(right)["leaks"][0] == 9 and not right.against_reversed


def test_a_table_in_files_equals_one_in_memory(tmp_path, monkeypatch):
    rng = random.Random(5)
    rows = clean_japanese(3000)
    rows += [rng.choice(rows) for _ in range(200)]
    train, test = source_of(tmp_path / "a.tsv", rows), source_of(tmp_path / "b.tsv", rows[::70])
    drop = parse_drop("duplicates,leaks")
    in_memory = examine(train, test, drop)
    monkeypatch.setattr(doctor_checks, "HELD_ROWS", 500)
    monkeypatch.setattr(doctor, "_BATCH_ROWS", 128)
    in_files = examine(train, test, drop)
    assert in_files == in_memory
    assert found(in_files)["duplicates"][0] == 200


def test_a_table_spreads_equal_sources_into_equal_buckets(monkeypatch):
    monkeypatch.setattr(doctor_checks, "HELD_ROWS", 100)
    rng = np.random.default_rng(0)
    with RowTable() as table:
        for first in range(0, 1000, 50):
            records = np.zeros(50, RECORD)
            records["line"] = np.arange(first, first + 50)
            records["near_source"] = rng.integers(-(2**62), 2**62, 50)
            table.append(records)
        buckets = list(table.buckets())
    assert sorted(np.concatenate([bucket["line"] for bucket in buckets])) == list(range(1000))
    for number, bucket in enumerate(buckets):
        assert (bucket["near_source"] % doctor_checks.N_BUCKETS == number).all()


@given(st.integers(0, 200), st.integers(1, 20).map(lambda n: 2 * n))
def test_the_sample_is_even(n_rows, most):
    sample = even_sample(((i, str(i), "") for i in range(n_rows)), most)
    positions = [int(source) for source, _ in sample]
    assert min(n_rows, most // 2) <= len(sample) <= most
    if len(positions) > 1:
        assert positions == list(range(0, positions[-1] + 1, positions[1]))
        assert n_rows - positions[-1] <= positions[1]


# --- dropping ---------------------------------------------------------------------------------------------


def test_dropped_rows_are_skipped_with_a_reason_and_the_rest_is_sound(tmp_path):
    rows = clean_japanese(100)
    rows += [rows[0], rows[1], rows[1]]
    train = source_of(tmp_path / "a.tsv", [*rows, ("", "x")])
    test = source_of(tmp_path / "b.tsv", [rows[1], rows[5]])
    report = examine(train, test, parse_drop("leaks, duplicates"))
    row_report = RowReport(train.name)
    kept = [(s, t) for _, s, t in filtered(read_pairs(train, row_report=row_report), report, row_report)]
    assert (row_report.read, row_report.used, len(kept)) == (104, 98, 98)
    assert {reason: (e.count, e.lines) for reason, e in row_report.skipped.items()} == {
        "leak": (2, [2, 6]),
        "duplicate": (3, [101, 102, 103]),
        "no source": (1, [104]),
    }
    assert found(examine(source_of(tmp_path / "c.tsv", kept), test)) == {}
    assert "3 duplicates (dropped), 4 leaks (dropped)" in report.summary()


def test_dropping_everything_or_from_a_changed_file_is_an_error(tmp_path):
    source = source_of(tmp_path / "a.tsv", [("same", "same")] * 5)
    report = examine(source, drop=parse_drop("untranslated"))
    row_report = RowReport(source.name)
    with pytest.raises(AttendoError, match=r"none of 5 rows can be used: 5 untranslated copy.*`drop`"):
        list(filtered(read_pairs(source, row_report=row_report), report, row_report))
    longer = source_of(tmp_path / "a.tsv", [("one", "eins")] * 9)
    with pytest.raises(AttendoError, match=r"a\.tsv:6: the file changed"):
        list(filtered(read_pairs(longer), report, RowReport("a.tsv", read=9, used=9)))


def test_parse_drop():
    assert parse_drop("leaks,duplicates, swapped") == {"leaks", "duplicates", "swapped"}
    every = {check.name for check in CHECKS} - {"spaced"}
    assert parse_drop(",".join(every)) == every
    for wrong, said in {
        "duplicate": "no such check; did you mean duplicates",
        "xyz": "no such check; known checks: duplicates, near-duplicates, leaks",
        "spaced": "this would remove most rows. Instead, remove the spaces",
    }.items():
        with pytest.raises(AttendoError, match=f"`drop` {wrong}: {said}"):
            parse_drop(wrong)


def test_leaks_need_another_file(tmp_path):
    with pytest.raises(AttendoError, match="`drop` leaks requires a second file"):
        examine(source_of(tmp_path / "a.tsv", [("one", "eins")]), drop=parse_drop("leaks"))


# --- reporting --------------------------------------------------------------------------------------------


def test_the_report_in_words_and_as_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = clean_japanese(50)
    source = source_of(Path("a.tsv"), [rows[0], *rows, *rows, *rows, ("one", "")])
    report = examine(source, source_of(Path("b.tsv"), rows[:2]))
    lines = report.lines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "152 rows read, 151 used, 1 skipped" in text
    assert "1  no target, line 152" in text
    assert "101  duplicates" in text
    assert "lines 2, 52, 53, …  (`drop` duplicates)" in text
    assert "7  leaks" in text
    assert report.summary() == (
        "a.tsv: 152 rows read, 151 used, 1 skipped (1 no target: line 152); 101 duplicates, 7 leaks"
    )
    value = report.as_json()
    assert value["account"]["read"] == 152
    assert value["findings"]["duplicates"] == {
        "count": 101,
        "lines": [2, 52, 53],
        "not_checked": "",
        "fix": "`drop` duplicates",
    }
    assert set(value["findings"]) == {check.name for check in CHECKS}


def test_length_ratios(tmp_path):
    rows = [("x" * 100, "y" * length) for length in range(50, 251)]
    low, middle, high = examine(source_of(tmp_path / "a.tsv", rows)).ratios
    assert low == pytest.approx(0.52, rel=0.02)
    assert middle == pytest.approx(1.5, rel=0.02)
    assert high == pytest.approx(2.48, rel=0.02)


usual = st.text(st.characters(exclude_characters="\t\n\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(st.tuples(usual, usual), min_size=1, max_size=20))
def test_any_text_is_examined(tmp_path_factory, rows):
    usable = [row for row in rows if row[0].strip() and row[1].strip() and not row[1].endswith("\r")]
    if usable:
        folder = tmp_path_factory.mktemp("any")
        report = examine(source_of(folder / "a.tsv", usable), source_of(folder / "b.tsv", usable))
        assert report.row_report.used == len(usable)
        counts = {finding.check.name: finding.count for finding in report.findings}
        assert counts["duplicates"] == len(usable) - len(set(usable))
        assert counts["leaks"] == len(usable)


@pytest.mark.full
def test_a_million_pairs_in_a_minute_and_constant_memory(tmp_path):
    rng = random.Random(0)
    words = [spoken(rng, "abcdefghijklmnop", 1) for _ in range(5000)]
    source = source_of(tmp_path / "a.tsv", [])
    with source.files[0].open("w", encoding="utf-8") as file:
        for _ in range(1_000_000):
            file.write(" ".join(rng.choices(words, k=10)) + "\t" + " ".join(rng.choices(words, k=10)) + "\n")
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert examine(source).row_report.used == 1_000_000
    assert time.process_time() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
