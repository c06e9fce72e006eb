"""Text for terminals and people: widths, wrapping, tables, charts, number formats, two languages."""

from attendo.display.formats import duration, plural
from attendo.display.i18n import Language, Localized
from attendo.display.width import columns, fitted, flowed, isolated, shown

__all__ = ["Language", "Localized", "columns", "duration", "fitted", "flowed", "isolated", "plural", "shown"]
