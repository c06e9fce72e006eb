"""Models and weights of other libraries, in and out."""
