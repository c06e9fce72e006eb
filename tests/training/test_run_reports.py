"""What training prints: evaluations, the end, within 80 columns, and how far a run is."""

import sys
from types import SimpleNamespace

import pytest

from attendo.cli.reporting import say
from attendo.training.checkpoints import Progress
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Evaluation, Report, evaluation_lines, more_time, report_lines, standing


def test_what_is_said_fits_80_columns_of_a_terminal(monkeypatch, capsys):
    long = f"tickets.csv: 3,600 rows read, {', '.join(f'{n} no target: line {n}' for n in range(6))}"
    typed = f"To resume: attendo resume {'run' * 30}"
    say(long)
    assert capsys.readouterr().err == f"{long}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    say(long)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) < 80 and " ".join(line.strip() for line in lines) == long
    say(typed)
    assert capsys.readouterr().err == typed.replace(": ", ":\n    ") + "\n"
    say(f"try it: attendo classify {'分類' * 30} 'your text'")
    assert f"attendo classify {'分類' * 30} 'your text'\n" in capsys.readouterr().err


def test_an_evaluation_fits_80_columns():
    measures = {"loss": 12.345, "accuracy": 0.5, "macro_f1": 0.5, "ece": 0.5, "perplexity": 1e5}
    report = Report("evaluation", Progress(), evaluation=Evaluation(measures, "loss"), is_best=True)
    lines = evaluation_lines(report)
    assert len(lines) == 2 and max(map(len, lines)) <= 80
    words = "loss 12.345  perplexity 100000.00  accuracy 50.0%  macro-F1 50.0%  calibration error 50.0%"
    assert "  ".join(line.strip() for line in lines) == f"step 0: {words}  best loss so far"
    by_f1 = Report("evaluation", Progress(), evaluation=Evaluation(measures, "macro_f1"), is_best=True)
    assert evaluation_lines(by_f1)[-1].endswith("best macro-F1 so far")


def test_the_end_says_what_was_kept():
    measures = {"loss": 0.6, "accuracy": 0.73, "perplexity": 1.822, "step": 600}
    for deciding, said in (
        ("accuracy", "accuracy 73.0%"),
        ("loss", "loss 0.600, perplexity 1.82, accuracy 73.0%"),
    ):
        found = Evaluation(measures, deciding)
        report = Report("end", Progress(best_step=600, step=900), evaluation=found, note="time budget used")
        assert report_lines(report)[1:] == [f"kept: step 600, {said}"]
    assert len(report_lines(Report("end", Progress(), note="time budget used"))) == 1


def test_the_end_says_what_the_parts_of_a_classifier_reach():
    measures = {"loss": 0.4, "accuracy": 0.83, "accuracy_ngrams": 0.82, "accuracy_encoder": 0.8}
    for share, epoch, advice in ((0.4, 0, None), (0.05, 0, "give it more time"), (0.05, 3, "give more rows")):
        found = Evaluation({**measures, "share": share}, "loss")
        said = report_lines(Report("end", Progress(epoch=epoch), evaluation=found))[1:]
        assert all(len(line) <= 100 for line in said)
        assert said[0] == "kept: step 0, loss 0.400, accuracy 83.0%"
        assert said[1].startswith("accuracy of the n-grams alone 82.0%, of the encoder alone 80.0%;")
        assert len(said) == (2 if advice is None else 4)
        assert advice is None or (said[2].endswith("the n-grams decide nearly alone:") and advice in said[3])


def test_each_evaluation_shows_another_text_and_its_label():
    texts = [("late", "mail", "mail"), ("wrong", "bill", "mail")]
    shown = [["      late", "    → mail (right)"], ["      wrong", "    → mail", "    ≠ bill"]]
    for step, lines in ((20, shown[0]), (41, shown[1])):
        for measures, wanted in (({"macro_f1": 0.5}, lines), ({"chrf": 50.0}, ["      late", "    → mail"])):
            found = Evaluation(measures, next(iter(measures)), texts)
            report = Report("evaluation", Progress(step=step), evaluation=found)
            assert evaluation_lines(report)[1:] == wanted


@pytest.mark.parametrize(
    ("budget", "stands", "more"),
    [
        ({"steps": 1989}, "172 of 1,989 steps", ""),
        ({"epochs": 2.5}, "172 of 250 steps", ""),
        ({"minutes": 30}, "172 steps, 415 of 1,800 seconds used", ", or `minutes` 60 in total"),
        ({"cpu_minutes": 0.5}, "172 steps, 31 of 30 CPU-seconds used", ", or `cpu_minutes` 1 in total"),
    ],
)
def test_the_words_are_of_the_budget_that_a_run_has(budget, stands, more):
    task = SimpleNamespace(batches=lambda seed, epoch, start: range(100))
    progress = Progress(step=172, cpu_seconds=31.2, wall_seconds=415.4)
    run = SimpleNamespace(task=task, progress=progress, training=TrainingConfig(**budget))
    assert (standing(run), more_time(run)) == (stands, more)
    assert progress == Progress(step=172, cpu_seconds=31.2, wall_seconds=415.4)
