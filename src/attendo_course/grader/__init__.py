"""A test of attention functions by other authors, which reports each failed property with an input."""
