"""It learns: eight pairs by heart, and to reverse, with the attention that reversing takes."""

import random

import pytest
from tiny_corpus import pairs_file

import attendo
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run

SYMBOLS = "abcdefghij"


def trained(folder, file, **tables):
    run = new_run(family_of("translation"), {"data": {"train": [str(file)], "valid": [str(file)]}, **tables}, folder)
    for _ in run.reports():
        pass
    return attendo.load(folder)


def test_eight_pairs_are_learned_by_heart(tmp_path):
    file = pairs_file(tmp_path, 8)
    translator = trained(
        tmp_path / "run",
        file,
        model={
            "d_model": 32,
            "d_ff": 64,
            "n_heads": 2,
            "n_encoder_layers": 1,
            "n_decoder_layers": 1,
            "dropout": 0.0,
        },
        tokenizer={"vocab_size": 450},
        training={
            "steps": 150,
            "learning_rate": 1e-2,
            "label_smoothing": 0.0,
            "evaluate_every": 150,
            "precision": "float32",
        },
        decoding={"beam": 2, "max_length_ratio": 0.0, "max_length_extra": 60},
    )
    pairs = [tuple(line.split("\t")) for line in file.read_text(encoding="utf-8").splitlines()]
    found = translator.translate([source for source, _ in pairs])
    assert [translation.text for translation in found] == [target for _, target in pairs]
    forced = translator.score(pairs)
    for translation, candidate in zip(found, forced, strict=True):
        assert translation.candidates[0].log_prob == pytest.approx(candidate.log_prob, abs=1e-4)


def reversals(n, seed):
    rng = random.Random(seed)
    rows = [[rng.choice(SYMBOLS) for _ in range(rng.randint(3, 5))] for _ in range(n)]
    return [(" ".join(row), " ".join(reversed(row))) for row in rows]


@pytest.mark.full
def test_reversing_is_learned_and_looks_along_the_other_diagonal(tmp_path):
    file = tmp_path / "reversals.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in reversals(4000, 0)))
    translator = trained(
        tmp_path / "run",
        file,
        model={
            "d_model": 64,
            "d_ff": 128,
            "n_heads": 2,
            "n_encoder_layers": 1,
            "n_decoder_layers": 1,
            "dropout": 0.0,
            "norm_first": True,
        },
        tokenizer={"kind": "word"},
        training={
            "steps": 400,
            "batch_tokens": 300,
            "learning_rate": 5e-3,
            "warmup_steps": 60,
            "label_smoothing": 0.0,
            "evaluate_every": 400,
            "evaluate_rows": 20,
            "precision": "float32",
        },
        decoding={"beam": 1, "max_length_ratio": 1.0, "max_length_extra": 4},
    )
    fresh = reversals(200, 1)
    found = translator.translate([source for source, _ in fresh])
    assert sum(t.text == target for t, (_, target) in zip(found, fresh, strict=True)) >= 198
    right = total = 0
    for source, _ in fresh[:30]:
        with translator.recording() as record:
            translator.translate([source])
        weights = record["decoder.blocks.0.cross_attention"].weights[0].mean(0)  # [target, source]
        n = len(source.split())
        right += sum(best == n - 1 - t for t, best in enumerate(weights.argmax(-1)[:n].tolist()))
        total += n
    assert right / total > 0.9
