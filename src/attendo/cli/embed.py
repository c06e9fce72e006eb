"""The command `attendo embed`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from attendo.cli.options import Folder, Machine, Texts, option, with_groups
from attendo.cli.reporting import lines_given, one_line, refuse_file_name
from attendo.data.corpora import read_lines
from attendo.data.row_report import RowReport

Pooling = Literal["mean", "max", "first"]


@with_groups
def embed(
    *,
    folder: Folder,
    texts: Texts = None,
    pooling: Pooling | None = option("P", "Pooling of the token vectors: mean, max or first (default: as in the run)."),
    layer: int | None = option(
        "N", "Layer of the vectors: 0 is the embedding, N is block N (default: the last block)."
    ),
    nearest: Path | None = option("F", "Print the nearest lines of this file instead of the vectors."),
    n: int = option("N", "Number of nearest lines per text.", "-n", min=1, default=5),
    column: str | None = option("C", "Text column of the file of --nearest, if the file is a table."),
    machine: Machine,
) -> int:
    """Compute vectors of texts, or of the lines of stdin, with any trained model.

    The command prints one JSON object per text. With --nearest, the command prints ">" and the text, followed by the
    nearest lines of a file by cosine similarity. For each nearest line, the command prints the line number, the cosine
    and the text.

    Example: attendo embed runs/mine "a strong wind" --nearest lines.txt
    """
    from attendo.inference import Embedder
    from attendo.inference.embedder import nearest_rows

    refuse_file_name(texts, "use < FILE")
    embedder = Embedder.load(folder, machine.chosen())
    others = None if nearest is None else _lines_of(nearest, column)
    vectors = None if others is None else embedder.embed([text for _, text in others], pooling, layer)
    for number, chunk in lines_given(texts):
        embedded = zip(chunk, embedder.embed(chunk, pooling, layer), strict=True)
        for line, (text, vector) in enumerate(embedded, number):
            if others is None or vectors is None:
                print(json.dumps({"line": line, "text": text, "vector": vector.tolist()}, ensure_ascii=False))
                continue
            print(f"> {one_line(text)}")
            for cosine, index in nearest_rows(vector, vectors, n):
                print(f"{others[index][0]}\t{cosine:.4f}\t{one_line(others[index][1])}")
        sys.stdout.flush()
    return 0


def _lines_of(file: Path, column: str | None) -> list[tuple[int, str]]:
    return list(read_lines(file, column, row_report=RowReport(str(file), option="--column")))
