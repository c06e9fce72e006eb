"""The lens at the last layer is the model; before, it is the rest of the model with the later blocks left out."""

import pytest
import torch

from attendo.errors import AttendoError
from attendo.inspecting.edits import Off
from attendo.inspecting.recording import recording
from attendo.inspecting.residual_stream import lens_cosines, lens_logits, pooled_lens
from attendo.models import ModelConfig, build_model

SIZES = {"vocab_size": 11, "d_model": 16, "d_ff": 24, "n_heads": 4}
MODELS = {
    "encoder-decoder": ("decoder", {"n_encoder_layers": 1, "n_decoder_layers": 3}),
    "classifier": ("encoder", {"n_encoder_layers": 3, "n_decoder_layers": 0, "n_classes": 3}),
    "decoder": ("decoder", {"n_encoder_layers": 0, "n_decoder_layers": 3}),
    "masked": (
        "encoder",
        {"n_encoder_layers": 3, "n_decoder_layers": 0, "d_output": 16, "activation": "gelu"},
    ),
}


def inputs_of(architecture):
    generator = torch.Generator().manual_seed(0)
    src, tgt = (torch.randint(4, 11, (2, n), generator=generator) for n in (6, 5))
    lengths = torch.tensor([6, 3])
    return {"encoder-decoder": (src, tgt, lengths), "decoder": (tgt,)}.get(architecture, (src, lengths))


def small(architecture, **options):
    torch.manual_seed(0)
    return build_model(ModelConfig(architecture=architecture, **SIZES, **MODELS[architecture][1], **options)).eval()


POOLED = [("classifier", {"pooling": pooling}) for pooling in ("mean", "max", "first")]


@pytest.mark.some(4)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("architecture", "options"), [*((name, {}) for name in MODELS if name != "classifier"), *POOLED]
)
def test_the_lens_at_the_last_block_is_the_models_answer(architecture, norm_first, options):
    model, inputs = small(architecture, norm_first=norm_first, **options), inputs_of(architecture)
    stack = MODELS[architecture][0]
    with torch.no_grad(), recording(model, f"{stack}.blocks.?.output") as record:
        logits = record.model(*inputs)
        states = [record[path].output for path in record]
        if architecture == "classifier":
            assert torch.equal(pooled_lens(model, states[-1], inputs[1]), logits)
            assert lens_logits(model, states[-1], stack).shape == (2, 6, 3)
            assert not torch.allclose(pooled_lens(model, states[0], inputs[1]), logits, atol=1e-3)
        else:
            assert torch.equal(lens_logits(model, states[-1], stack), logits)
            assert not torch.allclose(lens_logits(model, states[0], stack), logits, atol=1e-3)


@pytest.mark.parametrize("architecture", MODELS)
def test_the_lens_before_is_the_model_without_its_later_blocks(architecture):
    """Where the norm comes first, a block whose sub-layers give 0 leaves the stream as it is."""
    model, inputs, stack = (
        small(architecture, norm_first=True),
        inputs_of(architecture),
        MODELS[architecture][0],
    )
    with torch.no_grad(), recording(model, f"{stack}.blocks.0.output") as record:
        record.model(*inputs)
        state = record[f"{stack}.blocks.0"].output
        found = (
            pooled_lens(model, state, inputs[1]) if architecture == "classifier" else lens_logits(model, state, stack)
        )
    with torch.no_grad(), recording(model, (), [Off(f"{stack}.blocks.[12].*")]) as record:
        assert torch.equal(record.model(*inputs), found)


def test_an_encoder_of_a_translator_has_nearest_embeddings():
    model = small("encoder-decoder", norm_first=True).double()
    src, _, lengths = inputs_of("encoder-decoder")
    with torch.no_grad(), recording(model, ["source_embedding.output", "encoder.output"]) as record:
        record.model.encode(src, lengths)
        found = lens_cosines(model, record["source_embedding"].output)
        state = model.encoder.norm(record["source_embedding"].output)[1, 2]
    weight = model.source_embedding.tokens.weight
    for token in range(11):
        cosine = torch.cosine_similarity(state, weight[token], dim=0).item()
        assert found[1, 2, token].item() == pytest.approx(cosine, abs=1e-12)


@pytest.mark.parametrize(
    ("architecture", "stack", "remedy"),
    [
        ("encoder-decoder", "encoder", "use lens_cosines"),
        ("classifier", "decoder", "use the other stack"),
        ("decoder", "encoder", "use lens_cosines"),
    ],
)
def test_a_stack_that_predicts_nothing_is_named(architecture, stack, remedy):
    with pytest.raises(AttendoError, match=rf"predicts nothing from the {stack}; {remedy}"):
        lens_logits(small(architecture), torch.zeros(1, 1, 16), stack)
