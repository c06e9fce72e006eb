"""Sources that come while others are searched find what they find alone."""

from typing import Any

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.decoding.backends import best_backend, eager_backend
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import Searcher
from attendo.errors import AttendoError
from attendo.models import EncoderDecoder, ModelConfig

SPECIAL = SpecialIds(bos_id=1, eos_id=2, banned_ids=(0, 1))
SIZES: dict[str, Any] = {"vocab_size": 30, "d_model": 16, "d_ff": 24, "n_heads": 2, "dropout": 0.0}


def model() -> EncoderDecoder:
    torch.manual_seed(3)
    made = EncoderDecoder(ModelConfig(**SIZES, n_encoder_layers=1, n_decoder_layers=2)).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


COMPILED, DOUBLE = best_backend(model(), 0), eager_backend(model().double(), 0)


@settings(max_examples=examples(6, 40), deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 5, 20]), st.integers(1, 3)), min_size=1, max_size=6),
    beam=st.integers(1, 3),
    compiled=st.booleans(),
    options=st.sampled_from([{}, {"min_length": 4}, {"no_repeat_ngram": 2}, {"n_best": 1, "length_penalty": 0.0}]),
    forced=st.booleans(),
)
def test_a_source_finds_the_same_whenever_it_comes(arrivals, beam, compiled, options, forced):
    member = COMPILED if compiled else DOUBLE
    config = DecodingConfig(beam=beam, max_length_ratio=1, max_length_extra=5, **options)
    rng = np.random.default_rng(len(arrivals))
    search = Searcher(member, SPECIAL, 20).continuous(config)
    given_sources: dict[int, tuple[list[int], list[int]]] = {}
    found = {}
    for wait, n in arrivals:
        for _ in range(wait):
            found.update(search.advance())
        rows = [rng.integers(3, 30, rng.integers(1, 7)).tolist() for _ in range(n)]
        starts = [rng.integers(3, 30, rng.integers(0, 3)).tolist() for _ in range(n)] if forced else None
        numbers = search.add(rows, starts)
        assert not set(numbers) & set(given_sources)
        given_sources |= dict(zip(numbers, zip(rows, starts or [[]] * n, strict=True), strict=True))
    while search.going_on:
        found.update(search.advance())
    assert found.keys() == given_sources.keys()
    for number, (row, start) in given_sources.items():
        (alone,) = Searcher(member, SPECIAL, 20).search([row], config, [start] if forced else None)
        assert [text.token_ids for text in found[number]] == [text.token_ids for text in alone]
        for one, other in zip(found[number], alone, strict=True):
            if compiled:
                assert one == other
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)


def test_a_prefix_without_room_is_refused_before_anything_is_read():
    search = Searcher(COMPILED, SPECIAL, 4).continuous(DecodingConfig())
    with pytest.raises(AttendoError, match="a prefix has 4 tokens"):
        search.add([[5, 2]], [[5, 6, 7, 8]])
    assert (search.going_on, search.advance(), search.add([])) == (0, [], [])


def test_a_search_that_came_to_rest_goes_on_in_the_memory_that_it_has():
    config = DecodingConfig(beam=2, max_length_ratio=1, max_length_extra=5)
    search = Searcher(COMPILED, SPECIAL, 20).continuous(config)

    def found(sources):
        search.add(sources)
        texts = []
        while search.going_on:
            texts += [hypotheses for _, hypotheses in search.advance()]
        assert search._search is not None
        return texts, search._search.cache

    texts, cache = found([[5, 6, 2], [7, 2]])
    place = cache.cache.data_ptr()
    assert found([[5, 6, 2]])[1] is cache
    assert sorted(map(repr, found([[5, 6, 2], [7, 2]])[0])) == sorted(map(repr, texts))
    assert cache.cache.data_ptr() == place
