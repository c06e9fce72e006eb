"""The import of Hugging Face models, and the export of trained models to four formats.

>>> from attendo.interop import export, import_model
"""

from attendo.interop.ejecting import eject
from attendo.interop.exporting import TARGETS, ExportOptions, export, exportable, not_exportable
from attendo.interop.huggingface.importing import import_model
from attendo.interop.parity import parity_lines

__all__ = [
    "TARGETS",
    "ExportOptions",
    "eject",
    "export",
    "exportable",
    "import_model",
    "not_exportable",
    "parity_lines",
]
