"""A model made ready for decoding is the same model: equal numbers, shared parameters, rows that do not meet."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attendo.decoding.cpu_linear import (
    FEW,
    LARGEST,
    FastLinear,
    Int8Linear,
    as_it_is,
    has_blocks,
    packed,
    prepared,
    quantized,
    transposed,
)
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig

SIZES: dict[str, Any] = {"vocab_size": 50, "d_model": 32, "d_ff": 48, "n_heads": 4}
SRC = torch.tensor([[5, 6, 7, 3], [9, 8, 3, 0]])
LENGTHS = torch.tensor([4, 3])


def small() -> EncoderDecoder:
    torch.manual_seed(1)
    return EncoderDecoder(ModelConfig(**SIZES, n_encoder_layers=1, n_decoder_layers=2, dropout=0.3)).eval()


def steps(model: EncoderDecoder, src: torch.Tensor = SRC, lengths: torch.Tensor | None = LENGTHS) -> torch.Tensor:
    with torch.inference_mode():
        cache = model.start(src, lengths, rows_per_source=2, capacity=6)
        tokens = torch.tensor([2, 11, 12, 13])
        return torch.stack([model.step(t.expand(cache.rows, 1), cache)[:, -1] for t in tokens])


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 70])
@pytest.mark.parametrize("layout", [as_it_is, transposed, *[packed] * has_blocks()])
@pytest.mark.parametrize("biased", [True, False])
def test_every_layout_is_the_same_product(layout, rows, biased):
    torch.manual_seed(rows)
    plain = nn.Linear(24, 40, bias=biased)
    weight, bias = plain.weight.detach(), None if plain.bias is None else plain.bias.detach()
    product = layout(weight, bias)
    x = torch.randn(rows, 24)
    with torch.inference_mode():
        assert torch.allclose(product(x), plain(x), atol=1e-5)
        leaf = FastLinear(plain)
        stacked = x.expand(2, 3, rows, 24)
        assert torch.allclose(leaf(stacked), plain(stacked), atol=1e-5)


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 40), st.floats(1e-6, 1e6), st.integers(0, 2**31))
def test_quantizing_errs_by_half_a_step_at_most(rows, width, size, seed):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    numbers, scale = quantized(x)
    assert int(numbers.abs().max()) <= LARGEST
    assert ((numbers * scale - x).abs() <= scale * (0.5 + 1e-4)).all()
    alone = [quantized(row[None]) for row in x]
    assert torch.equal(torch.cat([n for n, _ in alone]), numbers) and torch.equal(
        torch.cat([s for _, s in alone]), scale
    )


@settings(max_examples=40)
@given(st.integers(1, 20), st.integers(2, 70), st.integers(1, 30), st.booleans(), st.integers(0, 2**31))
def test_a_product_in_8_bits_is_that_of_the_rounded_numbers(rows, width, outputs, biased, seed):
    torch.manual_seed(seed)
    plain, x = nn.Linear(width, outputs, bias=biased), torch.randn(rows, width)
    leaf = Int8Linear(plain)
    x_numbers, x_scale = quantized(x)
    w_numbers, w_scale = quantized(plain.weight.detach())
    exact = (x_numbers.double() * x_scale.double()) @ (w_numbers.double() * w_scale.double()).mT
    exact = exact if plain.bias is None else exact + plain.bias.detach().double()
    found = leaf(x)
    assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-5)
    one = torch.cat([leaf(row[None]) for row in x])
    assert torch.equal(one, found)  # to the bit: no row knows of another


def test_a_single_input_is_refused():
    with pytest.raises(ValueError, match="in_features=1 is too small"):
        Int8Linear(nn.Linear(1, 4))


@pytest.mark.parametrize("int8", [False, True])
def test_the_prepared_model_gives_the_same_steps(int8):
    model = small()
    ready = prepared(model, 8 if int8 else 32)
    exact = steps(model)
    error = (steps(ready) - exact).abs().max() / exact.abs().max()
    assert error < (0.05 if int8 else 1e-5)
    assert not ready.training
    kinds = {type(module) for module in ready.modules()} & {nn.Linear, FastLinear, Int8Linear}
    assert kinds == ({Int8Linear} if int8 else {FastLinear})
    assert {path for path, _ in ready.named_modules()} == {path for path, _ in model.named_modules()}


def test_the_model_stays_as_it_is_and_shares_what_is_not_a_linear_layer():
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ready = prepared(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(type(module) is not FastLinear for module in model.modules())
    assert ready.source_embedding.tokens.weight is model.source_embedding.tokens.weight


def test_preparing_twice_gives_the_same_bits():
    model = small()
    assert torch.equal(steps(prepared(model)), steps(prepared(model)))


def test_a_model_in_training_is_prepared_for_evaluation_only():
    model = small().train()
    ready = prepared(model)
    assert model.training and not ready.training
    assert torch.equal(steps(ready), steps(ready))  # dropout would differ


def test_other_formats_stay_as_they_are():
    model = small().double()
    ready = prepared(model)
    assert all(type(module) is not FastLinear for module in ready.modules())
    assert torch.equal(steps(ready), steps(model))


def test_8_bits_do_not_depend_on_the_batch():
    ready = prepared(small(), 8)
    alone = [steps(ready, SRC[i : i + 1, : int(LENGTHS[i])], None) for i in range(2)]
    assert torch.allclose(torch.cat(alone, 1), steps(ready), atol=1e-5)


def test_a_decoder_that_stands_alone_is_prepared_too():
    torch.manual_seed(2)
    config = ModelConfig(architecture="decoder", **SIZES, n_encoder_layers=0, n_decoder_layers=2, dropout=0.0)
    model = DecoderLM(config).eval()
    ids = torch.tensor([[2, 5, 6, 7]])
    with torch.inference_mode():
        assert torch.allclose(prepared(model)(ids), model(ids), atol=1e-5)
