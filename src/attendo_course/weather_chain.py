"""The weather Markov chain: three states (rain, cloud, sun), one transition matrix, and the exact best possible scores.

The chain is the smallest sequence task whose best possible score can be computed by hand. A model that has learned the
chain reaches `entropy_rate` and `bayes_accuracy`, and no model can do better.
"""

from bisect import bisect_right
from itertools import accumulate

import numpy as np
from jaxtyping import Float, Int

STATES = ("rain", "cloud", "sun")
SYMBOLS = ("🌧️", "☁️", "☀️")
INITIAL = (0.3, 0.4, 0.3)
TRANSITION = (  # row: today, column: tomorrow, both in the order of STATES
    (0.6, 0.3, 0.1),
    (0.3, 0.4, 0.3),
    (0.2, 0.3, 0.5),
)


def _cumulative(probabilities: tuple[float, ...]) -> tuple[float, ...]:
    # Divided by the last sum, as in numpy's `choice`, so both map a random number to the same state.
    sums = tuple(accumulate(probabilities))
    return tuple(value / sums[-1] for value in sums)


_INITIAL_CUMULATIVE = _cumulative(INITIAL)
_TRANSITION_CUMULATIVE = tuple(_cumulative(row) for row in TRANSITION)


def transition_matrix() -> Float[np.ndarray, "states states"]:
    """Return the transition matrix P[today, tomorrow] as a new array. Each row sums to 1.

    >>> transition_matrix().sum(axis=1).round(12).tolist()
    [1.0, 1.0, 1.0]
    """
    return np.array(TRANSITION)


def next_state(previous: int | None, rng: np.random.Generator) -> int:
    """Draw the state after `previous` (None: the first state) with one number from `rng`, as an index into STATES.

    >>> next_state(0, np.random.default_rng(0))
    1
    """
    cumulative = _INITIAL_CUMULATIVE if previous is None else _TRANSITION_CUMULATIVE[previous]
    return bisect_right(cumulative, rng.random())


def generate(n: int, rng: np.random.Generator, start: int | None = None) -> Int[np.ndarray, " n"]:
    """Draw `n` successive states as indices into STATES. The first state follows `start`, or is drawn from INITIAL.

    >>> rng = np.random.Generator(np.random.PCG64(11111))
    >>> " ".join(STATES[state][0].upper() for state in generate(20, rng))
    'C R R R R R R C S R R R C C C S C R C S'
    """
    if n < 0:
        raise ValueError(f"n={n} must be at least 0")
    if start is not None and not 0 <= start < len(STATES):
        raise ValueError(f"start={start} must be a state from 0 to {len(STATES) - 1}")
    states = np.empty(n, dtype=np.int64)
    state = start
    for position in range(n):
        states[position] = state = next_state(state, rng)
    return states


def stationary_distribution() -> Float[np.ndarray, " states"]:
    """Return the distribution π with π P = π, which is (7/18, 1/3, 5/18): the long-run share of each state.

    >>> (stationary_distribution() * 18).round(9).tolist()
    [7.0, 6.0, 5.0]
    """
    # π (P - I) = 0 has one redundant equation, so Σ π = 1 replaces the last equation.
    n_states = len(STATES)
    equations = transition_matrix().T - np.eye(n_states)
    equations[-1] = 1.0
    right_side = np.zeros(n_states)
    right_side[-1] = 1.0
    return np.linalg.solve(equations, right_side)


def entropy(probabilities: Float[np.ndarray, "*batch outcomes"]) -> Float[np.ndarray, "*batch"]:
    """Return the entropy -Σ p ln p over the last axis, in nats. 0 ln 0 counts as 0.

    >>> round(float(entropy(stationary_distribution())), 5)
    1.08931
    """
    logarithms = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(-(probabilities * logarithms).sum(axis=-1))


def entropy_rate() -> float:
    """Return Σ_i π_i H(P_i) in nats, the smallest mean cross-entropy that a model of the next state can have.

    >>> round(entropy_rate(), 5)
    0.99818
    """
    return float(stationary_distribution() @ entropy(transition_matrix()))


def bayes_accuracy() -> float:
    """Return Σ_i π_i max_j P_ij, the best accuracy of a prediction of the next state from all previous states.

    >>> round(bayes_accuracy(), 4)
    0.5056
    """
    return float(stationary_distribution() @ transition_matrix().max(axis=1))


def majority_accuracy() -> float:
    """Return max_i π_i, the accuracy of always predicting the most frequent state.

    >>> round(majority_accuracy(), 4)
    0.3889
    """
    return float(stationary_distribution().max())
