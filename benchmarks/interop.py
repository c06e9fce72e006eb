"""Translations of a whole test set by a translator exported to CTranslate2, compared with attendo's translations.

    python benchmarks/interop.py RUN test.tsv

For float32 and int8, the results are the share of lines with equal translations, BLEU, and the largest difference of a
score. attendo searches twice: with the rules of CTranslate2 (`decoding.refill`) and with the settings of the run.
"""

import sys
import tempfile
from pathlib import Path

from turns import shared_options, store


def main():
    """Export the translator, compare the translations, and store the results."""
    made = shared_options(__doc__)
    made.add_argument("run", type=Path, help="a translator's run folder")
    made.add_argument("test", type=Path, help="pairs that it has not seen, read as its own are")
    options = made.parse_args()
    from importlib.metadata import version

    from attendo.interop.exporting import ExportOptions, export

    results = {}
    for quantization in ("float32", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            results[quantization] = export(
                options.run,
                Path(folder, "model"),
                "ctranslate2",
                ExportOptions(quantization=quantization),
                valid=[options.test],
                most=sys.maxsize,
            )
            results[quantization]["compared"] = f"{results[quantization]['n']} rows of {options.test.name}"
            size = Path(folder, "model", "model.bin").stat().st_size
            results[quantization]["model_bytes"] = size
    packages = {name: version(name) for name in ("attendo", "ctranslate2", "torch")}
    store("interop", {"packages": packages, "ctranslate2": results}, options.out)


if __name__ == "__main__":
    main()
