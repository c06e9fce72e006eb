"""The reference of the site: one page per package of attendo, and one for attendo_course, with all documented names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
NOT_SHOWN = {"cli"}
"""Package that is left out, because the page of commands is its reference."""


@dataclass(frozen=True)
class Module:
    """A module of the reference: its dotted name, the first paragraph of its docstring, and its documented names."""

    name: str
    about: str
    names: tuple[str, ...]


def documented(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    """Yield the dotted names of the public functions, classes and methods that have a docstring.

    >>> code = "def a(): 'says a'\\nclass B:\\n  'says B'\\n  def c(self): 'says c'\\n  def _d(self): 'says d'"
    >>> list(documented(ast.parse(code), "m"))
    ['m.a', 'm.B', 'm.B.c']
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}"
            if not node.name.startswith("_") and ast.get_docstring(node):
                yield name
                if isinstance(node, ast.ClassDef):
                    yield from documented(node, name)


def dotted(file: Path) -> str:
    """Return the dotted name of a file's module.

    >>> dotted(SOURCE / "attendo" / "nn" / "__init__.py"), dotted(SOURCE / "attendo" / "models.py")
    ('attendo.nn', 'attendo.models')
    """
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def packages() -> dict[str, tuple[Module, ...]]:
    """Return the modules of each package, the package itself first: {'nn': (attendo.nn, attendo.nn.attention), ...}."""
    found: dict[str, list[Module]] = {}
    for file in sorted(SOURCE.rglob("*.py"), key=dotted):
        name = dotted(file)
        package, *inside = name.split(".")
        package = inside[0] if inside and package == "attendo" else package
        if package in NOT_SHOWN:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        about = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")
        found.setdefault(package, []).append(Module(name, about, tuple(documented(tree, name))))
    return {package: tuple(modules) for package, modules in found.items()}


@cache
def homes() -> dict[str, str]:
    """Return the page of every module and documented name: {'attendo.nn.masks': 'reference/nn.md', ...}."""
    return {
        name: f"reference/{package}.md"
        for package, modules in packages().items()
        for module in modules
        for name in (module.name, *module.names)
    }


def address(path: str, label: str = "") -> str | None:
    """Return the site address of a file below src/, or of the name in a link's label. None means that it has no page.

    >>> address("src/attendo/nn/masks.py")
    'reference/nn.md#attendo.nn.masks'
    >>> address("src/attendo/nn/attention.py", "attendo.nn.attention.Attention.__init__")
    'reference/nn.md#attendo.nn.attention.Attention'
    >>> address("src/attendo/nn")
    'reference/nn.md'
    >>> address("src/attendo/presets/base.toml")
    """
    file = ROOT / path
    if not file.is_relative_to(SOURCE) or not (file.is_dir() or file.suffix == ".py"):
        return None
    module = dotted(file)
    if file.is_dir() and module in homes():
        page = homes()[module]
        return page if module == packages()[Path(page).stem][0].name else f"{page}#{module}"
    name = label if label.startswith(f"{module}.") else module
    while name not in homes() and name.startswith(module) and name != module:
        name = name.rpartition(".")[0]
    return f"{homes()[name]}#{name}" if name in homes() else None


def package_page(package: str, whole: bool) -> str:
    """Return the page of a package in Markdown: its modules for mkdocstrings, or only anchors if `whole` is False.

    >>> print(package_page("files", whole=True).split("    ")[0])
    # attendo.files { #attendo.files }
    <BLANKLINE>
    ::: attendo.files
    <BLANKLINE>
    """
    own, *others = packages()[package]
    blocks = [f"# {own.name} {{ #{own.name} }}"]
    if whole:
        blocks.append(f"::: {own.name}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false")
        if package == "attendo":
            blocks[-1] += "\n      members: [AttendoError, Translator, load, look, train]"
        blocks += [f"::: {module.name}" for module in others]
    else:
        names = [*own.names, *(name for module in others for name in (module.name, *module.names))]
        blocks += [f'<a id="{name}"></a>' for name in names]
    return "\n\n".join(blocks) + "\n"
