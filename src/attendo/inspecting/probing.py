"""Linear probes: what can be read from the states of each layer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inspecting.attribution import Inputs, block_paths, embedding_of
from attendo.inspecting.edits import Edit
from attendo.inspecting.recording import recording
from attendo.inspecting.residual_stream import Stack
from attendo.models import Model

TEXTS = 64
"""The number of texts whose outputs of all layers are in memory at the same time."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear probe of one layer, with its accuracy on held-out texts.

    Attributes:
        path: The module path of the embedding or block whose output the probe reads.
        accuracy: The accuracy of the probe.
        majority: The accuracy of always predicting the most frequent label.
        control: The accuracy of a probe of the same kind on the control task.
        n_train: The number of tokens or texts for training.
        n_test: The number of tokens or texts for testing.
        classifier: The fitted scikit-learn pipeline, with `predict` and `predict_proba`.
    """

    path: str
    accuracy: float
    majority: float
    control: float
    n_train: int
    n_test: int
    classifier: Any

    @property
    def selectivity(self) -> float:
        """The accuracy minus the accuracy on the control task. A probe that memorizes words has a low selectivity."""
        return self.accuracy - self.control


def linear_probes(
    model: Model,
    inputs: Sequence[Inputs],
    labels: Sequence[Any],
    *,
    stack: Stack,
    held_out: float = 0.25,
    seed: int = 0,
    edits: Sequence[Edit] = (),
) -> list[Probe]:
    """Fit a linear probe (logistic regression) on the states of each layer, and test the probe on held-out texts.

    The control task of Hewitt & Liang 2019 assigns a random label to each token id (to each text, for labels of texts),
    with the probabilities of the real labels. It can only be learned by memorizing.

    Args:
        model: Any model.
        inputs: The inputs of each text: one row without padding.
        labels: For each text, a list with a label or None (not used) per token, or one label of the whole text, for
            which the states are averaged over the tokens.
        stack: The stack that is probed: "encoder" or "decoder".
        held_out: The share of the texts for testing.
        seed: The seed of the split and of the control task.
        edits: Edits of the model.

    Returns:
        The probes of the embedding and of each block, in order.

    Raises:
        AttendoError: The number of labels is wrong, or the training texts have fewer than 2 labels.
    """
    name, embedding = embedding_of(model, stack)
    ids = [given[name][0].tolist() for given in inputs]
    if len(inputs) != len(labels):
        raise AttendoError(f"probes: {len(inputs)} texts have {len(labels)} entries of labels. Give one per text")
    targets: list[tuple[int, int | None, Hashable]] = []
    for text, (own, tokens) in enumerate(zip(labels, ids, strict=True)):
        if not isinstance(own, list | tuple):
            targets.append((text, None, own))
        elif len(own) != len(tokens):
            raise AttendoError(f"probes: text {text} has {len(tokens)} tokens, but {len(own)} labels")
        else:
            targets += [(text, at, label) for at, label in enumerate(own) if label is not None]
    rng = np.random.default_rng(seed)
    held = set(rng.permutation(len(inputs))[: round(held_out * len(inputs))].tolist())
    is_test = np.array([text in held for text, _, _ in targets])
    wanted = np.array([label for _, _, label in targets])
    if len(set(wanted[~is_test].tolist())) < 2 or not is_test.any():
        raise AttendoError("probes: at least 2 labels in training and 1 test text are required. Give more texts")
    kinds = [tuple(ids[text]) if at is None else ids[text][at] for text, at, _ in targets]
    control = dict(zip(dict.fromkeys(kinds), rng.choice(wanted[~is_test], len(set(kinds))), strict=True))
    tasks = wanted, np.array([control[kind] for kind in kinds])
    if len(set(tasks[1][~is_test].tolist())) < 2:
        raise AttendoError("probes: the control task has only 1 label, by chance. Give more texts")
    names, counts = np.unique(wanted[~is_test], return_counts=True)
    majority = float((wanted[is_test] == names[counts.argmax()]).mean())
    sizes = int((~is_test).sum()), int(is_test.sum())
    probes = []
    for path, states in _states(model, inputs, [(t, at) for t, at, _ in targets], embedding, stack, edits):
        fits = [_fitted(states[~is_test], task[~is_test]) for task in tasks]
        scores = [float(fit.score(states[is_test], task[is_test])) for fit, task in zip(fits, tasks, strict=True)]
        probes.append(Probe(path, scores[0], majority, scores[1], *sizes, fits[0]))
    return probes


@torch.no_grad()
def _states(
    model: Model,
    inputs: Sequence[Inputs],
    places: Sequence[tuple[int, int | None]],
    embedding: str,
    stack: Stack,
    edits: Sequence[Edit],
) -> list[tuple[str, Float[np.ndarray, "rows d_model"]]]:
    """Return the states at the places (text, position) of each layer. The position None is the mean of a text."""
    rows: dict[str, list[Tensor]] = {path: [] for path in (embedding, *block_paths(model, stack))}
    # texts are recorded in groups, because the outputs of all texts may not fit into memory
    for _, group in groupby(places, key=lambda place: place[0] // TEXTS):
        chosen = list(group)
        texts = dict.fromkeys(text for text, _ in chosen)
        with recording(model, [f"{path}.output" for path in rows], edits) as record:
            for text in texts:
                record.model.eval()(**inputs[text])
        for path, found in rows.items():
            outputs = [call.output[0].float().cpu() for call in record.calls(path)]
            states = dict(zip(texts, outputs, strict=True))
            found += [states[text].mean(0) if at is None else states[text][at] for text, at in chosen]
    return [(path, torch.stack(found).numpy()) for path, found in rows.items()]


def _fitted(states: Float[np.ndarray, "rows d_model"], labels: np.ndarray) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(states, labels)
