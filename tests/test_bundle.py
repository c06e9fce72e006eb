"""A run folder: whole, it loads to equal logits; damaged in any way, it says what and what to do."""

import json
import random
import shutil

import pytest
import torch
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_corpus import pairs_file, small_run

from attendo.bundle import (
    EXAMPLES,
    examples_of,
    load_bundle,
    load_model,
    pick_device,
    save_examples,
    save_weights,
)
from attendo.errors import AttendoError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder, model in memory) of a run whose last evaluation was its best, if any was."""
    folder = tmp_path_factory.mktemp("bundle")
    run = small_run(folder / "run", pairs_file(folder), training={"steps": 2, "evaluate_every": 2})
    for _ in run.reports():
        pass
    return folder / "run", run.run.model.eval()


@pytest.fixture
def folder(trained, tmp_path):
    """A copy to damage."""
    return shutil.copytree(trained[0], tmp_path / "run")


def test_what_is_loaded_computes_the_same(trained):
    folder, model = trained
    loaded = load_model(folder, load_bundle(folder))
    src, tgt = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 9]])
    assert torch.equal(loaded(src, tgt), model(src, tgt))
    assert loaded.output_proj.weight is loaded.target_embedding.tokens.weight
    assert not loaded.training


def test_the_same_weights_are_the_same_file_byte_for_byte(folder):
    first = (folder / "model.safetensors").read_bytes()
    bundle = load_bundle(folder)
    for _ in range(5):  # the order of the metadata was drawn anew at each save
        save_weights(folder, load_model(folder, bundle), bundle, 2)
        assert (folder / "model.safetensors").read_bytes() == first


def test_a_saved_model_can_still_free_its_memory_as_fsdp_does(folder):
    bundle = load_bundle(folder)
    model = load_model(folder, bundle)
    save_weights(folder, model, bundle, 2)
    for parameter in model.parameters():
        parameter.data.untyped_storage().resize_(0)


def test_the_card_says_what_it_is(trained):
    card = json.loads((trained[0] / "card.json").read_text())
    assert card["format"] == 1 and card["task"] == "translation"
    assert card["data"]["pairs"] == 96 and card["parameters"] == sum(p.numel() for p in trained[1].parameters())
    assert {"bleu", "chrf", "exact", "loss", "step"} <= card["validation"].keys()


def loading(folder):
    load_model(folder, load_bundle(folder))


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "card.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(AttendoError, match=f"has no {name}"):
        loading(folder)


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "card.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_one_clear_line(folder, name, share):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(AttendoError) as caught:
        loading(folder)
    assert name in str(caught.value) or "trained with a different" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_changed_byte_of_the_weights_is_found_wherever_it_is(folder):
    path = folder / "model.safetensors"
    data, draw = path.read_bytes(), random.Random(0)
    end = 8 + int.from_bytes(data[:8], "little")
    key = data.index(b"weights_sha256")
    n = examples(30, 100)
    places = [draw.randrange(8, end) for _ in range(n)] + [draw.randrange(end, len(data)) for _ in range(n)]
    for place in places:
        if key - 1 <= place < key + 15:  # without the name of the hash the file is of an earlier version
            continue
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :])
        with pytest.raises(AttendoError, match=r"damaged|Restore|not in both"):
            loading(folder)


def test_weights_without_a_hash_of_an_earlier_version_load(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"weights_sha256", b"weights_sha255"))
    loading(folder)


def test_another_config_or_tokenizer_does_not_fit_the_weights(folder):
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("d_ff = 32", "d_ff = 64"))
    with pytest.raises(AttendoError, match="trained with a different config"):
        loading(folder)


def test_another_tokenizer_is_refused(folder, trained):
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(AttendoError, match="trained with a different tokenizer"):
        loading(folder)


def test_a_later_format_asks_for_an_upgrade(folder):
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"format": 2}))
    with pytest.raises(AttendoError, match=r"format 2 is unknown \(this version reads 1\)\. Upgrade attendo"):
        loading(folder)


def test_no_folder_is_said(tmp_path):
    with pytest.raises(AttendoError, match="no such run folder"):
        load_bundle(tmp_path / "none")
    with pytest.raises(AttendoError, match="no such run folder; `attendo demo` creates it"):
        load_bundle(tmp_path / "runs" / "demo")


def test_a_model_that_was_loaded_stays_when_its_file_is_written_over_in_place(folder):
    model = load_model(folder, load_bundle(folder))
    before = [parameter.clone() for parameter in model.parameters()]
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    path.write_bytes(b"")
    assert sum(parameter.sum() for parameter in model.parameters()).isfinite()


def test_an_apple_gpu_is_refused_with_what_to_use():
    with pytest.raises(AttendoError, match=r"^unknown device 'mps' .*GPUs of Apple are not supported; use cpu$"):
        pick_device("mps")
    with pytest.raises(AttendoError, match=r"^unknown device 'gpu' \(expected auto, cpu or cuda\)$"):
        pick_device("gpu")


# ---- example texts


words = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(["rain", "snow", "今日は雨", "\u2028"])
lines = st.lists(words, max_size=40).map(" ".join)


@given(st.lists(lines | st.just("it will rain on Monday"), max_size=8), st.sampled_from([30, 80]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_examples_are_few_short_single_lines_of_the_texts(tmp_path, texts, most):
    save_examples(tmp_path, texts, most)
    found = examples_of(tmp_path)
    spaced = [" ".join(text.split()) for text in texts]
    assert len(found) == len(set(found)) <= 3
    # fewer than 3 only if each text has the same beginning as an example
    assert len(found) == 3 or all(any(text.startswith(one) for one in found) for text in spaced if text)
    for text in found:
        assert 0 < len(text) <= most and len(text.splitlines()) == 1 and text == text.strip()
        assert any(whole.startswith(text) for whole in spaced)
        # cut only between words, unless the first word alone is too long
        assert any(whole == text or whole.startswith(f"{text} ") for whole in spaced) or len(text) == most
    save_examples(tmp_path, iter(texts), most)
    assert examples_of(tmp_path) == found


def test_examples_prefer_texts_of_usual_length(tmp_path):
    usual = [f"it rains on day number {n}" for n in range(4)]
    save_examples(tmp_path, ["rain", "snow " * 40, usual[0], "", usual[1], "\n", usual[1], usual[2], usual[3]], 80)
    assert examples_of(tmp_path) == usual[:3]
    save_examples(tmp_path, ["rain", "snow " * 40, usual[0]], 80)
    assert examples_of(tmp_path) == [usual[0], "rain", "snow " * 15 + "snow"]
    save_examples(tmp_path, ["one two\u2028three four five six seven eight nine"], 30)
    assert examples_of(tmp_path) == ["one two three four five six"]


NOT_TEXTS = [b"", b'["a"', b'{"a": 1}', b'"abc"', b"3", b"null", b'["a", 3]', b'["a", ["b"]]']
NOT_TEXTS += [b'["\\ud800"]', b'["\xff"]', b"[" * 99_999, b"9" * 9999]


@pytest.mark.parametrize("data", NOT_TEXTS)
def test_damaged_examples_are_none(tmp_path, data):
    (tmp_path / EXAMPLES).write_bytes(data)
    assert examples_of(tmp_path) == []


def test_a_run_without_examples_has_none(folder):
    assert 0 < len(examples_of(folder)) <= 3
    (folder / EXAMPLES).unlink()
    assert examples_of(folder) == [] == examples_of(None) == examples_of(folder / "none")
    loading(folder)
