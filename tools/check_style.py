"""Check the wording of pages, messages, help strings and public docstrings. Print `file:line: rule: text`."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

BANNED = {
    "software prints, returns or raises": r"\b(says|tells|hears|feels|refuses|(is|are|was|were) (told|said))\b",
    "software requires": r"\bwants (?!to\b)\w+",
    "files are in folders, text appears": r"\b(stands?|stood)\b(?! for\b|-)|\b(lies|rests|lives)\b",
    "write again": r"\banew\b",
    "write continue or resume": r"\b(go|goes|going|gone|went) on\b(?! to\b)",
    "write after": r"\bbehind\b(?! (?:an? |the |your )?(?:reverse |package )?(?:proxy|mirror|nginx|firewall|TLS))",
    "write otherwise, or (default: ...)": r"(?<!thing )(?<!one )(?<!body )\belse\b",
    "no metaphors": r"\b(storeys?|floors?|twins?|mates?|seams?|in company|at home among)\b",
    "no archaic words": r"\b(in vain|shall|mend(s|ed|ing)?|so many times)\b",
    "write must be, or valid": r"\b(is|are) none of\b|\bthat (is|are) none\b",
    "no trailing clause": r", too\b|, so that\b",
    "write per": r"\b(bits|nats|tokens|words|texts|lines|rows|pages) an? "
    r"(second|byte|token|word|step|update|epoch|character|text|line|row)\b",
    "write % without a space": r"\d %",
}
"""Rules by name, each a pattern that must not occur outside code."""

EXCEPTIONS: set[tuple[str, str]] = set()  # of a file and a text that is right there
DANGLING = r"(Of|Else|As|The same|Where)\b"
BLOCK = r"^ *(```+|~~~+)[^\n]*\n.*?^ *\1 *$|^<(pre|script|style)\b.*?</\2>"
CODE = r"(`+)(?!`).+?(?<!`)\1(?!`)|(?<=\])\([^)]*\)|</?[A-Za-z!][^>]*>|https?://\S+"
NO_TEXT = r"[\u3040-\u30ff\u4e00-\u9fff]|[{};]\s*\n|</|\$\{|=>"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A violation of a rule at a line of a file."""

    file: str
    line: int
    rule: str
    text: str


@cache
def british() -> dict[str, str]:
    """Return the American spelling of each British spelling, from codespell's dictionary."""
    spec = importlib.util.find_spec("codespell_lib")
    if spec is None or spec.origin is None:
        sys.exit("error: check_style requires codespell; run: make venv")
    data = Path(spec.origin).with_name("data") / "dictionary_en-GB_to_en-US.txt"
    return dict(line.split("->") for line in data.read_text(encoding="utf-8").splitlines() if "->" in line)


def without(pattern: str, text: str) -> str:
    """Return the text without the matches of a pattern. The line numbers do not change.

    >>> without(CODE, "See [`a b`](c.md) or <b>x</b> `` d`e `` end")
    'See [] or x  end'
    """
    return re.sub(pattern, lambda match: "\n" * match[0].count("\n"), text, flags=re.S | re.M)


def of_wording(file: str, line: int, text: str) -> Iterator[Finding]:
    """Yield the banned words and British spellings of a text that begins at a line."""
    for number, part in enumerate(without(CODE, text).splitlines(), line):
        for rule, pattern in BANNED.items():
            for match in re.finditer(pattern, part, re.I):
                if (file, match[0].lower()) not in EXCEPTIONS:
                    found = part[max(0, match.start() - 30) : match.end() + 30].strip()
                    yield Finding(file, number, rule, found)
        for word in re.findall(r"[A-Za-z]+", part):
            if word.lower() in british():
                yield Finding(file, number, "American spelling", f"{word}: {british()[word.lower()]}")


def of_page(file: str, text: str) -> Iterator[Finding]:
    """Yield the findings of a Markdown page."""
    text = without(BLOCK, text)
    yield from of_wording(file, 1, text)
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"#+ (.*?)(?: \{.*\})?$", line):
            if heading[1].lower() in seen:
                yield Finding(file, number, "headings are unique", heading[1])
            seen.add(heading[1].lower())


def of_source(file: str, text: str) -> Iterator[Finding]:
    """Yield the findings in the messages and help strings of a Python file. Docstrings are ignored."""
    nodes = list(ast.walk(ast.parse(text)))
    ignored = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    ignored |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) not in ignored and isinstance(node, ast.Constant | ast.JoinedStr):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            if len(re.findall(r"\b[a-z]{2,}\b", words)) > 2 and not re.search(NO_TEXT, words):
                yield from (found._replace(line=node.lineno) for found in of_wording(file, 1, words))
        if isinstance(node, ast.Call):
            is_option = ast.unparse(node.func).split(".")[-1] in ("option", "switch", "argument")
            helps = [keyword.value for keyword in node.keywords if keyword.arg in ("help", "short_help")]
            for given in helps + (node.args[1:2] if is_option else []):
                if isinstance(given, ast.Constant) and re.match(DANGLING, str(given.value)):
                    yield Finding(file, given.lineno, "begin with a noun or verb", str(given.value))


def defined(module: str, name: str, source: Path) -> tuple[Path, ast.ClassDef | FUNCTION] | None:
    """Return the file and the definition of a public name, resolved through imports, or None for a plain value."""
    folder = source.joinpath(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, FUNCTION | ast.ClassDef) and node.name == name:
            return file, node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return defined(str(node.module), name, source)
    return None


def public(source: Path) -> dict[tuple[Path, str], ast.ClassDef | FUNCTION]:
    """Return the definitions of all names in the `__all__` of packages, by file and name."""
    found: dict[tuple[Path, str], ast.ClassDef | FUNCTION] = {}
    for file in sorted(source.rglob("__init__.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                for name in ast.literal_eval(node.value):
                    if definition := defined(".".join(file.relative_to(source).parent.parts), name, source):
                        found[definition[0], name] = definition[1]
    return found


def of_docstrings(file: str, node: ast.ClassDef | FUNCTION) -> Iterator[Finding]:
    """Yield banned words and missing docstring sections of a public function, or of a class and its public methods."""
    functions = [node] if isinstance(node, FUNCTION) else [n for n in node.body if isinstance(n, FUNCTION)]
    yield from of_wording(file, node.lineno, (ast.get_docstring(node) or "").split(">>>")[0])
    for function in functions:
        marks = {ast.unparse(decorator).split(".")[-1] for decorator in function.decorator_list}
        is_init = function.name == "__init__"
        text = (ast.get_docstring(node if is_init else function) or "").split(">>>")[0]
        yield from of_wording(file, function.lineno, text if function is not node and not is_init else "")
        if (
            (function.name.startswith("_") and not is_init)
            or "overload" in marks
            or any("property" in mark for mark in marks)
            or (not text and not is_init and isinstance(node, ast.ClassDef) and node.bases)  # documented in the base
        ):
            continue
        args = function.args
        every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
        names = [arg.arg for arg in every if arg][function is not node and "staticmethod" not in marks :]
        section = "".join(re.split(r"^Args:$", text, flags=re.M)[1:])
        missing = ", ".join(name for name in names if not re.search(rf"\b{name}\b[^\n]*:", section))
        returns = ast.unparse(function.returns) if function.returns else "None"
        summed = re.search(r"^(Returns|Yields):$|\A[^\n]*\b([Rr]eturn|[Yy]ield)s?\b", text, re.M)
        if summed or is_init or "contextmanager" in marks or returns == "NoReturn":
            returns = "None"
        raises = any(isinstance(part, ast.Raise) and part.exc for part in ast.walk(function))
        raises = raises and not re.search(r"\braises?\b", text, re.I)
        for rule, details in ("Args", missing), ("Returns", returns), ("Raises", str(raises or "None")):
            if details not in ("", "None"):
                yield Finding(file, function.lineno, rule, f"{node.name}.{function.name}: {details}")


def findings(root: Path) -> Iterator[Finding]:
    """Yield the findings of all pages and sources of a project."""
    pages = [root / "README.md", *sorted((root / "docs" / "en").glob("*.md"))]
    for file in pages + sorted((root / "src" / "attendo").rglob("*.py")):
        check = of_page if file.suffix == ".md" else of_source
        yield from check(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))
    for (file, _), node in public(root / "src").items():
        yield from of_docstrings(file.relative_to(root).as_posix(), node)


def main(root: Path = ROOT) -> int:
    """Print the findings. Return 1 if there are any."""
    lines = [f"{file}:{line}: {rule}: {text}" for file, line, rule, text in findings(root)]
    print("\n".join(lines) or "style: clean")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
