"""The mistakes of the sources, 1 to 50: wrong form, right form, and a demonstration of both."""
