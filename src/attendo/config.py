"""Strict conversion between TOML and frozen dataclasses: the only place where settings are parsed.

Each config section is a standard-library dataclass, defined next to the code that it configures. The `__post_init__`
method checks the fields and raises ValueError. Every error in a table becomes an AttendoError with a one-line message.
"""

import copy
import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import tomli_w
from pydantic import TypeAdapter, ValidationError

from attendo.errors import AttendoError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

LONGEST = 80
"""The maximum number of characters of an invalid value that an error message shows."""
_QUOTED, _DEEP_KEY = re.compile(r"""("|')[^"'\n]*+\1"""), re.compile(r"(?:\.[ \t]*+[\w-]*+[ \t]*+){100}")
_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_IN_FILE = re.compile(r"(.+) \[([^\[\]]+)\]")  # for example, F.toml [model]


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file as plain values. Raises AttendoError with the line number for invalid TOML."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if _DEEP_KEY.search(_QUOTED.sub("", _COMMENT.sub("", text))):  # takes quadratic time
            raise RecursionError
        tables = tomllib.loads(text)
        # values that are too deep or too long for JSON are rejected here
        json.loads(json.dumps(_plain(tables), default=str), parse_int=bounded_int)
        return tables
    except (FileNotFoundError, IsADirectoryError):
        raise AttendoError(f"{path}: no such file. Give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise AttendoError(f"{path} is not UTF-8 (byte {error.start + 1}). Save it as UTF-8") from None
    except RecursionError:
        raise AttendoError(f"{path} is nested too deeply (expected tables of values). Fix it") from None
    except ValueError as error:  # invalid TOML, or a number with more digits than Python accepts
        raise AttendoError(f"{path} is not valid TOML: {error}") from None


def bounded_int(digits: str) -> int:
    """Parse an integer from a file. Raises ValueError if the integer has more than 300 digits."""
    if len(digits) > 300:
        raise ValueError(f"{digits[:20]}… has {len(digits)} digits (expected at most 300)")
    return int(digits)


def override(tables: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `tables` in which each assignment `section.key=value` is applied.

    The value is parsed as TOML, or used as text if it is not valid TOML. Raises AttendoError for an invalid assignment.

    >>> override({"model": {"d_model": 64}}, ["model.d_model=128", "data.name=a b", "data.columns=[1, 2]"])
    {'model': {'d_model': 128}, 'data': {'name': 'a b', 'columns': [1, 2]}}
    """
    result = copy.deepcopy(dict(tables))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        names = path.strip().split(".")
        if not equals or len(names) < 2 or not all(map(_BARE_KEY.fullmatch, names)):
            raise AttendoError(
                f"invalid setting {assignment!r} (expected section.key=value, for example model.d_model=128)"
            )
        table = result
        for depth, name in enumerate(names[:-1], start=1):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                outer = ".".join(names[:depth])
                raise AttendoError(f"cannot set {path.strip()}: {outer} is a value (expected a table)")
        table[names[-1]] = _value(text.strip())
    return result


def build(section: type[T], table: Mapping[str, Any], where: str, *, others: bool = False) -> T:
    """Build a dataclass from a table, and check the types of all values strictly.

    `section` is the dataclass. Nested dataclasses are built from sub-tables. Unknown keys are errors unless `others` is
    set. `where` is the name of the table in messages, with or without its file: `"model"` or `"F.toml [model]"`. Raises
    AttendoError with the key, the value and the expected type, and also for a ValueError from `__post_init__`.
    """
    name, place = _placed(where)
    if not others:
        _refuse_unknown(section, table, name, place)
    try:
        # Strict mode accepts a list for a tuple, and a table for a dataclass, only in JSON input.
        return _adapter(section).validate_json(json.dumps(table), strict=True)
    except ValidationError as error:
        raise AttendoError(_first_error(section, error, name, place)) from None
    except TypeError:  # from json.dumps: of what TOML can hold, only dates and times have no JSON form
        raise AttendoError(f"{name}{place} contains a date or time (expected text). Quote it") from None


def check_keys(section: "type[DataclassInstance]", table: Mapping[str, Any], where: str) -> None:
    """Raise AttendoError if `table` has a key for which `section` has no field. The values are not checked."""
    _refuse_unknown(section, table, *_placed(where))


def to_table(value: "DataclassInstance") -> dict[str, Any]:
    """Return a dataclass as a TOML table for `build`. A field that is None is omitted, so its default must be None."""
    return _plain(dataclasses.asdict(value))


def dump_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables as TOML text. `read_toml` returns the same tables, except for None values, which are omitted.

    >>> print(dump_toml({"model": {"d_model": 64, "tie": True}, "data": {"limit": None}}))
    [model]
    d_model = 64
    tie = true
    <BLANKLINE>
    [data]
    <BLANKLINE>
    """
    return tomli_w.dumps(_plain(tables))


_adapter = cache(TypeAdapter)


def _placed(where: str) -> tuple[str, str]:
    """Return the table's name, and ` in FILE` if the location names a file."""
    in_file = _IN_FILE.fullmatch(where)
    return (in_file[2], f" in {in_file[1]}") if in_file else (where, "")


def _refuse_unknown(section: type, table: Mapping[str, Any], name: str, place: str) -> None:
    """Raise AttendoError for a key for which `section` has no field, and suggest the most similar field name."""
    fields = [field.name for field in dataclasses.fields(section) if field.init]
    for key, value in table.items():
        if key not in fields:
            raise AttendoError(f"unknown key {_dotted(name, key)}{place}; {nearest(key, fields, 'known keys')}")
        if isinstance(value, Mapping) and dataclasses.is_dataclass(kind := get_type_hints(section)[key]):
            _refuse_unknown(kind, value, _dotted(name, key), place)  # pyright: ignore[reportArgumentType]


def _first_error(section: type, error: ValidationError, name: str, place: str) -> str:
    """Return the first pydantic error as a one-line message in attendo's wording."""
    first = error.errors(include_url=False)[0]
    # After the field names, a location continues with the branches of a union, which do not help the user.
    keys: list[str] = []
    hint: Any = section
    for part in first["loc"]:
        if not dataclasses.is_dataclass(hint):
            break
        keys.append(str(part))
        hint = get_type_hints(hint).get(str(part))
    path = _dotted(name, *keys)
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if first["type"] == "value_error":  # from a __post_init__, whose message is complete
        return f"{path}{place}: {message}" if path or place else message
    message = message[:1].lower() + message[1:]
    if first["type"] == "missing":
        return f"{path} is missing{place}. Set it"
    value = json.dumps(first["input"], ensure_ascii=False)
    return f"invalid value {path} = {value if len(value) <= LONGEST else f'{value[:LONGEST]}…'}{place}: {message}"


def _dotted(*names: str) -> str:
    return ".".join(filter(None, names))


def _value(text: str) -> Any:
    """Parse a value in TOML notation. Other text is returned unchanged, so paths and words need no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _plain(value: Any) -> Any:
    """Return a value in a form that TOML supports: paths as text, tuples as lists, and no None values."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Path():
            return _plain(str(value))
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            raise AttendoError(f"{value!r} is not valid Unicode, so a TOML file cannot contain it. Rename it")
        case _:
            return value
