"""The sources' figures, drawn from the formulas."""
