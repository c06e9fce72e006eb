"""Models with a tokenizer that came with them, in every task: what is read, what is written, and training from them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tiny_tokenizers as tiny
import torch

from attendo.bundle import Bundle, load_bundle, save_description, save_weights
from attendo.data.imported_tokenizers import ImportedTokenizer
from attendo.data.labelled import LongTexts
from attendo.data.pair_corpus import PairData
from attendo.data.token_stream import TokenStream
from attendo.decoding.beam import length_norm
from attendo.decoding.options import SpecialIds
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inference.alignment import coverage_scores
from attendo.inference.perplexity import text_loss
from attendo.interop.huggingface.tokenizers import read_tokenizer
from attendo.microscope.run_model import look
from attendo.microscope.session import look_answer, request_of
from attendo.models import Model, ModelConfig, build_model
from attendo.runs.task_specs import TRANSLATION, family_of
from attendo.runs.training_run import new_run
from attendo.serving.scoring import ScoringChunk, pair_scores

SHAPES = {
    "encoder-decoder": {"n_encoder_layers": 1, "n_decoder_layers": 1, "output_bias": True},
    "decoder": {"n_encoder_layers": 0, "n_decoder_layers": 1},
    "classifier": {"n_encoder_layers": 1, "n_decoder_layers": 0, "n_classes": 2, "tie": "none"},
    "masked": {"n_encoder_layers": 1, "n_decoder_layers": 0, "tie": "output", "output_bias": True},
}
TEXTS = ["the quick brown fox", "dogs , rain and Łódź", "", "a b c d e f g h i j k l m n o p q r s t u v"]
MAX_LEN = 24
SIZES = {"d_model": 16, "d_ff": 32, "n_heads": 2, "max_len": MAX_LEN, "positions": "learned", "dropout": 0.0}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImportedTokenizer]:
    """Of BART both ends are marked and two ids begin a text; of Marian the two sides differ."""
    found = {}
    for kind in ("marian", "bart", "gpt2", "bert"):
        folder = tmp_path_factory.mktemp(kind)
        n = len(tiny.made(kind, folder))
        more = {"decoder_start_token_id": 2, "forced_bos_token_id": 0} if kind == "bart" else {}
        more |= {"decoder_start_token_id": n - 1} if kind == "marian" else {}
        found[kind] = read_tokenizer(folder, tiny.config_of(kind, n + 2, **more))
    return found


def made(tokenizer: ImportedTokenizer, architecture: str, **more) -> tuple[Bundle, Model]:
    """A model with random weights, whose outputs are sharp."""
    shape = {
        "architecture": architecture,
        "vocab_size": tokenizer.vocab_size,
        **SIZES,
        **SHAPES[architecture],
    }
    torch.manual_seed(0)
    model = build_model(ModelConfig(**shape)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    task = "classification" if architecture == "classifier" else "translation"
    card = {"task": task, "labels": {"no": 2, "yes": 3}}
    return Bundle({"model": shape, "tokenizer": {"kind": "imported"}, **more}, tokenizer, card), model


def translator_of(tokenizer: ImportedTokenizer) -> Translator:
    translator = Translator.from_bundle(*made(tokenizer, "encoder-decoder"))
    translator.model.output_proj.bias.data[tokenizer.eos_id] = 3.0  # its texts come to an end
    return translator


@pytest.mark.parametrize("kind", ["marian", "bart"])
def test_a_translator_reads_and_writes_what_surrounds_a_text(
    tokenizers: dict[str, ImportedTokenizer], kind: str
) -> None:
    tokenizer = tokenizers[kind]
    translator, specials = translator_of(tokenizer), tokenizer.specials
    assert translator.longest == MAX_LEN - (1 if kind == "marian" else 2)
    greedy = translator.translate(TEXTS, beam=1, guard=False, alignments=True)
    for text, found in zip(TEXTS, greedy, strict=True):
        ids = tokenizer.encode(text)
        if found.parts > 1 or not ids:
            continue
        src, tgt = torch.tensor([specials.source(ids)]), list(specials.begin)
        while len(tgt) < len(specials.begin) + len(found.candidates[0].token_log_probs):
            with torch.no_grad():
                logits = translator.model(src, torch.tensor([tgt]))[0, -1]
            logits[list(tokenizer.never)] = -torch.inf
            tgt.append(int(logits.argmax()))
        wanted = tuple(tgt[len(specials.begin) :])
        assert found.candidates[0].token_ids == (wanted[:-1] if found.candidates[0].finished else wanted)
        assert found.text == tokenizer.decode(found.candidates[0].token_ids)
        assert "".join(translator.stream(text)) == found.text
        links = found.candidates[0].alignment
        assert links is not None and all(0 <= link.source < len(ids) for link in links)
    assert greedy[2].text == "" and greedy[3].parts >= 1


@pytest.mark.parametrize("kind", ["marian", "bart"])
def test_every_way_gives_a_translation_the_same_probability(
    tokenizers: dict[str, ImportedTokenizer], kind: str
) -> None:
    tokenizer = tokenizers[kind]
    translator = translator_of(tokenizer).prepare()
    source = tokenizer.specials.source(tokenizer.encode("the quick fox"))
    looking = dataclasses.replace(translator.config(beam=3, n_best=3), coverage_penalty=0.2)
    for config in (translator.config(beam=3, n_best=3), looking):
        for found in translator.search([source], config)[0]:
            ids, wanted = list(found.token_ids), list(found.token_log_probs)
            assert found.finished
            assert translator._forced_log_probs([source], [ids])[0] == pytest.approx(wanted, abs=1e-4)
            (scores,) = pair_scores(translator, [ScoringChunk(source, ids)], 2)
            assert [score.log_prob for score in scores] == pytest.approx(wanted, abs=1e-4)
            covered = coverage_scores([translator.model], tokenizer, [source], [ids], config.coverage_penalty)
            norm = length_norm(len(wanted), config.length_penalty, config.length_norm)
            assert found.score == pytest.approx(sum(wanted) / norm + covered[0], abs=1e-4)
    drawn = translator.sample(TEXTS[:2], SamplingConfig(seed=1, max_tokens=5))
    assert [one.text for one in drawn] == [
        one.text for one in translator.sample(TEXTS[:2], SamplingConfig(seed=1, max_tokens=5))
    ]
    assert len(translator.score([("the fox", "der Fuchs"), ("", "")])) == 2
    search = translator.continuous(translator.config(beam=1))
    search.add([source])
    ended: list = []
    while search.going_on:
        ended += search.advance()
    assert ended[0][1][0].token_ids == translator.search([source], translator.config(beam=1))[0][0].token_ids


@pytest.mark.parametrize("kind", ["marian", "bart"])
@pytest.mark.parametrize("how", [{}, {"search": "beam", "beam": 2}, {"search": "forced", "target": "der Fuchs"}])
def test_a_look_at_a_translator_is_its_own_translation(
    tokenizers: dict[str, ImportedTokenizer], kind: str, how: dict
) -> None:
    translator = translator_of(tokenizers[kind])
    seen = look(translator, request_of("look", {"text": "the quick fox", **how}))
    begin = tokenizers[kind].specials.begin
    assert seen.target[: len(begin)] == begin and seen.prompt_tokens == len(begin)
    told = look_answer(seen, None, 0.0)["outcome"]
    if how.get("search") == "forced":
        score = translator.score([("the quick fox", "der Fuchs")])[0].log_prob
        assert told["log_prob"] == pytest.approx(score, abs=1e-4)
    else:
        best = translator.translate(["the quick fox"], beam=how.get("beam", 1), guard=False)[0].candidates[0]
        assert (told["text"], told["log_prob"]) == (best.text, pytest.approx(best.log_prob, abs=1e-3))


def test_a_generator_reads_a_prompt_without_a_begin(tokenizers: dict[str, ImportedTokenizer]) -> None:
    tokenizer = tokenizers["gpt2"]
    generator = Generator.from_bundle(*made(tokenizer, "decoder"))
    found = generator.generate("the quick", max_tokens=5, temperature=0.0)
    ids = tokenizer.encode("the quick")
    for token in found.token_ids:
        with torch.no_grad():
            logits = generator.model(torch.tensor([ids]))[0, -1]
        logits[list(tokenizer.never)] = -torch.inf
        assert token == int(logits.argmax())
        ids.append(token)
    assert found.text == tokenizer.decode(found.token_ids)
    empty = generator.text("", SamplingConfig())
    assert empty.prompt_ids == [tokenizer.eos_id]
    assert not {tokenizer.vocab_size - 1} & set(generator.generate(max_tokens=12, seed=1).token_ids)
    stream = TokenStream.of(["the fox", "a dog"], tokenizer)
    loss = text_loss(generator.model, stream.documents(), 16, specials=tokenizer.specials)
    nats = 0.0
    for text in ("the fox", "a dog"):
        row = [tokenizer.eos_id, *tokenizer.encode(text), tokenizer.eos_id]
        with torch.no_grad():
            log_probs = generator.model(torch.tensor([row[:-1]]))[0].log_softmax(-1)
        nats -= float(log_probs[range(len(row) - 1), row[1:]].sum())
    assert loss.nats == pytest.approx(nats, rel=1e-5) and loss.n_unknown == 0
    assert look(generator, request_of("look", {"text": "the quick", "max_tokens": 3})).target[
        : len(tokenizer.encode("the quick"))
    ]


def test_encoders_read_both_marks(tokenizers: dict[str, ImportedTokenizer]) -> None:
    tokenizer = tokenizers["bert"]
    bundle, model = made(tokenizer, "masked", embedding={"pooling": "mean", "normalize": True})
    embedder = Embedder.from_bundle(bundle, model)
    read = torch.tensor([tokenizer.specials.text(tokenizer.encode("the fox"))])
    assert read[0, 0] == tokenizer.bos_id and read[0, -1] == tokenizer.eos_id
    with torch.no_grad():
        states = model.encoder(model.embedding(read), None)[0].double().numpy()
    mean = states.mean(0)
    np.testing.assert_allclose(embedder.embed(["the fox"])[0], mean / np.linalg.norm(mean), atol=1e-6)
    first = states[0] / np.linalg.norm(states[0])
    np.testing.assert_allclose(embedder.embed(["the fox"], "first")[0], first, atol=1e-6)
    assert embedder.embed([" ".join(["fox"] * 60)]).shape == (1, 16)  # in stretches
    seen = look(embedder, request_of("look", {"text": "the <mask> jumps"}))
    assert tokenizer.mask_id in seen.source and seen.wanted.count(None) == len(seen.wanted) - 1
    assert look(embedder, request_of("look", {"text": "the fox"})).wanted[-1] is None

    bundle, model = made(tokenizer, "classifier", data={"max_tokens": MAX_LEN - 2})
    classifier = Classifier.from_bundle(bundle, model)
    with torch.no_grad():
        logits = model(read)[0].double().numpy()
    np.testing.assert_allclose(classifier.read(["the fox"])[0][0], logits, atol=1e-6)
    with pytest.raises(AttendoError, match=r"exceeds model\.max_len"):
        Classifier(model, tokenizer, {"no": 1, "yes": 1}, long_texts=LongTexts(max_tokens=MAX_LEN - 1))


FILES = {
    "translation": "\n".join(f"the fox {i}\tder Fuchs {i}" for i in range(120)),
    "classification": "\n".join(f"{'yes' if i % 2 else 'no'}\tthe fox {i}" for i in range(120)),
    "language-model": "\n".join(f"the quick brown fox {i} jumps" for i in range(300)),
    "masked-language-model": "\n".join(f"the quick brown fox {i} jumps" for i in range(300)),
}
MODELS = {
    "translation": ("bart", "encoder-decoder", "tsv"),
    "classification": ("bert", "masked", "tsv"),
    "language-model": ("gpt2", "decoder", "txt"),
    "masked-language-model": ("bert", "masked", "txt"),
}


@pytest.mark.parametrize("task", FILES)
def test_training_goes_on_from_an_imported_model(
    tokenizers: dict[str, ImportedTokenizer], tmp_path: Path, task: str
) -> None:
    kind, architecture, ending = MODELS[task]
    bundle, model = made(tokenizers[kind], architecture)
    save_description(tmp_path / "start", bundle)
    save_weights(tmp_path / "start", model, bundle, 0)
    (tmp_path / f"data.{ending}").write_text(FILES[task] + "\n", "utf-8")
    training = {
        "steps": 6,
        "batch_tokens": 256,
        "learning_rate": 1e-3,
        "evaluate_rows": 8,
        "evaluate_every": 3,
    }
    tables = {"training": training, "data": {"train": [str(tmp_path / f"data.{ending}")]}}
    if task == "translation":
        tables["training"] |= {"evaluate_rows": 2, "steps": 3}
        tables["decoding"] = {"beam": 1}
    if task == "classification":
        tables["data"] |= {"max_tokens": 16}
    said: list[str] = []
    run = new_run(family_of(task), tables, tmp_path / "run", said.append, device="cpu", init_from=tmp_path / "start")
    losses = [report.evaluation.measures["loss"] for report in run.reports() if report.evaluation is not None]
    assert losses and np.isfinite(losses).all()
    assert any("are initialized from" in line for line in said)
    after = load_bundle(tmp_path / "run")
    assert after.tokenizer.sha256 == bundle.tokenizer.sha256
    assert after.tables["tokenizer"]["kind"] == "imported"


def test_what_is_trained_is_what_is_read(tokenizers: dict[str, ImportedTokenizer], tmp_path: Path) -> None:
    """The batches of BART: both marks around a source, two ids before a target, of which only the text is wanted."""
    tokenizer = tokenizers["bart"]
    (tmp_path / "data.tsv").write_text(FILES["translation"] + "\n", "utf-8")
    corpus = TRANSLATION.open(PairData(train=(str(tmp_path / "data.tsv"),)), lambda line: None)
    material = TRANSLATION.material(corpus, tokenizer, {})
    batch = material.batches(64, 0, 0)[0]
    src, tgt, wanted = batch.inputs["src"], batch.inputs["tgt"], batch.targets
    for row in range(len(src)):
        text = [i for i in wanted[row].tolist() if i >= 0]
        n = len(text)
        assert (text[-1], wanted[row, 0].item()) == (tokenizer.eos_id, -1)
        assert tgt[row, : n + 1].tolist() == [2, 0, *text[:-1]] and "Fuchs" in tokenizer.decode(text)
        assert src[row, 0] == 0 and 2 in src[row].tolist()
    assert batch.n_targets == int((wanted >= 0).sum())
    assert SpecialIds(bos_id=tokenizer.specials.begin[-1], eos_id=2).bos_id == 0
