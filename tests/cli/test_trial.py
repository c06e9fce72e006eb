"""attendo trial: its table, its JSON, and a command that is stopped and repeated."""

import json
import signal
from pathlib import Path

import pytest
from command_line import attendo, refused, settings, stopped_at
from tiny_texts import SMALL, text_file

from attendo.cli.trial import settings_of, trial_lines
from attendo.runs.trials import Trial

SCORES = {
    "A": [0.801, 0.796, 0.803, 0.799, 0.805],
    "B": [0.813, 0.811, 0.812, 0.809, 0.817],
    "C": [0.603, 0.611, 0.598],
    "D": [0.8, None],
}
TABLE = """\
A  baseline
B  model.dropout=0.1 training.learning_rate=0.0003
C  training.learning_rate=10.0
D  model.norm=rms

validation accuracy, higher is better; at most 2 CPU-minutes per run

     mean  difference from A  95% interval        seeds  verdict
───────────────────────────────────────────────────────────────────────
A  80.08%                                             5
B  81.24%             +1.16%  +0.85% to +1.47%        5  better
C  60.40%            −19.60%  −27.86% to −11.34%      3  worse, stopped
D  80.00%             −0.10%  unknown                 1  diverged

seed       A       B       C       D
────────────────────────────────────
   1  80.10%  81.30%  60.30%  80.00%
   2  79.60%  81.10%  61.10%       –
   3  80.30%  81.20%  59.80%       –
   4  79.90%  80.90%       –       –
   5  80.50%  81.70%       –       –

Each interval is for one comparison. If all settings were equally good, up to
15% of trials with 3 variants would call one better or worse. Confirm a result
with new seeds (--seed).
best run: attendo classify trials/x/B/seed-5 "your text\""""


def finished():
    variants = {
        "B": {"model": {"dropout": 0.1}, "training": {"learning_rate": 0.0003}},
        "C": {"training": {"learning_rate": 10.0}},
        "D": {"model": {"norm": "rms"}},
    }
    limits = {"training": {"cpu_minutes": 2}}
    plan = {"task": "classification", "settings": limits, "variants": variants, "seeds": [1, 2, 3, 4, 5]}
    results = {
        f"{name}/seed-{seed}": {
            "measures": {} if score is None else {"loss": 0.5, "accuracy": score},
            "deciding": "loss",
        }
        for name, row in SCORES.items()
        for seed, score in enumerate(row, 1)
    }
    return Trial(Path("trials/x"), plan, {}, results, "accuracy")


def test_the_table():
    assert list(trial_lines(finished())) == TABLE.splitlines()
    assert all(len(line) <= 79 for line in trial_lines(finished()))


def test_settings_come_from_assignments_or_a_file(tmp_path):
    (tmp_path / "wide.toml").write_text("[model]\nd_model = 64\n")
    assert settings_of(str(tmp_path / "wide.toml")) == {"model": {"d_model": 64}}
    text = 'training.frozen=["encoder", "tok emb"]  model.norm = rms'
    assert settings_of(text) == {"training": {"frozen": ["encoder", "tok emb"]}, "model": {"norm": "rms"}}


@pytest.fixture
def words(tmp_path):
    file = text_file(tmp_path, 60)
    options = ["trial", "language-model", "--train", file, "--out", tmp_path / "t", "--seeds", "2"]
    shape = {"model.max_len": 24, "model.n_decoder_layers": 1, "data.documents": "line"}
    sets = [part for key, value in shape.items() for part in ("--set", f"{key}={value}")]
    return [*options, *settings(SMALL), *sets, "--threads", "1"]


def test_a_stopped_command_is_repeated_to_resume(words, tmp_path):
    words += ["--steps", "3", "--try", "training.learning_rate=0.001"]
    with stopped_at(2, signal.SIGINT):
        outcome = attendo(*words)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.endswith("stopped and saved at step 2. Run the same command again to resume\n")
    outcome = attendo(*words, "--json")
    found = json.loads(outcome.out)
    assert (found["metric"], found["higher_is_better"]) == ("bits_per_byte", False)
    assert [one["name"] for one in found["outcomes"]] == ["A", "B"]
    assert "A/seed-1: 4.40" in outcome.err and "2 settings with 2 seeds: 0 of 4 runs done" in outcome.err
    scores = found["outcomes"][1]["scores"]
    assert scores == {str(s): found["runs"][f"B/seed-{s}"]["measures"]["bits_per_byte"] for s in (1, 2)}
    assert attendo("generate", found["best_run"], "rain", "--max-tokens", "2").code == 0
    error = refused(*words, "--seeds", "3")
    assert error.startswith(f"the seeds of the trial in {tmp_path / 't'} differ") and "another --out" in error


def test_what_is_refused_before_training(words, tmp_path):
    assert "Give --try SETTINGS" in refused(*words)
    words += ["--try", "model.norm=rms"]
    limits = [part for part in words if not str(part).startswith("training.steps=")]
    limits = [a for a, b in zip(limits, [*limits[1:], ""], strict=True) if (a, str(b)[:5]) != ("--set", "--set")]
    assert "Give --cpu-minutes" in refused(*limits)
    assert "unknown metric bleurt" in refused(*words, "--metric", "bleurt")
    assert "unknown key training.dropout" in refused(*words, "--try", "training.dropout=0.1")
    assert not (tmp_path / "t").exists()
