"""C++ functions that run a Transformer on a CPU, with the same results as the PyTorch modules up to rounding."""
