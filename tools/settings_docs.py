"""Write the pages of settings from the config dataclasses: `python tools/settings_docs.py [--check]`.

The English meaning of a setting is in the `Attributes:` section of its dataclass. The Japanese meaning is in
settings_ja.toml.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attendo.inference.embedder import EmbeddingConfig
from attendo.runs.settings import sections
from attendo.runs.task_specs import TASK_SPECS

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
JAPANESE = HERE / "settings_ja.toml"
FIXED = {"model.architecture": "task", "model.vocab_size": "data", "model.n_classes": "data"}
"""Settings that are determined by the task or by the data."""
CHOSEN = {
    "model": ("d_model", "d_ff", "n_heads", "n_encoder_layers", "n_decoder_layers", "dropout"),
    "tokenizer": ("kind", "vocab_size"),
    "training": (
        "precision",
        "products",
        "prefetch",
        "batch_tokens",
        "learning_rate",
        "warmup_steps",
        "evaluate_every",
        "compile",
    ),
}
"""Settings that attendo chooses if they are not given. tests/repo compares them with attendo.runs.settings."""
TASKS = {
    "translation": "翻訳",
    "classification": "分類",
    "multi-label": "複数ラベル",
    "regression": "回帰",
    "tagging": "タグ付け",
    "language-model": "言語モデル",
    "chat": "会話",
    "preference": "選好",
    "reward": "報酬",
    "masked-language-model": "マスク言語モデル",
}
KINDS = {
    int: ("integer", "整数"),
    float: ("number", "数値"),
    bool: ("true or false", "真偽値"),
    str: ("text", "文字列"),
    tuple: ("list of texts", "文字列のリスト"),
    tuple[float, ...]: ("list of numbers", "数値のリスト"),
    tuple[int, ...]: ("list of integers", "整数のリスト"),
}
WORDS = {
    "columns": ("setting | type | default | meaning", "設定 | 型 | 既定値 | 意味"),
    "or": (" or ", " または "),
    "required": ("required", "必須"),
    "chosen": ("*chosen*", "*自動*"),
    "data": ("from the data", "データによる"),
    "task": ("from the task", "タスクによる"),
}
EXAMPLE = """\
```toml
[model]
d_model = 128

[training]
minutes = 30
learning_rate = 0.001
```
"""
TOP = (
    f"""\
# Settings

*[日本語](../ja/settings.md)*

*This page is generated from the source code by `make docs`. To change it, change the code.*

This page lists every setting of `config.toml`. To set a value for one run, use `--set section.name=value`. To set
several values, write them to a TOML file and use `--config FILE`. `--print-config` prints the settings that
you gave as TOML.

{EXAMPLE}
If a setting is given several times, the last of these sources wins: `--preset`, `--config`, `--set`, other options.
The presets `tiny`, `small`, `base` and `big` are model sizes. The preset `demo` selects the settings of `attendo demo`,
and `lecture` selects a [classifier from a lecture](classifier.md). Settings marked *chosen* depend on the data, the
machine and the time budget; see [What attendo chooses for you](automatic-choice.md). Each section is a table of
`config.toml`, which every run writes to its [run folder](run-folder.md). A `–` means that a setting has no default.
""",
    f"""\
# 設定

*[English](../en/settings.md)*

*このページは `make docs` がソースコードから生成します。変更するときはコードを変更してください。*

`config.toml` のすべての設定の一覧です。1 回の訓練で設定を変えるには、`--set section.name=value` を使います。
複数の設定を変えるには、TOML ファイルに書き、`--config FILE` で指定します。`--print-config` は、コマンドで指定した設定を
TOML で表示します。

{EXAMPLE}
同じ設定を複数の方法で指定すると、`--preset`、`--config`、`--set`、その他のオプションの順に、後のものが優先されます。
プリセット `tiny`、`small`、`base`、`big` は、モデルの大きさを決めます。どのデータにも使えます。`demo` は
`attendo demo` の設定、`lecture` は[講義の分類モデル](classifier.md)の設定です。「自動」の設定は、
データ、マシン、時間の予算から決まります
（[自動で決まる設定](automatic-choice.md)）。このページの各節は、`config.toml` の一つのテーブルを説明します。
すべての設定は、[実行フォルダ](run-folder.md)の `config.toml` に書き込まれます。`–` は、既定値がないことを表します。
""",
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of config.toml: its dataclass, and the tasks that have it. Without tasks, all tasks have this table."""

    name: str
    kind: type[Any]
    tasks: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name of the table in settings_ja.toml."""
        return ".".join((self.name, *self.tasks[:1]))

    def title(self, language: int) -> str:
        """Return the heading of the table."""
        named = [task_name(task, language) for task in self.tasks]
        return f"[{self.name}]" + ((f" ({', '.join(named)})", f"（{'、'.join(named)}）")[language] if named else "")


def task_name(task: str, language: int) -> str:
    """Return the name of a task on the page.

    >>> task_name("language-model", 0)
    'language model'
    """
    return (task.replace("-", " "), TASKS[task])[language]


def tables() -> list[Table]:
    """Return every table of config.toml. A table is returned once for each of its dataclasses."""
    found: dict[tuple[str, type[Any]], list[str]] = {}
    for task, spec in TASK_SPECS.items():
        for name, own in sections(spec).items():
            kind = next(base for base in own.__mro__ if "Attributes:" in (base.__doc__ or ""))
            found.setdefault((name, kind), []).append(task)
    names = [name for name, _ in found]
    made = [
        Table(name, kind, tuple(tasks) if names.count(name) > 1 else ())
        for (name, kind), tasks in sorted(found.items(), key=lambda item: names.index(item[0][0]))
    ]
    return [*made, Table("embedding", EmbeddingConfig)]


def meanings(kind: type[Any]) -> dict[str, str]:
    """Return the meaning of each field, from the `Attributes:` sections of the dataclass and its base classes.

    >>> from attendo.runs.tasks import MaskingConfig
    >>> meanings(MaskingConfig)["share"]
    'Share of the tokens that are hidden. The tokens are drawn again in each epoch.'
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        block = re.match(r"(?: {4,}.*\n?)*", section)
        joined = re.sub(r"\n {8,}", " ", block[0] if block else "")
        found |= dict(line.strip().split(": ", 1) for line in joined.splitlines())
    return {field.name: found[field.name] for field in dataclasses.fields(kind) if field.name in found}


@cache
def japanese() -> Mapping[str, Any]:
    """Return the Japanese meanings by table, task and field."""
    return tomllib.loads(JAPANESE.read_text(encoding="utf-8"))


def japanese_meanings(table: Table) -> dict[str, str]:
    """Return the Japanese meaning of each field of a table."""
    found = japanese()[table.name]
    return found[table.tasks[0]] if table.tasks else found


def type_text(hint: Any, language: int) -> str:
    """Return the name of a type on the page.

    >>> type_text(float | Literal["length"], 0), type_text(tuple[str, ...] | None, 0)
    ('number or `"length"`', 'list of texts')
    """
    origin = get_origin(hint)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in get_args(hint))
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return WORDS["or"][language].join(type_text(kind, language) for kind in kinds)
    return KINDS[hint if hint in KINDS else origin][language]


def value_text(value: Any) -> str:
    """Return a value in TOML format, or – for None."""
    return "–" if value is None else f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def default_text(table: Table, field: dataclasses.Field[Any], language: int) -> str:
    """Return the default of a field: "chosen" or its value, followed by the values of tasks with another default."""
    path = f"{table.name}.{field.name}"
    if path in FIXED:
        return WORDS[FIXED[path]][language]
    if field.default is dataclasses.MISSING:
        return WORDS["required"][language]
    value = field.default
    if table.name == "model" and len(sizes := of_sizes(field.name)) == 1:
        value = sizes.pop()
    own = {
        task: spec.default_epochs if path == "training.epochs" else spec.defaults().get(table.name, {}).get(field.name)
        for task, spec in TASK_SPECS.items()
    }  # fmt: skip
    differing = {task: value_text(found) for task, found in own.items() if found not in (None, value)}
    if table.tasks:
        return differing.get(table.tasks[0], value_text(value))
    chosen = field.name in CHOSEN.get(table.name, ())
    parts = [WORDS["chosen"][language]] if chosen else [value_text(value)]
    if len(differing) == len(TASK_SPECS):
        parts = []
    names: dict[str, list[str]] = {}
    for task, text in differing.items():
        names.setdefault(text, []).append(task_name(task, language))
    return "; ".join([*parts, *(f"{', '.join(own)} {text}" for text, own in names.items())])


def of_sizes(name: str) -> set[Any]:
    """Return the values of a [model] setting in all model sizes that attendo chooses from."""
    tables = [size.table({}) for spec in TASK_SPECS.values() for size in spec.sizes]
    return {table[name] for table in tables if name in table}


def rows(table: Table, language: int) -> Iterator[str]:
    """Yield the rows of a table."""
    hints = get_type_hints(table.kind)
    told = (meanings(table.kind), japanese_meanings(table) if language else {})[language]
    for field in dataclasses.fields(table.kind):
        cells = (
            f"`{field.name}`",
            type_text(hints[field.name], language),
            default_text(table, field, language),
            told[field.name],
        )
        yield f"| {' | '.join(cells)} |"


def page(language: int) -> str:
    """Return the page of all settings in English (0) or Japanese (1)."""
    parts = [TOP[language].rstrip()]
    for table in tables():
        head = f"| {WORDS['columns'][language]} |\n|---|---|---|---|\n"
        about = inspect.cleandoc(table.kind.__doc__ or "").partition("\n\nAttributes:")[0]
        if language:
            about = japanese()["about"][table.key]
        parts += [f"## {table.title(language)}", about, head + "\n".join(rows(table, language))]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write both pages, or compare them with the files."""
    stale = []
    for number, language in enumerate(("en", "ja")):
        path, text = DOCS / language / "settings.md", page(number)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        print(f"error: {path} differs from the source code; run: make docs")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
