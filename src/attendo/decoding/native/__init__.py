"""A decoder's step in C++, compiled once on the user's machine, with the same results as the modules."""
