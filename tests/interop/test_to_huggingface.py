"""Models to Hugging Face: the same logits and texts in `transformers`, and back again."""

import json
import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers")

from chat_formats import random_talks  # noqa: E402
from exported_models import run_folder, sentences, tiny_tokenizer  # noqa: E402

import attendo  # noqa: E402
from attendo.data.chat import Message  # noqa: E402
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer  # noqa: E402
from attendo.errors import AttendoError  # noqa: E402
from attendo.interop.exporting import export, exportable  # noqa: E402
from attendo.interop.huggingface.importing import import_model  # noqa: E402
from attendo.model_config import ModelConfig  # noqa: E402
from attendo.runs.task_specs import CLASSIFICATION  # noqa: E402

SIZES = {"d_model": 16, "d_ff": 24, "n_heads": 2, "max_len": 48, "dropout": 0.0}
PAIR = SIZES | {"n_encoder_layers": 1, "n_decoder_layers": 1, "output_bias": True}
ALONE = SIZES | {"architecture": "decoder", "n_encoder_layers": 0, "n_decoder_layers": 1}
ALONE |= {"embedding_scale": False}
READER = SIZES | {"n_encoder_layers": 1, "n_decoder_layers": 0, "positions": "learned"}
READER |= {"embedding_scale": False, "embedding_norm_eps": 1e-12, "norm_eps": 1e-12}
WITHOUT_BIAS = {"norm": "rms", "norm_first": True, "attention_bias": False, "feed_forward_bias": False}
LLAMA_READER = SIZES | WITHOUT_BIAS | {"architecture": "classifier", "n_encoder_layers": 1}
LLAMA_READER |= {
    "n_decoder_layers": 0,
    "positions": "rotary",
    "feed_forward_gated": True,
    "activation": "silu",
}
PLACES = {
    "MarianMTModel": PAIR,
    "MarianMTModel, no biases, halves": PAIR | {"attention_bias": False, "position_order": "halves"},
    "MarianMTModel, two embeddings": PAIR | {"tie": "output"},
    "PegasusForConditionalGeneration": PAIR | {"norm_first": True, "activation": "gelu"},
    "BartForConditionalGeneration": PAIR | {"positions": "learned", "embedding_norm_eps": 1e-5},
    "MBartForConditionalGeneration": PAIR
    | {"positions": "learned", "embedding_norm_eps": 1e-5, "norm_first": True, "embedding_scale": False},
    "T5ForConditionalGeneration": PAIR
    | WITHOUT_BIAS
    | {"positions": "relative", "attention_scale": 1.0, "embedding_scale": False, "output_bias": False},
    "GPT2LMHeadModel, scaled embeddings": ALONE
    | {"positions": "learned", "norm_first": True, "tie": "output", "embedding_scale": True},
    "BertForSequenceClassification, scaled embeddings": READER
    | {"architecture": "classifier", "pooling": "first", "n_classes": 3, "d_output": 16}
    | {"embedding_scale": True},
    "GPT2LMHeadModel": ALONE | {"positions": "learned", "norm_first": True, "tie": "output"},
    "LlamaForCausalLM": ALONE
    | WITHOUT_BIAS
    | {"positions": "rotary", "feed_forward_gated": True, "n_kv_heads": 1, "activation": "silu"},
    "BertForMaskedLM": READER | {"architecture": "masked", "tie": "output"},
    "BertForSequenceClassification": READER
    | {"architecture": "classifier", "pooling": "first", "n_classes": 3, "d_output": 16, "tie": "none"},
    "BertModel": READER | {"architecture": "classifier", "pooling": "mean", "n_classes": 0, "tie": "none"},
    "EuroBertForSequenceClassification": LLAMA_READER | {"pooling": "mean", "n_classes": 3},
    "EuroBertForSequenceClassification, hidden layer": LLAMA_READER
    | {"pooling": "first", "n_classes": 9, "d_output": 16, "output_activation": "gelu"},
    "EuroBertModel": LLAMA_READER | {"pooling": "mean", "n_classes": 0},
}


@pytest.mark.some(4)
@pytest.mark.parametrize("name", PLACES)
def test_a_model_computes_the_same_in_transformers_and_when_it_comes_back(name, tmp_path):
    options, card = PLACES[name], {}
    if options.get("n_classes"):
        card = {"labels": dict.fromkeys("abcdefghi"[: options["n_classes"]], 1)}
    folder, bundle, model = run_folder(tmp_path / "run", options, card=card)
    report = export(folder, tmp_path / "out", "huggingface", most=6)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [name.partition(",")[0]]
    assert report.get("same_tokens", report.get("same_choice", 1.0)) == 1.0
    assert report["largest_difference"] < 2e-5
    theirs, own = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), bundle.tokenizer
    assert theirs("a </s> b")["input_ids"]
    if bundle.model_config.architecture == "decoder":  # attendo's own always read their begin id
        assert theirs("a b")["input_ids"] == [own.bos_id, *own.encode("a b")]
    import_model(tmp_path / "out", tmp_path / "back")
    again = attendo.load(tmp_path / "back").model if name[0] != "M" else None
    if again is not None:
        ids = torch.randint(4, bundle.tokenizer.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
        inputs = (ids, ids) if bundle.model_config.architecture == "encoder-decoder" else (ids,)
        with torch.inference_mode():
            assert (again(*inputs) - model(*inputs)).abs().max() < 1e-5


def test_the_default_language_model_is_a_llama(tmp_path):
    (text := tmp_path / "a.txt").write_text("".join(f"It will rain in {n} days.\n" for n in range(200)))
    end = {"model": {"max_len": 16, "n_decoder_layers": 1}, "tokenizer": {"kind": "character"}}
    own = attendo.train(text, tmp_path / "run", task="language-model", steps=3, settings=end)
    report = export(tmp_path / "run", tmp_path / "out", "huggingface", most=2)
    assert report["largest_difference"] < 1e-5
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert isinstance(theirs, transformers.LlamaForCausalLM)
    assert own.model.config.d_ff == theirs.config.intermediate_size == 352
    ids = torch.randint(4, own.tokenizer.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert (theirs(ids).logits - own.model(ids)).abs().max() < 1e-5
        read = theirs(ids[:, :5], use_cache=True)
        after = theirs(ids[:, 5:], past_key_values=read.past_key_values).logits
        assert (after - own.model(ids)[:, 5:]).abs().max() < 1e-5


def test_the_default_classifier_with_words_runs_in_the_pipeline_of_transformers(tmp_path):
    words = train_tokenizer(sentences(50), TokenizerConfig(kind="uncased"))
    options = {"architecture": "classifier", "n_classes": 2, "max_len": 48}
    options |= CLASSIFICATION.sizes[-1].table(CLASSIFICATION.model)
    folder, _, model = run_folder(tmp_path / "run", options, tokenizer=words, card={"labels": {"no": 3, "yes": 1}})
    export(folder, tmp_path / "out", "huggingface", most=2)
    run = transformers.pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    texts = ["Tomorrow it CAN'T rain<br />in  Tokyo, Ｂ…", "x", sentences(1)[0]]
    for text, found in zip(texts, run(texts, batch_size=3), strict=True):
        ids = torch.tensor([words.specials.text(words.encode(text))])
        with torch.inference_mode():
            wanted = dict(zip(("no", "yes"), model(ids)[0].softmax(-1).tolist(), strict=True))
        assert {row["label"]: row["score"] for row in found} == pytest.approx(wanted, abs=1e-5)


def test_a_tagger_runs_in_transformers_but_does_not_come_back(tmp_path):
    options = LLAMA_READER | {"pooling": "none", "n_classes": 5}
    facts = {"task": "tagging", "labels": {"LOC": 2, "PER": 1}}
    folder, _, _ = run_folder(tmp_path / "run", options, card=facts)
    report = export(folder, tmp_path / "out", "huggingface", most=6)
    assert report["same_choice"] == 1.0 and report["largest_difference"] < 2e-5
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    assert list(theirs.config.id2label.values()) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    with pytest.raises(AttendoError, match="EuroBertForTokenClassification gives labels to tokens"):
        import_model(tmp_path / "out", tmp_path / "back")


def test_what_no_class_computes_is_said():
    for options, words in (
        ({"positions": "alibi"}, "positions='alibi'"),
        ({"norm": "rms", "n_kv_heads": 2}, "n_kv_heads=2"),
        ({"position_base": 500.0}, "position_base=500.0"),
        (PLACES["EuroBertForSequenceClassification"] | {"n_classes": 9}, "d_output=None"),
    ):
        assert words in exportable(ModelConfig(vocab_size=11, **options), "bpe", "huggingface")
    assert "tokenizer.kind='word'" in exportable(ModelConfig(vocab_size=11), "word", "huggingface")


def test_an_imported_tokenizer_goes_back(tmp_path):
    folder, _, _ = run_folder(tmp_path / "run", PLACES["BertForMaskedLM"])
    export(folder, tmp_path / "out", "huggingface", most=2)
    import_model(tmp_path / "out", tmp_path / "back")
    export(tmp_path / "back", tmp_path / "again", "huggingface", most=2)
    one, two = (transformers.AutoTokenizer.from_pretrained(tmp_path / name) for name in ("out", "again"))
    text = "tomorrow will be rainy in Tokyo ."
    assert one(text)["input_ids"] == two(text)["input_ids"]
    assert one.get_vocab() == two.get_vocab() and one.all_special_ids == two.all_special_ids
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()
    with pytest.raises(AttendoError, match="already exists"):
        export(folder, tmp_path / "out", "huggingface")


def test_an_assistant_keeps_its_chat_template(tmp_path):
    own = tiny_tokenizer().with_chat()
    folder, _, _ = run_folder(tmp_path / "run", PLACES["LlamaForCausalLM"], tokenizer=own)
    export(folder, tmp_path / "out", "huggingface", most=2)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for messages, reply in random_talks(True, 100, seed=1):
        turns = [message._asdict() for message in messages]
        found = theirs.apply_chat_template(turns, add_generation_prompt=reply, return_dict=False)
        assert found == own.chat.encode(own, messages, reply)[0], messages
    how = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert how["eos_token_id"] == [own.eos_id, own.chat.end_id]
    import_model(tmp_path / "out", tmp_path / "back")
    again = attendo.load(tmp_path / "back").tokenizer
    talk = [Message("system", "rain"), Message("user", "a"), Message("assistant", "b")]
    assert again.chat.encode(again, talk) == own.chat.encode(own, talk)
