"""What may come next: the distribution over the vocabulary at one position."""

from __future__ import annotations

from typing import Any

from attendo.errors import AttendoError
from attendo.microscope.seen import Seen


def next_answer(seen: Seen, position: int, n: int = 10) -> dict[str, Any]:
    """The n most probable tokens at a position, with the mass of all up to each, and the entropy in nats.

    position: of the target, whose next token is told; of a masked language model, of the source, whose own token is.
    actual: the token that stands there, with its rank (1 is the most probable); None where nothing follows. All of the
    model with the edits, before a search forbids any token. Raises AttendoError for a classifier, which predicts no
    token, and for a position or n out of range.
    """
    if seen.family == "classification":
        raise AttendoError("a classifier predicts a label, not a token; look at its classes instead")
    if not 0 <= position < len(seen.logits):
        raise AttendoError(f"position {position} is not one of 0 to {len(seen.logits) - 1}")
    if n < 1:
        raise AttendoError(f"n={n} must be 1 or more")
    log_probs = seen.logits[position].double().log_softmax(-1)
    probabilities = log_probs.exp()
    best, ids = probabilities.topk(min(n, len(probabilities)))
    rows = zip(ids.tolist(), best.tolist(), best.cumsum(0).tolist(), strict=True)
    wanted, actual = seen.wanted[position], None
    if wanted is not None:
        rank = 1 + int((log_probs > log_probs[wanted]).sum())
        actual = seen.token(wanted) | {"p": float(probabilities[wanted]), "rank": rank}
    return {
        "tokens": [seen.token(token) | {"p": p, "cumulative": mass} for token, p, mass in rows],
        "entropy": float(-(probabilities * log_probs).nan_to_num().sum()),
        "actual": actual,
    }
