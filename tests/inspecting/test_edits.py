"""Edits against oracles: what is switched off is what the head added, and a search sees the same edited model."""

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.errors import AttendoError
from attendo.inspecting.edits import Off, OffByRow, Patch, Temper
from attendo.inspecting.recording import recording
from attendo.inspecting.residual_stream import head_contributions
from attendo.models import EncoderDecoder, ModelConfig
from attendo.nn.attention import Attention, share_heads
from attendo.nn.masks import Mask
from attendo.nn.positions import DistanceBias

PATH = "layer"
CROSS = "decoder.blocks.0.cross_attention"
OWN = "decoder.blocks.1.self_attention"
FEED = "decoder.blocks.0.feed_forward"
head_sets = st.none() | st.sets(st.integers(0, 3), max_size=4).map(sorted).map(tuple)


def layer(seed=0, **options):
    torch.manual_seed(seed)
    attention = Attention(8, 4, n_kv_heads=2, value_dim=3, d_memory=6, **options)
    torch.nn.init.normal_(attention.out_proj.bias)
    return torch.nn.ModuleDict({PATH: attention}).double().eval()


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=generator)
    return x, torch.randn(2, 5, 6, dtype=torch.float64, generator=generator)


MASK = Mask(key_lengths=torch.tensor([5, 3]))


def run(model, *edits, keep=("*.weights", "*.scores", "*.value", "*.mixed", "*.output")):
    """The output of the one layer under edits, and its record."""
    with torch.no_grad(), recording(model, keep, edits) as record:
        output = record.model[PATH](*inputs(), MASK)
    return output, record[PATH] if keep else None


def small(positions="sinusoidal", seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 11, "d_model": 16, "d_ff": 24, "n_heads": 4, "n_kv_heads": 2}
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 2}
    model = EncoderDecoder(ModelConfig(positions=positions, **sizes, **(layers | options))).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def batch(n=3):
    generator = torch.Generator().manual_seed(1)
    src = torch.randint(4, 11, (n, 6), generator=generator)
    lengths = torch.tensor([6, 2, 4])[:n]
    return src, torch.randint(4, 11, (n, 5), generator=generator), lengths


def same(found, wanted, atol=1e-12):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


# ---- one layer


@settings(max_examples=20)
@given(heads=head_sets.filter(lambda heads: heads is not None), seed=st.integers(0, 9))
def test_a_head_off_takes_away_just_what_it_added(heads, seed):
    model = layer(seed)
    plain, record = run(model)
    added = head_contributions(record.mixed, model[PATH].out_proj.weight)
    same(added.sum(1) + model[PATH].out_proj.bias, plain)
    found, edited = run(model, Off(PATH, heads))
    same(found, plain - added[:, list(heads)].sum(1))
    assert torch.equal(edited.weights, record.weights)
    assert (edited.mixed[:, list(heads)] == 0).all()
    same(run(model, Off(PATH, heads), keep=())[0], found)  # by the fused kernel


def test_a_layer_off_gives_0_with_its_bias_and_all_heads_off_leave_the_bias():
    model = layer()
    whole, record = run(model, Off(PATH))
    assert torch.equal(whole, torch.zeros_like(whole))
    assert torch.equal(record.output, whole)
    heads, _ = run(model, Off("l*", (0, 1, 2, 3)))
    same(heads, model[PATH].out_proj.bias.expand_as(heads))


def softmax_by_hand(scores, beta, k_lengths=(5, 3)):
    found = torch.zeros_like(scores)
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                row = scores[b, h, i, : k_lengths[b]].tolist()
                if math.isinf(beta):
                    powers = [float(j == row.index(max(row))) for j in range(len(row))]
                else:
                    powers = [math.exp(beta * (s - max(row))) for s in row]
                found[b, h, i, : len(row)] = torch.tensor(powers, dtype=torch.float64) / sum(powers)
    return found


@settings(max_examples=20)
@given(beta=st.sampled_from([0.0, 0.3, 1.0, 7.0, math.inf]), heads=head_sets)
def test_tempered_weights_are_the_softmax_of_the_tempered_scores(beta, heads):
    model = layer()
    _, plain = run(model)
    output, record = run(model, Temper(PATH, beta, heads))
    chosen = range(4) if heads is None else heads
    hand = softmax_by_hand(plain.scores, beta)
    for head in range(4):
        same(record.weights[:, head], hand[:, head] if head in chosen else plain.weights[:, head])
    same(record.weights.sum(-1), torch.ones(2, 4, 3, dtype=torch.float64))
    assert (record.weights[1, :, :, 3:] == 0).all()
    mixed = record.weights @ share_heads(record.value, 4)
    same(output, model[PATH].out_proj(mixed.transpose(1, 2).flatten(2)))
    assert torch.equal(record.scores, plain.scores)


@pytest.mark.some(4)
@pytest.mark.parametrize("keep", [("*.weights",), ("*.mixed",), ("*.output",)])
@pytest.mark.parametrize("heads", [None, (1,), (0, 3)])
def test_beta_1_is_bit_equal_to_recording_alone(keep, heads):
    model = layer().float()
    x, memory = (each.float() for each in inputs())
    found = []
    for edits in ((), (Temper(PATH, 1.0, heads),)):
        with recording(model, keep, edits) as record:
            output = record.model[PATH](x, memory, MASK)
        found.append((output, *record[PATH]._parts.values()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@settings(max_examples=15)
@given(heads=head_sets, shape=st.sampled_from([(2, 4, 3, 5), (3, 5), (1, 1, 1, 5), (4, 1, 5)]))
def test_weights_given_are_those_used(heads, shape):
    model, given_weights = layer(), torch.rand(shape, dtype=torch.float32)
    _, plain = run(model)
    output, record = run(model, Patch(PATH, given_weights, "weights", heads))
    for head in range(4):
        replaced = heads is None or head in heads
        whole = given_weights.double().expand(2, 4, 3, 5)
        assert torch.equal(record.weights[:, head], (whole if replaced else plain.weights)[:, head])
    mixed = record.weights @ share_heads(record.value, 4)
    same(output, model[PATH].out_proj(mixed.transpose(1, 2).flatten(2)))


@settings(max_examples=10)
@given(heads=head_sets)
def test_means_stand_in_for_what_heads_mixed(heads):
    model, mean = layer(), torch.randn(4, 3)
    _, plain = run(model)
    _, record = run(model, Patch(PATH, mean[:, None], "mixed", heads))
    for head in range(4):
        replaced = heads is None or head in heads
        wanted = mean[head].double().expand(2, 3, 3) if replaced else plain.mixed[:, head]
        same(record.mixed[:, head], wanted)
    whole = torch.randn(8)
    output, _ = run(model, Patch(PATH, whole[None]))
    assert torch.equal(output, whole.double().expand(2, 3, 8))


def test_a_tempered_head_keeps_its_own_mask():
    model, allowed = layer(), torch.rand(2, 4, 3, 5, generator=torch.Generator().manual_seed(0)) > 0.4
    with torch.no_grad(), recording(model, "*.weights", [Temper(PATH, 0.0, (3, 1))]) as record:
        record.model[PATH](*inputs(), Mask(allowed=allowed))
    for head in (1, 3):
        even = allowed[:, head] / allowed[:, head].sum(-1, keepdim=True).clamp_min(1)
        same(record[PATH].weights[:, head], even.double(), 1e-7)


def test_a_key_that_a_bias_hides_stays_hidden_at_every_temperature():
    class Window(DistanceBias):
        def forward(self, queries, keys):
            return torch.where((queries[:, None, :, None] - keys).abs() > 1, -torch.inf, 0.0)

    model, (src, _, _) = small(), batch()
    attention = model.encoder.blocks[0].self_attention
    attention.positions = Window()
    for beta in (0.0, 1.0, math.inf):
        edits = [Temper("encoder.blocks.0.self_attention", beta)]
        with torch.no_grad(), recording(model, "encoder.blocks.0.self_attention.weights", edits) as record:
            record.model.encode(src)
        weights = record["encoder.blocks.0.self_attention"].weights
        same(weights.sum(-1), torch.ones(3, 4, 6).double())
        assert not weights.triu(2).any() and not weights.tril(-2).any()


def test_edits_of_a_layer_are_made_in_their_order():
    model = layer()
    twice = run(model, Temper(PATH, 0.0), Temper(PATH, math.inf, (2,)))[1].weights
    assert torch.equal(twice[:, 2], run(model, Temper(PATH, math.inf))[1].weights[:, 2])
    assert torch.equal(twice[:, 1], run(model, Temper(PATH, 0.0))[1].weights[:, 1])
    back, _ = run(model, Temper(PATH, 3.0), Temper(PATH, 1.0))
    assert torch.equal(back, run(model)[0])


# ---- whole models


@settings(max_examples=8)
@given(data=st.data(), path=st.sampled_from([CROSS, OWN, "encoder.blocks.0.self_attention"]))
def test_a_batch_by_row_is_each_row_alone(data, path):
    model, (src, tgt, lengths) = small(), batch()
    off = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=3, max_size=3)))
    with torch.no_grad(), recording(model, (), [OffByRow(path, off)]) as record:
        together = record.model(src, tgt, lengths)
    for row in range(3):
        heads = tuple(off[row].nonzero()[:, 0].tolist())
        one = slice(row, row + 1)
        with torch.no_grad(), recording(model, (), [Off(path, heads)]) as record:
            alone = record.model(src[one, : lengths[row]], tgt[one])
        same(together[one], alone, 1e-10)


EDITS = [
    (Off(CROSS, (1,)), Off(FEED)),
    (Off(OWN),),
    (Temper("*", math.inf, (0, 2)), Off("encoder.*", (3,))),
    (Temper("decoder.*", 0.25), Patch(CROSS, torch.ones(4, 1, 4), "mixed")),
    (Patch(FEED, torch.linspace(0, 1, 16)[None]), Patch(OWN, torch.ones(1, 16))),
    (Patch(CROSS, torch.softmax(torch.arange(6.0), 0)[None], "weights", (0,)),),
]


@pytest.mark.some(5)
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("edits", EDITS, ids=["off", "layer", "hard", "mean", "means", "replace"])
def test_a_search_on_the_view_sees_the_edited_model(positions, edits):
    model, (src, tgt, _) = small(positions, norm_first=positions == "rotary"), batch(2)
    lengths = torch.tensor([6, 4])
    with torch.no_grad(), recording(model, (), edits) as record:
        whole = record.model(src.repeat_interleave(2, 0), tgt.repeat(2, 1), lengths.repeat_interleave(2))
        cache = record.model.start(src, lengths, 2, 5)
        steps = [record.model.step(tgt.repeat(2, 1)[:, i : i + 1], cache) for i in range(2)]
        cache.reorder(torch.tensor([1, 0, 2, 3]))  # folded still
        order = [1, 0, 2, 3]
        steps = [step[order] for step in steps]
        steps += [record.model.step(tgt.repeat(2, 1)[order, i : i + 1], cache) for i in range(2, 5)]
    same(torch.cat(steps, 1), whole[order], 1e-10)
    with torch.no_grad():
        changed = (model(src, tgt, lengths) - whole[[0, 3]]).abs().amax((1, 2))
    assert (changed > 1e-3).all()


@pytest.mark.parametrize("path", [CROSS, OWN])
def test_rows_of_a_folded_search_have_their_own_heads_off(path):
    model, (src, tgt, _) = small(), batch(2)
    rows = torch.tensor([[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    targets = tgt.repeat(2, 1)
    with torch.no_grad(), recording(model, (), [OffByRow(path, rows)]) as record:
        whole = record.model(src.repeat_interleave(2, 0), targets)
        cache = record.model.start(src, None, 2, 5)
        assert cache.folded == 2
        steps = [record.model.step(targets[:, :2], cache)]  # two positions at once
        steps += [record.model.step(targets[:, i : i + 1], cache) for i in range(2, 5)]
    same(torch.cat(steps, 1), whole, 1e-10)


def test_what_is_off_adds_nothing_before_the_residual():
    model, inputs_ = small(norm_first=True), batch()
    with torch.no_grad(), recording(model, "decoder.blocks.0.*.output", [Off(FEED), Off(CROSS)]) as record:
        record.model(*inputs_)
    for path in (FEED, CROSS):
        assert torch.equal(record[path].output, torch.zeros_like(record[path].output))


def test_edits_end_with_the_with_block():
    model, inputs_ = small(), batch()
    plain = model(*inputs_)
    edits = [Off(FEED), Off(CROSS), Temper("*", 0.0), Patch(OWN, torch.ones(1, 16))]
    with recording(model, "*", edits) as record:
        assert not torch.equal(record.model(*inputs_), plain)
        assert torch.equal(model(*inputs_), plain)
    assert torch.equal(record.model(*inputs_), plain)
    for tree in (model, record.model):
        assert not any(module._forward_hooks for module in tree.modules())
        assert {type(m).__name__ for n, m in tree.named_modules() if n.endswith("attend")} == {"Attend"}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            Off("decoder.blok*"),
            "Off 'decoder.blok*' matches no attention layer or feed-forward network. Available: enc",
        ),
        (
            Temper("encoder", 1.0),
            "Temper 'encoder' matches no attention layer. Available: encoder.blocks.0.self_",
        ),
        (Off(CROSS, (4,)), f"Off '{CROSS}': no head 4 (expected 0 to 3 in {CROSS})"),
        (Temper("*", 2.0, (0, -1)), "no head -1 (expected 0 to 3 in encoder.blocks.0.self_attention)"),
        (Off(FEED, (0,)), f"Off '{FEED}': this module has no heads. Edit its whole output"),
        (Temper(FEED, 2.0), "this module has no heads"),
        (Temper(CROSS, -1.0), "inverse_temperature=-1.0 must be at least 0"),
        (Temper(CROSS, math.nan), "inverse_temperature=nan must be at least 0"),
        (Patch(CROSS, torch.ones(1, 16), heads=(1,)), "the output of a layer has no heads"),
        (
            Patch(CROSS, torch.ones(4, 4), "mixed"),
            "has shape [4, 4] (expected [heads, queries or 1, value_dim])",
        ),
        (Patch("decoder.blocks.0", torch.ones(1, 4), "mixed"), "this module has no heads"),
        (Patch("decoder.blocks.2", torch.ones(1, 4)), "matches no attention layer or feed-forward network"),
        (OffByRow(CROSS, torch.ones(3, 3).bool()), "(expected bool [rows, 4]"),
        (OffByRow(CROSS, torch.ones(3, 4)), "off is torch.float32 [3, 4]"),
    ],
)
def test_what_cannot_be_edited_is_said_at_once(edit, message):
    with pytest.raises(AttendoError) as found, recording(small(), (), [edit]):
        pass
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Patch(CROSS, torch.ones(4, 4), "weights"), "value has shape [4, 4] (expected a shape that"),
        (
            Patch(CROSS, torch.ones(3, 1, 4), "mixed"),
            f"broadcasts to [3, 4, 5, 4], the shape of {CROSS}.mixed)",
        ),
        (Patch(FEED, torch.ones(1, 5)), "has shape [1, 5] (expected a shape that broadcasts to [3, 5, 16]"),
        (Patch(FEED, torch.ones(1, 16), positions=(5,)), f"Patch '{FEED}': no position 5 (expected 0 to 4)"),
        (OffByRow(CROSS, torch.ones(2, 4).bool()), f"off has 2 rows, but {CROSS} has a batch of 3"),
        (OffByRow(OWN, torch.ones(6, 4).bool()), f"off has 6 rows, but {OWN} has a batch of 3"),
    ],
)
def test_what_does_not_fit_is_said_in_the_pass(edit, message):
    with recording(small(), (), [edit]) as record, pytest.raises(AttendoError) as found:
        record.model(*batch())
    assert message in str(found.value)


def test_two_threads_edit_one_model_at_once():
    model, inputs_ = small(), batch()
    edits = [(Off(CROSS, (0,)),), (Off(FEED), Temper("*", math.inf))]
    together, found = threading.Barrier(2), {}

    def passes(number):
        with torch.no_grad(), recording(model, "*.weights", edits[number]) as record:
            together.wait(timeout=30)
            outputs = [record.model(*inputs_) for _ in range(5)]
            together.wait(timeout=30)
            found[number] = outputs

    threads = [threading.Thread(target=passes, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, outputs in found.items():
        with torch.no_grad(), recording(model, "*.weights", edits[number]) as record:
            alone = record.model(*inputs_)
        assert all(torch.equal(output, alone) for output in outputs)
    assert len(found) == 2
