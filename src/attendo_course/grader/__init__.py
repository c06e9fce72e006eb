"""A test of attention functions by other authors: the failing property, its input, and its appearance."""
