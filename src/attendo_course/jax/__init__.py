"""The Transformer in JAX and Equinox, the libraries of the weather post: attention as a function and as modules.

The modules compute what the modules of `attendo.nn` and `attendo.models` compute, and `weights.copy_weights` copies the
weights of these. The package requires the extra `jax`.
"""

from importlib.util import find_spec

from attendo.errors import AttendoError, install_command

if find_spec("jax") is None or find_spec("equinox") is None:
    raise AttendoError(f"JAX and Equinox are not installed. Run: {install_command('jax')}")
