"""Where tokens look: alignments and coverage against recordings by hand, and their places in the text."""

import json
import math

import pytest
import torch
from command_line import attendo, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.data.segments import split_text
from attendo.decoding.beam import length_norm
from attendo.inference.alignment import attending_step, source_attention, token_spans
from attendo.inference.translator import Translator
from attendo.inspecting.recording import recording

TEXTS = ["It will rain on Monday.", "", "snow in Oslo, and wind", "Sunday: fog.", "x"]
TOKENIZERS = {kind: tiny_tokenizer(kind) for kind in ("bpe", "word", "character", "byte")}
DEEP = {"n_decoder_layers": 3, "max_length_extra": 8}


def small(kind="bpe", seed=0, **options):
    found = tiny_translator(TOKENIZERS[kind], seed, **(DEEP | options))
    found.model.double()
    return found


def by_hand(translator, source, token_ids):
    """Mean over heads, blocks and models while each token, and what follows them, is predicted."""
    tokenizer, rows = translator.tokenizer, []
    for model in (translator.model, *translator.companions):
        with recording(model) as record, torch.inference_mode():
            src = torch.tensor([[*tokenizer.encode(source), tokenizer.eos_id]])
            record.model(src, torch.tensor([[tokenizer.bos_id, *token_ids]]))
        rows += [record[f"decoder.blocks.{i}.cross_attention"].weights[0].mean(0) for i in range(3)]
    return sum(rows) / len(rows)


# ---- places in a text


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=30, deadline=None)
@given(text=st.text(st.sampled_from("ab .,\n\t▁雨が é👩🏽\u200d🚀\u3000") | st.characters(codec="utf-8"), max_size=12))
def test_spans_are_where_the_tokens_stand(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    spans = token_spans(tokenizer, ids, text)
    assert len(spans) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)
    covered = {place for span in spans for place in range(*span)}
    assert all(place in covered for place, character in enumerate(text) if not character.isspace())
    for token, (start, end) in zip(ids, spans, strict=True):
        spelled = tokenizer.decode([token])
        if "\ufffd" not in spelled and token != tokenizer.unk_id and text[start:end].strip():
            assert text[start:end] == (spelled.lstrip() if kind == "bpe" else spelled)


def test_spans_of_words_that_are_not_known_and_of_half_characters():
    assert token_spans(TOKENIZERS["word"], TOKENIZERS["word"].encode("qq  zz"), "qq  zz") == [
        (0, 2),
        (3, 3),
        (4, 6),
    ]
    half, whole = TOKENIZERS["byte"].encode("雨a")[:2], TOKENIZERS["byte"].encode("雨a")
    assert token_spans(TOKENIZERS["byte"], whole, "雨a") == [(0, 1)] * 3 + [(1, 2)]
    broken = [*half, *TOKENIZERS["byte"].encode("b")]
    assert token_spans(TOKENIZERS["byte"], broken, "\ufffdb")[:2] == [(0, 1)] * 2
    assert token_spans(TOKENIZERS["byte"], half, "\ufffd") == [(0, 1)] * 2


# ---- alignments


@pytest.mark.parametrize("kind", ["bpe", "word", "byte"])
def test_each_token_of_each_candidate_is_linked_to_where_it_looks_most(kind):
    translator = small(kind)
    for found in translator.translate(TEXTS[1:4], beam=2, n_best=2, alignments=True):
        n_source = len(translator.tokenizer.encode(found.source))
        for candidate in found.candidates:
            links = candidate.alignment
            assert [link.target for link in links] == list(range(len(candidate.token_ids)))
            rows = by_hand(translator, found.source, candidate.token_ids)[:, :n_source]
            for link, row in zip(links, rows, strict=False):
                assert link.source == int(row.argmax())
                assert link.weight == pytest.approx(float(row.max()), abs=1e-9)
                assert link.source_text == found.source[slice(*link.source_span)]
                assert link.target_text == candidate.text[slice(*link.target_span)]
    plain = translator.translate(TEXTS[1:3])
    assert all(found.candidates[0].alignment is None for found in plain)


def test_a_text_in_parts_has_the_links_of_its_parts_at_their_places():
    translator = small(max_len=64)
    text = "  It will rain. There is fog at dawn.\nSnow!  "
    segments = split_text(text, 10, lambda piece: len(translator.tokenizer.encode(piece)))
    found = translator.translate([text, "fog"], longest=10, alignments=True)[0]
    alone = translator.translate(segments.pieces, alignments=True)
    assert found.parts == len(segments.pieces) > 2
    links, n_source, n_target = iter(found.candidates[0].alignment), 0, 0
    for piece, part in zip(segments.pieces, alone, strict=True):
        for link in part.candidates[0].alignment:
            whole = next(links)
            assert (whole.source, whole.target) == (link.source + n_source, link.target + n_target)
            assert whole.weight == pytest.approx(link.weight, abs=1e-9)
            assert (whole.source_text, whole.target_text) == (link.source_text, link.target_text)
            assert text[slice(*whole.source_span)] == whole.source_text
            assert found.text[slice(*whole.target_span)] == whole.target_text
            assert whole.source_span[0] - link.source_span[0] == text.index(piece)
        n_source += len(translator.tokenizer.encode(piece))
        n_target += len(part.candidates[0].token_ids)
    assert next(links, None) is None


def test_together_runs_look_where_they_do_on_average():
    one, two = small(seed=1), small(seed=2)
    both = Translator(one.model, one.tokenizer, one.decoding, companions=(two.model,))
    for found in both.translate(TEXTS[2:], alignments=True):
        rows = by_hand(both, found.source, found.candidates[0].token_ids)[:, :-1]
        assert [link.source for link in found.candidates[0].alignment] == rows[:-1].argmax(1).tolist()


def test_texts_of_the_models_greatest_length_are_aligned():
    translator = small(positions="learned", max_len=12, max_length_extra=99, scale=0.05)
    found = translator.translate(["rain"], beam=1, guard=False, alignments=True)[0].candidates[0]
    assert not found.finished
    assert len(found.token_ids) == len(found.alignment) == 12
    with translator.recording() as record:
        assert translator.translate(["rain"], beam=1, guard=False)[0].candidates[0].token_ids == found.token_ids
    assert record["decoder.blocks.0.cross_attention"].weights.shape[2] == 12


def test_padding_is_never_looked_at():
    translator = small()
    texts = ["rain", TEXTS[0] * 3]
    sources = [[*translator.tokenizer.encode(text), 3] for text in texts]
    src = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in sources], batch_first=True)
    inputs = {
        "src": src,
        "tgt": torch.tensor([[2, 9, 8], [2, 9, 8]]),
        "src_lengths": torch.tensor([*map(len, sources)]),
    }
    weights = source_attention([translator.model], inputs)
    assert weights[0, :, len(sources[0]) :].abs().max() == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(weights[0, :, : len(sources[0])], by_hand(translator, "rain", [9, 8]))


# ---- coverage


def test_a_step_tells_where_its_rows_look_and_padding_holds_1():
    """Two rows for each source; the rows are reordered, and then a source leaves."""
    model = small().model
    src, lengths = torch.tensor([[7, 8, 9, 3], [5, 3, 0, 0]]), torch.tensor([4, 2])
    tgt = torch.tensor([[2, 9, 8], [2, 9, 7], [2, 6, 5], [2, 6, 6]])
    inputs = {"src": src.repeat_interleave(2, 0), "tgt": tgt, "src_lengths": lengths.repeat_interleave(2)}
    wanted = source_attention([model], inputs).clone()
    wanted[2:, :, 2:] = 1.0
    step = attending_step(model)
    with torch.inference_mode():
        cache = model.start(src, lengths, 2, 4)
        for at, rows in enumerate(([0, 1, 2, 3], [1, 0, 3, 2], [3, 2])):
            if at == 1:
                cache.reorder(torch.tensor(rows))
            if at == 2:
                cache.keep(torch.tensor([2, 3]))
            logits, weights = step(tgt[rows, at : at + 1], cache)
            assert len(logits) == len(rows)
            torch.testing.assert_close(weights, wanted[rows, at])


@pytest.mark.parametrize("how", ["alone", "prepared", "together", "prefix"])
def test_the_coverage_in_a_score_is_that_of_a_recording_by_hand(how):
    beta, ends = 0.3, set()
    translator = small(seed=3, coverage_penalty=beta, beam=3, n_best=3, max_length_extra=6, scale=0.3)
    if how == "together":
        translator.companions = (small(seed=4).model,)
    if how == "prepared":
        translator.prepare()
    texts = ["It will rain on Monday.", "snow", "fog in Oslo", "snow in Oslo, and wind"]
    prefixes = ["雨", "", "rain", ""] if how == "prefix" else None
    for found in translator.translate(texts, guard=False, prefixes=prefixes):
        for candidate in found.candidates:
            n = len(candidate.token_log_probs)
            seen = by_hand(translator, found.source, candidate.token_ids)[:n].sum(0).tolist()
            covered = beta * sum(math.log(min(weight, 1.0)) for weight in seen)
            assert candidate.score == pytest.approx(candidate.log_prob / length_norm(n, 0.6) + covered, abs=1e-6)
            assert covered < -0.01
            ends.add(candidate.finished)
    assert ends == {True, False}


# ---- the command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("aligned") / "run", small())


def test_the_command_adds_a_field(run_folder, tmp_path):
    lines = ["rain", "", "fog in Oslo"]
    translator = Translator.load(run_folder)
    found = translator.translate(lines, alignments=True)
    wanted = [
        f"{t.text}\t{' '.join(f'{link.source}-{link.target}' for link in t.candidates[0].alignment)}" for t in found
    ]
    assert wanted[1] == "\t" and wanted[2].count("-") > 2
    assert attendo("translate", run_folder, *lines, "--alignments", stdin=b"").out.splitlines() == wanted
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("\n".join(lines))
    assert attendo("translate", run_folder, "--input", file, "--output", out, "--alignments").code == 0
    assert out.read_text().splitlines() == wanted
    ranked = attendo("translate", run_folder, "rain", "--n-best", "2", "--alignments").out.splitlines()
    best = translator.translate(["rain"], n_best=2, alignments=True)[0].candidates
    assert [line.split("\t")[3].split()[-1] for line in ranked] == [
        f"{c.alignment[-1].source}-{c.alignment[-1].target}" for c in best
    ]


def test_the_json_has_weights_texts_and_places(run_folder):
    arguments = ["translate", run_folder, "fog in Oslo", "--json"]
    with_it, without = (json.loads(attendo(*arguments, *more).out) for more in (["--alignments"], []))
    candidate = with_it["translations"][0]
    links = candidate.pop("alignment")
    assert without["translations"] == [candidate]
    assert len(links) == len(candidate["token_ids"])
    sides = {f"{side}{part}" for side in ("source", "target") for part in ("", "_text", "_span")}
    assert set(links[0]) == {"weight", *sides}
    assert all(link["source_text"] == "fog in Oslo"[slice(*link["source_span"])] for link in links)


def test_coverage_from_the_command_line(run_folder):
    arguments = ["translate", run_folder, "fog in Oslo", "--json"]
    covered = json.loads(attendo(*arguments, "--set", "decoding.coverage_penalty=0.2").out)["translations"][0]
    plain = json.loads(attendo(*arguments).out)["translations"][0]
    assert covered["score"] < plain["score"]
    said = refused(*arguments, "--bits", "8", "--set", "decoding.coverage_penalty=0.2")
    assert "--bits and decoding.coverage_penalty cannot be combined. Leave one of them out" in said
