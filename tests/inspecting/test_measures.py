"""Measures against loops over single numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.errors import AttendoError
from attendo.inspecting import measures
from attendo.inspecting.recording import recording
from attendo.inspecting.residual_stream import (
    contribution_norms,
    head_matrices,
    head_ranks,
    head_singular_values,
    value_norms,
    weighted_norms,
)
from attendo.nn.attention import Attention

lengths = st.integers(1, 7)


def random_weights(*shape, seed, causal=False, empty=False):
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand(shape, generator=generator, dtype=torch.float64) ** 4
    found = found.tril(shape[-1] - shape[-2]) if causal else found
    found = found / found.sum(-1, keepdim=True)
    if empty:
        found[..., -1, :] = 0.0
    return found


# ---- weights


def by_hand(weights, query_ids, key_ids, cross):
    """All measures of one head, cell by cell."""
    q_len, k_len = len(query_ids), len(key_ids)
    rows = weights.tolist()
    total = sum(map(sum, rows))
    found = {
        "entropy": sum(-a * math.log(a) for row in rows for a in row if a) / q_len,
        "maximum": sum(max(row) for row in rows) / q_len,
    }
    names = ["distance", "previous", "next", "first", "diagonal", "duplicate", "induction"]
    found |= dict.fromkeys(names + ["alignment"] * cross, 0.0)
    for i, row in enumerate(rows):
        place = (i + 0.5) * k_len / q_len - 0.5 if cross else i + k_len - q_len
        at = round(place)  # of halves the even one, as in torch
        for j, a in enumerate(row):
            same = key_ids[j] == query_ids[i]
            follows = j > 0 and key_ids[j - 1] == query_ids[i]
            cells = {
                "distance": abs(place - j),
                "previous": j == at - 1,
                "next": j == at + 1,
                "first": j == 0,
                "diagonal": j == at,
                "duplicate": same and (cross or j != at),
                "induction": follows and (cross or j <= at),
                "alignment": abs(place - j) <= max(1, k_len / 8),
            }
            for name in found.keys() & cells.keys():
                found[name] += a * cells[name] / (total or 1)
    return found


@settings(max_examples=40)
@given(q_len=lengths, k_len=st.integers(1, 20), kind=st.sampled_from(["self", "cached", "cross"]), data=st.data())
def test_measures_are_those_of_a_loop(q_len, k_len, kind, data):
    cross = kind == "cross"
    k_len = k_len if cross else q_len + (k_len if kind == "cached" else 0)
    ids = st.lists(st.integers(0, 3), min_size=k_len, max_size=k_len)
    key_ids = data.draw(ids)
    query_ids = data.draw(st.lists(st.integers(0, 3), min_size=q_len, max_size=q_len)) if cross else key_ids[-q_len:]
    causal, seed = not cross and data.draw(st.booleans()), data.draw(st.integers(0, 99))
    weights = random_weights(2, q_len, k_len, seed=seed, causal=causal, empty=data.draw(st.booleans()))
    found = measures.head_measures(weights, tuple(query_ids), tuple(key_ids), cross=cross)
    for head in range(2):
        wanted = by_hand(weights[head], query_ids, key_ids, cross)
        assert {name: values[head] for name, values in found.items()} == pytest.approx(wanted, abs=1e-12)


def test_heads_of_each_kind_score_1_where_they_can():
    ids = [1, 2, 3, 1, 2, 3]
    for name, pattern in measures.patterns(ids, ids).items():
        rows = pattern.any(-1)
        weights = (pattern.double() / pattern.sum(-1, keepdim=True).clamp_min(1))[None]
        assert measures.head_measures(weights, ids, ids)[name] == pytest.approx([1.0])
        assert rows.any()
    assert "alignment" not in measures.patterns(ids, ids)
    assert measures.patterns([1] * 4, [2] * 4, cross=True)["alignment"].diagonal().all()
    assert measures.places(3, 6, cross=True).tolist() == [0.5, 2.5, 4.5]


# ---- rollout


@settings(max_examples=20)
@given(n=lengths, layers=st.integers(1, 4), seed=st.integers(0, 99))
def test_rollout_is_the_product_of_half_mixed_layers(n, layers, seed):
    stack = [random_weights(3, n, n, seed=seed + i) for i in range(layers)]
    found = measures.rollout(stack)
    torch.testing.assert_close(found.sum(-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    wanted = [[float(i == j) for j in range(n)] for i in range(n)]
    for weights in stack:
        mean = [[sum(weights[h, i, j].item() for h in range(3)) / 3 for j in range(n)] for i in range(n)]
        half = [[0.5 * mean[i][j] + 0.5 * (i == j) for j in range(n)] for i in range(n)]
        wanted = [[sum(half[i][k] * wanted[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


@settings(max_examples=20)
@given(n=lengths, k=lengths, layers=st.integers(1, 3), seed=st.integers(0, 99))
def test_rollout_through_a_decoder_is_linear_algebra_on_both_texts(n, k, layers, seed):
    own = [random_weights(2, n, n, seed=seed + i, causal=True) for i in range(layers)]
    cross = [random_weights(2, n, k, seed=seed + 9 + i) for i in range(layers)]
    memory = measures.rollout([random_weights(2, k, k, seed=seed + 99)])
    source, target = measures.cross_rollout(own, cross, memory)
    assert source.shape == (n, k)
    sums = source.sum(-1) + target.sum(-1)
    torch.testing.assert_close(sums, torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (target.triu(1) == 0).all()
    # one matrix over both texts, the source's positions fixed at what the memory has of them
    both = torch.eye(k + n, dtype=torch.float64)
    for a, c in zip(own, cross, strict=True):
        mix, look = torch.eye(k + n, dtype=torch.float64), torch.eye(k + n, dtype=torch.float64)
        mix[k:, k:] = 0.5 * (a.mean(0) + torch.eye(n))
        look[k:, :k], look[k:, k:] = 0.5 * c.mean(0), 0.5 * torch.eye(n)
        both = look @ mix @ both
    torch.testing.assert_close(target, both[k:, k:], rtol=0, atol=1e-12)
    torch.testing.assert_close(source, both[k:, :k] @ memory, rtol=0, atol=1e-12)


# ---- contributions


@pytest.fixture
def recorded():
    torch.manual_seed(0)
    attention = Attention(8, 4, n_kv_heads=2, value_dim=3, d_memory=6).double()
    x, memory = torch.randn(2, 3, 8).double(), torch.randn(2, 5, 6).double()
    with torch.no_grad(), recording(attention, "*") as record:
        record.model(x, memory)
    return attention, record[next(iter(record))]


def test_norms_are_those_of_single_vectors(recorded):
    attention, record = recorded
    by_weight = weighted_norms(attention, record.weights, record.value)
    alone, direct = value_norms(attention, record.value), contribution_norms(attention, record.mixed)
    out = attention.out_proj.weight
    for b, h, i in [(0, 0, 0), (1, 3, 2), (0, 2, 1)]:
        own = out[:, 3 * h : 3 * h + 3]
        added = [record.weights[b, h, i, j] * (own @ record.value[b, h // 2, j]) for j in range(5)]
        for j, vector in enumerate(added):
            assert by_weight[b, h, i, j].item() == pytest.approx(vector.norm().item(), abs=1e-12)
            assert alone[b, h, j].item() == pytest.approx((own @ record.value[b, h // 2, j]).norm().item())
        assert direct[b, h, i].item() == pytest.approx(sum(added).norm().item(), abs=1e-12)


@settings(max_examples=20)
@given(kv_heads=st.sampled_from([1, 2, 4]), value_dim=st.integers(1, 9), rank=st.integers(0, 9))
def test_singular_values_and_ranks_are_those_of_the_whole_matrices(kv_heads, value_dim, rank):
    torch.manual_seed(value_dim)
    attention = Attention(8, 4, n_kv_heads=kv_heads, value_dim=value_dim, d_memory=6)
    rank = min(rank, value_dim)
    with torch.no_grad():  # the values of each head have only so many directions, up to rounding
        rows = attention.v_proj.weight.view(kv_heads, value_dim, 6)
        rows[:, rank:] = torch.rand(value_dim - rank, rank) @ rows[:, :rank]
    matrices = head_matrices(attention).detach().double()
    found, wanted = head_singular_values(attention), torch.linalg.svdvals(matrices)
    n = min(found.shape[1], wanted.shape[1])
    torch.testing.assert_close(found[:, :n], wanted[:, :n], rtol=0, atol=1e-6)
    torch.testing.assert_close(found.square().sum(-1).sqrt(), matrices.norm(dim=(1, 2)), rtol=1e-5, atol=1e-6)
    assert head_ranks(attention).tolist() == [min(rank, 6, value_dim)] * 4


# ---- alignment error

pairs = st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@given(lengths, lengths, st.booleans(), st.integers(0, 99))
def test_a_sink_is_the_column_with_the_largest_mean(q_len, k_len, causal, seed):
    k_len = q_len if causal else k_len
    weights = random_weights(3, q_len, k_len, seed=seed, causal=causal)
    for head, (key, share) in zip(weights.tolist(), measures.sinks(weights, causal=causal), strict=True):
        rows = head[1:] if causal and q_len > 1 else head
        means = [sum(row[j] for row in rows) / len(rows) for j in range(k_len)]
        assert share == pytest.approx(max(means), abs=1e-6)
        assert means[key] == pytest.approx(share, abs=1e-6)


@given(rows=st.lists(st.tuples(pairs, pairs, pairs), max_size=4))
def test_the_error_rate_is_that_of_counted_links(rows):
    lines = [
        " ".join(
            [
                *(f"{i}-{j}" for i, j in sure),
                *(f"{i}{mark}{j}" for (i, j), mark in zip(more, "?p" * 9, strict=False)),
            ]
        )
        for _, sure, more in rows
    ]
    given_links = measures.parse_links(lines, "gold", [(4, 4)] * len(rows))
    assert given_links == [measures.GivenLinks(sure, sure | more) for _, sure, more in rows]
    found = [own for own, _, _ in rows]
    hits = sum((pair in sure) + (pair in sure | more) for own, sure, more in rows for pair in own)
    total = sum(len(own) + len(sure) for own, sure, _ in rows)
    assert measures.alignment_error_rate(found, given_links) == pytest.approx(1 - hits / total if total else 0.0)
    assert measures.alignment_error_rate([sure for _, sure, _ in rows], given_links) == 0.0


@pytest.mark.parametrize(
    ("lines", "sizes", "message"),
    [
        (["0-0", "1--2"], None, "gold, line 2: '1--2' is not a link"),
        (["0-0 -1-2"], None, "gold, line 1: '-1-2' is not a link"),
        (["²-1"], None, "gold, line 1: '²-1' is not a link"),
        (["0-0 3-1"], [(3, 2)], "gold, line 1: '3-1' is outside the 3 and 2 words (counted from 0)"),
        (["0-0", ""], [(1, 1)], "gold, line 2: there are only 1 pairs"),
        (["0-0"], [(1, 1), (1, 1)], "gold has 1 lines for 2 pairs"),
    ],
)
def test_links_that_cannot_be_read_are_named(lines, sizes, message):
    with pytest.raises(AttendoError) as found:
        measures.parse_links(lines, "gold", sizes)
    assert message in str(found.value)
    with pytest.raises(AttendoError, match="2 alignments computed but 1 given"):
        measures.alignment_error_rate([(), ()], measures.parse_links([""], "gold"))


words = st.lists(st.text("ab雨", min_size=1, max_size=3), max_size=4).map("  ".join)


@given(source=words, target=words, data=st.data())
def test_words_are_linked_where_their_characters_are(source, target, data):
    spans = st.tuples(st.integers(0, len(source)), st.integers(0, len(target))).flatmap(
        lambda at: st.tuples(
            st.tuples(st.just(at[0]), st.integers(at[0], len(source))),
            st.tuples(st.just(at[1]), st.integers(at[1], len(target))),
        )
    )
    links = data.draw(st.lists(spans, max_size=3))

    def word_at(text, place):
        return (
            None if text[place].isspace() else len(text[:place].split()) - (place > 0 and not text[place - 1].isspace())
        )

    wanted = {
        (word_at(source, i), word_at(target, j))
        for (start, end), (first, last) in links
        for i in range(start, end)
        for j in range(first, last)
    }
    assert measures.word_links(links, source, target) == {pair for pair in wanted if None not in pair}
