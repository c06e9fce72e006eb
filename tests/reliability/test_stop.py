"""SIGTERM and Ctrl-C at any instant: the run is saved and left within seconds, and goes on to the bit."""

import os
import random
import shutil
import signal
import threading
import time

import pytest
from cut_runs import finished, lasting, log, traces
from forked import begun_child, signalled
from tiny_corpus import SMALL, pairs_file, small_run

import attendo
from attendo.cli.reporting import Screen, follow
from attendo.runs.resume import resumed_run
from attendo.runs.settings import joined
from attendo.training.checkpoints import Saver, checkpoints
from attendo.training.run import stopping

SETTINGS = {
    "training": {"steps": 12, "evaluate_every": 4, "accumulation": 3},
    "checkpoint": {"every_steps": 3, "keep_last": 2},
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
WITHIN = 10.0


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run, its file, and the processor's seconds that its training takes."""
    folder = tmp_path_factory.mktemp("unbroken")
    file = pairs_file(folder)
    finished(small_run(folder / "first", file, training={"steps": 1}))  # all is loaded and compiled now
    run, began = small_run(folder / "run", file, **SETTINGS), time.process_time()
    finished(run)
    return folder / "run", file, time.process_time() - began


def reported(run, mark):
    """Follows a run as the commands do; makes a file with the first report, when the signals are heard."""
    show = Screen.show

    def show_and_mark(screen, report):
        show(screen, report)
        mark.touch()

    Screen.show = show_and_mark
    for number in CODES:
        signal.signal(number, signal.SIG_IGN)  # as it is again when the run has ended
    return follow(run)


def stopped(run, number, after, mark, action=reported):
    """Sends the signal so many seconds of the processor's time after the first report; gives the wait status."""
    pid = begun_child(lambda: action(run, mark))
    while not mark.exists():
        assert os.waitpid(pid, os.WNOHANG)[0] == 0, "it ended before its first report"
        time.sleep(0.001)
    mark.unlink()
    status, cpu, _ = signalled(pid, number, time.clock_gettime((~pid << 3) | 2) + after)
    assert cpu < WITHIN
    return status


def check(folder, unbroken, rng, action=reported, most=1.0):
    """A run that is stopped again and again at random instants, until one falls behind its end."""
    whole, file, seconds = unbroken
    run, stops = small_run(folder, file, **SETTINGS), 0
    while True:
        number = rng.choice([*CODES])
        status = stopped(run, number, rng.uniform(0, most * seconds), folder.with_suffix(".mark"), action)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            break
        assert code == CODES[number]
        stops += 1
        run = resumed_run(folder)
        if run.has_ended or stops == 3:
            break
    finished(run if code else resumed_run(folder))
    assert traces(folder) == traces(whole) and lasting(log(folder)) == lasting(log(whole))
    shutil.rmtree(folder)
    return stops


@pytest.mark.parametrize("n", [1, pytest.param(40, marks=pytest.mark.full)])
def test_a_signal_at_any_instant(tmp_path, unbroken, n):
    rng = random.Random(n)
    assert sum(check(tmp_path / "run", unbroken, rng, most=0.5) for _ in range(n)) >= n


def endless_saving(run, mark):
    """The disk never answers."""

    def write(saver, folder, taken):
        mark.touch()
        time.sleep(3600)

    Saver._write = write
    return follow(run)


def test_a_second_signal_ends_the_process_at_once(tmp_path, unbroken):
    run = small_run(tmp_path / "run", unbroken[1], **SETTINGS)
    mark = tmp_path / "mark"
    pid = begun_child(lambda: endless_saving(run, mark))
    while not mark.exists():
        time.sleep(0.001)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.05)
    assert os.waitpid(pid, os.WNOHANG)[0] == 0  # it still tries to save
    status, cpu, _ = signalled(pid, signal.SIGTERM, 0.0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM and cpu < WITHIN


def test_a_stop_before_the_first_step_can_be_resumed(tmp_path, unbroken):
    whole, file, _ = unbroken
    run = small_run(tmp_path / "run", file, **SETTINGS)
    run.stop()
    finished(run)
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["step-0"]
    finished(resumed_run(tmp_path / "run"))
    assert traces(tmp_path / "run") == traces(whole)


@pytest.mark.some(1)
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_training_from_python_saves_before_a_signal_goes_on(tmp_path, unbroken, number, raised):
    whole, file, _ = unbroken
    before, said = [signal.getsignal(each) for each in CODES], []

    def say(line):
        said.append(line)
        if line.startswith("step 4: "):
            signal.raise_signal(number)

    settings = joined(SMALL, SETTINGS)
    with pytest.raises(raised):
        attendo.train(file, tmp_path / "run", settings=settings, say=say)
    assert said[-1] == f"stopped and saved at step 4. To resume: attendo resume {tmp_path / 'run'}"
    assert before == [signal.getsignal(each) for each in CODES]
    resumed_run(tmp_path / "run").to_end(said.append)
    assert said[-2].startswith("done: ") and traces(tmp_path / "run") == traces(whole)


@pytest.fixture
def own_sigint():
    """Python's own handler of Ctrl-C: a process that was begun in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_sigint")
def test_a_second_ctrl_c_leaves_python_alive(tmp_path, unbroken):
    run = small_run(tmp_path / "run", unbroken[1], **SETTINGS)
    with pytest.raises(KeyboardInterrupt), stopping(run.stop, ends_process=False):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)


def test_in_another_thread_no_handler_is_installed(tmp_path, unbroken):
    run, said = small_run(tmp_path / "run", unbroken[1], training={"steps": 1}), []
    thread = threading.Thread(target=run.to_end, args=[said.append])
    thread.start()
    thread.join()
    assert said[-2].startswith("done: ") and said[-1].startswith("kept: ")
