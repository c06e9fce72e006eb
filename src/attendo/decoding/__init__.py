"""Search: from a step function to texts' token ids. Search knows no model; the protocols are in `step.py`."""
