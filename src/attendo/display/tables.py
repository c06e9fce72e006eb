"""Tables for a terminal. Columns are also aligned if they contain wide characters."""

from collections.abc import Sequence

WIDTH = 79


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[str | float]], width: int = WIDTH) -> list[str]:
    """Return the lines of a table: headings, a rule and rows.

    Numbers are right-aligned. If the table is too wide, the first column is narrowed.

    >>> for line in table_lines(["model", "loss"], [["linear", 0.5], ["deep", 12]]):
    ...     print(line)
    model   loss
    ────────────
    linear   0.5
    deep      12
    """
    from attendo.display.width import columns, fitted, shown

    texts = [[shown(_text(cell)) for cell in row] for row in rows]
    sizes = [max(map(columns, column)) for column in zip(heads, *texts, strict=True)]
    over = sum(sizes) + 2 * (len(sizes) - 1) - width
    if over > 0:
        sizes[0] = max(8, sizes[0] - over)
    right = [any(isinstance(row[i], int | float) or _is_number(row[i]) for row in rows) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        parts = []
        for cell, size, to_right in zip(cells, sizes, right, strict=True):
            cell = fitted(cell, size)
            gap = " " * (size - columns(cell))
            parts.append(gap + cell if to_right else cell + gap)
        return "  ".join(parts).rstrip()

    rule = "─" * min(width, sum(sizes) + 2 * (len(sizes) - 1))
    return [line(heads), rule, *map(line, texts)]


def _text(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"


def _is_number(cell: str | float) -> bool:
    """Return whether a text is a number, possibly with a deviation or unit, for example "0.91 ± 0.02" or "97%"."""
    return isinstance(cell, str) and cell.lstrip("+-−")[:1].isdigit() and not any(map(str.isalpha, cell))
