"""Run folders that an attacker made: each loads, or is refused in one line, and takes no memory beyond its files."""

import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import sys
from itertools import product
from pathlib import Path

import pytest
from command_line import attendo, refused
from golden_runs import GOLDEN, RUN

from attendo.bundle import load_bundle, load_model
from attendo.cli.reporting import escaping
from attendo.config import dump_toml, read_toml
from attendo.errors import AttendoError
from attendo.inference import load

FILES = ("card.json", "config.toml", "model.safetensors", "tokenizer.json")
BASES = sorted(GOLDEN.glob(f"format-1/*/{RUN}"))
ESCAPES = "\x1b]0;owned\x07\x1b[2Jlabel\u202eevil\u2066\u200f\x9b31m\r\x00"
NUMBERS = [0, -1, 1, 2, 3, 7, 1000, 10**9, 2**31, 2**63, 2**70, 10**400, -(2**63)]
NUMBERS += [1e9, 1e18, 1e308, -1e308, 1e-320]
VALUES = [*NUMBERS, float("nan"), float("inf"), -float("inf"), True, None, "", "text", ESCAPES, "a" * 5000]
VALUES += [[], {}, [1], ["x", 2], {"a": 1}, [[[]]], [None], {"": {}}]
VALUES += ["learned", "rotary", "sinusoidal", "relative", "decoder"]


def places(value, path=()):
    """The paths of all parts of JSON values, of long lists and tables only some."""
    found = [path] if path else []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in [*parts][:40]:
        found += places(part, (*path, key))
    return found


def changed(value, rng):
    """The value with a part replaced, removed, added or renamed."""
    value = json.loads(json.dumps(value))
    path = rng.choice(places(value))
    outer = value
    for key in path[:-1]:
        outer = outer[key]
    match rng.randrange(10):
        case 0:
            del outer[path[-1]]
        case 1 if isinstance(outer, dict):
            outer[rng.choice(["new", ESCAPES, "__class__", "d_model"])] = rng.choice(VALUES)
        case 2 if isinstance(outer, dict):
            outer[ESCAPES] = outer.pop(path[-1])
        case 3:
            outer[path[-1]] = [outer[path[-1]]]
        case _:
            outer[path[-1]] = rng.choice(VALUES)
    return value


def broken(data, rng):
    """The bytes cut, flipped, repeated, or others."""
    place = rng.randrange(len(data) + 1)
    match rng.randrange(6):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + rng.randbytes(1) + data[place + 1 :]
        case 2:
            return data[:place] + rng.randbytes(rng.randrange(64)) + data[place:]
        case 3:
            return data[:place] + ESCAPES.encode() + data[place:]
        case 4:
            return rng.choice([b"", b"\xff\xfe", b"null", b"[]", b"3", b'"a"', b"{", b"\x00" * 40, b"\xef\xbb\xbf"])
        case _:
            return data + data


def deep(rng):
    """JSON or TOML whose values are nested more deeply than a stack holds."""
    n = rng.choice([500, 5000, 100_000])
    forms = [
        b"[" * n + b"]" * n,
        b'{"a":' * n + b"1" + b"}" * n,
        b'{"format": 1, "task": ' + b"[" * n + b"]" * n + b"}",
        b"[model]\na = " + b"[" * n + b"]" * n + b"\n",
        b"[model]\na = " + b"{a=" * n + b"1" + b"}" * n + b"\n",
        b"[" + b".".join([b"a"] * n) + b"]\nx = 1\n",
        b"[model]\n" + b".".join([b"a"] * n) + b" = 1\n",
        b"[model]\nd_model = " + b"9" * n + b"\n",
        b"[model]\nd_model = 0x" + b"f" * n + b"\n",
    ]
    return rng.choice(forms)


class Hostile:
    """The files of one golden run, in memory, changed and written out again."""

    def __init__(self, base):
        self.data = {name: (base / name).read_bytes() for name in FILES}
        self.log = (base / "metrics.jsonl").read_bytes()
        self.tables = read_toml(base / "config.toml")
        weights = self.data["model.safetensors"]
        end = 8 + int.from_bytes(weights[:8], "little")
        self.header, self.numbers = json.loads(weights[8:end]), weights[end:]

    def written(self, folder):
        """Writes the run folder; the header names the hashes that its files have now."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in FILES:
            (folder / name).write_bytes(self.data[name])
        (folder / "metrics.jsonl").write_bytes(self.log)

    def config(self, tables):
        """Takes these tables; those that no TOML can hold as they are."""
        tables = {name: table for name, table in tables.items() if isinstance(table, dict)}
        try:
            text = dump_toml(tables)
        except Exception:  # noqa: BLE001 - a value without a TOML form, which is no matter here
            text = json.dumps(tables)
        self.data["config.toml"] = text.encode("utf-8", "replace")
        self.tables = tables

    def sign(self):
        """Brings the hashes in the header of the weights up to date, and with them the file."""
        facts = self.header.get("__metadata__")
        if isinstance(facts, dict):
            model = json.dumps(self.tables.get("model"), sort_keys=True)
            facts["config_sha256"] = hashlib.sha256(model.encode()).hexdigest()
            facts["tokenizer_sha256"] = hashlib.sha256(self.data["tokenizer.json"]).hexdigest()
            facts.pop("weights_sha256", None)
        text = json.dumps(self.header).encode()
        self.data["model.safetensors"] = len(text).to_bytes(8, "little") + text + self.numbers


def _config(run, rng):
    tables = run.tables
    names = [name for name in ("model", "decoding", "decoding", "masking", "embedding") if name in tables]
    name = rng.choice(names)
    for _ in range(rng.choice([1, 1, 2, 4])):
        tables = tables | {name: changed(tables[name], rng)} if tables.get(name) else tables
    run.config(tables)
    run.sign()


def _table(run, rng):
    run.config(changed(run.tables, rng))
    run.sign()


def _text(run, rng):
    name = rng.choice(FILES[:2] + FILES[3:])
    run.data[name] = deep(rng) if rng.random() < 0.4 else broken(run.data[name], rng)
    if name != "config.toml":
        run.sign()


def _card(run, rng):
    run.data["card.json"] = json.dumps(changed(json.loads(run.data["card.json"]), rng)).encode()


def _log(run, rng):
    *before, last = run.log.splitlines()
    line = json.dumps(changed(json.loads(last), rng)).encode() if rng.random() < 0.7 else broken(last, rng)
    run.log = b"\n".join([*before, line, b""])


def _tokenizer(run, rng):
    run.data["tokenizer.json"] = json.dumps(changed(json.loads(run.data["tokenizer.json"]), rng)).encode()
    run.sign()


def _header(run, rng):
    names = [name for name in run.header if name != "__metadata__"]
    name, other = rng.choice(names), rng.choice(names)
    entry = run.header[name]
    match rng.randrange(9):
        case 0:
            entry["shape"] = rng.choice([[], [0], [2**62, 2], [-1, 4], [10**9] * 3, ["4"], [1.5], entry["shape"][::-1]])
        case 1:
            entry["dtype"] = rng.choice(["F64", "I32", "BOOL", "F16", "BF16", "F8_E4M3", "U8", "X", 3, ESCAPES])
        case 2:
            entry["data_offsets"] = rng.choice([run.header[other]["data_offsets"], [0, 2**63], [-1, 4], [8, 4], [], 3])
        case 3:
            run.header[ESCAPES] = run.header.pop(name)
        case 4:
            run.header["__metadata__"] = rng.choice([{}, {"format": ESCAPES}, 3, [], {"a": 1}, {"format": None}])
        case 5:
            run.numbers = rng.choice(
                [b"\xff\xff\xff\x7f" * (len(run.numbers) // 4), run.numbers[:-4], b"", run.numbers * 2]
            )
        case 6:
            run.header = changed(run.header, rng)
        case 7:
            run.header |= {f"more.{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(2000)}
        case _:
            del run.header[name]
    run.sign()


def _weights(run, rng):
    data = broken(run.data["model.safetensors"], rng)
    if rng.random() < 0.3:
        data = (
            rng.choice([2**63, 2**62, len(data), 0, 1, 10**8, max(0, len(data) - 8)]).to_bytes(8, "little") + data[8:]
        )
    run.data["model.safetensors"] = data


KINDS = {
    "values of config.toml": _config,
    "tables of config.toml": _table,
    "bytes and nesting of texts": _text,
    "card.json": _card,
    "metrics.jsonl": _log,
    "tokenizer.json": _tokenizer,
    "header of the weights": _header,
    "bytes of the weights": _weights,
}


def hostile_run(folder, kind, seed):
    """Writes a run folder of this kind; the same for the same seed."""
    rng = random.Random(f"{kind} {seed}")
    run = Hostile(BASES[seed % len(BASES)])
    KINDS[kind](run, rng)
    run.written(folder)
    return folder


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
            assert not re.search(r"bug in attendo|alloc|memory", said), (kind, seed)
        outcome = attendo("info", folder)
        assert not COMMANDS.search(outcome.out + outcome.err), (kind, seed)
        assert "bug in attendo" not in outcome.err, (kind, seed, outcome.err)
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


@pytest.mark.some(1)
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
        with pytest.raises(AttendoError, match=rf"{key}|config.toml defines|not in both|position_reach|divisible"):
            used(folder)


@pytest.mark.parametrize(
    ("table", "values", "said"),
    [
        ("model", {"max_len": 1}, "max_len=1 is too small for tokenizer.json (expected at least 2)"),
        ("model", {"n_encoder_layers": 10**6}, "fewer than the layers in config.toml"),
        ("decoding", {"beam": 10**9}, "beam=1000000000 must be between 1 and 10,000"),
        ("decoding", {"length_penalty": 1e308}, "length_penalty=1e+308 must be between -20 and 20"),
        (
            "decoding",
            {"max_length_extra": 10**18},
            "max_length_extra=1000000000000000000 must be between 1 and 1,000,000",
        ),
        ("decoding", {"max_length_ratio": 1e9}, "max_length_ratio=1000000000.0 must be between 0 and 10,000"),
        ("decoding", {"min_length": 10**9}, "min_length=1000000000 must be between 0 and 1,000,000"),
        ("decoding", {"batch_tokens": -1}, "batch_tokens=-1 must be between 1 and 1,000,000,000"),
    ],
)
def test_a_setting_out_of_range_is_named(run, table, values, said):
    assert said in refused("translate", run(table, **values), "rain")


@pytest.mark.parametrize("text", ["[" * 10**5, "{a=" * 10**5, ".".join("a" * 10**5), '"b".' * 10**5, "9" * 5000])
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
