"""Text for terminals: widths, wrapping, tables, charts and number formats, in English and Japanese."""

from attendo.display.formats import duration, plural
from attendo.display.i18n import Language, Localized
from attendo.display.width import columns, fitted, flowed, isolated, shown

__all__ = ["Language", "Localized", "columns", "duration", "fitted", "flowed", "isolated", "plural", "shown"]
