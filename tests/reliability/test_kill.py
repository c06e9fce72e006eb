"""Processes killed at any instant: the run goes on each time, and ends as the unbroken one."""

import mmap
import os
import random
import shutil
import signal
import struct
from collections import Counter

import pytest
from cut_runs import finished, log, traces
from failing_calls import at_call, kill
from forked import begun_child, signalled
from tiny_corpus import pairs_file, small_run

from attendo.runs.resume import resumed_run
from attendo.training.checkpoints import newest_checkpoint

EVERY, STEPS = 3, 16
LAST, SAVED, CALLS = range(3)


class Board:
    """Numbers that a process leaves behind, however it ends: its last step, the last one it saved, its calls."""

    def __init__(self):
        self._memory = mmap.mmap(-1, 24)

    def __getitem__(self, place):
        return struct.unpack_from("<q", self._memory, 8 * place)[0]

    def __setitem__(self, place, number):
        struct.pack_into("<q", self._memory, 8 * place, number)


def sitting(folder, run, board, n):
    """Goes on with the run of a folder, or begins it."""
    at_call(n, n, kill, folder, lambda number: board.__setitem__(CALLS, number))
    for report in (run or resumed_run(folder)).reports():
        board[LAST] = report.progress.step
        if report.kind == "checkpoint":
            board[SAVED] = report.progress.step
    return 0


class Killings:
    """Runs that are killed again and again, beside one that is not. lost: steps made in vain, and how often."""

    def __init__(self, folder, seed, **training):
        self.folder, self.rng, self.board = folder, random.Random(seed), Board()
        self.background = training.pop("background", True)
        self.training = {"steps": STEPS, "evaluate_every": 6} | training
        self.file = pairs_file(folder)
        self.kills, self.resumed, self.lost = 0, 0, Counter()
        finished(small_run(folder / "first", self.file, training={"steps": 1}))  # all is loaded and compiled now
        began = os.times()
        self.go_on(folder / "whole", self.new(folder / "whole"), 0, float("inf"))
        now = os.times()
        self.seconds = now.children_user + now.children_system - began.children_user - began.children_system
        self.calls = self.board[CALLS]
        self.wanted = traces(folder / "whole"), log(folder / "whole")

    def new(self, folder):
        """A new run, in the place of one that has no checkpoint yet."""
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint = {"every_steps": EVERY, "keep_last": 2, "background": self.background}
        return small_run(folder, self.file, training=self.training, checkpoint=checkpoint)

    def go_on(self, folder, run, call, cpu_seconds):
        """One sitting; whether it came to the run's end."""
        self.board[LAST] = self.board[SAVED] = 0
        child = begun_child(lambda: sitting(folder, run, self.board, call))
        status, *_ = signalled(child, signal.SIGKILL, cpu_seconds)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed by itself"
        return not os.WIFSIGNALED(status)

    def run(self, n, share=0.7):
        """Kills until so many resumes came of it; each run is brought to its end, and compared."""
        while self.resumed < n:
            folder, at_end, found = self.folder / "run", False, None
            while not at_end:
                call, seconds = 0, float("inf")
                if self.resumed < n:
                    if self.rng.random() < 0.5:
                        call = self.rng.randint(1, int(share * self.calls))
                    else:
                        seconds = self.rng.uniform(0, share * self.seconds)
                run = self.new(folder) if found is None else None
                at_end = self.go_on(folder, run, call, seconds)
                self.resumed += found is not None
                if not at_end:
                    found = self.after_a_kill(folder)
            assert (traces(folder), log(folder)) == self.wanted
            assert not [path for path in folder.rglob(".*") if path.name != ".lock"]
            shutil.rmtree(folder)
        return self

    def after_a_kill(self, folder):
        """The checkpoint to go on from: none is damaged, and not much is lost."""
        self.kills += 1
        found, damaged = newest_checkpoint(folder / "checkpoints")
        assert damaged == []
        step = 0 if found is None else int(found.name.removeprefix("step-"))
        lost = max(0, self.board[LAST] - step)
        self.lost[lost] += 1
        assert step >= self.board[SAVED] - EVERY  # this one or the one before: then it was being written
        assert lost <= EVERY
        return found


@pytest.mark.some(1)
@pytest.mark.parametrize("background", [True, False])
def test_runs_killed_at_any_instant_end_as_the_unbroken_one(tmp_path, background):
    killings = Killings(tmp_path, 6, background=background).run(2)
    assert killings.resumed >= 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("background", "prefetch", "accumulation"), [(True, 0, 1), (True, 2, 1), (False, 0, 1), (False, 2, 2)]
)
def test_a_thousand_kills(tmp_path, background, prefetch, accumulation, record_property):
    killings = Killings(tmp_path, 7, background=background, prefetch=prefetch, accumulation=accumulation).run(250)
    record_property("steps lost", sorted(killings.lost.items()))
    assert killings.resumed >= 250
