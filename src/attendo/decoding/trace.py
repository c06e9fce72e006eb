"""The whole tree of a search as a plain value."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class TraceNode:
    """A candidate that a step kept, with the log-probability of its token.

    `parent` is the beam that it continues (at step 0 the empty text); `beam` is its new beam, None if `finished`.
    """

    token: int
    log_prob: float
    parent: int
    beam: int | None
    finished: bool


@dataclass(frozen=True)
class SearchTrace:
    """All candidates that a search kept for one source: `steps[t]` are those for token t, finished texts first.

    A node that is no later node's parent was dropped, or the search ended. `passed_over[t]` are, on request, the best
    candidates that were not kept; their `beam` is None and `finished` is False.

    >>> tree = SearchTrace(
    ...     (
    ...         (TraceNode(7, -0.5, 0, 0, False), TraceNode(8, -1.0, 0, 1, False)),
    ...         (TraceNode(1, -0.2, 1, None, True),),
    ...     )
    ... )
    >>> tree.path(1, 0)
    ((8, 1), (-1.0, -0.2))
    """

    steps: tuple[tuple[TraceNode, ...], ...]
    passed_over: tuple[tuple[TraceNode, ...], ...] = ()

    def path(self, step: int, number: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the tokens from the root to a node, including an end token, and their log-probabilities.

        Args:
            step: The step of the node.
            number: The number of the node within its step.
        """
        node = self.steps[step][number]
        nodes = [node]
        for earlier in reversed(self.steps[:step]):
            (node,) = (candidate for candidate in earlier if candidate.beam == node.parent)
            nodes.append(node)
        nodes.reverse()
        return tuple(node.token for node in nodes), tuple(node.log_prob for node in nodes)


class TraceRecorder:
    """Records the traces of a batch during a search, with `n_passed_over` dropped candidates per step and group."""

    def __init__(self, n_sources: int, n_passed_over: int = 0) -> None:
        self.n_passed_over = n_passed_over
        self._steps: list[list[tuple[TraceNode, ...]]] = [[] for _ in range(n_sources)]
        self._ended: list[list[TraceNode]] = [[] for _ in range(n_sources)]
        self._passed: list[list[TraceNode]] = [[] for _ in range(n_sources)]
        self._passed_over: list[list[tuple[TraceNode, ...]]] = [[] for _ in range(n_sources)]

    def end(self, source: int, token: int, log_prob: float, parent: int) -> None:
        """The text of a beam ended in this step."""
        self._ended[source].append(TraceNode(token, log_prob, parent, None, True))

    def pass_over(
        self,
        sources: Int[np.ndarray, " sources"],
        tokens: Int[np.ndarray, "sources candidates"],
        log_probs: Float[np.ndarray, "sources candidates"],
        parents: Int[np.ndarray, "sources candidates"],
        without: Bool[np.ndarray, "sources candidates"],
    ) -> None:
        """Record the best candidates of this step `without` a slot."""
        for row, source in enumerate(sources.tolist() if self.n_passed_over else ()):
            for number in np.flatnonzero(without[row])[: self.n_passed_over].tolist():
                token = int(tokens[row, number])
                log_prob = float(log_probs[row, number])
                node = TraceNode(token, log_prob, int(parents[row, number]), None, False)
                self._passed[source].append(node)

    def go_on(
        self,
        sources: Int[np.ndarray, " sources"],
        tokens: Int[np.ndarray, "sources beam"],
        log_probs: Float[np.ndarray, "sources beam"],
        parents: Int[np.ndarray, "sources beam"],
        live: Bool[np.ndarray, "sources beam"],
    ) -> None:
        """Close the step with the tokens by which `live` beams continue."""
        for row, source in enumerate(sources.tolist()):
            nodes = self._ended[source]
            for beam in np.flatnonzero(live[row]).tolist():
                token = int(tokens[row, beam])
                log_prob = float(log_probs[row, beam])
                nodes.append(TraceNode(token, log_prob, int(parents[row, beam]), beam, False))
            if nodes:
                self._steps[source].append(tuple(nodes))
                if self.n_passed_over:
                    self._passed_over[source].append(tuple(self._passed[source]))
            self._ended[source] = []
            self._passed[source] = []

    def traces(self) -> list[SearchTrace]:
        """The collected traces, one per source."""
        both = zip(self._steps, self._passed_over, strict=True)
        return [SearchTrace(tuple(steps), tuple(passed)) for steps, passed in both]
