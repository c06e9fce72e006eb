"""The tree of a beam search: all candidates that the search kept at each step."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class TraceNode:
    """A candidate of a search step: a hypothesis that is extended by one token, whose log-probability is in nats.

    `parent` is the index of the extended beam, from 0. At step 0, every beam contains the empty text. `beam` is the
    index of the candidate's new beam, or None if the candidate is finished or was not kept.
    """

    token: int
    log_prob: float
    parent: int
    beam: int | None
    finished: bool


@dataclass(frozen=True)
class SearchTrace:
    """All candidates that a search kept for one source.

    `steps[t]` contains the kept candidates for token t of the text, from 0. In each step, finished candidates come
    first. A kept candidate that no later candidate extends was dropped, or the search ended. If requested,
    `passed_over[t]` contains the best candidates that were not kept at step t, with `beam` None and `finished` False.

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
        """Return the token ids from the root to a node, and the log-probability of each token.

        Args:
            step: Index of the search step that contains the node, from 0.
            number: Index of the node in `steps[step]`, from 0.
        """
        node = self.steps[step][number]
        nodes = [node]
        for earlier in reversed(self.steps[:step]):
            (node,) = (candidate for candidate in earlier if candidate.beam == node.parent)
            nodes.append(node)
        nodes.reverse()
        return tuple(node.token for node in nodes), tuple(node.log_prob for node in nodes)


class TraceRecorder:
    """A recorder of the search trees of a batch, with up to `n_passed_over` dropped candidates per step and group."""

    def __init__(self, n_sources: int, n_passed_over: int = 0) -> None:
        self.n_passed_over = n_passed_over
        self._steps: list[list[tuple[TraceNode, ...]]] = [[] for _ in range(n_sources)]
        self._ended: list[list[TraceNode]] = [[] for _ in range(n_sources)]
        self._passed: list[list[TraceNode]] = [[] for _ in range(n_sources)]
        self._passed_over: list[list[tuple[TraceNode, ...]]] = [[] for _ in range(n_sources)]

    def end(self, source: int, token: int, log_prob: float, parent: int) -> None:
        """Record that the text of the beam `parent` ended in this step."""
        self._ended[source].append(TraceNode(token, log_prob, parent, None, True))

    def pass_over(
        self,
        sources: Int[np.ndarray, " sources"],
        tokens: Int[np.ndarray, "sources candidates"],
        log_probs: Float[np.ndarray, "sources candidates"],
        parents: Int[np.ndarray, "sources candidates"],
        without: Bool[np.ndarray, "sources candidates"],
    ) -> None:
        """Record the best candidates that this step dropped. `without` marks all dropped candidates."""
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
        """Record the tokens that extend the beams marked in `live`, and finish the step."""
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
        """Return the recorded search trees, one per source."""
        both = zip(self._steps, self._passed_over, strict=True)
        return [SearchTrace(tuple(steps), tuple(passed)) for steps, passed in both]
