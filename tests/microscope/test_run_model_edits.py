"""A compiled model with edits is the view with the same edits, and the model that it was made of stays as it was."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import VOCAB, configs, model_of, sources, translator

from attendo.decoding.backends import best_backend, eager_backend
from attendo.decoding.native.compiled import CompiledModel
from attendo.decoding.shortlist import Shortlist
from attendo.inspecting.edits import Edit, Off, OffByRow, Patch, Temper
from attendo.inspecting.recording import recording
from attendo.microscope.run_model import changes_of
from attendo.models import EncoderDecoder
from attendo.nn.attention import Attend, Attention
from attendo.nn.layers import FeedForward


@st.composite
def edits_of(draw, model) -> list[Edit]:
    """Up to five edits, several of them of one layer."""
    layers = {path: m for path, m in model.named_modules() if isinstance(m, Attention | FeedForward)}
    width = model.config.d_model
    edits: list[Edit] = []
    for seed in range(draw(st.integers(1, 5))):
        path = draw(st.sampled_from([*layers, "*"]))
        numbers = torch.Generator().manual_seed(seed)
        attention = layers.get(path)
        if path == "*":
            edits.append(Temper(path, draw(st.sampled_from([0.0, 0.5, 1.0, 2.5]))))
        elif draw(st.booleans()) or not isinstance(attention, Attention):
            whole = draw(st.booleans())
            edits.append(Patch(path, torch.randn(1, width, generator=numbers)) if whole else Off(path))
        else:
            heads = draw(st.none() | st.sets(st.integers(0, attention.n_heads - 1), min_size=1).map(tuple))
            mean = torch.randn(attention.n_heads, 1, attention.value_dim, generator=numbers)
            kinds = [Temper(path, 1.7, heads), Patch(path, mean, "mixed", heads)]
            edits.append(draw(st.sampled_from([*kinds, Off(path, heads or (0,))])))
    return edits


@settings(max_examples=60, deadline=None)
@given(config=configs(), int8=st.booleans(), data=st.data())
def test_a_changed_compiled_model_is_the_edited_view(config, int8, data):
    model = model_of(config)
    edits = data.draw(edits_of(model))
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, VOCAB, (2, 6)))
    rows = sources(2) if isinstance(model, EncoderDecoder) else [[]] * 2

    def logits(compiled: CompiledModel) -> torch.Tensor:
        return compiled.logits(compiled.states(tokens, compiled.start(rows, 1, 6)))

    compiled = CompiledModel(model)
    with torch.inference_mode():
        plain, changes = logits(compiled), changes_of(model, edits)
        assert changes is not None
        found = logits(compiled.changed(changes))
        with recording(model, keep=(), edits=edits) as record:
            if isinstance(model, EncoderDecoder):
                each = [record.model(torch.tensor([row]), tokens[i : i + 1]) for i, row in enumerate(rows)]
                wanted = torch.cat(each)
            else:
                wanted = record.model(tokens)
        assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max().clamp_min(1.0)
        assert torch.equal(logits(compiled), plain)
        assert torch.equal(logits(compiled.changed({})), plain)
        eight = logits(CompiledModel(model, 8).changed(changes)) if int8 else found
        assert (eight - wanted).abs().max() <= 0.25 * wanted.abs().max()


def test_what_a_compiled_model_cannot_be_told_is_left_to_the_view():
    path, model = "encoder.blocks.0.self_attention", translator()
    for edit in (
        Temper("*", math.inf),
        Temper(path, math.inf, (1,)),
        Patch(path, torch.ones(1, 1), "weights"),
        Patch("decoder.blocks.0.feed_forward", torch.ones(1, 1), positions=(0,)),
        Patch("decoder.blocks.0", torch.ones(1, 1)),
        OffByRow(path, torch.ones(1, 2, dtype=torch.bool)),
    ):
        assert changes_of(model, [Off("decoder.*"), edit]) is None
    assert changes_of(model, []) == {}


def test_a_layer_that_stands_in_two_blocks_is_changed_in_both():
    model = translator()
    first, second = model.decoder.blocks
    second.self_attention, second.feed_forward = first.self_attention, first.feed_forward
    tokens = torch.tensor([[4, 5, 6]])
    for edit in (Off("decoder.blocks.0.self_attention", (0,)), Off("decoder.blocks.0.feed_forward")):
        changes = changes_of(model, [edit])
        assert changes is not None and len(changes) == 2
        with torch.inference_mode(), recording(model, keep=(), edits=[edit]) as record:
            wanted = record.model(torch.tensor([[7, 8]]), tokens)
            changed = CompiledModel(model).changed(changes)
            found = changed.logits(changed.states(tokens, changed.start([[7, 8]], 1, 3)))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_an_inverse_temperature_may_be_a_whole_number_and_too_large_for_a_float():
    model = translator()
    tokens, edits = torch.tensor([[4, 5, 6]]), [Temper("decoder.*", 0.5, (0,))]

    def at(inverse_temperature):
        for module in model.modules():
            if isinstance(module, Attend):
                module.inverse_temperature = inverse_temperature

    at(2)
    compiled, changes = CompiledModel(model), changes_of(model, edits)
    assert changes is not None and changes_of(model, [Temper("*", 1e39)]) is None
    at(2.0)
    with torch.inference_mode(), recording(model, keep=(), edits=edits) as record:
        for one, wanted in ((compiled, model), (compiled.changed(changes), record.model)):
            found = one.logits(one.states(tokens, one.start([[7, 8]], 1, 3)))
            torch.testing.assert_close(found, wanted(torch.tensor([[7, 8]]), tokens), rtol=0, atol=1e-4)


def test_a_search_is_changed_where_it_is_compiled_and_has_no_shortlist():
    model = translator()
    assert eager_backend(model, 0).changed is None
    assert best_backend(model, 0, shortlist=Shortlist(np.full((VOCAB, 1), 5), np.array([3, 4]))).changed is None
    member = best_backend(translator(positions="rotary", max_len=24), 0)
    assert member.changed is not None
    again = member.changed({})
    assert again.changed is not None and again.top_k_fn is member.top_k_fn
    tokens = torch.arange(3, 33)[None]  # beyond the positions that were computed ahead
    assert torch.equal(again.forced([[4, 5]], tokens), member.forced([[4, 5]], tokens))
