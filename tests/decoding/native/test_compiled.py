"""The compiled functions are the modules: equal numbers, and the same bits whatever else is in a batch."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import VOCAB, configs, model_of, sources, translator

from attendo.decoding.backends import best_backend, best_decoder, eager_backend, in_bfloat16
from attendo.decoding.beam import DecodingConfig, best_tokens
from attendo.decoding.native.compiled import CompiledModel, best_of_floats, log_probs_of_floats
from attendo.decoding.native.library import Matrix, NoLibrary, TensorArena, library
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import Searcher
from attendo.errors import AttendoError
from attendo.models import EncoderDecoder, ModelConfig
from attendo.nn.attention import Attend


def stepped(compiled: CompiledModel, rows: list[list[int]], tokens: torch.Tensor) -> torch.Tensor:
    """Logits `[rows, n, vocab]`, a step at a time."""
    cache = compiled.start(rows, 1, tokens.shape[1])
    steps = [compiled.step(tokens[:, i : i + 1], cache).clone() for i in range(tokens.shape[1])]
    return torch.stack(steps, 1)


@settings(max_examples=60, deadline=None)
@given(config=configs(), n=st.integers(1, 5), beta=st.sampled_from([1.0, 0.0, 0.5, 2.5]))
def test_compiled_and_modules_give_equal_logits(config, n, beta):
    model = model_of(config)
    for module in model.modules():
        if isinstance(module, Attend):
            module.inverse_temperature = beta
    tokens = torch.from_numpy(np.random.default_rng(n).integers(3, VOCAB, (n, 7)))
    rows = sources(n) if isinstance(model, EncoderDecoder) else [[]] * n
    compiled = CompiledModel(model)
    with torch.inference_mode():
        if isinstance(model, EncoderDecoder):
            wanted = torch.cat([model(torch.tensor([row]), tokens[i : i + 1]) for i, row in enumerate(rows)])
        else:
            wanted = model(tokens)
        at_once = compiled.logits(compiled.states(tokens, compiled.start(rows, 1, 7)))
        found = stepped(compiled, rows, tokens)
    assert torch.equal(at_once, found)
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max().clamp_min(1.0)


@settings(max_examples=20, deadline=None)
@given(bits=st.sampled_from([32, 16, 8, 4]), n=st.integers(2, 40), threads=st.integers(1, 3), data=st.data())
def test_a_row_is_the_same_bits_in_any_batch_and_on_any_number_of_threads(bits, n, threads, data):
    compiled, rows = CompiledModel(translator(), bits), sources(n)
    tokens = torch.from_numpy(np.random.default_rng(n).integers(3, VOCAB, (n, 3)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = stepped(compiled, rows, tokens)
        order = data.draw(st.permutations(range(n)))
        shuffled = stepped(compiled, [rows[i] for i in order], tokens[order])
        torch.set_num_threads(1)
        alone = torch.cat([stepped(compiled, [rows[i]], tokens[i : i + 1]) for i in range(n)])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)
    assert torch.equal(shuffled, alone[order])


@settings(max_examples=8, deadline=None)
@given(
    bits=st.sampled_from([(32,), (16,), (8,), (4,), (16, 8)]),
    heads=st.sampled_from([(3, 1), (4, 2), (6, 6)]),
    width=st.sampled_from([8, 20, 33]),
    n=st.integers(33, 80),
    position=st.sampled_from(["rotary", "alibi"]),
)
def test_many_tokens_at_once_are_the_same_bits_as_one_by_one(bits, heads, width, n, position):
    config = ModelConfig(
        vocab_size=VOCAB, architecture="decoder", d_model=12, d_ff=40, n_heads=heads[0], n_kv_heads=heads[1],
        head_dim=2 * width if position == "rotary" else width, value_dim=width, n_encoder_layers=0,
        n_decoder_layers=1, max_len=80, positions=position,
    )  # fmt: skip
    compiled = CompiledModel(model_of(config), *bits)
    tokens = torch.from_numpy(np.random.default_rng(n).integers(3, VOCAB, (2, n)))
    cache = compiled.start([[], []], 1, n)
    parts = [tokens[:, :1], tokens[:, 1:20], tokens[:, 20:]]
    states = torch.cat([compiled.states(part, cache) for part in parts], 1)
    alone = stepped(compiled, [[], []], tokens)
    assert torch.equal(compiled.logits(states), alone)
    assert torch.equal(compiled.logits(compiled.states(tokens, compiled.start([[], []], 1, n))), alone)


def test_the_angles_of_a_long_source_stay_when_a_short_target_follows():
    compiled = CompiledModel(translator(positions="rotary", max_len=16))
    long, tokens = sources(200)[0] * 60, torch.tensor([[5, 6]])
    first = stepped(compiled, [long], tokens)
    assert first.isfinite().all()
    assert torch.equal(stepped(compiled, [long], tokens), first)


def multiplied(matrix: Matrix, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), matrix.n_out)
    library().attendo_product(ctypes.byref(matrix), x.data_ptr(), len(x), out.data_ptr(), 1)
    return out


@settings(max_examples=40, deadline=None)
@given(
    bits=st.sampled_from([16, 8, 4]),
    n_in=st.integers(1, 100),
    n_out=st.integers(1, 140),
    rows=st.integers(1, 9),
)
def test_a_product_of_few_bits_is_that_of_rounded_numbers(bits, n_in, n_out, rows):
    draw = torch.Generator().manual_seed(n_in)
    weight = torch.randn(n_out, n_in, generator=draw)
    weight[:, : n_in // 2] *= 0.01  # groups of their own scale
    x = torch.randn(rows, n_in, generator=draw)
    arena = TensorArena(bits)
    matrix = arena.product(weight, None)
    rounded = multiplied(matrix, torch.eye(n_in)).T  # ones are exact in every number of bits
    groups = torch.nn.functional.pad(weight, (0, -n_in % 32)).unflatten(1, (-1, 32))
    of_group = groups.abs().amax(2).repeat_interleave(32, 1)[:, :n_in]
    most = {16: weight.abs() / 256, 8: weight.abs().amax(1, keepdim=True) / 254, 4: of_group / 7}[bits]
    assert ((rounded - weight).abs() <= 1.01 * most).all()
    results = multiplied(matrix, x)
    if bits == 16:
        assert torch.allclose(results, x @ rounded.T, atol=1e-4)
        return
    parts = torch.nn.functional.pad(x, (0, -n_in % 32)).unflatten(1, (-1, 32))
    close = []
    for largest in [127, 63][: 2 if bits == 8 else 1]:  # 63 for 8 bits on a CPU that cannot add products of bytes
        scale = parts.abs().amax(2, keepdim=True) / largest
        inputs = ((parts / scale).round() * scale).nan_to_num().flatten(1)[:, :n_in]
        close.append(torch.allclose(results, inputs @ rounded.T, atol=2e-3))
    assert any(close)


@pytest.mark.parametrize("bits", [8, 4])
def test_the_largest_integers_of_a_product_do_not_overflow(bits):
    ones, arena = torch.ones(8, 64), TensorArena(bits)
    product = multiplied(arena.product(ones, None), torch.stack([ones[0], -ones[0]]))
    assert torch.allclose(product, torch.tensor([[64.0], [-64.0]]).expand(2, 8), rtol=0.01)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_rows_of_a_product_are_the_same_bits_alone_and_in_every_part_and_chunk(bits):
    """A part has 2,048 inputs for many rows and 128 for few, and a chunk 576 rows, or 96 in 16 bits."""
    weight, x = torch.randn(140, 2100), torch.randn(580, 2100)  # several panels, which a row reads together
    arena = TensorArena(bits)
    matrix = arena.product(weight, None)
    alone = torch.cat([multiplied(matrix, row[None]) for row in x])
    assert (alone - x @ weight.T).abs().max() < (1e-2 if bits == 32 else 60)
    for rows in (2, 8, 20, 580):
        assert torch.equal(multiplied(matrix, x[:rows]), alone[:rows])


def test_4_bits_have_no_larger_error_than_the_simplest_rule():
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    groups = weight.view(64, 8, 32)
    most = groups.gather(2, groups.abs().argmax(2, keepdim=True))  # the largest number becomes -8
    simple = (groups / (most / -8)).round().clamp(-8, 7) * (most / -8)
    arena = TensorArena(4)
    found = multiplied(arena.product(weight, None), torch.eye(256)).T.view(64, 8, 32)
    assert ((found - groups) ** 2).sum() < 0.92 * ((simple - groups) ** 2).sum()


def test_fewer_bits_are_less_exact():
    model = translator()
    (row,), tokens = sources(1), torch.arange(4, 20)[None]
    exact = stepped(CompiledModel(model), [row], tokens)
    errors = [float((stepped(CompiledModel(model, bits), [row], tokens) - exact).std()) for bits in (16, 8, 4)]
    assert 0 < errors[0] < errors[1] < errors[2] < 0.3 * float(exact.std())


def test_a_cache_of_few_bits_has_half_the_bytes():
    models = [CompiledModel(translator(), *bits) for bits in ((32,), (4,), (4, 8))]
    sizes = [model.start([[4]], 1, 64).cache.nbytes for model in models]
    assert sizes[0] == 2 * sizes[1]
    assert 16 * sizes[2] == 9 * sizes[1]


@settings(max_examples=20, deadline=None)
@given(config=configs().filter(lambda config: config.architecture == "decoder"), seed=st.integers(0, 99))
def test_fewer_bits_of_the_cache_are_less_exact(config, seed):
    model, tokens = model_of(config), torch.from_numpy(np.random.default_rng(seed).integers(3, VOCAB, (2, 7)))
    exact, half, byte = (stepped(CompiledModel(model, 32, bits), [[], []], tokens).double() for bits in (None, 16, 8))
    spread = exact.std()
    assert (half - exact).std() < 0.01 * spread
    assert (byte - exact).std() < 0.02 * spread
    assert not torch.equal(byte, half)


def tiny_decoder(**options) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB, architecture="decoder", d_model=32, d_ff=32, n_heads=2, n_encoder_layers=0,
        n_decoder_layers=1, max_len=40, **options,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [(32, 8), (8, 16)])
def test_numbers_that_are_not_numbers_remain_so_in_8_bits(bits):
    model = model_of(tiny_decoder())
    with torch.no_grad():
        model.decoder.blocks[0].self_attention.k_proj.weight[0] = float("nan")
    assert stepped(CompiledModel(model, *bits), [[]], torch.tensor([[3, 4, 5]])).isnan().all()


def test_other_bits_of_the_cache_are_refused():
    with pytest.raises(AttendoError, match="`cache_bits` 4 must be 32, 16 or 8"):
        best_decoder(model_of(tiny_decoder()), 32, 4)


def test_other_numbers_in_the_cache_keep_their_scale_beside_a_large_one():
    """A large bias of a key changes the scale of 32 numbers, and not that of the others of its head."""
    model = model_of(tiny_decoder(head_dim=64))
    with torch.no_grad():
        for proj in (
            model.decoder.blocks[0].self_attention.k_proj,
            model.decoder.blocks[0].self_attention.q_proj,
        ):
            proj.weight[:32].zero_()
            proj.bias[:32].zero_()
        model.decoder.blocks[0].self_attention.k_proj.bias[0] = 1e4
    tokens = torch.arange(3, 23)[None] % VOCAB
    exact, byte = (stepped(CompiledModel(model, 32, bits), [[]], tokens) for bits in (32, 8))
    assert (byte - exact).std() < 0.01 * exact.std()


def test_rows_move_as_those_of_the_modules_cache():
    model = translator()
    compiled, rows, beam = CompiledModel(model), sources(3), 3
    lengths = torch.tensor([len(row) for row in rows])
    src = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    rng = np.random.default_rng(0)
    with torch.inference_mode():
        mine, theirs = compiled.start(rows, beam, 12), model.start(src, lengths, beam, 12)
        for step in range(12):
            tokens = torch.from_numpy(rng.integers(3, VOCAB, (theirs.rows, 1)))
            assert torch.allclose(compiled.step(tokens, mine), model.step(tokens, theirs)[:, -1], atol=1e-4)
            n_sources = theirs.rows // beam
            parents = np.arange(n_sources)[:, None] * beam + rng.integers(0, beam, (n_sources, beam))
            if step in (4, 8):
                chosen = torch.from_numpy(np.delete(parents, step % n_sources, 0).reshape(-1))
                mine.keep(chosen), theirs.keep(chosen)
            else:
                chosen = torch.from_numpy(parents.reshape(-1))
                mine.reorder(chosen), theirs.reorder(chosen)


def test_rows_may_become_more_and_join_in_their_middle():
    model = translator()
    compiled, rows = CompiledModel(model), sources(4)
    tokens = torch.randint(3, VOCAB, (4, 6), generator=torch.Generator().manual_seed(0))
    alone = stepped(compiled, rows, tokens)
    first = compiled.start(rows[:1], 1, 6)
    for i in range(3):
        compiled.step(tokens[:1, i : i + 1], first)
    second = compiled.start(rows[1:], 1, 6)
    compiled.step(tokens[1:, :1], second)
    second.keep(torch.tensor([0, 2]))
    first.join(second)
    assert first.lengths.tolist() == [3, 1, 1]
    fed = torch.stack([tokens[0, 3], tokens[1, 1], tokens[3, 1]])[:, None]
    found = compiled.step(fed, first)
    assert torch.equal(found, torch.stack([alone[0, 3], alone[1, 1], alone[3, 1]]))

    doubled = compiled.start(rows[:1], 1, 6)
    compiled.step(tokens[:1, :1], doubled)
    doubled.reorder(torch.tensor([0, 0]))
    apart = torch.tensor([[int(tokens[0, 1])], [5]])
    compiled.step(apart, doubled)  # each row writes into a slot of its own
    found = compiled.step(tokens[:1, 2:3].expand(2, 1), doubled)
    assert torch.equal(found[0], alone[0, 2])
    assert not torch.equal(found[1], alone[0, 2])


def test_what_a_source_keeps_does_not_grow_with_the_beam():
    compiled, rows = CompiledModel(translator()), sources(3)
    caches = {beam: compiled.start(rows, beam, 10) for beam in (1, 4)}
    assert caches[1].memory.numel() == caches[4].memory.numel() == 2 * sum(map(len, rows)) * 64
    per_row = {beam: (cache.bytes - 4 * cache.memory.numel()) / cache.rows for beam, cache in caches.items()}
    assert per_row[1] == per_row[4]


def test_a_cache_that_is_full_says_so():
    compiled = CompiledModel(translator())
    cache = compiled.start(sources(1), 1, 2)
    with pytest.raises(ValueError, match="holds 2 positions, but 3 are needed"):
        compiled.states(torch.zeros(1, 3, dtype=torch.long), cache)


def test_log_probs_are_those_that_a_search_finds():
    compiled, rows = CompiledModel(translator()), sources(2)
    tokens = torch.randint(3, VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))
    logits = compiled.logits(compiled.states(tokens, compiled.start(rows, 1, 5)))
    best, log_probs = best_of_floats(logits.view(-1, VOCAB), 3)
    for place in range(3):
        wanted = torch.from_numpy(best[:, place].copy()).view(2, 5)
        assert log_probs_of_floats(logits, wanted).flatten().tolist() == log_probs[:, place].tolist()


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(
        st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.25, 2.0, -np.inf]), min_size=35, max_size=35), max_size=4
    ),
    k=st.integers(1, 40),
    never=st.sets(st.integers(0, 34), max_size=5),
)
def test_the_best_tokens_are_those_of_torch(logits, k, never):
    rows = torch.tensor(logits, dtype=torch.float32).view(-1, 35)
    tokens, log_probs = best_of_floats(rows, k, tuple(never))
    wanted, wanted_log_probs = best_tokens(rows, k, tuple(never))
    assert np.allclose(log_probs, wanted_log_probs, atol=1e-6)
    possible = wanted_log_probs > -np.inf
    assert (tokens[possible] == wanted[possible]).all()


@pytest.mark.some(4)
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_given_text_has_exactly_the_log_probabilities_that_the_search_gave_it(bits, beam):
    member, rows = best_backend(translator(), 0, bits=bits), sources(5)
    config, special = (
        DecodingConfig(beam=beam, n_best=beam),
        SpecialIds(bos_id=1, eos_id=2, banned_ids=(0, 1)),
    )
    found = Searcher(member, special, 30).search(rows, config)
    texts = [(row, text) for row, texts in zip(rows, found, strict=True) for text in texts]
    assert texts
    for row, text in texts:
        wanted = torch.tensor([[*text.token_ids, *[2] * text.finished]])
        tgt = torch.cat([torch.tensor([[1]]), wanted[:, :-1]], 1)
        assert tuple(member.chosen(member.forced([row], tgt), wanted)[0].tolist()) == text.token_log_probs


def test_without_a_compiler_the_modules_search(monkeypatch):
    model = translator()
    compiled = best_backend(model, 0)

    def none(bits):
        raise NoLibrary("there is no C++ compiler")

    monkeypatch.setattr("attendo.decoding.native.compiled.require_suited", none)
    member = best_backend(model, 0)
    assert (compiled.why, member.why) == (None, "there is no C++ compiler")
    config, special = DecodingConfig(beam=2), SpecialIds(bos_id=1, eos_id=2, banned_ids=(0, 1))
    with torch.inference_mode():
        texts = [Searcher(form, special, 30).search(sources(4), config) for form in (compiled, member)]
    for one, other in zip(*texts, strict=True):
        assert one[0].token_ids == other[0].token_ids
        assert one[0].log_prob == pytest.approx(other[0].log_prob, abs=1e-4)


def test_bfloat16_finds_about_the_same():
    model = translator()
    half = eager_backend(in_bfloat16(model), 0)
    config, special = DecodingConfig(beam=2), SpecialIds(bos_id=1, eos_id=2, banned_ids=(0, 1))
    wanted, found = (Searcher(form, special, 30).search(sources(6), config) for form in (eager_backend(model, 0), half))
    assert model.output_proj.weight.dtype == torch.float32
    apart = [abs(one[0].log_prob - other[0].log_prob) for one, other in zip(wanted, found, strict=True)]
    assert 0 < min(apart) < 0.5


def test_logits_that_are_not_numbers_are_refused():
    for place in (0, 20, 34):
        rows = torch.zeros(2, 35)
        rows[1, place] = torch.nan
        with pytest.raises(AttendoError, match=r"non-finite \(NaN"):
            best_of_floats(rows, 2)


def test_other_models_are_left_to_torch():
    with pytest.raises(NoLibrary, match="float64 on cpu"):
        CompiledModel(translator().double())
    model = translator()
    attention = model.decoder.blocks[0].self_attention
    attention.attend = type("Other", (type(attention.attend),), {})()
    with pytest.raises(NoLibrary, match="attend is a Other, which the compiled steps"):
        CompiledModel(model)
