"""The claims and exercises of the sources, C01 to C27, each decided by numbers."""
