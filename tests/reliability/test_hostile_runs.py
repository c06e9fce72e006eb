"""Run folders that an attacker made: each loads, or is refused in one line, and takes no memory beyond its files."""

import io
import json
import os
import re
import resource
import sys
from itertools import product
from pathlib import Path

import pytest
from command_line import attendo, refused
from hostile_runs import BASES, ESCAPES, KINDS, Hostile, hostile_run

from attendo.bundle import load_bundle, load_model
from attendo.cli.reporting import escaping
from attendo.errors import AttendoError
from attendo.inference import load

USES = {
    "Translator": lambda user: user.translate(["rain"]),
    "Classifier": lambda user: user.classify(["rain"]),
    "Generator": lambda user: user.generate("rain", max_tokens=4),
    "Embedder": lambda user: user.embed(["rain"]),
}
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
[TRANSLATION] = [base for base in BASES if base.parent.name == "translation"]


def used(folder):
    user = load(folder)
    USES[type(user).__name__](user)


@pytest.fixture
def memory():
    """A limit of 1 GiB above what the process has now, where the system knows such limits."""
    if not sys.platform.startswith("linux"):
        yield
        return
    for base in BASES:
        used(base)  # what is loaded or compiled once is not counted
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("n", [64, pytest.param(10_000, marks=pytest.mark.full)])
def test_any_folder_loads_or_is_refused_in_one_line(memory, tmp_path, n):
    for seed in range(n):
        kind = list(KINDS)[seed // len(BASES) % len(KINDS)]
        folder = hostile_run(tmp_path / "run", kind, seed)
        try:
            used(folder)
        except AttendoError as error:
            said = str(error)
            assert not re.search(r"fault in attendo|alloc|memory", said), (kind, seed)
        outcome = attendo("info", folder)
        assert not COMMANDS.search(outcome.out + outcome.err), (kind, seed)
        assert "fault in attendo" not in outcome.err, (kind, seed, outcome.err)
        if outcome.code:
            assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1), (kind, seed)


@pytest.fixture
def run(tmp_path):
    """A translation run whose tables can be changed; gives the folder."""

    def written(table: str, **values):
        hostile = Hostile(TRANSLATION)
        hostile.config(hostile.tables | {table: hostile.tables[table] | values})
        hostile.sign()
        hostile.written(tmp_path / "run")
        return tmp_path / "run"

    return written


SIZES = ("max_len", "vocab_size", "d_model", "d_ff", "n_heads", "head_dim", "position_buckets")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative"])
def test_a_size_that_the_weights_do_not_have_takes_no_memory(memory, run, positions):
    for key, value in product(SIZES, (10**9, 2**63, 1 << 23)):
        values = {key: value, "positions": positions}
        if positions == "relative" and key != "position_buckets":
            values |= {"position_buckets": 8, "position_reach": 16}
        folder = run("model", **values)
        if (key, value, positions) == ("max_len", 1 << 23, "sinusoidal"):
            used(folder)  # nothing in the files contradicts it, and nothing is computed so far ahead
            continue
        with pytest.raises(
            AttendoError, match=rf"{key}|config.toml makes|not in both|position_reach|divisible"
        ):
            used(folder)


@pytest.mark.parametrize(
    ("table", "values", "said"),
    [
        ("model", {"max_len": 1}, "max_len=1 is too small for tokenizer.json (expected at least 2)"),
        ("model", {"n_encoder_layers": 10**6}, "fewer than config.toml has layers"),
        ("decoding", {"beam": 10**9}, "beam is 1000000000 (expected 1 to 10,000)"),
        ("decoding", {"length_penalty": 1e308}, "length_penalty is 1e+308 (expected -20 to 20)"),
        (
            "decoding",
            {"max_length_extra": 10**18},
            "max_length_extra is 1000000000000000000 (expected 1 to 1,000,000)",
        ),
        ("decoding", {"max_length_ratio": 1e9}, "max_length_ratio is 1000000000.0 (expected 0 to 10,000)"),
        ("decoding", {"min_length": 10**9}, "min_length is 1000000000 (expected 0 to 1,000,000)"),
        ("decoding", {"batch_tokens": -1}, "batch_tokens is -1 (expected 1 to 1,000,000,000"),
    ],
)
def test_a_setting_out_of_range_is_named(run, table, values, said):
    assert said in refused("translate", run(table, **values), "rain")


@pytest.mark.parametrize(
    "text", ["[" * 10**5, "{a=" * 10**5, ".".join("a" * 10**5), '"b".' * 10**5, "9" * 5000]
)
def test_what_is_nested_too_deeply_is_refused_at_once(run, text):
    path = run("model") / "config.toml"
    head = f"[model]\n{text} = 1\n" if text[0] in 'a"' else f"[model]\na = {text}\n"
    path.write_text(head)
    assert re.search(r"config.toml (is nested too deeply|is not valid TOML)", refused("info", path.parent))
    path.write_text(f"[{text}]\n")
    refused("info", path.parent)


def test_names_labels_and_values_command_no_terminal(tmp_path):
    hostile = Hostile(next(base for base in BASES if base.parent.name == "classification"))
    card = json.loads(hostile.data["card.json"])
    card |= {"labels": {ESCAPES: 3, "other": 4}, "versions": {ESCAPES: ESCAPES}, "init_from": ESCAPES}
    hostile.data["card.json"] = json.dumps(card).encode()
    folder = tmp_path / "run"
    hostile.written(folder)
    outcome = attendo("info", folder)
    assert outcome.code == 0 and "\\u{1b}]0;owned" in outcome.out and "\\u{202e}" in outcome.out
    assert not COMMANDS.search(outcome.out + outcome.err)
    said = attendo("info", tmp_path / ESCAPES.replace("\x00", "").replace("/", "")).err
    assert "\\u{1b}" in said and not COMMANDS.search(said)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_a_terminal_has_escapes_and_a_pipe_the_texts_as_they_are(monkeypatch):
    for stream, wanted in (
        (Terminal(), "\\u{1b}[2J\\u{202e}\u2068\t\n"),
        (io.StringIO(), "\x1b[2J\u202e\u2068\t\n"),
    ):
        monkeypatch.setattr("sys.stdout", stream)
        with escaping():
            sys.stdout.write("\x1b[2J\u202e\u2068\t\n")
        assert stream.getvalue() == wanted
        sys.stdout.write("\x1b")
        assert stream.getvalue() == wanted + "\x1b"


def test_a_file_that_changes_while_it_is_read_is_damaged(run, monkeypatch):
    folder = run("model")
    bundle = load_bundle(folder)
    path = folder / "model.safetensors"
    for data in (b"", b"\xff" * 8, path.read_bytes()[:200], len(b"{}").to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        with pytest.raises(AttendoError, match=r"model\.safetensors (is damaged|was trained with)"):
            load_model(folder, bundle)
