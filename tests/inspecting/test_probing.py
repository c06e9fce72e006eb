"""Linear probes: what is in a state is found, what is not is not, and the control task shows what is memorized."""

import numpy as np
import pytest
import torch

from attendo.errors import AttendoError
from attendo.inspecting.probing import linear_probes
from attendo.models import DecoderLM, ModelConfig


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 48, "d_ff": 16, "n_heads": 2}
    layers = {"n_encoder_layers": 0, "n_decoder_layers": 1, "positions": "none"}
    model = DecoderLM(ModelConfig(architecture="decoder", **sizes, **layers)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return [{"token_ids": torch.from_numpy(rng.integers(0, 40, (1, 8)))} for _ in range(60)]


def test_probes_of_tokens(model, inputs):
    ids = [given["token_ids"][0].tolist() for given in inputs]
    own = [["first" if id_ < 8 else None if id_ < 10 else "other" for id_ in row] for row in ids]
    embedding, block = linear_probes(model, inputs, own, stack="decoder")
    assert (embedding.path, block.path) == ("embedding", "decoder.blocks.0")
    assert embedding.accuracy == 1.0 and 0.7 < embedding.majority < 0.9
    assert embedding.n_train + embedding.n_test == sum(label is not None for row in own for label in row)
    # a random label of each token id is as easy to read from an embedding
    assert embedding.selectivity == embedding.accuracy - embedding.control < 0.1
    assert list(embedding.classifier.classes_) == ["first", "other"]
    before = [[None, *("even" if id_ % 2 else "odd" for id_ in row[:-1])] for row in ids]
    embedding, _ = linear_probes(model, inputs, before, stack="decoder")
    assert abs(embedding.accuracy - 0.5) < 0.15  # an embedding does not contain the token before


def test_probes_of_texts(model):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60).tolist()
    inputs = [{"token_ids": torch.from_numpy(rng.integers(20 * n, 20 * n + 20, (1, 8)))} for n in labels]
    embedding, _ = linear_probes(model, inputs, labels, stack="decoder", seed=1)
    assert embedding.accuracy > 0.85 and embedding.majority < 0.7 and embedding.selectivity > 0.2
    assert (embedding.n_train, embedding.n_test) == (45, 15)
    assert linear_probes(model, inputs, labels, stack="decoder", seed=1)[0].control == embedding.control


def test_labels_that_do_not_fit_are_rejected(model, inputs):
    with pytest.raises(AttendoError, match="60 texts have 1 entries of labels"):
        linear_probes(model, inputs, ["a"], stack="decoder")
    with pytest.raises(AttendoError, match="text 0 has 8 tokens, but 2 labels"):
        linear_probes(model, inputs, [["a", "b"]] * 60, stack="decoder")
    with pytest.raises(AttendoError, match="at least 2 labels"):
        linear_probes(model, inputs, ["a"] * 60, stack="decoder")
