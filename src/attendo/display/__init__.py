"""Text for terminals and people: widths, wrapping, tables, charts, number formats, two languages."""
