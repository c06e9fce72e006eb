"""Linear probes of a model on labeled texts, for the microscope page."""

from __future__ import annotations

from collections.abc import Sequence

from attendo.inspecting.probing import linear_probes
from attendo.inspecting.residual_stream import Stack
from attendo.microscope.protocol import MOST_CHARACTERS, LookRequest, Probes
from attendo.microscope.run_model import User, read


def probes_of(user: User, rows: Sequence[tuple[str, str]]) -> Probes:
    """Fit linear probes to rows (text, label), and return their accuracy on held-out texts (see `linear_probes`).

    A probe reads the mean of the states of a text, in the encoder if the model has an encoder. A text is truncated to
    the context length. Raise AttendoError if there are fewer than 2 labels.
    """
    stack: Stack = "encoder" if hasattr(user.model, "encoder") else "decoder"
    asked = [LookRequest(text=text[:MOST_CHARACTERS], search="forced", target="") for text, _ in rows]
    inputs = [read(user, request).inputs(user.task, user.device) for request in asked]
    probes = linear_probes(user.model, inputs, [label for _, label in rows], stack=stack)
    return {
        "stack": stack,
        "accuracy": [probe.accuracy for probe in probes],
        "control": [probe.control for probe in probes],
        "majority": probes[0].majority,
        "n_train": probes[0].n_train,
        "n_test": probes[0].n_test,
    }
