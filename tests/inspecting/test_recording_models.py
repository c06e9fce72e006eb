"""Every kind of model recorded is the model, and what is recorded is what its modules hand on."""

import pytest
import torch

from attendo.inspecting.edits import Temper
from attendo.inspecting.recording import PARTS, recording
from attendo.inspecting.residual_stream import head_contributions
from attendo.models import ModelConfig, build_model
from attendo.nn.attention import Attention

SIZES = {"vocab_size": 11, "d_model": 16, "d_ff": 24, "n_heads": 4}
ARCHITECTURES = {
    "encoder-decoder": {"n_encoder_layers": 1, "n_decoder_layers": 1},
    "classifier": {"n_encoder_layers": 2, "n_decoder_layers": 0, "n_classes": 3},
    "decoder": {"n_encoder_layers": 0, "n_decoder_layers": 2},
    "masked": {"n_encoder_layers": 2, "n_decoder_layers": 0},
}
SHAPES = [
    {},
    {"norm_first": True, "n_kv_heads": 2, "positions": "rotary", "value_dim": 3},
    {"n_kv_heads": 1, "positions": "alibi", "attention_scale": 0.7},
    {"norm_first": True, "positions": "learned", "norm": "rms", "feed_forward_gated": True},
]


def any_model(architecture, shape):
    torch.manual_seed(0)
    shape = ModelConfig(architecture=architecture, **SIZES, **ARCHITECTURES[architecture], **shape)
    return build_model(shape).eval()


def inputs_of(architecture, batch):
    src, tgt, lengths = batch
    return {"encoder-decoder": (src, tgt, lengths), "decoder": (tgt,)}.get(architecture, (src, lengths))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(4, 11, (3, 6), generator=generator)
    return src, torch.randint(4, 11, (3, 5), generator=generator), torch.tensor([6, 2, 4])


@pytest.mark.some(5)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shape", SHAPES, ids=range(4))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_model_recorded_is_the_model(architecture, shape, dtype, atol, batch):
    model, inputs = any_model(architecture, shape).to(dtype), inputs_of(architecture, batch)
    with torch.no_grad(), recording(model, "*") as record:
        found = record.model(*inputs)
        plain = model(*inputs)
    torch.testing.assert_close(found, plain, rtol=0, atol=atol)
    for path in record:
        module, each = model.get_submodule(path), record[path]
        if not isinstance(module, Attention):
            assert each.parts == ("output",)
            continue
        assert each.parts == PARTS
        assert ((each.weights.sum(-1) - 1).abs() < 1e-6).all()
        causal = path.startswith("decoder") and path.endswith("self_attention")
        if causal:
            assert (each.weights.triu(1) == 0).all()
        elif architecture != "decoder":
            assert (each.weights[1, :, :, 2:] == 0).all()
        added = head_contributions(each.mixed, module.out_proj.weight).sum(1) + module.out_proj.bias
        torch.testing.assert_close(added, each.output, rtol=0, atol=atol)
    with torch.no_grad(), recording(model, "*", [Temper("*", 1.0)]) as tempered:
        assert torch.equal(tempered.model(*inputs), found)


@pytest.mark.some(4)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_are_what_the_modules_hand_on(architecture, norm_first, batch):
    model, inputs = any_model(architecture, {"norm_first": norm_first}), inputs_of(architecture, batch)
    kinds, hooked, handles = (
        ("Block", "Encoder", "Decoder", "InputEmbedding", "FeedForward", "Attention"),
        {},
        [],
    )
    for path, module in model.named_modules():
        if path and type(module).__name__.endswith(kinds):
            note = lambda *found, path=path: hooked.update({path: found[-1]})  # noqa: E731
            handles.append(module.register_forward_hook(note))
    plain = model(*inputs)
    for handle in handles:
        handle.remove()
    with torch.no_grad(), recording(model, "*.output") as record:
        found = record.model(*inputs)
    assert list(record) == [path for path, _ in model.named_modules() if path in hooked]
    assert torch.equal(found, plain)  # no weights are asked: the fused kernel computes
    assert all(torch.equal(record[path].output, hooked[path]) for path in record)
