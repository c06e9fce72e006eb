"""The classification task: what an epoch reads, what counts in the loss, what decides, and that it learns."""

from collections.abc import Sequence

import numpy as np
import pytest
import sklearn.linear_model
import torch
import torch.nn.functional as F
from tiny_classifiers import config

from attendo.data.batches import Batch
from attendo.data.labelled import LabelledRow, LabelSet, LongTexts
from attendo.data.labelled_corpus import LabelledData, LabelledDataset
from attendo.data.row_report import RowReport
from attendo.data.store import LabelledStore, labelled_store
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.inference.classifier import Classifier
from attendo.metrics import fit_temperature, log_loss, log_softmax
from attendo.models import EncoderClassifier
from attendo.runs.tasks import CLASSIFICATION_SAMPLES, HEAD_STRENGTHS, ClassificationTask
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.loop import train
from attendo.training.losses import batch_loss
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Run

WORDS = ["sun", "cloud", "rain", "snow", "wind", "fog", "hail", "ice", "dew", "mist"]
LABELS = LabelSet(("dry", "wet"))


def weather(n: int, seed: int = 0) -> list[LabelledRow]:
    """A text is wet if there is rain in it; one of four is."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        words = [WORDS[j] for j in rng.integers(0, len(WORDS), rng.integers(1, 15))]
        words = [word for word in words if word != "rain"] or ["sun"]
        if wet := i % 4 == 0:
            words[rng.integers(len(words))] = "rain"
        rows.append(LabelledRow(i + 1, LABELS.names[wet], " ".join(words)))
    return rows


ROWS = weather(80)
COUNTS = {"dry": 60, "wet": 20}
TOKENIZER = train_tokenizer((row.text for row in ROWS), TokenizerConfig(kind="word"))


@pytest.fixture
def store(tmp_path, monkeypatch) -> LabelledStore:
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path))
    return labelled_store(ROWS, RowReport("rows"), LABELS, TOKENIZER, "k")


def classifier(dropout: float = 0.0) -> Classifier:
    torch.manual_seed(1)
    shape = config(vocab_size=TOKENIZER.vocab_size, n_classes=2, dropout=dropout, norm_first=True)
    return Classifier(EncoderClassifier(shape), TOKENIZER, COUNTS)


def by_row(batches: Sequence[Batch]) -> dict[int, list[int]]:
    """What each row's text is read as, without the padding."""
    found = {}
    for batch in batches:
        lengths = batch.inputs.get("src_lengths", torch.full((len(batch.ids),), batch.inputs["src"].shape[1]))
        for row, src, length in zip(batch.ids.tolist(), batch.inputs["src"], lengths, strict=True):
            assert row not in found
            assert not src[length:].any()
            found[row] = src[:length].tolist()
    return found


def test_an_epoch_reads_each_text_once_behind_a_start_token(store):
    task = ClassificationTask(LabelledDataset(store, LongTexts()), classifier(), ROWS, batch_tokens=50)
    batches = task.batches(seed=1, epoch=0, start=0)
    expected = [[TOKENIZER.bos_id, *TOKENIZER.encode(row.text)] for row in ROWS]
    assert by_row(batches) == dict(enumerate(expected))
    for batch in batches:
        assert [LABELS.names[i] for i in batch.targets] == [ROWS[i].label for i in batch.ids]
        assert (batch.n_targets, batch.pad_id, batch.weights) == (len(batch.ids), -1, None)
        assert batch.inputs["src"].numel() <= 50
        full = "src_lengths" not in batch.inputs
        assert full == (len({len(expected[i]) for i in batch.ids}) == 1)
    assert len(batches) == len(list(batches)) > 10


def test_batches_are_a_pure_function_of_seed_and_epoch(store):
    material = LabelledDataset(store, LongTexts(max_tokens=5, long="window"), token_dropout=0.3)
    task = ClassificationTask(material, classifier(), ROWS, batch_tokens=50)

    def texts(seed: int, epoch: int, start: int = 0) -> list[list[list[int]]]:
        return [batch.inputs["src"].tolist() for batch in task.batches(seed, epoch, start)]

    assert texts(1, 2) == texts(1, 2)
    assert texts(1, 2, start=3) == texts(1, 2)[3:]
    assert task.batches(1, 2, 3)[1].inputs["src"].tolist() == texts(1, 2)[4]
    assert texts(1, 2) != texts(1, 3)
    assert texts(1, 2) != texts(2, 2)
    # what a row is read as does not depend on the rows beside it
    other = ClassificationTask(material, task.classifier, ROWS, batch_tokens=200)
    assert by_row(other.batches(1, 2, 0)) == by_row(task.batches(1, 2, 0))


def test_token_dropout_takes_its_share_and_leaves_the_start(store):
    material = LabelledDataset(store, LongTexts(), token_dropout=0.3)
    n_dropped = n_tokens = 0
    for epoch in range(20):
        for row, read in by_row(material.batches(100, 1, epoch)).items():
            assert read[0] == TOKENIZER.bos_id
            pairs = list(zip(read[1:], TOKENIZER.encode(ROWS[row].text), strict=True))
            assert all(found in (wanted, TOKENIZER.unk_id) for found, wanted in pairs)
            n_dropped += sum(found == TOKENIZER.unk_id for found, _ in pairs)
            n_tokens += len(pairs)
    assert n_dropped / n_tokens == pytest.approx(0.3, abs=0.02)
    with pytest.raises(ValueError, match=r"token_dropout=1\.0"):
        LabelledData(train=("f",), token_dropout=1.0)


def test_every_window_of_a_long_text_is_read_in_some_epoch(store):
    material = LabelledDataset(store, LongTexts(max_tokens=4, long="window"))
    row = int(store.lengths[:].argmax())
    ids = TOKENIZER.encode(ROWS[row].text)
    seen = {tuple(by_row(material.batches(100, 1, epoch))[row][1:]) for epoch in range(100)}
    assert seen == {tuple(ids[i : i + 4]) for i in range(len(ids) - 3)}
    assert material.n_long == sum(len(TOKENIZER.encode(each.text)) > 4 for each in ROWS)
    cut = LabelledDataset(store, LongTexts(max_tokens=4))
    assert by_row(cut.batches(100, 1, 0))[row][1:] == [*ids[:2], *ids[-2:]]


@pytest.mark.parametrize("weights", [None, (2 / 3, 2.0)])
def test_the_loss_is_the_weighted_cross_entropy(store, weights):
    task = ClassificationTask(LabelledDataset(store, LongTexts(), weights), classifier(), ROWS, 10**6)
    model = task.classifier.model.eval()
    total = 0.0
    for batch in task.batches(1, 0, 0):
        total += batch_loss(model, batch, label_smoothing=0.0, factor=1.0).item()
    logits, true = [], []
    for row in ROWS:
        logits.append(model(torch.tensor([[TOKENIZER.bos_id, *TOKENIZER.encode(row.text)]])))
        true.append(LABELS.names.index(row.label))
    expected = F.cross_entropy(
        torch.cat(logits),
        torch.tensor(true),
        None if weights is None else torch.tensor(weights),
        reduction="sum",
    )
    assert total == pytest.approx(expected.item(), rel=1e-5)


def test_an_evaluation_fits_the_temperature_on_its_rows(store):
    task = ClassificationTask(LabelledDataset(store, LongTexts()), classifier(), ROWS, 100)
    subject = task.classifier
    subject.model.eval()
    subject.model.output_proj.weight.data *= 9  # far too sure
    found = task.evaluate(subject.model)
    logits, _ = subject.read([row.text for row in ROWS])
    true = np.array([LABELS.names.index(row.label) for row in ROWS])
    assert found.measures["temperature"] == subject.temperature == fit_temperature(logits, true) > 2
    same = subject.evaluate(ROWS).measures
    for name in ("loss", "accuracy", "macro_f1", "ece", "ece_uncalibrated"):
        assert found.measures[name] == pytest.approx(same[name], abs=1e-12)
    assert found.measures["ece"] < found.measures["ece_uncalibrated"]
    shown = ROWS[:: max(1, len(ROWS) // CLASSIFICATION_SAMPLES)][:CLASSIFICATION_SAMPLES]
    assert [(text, label) for text, label, _ in found.samples] == [(row.text, row.label) for row in shown]
    assert [given for _, _, given in found.samples] == [
        each.label for each in subject.classify([row.text for row in shown])
    ]


def test_what_decides(store):
    for weights, fitted, deciding in [
        (None, True, "loss"),
        (None, False, "accuracy"),  # a run that is older than the n-grams
        ((1.0, 1.0), True, "macro_f1"),
    ]:
        task = ClassificationTask(LabelledDataset(store, LongTexts(), weights), classifier(), ROWS, 100)
        if fitted:
            task.fit_ngrams(lambda: ROWS)
        found = task.evaluate(task.classifier.model.eval())
        assert found.value == found.measures[deciding]
        assert task.better(0.8, 0.7) == (deciding != "loss") == (not task.better(0.7, 0.8))
        assert not task.better(0.7, 0.7)


def test_the_share_and_the_temperature_have_the_lowest_loss(store):
    task = ClassificationTask(LabelledDataset(store, LongTexts()), classifier(), weather(40, seed=2), 100)
    alone = task.evaluate(task.classifier.model.eval()).measures
    assert (alone["share"], alone["accuracy_ngrams"]) == (1.0, alone["accuracy_always_commonest"])
    task = ClassificationTask(task.material, task.classifier, task.validation, 100)
    task.fit_ngrams(lambda: ROWS)
    user, texts = task.classifier, [row.text for row in task.validation]
    assert user.ngrams is not None and task.files().keys() == {"ngrams.safetensors"}
    found = task.evaluate(user.model).measures
    true = user.classes_of(task.validation, "rows")
    losses = {}
    for share in (0.05, 0.3, found["share"], 1.0):
        user.share = share
        logits, _ = user.read(texts)
        if share in (0.05, 0.3):
            own = share * log_softmax(user.read(texts, alone=True)[0] / user.encoder_temperature) + (
                1 - share
            ) * log_softmax(user.ngrams.scores(texts))
            assert logits == pytest.approx(own)
        losses[share] = log_loss(log_softmax(logits / fit_temperature(logits, true)), true)
    assert found["loss"] == pytest.approx(losses[found["share"]]) == pytest.approx(min(losses.values()))
    assert found["accuracy_ngrams"] > found["accuracy_always_commonest"]
    words = task.what_to_beat
    assert words.startswith("baselines on 40 validation texts: always 'dry', accuracy ") and "; n-grams, acc" in words


def test_the_card_says_what_was_learned_from(store):
    material = LabelledDataset(store, LongTexts(max_tokens=5), (0.5, 2.0))
    task = ClassificationTask(material, classifier(), ROWS[:7], 60)
    read = by_row(task.batches(0, 0, 0)).values()
    places = sum(batch.inputs["src"].numel() for batch in task.batches(0, 0, 0))
    n_long = sum(len(TOKENIZER.encode(row.text)) > 5 for row in ROWS)
    assert task.describe() == {
        "texts": 80,
        "tokens": sum(map(len, read)),
        "long_texts": n_long,
        "class_weights": (0.5, 2.0),
        "batches_per_epoch": len(task.batches(0, 0, 0)),
        "padding_share": round(1 - sum(map(len, read)) / places, 4),
        "validation_texts": 7,
    }
    assert (material.n_tokens, material.n_rows, material.facts.key) == (sum(map(len, read)), 80, "k")
    assert 0 < n_long < 80


def test_the_loop_learns_what_rain_is(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path))
    big = labelled_store(weather(400, 1), RowReport("rows"), LABELS, TOKENIZER, "big")
    material = LabelledDataset(big, LongTexts(), (2 / 3, 2.0))
    task = ClassificationTask(material, classifier(dropout=0.1), weather(100, seed=2), 256)
    training = TrainingConfig(steps=80, learning_rate=1e-2, warmup_steps=10, label_smoothing=0.0, evaluate_every=40)
    run = Run(task.classifier.model, task, training, CheckpointConfig(), None)
    reports = [report.evaluation for report in train(run) if report.evaluation is not None]
    assert reports[-1].measures["accuracy"] > 0.97
    task.classifier.model.eval()
    wet, dry = task.classifier.classify(["sun sun rain sun sun fog", "sun sun cloud sun sun fog"])
    assert (wet.label, dry.label) == ("wet", "dry")
    assert wet.probability > 0.9 < dry.probability


def test_a_resumed_run_without_ngrams_gets_none(store, tmp_path):
    task = ClassificationTask(LabelledDataset(store, LongTexts()), classifier(), ROWS[:9], 100)
    task.classifier.folder = tmp_path
    task.fit_ngrams(lambda: ROWS)
    assert task.classifier.ngrams is None and not task.files()
    found = task.evaluate(task.classifier.model.eval()).measures
    assert (found["share"], found["temperature"]) == (1.0, found["encoder_temperature"])


def test_the_head_of_a_frozen_encoder_is_the_best_logistic_regression(store):
    material = LabelledDataset(store, LongTexts(), token_dropout=0.5)
    task = ClassificationTask(material, classifier(dropout=0.5), weather(40, seed=7), batch_tokens=50)
    model = task.classifier.model
    before = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    assert not task.learns_head_only(["encoder"])  # the embedding learns as well
    assert task.learns_head_only(["embedding", "encoder"])
    task.fit_head()
    after = model.state_dict()
    assert {path for path in before if not torch.equal(before[path], after[path])} == {
        "output_proj.weight",
        "output_proj.bias",
    }
    assert model.training
    model.eval()
    rows, targets = (
        [*ROWS, *task.validation],
        np.array([row.label == "wet" for row in [*ROWS, *task.validation]]),
    )
    with torch.inference_mode():
        inputs = [torch.tensor([[TOKENIZER.bos_id, *TOKENIZER.encode(row.text)]]) for row in rows]
        vectors = torch.cat([model.hidden(src) for src in inputs]).double().numpy()
    n = len(ROWS)
    vectors = (vectors - vectors[:n].mean(0)) / vectors[:n].std(0)
    oracles: list[tuple[float, np.ndarray]] = []
    for strength in HEAD_STRENGTHS:
        linear = sklearn.linear_model.LogisticRegression(C=strength, max_iter=5000)
        scores = linear.fit(vectors[:n], targets[:n]).decision_function(vectors[n:])
        logits = np.stack([-scores / 2, scores / 2], 1)
        true = targets[n:].astype(int)
        loss = log_loss(log_softmax(logits / fit_temperature(logits, true)), true)
        oracles.append((loss, log_softmax(logits)))
    found = task.classifier.read([row.text for row in task.validation], alone=True)[0]
    expected = min(oracles, key=lambda pair: pair[0])[1]
    np.testing.assert_allclose(log_softmax(found), expected, atol=5e-3)


def test_a_run_with_a_frozen_encoder_evaluates_its_head_before_the_first_step(store):
    task = ClassificationTask(LabelledDataset(store, LongTexts()), classifier(), ROWS, 50, evaluate_first=True)
    task.fit_head()
    training = TrainingConfig(steps=1, frozen=("embedding", "encoder"), learning_rate=1e-3)
    run = Run(task.classifier.model, task, training, CheckpointConfig(), None)
    run.progress.evaluation_due = True
    first, *_ = [report for report in train(run) if report.kind == "evaluation"]
    assert first.progress.step in (0, 1)
    assert first.evaluation is not None
    assert first.evaluation.measures["accuracy"] > 0.75  # the share of dry rows


def test_a_contrastive_run_separates_the_classes_and_fits_its_head_in_evaluations(store):
    material = LabelledDataset(store, LongTexts(), contrastive=True)
    task = ClassificationTask(material, classifier(), weather(40, seed=7), 200)
    run = Run(task.classifier.model, task, TrainingConfig(steps=30, learning_rate=3e-3), CheckpointConfig(), None)
    losses = [report.loss for report in train(run) if report.kind == "step"]
    assert losses[-1] < losses[0]
    found = task.evaluate(task.classifier.model.eval()).measures
    assert found["accuracy_encoder"] > 0.9
