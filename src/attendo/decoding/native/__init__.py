"""A decoder's step in C++ for a processor: compiled on the user's machine, once; the same numbers as the modules."""
