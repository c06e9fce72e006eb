"""attendo embed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from attendo.cli.options import Folder, Machine, Texts, option, with_groups
from attendo.cli.reporting import lines_given, one_line, refuse_file_name
from attendo.data.row_report import RowReport

Pooling = Literal["mean", "max", "first"]


@with_groups
def embed(
    *,
    folder: Folder,
    texts: Texts = None,
    pooling: Pooling | None = option("P", "mean, max or first, over the tokens; else the run's own, mean."),
    layer: int | None = option("N", "0: the embedding, N: behind block N; else the last."),
    nearest: Path | None = option("F", "Print the nearest lines of this file instead."),
    n: int = option("N", "How many of them.", "-n", min=1, default=5),
    column: str | None = option("C", "The texts' column where that file is a table."),
    machine: Machine,
) -> int:
    """Vectors of texts, or of each line of stdin, by any trained model: one JSON object a line.

    With --nearest each text behind ">", and below it the lines of a file whose vectors point most nearly the same
    way: line, cosine and text.

    Example: attendo embed runs/mine "a strong wind" --nearest lines.txt
    """
    from attendo.inference import Embedder
    from attendo.inference.embedder import nearest_rows

    refuse_file_name(texts, "give < FILE")
    embedder = Embedder.load(folder, machine.chosen())
    others = None if nearest is None else _lines_of(nearest, column)
    vectors = None if others is None else embedder.embed([text for _, text in others], pooling, layer)
    for number, chunk in lines_given(texts):
        for line, (text, vector) in enumerate(
            zip(chunk, embedder.embed(chunk, pooling, layer), strict=True), number
        ):
            if others is None or vectors is None:
                print(json.dumps({"line": line, "text": text, "vector": vector.tolist()}, ensure_ascii=False))
                continue
            print(f"> {one_line(text)}")
            for cosine, index in nearest_rows(vector, vectors, n):
                print(f"{others[index][0]}\t{cosine:.4f}\t{one_line(others[index][1])}")
        sys.stdout.flush()
    return 0


def _lines_of(file: Path, column: str | None) -> list[tuple[int, str]]:
    from attendo.data.corpora import read_lines

    return list(read_lines(file, column, row_report=RowReport(str(file), option="--column")))
