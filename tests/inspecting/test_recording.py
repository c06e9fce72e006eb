"""Recording: what is recorded is what the model computes, and the model never notices."""

import math
import sys

import pytest
import torch
from torch import nn

from attendo.errors import AttendoError
from attendo.inspecting.recording import recording, view
from attendo.models import EncoderDecoder, ModelConfig
from attendo.nn.attention import Attend, Attention, attention_weights, share_heads
from attendo.nn.masks import Mask

LAYERS = [f"encoder.blocks.{n}.self_attention" for n in range(2)]
LAYERS += [f"decoder.blocks.{n}.{kind}_attention" for n in range(2) for kind in ("self", "cross")]


class Pair(nn.Module):
    """Two attention layers with grouped queries, the second with a bias on its scores."""

    def __init__(self):
        super().__init__()
        self.first = Attention(8, 4, n_kv_heads=2)
        self.second = Attention(8, 2)
        self.both = nn.ModuleList([self.first, self.second])

    def forward(self, x, mask=None):
        return self.second(self.first(x, x, mask), x, mask)


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return Pair().double().eval()


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=11,
        d_model=16,
        d_ff=24,
        n_heads=4,
        n_kv_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=2,
        attention_dropout=0.4,
    )
    return EncoderDecoder(config).double().eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(4, 11, (3, 6), generator=generator)
    return src, torch.randint(4, 11, (3, 5), generator=generator), torch.tensor([6, 2, 4])


def state_of(model):
    """Every module with the identity of all it holds, hooks included."""
    return [
        (
            name,
            id(module),
            [(key, id(v), len(v) if isinstance(v, dict) else None) for key, v in vars(module).items()],
        )
        for name, module in model.named_modules(remove_duplicate=False)
    ]


def test_a_view_is_another_tree_with_the_same_parameters(model):
    twin = view(model)
    assert type(twin) is EncoderDecoder
    mine, its = (
        dict(model.named_modules(remove_duplicate=False)),
        dict(twin.named_modules(remove_duplicate=False)),
    )
    assert list(mine) == list(its)
    assert not {id(module) for module in mine.values()} & {id(module) for module in its.values()}
    pairs = zip(
        model.named_parameters(remove_duplicate=False),
        twin.named_parameters(remove_duplicate=False),
        strict=True,
    )
    assert all(a[0] == b[0] and a[1] is b[1] for a, b in pairs)
    assert twin.output_proj.weight is model.output_proj.weight


def test_what_stands_at_two_places_is_one_on_the_view(pair):
    twin = view(pair)
    assert twin.both[0] is twin.first
    assert twin.first is not pair.first


def test_changes_on_a_view_stay_there_but_values_are_shared(pair):
    before = state_of(pair)
    twin = view(pair)
    twin.train()
    twin.first.register_forward_hook(lambda *_: None)
    twin.second.attend = nn.Identity()
    twin.register_buffer("more", torch.zeros(1))
    assert state_of(pair) == before
    assert not pair.training
    with torch.no_grad():
        pair.first.q_proj.weight.fill_(3.0)
    assert twin.first.q_proj.weight[0, 0] == 3.0


@pytest.mark.parametrize(
    "mask",
    [
        None,
        Mask(causal=True),
        Mask(key_lengths=torch.tensor([5, 2])),
        Mask(causal=True, key_lengths=torch.tensor([0, 3])),  # the first row may attend to nothing
    ],
)
def test_recorded_parts_are_the_layers_own(pair, mask):
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    with recording(pair, keep=["*"]) as record:
        found = record.model(x, mask)
    assert torch.allclose(found, pair(x, mask), rtol=0, atol=1e-12)
    assert list(record) == ["first", "second"]
    layer = record["first"]
    key, value = pair.first.keys_values(x)
    assert torch.equal(layer.key, key)
    assert torch.equal(layer.value, value)
    assert layer.query.shape == (2, 4, 5, 2)
    dense = torch.ones(2, 1, 5, 5, dtype=torch.bool) if mask is None else mask.dense(5, 5).expand(2, 1, 5, 5)
    assert torch.equal(layer.weights, attention_weights(layer.query, share_heads(key, 4), dense))
    assert torch.equal(layer.scores, layer.query @ share_heads(key, 4).mT * 2**-0.5)
    allowed = dense.any(-1).expand(2, 4, 5)
    assert torch.allclose(layer.weights.sum(-1), allowed.double(), rtol=0, atol=1e-12)
    assert (layer.weights.masked_select(~dense) == 0).all()


def test_scale_and_bias_of_a_leaf_are_kept():
    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attend(scale=0.3)

        def forward(self, x, bias):
            return self.attend(x, x, x, None, bias)

    leaf, x, bias = (
        nn.ModuleDict({"layer": Leaf(), "attend": Attention(4, 2)}),
        torch.randn(1, 2, 3, 4),
        torch.randn(1, 1, 3, 3),
    )
    with recording(leaf, keep=["layer.*", "attend.weights"]) as record:
        found = record.model["layer"](x, bias)
        record.model["attend"](x[:, 0], x[:, 0])
    assert record["attend"].weights.shape == (1, 2, 3, 3)
    assert torch.allclose(found, leaf["layer"](x, bias), atol=1e-6)
    assert torch.allclose(record["layer"].scores, 0.3 * x @ x.mT + bias, atol=1e-6)


def test_cached_steps_can_be_recorded_too(model, batch):
    src, tgt, lengths = batch
    with torch.no_grad(), recording(model, keep=["decoder.*.self_attention.weights"]) as record:
        cache = record.model.start(src, lengths, 1, 5)
        for i in range(5):
            record.model.step(tgt[:, i : i + 1], cache)
        whole = record.model(src, tgt, lengths)
    assert whole.shape == (3, 5, 11)
    *steps, full = record.calls("decoder.blocks.1.self_attention")
    assert [step.weights.shape[-1] for step in steps] == [1, 2, 3, 4, 5]
    assert torch.allclose(steps[4].weights[:, :, 0], full.weights[:, :, 4], rtol=0, atol=1e-12)


def test_the_model_keeps_its_modules_and_gets_no_hooks(model, batch):
    before = state_of(model)
    with recording(model, keep=["*"]) as record:
        assert state_of(model) == before
        record.model(*batch)
    assert state_of(model) == before
    assert {type(m) for name, m in record.model.named_modules() if name.endswith("attend")} == {Attend}
    with pytest.raises(RuntimeError, match="stop"), recording(model):
        raise RuntimeError("stop")
    assert state_of(model) == before


def test_nothing_is_kept_unless_asked(model, batch):
    with recording(model, keep=["decoder.*.cross_attention.weights", "*.0.cross_attention.key"]) as record:
        modules = dict(record.model.named_modules())
        assert type(modules["encoder.blocks.0.self_attention.attend"]) is Attend
        record.model(*batch)
    assert list(record) == [LAYERS[3], LAYERS[5]]
    assert len(record) == 2
    assert record[LAYERS[3]].parts == ("weights", "key")
    assert record[LAYERS[5]].parts == ("weights",)
    with pytest.raises(AttendoError, match=r"cross_attention\.scores was not recorded\. Use"):
        _ = record[LAYERS[3]].scores
    with pytest.raises(AttendoError, match=r"encoder\.blocks\.0\.self_attention was not recorded \(recorded:"):
        _ = record[LAYERS[0]]


def test_what_cannot_be_recorded_is_said(model):
    with (
        pytest.raises(AttendoError, match=r"'decoder\.blok\.\*' matches no layer and part"),
        recording(model, ["decoder.blok.*"]),
    ):
        pass
    with pytest.raises(AttendoError, match="Linear has no attention layer"), recording(nn.Linear(1, 1)):
        pass
    with recording(model) as record, pytest.raises(AttendoError, match="has not run yet"):
        _ = record[LAYERS[0]]


def test_gradients_reach_recorded_weights_and_the_model(model, batch):
    with recording(model, keep=["*.cross_attention.weights"]) as record:
        record.model(*batch).square().sum().backward(inputs=[record[LAYERS[3]].weights, model.output_proj.weight])
    assert record[LAYERS[3]].weights.grad.abs().sum() > 0
    assert model.output_proj.weight.grad.abs().sum() > 0


def test_dropout_falls_on_the_mix_not_on_the_record(pair):
    pair.train()
    pair.first.attend.dropout = 0.9
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    with recording(pair) as record:
        first, second = record.model(x), record.model(x)
    assert not torch.equal(first, second)
    assert torch.allclose(record["first"].weights.sum(-1), torch.ones(2, 4, 5, dtype=torch.float64))


@pytest.mark.parametrize("inverse_temperature", [0.5, 5.0, math.inf])
def test_a_recording_keeps_the_temperature_of_its_leaf(inverse_temperature):
    attend = Attend(inverse_temperature=inverse_temperature)
    layer = Attention(8, 2, attend=attend)
    x = torch.randn(1, 3, 8)
    with recording(layer) as record:
        torch.testing.assert_close(record.model(x, x), layer(x, x))


def test_outputs_of_blocks_and_stacks_are_there_in_cached_steps(model, batch):
    src, tgt, lengths = batch
    keep = ["decoder.output", "decoder.blocks.?.output", "target_embedding.output"]
    with torch.no_grad(), recording(model, keep) as record:
        whole = record.model(src, tgt, lengths)
        cache = record.model.start(src, lengths, 1, 5)
        steps = torch.cat([record.model.step(tgt[:, i : i + 1], cache) for i in range(5)], 1)
    assert torch.allclose(steps, whole, rtol=0, atol=1e-12)
    for path in ("target_embedding", "decoder.blocks.0", "decoder.blocks.1", "decoder"):
        full, *parts = record.calls(path)
        stepped = torch.cat([part.output for part in parts], 1)
        assert torch.allclose(stepped, full.output, rtol=0, atol=1e-12)


def test_weights_that_nobody_asks_for_are_not_computed(model, batch, monkeypatch):
    def refuse(*_):
        raise AssertionError("computed")

    monkeypatch.setattr(sys.modules[recording.__module__], "masked_softmax", refuse)
    keep = ["*.query", "*.key", "*.value", "*.mixed", "*.output"]
    with torch.no_grad(), recording(model, keep) as record:
        found = record.model(*batch)
    assert torch.equal(found, model(*batch))
    assert record[LAYERS[3]].parts == ("query", "key", "value", "mixed", "output")
    with recording(model, ()) as record:
        assert len(record) == 0
        assert not any(module._forward_hooks for module in record.model.modules())
