"""Models as one: the mean of their probabilities, checked by adding up, and on real models."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_table import SPECIAL, Table, every_text
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.decoding.backends import ensemble, mean_log_probs
from attendo.decoding.beam import DecodingConfig, beam_search
from attendo.decoding.searcher import SearchBackend
from attendo.errors import AttendoError
from attendo.inference.translator import Translator

TEXTS = ["It will rain on Monday.", "", "snow in Oslo, and wind", "Sunday: fog.", "x"]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def averaged(members, vocab):
    """A table whose probabilities are the plain mean of those of the members."""

    class Mean(Table):
        def logits(self, source, prefix):
            rows = [torch.from_numpy(member.logits(source, prefix)) for member in members]
            return (sum(row.softmax(-1) for row in rows) / len(rows)).log().numpy()

    return Mean(vocab=vocab)


@settings(max_examples=40)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3), beam=st.integers(1, 4))
def test_a_search_over_tables_finds_what_their_mean_finds(seeds, beam):
    members = [Table(seed=seed, vocab=5) for seed in seeds]
    mean = averaged(members, 5)
    joint = ensemble([SearchBackend(member.start, member.step) for member in members])
    config = DecodingConfig(beam=beam, n_best=beam)
    sources, limits = [(2, 3), (4,), (2, 2, 2)], [4, 3, 5]
    cache = joint.start(sources, beam, max(limits))
    found = beam_search(joint.step, cache, limits, config, SPECIAL)
    alone = beam_search(mean.step, mean.start(sources, beam, max(limits)), limits, config, SPECIAL)
    for ours, theirs in zip(found, alone, strict=True):
        assert [h.token_ids for h in ours] == [h.token_ids for h in theirs]
        assert [h.log_prob for h in ours] == pytest.approx([h.log_prob for h in theirs], abs=1e-9)


def test_a_wide_beam_finds_the_best_text_of_the_mean():
    members = [Table(seed=seed, vocab=4, end_bias=1.0) for seed in (1, 2)]
    joint = ensemble([SearchBackend(member.start, member.step) for member in members])
    config = DecodingConfig(beam=20)
    found = beam_search(joint.step, joint.start([(2,)], 20, 4), [4], config, SPECIAL)[0][0]
    ids, log_prob, _ = every_text(averaged(members, 4), (2,), 4, config.length_penalty)[0]
    assert (found.token_ids, found.log_prob) == (ids, pytest.approx(log_prob, abs=1e-9))
    by_hand = [
        [math.exp(member.log_probs((2,), ids[:i])[token]) for member in members]
        for i, token in enumerate((*ids, SPECIAL.eos_id))
    ]
    assert log_prob == pytest.approx(sum(math.log((p + q) / 2) for p, q in by_hand), abs=1e-9)


def test_rows_join_every_member(tokenizer):
    """A second source joins after two steps, and rows of both then step as those of caches that never met."""
    members = [tiny_translator(tokenizer, seed=seed).model.double() for seed in (1, 2)]

    def start(model):
        return lambda sources, rows, capacity: model.start(torch.tensor(sources), None, rows, capacity)

    def step(model):
        return lambda ids, cache: model.step(ids, cache)[:, -1]

    joint = ensemble([SearchBackend(start(model), step(model)) for model in members])
    sources, ids = [[[7, 8, 9]], [[10, 11]]], torch.tensor([[2], [5], [6], [7]])
    with torch.no_grad():
        alone = [joint.start(source, 2, 8) for source in sources]
        joined, late = (joint.start(source, 2, 8) for source in sources)
        for token in (3, 4):
            fed = torch.tensor([[token], [token + 1]])
            torch.testing.assert_close(joint.step(fed, joined), joint.step(fed, alone[0]))
        joined.join(late)
        both = [joint.step(ids[2 * i : 2 * i + 2], cache) for i, cache in enumerate(alone)]
        torch.testing.assert_close(joint.step(ids, joined), torch.cat(both))


def test_what_one_member_rules_out_stays_possible_and_a_dead_row_adds_nothing():
    nothing = -math.inf
    first, second = torch.tensor([[0.0, nothing], [nothing] * 2]), torch.tensor([[nothing, 0.0], [0.0, 0.0]])
    found = mean_log_probs([first, second]).exp()
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [0.25, 0.25]], dtype=torch.float64))
    assert (mean_log_probs([first[1:], first[1:]]) == nothing).all()
    damaged = torch.tensor([[math.nan, 0.0]])
    assert mean_log_probs([damaged, second[:1]]).isnan().any()


def test_different_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"vocabularies of 2, 3 entries .*averaged models must share one"):
        mean_log_probs([torch.zeros(1, 2), torch.zeros(1, 3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_with_itself_is_that_model(tokenizer, dtype):
    alone = tiny_translator(tokenizer, n_best=2, max_length_extra=20)
    alone.model.to(dtype)
    both = Translator(alone.model, tokenizer, alone.decoding, companions=(alone.model, alone.model))
    for one, two in zip(alone.translate(TEXTS), both.translate(TEXTS), strict=True):
        assert [c.text for c in one.candidates] == [c.text for c in two.candidates]
        assert [c.token_ids for c in one.candidates] == [c.token_ids for c in two.candidates]
        assert [c.score for c in one.candidates] == pytest.approx([c.score for c in two.candidates], abs=1e-6)
    pairs = [(text, "fog.") for text in TEXTS]
    scores = [[c.log_prob for c in user.score(pairs)] for user in (alone, both)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_two_runs_translate_together_and_their_score_is_what_score_gives(tokenizer, tmp_path):
    members = [tiny_translator(tokenizer, seed=seed) for seed in (1, 2)]
    folders = [save_run(tmp_path / f"run{i}", member) for i, member in enumerate(members)]
    both = Translator.load(folders[0], others=folders[1:])
    found = both.translate(["It will rain on Monday."], guard=False)[0].candidates[0]
    assert found.text != members[0].translate(["It will rain on Monday."], guard=False)[0].text
    mean = torch.tensor(found.token_log_probs).exp()
    source = tokenizer.specials.source(tokenizer.encode("It will rain on Monday."))
    forced = [member._forced_log_probs([source], [list(found.token_ids)])[0] for member in members]
    by_hand = sum(torch.tensor(row[: len(mean)]).exp() for row in forced) / 2
    torch.testing.assert_close(mean, by_hand, rtol=1e-4, atol=1e-6)
    together = both._forced_log_probs([source], [list(found.token_ids)])[0]
    assert found.token_log_probs == pytest.approx(together[: len(mean)], abs=1e-5)


def test_runs_of_another_tokenizer_or_length_do_not_mislead(tokenizer, tmp_path):
    folder = save_run(tmp_path / "a", tiny_translator(tokenizer))
    other = save_run(tmp_path / "b", tiny_translator(tiny_tokenizer(seed=20)))
    with pytest.raises(AttendoError, match=r"b has another tokenizer than .*a \(expected the same for an ensemble"):
        Translator.load(folder, others=[other])
    short = save_run(tmp_path / "c", tiny_translator(tokenizer, max_len=30, positions="learned"))
    assert Translator.load(folder, others=[short]).longest == 29
