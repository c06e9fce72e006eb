"""The tagger: valid classes, units, spans in the given text, scores of spans, and a whole run from CoNLL to answers."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
from command_line import attendo as run
from tiny_classifiers import TOKENIZER, config

import attendo
from attendo.data.labelled import LongTexts
from attendo.data.tagged import Span
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError
from attendo.inference.tagger import Tagger, best_classes, span_scores, units_of
from attendo.metrics import log_softmax
from attendo.models import EncoderClassifier


def is_valid(classes):
    pairs = itertools.pairwise((0, *classes))
    return all(c == 0 or c % 2 or before in (c, c - 1) for before, c in pairs)


def test_the_best_valid_classes_are_those_of_an_exhaustive_search():
    rng = np.random.default_rng(0)
    n_constrained = 0
    for n in (1, 2, 3, 4) * 30:
        log_probs = log_softmax(2 * rng.normal(size=(n, 5)))
        valid = filter(is_valid, itertools.product(range(5), repeat=n))
        best = max(valid, key=lambda classes: sum(log_probs[np.arange(n), list(classes)]))
        assert best_classes(log_probs).tolist() == list(best)
        n_constrained += not is_valid(log_probs.argmax(1).tolist())
    assert n_constrained > 30


def test_words_are_units_but_not_particles_of_korean_or_characters_of_japanese():
    def units(text):
        borders = [(i, i + 1) for i in range(len(text))]
        return ["".join(text[i] for i in tokens) for tokens in units_of(text, borders)]

    assert units("O'Neil, 25km") == ["O", "'", "Neil", ",", "25", "km"]
    assert units("東京に서울에") == list("東京に서울에")
    assert units("e\u0301t 👨\u200d👩 は\u3099") == ["e\u0301t", "👨\u200d👩", "は\u3099"]


def tagger(max_tokens: int = 256) -> Tagger:
    torch.manual_seed(3)
    model = EncoderClassifier(config(n_classes=5, pooling="none", positions="rotary")).double().eval()
    model.output_proj.weight.data *= 3
    long_texts = LongTexts(max_tokens=max_tokens, long="window")
    return Tagger(model, TOKENIZER, {"LOC": 3, "PER": 4}, long_texts=long_texts)


def test_spans_are_parts_of_the_given_text():
    texts = ["  rain 👩\u200d🚀 falls\tin e\u0301 the  north ", "", " ", "東京 ▁ rain"]
    for text, found in zip(texts, tagger().classify(texts), strict=True):
        assert found.text == text and found.n_tokens == len(TOKENIZER.encode(text))
        ends = [0]
        for span in found.spans:
            assert ends[-1] <= span.start < span.end <= len(text) and 0 < span.probability <= 1
            assert span.text == text[span.start : span.end] == span.text.strip()
            ends.append(span.end)


def test_long_texts_are_read_in_windows_to_their_end():
    text = "the rain ends in the north of the country today " * 9
    alone, in_windows = tagger(), tagger(max_tokens=16)
    logits = [own.read([text, "rain"])[1] for own in (alone, in_windows)]
    assert [len(rows) for rows in logits[0]] == [len(rows) for rows in logits[1]]
    assert np.isfinite(logits[1][0]).all()
    assert np.allclose(logits[0][1], logits[1][1], atol=1e-12)  # a short text is read whole beside a long one
    # within the first window, nothing is averaged yet: the window is read like a text of its own
    start = TOKENIZER.decode(TOKENIZER.encode(text)[:16])
    first = in_windows.read([start])[1][0]
    assert np.allclose(first[:2], logits[1][0][:2], atol=1e-9)


def test_a_span_is_right_only_with_both_borders_and_its_label():
    truth = [[Span(0, 3, "PER"), Span(4, 8, "LOC")], [Span(0, 2, "PER")], []]
    found = [[Span(0, 3, "PER"), Span(4, 7, "LOC")], [Span(0, 2, "LOC")], [Span(0, 2, "PER")]]
    labels, measures = span_scores(truth, found)
    assert measures == {"f1": 2 / 7, "precision": 1 / 4, "recall": 1 / 3}
    assert [(score.label, score.f1, score.support) for score in labels] == [("LOC", 0.0, 1), ("PER", 0.5, 2)]


SYLLABLES = ["ba", "ko", "ri", "mu", "se", "ta", "lo", "ni"]
NAMES = ["".join(pair).title() for pair in itertools.product(SYLLABLES, repeat=2)]


def sentences(n: int, rng: random.Random, names: list[str]):
    """Sentences in which the word before a name decides its label; a third of the capitalized words are no names."""
    for _ in range(n):
        kind, before = rng.choice([("B-PER", "Mr"), ("B-LOC", "near"), ("O", "the")])
        yield [("we", "O"), ("met", "O"), (before, "O"), (rng.choice(names), kind), (".", "O")]


def test_a_run_from_conll_to_answers_beats_a_dictionary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    names = rng.sample(NAMES, len(NAMES))
    for name, n, some in (("train", 300, names[:50]), ("test", 60, names[50:])):
        rows = ("".join(f"{word} {tag}\n" for word, tag in row) for row in sentences(n, rng, some))
        (tmp_path / f"{name}.conll").write_text("\n".join(rows))
    sizes = "--set model.d_model=32 --set model.d_ff=64 --set model.n_encoder_layers=1 --set model.n_heads=2"
    limits = "--set training.batch_tokens=512 --set training.learning_rate=0.01 --set data.token_dropout=0.4"
    limits += " --set tokenizer.kind=character"
    trained = run(*f"train tagging --train train.conll --out names --steps 60 {sizes} {limits}".split())
    assert trained.code == 0 and "spans: LOC" in trained.err and "dictionary of the training spans" in trained.err
    # no name of the test is in the training data, so the dictionary finds nothing
    measured = json.loads(run("evaluate", "names", "test.conll", "--json").out)
    assert measured["f1"] > 0.9 and measured["unreachable"] == 0, measured
    assert {score["label"] for score in measured["labels"]} == {"LOC", "PER"}

    answered = run("classify", "names", "we met Mr Komu.", "we met the Komu.", "we met near Lori.")
    assert [line.split(" ")[::3] for line in answered.out.splitlines()] == [
        ["PER", "Komu"],
        [""],
        ["LOC", "Lori"],
    ]
    found = attendo.load("names").classify(["we met Mr Komu."])[0]
    assert [(span.label, span.start, span.end, span.text) for span in found.spans] == [("PER", 10, 14, "Komu")]
    # an output table can be used as training data
    (tmp_path / "in.txt").write_text("we met Mr Komu.\n\nwe met the Komu.\n")
    assert run("classify", "names", "--input", "in.txt", "--output", "out.jsonl").code == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["we met Mr Komu.", "", "we met the Komu."]
    assert rows[0]["spans"][0]["end"] == 14 and rows[1]["spans"] == []

    equal = run("compare", "names", "names", "test.conll")
    assert equal.code == 0 and "span F1" in equal.out
    for command in ("look names rain", "thresholds names test.conll", "eject names model.py"):
        refused = run(*command.split())
        assert refused.code and refused.error, refused.err
    assert "look does not show" in run("look", "names", "rain").err
    unknown = tmp_path / "bad.conll"
    unknown.write_text("we O\nmet O\n\nBo B-ORG\n")
    assert "bad.conll:4: the label 'ORG' was not seen in training" in run("evaluate", "names", "bad.conll").err


def test_a_classifier_is_not_a_tagger():
    model = EncoderClassifier(config())
    with pytest.raises(AttendoError, match="names 2 labels"):
        Tagger(model, TOKENIZER, {"LOC": 3, "PER": 4})
    with pytest.raises(AttendoError, match="trained for tagging, not for classification"):
        attendo.Classifier(tagger().model, TOKENIZER, {"a": 1, "b": 2})


def test_an_uncased_tokenizer_finds_spans_of_the_original_text():
    tokenizer = train_tokenizer(["the ﬁne Rome"] * 9, TokenizerConfig(kind="uncased", min_count=1))
    model = EncoderClassifier(config(n_classes=3, pooling="none", vocab_size=tokenizer.vocab_size)).eval()
    model.output_proj.bias.data = torch.tensor([-50.0, 50.0, 0.0])  # each word is a span
    found = Tagger(model, tokenizer, {"X": 1}).classify(["The ﬁne  ROME"])[0]
    assert [span.text for span in found.spans] == ["The", "ﬁne", "ROME"]
