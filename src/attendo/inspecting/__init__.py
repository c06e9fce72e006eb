"""Looking inside a model from outside: the model itself has no line for it."""
