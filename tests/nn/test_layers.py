"""The feed-forward net: its activations, its gate, its widths; and the norms with their parameters."""

import math

import pytest
import torch
from random_weights import randn

from attendo.nn.layers import FeedForward, build_norm, layer_norm, rms_norm


def gelu_of_gpt_2(x):
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: x.clamp_min(0)),
        ("gelu", lambda x: x * torch.special.ndtr(x)),
        ("gelu_tanh", gelu_of_gpt_2),
        ("silu", lambda x: x / (1 + (-x).exp())),
    ],
)
def test_each_activation_is_its_formula(name, function, gated):
    net, x = FeedForward(4, 7, activation=name, gated=gated).double(), randn(5, 4)
    inner = net.in_proj(x)
    inner = function(net.gate_proj(x)) * inner if gated else function(inner)
    torch.testing.assert_close(net(x), net.out_proj(inner), rtol=1e-12, atol=1e-12)


def test_a_net_without_biases_has_none():
    net = FeedForward(4, 7, gated=True, bias=False)
    assert [(name, tuple(weight.shape)) for name, weight in net.named_parameters()] == [
        ("in_proj.weight", (7, 4)),
        ("gate_proj.weight", (7, 4)),
        ("out_proj.weight", (4, 7)),
    ]
    assert len(list(FeedForward(4, 7, gated=True).parameters())) == 6


def test_nothing_is_dropped_unless_asked_for():
    assert FeedForward(4, 7).dropout.p == 0.0
    assert FeedForward(4, 7, dropout=0.25).dropout.p == 0.25


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
