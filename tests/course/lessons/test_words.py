"""attendo lesson words: words, counts by hand, models of equal size, losses and texts by the common code, bad input."""

import math
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_texts import text_file

from attendo.data.text_corpus import WindowDataset
from attendo.data.texts import Chunk
from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.sampling import SamplingConfig
from attendo.display.i18n import Localized
from attendo.errors import AttendoError
from attendo.inference.perplexity import text_loss
from attendo.models import parameter_count
from attendo.runs.tasks import LanguageModelTask
from attendo_course.lessons import words as lesson
from attendo_course.lessons.arrays import Training, seeded
from attendo_course.lessons.lesson import Conclusion, Options, Table
from attendo_course.pictures import Picture, picture_lines

BOS, EOS = Tokenizer.bos_id, Tokenizer.eos_id
VOCAB = 9
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\tab1_東です"), max_size=60)


def document(ids: list[int], ended: bool = True) -> Document:
    return Document(np.array(ids, "<u2"), len(ids), len(ids), ended)


DOCUMENTS = st.lists(
    st.builds(document, st.lists(st.sampled_from([1, *range(4, VOCAB)]), min_size=1, max_size=12), st.booleans()),
    min_size=1,
    max_size=4,
)


def pairs_of(documents: list[Document]) -> list[tuple[int, int]]:
    found = []
    for one in documents:
        row = [BOS, *one.ids.tolist(), *[EOS] * one.ended]
        found += pairwise(row)
    return found


@given(TEXTS)
def test_words_are_the_text_without_its_spaces(text):
    found = lesson.words_of(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(word == "\n" or not any(map(str.isspace, word)) for word in found)
    assert all(len(word) == 1 or word.isalnum() for word in found)
    assert ("\n", "\n") not in pairwise(found)
    assert lesson.words_of(" ".join(found)) == found


@given(st.lists(st.tuples(TEXTS, st.booleans()), min_size=1))
def test_a_document_in_chunks_is_the_same_words(parts):
    chunks = [Chunk(text, starts or i == 0) for i, (text, starts) in enumerate(parts)]
    whole: list[list[str]] = []
    for text, starts in chunks:
        whole += [[]] if starts else []
        whole[-1] += lesson.words_of(text)
    joined: list[str] = []
    for text, starts in lesson.cut(chunks):
        joined += [""] if starts else []
        joined[-1] += text
    assert joined == [" ".join(words) for words in whole if words]


@given(DOCUMENTS, st.integers(0, VOCAB - 1), st.integers(0, VOCAB - 1))
def test_counts_are_the_formulas_by_hand(documents, before, word):
    pairs = pairs_of(documents)
    counts, words = lesson.WordCounts(documents, VOCAB), Counter(after for _, after in pairs)
    single = (words[word] + 1) / (len(pairs) + VOCAB)
    assert counts.single()[word] == pytest.approx(single, rel=1e-12)
    behind = Counter(after for first, after in pairs if first == before)
    wanted = (behind[word] + len(behind) * single) / (behind.total() + len(behind)) if behind else single
    assert counts.after(np.array([before]), np.array([word])) == pytest.approx([wanted], rel=1e-12)


@given(DOCUMENTS, DOCUMENTS)
def test_probabilities_sum_to_1_and_losses_are_their_means(documents, others):
    counts, every = lesson.WordCounts(documents, VOCAB), np.arange(VOCAB)
    assert counts.single().sum() == pytest.approx(1)
    for before in every:
        assert counts.after(np.full(VOCAB, before), every).sum() == pytest.approx(1)
    chances = [counts.after(np.array([a]), np.array([b]))[0] for a, b in pairs_of(others)]
    single = [counts.single()[b] for _, b in pairs_of(others)]
    assert counts.nats(others) == pytest.approx((-np.log(single).mean(), -np.log(chances).mean()))


@settings(max_examples=15)
@given(st.integers(5, 40), st.integers(1, 9), st.integers(1, 9))
def test_the_parameters_of_an_lstm(vocab_size, width, state_width):
    n = lesson.recurrent_parameters(vocab_size, width, state_width)
    assert n == parameter_count(lesson.RecurrentLM(vocab_size, width, state_width, 0.0))
    assert lesson.state_width_for(n, vocab_size, width) == state_width


@pytest.mark.parametrize("vocab_size", [60, 3000])
def test_contenders_have_equally_many_parameters(vocab_size):
    counts = [parameter_count(contender.build()) for contender in lesson.contenders(vocab_size)]
    assert max(counts) < 1.005 * min(counts)


def test_without_order_the_words_before_the_last_are_a_set():
    ids = torch.randint(4, 30, (1, lesson.CONTEXT), generator=torch.Generator().manual_seed(1))
    mixed = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], dim=1)
    blind, sighted = (
        seeded(lambda build=build: build(30), 1).double().eval() for build in (lesson.unordered, lesson.transformer)
    )
    with torch.no_grad():
        assert torch.allclose(blind(ids)[:, -1], blind(mixed)[:, -1], atol=1e-12)
        assert not torch.allclose(blind(ids)[:, -1], blind(ids.roll(1, 1))[:, -1], atol=1e-3)
        assert not torch.allclose(sighted(ids)[:, -1], sighted(mixed)[:, -1], atol=1e-3)


@pytest.mark.parametrize("build", [lesson.unordered, lesson.transformer, lambda v: lesson.recurrent(v, 200_000)])
def test_step_by_step_a_model_gives_what_it_gives_at_once(build):
    model: lesson.WordModel = seeded(lambda: build(30), 2).eval()
    ids = torch.randint(4, 30, (1, 9), generator=torch.Generator().manual_seed(1))
    step = lesson.model_step(model, 9)
    with torch.inference_mode():
        found = [step(part.tolist()) for part in ids[0].split([4, 1, 1, 3])]
        whole = model.output_proj(model.hidden(ids))[0, [3, 4, 5, 8]]
    assert torch.allclose(torch.cat(found), whole, atol=1e-5)


def test_counts_write_the_likeliest_word():
    tokenizer = train_tokenizer(["a b c"], TokenizerConfig(kind="word"))
    a, b, c = tokenizer.encode("a b c")
    counts = lesson.WordCounts([document([a, b, c, a, b, c, a, b])], tokenizer.vocab_size)
    greedy = SamplingConfig(max_tokens=3, temperature=0.0)
    assert lesson.continued(lesson.counting_step(counts, pairs=True), [a], tokenizer, greedy) == "b c a"
    step = lesson.counting_step(counts, pairs=False)
    assert step([a]).exp().sum() == pytest.approx(1)
    assert torch.equal(step([a]), step([b, c]))


def test_no_unknown_word_is_written_and_lines_end_visibly():
    tokenizer = train_tokenizer(["a \n"], TokenizerConfig(kind="word"))
    counts = lesson.WordCounts([document([Tokenizer.unk_id] * 50 + tokenizer.encode("a \n") * 9)], tokenizer.vocab_size)
    step = lesson.counting_step(counts, pairs=False)
    configs = [SamplingConfig(max_tokens=9, seed=seed) for seed in range(5)]
    text = "".join(lesson.continued(step, [Tokenizer.unk_id], tokenizer, config) for config in configs)
    assert "<unk>" not in text
    assert "\n" not in text
    assert "⏎" in text


@pytest.mark.parametrize("build", [lesson.transformer, lambda v: lesson.recurrent(v, 100_000)])
def test_a_run_is_measured_as_every_language_model_is(build, tmp_path):
    task = lesson.word_task([text_file(tmp_path)], 1500, 300, 40)
    model = build(task.tokenizer.vocab_size)
    run = lesson.train_words(model, task, 3, 1e-3, seed=1)
    found = text_loss(model, task.validation_documents, lesson.CONTEXT, lesson.CONTEXT)
    assert run.measures["loss"] == pytest.approx(found.nats_per_token, rel=1e-6)
    assert math.exp(run.measures["loss"]) == pytest.approx(found.perplexity, rel=1e-6)
    assert len(run.losses) == 3
    assert run.seconds_per_1000 > 0


@settings(max_examples=10, deadline=None)
@given(DOCUMENTS.filter(lambda chosen: any(len(one.ids) for one in chosen)), st.integers(1, 6))
def test_the_loss_of_an_lstm_is_the_sum_over_windows(documents, context):
    model = seeded(lambda: lesson.RecurrentLM(VOCAB, 4, 5, 0.3), 1).double()
    nats = 0.0
    for one in documents:
        row = [BOS, *one.ids.tolist(), *[EOS] * one.ended]
        for start in range(0, len(row) - 1, context):
            part = torch.tensor(row[start : start + context + 1])
            with torch.no_grad():
                logits = model.eval().output_proj(model.hidden(part[None, :-1]))[0]
            nats += float(torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum"))
    assert text_loss(model.train(), documents, context).nats == pytest.approx(nats, rel=1e-10)
    assert model.training


def test_what_is_learned_from_and_measured_on(tmp_path):
    task = lesson.word_task([text_file(tmp_path)], 500, 200, 30)
    assert task.tokenizer.vocab_size == 30
    assert 500 <= task.stream.n_positions <= 501  # with the end of one that is cut
    n_valid = sum(one.n_targets for one in task.validation_documents)
    assert n_valid == 200
    said = lesson.about(task)
    for text in (said.en, said.ja):
        assert "texts.txt" in text
        assert f"{n_valid:,}" in text
        assert "30 " in text


@given(DOCUMENTS)
def test_documents_as_a_stream_stay_what_they_are(documents):
    stream = lesson.stream_of(documents)
    assert [one.ids.tolist() for one in stream.documents()] == [one.ids.tolist() for one in documents]
    assert stream.n_positions == sum(len(one.ids) + 1 for one in documents)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a b c d \n a a b a \n a a b c \n b a b c", "a a b c"),  # the first line has no end before it
        ("c d a b \n a b x d \n a a", "c d a b"),  # lines with an unknown word, or too short
        ("c d \n", "c d \n"),
    ],
)
def test_a_phrase_is_the_line_of_known_words_of_which_most_differ(text, wanted):
    tokenizer = train_tokenizer(["a b c d \n"], TokenizerConfig(kind="word"))
    stream = TokenStream.of([text], tokenizer)
    task = LanguageModelTask(WindowDataset(stream, 2, tokenizer.specials), stream, tokenizer, 4)
    assert tokenizer.decode(lesson.phrase(task, 4)) == wanted


@given(st.integers(1, 14), st.integers(1, 10))
def test_weights_by_distance(n, near):
    rng = np.random.default_rng(n)
    weights = np.tril(rng.random((2, 3, n, n)) + 0.01)
    weights /= weights.sum(-1, keepdims=True)
    back = lesson.looking_back(weights, near)
    assert back.shape == (3, min(n, near) + 1)
    assert np.allclose(back.sum(1), 1)
    assert (back > -1e-12).all()
    assert np.allclose(lesson.mean_distance(np.eye(n)[None, None]), 0)


def contest(bag: list[float], lstm: list[float], ordered: list[float]) -> lesson.Contest:
    counts = lesson.WordCounts([document([4, 5])], VOCAB)
    model = lesson.RecurrentLM(VOCAB, 2, 2, 0.0)
    runs = {
        name: [Training(model, [1.0], {"loss": loss}, seconds) for loss in losses]
        for name, losses, seconds in (
            ("no order", bag, 0.2),
            ("LSTM", lstm, 0.1),
            ("Transformer", ordered, 0.3),
        )
    }
    return lesson.Contest(counts, 0.1, (5.0, 4.0), runs)


def test_what_is_said_follows_the_numbers():
    won, lost = contest([3.5, 3.5], [3.2, 3.2], [3.1, 2.9]), contest([3.0], [2.9], [3.1])
    said = lesson.comparison(won)
    assert "the Transformer is ahead" in said.en
    assert "18.1% below the LSTM's (0.200 nats a word), and lower with 2 of 2 seeds" in said.en
    assert "3.0 times the LSTM's time" in said.en
    assert "Transformer が上回り、パープレキシティは LSTM より 18.1% 低い" in said.ja
    assert "the LSTM is ahead" in lesson.comparison(lost).en
    assert (
        "order (with the second block that reads it) is worth 0.500 nats a word, 25%" in lesson.worth_of_order(won).en
    )
    assert "148.4 → 54.6 → 33.1 → 20.1" in lesson.worth_of_order(won).ja
    assert "order was worth nothing" in lesson.worth_of_order(lost).en
    assert "役に立っていない" in lesson.worth_of_order(lost).ja


@cache
def pieces(path: Path) -> list:
    return list(lesson.WORDS.teach(Options(seeds=2, effort=0.02, files=(path,))))


def test_the_lesson_on_a_small_file_of_ones_own(tmp_path):
    shown = pieces(text_file(tmp_path, 400))
    [table] = [piece for piece in shown if isinstance(piece, Table)]
    task = lesson.word_task([tmp_path / "texts.txt"], 6 * 700, 20_000, 3000)
    nats = lesson.WordCounts(task.stream.documents(), task.tokenizer.vocab_size).nats(task.validation_documents)
    assert [row[3] for row in table.rows[:2]] == [f"{math.exp(loss):.1f}" for loss in nats]
    assert [row[2] for row in table.rows] == ["0", "1, 1", *["35, 35"] * 3]
    assert all(" ± " in str(row[3]) for row in table.rows[2:])
    curves, heads, of_phrase = [piece for piece in shown if isinstance(piece, Picture)]
    assert curves.values.shape == (3, 6)
    assert heads.values.sum(1) == pytest.approx(np.ones(4))
    assert of_phrase.values.sum(1) == pytest.approx(np.ones(len(of_phrase.rows)), abs=1e-5)
    said = [piece.words if isinstance(piece, Conclusion) else piece for piece in shown]
    for piece in (piece for piece in said if isinstance(piece, Localized)):
        assert piece.en.isascii() or "⏎" in piece.en or "→" in piece.en
        assert any("\u3040" < character < "\u30ff" for character in piece.ja)
    for picture in (curves, heads, of_phrase):
        for language in ("en", "ja"):
            assert len(picture_lines(picture, language)) > 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "texts.txt"),
        (b"rain \n", "too few to hold out"),
        (b"It will rain tomorrow, they say.\n", "fewer than one window"),
        (b" \n" * 400, "no document"),
        (b"rain " * 2000 + b"\xff", "invalid UTF-8"),
    ],
)
def test_files_that_cannot_teach_are_refused(tmp_path, content, message):
    path = tmp_path / "texts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AttendoError, match=message) as error:
        list(lesson.WORDS.teach(Options(files=(path,))))
    assert "\n" not in str(error.value)
