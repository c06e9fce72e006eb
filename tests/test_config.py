"""Settings: what is right comes through unchanged; what is wrong is named in one line with its remedy."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.config import build, dump_toml, override, read_toml, to_table
from attendo.errors import AttendoError


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Section:
    vocab_size: int
    d_model: int = 64
    n_heads: int = 4
    dropout: float = 0.1
    tie: bool = True
    kind: Literal["bpe", "word"] = "bpe"
    limit: int | None = None
    either: int | str = 0
    files: tuple[Path, ...] = ()
    columns: tuple[str, str] | None = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self):
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model = {self.d_model} is not divisible by n_heads = {self.n_heads}")


def refusal(call, *arguments):
    with pytest.raises(AttendoError) as caught:
        call(*arguments)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_table_becomes_a_section():
    table = {
        "vocab_size": 9,
        "dropout": 0,
        "files": ["a", "b"],
        "columns": ["en", "ja"],
        "inner": {"rate": 1e-05},
        "limit": 3,
    }
    section = build(Section, table, "model")
    assert section == Section(
        vocab_size=9,
        dropout=0.0,
        files=(Path("a"), Path("b")),
        columns=("en", "ja"),
        inner=Inner(rate=1e-05),
        limit=3,
    )
    assert isinstance(section.dropout, float)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"d_modle": 3}, "unknown key model.d_modle in F.toml; did you mean d_model?"),
        ({"inner": {"rat": 3}}, "unknown key model.inner.rat in F.toml; did you mean rate?"),
        ({"zzz": 3}, "unknown key model.zzz in F.toml; known keys: vocab_size, d_model, "),
        ({}, "model.vocab_size is missing in F.toml. Set it"),
        ({"vocab_size": "9"}, 'invalid value model.vocab_size = "9" in F.toml: input should be a valid int'),
        ({"vocab_size": 9.5}, "invalid value model.vocab_size = 9.5 in F.toml: input should be a valid int"),
        (
            {"vocab_size": True},
            "invalid value model.vocab_size = true in F.toml: input should be a valid int",
        ),
        ({"vocab_size": 9, "tie": 1}, "invalid value model.tie = 1 in F.toml: input should be a valid bool"),
        ({"vocab_size": 9, "either": 0.5}, "invalid value model.either = 0.5 in F.toml: input should be a "),
        (
            {"vocab_size": 9, "kind": "cbpe"},
            "invalid value model.kind = \"cbpe\" in F.toml: input should be 'bpe'",
        ),
        ({"vocab_size": 9, "inner": {"rate": "x"}}, 'invalid value model.inner.rate = "x" in F.toml: '),
        ({"vocab_size": 9, "inner": 3}, "invalid value model.inner = 3 in F.toml: "),
        ({"vocab_size": 9, "files": ["a", 3]}, "invalid value model.files = 3 in F.toml: "),
        ({"vocab_size": 9, "d_model": 63}, "model in F.toml: d_model = 63 is not divisible by n_heads = 4"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(table, line):
    assert refusal(build, Section, table, "F.toml [model]").startswith(line)


def test_a_table_need_not_be_in_a_file():
    line = refusal(build, Section, {"d_modle": 3}, "model")
    assert line == "unknown key model.d_modle; did you mean d_model?"
    assert refusal(build, Section, {}, "model") == "model.vocab_size is missing. Set it"


def test_a_date_is_no_setting():
    table = tomllib.loads("vocab_size = 2026-01-01")
    assert refusal(build, Section, table, "F.toml [model]").startswith("model in F.toml contains a date")


def test_a_section_survives_the_file(tmp_path):
    section = Section(
        vocab_size=9,
        files=(Path("a b"), Path("ü\n\x7f")),
        columns=("1", "2"),
        inner=Inner(rate=math.inf),
        either='"',
    )
    path = tmp_path / "config.toml"
    path.write_text(dump_toml({"model": to_table(section)}), encoding="utf-8")
    assert "limit" not in path.read_text()
    assert build(Section, read_toml(path)["model"], "model") == section


def test_a_setting_is_read_as_toml_or_taken_as_text():
    tables = {"model": {"d_model": 64}}
    assignments = ["model.d_model=128", "data.kind=word", "data.train=a=b", "model.tie = false", "x.y.z='3'"]
    assert override(tables, assignments) == {
        "model": {"d_model": 128, "tie": False},
        "data": {"kind": "word", "train": "a=b"},
        "x": {"y": {"z": "3"}},
    }
    assert override({}, ["a.b=1\nc = 2", "a.d=[1,"]) == {"a": {"b": "1\nc = 2", "d": "[1,"}}
    assert tables == {"model": {"d_model": 64}}


@pytest.mark.parametrize("assignment", ["d_model=128", "model.d_model", "", "=", ".a=3", "a.=3", "a b.c=3"])
def test_a_setting_of_another_form_is_refused(assignment):
    line = refusal(override, {}, [assignment])
    assert line == f"invalid setting {assignment!r} (expected section.key=value, for example model.d_model=128)"


def test_a_setting_inside_a_value_is_refused():
    assert "model.d_model is a value" in refusal(override, {"model": {"d_model": 1}}, ["model.d_model.x=3"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[model]\nd_model 3\n", "F.toml is not valid TOML: "),
        (b"name = '\xff'", "F.toml is not UTF-8 (byte 9). Save it as UTF-8"),
        (None, "F.toml: no such file. Give"),
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path, data, words):
    path = tmp_path / "F.toml"
    if data is not None:
        path.write_bytes(data)
    assert words in refusal(read_toml, path)


def test_a_byte_order_mark_and_crlf_are_no_matter(tmp_path):
    path = tmp_path / "F.toml"
    path.write_bytes(b"\xef\xbb\xbf[model]\r\nd_model = 3\r\n")
    assert read_toml(path) == {"model": {"d_model": 3}}


texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(texts, x, max_size=3))


@given(st.dictionaries(texts, st.dictionaries(texts, values, max_size=4), max_size=3))
def test_tables_survive_the_notation(tables):
    assert tomllib.loads(dump_toml(tables)) == tables


def test_what_toml_cannot_hold_is_refused():
    assert "Rename it" in refusal(dump_toml, {"data": {"file": "\udcff"}})
    with pytest.raises(TypeError, match="not TOML serializable"):
        dump_toml({"data": {"file": object()}})


def test_none_is_left_out_everywhere():
    assert tomllib.loads(dump_toml({"a": {"b": None, "c": {"d": None}}})) == {"a": {"c": {}}}
    assert to_table(dataclasses.replace(Section(vocab_size=9), inner=Inner()))["inner"] == {"rate": 0.1}
