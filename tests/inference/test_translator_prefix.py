"""What a translation begins with, and that its log-probabilities are those that `score` gives."""

import pytest
import torch
from command_line import attendo, refused
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.data.segments import split_text
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.errors import AttendoError

TEXTS = ["It will rain on Monday.", "", "snow in Oslo, and wind", "Sunday: fog.", "x"]
TOKENIZERS = {kind: tiny_tokenizer(kind) for kind in ("bpe", "word", "byte")}


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_each_translation_begins_with_its_prefix(kind):
    translator = tiny_translator(TOKENIZERS[kind], beam=3, n_best=2, max_length_extra=20)
    prefixes = ["雨 が\n", "nothing", "", " the é", "▁ x"]
    found = translator.translate(TEXTS, prefixes=prefixes)
    for prefix, translation in zip(prefixes, found, strict=True):
        if translation.source:
            assert all(candidate.text.startswith(prefix) for candidate in translation.candidates)
            ids = translator.tokenizer.encode(prefix)
            assert all(list(c.token_ids[: len(ids)]) == ids for c in translation.candidates)
    assert found[1].text == ""  # an empty text has an empty translation all the same
    alone = translator.translate(TEXTS)
    assert found[2].text == alone[2].text
    together = translator.translate(TEXTS, prefixes="雨")
    assert [t.text[:1] for t in together] == ["雨", "", "雨", "雨", "雨"]
    assert together[0].text == translator.translate(TEXTS[:1], prefixes=["雨"])[0].text


def test_of_a_text_in_parts_the_first_begins_with_it():
    translator = tiny_translator(TOKENIZERS["bpe"], max_len=64, max_length_extra=20)
    text = "It will rain. There is fog at dawn. Snow!"
    pieces = split_text(text, 10, lambda piece: len(translator.tokenizer.encode(piece))).pieces
    found = translator.translate(["rain", text, "fog"], longest=10, prefixes=["", "雨", "雪"])
    wanted = translator.translate(pieces, prefixes=["雨", *[""] * (len(pieces) - 1)])
    assert found[1].parts == len(pieces) > 2
    assert found[1].candidates[0].token_ids == sum((t.candidates[0].token_ids for t in wanted), ())
    assert found[1].text.startswith("雨") and found[2].text.startswith("雪")
    assert wanted[1].text == translator.translate(pieces[1:2])[0].text


def test_a_loop_is_searched_again_with_its_prefix():
    found = next(
        translation
        for seed in range(4, 40)
        for translator in [tiny_translator(TOKENIZERS["bpe"], seed, 0.3, beam=1, max_length_extra=40, max_len=64)]
        for translation in translator.translate(["x", "rain"], prefixes=["", "雨が降る"])[1:]
        if translation.loop == "mended"
    )
    assert found.text.startswith("雨が降る")


def test_prefixes_that_are_refused(tmp_path):
    translator = tiny_translator(TOKENIZERS["byte"])
    with pytest.raises(AttendoError, match=r"1 prefixes for 2 texts\. Give one per text"):
        translator.translate(["a", "b"], prefixes=["c"])
    with pytest.raises(
        AttendoError,
        match=r"a prefix has 8 tokens, .* of a source of 2 tokens may have 8, .* Shorten it, or raise",
    ):
        translator.translate(["a"], prefixes="b" * 8)
    assert translator.translate(["a"], prefixes="b" * 7)[0].text[:7] == "b" * 7
    words = tiny_translator(TOKENIZERS["word"])
    with pytest.raises(AttendoError, match="the prefix 'qqq' has a word that is not in the vocabulary"):
        words.translate(["rain"], prefixes="qqq")
    short = tiny_translator(TOKENIZERS["byte"], max_len=10, max_length_extra=99)
    with pytest.raises(AttendoError, match=r"may have 10, end token included\. Shorten it$"):
        short.translate(["a"], prefixes="b" * 10)
    folder = save_run(tmp_path / "run", translator)
    assert "raise max_length_extra" in refused("translate", folder, "a", "--prefix", "b" * 8)
    assert "--prefix is not valid UTF-8" in refused("translate", folder, "a", "--prefix", "\udcff")


def test_the_engine_checks_prefixes_before_it_searches():
    def start(sources, rows_per_source, capacity):
        raise AssertionError("searched")

    config, special = tiny_translator(TOKENIZERS["word"]).decoding, SpecialIds(bos_id=2, eos_id=3)
    searcher = Searcher(SearchBackend(start, start), special, 64)
    with pytest.raises(AttendoError, match="2 prefixes for 1 sources"):
        searcher.search([(5, 3)], config, [(), ()])
    with pytest.raises(AttendoError, match="a prefix has 8 tokens"):
        searcher.search([(5, 3), (5, 3)], config, [(), (7,) * 8])


def test_the_command_gives_every_line_the_prefix(tmp_path):
    translator = tiny_translator(TOKENIZERS["bpe"], max_length_extra=20)
    folder = save_run(tmp_path / "run", translator)
    wanted = [found.text for found in translator.translate(["rain", "fog"], prefixes="雨")]
    assert attendo("translate", folder, "rain", "fog", "--prefix", "雨").out.splitlines() == wanted
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("rain\nfog\n")
    attendo("translate", folder, "--input", file, "--output", out, "--prefix", "雨")
    assert out.read_text().splitlines() == wanted


# ---- the numbers of `score`


def ending(seed, **options):
    """A translator of words, whose texts are cut again into the tokens that they are made of, and come to an end."""
    translator = tiny_translator(
        TOKENIZERS["word"], seed, scale=0.3, max_length_extra=20, min_length=3, output_bias=True, **options
    )
    translator.model.double()
    with torch.no_grad():
        translator.model.output_proj.bias.zero_()[translator.tokenizer.eos_id] = 4.0
    return translator


@pytest.mark.some(3)
@pytest.mark.parametrize("how", ["greedy", "beam", "prefix", "together", "coverage", "groups"])
def test_score_gives_the_numbers_of_translate(how):
    options = {"coverage": {"coverage_penalty": 0.2}, "groups": {"beam_groups": 2}}.get(how, {})
    translator = ending(5, beam=4, n_best=4, **options)
    translator.companions = (ending(6).model,) if how == "together" else ()
    prefix = translator.tokenizer.decode([20, 30]) if how == "prefix" else None
    found = [
        (translation.source, candidate)
        for translation in translator.translate(
            [text for text in TEXTS if text],
            beam=1 if how == "greedy" else None,
            prefixes=prefix,
            guard=False,
        )
        for candidate in translation.candidates
        if candidate.finished
    ]
    assert sum(len(candidate.token_ids) for _, candidate in found) >= 4
    given = translator.score([(source, candidate.text) for source, candidate in found])
    for (_, candidate), scored in zip(found, given, strict=True):
        assert scored.token_ids == candidate.token_ids
        assert scored.token_log_probs == pytest.approx(candidate.token_log_probs, abs=1e-9)
        assert scored.log_prob == pytest.approx(candidate.log_prob, abs=1e-9)
        assert scored.score == pytest.approx(candidate.score, abs=1e-9)
