"""Write the embedded corpus `forecasts` from its grammar into src/attendo/data/forecast_pairs."""

import gzip
from pathlib import Path

from attendo.data.forecasts import SIZES, Split
from attendo_course.lessons.forecast_grammar import pairs

FOLDER = Path(__file__).resolve().parents[1] / "src" / "attendo" / "data" / "forecast_pairs"


def packed(split: Split) -> bytes:
    """Return the gzipped TSV file of a split. Equal grammars result in equal bytes."""
    text = "".join(f"{english}\t{japanese}\n" for english, japanese in pairs(SIZES[split], split))
    return gzip.compress(text.encode("utf-8"), 9, mtime=0)


if __name__ == "__main__":
    for split in SIZES:
        (FOLDER / f"{split}.tsv.gz").write_bytes(packed(split))
