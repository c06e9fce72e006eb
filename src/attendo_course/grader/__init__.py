"""A test of a user's attention function, which reports each failed property with an input that shows the failure."""
