"""Whole folders that `transformers` wrote, imported: the same texts, labels and vectors; and what is refused."""

import json
import os

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from tiny_tokenizers import made  # noqa: E402

import attendo  # noqa: E402
from attendo.errors import AttendoError  # noqa: E402
from attendo.interop.huggingface.importing import import_model  # noqa: E402

TEXTS = ["the quick brown fox", "it won't rain", "a b c", "rain fell on 3 days", "lazy dog"]
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
SIZES |= {
    f"{stack}_{name}": n for stack in ("encoder", "decoder") for name, n in (("attention_heads", 2), ("ffn_dim", 24))
}
TRANSLATORS = {
    "marian": ("Marian", "MTModel", SIZES),
    "bart": ("Bart", "ForConditionalGeneration", SIZES),
    "mbart": ("MBart", "ForConditionalGeneration", SIZES),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
    ),
}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
WRITERS = {
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2}),
    "llama": ("Llama", "ForCausalLM", SMALL),
    "qwen2": ("Qwen2", "ForCausalLM", SMALL | {"num_key_value_heads": 1}),
}


def folder_of(kind, name, model, sizes, folder, **more):
    """A model with random weights and a tiny tokenizer, as `transformers` saves them."""
    tokenizer = made(kind, folder)
    tokenizer.save_pretrained(folder)
    ids = {f"{one}_token_id": getattr(tokenizer, f"{one}_token_id") for one in ("pad", "bos", "eos")}
    begin = {"marian": "pad", "t5": "pad", "bart": "eos"}.get(kind)
    if begin is not None:
        more["decoder_start_token_id"] = ids[f"{begin}_token_id"]
    if kind == "mbart":
        more |= {"decoder_start_token_id": tokenizer.convert_tokens_to_ids("de_DE")}
    if kind == "marian":
        more["decoder_vocab_size"] = len(tokenizer)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=len(tokenizer), **ids, **sizes, **more)
    built = getattr(transformers, name + model)(config).eval()
    for parameter in built.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn_like(parameter)
    how = {name: i for name, i in ids.items() if i is not None}
    how |= {name: i for name, i in more.items() if name == "decoder_start_token_id"}
    if kind in TRANSLATORS:
        how |= {"num_beams": 4, "early_stopping": True, "max_length": 30, "length_penalty": 1.0}
    built.generation_config = transformers.GenerationConfig(**how)
    built.save_pretrained(folder)
    return tokenizer, built


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", TRANSLATORS)
def test_a_translator_gives_the_texts_of_generate(kind, tmp_path):
    name, model, sizes = TRANSLATORS[kind]
    theirs, built = folder_of(kind, name, model, sizes, tmp_path / "theirs")
    codes = {"source_language": "en_XX", "target_language": "de_DE"} if kind == "mbart" else {}
    import_model(tmp_path / "theirs", tmp_path / "ours", **codes)
    ours = attendo.load(tmp_path / "ours").prepare()
    never = list(ours.tokenizer.never)
    if kind == "mbart":
        theirs.src_lang = "en_XX"
    for beam in (1, 4):
        found = [t.candidates[0] for t in ours.translate(TEXTS, beam=beam, guard=False)]
        for text, mine in zip(TEXTS, found, strict=True):
            read = theirs(text, return_tensors="pt")
            read.pop("token_type_ids", None)
            how = {"num_beams": beam, "early_stopping": beam > 1, "max_length": 30, "suppress_tokens": never}
            ids = built.generate(**read, **how)[0].tolist()
            assert mine.text.strip() == theirs.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_language_model_continues_as_generate_does(kind, tmp_path):
    theirs, built = folder_of(kind, *WRITERS[kind], tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours")
    ours = attendo.load(tmp_path / "ours").prepare()
    for text in TEXTS:
        read = theirs(text, return_tensors="pt")
        how = {"do_sample": False, "max_new_tokens": 12, "suppress_tokens": list(ours.tokenizer.never)}
        ids = built.generate(input_ids=read["input_ids"], **how)[0, read["input_ids"].shape[1] :].tolist()
        wanted = tuple(i for i in ids if i != built.config.eos_token_id)
        assert ours.generate(text, max_tokens=12).token_ids == wanted


def test_a_classifier_gives_the_probabilities_of_its_labels(tmp_path):
    labels = {0: "weather", 1: "animals", 2: "letters"}
    more = {"id2label": labels, "label2id": {label: n for n, label in labels.items()}}
    theirs, built = folder_of("bert", "Bert", "ForSequenceClassification", SMALL, tmp_path / "theirs", **more)
    import_model(tmp_path / "theirs", tmp_path / "ours")
    with torch.inference_mode():
        for text, mine in zip(TEXTS, attendo.load(tmp_path / "ours").classify(TEXTS), strict=True):
            wanted = built(**theirs(text, return_tensors="pt")).logits.softmax(-1)[0]
            shares = {labels[n]: float(p) for n, p in enumerate(wanted)}
            assert mine.probabilities == pytest.approx(shares, abs=1e-6)


def test_sentence_embeddings_are_pooled_and_of_length_1(tmp_path):
    theirs, built = folder_of("bert", "Bert", "Model", SMALL, tmp_path / "theirs")
    (tmp_path / "theirs/1_Pooling").mkdir()
    (tmp_path / "theirs/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Normalize"}]
    (tmp_path / "theirs/modules.json").write_text(json.dumps(modules))
    import_model(tmp_path / "theirs", tmp_path / "ours")
    found = attendo.load(tmp_path / "ours").embed(TEXTS)
    with torch.inference_mode():
        for text, mine in zip(TEXTS, found, strict=True):
            states = built(**theirs(text, return_tensors="pt")).last_hidden_state[0].numpy()
            wanted = states.mean(0) / np.linalg.norm(states.mean(0))
            assert np.abs(mine - wanted).max() < 1e-5


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    folder_of("gpt2", *WRITERS["gpt2"], folder)
    return folder


def truncated(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def changed(**how):
    """A folder whose tensors are other ones; None removes."""

    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        for name, tensor in how.items():
            tensors.pop(name, None)
            if tensor is not None:
                tensors[name] = tensor
        save_file(tensors, folder / "model.safetensors")

    return change


def configured(**how):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | how))

    return change


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without(*names):
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (truncated, "model.safetensors is damaged or truncated"),
        (changed(**{"transformer.wpe.weight": None}), "the weights have no transformer.wpe.weight"),
        (changed(**{"extra.weight": torch.zeros(3)}), "the weights contain extra.weight, unlike"),
        (
            changed(**{"transformer.ln_f.bias": torch.zeros(3)}),
            "transformer.ln_f.bias has shape [3], but config.json",
        ),
        (
            changed(**{"lm_head.weight": torch.ones(330, 16)}),
            "lm_head.weight differs from the embedding, but config.json",
        ),
        (configured(n_layer=2), "the weights have no transformer.h.1.ln_1.weight"),
        (configured(n_embd=32), "defines [330, 32]"),
        (configured(model_type="mamba"), 'model_type="mamba" is not supported'),
        (configured(architectures=["GPT2ForTokenClassification"]), "GPT2ForTokenClassification"),
        (configured(activation_function="mish"), 'activation_function="mish" is not supported'),
        (
            configured(scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx=true is not supported",
        ),
        (pickled, "pytorch_model.bin is a pickle"),
        (without("model.safetensors"), "has no model.safetensors"),
        (without("tokenizer.json", "vocab.json", "merges.txt"), "has no tokenizer"),
        (without("config.json"), "config.json: no such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not valid JSON"),
    ],
)
def test_a_spoiled_folder_is_refused_in_one_line_and_nothing_is_written(gpt2, tmp_path, spoil, words):
    for file in gpt2.iterdir():
        (tmp_path / "theirs").mkdir(exist_ok=True)
        (tmp_path / "theirs" / file.name).write_bytes(file.read_bytes())
    spoil(tmp_path / "theirs")
    with pytest.raises(AttendoError) as caught:
        import_model(tmp_path / "theirs", tmp_path / "ours")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


def test_weights_in_several_files_are_read(gpt2, tmp_path):
    (tmp_path / "theirs").mkdir()
    for file in gpt2.iterdir():
        (tmp_path / "theirs" / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "theirs/model.safetensors")
    (tmp_path / "theirs/model.safetensors").unlink()
    parts = {f"model-{n}-of-2.safetensors": dict(list(tensors.items())[n::2]) for n in range(2)}
    for name, part in parts.items():
        save_file(part, tmp_path / "theirs" / name)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "theirs/model.safetensors.index.json").write_text(json.dumps(index))
    import_model(tmp_path / "theirs", tmp_path / "ours")
    import_model(gpt2, tmp_path / "whole")
    found, wanted = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "whole"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    (tmp_path / "theirs/model-1-of-2.safetensors").unlink()
    with pytest.raises(AttendoError, match=r"model-1-of-2\.safetensors: no such file, but"):
        import_model(tmp_path / "theirs", tmp_path / "again")
