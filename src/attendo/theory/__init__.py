"""The theory, run: the sources' algorithms, claims, errata and figures on the parts that train and serve."""
