"""How weights start, by their variance."""

import pytest
import torch
from torch import nn

from attendo.models import EncoderDecoder, ModelConfig
from attendo.nn.layers import TokenEmbedding, initialize, normal, xavier
from attendo.nn.positions import LearnedPositions, RelativeBias


def model(**changes):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 300,
        "d_model": 96,
        "d_ff": 192,
        "n_heads": 4,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
    }
    return EncoderDecoder(ModelConfig(**(sizes | changes)))


def variance(weight):
    assert abs(weight.mean()) < 5 * (weight.var() / weight.numel()) ** 0.5
    return weight.var().item()


def test_xavier_gives_each_matrix_the_variance_of_its_widths():
    for module in model(n_kv_heads=2, tie="none").modules():
        if isinstance(module, nn.Linear):
            n_out, n_in = module.weight.shape
            assert variance(module.weight) == pytest.approx(2 / (n_in + n_out), rel=0.06)
            assert module.weight.abs().max() <= (6 / (n_in + n_out)) ** 0.5  # uniform, not normal


@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_xavier_gives_scaled_embeddings_variance_one(tie):
    built = model(tie=tie, positions="learned")
    token_ids = torch.arange(300)
    assert variance(built.source_embedding.tokens(token_ids)) == pytest.approx(1.0, rel=0.06)
    assert variance(built.target_embedding.tokens(token_ids)) == pytest.approx(1.0, rel=0.06)
    assert variance(built.source_embedding.positions.weight) == pytest.approx(1 / 96, rel=0.06)


def test_a_tied_output_starts_as_the_embedding():
    assert variance(model().output_proj.weight) == pytest.approx(1 / 96, rel=0.06)


def test_normal_gives_everything_the_same_deviation():
    built = model(initialization="normal", positions="learned", tie="none")
    weights = [parameter for parameter in built.parameters() if parameter.ndim == 2]
    assert len(weights) == 12 + 4 + 2 + 2 + 1  # attention, feed-forward, tokens, positions, output
    for weight in weights:
        assert variance(weight) == pytest.approx(0.02**2, rel=0.06)


@pytest.mark.parametrize("scheme", ["xavier", "normal"])
def test_biases_start_at_zero_and_norms_as_identity(scheme):
    for name, parameter in model(initialization=scheme).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert parameter.eq(1.0).all(), name


def test_a_scheme_is_found_by_its_name_and_repeats_by_its_seed():
    def weights(fill):
        layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
        torch.manual_seed(5)
        fill(layers)
        return nn.utils.parameters_to_vector(layers.parameters())

    assert weights(xavier).equal(weights(lambda layers: initialize(layers, "xavier")))
    assert weights(normal).equal(weights(lambda layers: initialize(layers, "normal")))
    assert not weights(normal).equal(weights(xavier))


@pytest.mark.parametrize(("scheme", "deviation"), [("xavier", 400**-0.5), ("normal", 0.02)])
def test_every_kind_of_table_is_filled(scheme, deviation):
    torch.manual_seed(0)
    tables = [TokenEmbedding(200, 400), LearnedPositions(400, 200), RelativeBias(400, 200)]
    initialize(nn.ModuleList(tables), scheme)
    for table in tables:
        assert variance(table.weight) == pytest.approx(deviation**2, rel=0.06)


def test_the_row_of_padding_starts_at_zero_and_no_other():
    for scheme in ("xavier", "normal"):
        tokens = TokenEmbedding(5, 4, pad_id=2)
        initialize(tokens, scheme)
        assert tokens.weight.any(1).tolist() == [True, True, False, True, True]
