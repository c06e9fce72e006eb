"""An attention map in a terminal: shades in a grid, in so many columns, wide characters counted as two."""

from __future__ import annotations

import unicodedata

from attendo.microscope.attention_map import AttentionMap

SHADES = " ░▒▓█"
LONGEST_LABEL = 14


def map_text(seen: AttentionMap, width: int = 80, layer: int | None = None) -> str:
    """The map as lines of at most `width` columns: target pieces down, numbered source pieces across.

    Each cell is a shade of the weight and, on each row, the strongest source piece is named at the end. layer: the
    sharpest if None; the mean over its heads is drawn.
    """
    layer = seen.sharpest_layer if layer is None else layer
    weights = seen.mean(layer)
    labels = [fitted(piece, LONGEST_LABEL) for piece in seen.target_pieces]
    left = max(map(columns, labels))
    legend_width = 1 + max(columns(fitted(piece, LONGEST_LABEL)) for piece in seen.source_pieces) + 5
    room = max(1, (width - left - 2 - legend_width) // 2)
    title = (
        f"cross-attention, layer {layer + 1} of {len(seen.weights)}, mean of {seen.weights.shape[1]} heads"
    )
    lines = [*wrapped(f"{title}: rows are what was written, columns what it looked at", width), ""]
    for start in range(0, len(seen.source_pieces), room):
        part = slice(start, min(start + room, len(seen.source_pieces)))
        lines += wrapped(source_legend(seen, part), width)
        tens = "".join(f"{n // 10 or ' ':>2}" for n in range(part.start + 1, part.stop + 1))
        ones = "".join(f"{n % 10:>2}" for n in range(part.start + 1, part.stop + 1))
        lines += [f"{'':{left}} {tens}".rstrip(), f"{'':{left}} {ones}"]
        for label, row in zip(labels, weights, strict=True):
            cells = "".join(shade(float(weight)) * 2 for weight in row[part])
            best = int(row.argmax())
            strongest = ""
            if part.start <= best < part.stop:
                strongest = f" {fitted(seen.source_pieces[best], LONGEST_LABEL)} {row[best]:.0%}"
            lines.append(f"{' ' * (left - columns(label))}{label} {cells}{strongest}".rstrip())
        lines.append("")
    return "\n".join(lines[:-1])


def source_legend(seen: AttentionMap, part: slice) -> str:
    """The source pieces of some columns with their numbers."""
    return "  ".join(f"{n}:{seen.source_pieces[n - 1]}" for n in range(part.start + 1, part.stop + 1))


def shade(weight: float) -> str:
    """A character that is the darker the larger the weight.

    >>> shade(0.0), shade(0.5), shade(1.0)
    (' ', '▒', '█')
    """
    return SHADES[min(len(SHADES) - 1, int(weight * len(SHADES)))]


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide character, none for one that combines.

    >>> columns("rain"), columns("雨"), columns("e\\u0301")
    (4, 2, 1)
    """
    return sum(
        0
        if unicodedata.combining(c) or unicodedata.category(c) == "Cf"
        else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def fitted(text: str, width: int) -> str:
    """The text, cut to so many columns with an ellipsis if it is longer."""
    if columns(text) <= width:
        return text
    while columns(text) > width - 1:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces where there are any."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and columns(f"{line} {word}") > width:
            lines.append(line.rstrip())
            line = word
        else:
            line = f"{line} {word}" if line else word
        while columns(line) > width:
            head = fitted(line, width + 1).removesuffix("…") or line[0]
            lines.append(head)
            line = line[len(head) :]
    return [*lines, line.rstrip()]
