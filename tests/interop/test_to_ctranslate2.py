"""Models in CTranslate2: every shape that can go there computes the same, and what can't go is told before."""

import pytest
from exported_models import drawn_options, run_folder, sentences
from tiny_translator import tiny_tokenizer

from attendo.interop.parity import Examples, measured
from attendo.interop.to_ctranslate2 import opened, why_not, write

ARCHITECTURES = ("encoder-decoder", "decoder", "classifier", "masked")
EXAMPLES = Examples("sentences", sentences(6))


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def compared(seed, architecture, tokenizer, folder):
    options = drawn_options(seed, architecture)
    run, bundle, model = run_folder(folder / "run", options, tokenizer=tokenizer, seed=seed)
    assert why_not(model.config, tokenizer.kind) is None
    out = folder / "out"
    out.mkdir()
    write(run, bundle, model, out)
    found = measured(bundle, model, opened(out), EXAMPLES)
    assert found["largest_difference"] < 2e-4, options
    assert found.get("same_tokens", 1.0) == found.get("same_choice", 1.0) == 1.0, options


@pytest.mark.some(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(2))
def test_a_model_of_any_shape_computes_the_same(seed, architecture, tokenizer, tmp_path):
    compared(seed, architecture, tokenizer, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(2, 52))
def test_many_models_of_any_shape_compute_the_same(seed, architecture, tokenizer, tmp_path):
    compared(seed, architecture, tokenizer, tmp_path)
