"""Linear probes of labeled texts for the page."""

import pytest
import torch
from tiny_looks import TOKENIZER, tiny_user

from attendo.errors import AttendoError
from attendo.inspecting import probing
from attendo.inspecting.probing import linear_probes
from attendo.microscope.session import probes_of

ROWS = [(f"it will {kind} on the {day}th", kind) for day in range(10, 26) for kind in ("rain", "snow")]


@pytest.mark.some(1)
@pytest.mark.parametrize("family", ["translation", "language-model"])
def test_the_probes_of_texts_read_what_the_model_reads(family, monkeypatch):
    monkeypatch.setattr(probing, "TEXTS", 5)  # several groups of texts
    user = tiny_user(family)
    found = probes_of(user, ROWS)
    specials = user.tokenizer.specials
    inputs, stack = [], "decoder" if family == "language-model" else "encoder"
    for text, _ in ROWS:
        ids = TOKENIZER.encode(text)
        read = {"src": specials.source(ids), "tgt": specials.begin}
        if family == "language-model":
            read = {"token_ids": specials.prompt(ids)}
        inputs.append({name: torch.tensor([row]) for name, row in read.items()})
    own = linear_probes(user.model, inputs, [label for _, label in ROWS], stack=stack)
    assert found["stack"] == stack and (found["n_train"], found["n_test"]) == (24, 8)
    assert found["accuracy"] == [probe.accuracy for probe in own] and found["accuracy"][0] > found["majority"]
    assert found["control"] == [probe.control for probe in own]


def test_one_label_is_too_few():
    with pytest.raises(AttendoError, match="at least 2 labels"):
        probes_of(tiny_user("language-model"), [(text, "rain") for text, _ in ROWS])
