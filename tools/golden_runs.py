"""Create the golden runs of this version's format: a tiny run of each task, with results that must never change.

The runs are stored in tests/golden/format-N/, where N is the format of a run folder (`attendo.bundle.FORMAT`). Every
later version must be able to load them. The runs of a format are created only once: an existing folder is not changed.
To create runs of a new format, raise FORMAT and then run this script.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from attendo.bundle import FORMAT, TaskName, load_bundle, load_model
from attendo.data import forecasts
from attendo.data.tokenizers import Tokenizer
from attendo.files import atomic_folder
from attendo.inference import Classifier, Embedder, Generator, Translator, load
from attendo.inference.embedder import nearest_rows
from attendo.models import EncoderDecoder, Model
from attendo.runs.resume import resumed_run
from attendo.runs.settings import Tables, joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import LOCK, new_run

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
RUN, DATA, EXPECTED = "run", "data.tsv", "expected.json"
"""Names in the folder of a task: the run, its training data, and its expected results."""
N_PAIRS, N_TEXTS = 6, 20
STEPS, MORE_STEPS = 12, 2
DIGITS = 9
"""Number of decimal places of a logit."""
TEXTS = ("It will snow in Sapporo tomorrow.", "Rain.")

COMMON: Tables = {
    "model": {"d_model": 4, "d_ff": 8, "n_heads": 2, "max_len": 64, "dropout": 0.1},
    "training": {
        "steps": STEPS,
        "batch_tokens": 256,
        "evaluate_every": STEPS,
        "warmup_steps": 2,
        "learning_rate": 0.03,
        "precision": "float32",
        "products": "torch",
    },
    "checkpoint": {"keep_last": 1},
}
"""Settings of all tasks. Settings that depend on the machine are fixed, so every machine creates equal runs."""
FAMILIES: dict[TaskName, Tables] = {
    "translation": {
        "model": {
            "n_encoder_layers": 1,
            "n_decoder_layers": 1,
            "attention_bias": False,
            "feed_forward_bias": False,
        },
        "tokenizer": {"kind": "bpe", "vocab_size": 400},
        "training": {"evaluate_rows": 2},
        "decoding": {"beam": 2, "no_repeat_ngram": 1, "max_length_ratio": 0.0, "max_length_extra": 8},
    },
    "classification": {
        "model": {"n_encoder_layers": 1, "norm_first": True, "positions": "learned", "pooling": "mean"},
        "tokenizer": {"kind": "uncased", "vocab_size": 60},
        "data": {"max_tokens": 60},
    },
    "language-model": {
        "model": {
            "n_decoder_layers": 1,
            "norm": "rms",
            "norm_first": True,
            "positions": "rotary",
            "n_kv_heads": 1,
            "activation": "silu",
            "feed_forward_gated": True,
        },
        "tokenizer": {"kind": "character", "vocab_size": 310},
    },
    "masked-language-model": {
        "model": {"n_encoder_layers": 1, "activation": "gelu", "positions": "alibi"},
        "tokenizer": {"kind": "word", "vocab_size": 60},
    },
}
"""Settings of each task. The tokenizers and options differ, to include many features of a run."""


def data_lines(family: TaskName) -> Iterator[str]:
    """Yield the training rows of a task's run."""
    for source, target in forecasts.pairs(N_PAIRS if family == "translation" else N_TEXTS, "train"):
        match family:
            case "translation":
                yield f"{source}\t{target}"
            case "classification":
                yield f"{'snow' if 'snow' in source else 'other'}\t{source}"
            case _:
                yield source


def logits(model: Model, tokenizer: Tokenizer) -> list[list[float]]:
    """Return the logits of TEXTS in float64: of each class, or after the last token."""
    found = []
    model = copy.deepcopy(model).cpu().double().eval()
    with torch.inference_mode():
        for ids in tokenizer.encode_batch(TEXTS):
            src = torch.tensor([ids])
            rows = model(src, src) if isinstance(model, EncoderDecoder) else model(src)
            found.append([round(logit, DIGITS) for logit in rows.flatten(0, -2)[-1].tolist()])
    return found


def answers(folder: Path) -> list[str]:
    """Return the results for TEXTS: translations, labels, continuations, or the nearest training texts."""
    user = load(folder)
    match user:
        case Translator():
            return [found.text for found in user.translate(TEXTS)]
        case Classifier():
            return [str(found.label) for found in user.classify(TEXTS)]
        case Generator():
            return [user.generate(text, max_tokens=16, temperature=0.0, repetition_penalty=2.0).text for text in TEXTS]
        case Embedder():
            lines = list(data_lines("masked-language-model"))
            vectors = user.embed(lines)
            return [lines[nearest_rows(vector, vectors, 1)[0][1]] for vector in user.embed(TEXTS)]
    raise AssertionError(user)


def expected(folder: Path) -> dict[str, Any]:
    """Return all results that a run must always return."""
    bundle = load_bundle(folder)
    return {"logits": logits(load_model(folder, bundle), bundle.tokenizer), "answers": answers(folder)}


def loss_after_resuming(folder: Path) -> float:
    """Return the validation loss of a run after MORE_STEPS more steps. The working folder must contain its data."""
    *_, last = (
        report.evaluation.measures["loss"]
        for report in resumed_run(folder, {"more_steps": MORE_STEPS}, device="cpu").reports()
        if report.kind == "evaluation" and report.evaluation is not None and not report.note
    )
    return last


def make(family: TaskName, folder: Path) -> None:
    """Train the run of a task in a folder, and store its expected results."""
    (folder / DATA).write_text("".join(f"{line}\n" for line in data_lines(family)), encoding="utf-8")
    tables = joined(COMMON, FAMILIES[family], {"data": {"train": [str(folder / DATA)], "valid": [str(folder / DATA)]}})
    for _ in new_run(family_of(family), tables, folder / RUN, device="cpu").reports():
        pass
    (folder / RUN / LOCK).unlink()
    config = folder / RUN / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace(f"{folder}/", ""), encoding="utf-8")
    facts = expected(folder / RUN)
    with tempfile.TemporaryDirectory() as other:
        copied = shutil.copytree(folder, other, dirs_exist_ok=True)
        with contextlib.chdir(copied):
            facts["loss_after_resuming"] = loss_after_resuming(Path(RUN))
    lines = [f"{json.dumps(name)}: {json.dumps(fact, ensure_ascii=False)}" for name, fact in facts.items()]
    (folder / EXPECTED).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for file in filter(Path.is_file, folder.rglob("*")):
        assert str(folder).encode() not in file.read_bytes(), f"{file} names a folder of this machine"


def main() -> int:
    """Create the golden runs of this version's format. Return 1 if they already exist."""
    place = GOLDEN / f"format-{FORMAT}"
    if place.exists():
        print(
            f"error: {place} is there, and stays as it is; for another raise FORMAT in attendo/bundle.py",
            file=sys.stderr,
        )
        return 1
    torch.set_num_threads(1)
    with atomic_folder(place) as folder:
        for family in FAMILIES:
            (folder / family).mkdir()
            make(family, folder / family)
    for folder in sorted(place.iterdir()):
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{size / 1000:5.1f} kB  {folder.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
