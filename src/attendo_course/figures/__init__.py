"""The figures of the sources, drawn from the formulas."""
