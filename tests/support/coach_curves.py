"""Losses of real runs, each the mean of 10 steps (docs/log.md has their settings), and reports to tell a coach."""

from collections.abc import Iterator, Sequence

from attendo.training.checkpoints import Progress
from attendo.training.optimizer import Horizon
from attendo.training.run import Evaluation, Report


def numbers(text: str) -> list[float]:
    """Those between spaces."""
    return [float(word) for word in text.split()]


TRANSLATION = numbers(
    """
    8.70 7.74 7.01 6.34 5.69 5.39 5.08 5.07 4.88 4.72 4.67 4.59 4.42 4.39 4.20 4.15 4.01 4.15 3.95 3.95
    3.79 3.84 3.77 3.67 3.70 3.59 3.65 3.68 3.49 3.60 3.60 3.34 3.41 3.30 3.52 3.41 3.37 3.36 3.24 3.27
    3.22 3.24 3.21 3.28 3.02 3.05 3.08 3.27 3.17 3.22 3.11 2.99 2.95 3.04 3.09 3.04 3.04 3.11 3.02 2.90
    3.04 3.02 3.02 3.03 2.96 2.93 2.99 2.92 3.01 2.91 2.88 2.86 2.82 2.87 2.86 2.81 2.91 2.86 2.83 2.96
    """
)
"""English to Japanese, 2+2 layers, chosen automatically."""
SENTIMENT = numbers(
    """
    0.74 0.71 0.81 0.71 0.69 0.69 0.72 0.73 0.88 0.77 0.67 0.70 0.71 0.65 0.67 0.62 0.59 0.57 0.60 0.55
    0.55 0.54 0.60 0.58 0.53 0.53 0.58 0.49 0.50 0.49 0.41 0.41 0.49 0.44 0.36 0.44 0.43 0.43 0.44 0.44
    0.42 0.39 0.43 0.38 0.30 0.33 0.30 0.31 0.37 0.32 0.33 0.33 0.32 0.32 0.41 0.43 0.38 0.32 0.34 0.28
    """
)
"""Of sentences: slow to begin, and every batch is another."""
HOT = numbers(
    """
    6.51 5.69 5.36 5.03 4.99 5.13 5.12 5.22 5.26 5.32 5.34 5.32 5.40 5.40 5.22 5.28 5.30 5.36 5.26 5.24
    5.18 5.31 5.43 5.33 5.47 5.32 5.21 5.30 5.11 5.34 5.31 5.08 5.20 5.33 5.43 5.52 5.35 5.49 5.34 5.32
    """
)
"""The translation at 50 times the rate."""
FEW_TOKENS = numbers(
    """
    8.77 8.11 7.34 6.78 6.23 5.96 5.66 5.59 5.40 5.17 5.24 5.20 5.22 5.31 4.99 5.08 5.00 5.18 5.10 4.90
    5.08 4.85 4.75 4.85 4.77 4.94 4.74 4.96 4.80 4.75 4.64 4.81 4.81 4.80 4.87 4.71 4.61 4.67 4.55 4.46
    4.74 4.38 4.63 4.42 4.64 4.76 4.78 4.51 4.48 4.60 4.66 4.61 4.48 4.29 4.54 4.57 4.51 4.40 4.44 4.49
    4.31 4.45 4.34 4.40 4.30 4.49 4.57 4.25 4.33 4.22 4.39 4.33 4.31 4.28 4.31 4.34 4.46 4.31 4.18 4.59
    4.57 4.41 4.40 4.34 4.49 4.61 4.22 4.35 4.48 4.26 4.41 4.23 4.29 4.08 4.46 4.37 4.18 4.36 4.29 4.21
    4.43 4.22 4.27 4.42 4.29 4.26 4.23 4.33 4.17 4.26 4.35 4.35 4.14 4.31 4.22 4.41 4.31 4.44 4.28 4.10
    """
)
"""The translation in batches of 64 tokens."""
MASKED = numbers(
    """
    8.90 7.90 6.99 6.43 6.35 6.40 6.33 6.25 6.35 6.24 6.33 6.22 6.31 6.25 6.31 6.11 6.30 6.29 6.31 6.30
    6.23 6.22 6.22 6.18 6.21 6.18 6.18 6.19 6.14 6.12 6.19 6.19 6.25 6.33 6.24 6.17 6.21 6.18 6.27 6.30
    6.20 6.10 6.13 6.23 6.19 6.12 6.08 6.15 6.18 6.18
    """
)
"""Characters hidden in Shakespeare, guessed by their frequency alone for a long time."""

HEALTHY_OUTPUTS = [(f"source {i}", f"target {i}", f"target {i // 2}") for i in range(32)]
COLLAPSED_OUTPUTS = [(f"source {i}", f"target {i}", "I do not know .") for i in range(32)]


def steps(
    blocks: Sequence[float], rate: float = 0.002, warmup: int = 60, tokens: int = 1900, end: int | None = None
) -> Iterator[Report]:
    """A report for each of the 10 steps of a block."""
    n_steps = 10 * len(blocks)
    for step in range(1, n_steps + 1):
        progress = Progress(step=step, tokens=tokens * step, horizon=Horizon(None, end))
        loss = blocks[(step - 1) // 10]
        yield Report("step", progress, loss, rate * min(1.0, step / warmup), 1.0, done=step / n_steps)


def evaluation(
    step: int,
    loss: float,
    is_best: bool,
    done: float = 0.5,
    samples: list[tuple[str, str, str]] | None = None,
    note: str = "",
) -> Report:
    """A report of one."""
    found = Evaluation({"loss": loss}, "loss", samples or [])
    return Report("evaluation", Progress(step=step), evaluation=found, is_best=is_best, note=note, done=done)
