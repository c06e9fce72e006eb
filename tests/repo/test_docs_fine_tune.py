"""The guide to fine-tuning: its commands run on small folders as Hugging Face writes them."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
pytest.importorskip("transformers")

from documented import ROOT, Workshop, blocks, commands
from exported_models import run_folder

from attendo.interop.exporting import export

SIZES = {"d_model": 16, "d_ff": 24, "n_heads": 2, "max_len": 300, "dropout": 0.0, "n_encoder_layers": 1}
MODELS = {
    "all-MiniLM-L6-v2": SIZES
    | {"architecture": "classifier", "pooling": "mean", "n_classes": 0, "tie": "none", "n_decoder_layers": 0}
    | {"positions": "learned", "embedding_scale": False, "embedding_norm_eps": 1e-12, "norm_eps": 1e-12},
    "opus-mt-en-de": SIZES | {"n_decoder_layers": 1, "output_bias": True},
}
PAGES = [(ROOT / f"docs/{language}/fine-tune.md").read_text(encoding="utf-8") for language in ("en", "ja")]


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    for name, options in MODELS.items():
        folder, _, _ = run_folder(tmp_path / f"made-{name}", options)
        export(folder, tmp_path / name, "huggingface", most=2)
    rows = (f"{'good' if n % 2 else 'bad'}\treview {n} was {'nice' if n % 2 else 'poor'}\n" for n in range(120))
    (tmp_path / "reviews.tsv").write_text("".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTENDO_NATIVE", "0")
    return Workshop(tmp_path)


@pytest.mark.full
def test_the_commands_of_the_guide_run(workshop):
    lines = commands(PAGES[0])
    assert len(lines) > 7
    outcomes = {line: workshop.run(line) for line in lines}
    [shown] = [text for language, text in blocks(PAGES[0]) if language == "text"]
    printed = outcomes["attendo import all-MiniLM-L6-v2 runs/minilm"].err
    assert shown.split()[3:] == printed.split()[3:]  # another model has another size
