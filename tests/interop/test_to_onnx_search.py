"""Searches over exported graphs find what the model's own searches find."""

import pytest
import torch
from tiny_decoder import tiny_decoder
from tiny_texts import forecast_texts
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.bundle import Bundle
from attendo.decoding.options import DecodingConfig
from attendo.decoding.sampling import SamplingConfig
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.inference.generator import Generator
from attendo.interop import to_onnx

TEXTS = ["", *forecast_texts(30), "it rains . " * 40]


SEARCH = {"beam": 2, "n_best": 1, "length_penalty": 0.7, "max_length_ratio": 0.0, "max_length_extra": 12}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A translator, and itself as it was exported."""
    out = tmp_path_factory.mktemp("onnx")
    shape = {"n_decoder_layers": 2, "max_len": 64, "positions": "rotary"}
    translator = tiny_translator(tiny_tokenizer(), scale=0.3, **shape, **SEARCH)
    bundle = Bundle({"decoding": SEARCH | {"coverage_penalty": 0.3}}, translator.tokenizer)
    to_onnx.write(out, bundle, translator.model, out)
    return translator, to_onnx.opened(out)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translator_finds_the_same(pair, beam):
    translator, theirs = pair
    ours, found = translator.translate(TEXTS, beam, guard=False), theirs.translations(TEXTS, beam)
    assert [one.text for one in found] == [one.text for one in ours]
    assert [one.candidates[0].token_ids for one in found] == [one.candidates[0].token_ids for one in ours]
    assert [one.score for one in found] == pytest.approx([one.score for one in ours], abs=1e-5)


def test_a_translation_has_its_pieces_and_score(pair):
    translator, theirs = pair
    assert theirs.same_search == {"coverage_penalty": 0.0}
    best = translator.translate(TEXTS[1:2], guard=False)[0].candidates[0]
    ((pieces, text, score),) = theirs.translate(TEXTS[1:2])
    assert (pieces, text) == ([translator.tokenizer.entries[i] for i in best.token_ids], best.text)
    assert score == pytest.approx(best.score, abs=1e-5)


def test_rows_that_come_later_change_nothing(pair):
    """Sources of other lengths join a search that goes on, and rows leave it."""
    translator, theirs = pair
    config = DecodingConfig(beam=3, max_length_ratio=0.0, max_length_extra=9)
    rows = [[*ids, 3] for ids in translator.tokenizer.encode_batch(["it rains", "snow", "the sun , rain", "a"])]
    search = Searcher(SearchBackend(theirs.start, theirs.decoder.step), theirs.special_ids, 64).continuous(config)
    numbers, found = search.add(rows[:2]), {}
    found |= dict(search.advance()) | dict(search.advance())
    numbers += search.add(rows[2:])
    while search.going_on:
        found |= dict(search.advance())
    ours = translator.search(rows, config)
    assert [found[number][0].token_ids for number in numbers] == [one[0].token_ids for one in ours]


def test_a_generator_writes_the_same(tmp_path, monkeypatch):
    """Greedy and drawn; texts of different lengths at once, whose windows slide and are read in parts."""
    monkeypatch.setattr(to_onnx, "MOST_LOGITS", 1500)
    tokenizer = tiny_tokenizer("byte")
    model = tiny_decoder(tokenizer.vocab_size, max_len=24).eval()
    to_onnx.write(tmp_path, Bundle({}, tokenizer), model, tmp_path)
    generator, theirs = Generator(model, tokenizer), to_onnx.opened(tmp_path)
    prompts = ["", "rain", "the wind is in the east"]
    for options in ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 9}):
        config = SamplingConfig(max_tokens=30, seed=5, **options)
        ours = [generator.generate(prompt, max_tokens=30, seed=5, **options) for prompt in prompts]
        assert [one.token_ids for one in theirs.generate(prompts, config)] == [one.token_ids for one in ours]
        assert any(one.slides for one in ours)
    assert theirs.description["ids"]["never"] == [0, 2, 1]  # nor what is unknown, which spells nothing
    states = theirs.logits([[2, 70], [2]])
    assert [state.shape for state in states] == [(2, 260), (1, 260)]
    assert torch.as_tensor(states[1]).isfinite().all()
