"""Minimum FLOPs of an update, and the speed of matrix multiplication on this CPU: the share of the peak."""

import time
from pathlib import Path

SIDE = 2048
"""Number of rows and of columns of the matrices whose product measures the peak."""


def least_flops(sizes, vocab, pairs):
    """Return the FLOPs of an update on real tokens: 6 for each weight of a matrix that a token passes, and attention.

    `pairs` has for each sentence the length of the source with its end, and the number of positions at which its
    target is predicted. A source token passes the encoder, and the keys and values of each decoder layer. A target
    token passes the rest of the decoder and the output layer. Attention takes 12 · q_len · k_len · d_model per layer,
    and half of it if causal.

    >>> sizes = {"layers": 1, "d_model": 2, "d_ff": 8}
    >>> least_flops(sizes, 10, [(1, 0)]) == 6 * (4 * 4 + 2 * 2 * 8 + 2 * 4) + 12 * 2
    True
    >>> least_flops(sizes, 10, [(0, 1)]) == 6 * (6 * 4 + 2 * 2 * 8 + 10 * 2) + 6 * 2
    True
    """
    width, layers = sizes["d_model"], sizes["layers"]
    square, feed_forward = width * width, 2 * width * sizes["d_ff"]
    source_weights = layers * (4 * square + feed_forward + 2 * square)
    target_weights = layers * (6 * square + feed_forward) + vocab * width
    sources, targets = (sum(side) for side in zip(*pairs, strict=True))
    looks = sum(12 * s * s + 6 * t * t + 12 * t * s for s, t in pairs)
    return 6 * (source_weights * sources + target_weights * targets) + layers * width * looks


def sgemm_rates(clock, repeats):
    """Return the FLOP/s of 2048³ products in float32: with PyTorch's own library, and with oneDNN."""
    import torch

    from attendo.training.acceleration import has_onednn, onednn_product

    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    products = {"torch": torch.mm} | ({"onednn": onednn_product} if has_onednn() else {})
    rates = {}
    for name, product in products.items():
        product(a, b)
        times = []
        for _ in range(repeats):
            began = clock()
            product(a, b)
            times.append(clock() - began)
        rates[name] = 2 * SIDE**3 / (sum(times) / repeats)
    return rates


def memory_of(field):
    """Return the bytes in a field of this process's /proc status: VmRSS (now), or VmHWM (peak since `forget_peak`)."""
    with Path("/proc/self/status").open() as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def forget_peak():
    """Return free memory to the system, and reset the peak memory."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def watched(model, tiny, batches):
    """Yield batches to a training loop, and return the peak bytes above the memory that it keeps between steps.

    `tiny` is a small batch whose steps create the optimizer state. Gradients are removed after these steps.
    """
    began = time.monotonic()
    yield tiny
    yield tiny
    for parameter in model.parameters():
        parameter.grad = None
    forget_peak()
    kept = memory_of("VmRSS")
    peaks = []
    for batch in batches:
        yield batch
        peaks.append(memory_of("VmHWM") - kept)
    return {"kept": kept, "peaks": peaks, "seconds": round(time.monotonic() - began, 1)}
