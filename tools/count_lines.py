"""Count the lines of code of the core (`nn/` and `model*.py`), and fail if they exceed the budget.

Blank lines, comments and docstrings are not counted.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

BUDGET = 1200
CORE = Path(__file__).resolve().parent.parent / "src" / "attendo"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(source: str) -> int:
    """Return the number of lines with code in a Python source.

    >>> code_lines('''def f():
    ...     "A docstring."
    ...     # a comment
    ...
    ...     return (1 +
    ...             2)''')
    3
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def main() -> int:
    """Print the count of each file and the total. Return 1 if the total exceeds the budget."""
    files = [*sorted((CORE / "nn").rglob("*.py")), *sorted(CORE.glob("model*.py"))]
    total = 0
    for file in files:
        count = code_lines(file.read_text(encoding="utf-8"))
        total += count
        print(f"{count:6}  {file.relative_to(CORE)}")
    print(f"{total:6}  of {BUDGET} lines of code in the core")
    if total > BUDGET:
        print("error: the core is over its budget: simplify it, or raise it with a reason in docs/decisions/")
    return int(total > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
