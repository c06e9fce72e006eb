"""Claims C14-C16, C18, C20, C22, C23 and C26: what breaks them is named, their parts agree with plain NumPy."""

import math
from functools import partial, reduce

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from claim_findings import failing, figures
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy_transcription import softmax
from torch import nn

from attendo.nn.attention import Attention, attention
from attendo.nn.masks import Mask
from attendo_course.claims import architecture, blocks, contexts, generation
from attendo_course.claims.samples import built, normal, random_attention, unrolled

FEW = settings(max_examples=25)
seeds = st.integers(0, 10_000)


def by_mask(query, key, value, window):
    """The right numbers, but every score is computed."""
    return attention(query, key, value, Mask(window=window).dense(len(query), len(query))[0, 0])


def in_turn(query, key, value, window):
    """The right numbers, but each query waits for the one before."""
    rows = [torch.zeros_like(value[:1])]
    for t in range(len(query)):
        near = slice(max(0, t - window + 1), t + window)
        rows.append(attention(query[t : t + 1] + 0 * rows[-1], key[near], value[near]))
    return torch.cat(rows[1:])


def with_padding(query, key, value, window):
    """The zeros beyond both ends are attended to as if they were tokens."""
    sides, r = (0, 0, window - 1, window - 1), 2 * window - 1
    near_key, near_value = (F.pad(rows, sides).unfold(0, r, 1).mT for rows in (key, value))
    return attention(query[:, None], near_key, near_value)[:, 0]


def slowly(some, every):
    """What self-attention gives, after as many operations in a row as there are tokens."""
    return reduce(torch.mul, torch.ones(every.shape[1]), ATTEND(some, every))


ATTEND = random_attention(0, 32, 4, 32**-0.5)
CELL = built(lambda: nn.RNNCell(32, 32)).requires_grad_(False)
HEAD = built(lambda: Attention(4, 1, head_dim=6, value_dim=3, out_proj=nn.Identity()))
SEEN, CHEAPER = "self-attention: layers to see 65 tokens", "n = 65, r = 3: full / restricted operations"
JOINED = "self-attention, one layer: pairs of tokens joined"
OPERATIONS = {f"r = {r}: operations, 4rnd" for r in architecture.WIDTHS}
SAME = {f"r = {r}: |neighborhood - banded mask|" for r in architecture.WIDTHS}
WAITS, STEPS = "steps in a row, 2n: more than with n", "layer: steps in a row, 2n more than n"
ALONE, ORDER = "|one call - n calls|", "with positions: least |word - same word, reversed|"
LETTER, EACH = "probe, the letter itself: accuracy, chance .17", "64 letters, probe of each vector: accuracy"
PLACE, LEFT = "probe, its place: accuracy, chance .13", "probe, the letter to its left: accuracy, chance .17"
NEAREST, OWN = "nearest hidden vector has the same letter: share", "its own task: accuracy on new texts"
FADED, HEADS = "its place: accuracy before - after training", "two heads, trained: largest error"
GRADIENT, COUNT = "norm(x + f(x)): gradient at layer 1 of 32 / of 1", "attention: parameters"
FORMULA, AT_SIX = "(d_in + 1)(2 d_attn + d_out)", "L = 6: both have"
SPREAD, SHORT = "attention: largest - least count, L = 1 to 40", "L = 5: attention - linear map, parameters"
SEES, CHEAP = architecture.one_layer_sees_all, architecture.restricted_attention_is_cheaper
ALIKE, WORDS = generation.positions_do_not_wait, contexts.words_in_context
SERVES, SIZE = contexts.memory_serves_other_tasks, architecture.size_is_free_of_length
BREAKS = [
    ("C14 all but the farthest", SEES, [architecture.attending(64)], {SEEN, JOINED}),
    ("C14 no neighbor", SEES, [lambda x, number: x], {SEEN, JOINED}),
    ("C14 no later token", SEES, [lambda x, number: torch.ones_like(x).tril() @ x], {JOINED}),
    ("C15 centered queries", ALIKE, [lambda some, every: ATTEND(some - some.mean(1, True), every)], {ALONE}),
    ("C15 RNN", ALIKE, [lambda some, every: unrolled(CELL, some[0])[None]], {ALONE, STEPS}),
    ("C15 as many steps as tokens", ALIKE, [slowly], {STEPS}),
    ("C15 each by itself", ALIKE, [lambda some, every: some.tanh()], set()),
    ("C16 none", WORDS, ["none"], {ORDER}),
    ("C16 learned", WORDS, ["learned"], set()),
    ("C16 rotary", WORDS, ["rotary"], set()),
    ("C16 distances, the same from the other end", WORDS, ["alibi"], {ORDER}),
    ("C18 f(x) and one head", blocks.residuals_and_heads, [blocks.nothing, 1], {GRADIENT, HEADS}),
    (
        "C20 places",
        SIZE,
        [lambda n: nn.Sequential(HEAD, nn.Embedding(n, 4))],
        {COUNT, FORMULA, SPREAD, AT_SIX},
    ),
    ("C20 output", SIZE, [lambda n: Attention(4, 1, head_dim=6, value_dim=3)], {COUNT, FORMULA, AT_SIX}),
    ("C20 linear map", SIZE, [lambda n: nn.Linear(4 * n, 3)], {COUNT, FORMULA, SPREAD, SHORT}),
    ("C22 mask", CHEAP, [by_mask], OPERATIONS | {CHEAPER}),
    ("C22 in turn", CHEAP, [in_turn], OPERATIONS | {WAITS}),
    ("C22 padding", CHEAP, [with_padding], SAME),
    ("C26 nothing", SERVES, [torch.zeros_like], {LETTER, PLACE, LEFT, NEAREST, FADED, EACH}),
    ("C26 untrained", SERVES, [lambda memory: memory, 0], {OWN, FADED}),
]


@pytest.mark.some(5)
@pytest.mark.parametrize(
    ("compute", "changes", "expected"), [row[1:] for row in BREAKS], ids=[row[0] for row in BREAKS]
)
def test_what_breaks_a_claim(compute, changes, expected):
    assert failing(compute(*changes)) == expected


ZERO, REST = "shift: largest entry at place 1", "shift: |x'[2:] - x[:n-1]|"
FUTURE, BEGIN = "logits 1..t, another target t: change", "logits: |shifted embeddings - begin id in front|"
CACHED = "targets given: |all at once - step by step on a cache|"


# C14 and C22: one layer sees all, or r neighbors


def seen_by_search(reads, n, layers):
    """Breadth first, from the last place down: how many inputs are found below 1, 2, ... layers."""
    counts = []
    for depth in range(1, layers + 1):
        found = {n - 1}
        for layer in reversed(range(depth)):
            found = {q for p in found for q in reads(p, layer) if 0 <= q < n}
        counts.append(len(found))
        if len(found) == n:
            break
    return counts


@FEW
@given(n=st.integers(1, 14), window=st.integers(1, 6), k=st.sampled_from([1, 3, 5]), r=st.integers(2, 4))
@example(n=2, window=1, k=1, r=2)
def test_layers_until_all_is_seen(n, window, k, r):
    kinds = (
        (architecture.attending(window), lambda p, layer: range(p - window + 1, p + window)),
        (architecture.convolving(k), lambda p, layer: range(p - k // 2, p + k // 2 + 1)),
        (architecture.convolving(r, dilated=True), lambda p, layer: [p - j * r**layer for j in range(r)]),
    )
    for spread, reads in kinds:
        counts = seen_by_search(reads, n, n)
        assert architecture.seen_by_layer(spread, n) == counts
        assert architecture.layers_needed(spread, n) == (len(counts) if counts[-1] == n else math.inf)


@FEW
@given(seed=seeds, n=st.integers(1, 9), k=st.sampled_from([1, 3, 5]), number=st.integers(0, 2))
def test_convolutions_are_sums(seed, n, k, number):
    x = normal(seed, n, 3)
    for dilated in (False, True):
        expected = np.zeros((n, 3))
        for p, j in np.ndindex(n, k):
            q = p - j * k**number if dilated else p + j - k // 2
            expected[p] += x[q].numpy() / k if 0 <= q < n else 0.0
        found = architecture.convolving(k, dilated=dilated)(x, number)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [33, 100])
def test_layers_for_another_length(n):
    found = figures(architecture.one_layer_sees_all(n=n))
    assert found[f"self-attention: layers to see {n} tokens"] == 1
    assert found["RNN, one layer: tokens the last state depends on"] == n
    for k in (3, 5, 9):
        assert found[f"convolution, k = {k}: layers"] == math.ceil(2 * (n - 1) / (k - 1))
    for k in (2, 3, 9):
        needed = next(layers for layers in range(n) if k**layers >= n)
        assert found[f"dilated convolution, k = {k}: layers, ⌈log_k n⌉"] == needed


def test_work_and_waiting_of_the_table_are_counted(monkeypatch):
    monkeypatch.setattr(architecture, "neighborhood_attention", by_mask)
    masked = {"restricted, O(rnd): work, 2n / n", "restricted, O(rnd): work, 3r / r"}
    assert failing(architecture.one_layer_sees_all()) == masked
    monkeypatch.setattr(architecture, "neighborhood_attention", in_turn)
    found = architecture.one_layer_sees_all()
    assert figures(found)["restricted: further steps in a row, n = 32 / 16"] >= 16


@FEW
@given(a=st.integers(1, 6), b=st.integers(1, 6), c=st.integers(1, 6), k=st.integers(1, 3))
def test_products_are_counted(a, b, c, k):
    random, products = partial(normal, 0), 2 * a * b * c
    assert architecture.products_counted(lambda: random(a, b) @ random(b, c) + 1) == products
    assert architecture.products_counted(lambda: random(k, a, b) @ random(k, b, c)) == k * products
    assert architecture.products_counted(lambda: F.conv1d(random(1, b, a + k - 1), random(c, b, k))) == k * products
    rows = random(a, b), random(c, b), random(c, k)
    assert architecture.products_counted(lambda: attention(*rows)) == 2 * a * c * (b + k)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30))
def test_the_longest_chain_of_any_graph(joined):
    nodes, depths = [torch.ones((), requires_grad=True)], [0]
    for i, j in joined:
        i, j = i % len(nodes), j % len(nodes)
        nodes.append(nodes[i] * nodes[j])
        depths.append(1 + max(depths[i], depths[j]))
    assert architecture.longest_chain(torch.ones(3) * 2) == 0  # nothing asks for a gradient
    for node, depth in zip(nodes, depths, strict=True):
        assert architecture.longest_chain(node) == (depth + 1 if depth else 0)  # the variable is a node, too


@FEW
@given(seed=seeds, n=st.integers(1, 12), d=st.integers(1, 4), window=st.integers(1, 14))
def test_neighborhood_attention_is_a_banded_softmax(seed, n, d, window):
    query, key, value = normal(seed, n, d), normal(seed + 1, n, d), normal(seed + 2, n, 3)
    scores = query.numpy() @ key.numpy().T / np.sqrt(d)
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    expected = softmax(np.where(apart < window, scores, -np.inf)) @ value.numpy()
    found = architecture.neighborhood_attention(query, key, value, window)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


# C15 and C23: all positions at once


@FEW
@given(seed=seeds, batch=st.integers(1, 3), n=st.integers(1, 6), d=st.integers(1, 4))
def test_shift_right(seed, batch, n, d):
    x = normal(seed, batch, n, d)
    expected = np.concatenate([np.zeros((batch, 1, d)), x.numpy()[:, : n - 1]], axis=1)
    np.testing.assert_array_equal(generation.shift_right(x), expected)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("shift", "expected", "lag"),
    [
        (lambda x: x, {ZERO, REST, FUTURE}, 0),
        (lambda x: torch.cat([torch.ones_like(x[:, :1]), x[:, :-1]], dim=1), {ZERO}, 1),
        (lambda x: generation.shift_right(x) / 2, {REST}, 1),
        (lambda x: generation.shift_right(generation.shift_right(x)), {REST}, 2),
        (torch.zeros_like, {REST}, 9),
    ],
    ids=["not shifted", "ones in front", "halved", "by two", "no targets"],
)
def test_what_breaks_c23_and_who_reads_what(shift, expected, lag):
    found = generation.targets_or_prediction(shift)
    assert failing(found) == expected | {BEGIN, CACHED}
    assert found.picture is not None
    # row t moves with target s if s is at least `lag` places before
    np.testing.assert_array_equal(found.picture.values > 0, np.tri(9, k=-lag, dtype=bool))


# C16 and C26: hidden vectors


@given(st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=1), st.integers(1, 7))
def test_early_letters_are_counted(texts, length):
    texts = [text[:length] for text in texts]
    expected = [int(2 * sum(letter in (0, 1, 2) for letter in text) > length) for text in texts]
    assert contexts.has_more_early_letters(torch.tensor(texts)).tolist() == expected


@FEW
@given(seed=seeds, n=st.integers(6, 30), d=st.integers(1, 8), classes=st.integers(2, 4))
def test_the_probe_is_least_squares(seed, n, d, classes):
    random = np.random.default_rng(seed)
    x, other = random.normal(size=(n, d)), random.normal(size=(40, d))
    labels, truth = np.arange(n) % classes, random.integers(classes, size=40)
    solved = np.linalg.lstsq(np.c_[x, np.ones(n)], np.eye(classes)[labels], rcond=None)[0]
    expected = np.mean((np.c_[other, np.ones(40)] @ solved).argmax(1) == truth)
    found = contexts.probe_accuracy(*(torch.tensor(part) for part in (x, labels, other, truth)))
    assert found == pytest.approx(expected, abs=1e-10)


# C18: residual connections and heads


@FEW
@given(seed=seeds, n_heads=st.integers(1, 3), size=st.floats(0.1, 10.0))
def test_what_heads_answer(seed, n_heads, size):
    layer = blocks.differences(n_heads, seed).requires_grad_(False)
    wq, wk, wv, wo = (getattr(layer, f"{name}_proj").weight.mul_(size).numpy() for name in ("q", "k", "v", "out"))
    expected = []
    for pair in blocks.PAIRS:
        total, key = 0.0, np.array([[pair[0], 1.0, 0.0], [pair[1], 0.0, 1.0]]) @ wk.T
        for h in range(n_heads):
            two = slice(2 * h, 2 * h + 2)
            weights = softmax(key[:, two] @ wq[two, 0] / np.sqrt(2))
            total += wo[0, h] * wv[h, 0] * (weights @ pair)
        expected.append(total)
    np.testing.assert_allclose(blocks.answers(layer), expected, rtol=0, atol=1e-10)
    wrong = np.array(expected) - [0.0, 0.0, 2.0, -2.0]
    np.testing.assert_allclose(blocks.errors(layer), wrong, rtol=0, atol=1e-10)
    if n_heads == 1:
        assert (wrong**2).mean() >= 1.0 - 1e-10


@given(w=st.floats(-4.0, 4.0), alphas=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4))
def test_one_head_is_wrong_by_one_at_least(w, alphas):
    wrong = [w * (a * x + (1 - a) * y) - (x - y) for a, (x, y) in zip(alphas, blocks.PAIRS, strict=True)]
    assert np.mean(np.square(wrong)) >= (w**2 + max(0.0, 2.0 - abs(w)) ** 2) / 2 - 1e-10
    assert np.mean(np.square(wrong)) >= blocks.least_error_of_one_head() - 1e-10


# C20: numbers


@FEW
@given(a=st.integers(1, 8), b=st.integers(1, 8), c=st.integers(1, 8))
def test_what_is_kept_for_the_backward_pass(a, b, c):
    x, y = normal(0, a, b).requires_grad_(), normal(1, b, c).requires_grad_()
    assert architecture.numbers_kept(lambda: x @ y) == max(a, c) * b
    assert architecture.numbers_kept(lambda: (x @ y).exp()) == max(a * b, b * c, a * c)
    assert architecture.numbers_kept(lambda: x.detach() @ y.detach()) == 0


@FEW
@given(d_in=st.integers(1, 9), d_attn=st.integers(1, 9), d_out=st.integers(1, 9))
def test_parameters_of_any_widths(d_in, d_attn, d_out):
    found = architecture.size_is_free_of_length(d_in=d_in, d_attn=d_attn, d_out=d_out)
    shapes = [(d_attn, d_in), (d_attn,), (d_attn, d_in), (d_attn,), (d_out, d_in), (d_out,)]
    assert figures(found)[COUNT] == sum(map(math.prod, shapes))
    assert figures(found)["linear map, L = 10: parameters"] == math.prod((d_out, 10 * d_in)) + d_out
    assert not failing(found) & {
        FORMULA,
        SPREAD,
        "lengths that one layer takes, of 3",
        "L = 64: numbers kept, L²",
    }


# C41: learning


def test_a_deep_stack_without_sums_makes_all_tokens_equal():
    assert blocks.differing(blocks.copier(6, residuals=False)) < 1e-3
    assert blocks.differing(blocks.copier(6, residuals=True)) > 0.1


def test_removing_the_sums_keeps_the_parameters():
    plain, summed = (blocks.copier(2, residuals=keep) for keep in (False, True))
    weights = dict(summed.named_parameters())
    assert all(torch.equal(weights[name], found) for name, found in plain.named_parameters())
    x = torch.randn(1, 3, blocks.D_MODEL)
    block = plain[1].blocks[0]
    seen = block.self_attention_residual.norm(x)
    after = block.self_attention(seen, seen)
    expected = block.feed_forward(block.feed_forward_residual.norm(after))
    torch.testing.assert_close(block(x), expected)


def test_stacks_that_keep_or_lose_their_sums_throughout_fail():
    small = {"depths": (1, 4), "steps": 12}
    always = blocks.residuals_let_deep_stacks_learn(
        lambda depth, residuals: blocks.copier(depth, residuals=True), **small
    )
    never = blocks.residuals_let_deep_stacks_learn(
        lambda depth, residuals: blocks.copier(depth, residuals=False), **small
    )
    assert "4 blocks, no residuals, untrained: the same share" in failing(always)
    assert "4 blocks: loss at the end" in failing(never)
