"""What holds for a whole model: order, causality, padding, and decoding with a cache as recomputation."""

import functools
import random

import pytest
import torch
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.decoding.protocols import join_rows
from attendo.models import EncoderDecoder, ModelConfig

VOCAB = 13
EXACT = {"rtol": 1e-11, "atol": 1e-11}
VARIANTS = {
    "post-norm": {},
    "pre-norm, grouped": {"norm_first": True, "n_kv_heads": 1},
    "learned, untied": {
        "positions": "learned",
        "max_len": 40,
        "tie": "none",
        "activation": "gelu",
        "n_kv_heads": 2,
    },
}


@functools.cache
def model(variant, seed=0):
    """A float64 model whose parameters are all random: biases and norms too."""
    config = ModelConfig(
        vocab_size=VOCAB,
        d_model=8,
        d_ff=12,
        n_heads=4,
        n_encoder_layers=2,
        n_decoder_layers=2,
        **VARIANTS[variant],
    )
    torch.manual_seed(seed)
    built = EncoderDecoder(config).double().eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


variants = pytest.mark.parametrize("variant", VARIANTS)
seeds = st.integers(0, 2**31)


def padded(rows, length=0):
    """Rows of ids and their lengths as tensors; the padding is noise, so that a reader of it is found out."""
    length = max(length, *map(len, rows))
    noise = random.Random(length)
    filled = [row + [noise.randrange(VOCAB) for _ in range(length - len(row))] for row in rows]
    return torch.tensor(filled), torch.tensor([len(row) for row in rows])


def texts(seed, n, longest=5):
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(n)]


@variants
@settings(max_examples=15)
@given(seed=seeds, length=st.integers(2, 7), data=st.data())
def test_no_target_position_sees_what_follows_it(variant, seed, length, data):
    built = model(variant)
    position = data.draw(st.integers(1, length - 1), label="the first token that changes")
    draw = torch.Generator().manual_seed(seed)
    src, tgt = torch.randint(VOCAB, (2, 2, length), generator=draw)
    changed = tgt.clone()
    changed[:, position:] = (tgt[:, position:] + 1) % VOCAB
    before, after = built(src, tgt), built(src, changed)
    torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-12)
    assert not torch.isclose(after[:, position], before[:, position]).all()


@variants
@settings(max_examples=15)
@given(seed=seeds, n=st.integers(1, 4), extra=st.integers(0, 3))
def test_padding_and_batch_mates_change_nothing(variant, seed, n, extra):
    built = model(variant)
    sources, targets = texts(seed, n), texts(seed + 1, n)
    src, src_lengths = padded(sources, 5 + extra)
    tgt, _ = padded(targets, 5 + extra)
    together = built(src, tgt, src_lengths)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = built(torch.tensor([source]), torch.tensor([target]))[0]
        torch.testing.assert_close(together[row, : len(target)], alone, **EXACT)


@variants
@settings(max_examples=5)
@given(seed=seeds)
def test_padding_and_batch_mates_change_no_gradient(variant, seed):
    built = model(variant)
    parameters = list(built.parameters())
    sources, targets = texts(seed, 3), texts(seed + 1, 3)
    src, src_lengths = padded(sources, 7)
    tgt, tgt_lengths = padded(targets, 7)
    real = torch.arange(7) < tgt_lengths[:, None]
    together = torch.autograd.grad(built(src, tgt, src_lengths)[real].sin().sum(), parameters)
    alone = sum(
        built(torch.tensor([source]), torch.tensor([target])).sin().sum()
        for source, target in zip(sources, targets, strict=True)
    )
    for one, other in zip(together, torch.autograd.grad(alone, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


class Search:
    """A cache under random orders, beside the plain record of what each of its rows has read."""

    def __init__(self, built, rng):
        self.built, self.rng = built, rng
        self.cache, self.rows = self.fresh()

    def fresh(self):
        """A cache with one to three new sources and as many rows of each; some of it is run ahead."""
        sources = texts(self.rng.random(), self.rng.randint(1, 3))
        src, src_lengths = padded(sources, self.rng.randint(1, 5))
        per_source = self.rng.randint(1, 3)
        lengths = None if min(src_lengths) == src.shape[1] else src_lengths
        cache = self.built.start(src, lengths, per_source, capacity=self.rng.randint(30, 36))
        return cache, [(source, []) for source in sources for _ in range(per_source)]

    def step(self, n=None):
        """Feeds one to three tokens to every row and compares with each text recomputed from its start."""
        n = self.rng.randint(1, 3) if n is None else n
        fed = [[self.rng.randrange(VOCAB) for _ in range(n)] for _ in self.rows]
        logits = self.built.step(torch.tensor(fed), self.cache)
        self.rows = [(source, read + new) for (source, read), new in zip(self.rows, fed, strict=True)]
        src, src_lengths = padded([source for source, _ in self.rows])
        tgt, tgt_lengths = padded([read for _, read in self.rows])
        full = self.built(src, tgt, src_lengths)
        last = torch.stack([full[row, length - n : length] for row, length in enumerate(tgt_lengths.tolist())])
        torch.testing.assert_close(logits, last, **EXACT)
        assert self.cache.lengths.tolist() == tgt_lengths.tolist()

    def reorder(self):
        """Continues some rows twice and some not, a beam of one size a source, or of several sizes."""
        by_source: dict[int, list[int]] = {}
        for row, source in enumerate(self.cache.row_sources):
            by_source.setdefault(source, []).append(row)
        size = self.rng.randint(1, 3)
        sizes = [size if self.rng.random() < 0.6 else self.rng.randint(1, 3) for _ in by_source]
        rows = [self.rng.choice(own) for own, size in zip(by_source.values(), sizes, strict=True) for _ in range(size)]
        self.cache.reorder(torch.tensor(rows))
        self.rows = [self.rows[row] for row in rows]

    def keep(self):
        """Drops some rows, and with them perhaps a source."""
        n = self.rng.randint(1, len(self.rows))
        rows = sorted(self.rng.sample(range(len(self.rows)), n))
        self.cache.keep(torch.tensor(rows))
        self.rows = [self.rows[row] for row in rows]

    def join(self):
        """Takes in new sources, whose rows are shorter."""
        cache, rows = self.fresh()
        if self.rng.random() < 0.5:
            ahead = [[self.rng.randrange(VOCAB)] for _ in rows]
            self.built.step(torch.tensor(ahead), cache)
            rows = [(source, new) for (source, _), new in zip(rows, ahead, strict=True)]
        join_rows(self.cache, cache)
        self.rows += rows


@variants
@settings(max_examples=examples(8, 20))
@given(seed=seeds, orders=st.lists(st.sampled_from(["step", "reorder", "keep", "join"]), min_size=2, max_size=6))
def test_decoding_with_a_cache_is_recomputation(variant, seed, orders):
    with torch.no_grad():
        search = Search(model(variant), random.Random(seed))
        search.step()
        for order in orders:
            getattr(search, order)()
            search.step(None if order == "step" else 1)


@variants
@pytest.mark.parametrize("per_source", [1, 3])
def test_rows_of_two_lengths_in_one_step_equal_each_alone(variant, per_source):
    built, draw = model(variant), torch.Generator().manual_seed(5)
    src = torch.randint(VOCAB, (2, 4), generator=draw)
    tgt = torch.randint(VOCAB, (2 * per_source, 6), generator=draw)
    long, short = tgt[:per_source], tgt[per_source:]
    with torch.no_grad():
        cache = built.start(src[:1], None, per_source)
        other = built.start(src[1:, :3], None, per_source)
        built.step(long[:, :4], cache)
        built.step(short[:, :1], other)
        join_rows(cache, other)
        steps = [built.step(torch.cat([long[:, 4 + i], short[:, 1 + i]])[:, None], cache) for i in range(2)]
        for row in range(per_source):
            alone = built(src[:1], long[row : row + 1])[0, 4:6]
            torch.testing.assert_close(torch.stack([step[row, 0] for step in steps]), alone, **EXACT)
            alone = built(src[1:, :3], short[row : row + 1, :3])[0, 1:3]
            torch.testing.assert_close(torch.stack([step[per_source + row, 0] for step in steps]), alone, **EXACT)
