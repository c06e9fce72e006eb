"""The generator: cached and sliding, it writes what recomputing from scratch would; pieces join to the text."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoder import tiny_decoder
from tiny_generators import BOS, EOS, KINDS, biased, generator_of, tokenizer_of
from tiny_translator import save_run, tiny_translator

from attendo.bundle import load_bundle
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference.generator import Generator
from attendo.inference.incremental_decode import Spelling, Stops
from attendo.models import DecoderLM, ModelConfig


def recomputed(model, ids, token_ids):
    """Each token's log-probabilities in a pass of its own over what the model is to see; the last windows of all."""
    found = []
    for token in token_ids:
        assert len(ids) <= model.config.max_len
        found.append(model(torch.tensor([ids]))[0, -1].log_softmax(-1))
        ids = [*ids, token]
        if len(ids) > model.config.max_len:
            ids = ids[-max(1, model.config.max_len // 2) :]
    return torch.stack(found), ids


# ---- the model


@pytest.mark.some(5)
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "sinusoidal", "none"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@torch.no_grad()
def test_cached_and_sliding_is_the_same_as_recomputing_every_window(positions, temperature):
    tokenizer = tokenizer_of("character")
    sizes = {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_kv_heads": 1, "n_encoder_layers": 0}
    sizes |= {"n_decoder_layers": 2, "max_len": 11, "vocab_size": tokenizer.vocab_size}
    config = ModelConfig(architecture="decoder", positions=positions, **sizes)
    torch.manual_seed(1)
    model = DecoderLM(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    generator = Generator(model, tokenizer)
    found = generator.generate("the wind", max_tokens=30, temperature=temperature, seed=0)
    ids = list(found.token_ids) + [EOS] * (found.finished_by == "end")
    assert len(ids) > 20 and found.slides == 1 + (len(ids) - 4) // 7
    log_probs, window = recomputed(model, [BOS, *tokenizer.encode("the wind")], ids)
    wanted = log_probs.gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()
    assert found.log_probs == pytest.approx(wanted, abs=1e-10)
    assert found.log_prob == pytest.approx(sum(wanted))
    if found.finished_by == "length":
        assert list(found.window) == window
    if temperature == 0.0:
        log_probs[:, :3] = -math.inf  # pad, unk, bos
        assert ids == log_probs.argmax(-1).tolist()


@pytest.mark.parametrize(("max_len", "n"), [(1, 5), (2, 7), (3, 9), (12, 11)])
@torch.no_grad()
def test_every_context_works_from_a_prompt_of_any_length(max_len, n):
    generator = generator_of(max_len=max_len)
    found = generator.generate("the rain"[:n], max_tokens=6, seed=1)
    ids = [BOS, *generator.tokenizer.encode("the rain"[:n])][-max_len:]
    log_probs, window = recomputed(generator.model, ids, found.token_ids)
    chosen = log_probs.gather(-1, torch.tensor(found.token_ids)[:, None])[:, 0].tolist()
    assert found.log_probs == pytest.approx(chosen, abs=1e-10) and list(found.window) == window


def test_a_long_prompt_is_cut_on_the_left_and_the_cut_is_counted():
    generator = generator_of(max_len=12)
    prompt = "the sun is out"
    for n, cut, begins in ((11, 0, True), (12, 0, False), (13, 1, False), (14, 2, False)):
        found = generator.generate(prompt[:n], max_tokens=0)
        kept = generator.tokenizer.encode(prompt[:n][cut:])
        assert found.cut == cut and list(found.window) == [BOS] * begins + kept
    cut = generator.generate(prompt, max_tokens=20, seed=3)
    whole = generator.generate(prompt[2:], max_tokens=20, seed=3)
    assert cut.token_ids == whole.token_ids and cut.prompt == prompt and (cut.cut, whole.cut) == (2, 0)


def test_an_empty_prompt_starts_a_document():
    generator = generator_of()
    found = generator.generate(max_tokens=3, seed=0)
    assert found.window == (BOS, *found.token_ids) and found.prompt == ""
    with torch.no_grad():
        first = generator.model(torch.tensor([[BOS]]))[0, -1].log_softmax(-1)[found.token_ids[0]]
    assert found.log_probs[0] == pytest.approx(first.item())


def test_the_text_ends_where_the_model_ends_it():
    generator = biased(generator_of(), {EOS: 100.0})
    found = generator.generate("the", max_tokens=9)
    assert (found.text, found.token_ids, found.finished_by) == ("", (), "end")
    assert found.log_probs == pytest.approx([0.0]) and found.window == (
        BOS,
        *generator.tokenizer.encode("the"),
    )
    found = biased(generator_of(), {EOS: -100.0}).generate("the", max_tokens=9)
    assert len(found.token_ids) == len(found.log_probs) == 9 and found.finished_by == "length"


@pytest.mark.parametrize("kind", KINDS)
def test_what_spells_nothing_is_never_drawn(kind):
    found = biased(generator_of(kind), {0: 100.0, 1: 50.0, 2: 100.0, EOS: -100.0}).generate(max_tokens=3)
    if kind == "word":
        assert found.token_ids == (1, 1, 1) and found.text == "<unk> <unk> <unk>"
    else:
        assert min(found.token_ids) > EOS


def test_seeds_reproduce_also_one_that_nobody_chose():
    generator = generator_of(max_tokens=20)
    given = generator.generate("the", seed=7)
    assert given == generator.generate("the", seed=7) and given.seed == 7
    drawn = generator.generate("the")
    assert drawn == generator.generate("the", seed=drawn.seed)
    assert drawn.text != generator.generate("the").text


def test_two_streams_at_once_do_not_disturb_each_other():
    generator = generator_of(max_tokens=30)
    first, second = generator.stream("the", seed=1), generator.stream("a b", seed=2)
    pieces = []
    for one in first:
        pieces.append(one)
        next(second, None)
    list(second)
    assert first.generation == generator.generate("the", seed=1) and "".join(pieces) == first.generation.text
    assert second.generation == generator.generate("a b", seed=2)


# ---- pieces of text


@pytest.mark.some(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "the sun", "雨が", " "])
def test_pieces_join_to_the_text_and_prompt_and_text_to_what_the_tokens_say(kind, prompt):
    generator = biased(generator_of(kind, max_len=16), {EOS: -100.0})
    tokenizer = generator.tokenizer
    stream = generator.stream(prompt, max_tokens=20, temperature=3.0, seed=1)
    pieces = list(stream)
    found = stream.generation
    assert all(pieces) and "".join(pieces) == found.text
    ids = [*tokenizer.encode(prompt), *found.token_ids]
    known = prompt if not found.unknown else tokenizer.decode(tokenizer.encode(prompt))
    assert known + found.text == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_spelling_gives_each_character_as_soon_as_it_is_whole(kind, data):
    tokenizer = tokenizer_of(kind)
    texts = st.text("aé雨😀 \n", max_size=5).map(tokenizer.encode)
    tokens = st.integers(0, tokenizer.vocab_size - 1).map(lambda i: [i])
    parts = data.draw(st.lists(st.one_of(texts, tokens), max_size=8))
    ids = [token_id for part in parts for token_id in part]
    spelling, text = Spelling(tokenizer, going_on=False), ""
    for n, token_id in enumerate(ids, start=1):
        text += spelling.add(token_id)
        whole = tokenizer.decode(ids[:n])
        assert whole in (text, text + "\ufffd")
    assert text + spelling.end() == tokenizer.decode(ids)


def test_a_character_that_is_never_completed_is_shown_as_such():
    first = 4 + "雨".encode()[0]
    found = biased(generator_of("byte"), {first: 100.0}).generate(max_tokens=2, temperature=0.0)
    assert found.token_ids == (first, first) and found.text == "\ufffd\ufffd"


def ended_before(text, stops):
    """By definition: letter by letter, until a stop is complete; of several the longest."""
    for n in range(len(text) + 1):
        complete = [stop for stop in stops if text[:n].endswith(stop)]
        if complete:
            return text[: n - max(map(len, complete))], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=6), max_size=6),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_stops_end_the_text_the_same_however_it_is_cut_into_pieces(pieces, stops):
    through, shown = Stops(stops), ""
    for n, piece in enumerate(pieces, start=1):
        shown += through.add(piece)
        so_far = "".join(pieces[:n])
        wanted, found = ended_before(so_far, stops)
        assert through.found == found
        if found:
            assert shown == wanted
            return
        held = so_far.removeprefix(shown)  # no more than the longest possible beginning of a stop
        beginnings = [n for n in range(len(so_far)) if any(s.startswith(so_far[n:]) for s in stops)]
        assert shown + held == so_far and len(held) == len(so_far) - min(beginnings, default=len(so_far))
    assert shown + through.end() == "".join(pieces)


@pytest.mark.parametrize("kind", ["character", "bpe", "byte"])
def test_a_stop_text_ends_the_text_before_it(kind):
    generator = biased(generator_of(kind, max_len=40), {EOS: -100.0})
    full = generator.generate("the", max_tokens=30, seed=5)
    starts = range(3, len(full.text) - 2)
    stop = next(full.text[n : n + 2] for n in starts if "\ufffd" not in full.text[n : n + 2])
    found = generator.generate("the", max_tokens=30, seed=5, stop=["never seen", stop])
    assert found.text == full.text[: full.text.index(stop)] and found.finished_by == "stop"
    n = len(found.token_ids)
    assert found.token_ids == full.token_ids[:n] and found.log_probs == full.log_probs[:n] and n < 30
    spelled = [generator.generate("the", max_tokens=m, seed=5).text for m in (n - 1, n)]
    assert [stop in text for text in spelled] == [False, True]
    stream = generator.stream("the", max_tokens=30, seed=5, stop=[stop])
    assert "".join(stream) == found.text and stream.generation.text == found.text


def test_what_was_held_back_for_a_stop_is_shown_at_the_end():
    token = tokenizer_of("byte").encode("a")[0]
    generator = biased(generator_of("byte"), {token: 100.0})
    found = generator.generate(max_tokens=3, stop=["aaaa", "b"])
    assert (found.text, found.finished_by) == ("aaa", "length")


# ---- prompts and options


def test_words_never_seen_are_counted_and_other_tokenizers_spell_them():
    for kind in KINDS:
        stream = generator_of(kind, max_len=60).stream("the 🦜 sun zebra the", max_tokens=2)
        assert stream.unknown == (2 if kind == "word" else 0) and stream.cut == 0
        list(stream)
        assert stream.generation.unknown == stream.unknown


def test_a_very_long_prompt_and_half_a_character_are_read():
    generator = generator_of("byte")
    stream = generator.stream("the sun " * 20_000, max_tokens=3)
    assert stream.cut == 160_000 - 12 and len("".join(stream)) > 0
    assert generator.generate("a\ud800", max_tokens=0).window == (BOS, *generator.tokenizer.encode("a\ufffd"))


def test_the_generation_is_there_when_the_last_piece_has_come():
    stream = generator_of().stream("the", max_tokens=5)
    with pytest.raises(AttendoError, match="Read all pieces"):
        _ = stream.generation
    assert "".join(stream) == stream.generation.text and next(stream, None) is None


def test_options_are_the_runs_own_unless_given(tmp_path):
    tokenizer = tokenizer_of("character")
    model = tiny_decoder(tokenizer.vocab_size, 16).eval()
    decoding = SamplingConfig(max_tokens=4, temperature=0.0, stop=("\n",))
    generator = Generator.load(save_run(tmp_path, Generator(model, tokenizer, decoding), "language-model"))
    assert generator.decoding == decoding
    assert generator.card["task"] == "language-model" and generator.device.type == "cpu"
    greedy = generator.generate("the", seed=1)
    assert greedy.text == generator.generate("the", seed=2).text and len(greedy.token_ids) <= 4
    assert len(generator.generate("the", max_tokens=9, stop=[], temperature=1.0, seed=0).token_ids) > 4


def test_a_run_of_another_task_and_a_wrong_decoding_table_are_refused(tmp_path):
    tokenizer = tokenizer_of("word")
    bundle = load_bundle(save_run(tmp_path, tiny_translator(tokenizer)))
    with pytest.raises(AttendoError, match="attendo translate"):
        Generator.load(tmp_path)
    bundle.tables["decoding"] = {"top_p": 2.0}
    with pytest.raises(AttendoError, match="top_p=2"):
        Generator.from_bundle(bundle, tiny_decoder(tokenizer.vocab_size))


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"top_k": -1}, {"stop": "END"}, {"stop": [""]}, {"seed": -1}]
)
def test_options_out_of_range_are_named_before_anything_is_written(options):
    generator = generator_of()
    [name] = options
    with pytest.raises(AttendoError, match=name):
        generator.stream("the", **options)
    with pytest.raises(AttendoError, match=name):
        generator.generate("the", **options)


# ---- looking inside


@pytest.mark.parametrize(("prompt", "max_tokens"), [("the sun", 0), ("the", 4), ("the sun is out", 25)])
def test_recording_keeps_the_attention_over_prompt_and_text(prompt, max_tokens):
    generator = generator_of()
    plain = generator.generate(prompt, max_tokens=max_tokens, seed=0)
    with generator.recording() as record:
        assert generator.generate(prompt, max_tokens=max_tokens, seed=0) == plain
        [path] = record
        weights = record[path].weights
        list(generator.stream("a b", max_tokens=2, seed=0))
        assert len(record.calls(path)) == 2
    n = len(plain.window)
    assert path == "decoder.blocks.0.self_attention" and weights.shape == (1, 2, n, n)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 2, n, dtype=torch.float64))
    assert weights.triu(1).abs().max() == 0
    if max_tokens < 5:
        assert list(plain.window) == [BOS, *generator.tokenizer.encode(prompt), *plain.token_ids]
    generator.generate("the", max_tokens=1)
    assert len(record.calls(path)) == 2


def test_recording_is_open_once():
    generator = generator_of()
    with generator.recording(), pytest.raises(AttendoError, match="already open"), generator.recording():
        pass
    with generator.recording():
        pass
