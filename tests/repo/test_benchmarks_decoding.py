"""The benchmarks of decoding: what they say about figures, and that what they compare is the same work."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.decoding.options import DecodingConfig
from attendo.decoding.searcher import source_batches
from attendo.models import EncoderDecoder, ModelConfig

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LINES = [
    "rain in the north",
    "sun",
    "snow and wind in the south, then sun",
    "fog",
    "rain",
    "wind in the west",
]


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.mark.parametrize(
    "name", ["turns", "decoding_table", "decoding_texts", "decoding_weights", "exactness", "growth"]
)
def test_examples_hold(benchmark_module, name):
    assert doctest.testmod(benchmark_module(name)).failed == 0


def case(speeds, quartiles, sources=1, threads=1):
    return {
        "size": "small", "threads": threads, "sources": sources, "beam": 4, "clock": "CPU",
        "tokens_per_second": speeds, "ratio_quartiles": quartiles,
    }  # fmt: skip


def test_a_table_says_what_is_met_and_what_is_not(benchmark_module):
    pair = "attendo-float32 / ctranslate2-float32"
    speeds = {"attendo-float32": 950, "ctranslate2-float32": 1000}
    text = benchmark_module("decoding_table").table(
        [
            {"grid": [case(speeds, {pair: [0.94, 0.95, 0.96]}), case(speeds, {pair: [0.9, 0.95, 1]}, 64)]},
            {"grid": [case(speeds, {pair: [1.2, 1.25, 1.3]}, 8)]},
        ]
    )
    assert "| 1 × 4 | 950 | 1,000 | 0.95, required |" in text
    assert "| 8 × 4 | 950 | 1,000 | 1.25, goal |" in text
    assert "| 64 × 4 | 950 | 1,000 | **0.95 < 1** |" in text
    assert text.endswith("- CTranslate2: requirement met in 2 of 3 cases\n- CTranslate2: goal met in 1 of 3 cases")


def test_the_last_of_two_results_of_a_case_counts(benchmark_module):
    results = [
        {"grid": [case({"marian": speed}, {"attendo-float32 / marian": [0, ratio, 9]})]}
        for speed, ratio in ((100, 1.0), (200, 3.5))
    ]
    text = benchmark_module("decoding_table").table(results)
    assert "| 1 × 4 | 200 | 3.50, required |" in text
    assert "100" not in text


def test_peers_batch_as_attendo_does(benchmark_module):
    lengths = torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    config = DecodingConfig(beam=4, batch_tokens=512)
    assert benchmark_module("decoding_texts").batches(lengths, 512 // 4) == source_batches(lengths, config)


@pytest.mark.parametrize("norm_first", [False, True])
def test_weights_come_back_from_the_file(benchmark_module, tmp_path, norm_first):
    peers, weights = benchmark_module("decoding_peers"), benchmark_module("decoding_weights")
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
    model = EncoderDecoder(ModelConfig(vocab_size=40, norm_first=norm_first, **sizes)).eval()
    weights.save_weights(model, tmp_path / "model.npz")
    config, arrays = weights.load_weights(tmp_path / "model.npz")
    again = weights.attendo_model(tmp_path / "model.npz")
    assert config["norm_first"] == norm_first
    assert arrays["positions"].shape == (weights.POSITIONS, 16)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    rows = [[5, 6, 7, weights.EOS], [8, weights.EOS]]
    found = peers.attendo_search(tmp_path / "model.npz", "plain")(rows, 2, 6, 6)
    assert [len(text) for text in found] == [6, 6]
    assert peers.attendo_search(tmp_path / "model.npz", "float32")(rows, 2, 6, 6) == found


@pytest.mark.full
def test_every_way_to_search_finds_the_same_in_64_bits(benchmark_module, tmp_path):
    exactness = benchmark_module("exactness")
    run = save_run(tmp_path / "run", tiny_translator(tiny_tokenizer()))
    for beam, names in ((1, {"joined", "no cache"}), (2, {"no cache", "sevens", "shuffled", "tokens 64"})):
        searched = exactness.Searched(run, "float64", beam)
        alone = searched.some_at_a_time(LINES, size=1)
        found = {name: [tuple(ids) for ids in search()] for name, search in exactness.ways(searched, LINES, 6).items()}
        assert names <= set(found)
        assert all(texts == alone for texts in found.values())


@pytest.mark.parametrize("form", ["plain", "float32"])
def test_a_cache_holds_the_source_once_whatever_the_beam(benchmark_module, monkeypatch, form):
    growth = benchmark_module("growth")
    monkeypatch.setattr(growth, "VOCABULARY", 50)
    model = growth.searched("encoder-decoder", form)
    one, four = (growth.held(model, 3, beam, 32) for beam in (1, 4))
    assert one["source"] == four["source"] == 3 * 2 * 3 * growth.SOURCE_TOKENS * 256 * 4
    assert four["own"] == 4 * one["own"]
    assert one["own"] >= 3 * 2 * 3 * 32 * 256 * 4
