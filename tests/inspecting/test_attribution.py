"""Attribution against definitions: patches one at a time, sums that must be exact, and completeness."""

import itertools

import pytest
import torch

from attendo.errors import AttendoError
from attendo.inspecting.attribution import (
    integrated_gradients,
    log_prob,
    logit_attribution,
    logit_difference,
    patching_effects,
)
from attendo.inspecting.edits import Off, Patch
from attendo.inspecting.recording import edited, recording
from attendo.models import ModelConfig, build_model

SIZES = {"vocab_size": 19, "d_model": 16, "d_ff": 24, "n_heads": 4, "n_kv_heads": 2, "tie": "all"}


def model_of(architecture="encoder-decoder", **options):
    torch.manual_seed(0)
    layers = {
        "n_encoder_layers": 2 * (architecture != "decoder"),
        "n_decoder_layers": 2 * ("decoder" in architecture),
    }
    classes = {"n_classes": 3, "tie": "none"} if architecture == "classifier" else {}
    config = ModelConfig(architecture=architecture, **(SIZES | layers | classes | options))
    model = build_model(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def inputs_of(model, seed=0):
    draw = torch.Generator().manual_seed(seed)
    src, tgt = (torch.randint(0, 19, (1, n), generator=draw) for n in (5, 6))
    match model.config.architecture:
        case "encoder-decoder":
            return {"src": src, "tgt": tgt}
        case "decoder":
            return {"token_ids": tgt}
    return {"src": src}


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("architecture", "stack", "layer", "part"),
    [
        ("decoder", "decoder", "", "output"),
        ("encoder-decoder", "encoder", "", "output"),
        ("encoder-decoder", "decoder", "cross_attention", "mixed"),
        ("encoder-decoder", "decoder", "self_attention", "weights"),
        ("encoder-decoder", "decoder", "feed_forward", "output"),
        ("classifier", "encoder", "self_attention", "output"),
    ],
)
def test_patching_in_batches_is_each_patch_alone(architecture, stack, layer, part):
    model = model_of(architecture)
    clean, corrupted, metric = inputs_of(model), inputs_of(model, 1), logit_difference(1, 2)
    edits, corruption = (
        [Off(f"{stack}.blocks.0.self_attention", (1,))],
        [Off(f"{stack}.blocks.1.feed_forward")],
    )
    found = patching_effects(
        model,
        clean,
        corrupted,
        metric,
        stack=stack,
        layer=layer,
        part=part,
        edits=edits,
        corruption=corruption,
    )
    paths = [f"{stack}.blocks.{n}.{layer}".rstrip(".") for n in range(2)]
    with torch.no_grad(), recording(model, [f"{path}.{part}" for path in paths], edits) as record:
        assert found.clean == pytest.approx(float(metric(record.model(**clean))), abs=1e-12)
    for path, row in zip(paths, found.effects, strict=True):
        value = getattr(record[path], part)
        assert len(row) == value.shape[1]
        for n, change in enumerate(row.tolist()):
            place = {"positions": (n,)} if part == "output" else {"heads": (n,)}
            patch = Patch(path, value, part, **place)
            with torch.no_grad(), edited(model, [*edits, *corruption, patch]) as view:
                alone = float(metric(view(**corrupted)))
            assert change == pytest.approx(alone - found.corrupted, abs=1e-12)
    assert found.effects.abs().max() > 1e-3
    torch.testing.assert_close(found.recovered * (found.clean - found.corrupted), found.effects)


def test_all_states_of_the_clean_run_give_its_output_and_noise_is_undone():
    model = model_of("decoder")
    clean, corrupted = inputs_of(model), inputs_of(model, 1)
    with torch.no_grad(), recording(model, ["embedding.output", "decoder.blocks.0.output"]) as record:
        wanted = record.model(**clean)
    for path in ("embedding", "decoder.blocks.0"):
        with torch.no_grad(), edited(model, [Patch(path, record[path].output)]) as view:
            torch.testing.assert_close(view(**corrupted), wanted, rtol=0, atol=1e-12)
    noise = [Patch("embedding", torch.randn(1, 1, 16, dtype=torch.float64), positions=(-1, 2))]
    traced = patching_effects(model, clean, clean, log_prob(3), corruption=noise)
    assert abs(traced.clean - traced.corrupted) > 1e-3
    assert float(traced.recovered[-1, -1]) == pytest.approx(1.0)


@pytest.mark.some(2)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_the_attribution_of_all_components_sums_to_the_logit(architecture, norm_first):
    noise = torch.randn(1, 16, dtype=torch.float64)
    all_edits = (
        [],
        [Off("decoder.blocks.0.self_attention", (1,)), Off("decoder.blocks.1.feed_forward")],
        [Off("decoder.blocks.1.self_attention")],
        [Patch("decoder.blocks.0", noise)],
    )
    for norm, edits in itertools.product(("layer", "rms"), all_edits):
        model = model_of(architecture, norm_first=norm_first, norm=norm)
        inputs = inputs_of(model)
        with torch.no_grad(), edited(model, edits) as view:
            logits = view(**inputs)[0, 2]
        for other, wanted in ((None, logits[3]), (5, logits[3] - logits[5])):
            parts = logit_attribution(model, inputs, 3, other, 2, edits=edits)
            assert sum(part.value for part in parts) == pytest.approx(float(wanted), abs=1e-12)
    first = parts[0]
    assert (first.path, first.head) == ("decoder.blocks.0", None)  # the patched state is one component


def test_a_head_off_takes_its_attribution_with_it():
    model = model_of("decoder", norm_first=True)
    path, inputs = "decoder.blocks.1.self_attention", inputs_of(model)
    of_head = {
        bool(edits): [p.value for p in logit_attribution(model, inputs, 3, edits=edits) if p.path == path]
        for edits in ([], [Off(path, (2,))])
    }
    assert len(of_head[False]) == 5 and of_head[False][2] != 0.0 and of_head[True][2] == 0.0


@pytest.mark.some(4)
@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder", "classifier", "masked"])
@pytest.mark.parametrize("baseline", [None, 4])
def test_integrated_gradients_sum_to_the_change_and_an_unchanged_token_has_none(architecture, baseline):
    model = model_of(architecture, activation="gelu", norm_first=True, tie="none")
    inputs, metric = inputs_of(model), log_prob(2)
    for tensor in inputs.values():
        tensor[0, 1] = 4
    edits = [Off("*.0.self_attention", (1,))]
    found = integrated_gradients(model, inputs, metric, baseline=baseline, n_steps=300, edits=edits)
    assert found.tokens.keys() == inputs.keys()
    assert abs(found.error) < 1e-3 < abs(found.change)
    if baseline is not None:
        with torch.no_grad(), edited(model, edits) as view:
            start = view(**{name: torch.full_like(tensor, 4) for name, tensor in inputs.items()})
            change = float(metric(view(**inputs)) - metric(start))
        assert found.change == pytest.approx(change, abs=1e-12)
        assert all(float(tokens[1]) == 0.0 for tokens in found.tokens.values())


def test_what_cannot_be_attributed_is_said():
    model, other = model_of("decoder"), {"token_ids": torch.tensor([[1, 2]])}
    with pytest.raises(AttendoError, match="Use texts with the same number of tokens"):
        patching_effects(model, inputs_of(model), other, log_prob(3))
    with pytest.raises(AttendoError, match="DecoderLM has no encoder"):
        patching_effects(model, other, other, log_prob(3), stack="encoder")
    classifier = model_of("classifier")
    with pytest.raises(AttendoError, match="EncoderClassifier has no decoder"):
        logit_attribution(classifier, inputs_of(classifier), 1)


def test_recording_and_attribution_know_windows_soft_limits_and_norms_of_outputs():
    model = model_of(
        "decoder",
        norm="rms",
        norm_first=True,
        norm_output=True,
        attention_windows=(3, 0),
        attention_softcap=0.7,
    )
    inputs = inputs_of(model)
    with torch.no_grad(), recording(model, ["*.weights"]) as record:
        torch.testing.assert_close(record.model(**inputs), model(**inputs), rtol=0, atol=1e-12)
    weights = record["decoder.blocks.0.self_attention"].weights[0]
    assert not weights[:, 5, :3].any() and weights[:, 5, 3:].all()
    with torch.no_grad():
        logit = float(model(**inputs)[0, -1, 3])
    parts = logit_attribution(model, inputs, 3)
    assert sum(part.value for part in parts) == pytest.approx(logit, abs=1e-9)
    heads = {part.head for part in parts if part.path == "decoder.blocks.1.self_attention"}
    assert heads == {0, 1, 2, 3, None}
