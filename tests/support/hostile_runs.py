"""Run folders as an attacker would make them: golden runs with one thing in them changed, and hashed anew."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden_runs import GOLDEN, RUN

from attendo.config import dump_toml, read_toml

FILES = ("card.json", "config.toml", "model.safetensors", "tokenizer.json")
BASES = sorted(GOLDEN.glob(f"format-1/*/{RUN}"))
ESCAPES = "\x1b]0;owned\x07\x1b[2Jlabel\u202eevil\u2066\u200f\x9b31m\r\x00"
NUMBERS = [
    0,
    -1,
    1,
    2,
    3,
    7,
    1000,
    10**9,
    2**31,
    2**63,
    2**70,
    10**400,
    -(2**63),
    1e9,
    1e18,
    1e308,
    -1e308,
    1e-320,
]
VALUES = [
    *NUMBERS,
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
    None,
    "",
    "text",
    ESCAPES,
    "a" * 5000,
    [],
    {},
]
VALUES += [
    [1],
    ["x", 2],
    {"a": 1},
    [[[]]],
    [None],
    {"": {}},
    "learned",
    "rotary",
    "sinusoidal",
    "relative",
    "decoder",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of JSON values, of long lists and tables only some."""
    found = [path] if path else []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in [*parts][:40]:
        found += places(part, (*path, key))
    return found


def changed(value: Any, rng: random.Random) -> Any:
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


def broken(data: bytes, rng: random.Random) -> bytes:
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
            return rng.choice(
                [b"", b"\xff\xfe", b"null", b"[]", b"3", b'"a"', b"{", b"\x00" * 40, b"\xef\xbb\xbf"]
            )
        case _:
            return data + data


def deep(rng: random.Random) -> bytes:
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

    def __init__(self, base: Path):
        self.data = {name: (base / name).read_bytes() for name in FILES}
        self.log = (base / "metrics.jsonl").read_bytes()
        self.tables = read_toml(base / "config.toml")
        weights = self.data["model.safetensors"]
        end = 8 + int.from_bytes(weights[:8], "little")
        self.header, self.numbers = json.loads(weights[8:end]), weights[end:]

    def written(self, folder: Path) -> None:
        """Writes the run folder; the header names the hashes that its files have now."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in FILES:
            (folder / name).write_bytes(self.data[name])
        (folder / "metrics.jsonl").write_bytes(self.log)

    def config(self, tables: Any) -> None:
        """Takes these tables; those that no TOML can hold as they are."""
        tables = {name: table for name, table in tables.items() if isinstance(table, dict)}
        try:
            text = dump_toml(tables)
        except Exception:  # noqa: BLE001 - a value without a TOML form, which is no matter here
            text = json.dumps(tables)
        self.data["config.toml"] = text.encode("utf-8", "replace")
        self.tables = tables

    def sign(self) -> None:
        """Brings the hashes in the header of the weights up to date, and with them the file."""
        facts = self.header.get("__metadata__")
        if isinstance(facts, dict):
            model = json.dumps(self.tables.get("model"), sort_keys=True)
            facts["config_sha256"] = hashlib.sha256(model.encode()).hexdigest()
            facts["tokenizer_sha256"] = hashlib.sha256(self.data["tokenizer.json"]).hexdigest()
            facts.pop("weights_sha256", None)
        text = json.dumps(self.header).encode()
        self.data["model.safetensors"] = len(text).to_bytes(8, "little") + text + self.numbers


def _config(run: Hostile, rng: random.Random) -> None:
    tables = run.tables
    names = [name for name in ("model", "decoding", "decoding", "masking", "embedding") if name in tables]
    name = rng.choice(names)
    for _ in range(rng.choice([1, 1, 2, 4])):
        tables = tables | {name: changed(tables[name], rng)} if tables.get(name) else tables
    run.config(tables)
    run.sign()


def _table(run: Hostile, rng: random.Random) -> None:
    run.config(changed(run.tables, rng))
    run.sign()


def _text(run: Hostile, rng: random.Random) -> None:
    name = rng.choice(FILES[:2] + FILES[3:])
    run.data[name] = deep(rng) if rng.random() < 0.4 else broken(run.data[name], rng)
    if name != "config.toml":
        run.sign()


def _card(run: Hostile, rng: random.Random) -> None:
    run.data["card.json"] = json.dumps(changed(json.loads(run.data["card.json"]), rng)).encode()


def _log(run: Hostile, rng: random.Random) -> None:
    *before, last = run.log.splitlines()
    line = json.dumps(changed(json.loads(last), rng)).encode() if rng.random() < 0.7 else broken(last, rng)
    run.log = b"\n".join([*before, line, b""])


def _tokenizer(run: Hostile, rng: random.Random) -> None:
    run.data["tokenizer.json"] = json.dumps(changed(json.loads(run.data["tokenizer.json"]), rng)).encode()
    run.sign()


def _header(run: Hostile, rng: random.Random) -> None:
    names = [name for name in run.header if name != "__metadata__"]
    name, other = rng.choice(names), rng.choice(names)
    entry = run.header[name]
    match rng.randrange(9):
        case 0:
            entry["shape"] = rng.choice(
                [[], [0], [2**62, 2], [-1, 4], [10**9] * 3, ["4"], [1.5], entry["shape"][::-1]]
            )
        case 1:
            entry["dtype"] = rng.choice(
                ["F64", "I32", "BOOL", "F16", "BF16", "F8_E4M3", "U8", "X", 3, ESCAPES]
            )
        case 2:
            entry["data_offsets"] = rng.choice(
                [run.header[other]["data_offsets"], [0, 2**63], [-1, 4], [8, 4], [], 3]
            )
        case 3:
            run.header[ESCAPES] = run.header.pop(name)
        case 4:
            run.header["__metadata__"] = rng.choice(
                [{}, {"format": ESCAPES}, 3, [], {"a": 1}, {"format": None}]
            )
        case 5:
            run.numbers = rng.choice(
                [b"\xff\xff\xff\x7f" * (len(run.numbers) // 4), run.numbers[:-4], b"", run.numbers * 2]
            )
        case 6:
            run.header = changed(run.header, rng)
        case 7:
            run.header |= {
                f"more.{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(2000)
            }
        case _:
            del run.header[name]
    run.sign()


def _weights(run: Hostile, rng: random.Random) -> None:
    data = broken(run.data["model.safetensors"], rng)
    if rng.random() < 0.3:
        data = (
            rng.choice([2**63, 2**62, len(data), 0, 1, 10**8, max(0, len(data) - 8)]).to_bytes(8, "little")
            + data[8:]
        )
    run.data["model.safetensors"] = data


KINDS: dict[str, Callable[[Hostile, random.Random], None]] = {
    "values of config.toml": _config,
    "tables of config.toml": _table,
    "bytes and nesting of texts": _text,
    "card.json": _card,
    "metrics.jsonl": _log,
    "tokenizer.json": _tokenizer,
    "header of the weights": _header,
    "bytes of the weights": _weights,
}


def hostile_run(folder: Path, kind: str, seed: int) -> Path:
    """Writes a run folder of this kind; the same for the same seed."""
    rng = random.Random(f"{kind} {seed}")
    run = Hostile(BASES[seed % len(BASES)])
    KINDS[kind](run, rng)
    run.written(folder)
    return folder
