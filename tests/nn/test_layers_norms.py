"""The norms and the modules that hold their parameters."""

import pytest
import torch

from attendo.nn.layers import build_norm, layer_norm, rms_norm


def test_epsilon_is_1e_5_unless_given():
    x = torch.tensor([[1e-3, 2e-3, 6e-3]], dtype=torch.float64)  # small enough for it to count
    centered = x - x.mean()
    expected = centered / (centered.square().mean() + 1e-5).sqrt()
    torch.testing.assert_close(layer_norm(x), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rms_norm(x), x / (x.square().mean() + 1e-5).sqrt(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "function", "n"), [("layer", layer_norm, 2), ("rms", rms_norm, 1)])
def test_a_built_norm_is_the_formula_of_its_kind(kind, function, n):
    norm, x = build_norm(kind, 3, 0.5), torch.tensor([[1.0, 2.0, 6.0]])
    parameters = list(norm.parameters())
    assert [tuple(parameter.shape) for parameter in parameters] == [(3,)] * n
    for number, parameter in enumerate(parameters):
        parameter.data = torch.tensor([2.0, -1.0, 0.5]) + number
    torch.testing.assert_close(norm(x), function(x, *parameters, eps=0.5))
