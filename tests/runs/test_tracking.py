"""The log of a run: what it says, and that no cut can be seen in it."""

import copy
import json
import sys
import types
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.errors import AttendoError
from attendo.runs.tracking import LOG_EVERY, MetricsLog, last_entry, read_log
from attendo.training.checkpoints import Progress
from attendo.training.optimizer import Horizon
from attendo.training.run import Evaluation, Report


def reports(n_steps, every, skipped=(), stops=()):
    """A run's reports, each with the progress at that time: updates, evaluations with checkpoints, an end.

    skipped: updates before which another is left out; stops: where a signal makes a checkpoint out of turn.
    """
    progress = Progress()
    for step in range(1, n_steps + 1):
        if step in skipped:
            progress.wall_seconds += 0.25
            yield Report("skipped", progress, loss=float("nan"), note="not finite in decoder")
        progress.step, progress.tokens = step, progress.tokens + 100 + step % 7
        progress.wall_seconds, progress.cpu_seconds = step * 0.5, step * 0.3
        progress.chain = f"{step:04x}"
        yield Report("step", progress, loss=1 / step, rate=step * 1e-4, gradient_norm=step % 3 + 0.1)
        if step % every == 0:
            measured = Evaluation({"loss": 2 / step}, "loss")
            yield Report("evaluation", progress, evaluation=measured, is_best=step == every)
            yield Report("checkpoint", progress, note=f"step-{step}")
        elif step in stops:
            yield Report("checkpoint", progress, note=f"step-{step}")
    progress.horizon = Horizon(n_steps // 2, n_steps)
    yield Report("end", progress, note="all steps done")


def lines(folder):
    return (folder / "metrics.jsonl").read_bytes()


class Sitting:
    """A process that trains: from a checkpoint, or from the start; it dies after so many reports."""

    def __init__(self, folder, tensorboard=False):
        folder.mkdir(exist_ok=True)
        self.folder, self.saved = folder, {}
        self.log = MetricsLog(folder, tensorboard)

    def run(self, events, begin=None, until=None):
        """events: as `reports` gives them, with progress copied; begin: of the checkpoint it goes on from."""
        notes, start = {}, 0
        if begin is not None:
            start, progress = self.saved[begin]
            notes = copy.deepcopy(progress.notes)
            self.log = MetricsLog(self.folder)
            self.log.resume(copy.deepcopy(progress), f"step-{begin}")
        else:
            self.log.clear()
        for number, event in enumerate(events[start:until], start):
            report = replace(event, progress=replace(event.progress, notes=notes))
            if report.kind == "checkpoint":  # first it is saved, then reported
                self.saved[report.progress.step] = (number + 1, copy.deepcopy(report.progress))
                if number + 1 == until:
                    break  # killed in between
            self.log.add(report)
        self.log.close()


def events(*arguments, **options):
    return [replace(r, progress=copy.deepcopy(r.progress)) for r in reports(*arguments, **options)]


def entries(folder):
    return [json.loads(line) for line in lines(folder).splitlines()]


def test_what_the_lines_say(tmp_path):
    Sitting(tmp_path).run(events(45, 30, skipped=(33,)))
    found = entries(tmp_path)
    kinds = ["step", "evaluation", "checkpoint", "skipped", "step", "step", "end"]
    assert [line["kind"] for line in found] == kinds
    assert [line["step"] for line in found] == [20, 30, 30, 32, 40, 45, 45]  # the mean at 45 is of fewer
    assert found[0]["loss"] == pytest.approx(sum(1 / n for n in range(1, 21)) / 20)
    assert found[0].keys() == {
        "kind", "step", "epoch", "loss", "rate", "gradient_norm", "tokens", "cpu_seconds", "wall_seconds"
    }  # fmt: skip
    assert found[5]["loss"] == pytest.approx(sum(1 / n for n in range(41, 46)) / 5)
    assert (found[1]["loss"], found[1]["best"]) == (2 / 30, True)
    assert (found[2]["chain"], found[2]["note"]) == ("001e", "step-30")
    assert found[3]["note"] == "not finite in decoder"
    assert (found[6]["decay_start"], found[6]["end"]) == (22, 45)


@settings(max_examples=30)
@given(
    every=st.integers(3, 30),
    skipped=st.sets(st.integers(1, 50), max_size=3),
    cuts=st.lists(st.tuples(st.integers(1, 90), st.booleans(), st.integers(0, 60)), min_size=1, max_size=3),
)
def test_no_cut_can_be_seen(tmp_path_factory, every, skipped, cuts):
    """Killed anywhere, half-way through a line too, resumed from the last checkpoint or the one before."""
    folder = tmp_path_factory.mktemp("runs")
    run = events(50, every, skipped=skipped)
    Sitting(folder / "whole").run(run)
    sitting, begin = Sitting(folder / "cut"), None
    for until, older, n_bytes in cuts:
        sitting.run(run, begin, min(until, len(run) - 1))
        if sitting.log.path.exists():  # the line that was being written
            with sitting.log.path.open("ab") as file:
                file.write(b'{"kind": "step", "step": 9, "loss": 1.5, "rate": 0.1'[:n_bytes])
        known = sorted(sitting.saved)
        begin = (known[-2] if older and len(known) > 1 else known[-1]) if known else None
    sitting.run(run, begin)
    assert lines(folder / "cut") == lines(folder / "whole")


def test_a_checkpoint_out_of_turn_leaves_all_other_lines_as_they_are(tmp_path):
    """A signal saves at step 33, where the unbroken run does not."""
    unbroken, stopped = Sitting(tmp_path / "whole"), events(70, 25, stops=(33,))
    unbroken.run(events(70, 25))
    sitting = Sitting(tmp_path / "cut")
    at = next(n for n, r in enumerate(stopped) if r.kind == "checkpoint" and r.progress.step == 33)
    sitting.run(stopped, until=at + 2)
    sitting.run(stopped, begin=33)
    found = [line for line in entries(tmp_path / "cut") if (line["kind"], line["step"]) != ("checkpoint", 33)]
    assert found == entries(tmp_path / "whole")
    assert sitting.saved[50][1].notes == unbroken.saved[50][1].notes  # nor does a checkpoint tell


def test_a_run_prolonged_has_no_end_in_its_middle(tmp_path):
    sitting = Sitting(tmp_path)
    sitting.run(events(30, 15))
    assert entries(tmp_path)[-1]["kind"] == "end"
    sitting.run(events(60, 15), begin=30)
    Sitting(tmp_path / "whole").run(events(60, 15))
    assert [line for line in entries(tmp_path) if line["kind"] != "end"] == [
        line for line in entries(tmp_path / "whole") if line["kind"] != "end"
    ]
    assert [line["kind"] for line in entries(tmp_path)].count("end") == 1


def test_an_ended_run_started_again_ends_once(tmp_path):
    run = events(30, 15)
    Sitting(tmp_path).run(run)
    before = lines(tmp_path)
    log = MetricsLog(tmp_path)
    log.add(run[-1])
    log.close()
    assert lines(tmp_path) == before


def test_checkpoints_of_before_the_state_was_kept(tmp_path):
    run = events(50, 10)
    Sitting(tmp_path).run(run)
    log = MetricsLog(tmp_path)
    log.resume(Progress(step=30), "step-30")
    assert [line["step"] for line in entries(tmp_path)] == [10, 10, 20, 20, 20, 30, 30]


def test_what_never_came_to_a_checkpoint_is_begun_anew(tmp_path):
    sitting = Sitting(tmp_path)
    sitting.run(events(70, 60), until=45)
    sitting.run(events(25, 60))
    assert [line["step"] for line in entries(tmp_path)] == [20, 25, 25]


def test_numbers_that_json_does_not_know_are_null(tmp_path):
    log = MetricsLog(tmp_path)
    measures = Evaluation({"loss": float("nan"), "perplexity": float("inf")}, "loss")
    log.add(Report("evaluation", Progress(step=3), evaluation=measures))
    log.close()
    line = json.loads(lines(tmp_path), parse_constant=lambda name: pytest.fail(name))
    assert (line["loss"], line["perplexity"]) == (None, None)


def test_each_line_is_there_at_once_and_half_a_line_is_cut_off(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind": "advice", "step": 1, "note": "a"}\n{"kind": "st')
    log = MetricsLog(tmp_path)
    log.add(Report("end", Progress(step=5), note="done"))
    assert [line["step"] for line in entries(tmp_path)] == [1, 5]
    log.close()


# ---- reading it


def test_reading_a_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(AttendoError, match="no such file"):
        read_log(path)
    path.write_bytes(b'{"kind": "step", "step": 20}\n{"kind": "st')
    found, word = read_log(path)
    assert found == [{"kind": "step", "step": 20}]
    assert word == f"{path}:2: incomplete last line, skipped"
    no_number = b'{"kind": "step", "step": true}\n'
    for wrong in (b'{"kind": "st\n', b"[1]\n", b'{"step": 2}\n', no_number, b"\xff\n", b"\n"):
        path.write_bytes(b'{"kind": "step", "step": 20}\n' + wrong + b'{"kind": "step", "step": 40}\n')
        with pytest.raises(AttendoError, match=r"metrics.jsonl:2: damaged"):
            read_log(path)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 9000), max_size=4), torn=st.booleans())
def test_the_last_entry(tmp_path_factory, sizes, torn):
    folder = tmp_path_factory.mktemp("log")
    texts = [json.dumps({"kind": "advice", "step": n, "note": "x" * size}) for n, size in enumerate(sizes)]
    (folder / "log").write_text("".join(f"{text}\n" for text in texts) + '{"kind": "advice", "st' * torn)
    assert last_entry(folder / "log") == (json.loads(texts[-1]) if texts else {})
    assert last_entry(folder / "none") == {}


# ---- TensorBoard


class FakeWriter:
    made: ClassVar[list] = []

    def __init__(self, folder, purge_step=None):
        self.folder, self.purge_step, self.points, self.texts, self.closed = folder, purge_step, [], [], False
        FakeWriter.made.append(self)

    def add_scalar(self, tag, value, step):
        self.points.append((tag, value, step))

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    FakeWriter.made = []
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return FakeWriter.made


def test_curves_in_tensorboard(tmp_path, writers):
    run = events(45, 30, skipped=(33,))
    Sitting(tmp_path, tensorboard=True).run(run)
    (writer,) = writers
    assert writer.folder == str(tmp_path / "tensorboard") and writer.closed
    tags = {tag for tag, _, _ in writer.points}
    curves = ("loss", "rate", "gradient_norm", "tokens_per_second")
    assert tags == {*(f"training/{name}" for name in curves), "validation/loss"}
    logged = [(line["loss"], line["step"]) for line in entries(tmp_path) if line["kind"] == "step"]
    assert [point[1:] for point in writer.points if point[0] == "training/loss"] == logged
    (speed, step) = next(point[1:] for point in writer.points if point[0].endswith("second"))
    tokens = {line["step"]: line["tokens"] for line in entries(tmp_path) if "tokens" in line}
    assert (step, speed) == (40, (tokens[40] - tokens[20]) / 10)
    assert ("skipped", "not finite in decoder", 32) in writer.texts


def test_what_is_done_again_is_not_shown_twice(tmp_path, writers):
    log = MetricsLog(tmp_path, tensorboard=True)
    log.resume(Progress(step=30), "step-30")
    log.add(Report("evaluation", Progress(step=40), evaluation=Evaluation({"loss": 1.0}, "loss")))
    (writer,) = writers
    assert writer.purge_step == 31
    assert writer.points == [("validation/loss", 1.0, 40)]


def test_tensorboard_missing_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(AttendoError, match=r'pip install ".*\[tensorboard\]"'):
        MetricsLog(tmp_path, tensorboard=True)
    assert MetricsLog(tmp_path).path == tmp_path / "metrics.jsonl"


def test_tensorboard_reads_what_is_written(tmp_path):
    pytest.importorskip("tensorboard", reason="in no lock; run where attendo[tensorboard] is installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sitting = Sitting(tmp_path, tensorboard=True)
    sitting.run(events(100, 30), until=95)
    log = MetricsLog(tmp_path, tensorboard=True)
    log.resume(sitting.saved[60][1], "step-60")
    for report in events(100, 30)[sitting.saved[60][0] :]:
        log.add(report)
    log.close()
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown = [(event.step, event.value) for event in read.Scalars("training/loss")]
    logged = [(line["step"], pytest.approx(line["loss"])) for line in entries(tmp_path) if line["kind"] == "step"]
    assert shown == logged
    assert LOG_EVERY == 20 and len(shown) == 5
