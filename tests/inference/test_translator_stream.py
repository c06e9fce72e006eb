"""A translation in pieces as it is found."""

import dataclasses

import pytest
import torch
from command_line import attendo
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed_translators import COMPILED, KINDS, MADE, PARTS, TOGETHER, TOKENIZERS, double, made, texts
from tiny_translator import save_run

from attendo.cli.reporting import one_line
from attendo.data.segments import Segments
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.inference.incremental_decode import text_as_found
from attendo.inference.translator import Translator

# ---- streams


@settings(max_examples=examples(10, 20))
@given(
    kind=st.sampled_from(KINDS),
    text=texts,
    longest=st.sampled_from([None, 8, 12]),
    prefix=st.sampled_from([None, "", "rain", "雨"]),
)
def test_the_pieces_of_a_stream_are_the_greedy_translation(kind, text, longest, prefix):
    translator = MADE[kind]
    if prefix and translator.tokenizer.unk_id in translator.tokenizer.encode(prefix):
        prefix = None
    pieces = list(translator.stream(text, longest=longest, prefix=prefix))
    found = translator.translate([text], beam=1, guard=False, longest=longest, prefixes=prefix)[0]
    assert "".join(pieces) == found.text
    assert all(pieces)


@pytest.mark.some(6)
@pytest.mark.parametrize("translator", [TOGETHER, COMPILED], ids=["ensemble", "compiled"])
@pytest.mark.parametrize("text", ["", " \n", "rain", *PARTS])
def test_streams_of_ensembles_and_of_compiled_models(translator, text):
    wanted = translator.translate([text], beam=1, guard=False, longest=10)[0].text
    assert "".join(translator.stream(text, longest=10)) == wanted
    assert wanted or not text.strip()


@pytest.mark.parametrize(
    "options", [{"min_length": 9}, {"no_repeat_ngram": 2}, {"beam_groups": 2}, {"coverage_penalty": 0.5}]
)
def test_a_stream_searches_as_the_run_does(options):
    translator = double(made("bpe", output_bias=True, **options))
    with torch.no_grad():
        translator.model.output_proj.bias.zero_()[Tokenizer.eos_id] = 3.0
    alone = dataclasses.replace(translator.decoding, beam_groups=1)
    plain = dataclasses.replace(translator, decoding=alone)
    wanted = [found.text for found in plain.translate(["rain", "fog at dawn"], beam=1, guard=False)]
    assert ["".join(translator.stream(text)) for text in ("rain", "fog at dawn")] == wanted


def told(tokenizer: Tokenizer, text: str, sizes) -> list[tuple[int, ...]]:
    ids, rows = tokenizer.encode(text), []
    for size in sizes:
        rows.append(tuple(ids[:size]))
        ids = ids[size:]
    return [*rows, tuple(ids)]


@given(
    kind=st.sampled_from(["bpe", "byte", "unigram", "character"]),
    parts=st.lists(st.sampled_from(["", "It rains.", "雪だ。", "🌧️ 👩‍👩‍👧", "7!", "naïve"]), min_size=1, max_size=5),
    source=st.sampled_from(["a b", "雪だ", "7"]),
    gap=st.sampled_from(["", " ", "\n", "  \n ", "\u00a0"]),
    data=st.data(),
)
def test_pieces_come_as_soon_as_they_are_sure_and_never_cut_a_character(kind, parts, source, gap, data):
    tokenizer = TOKENIZERS[kind]
    segments = Segments((source,) * len(parts), (" ", *[gap] * (len(parts) - 1), "\n"))
    left = [told(tokenizer, part, data.draw(st.lists(st.integers(0, 3), max_size=8))) for part in parts]
    events = []
    while any(left):
        number = data.draw(st.sampled_from([n for n, rows in enumerate(left) if rows]))
        ids = left[number].pop(0)
        events.append((number, ids, not left[number]))
    pieces = list(text_as_found(events, segments, tokenizer))
    assert "".join(pieces) == segments.joined(parts) and all(pieces)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_sentence_is_shown_while_others_are_still_searched():
    tokenizer = TOKENIZERS["byte"]
    segments = Segments(("雪。", "雨。", "風。"), ("", "\n", "", ""))
    events = [
        (0, "é".encode()[:1]),
        (1, b"b"),
        (0, "é".encode()[1:]),
        (0, None),
        (1, None),
        (2, b"c"),
        (2, None),
    ]
    rows = [(n, () if data is None else tuple(4 + byte for byte in data), data is None) for n, data in events]
    seen = []

    def coming():
        for row in rows:
            seen.append(row[0])
            yield row

    pieces = [(piece, len(seen)) for piece in text_as_found(coming(), segments, tokenizer)]
    # between two letters a space is put, if the whole has no Japanese: known at the end
    assert pieces == [("é", 3), ("\nb", 4), (" c", 7)]


def test_tokens_come_before_the_next_step_is_taken_and_inference_mode_stays_inside(monkeypatch):
    translator, steps = double(made("character")), []
    step = translator.model.step

    def watched(token_ids, cache):
        steps.append(torch.is_inference_mode_enabled())
        return step(token_ids, cache)

    monkeypatch.setattr(translator.model, "step", watched)
    n_steps = []
    for _ in translator.stream("rain"):
        assert not torch.is_inference_mode_enabled()
        n_steps.append(len(steps))
    assert len(n_steps) > 3 and n_steps == sorted(set(n_steps)) and all(steps)


def test_what_is_refused_is_refused_before_the_first_piece():
    translator = MADE["byte"]
    with pytest.raises(AttendoError, match="longest=65"):
        translator.stream("a", longest=65)
    with pytest.raises(AttendoError, match="prefix"):
        translator.stream("a", prefix="b" * 40)
    with pytest.raises(AttendoError, match="a word that is not in the vocabulary"):
        MADE["word"].stream("a", prefix="qqq")


# ---- the command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("draws") / "run", made("byte", scale=0.3))


def test_the_command_streams_one_text(run_folder):
    translator = Translator.load(run_folder)
    for text, options in (
        ("rain", []),
        ("Snow.\n\nFog.", ["--longest", "8"]),
        ("", []),
        ("rain", ["--prefix", "a\r\nb"]),
    ):
        found = attendo("translate", run_folder, text, "--stream", *options)
        whole = translator.translate(
            [text], 1, longest=8 if "--longest" in options else None, guard=False,
            prefixes="a\r\nb" if "--prefix" in options else None,
        )[0].text  # fmt: skip
        assert (found.code, found.out) == (0, one_line(whole) + "\n")
