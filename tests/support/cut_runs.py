"""Runs that are cut and go on, and what must then be as if nothing had happened."""

import hashlib
import json

from safetensors import safe_open

from attendo.files import manifest_files
from attendo.training.checkpoints import CLOCK, checkpoints

TIMES = {"cpu_seconds", "wall_seconds"}


class Killed(BaseException):
    """Ends a run in the middle of anything; nothing in attendo catches it."""


def finished(run):
    """The run, trained to its end."""
    for _ in run.reports():
        pass
    return run


def killed_at(run, n):
    """Trains, and is torn out before its n-th batch from now on; whether it came to that."""

    def kill():
        raise Killed

    return _in_batch(run, n, kill)


def stopped_at(run, n):
    """Trains, and is asked to stop before its n-th batch from now on; whether it came to that."""
    return _in_batch(run, n, run.stop)


def _in_batch(run, n, act):
    """Acts just before the loss of the n-th batch is computed; those that are only tried count too."""
    executor, loss, left = run.run.executor, run.run.executor.loss, [n]

    def watched(*arguments):
        left[0] -= 1
        if left[0] == 0:
            act()
        return loss(*arguments)

    executor.loss = watched
    try:
        finished(run)
    except Killed:
        pass
    finally:
        executor.loss = loss
    return left[0] <= 0


def log(folder):
    """The lines of metrics.jsonl, without the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def lasting(lines):
    """The lines without checkpoints: a stop makes one out of turn."""
    return [line for line in lines if line["kind"] != "checkpoint"]


def state(checkpoint):
    """The hashes of all that a checkpoint holds but the clock: equal for runs that are equal to the bit."""
    return {name: entry for name, entry in manifest_files(checkpoint).items() if name != CLOCK}


def traces(folder):
    """All that a run has left but for its log and its date: its last state and best weights in hashes, its card."""
    last = checkpoints(folder / "checkpoints")[-1]
    return {
        "last": last.name,
        "files": state(last),
        "progress": json.loads((last / "progress.json").read_text()),
        "best": _contents(folder / "model.safetensors"),
        "card": json.loads((folder / "card.json").read_text()) | {"started": ""},
    }


def _contents(path):
    """A hash of each tensor, and the header, whose keys come in any order."""
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        return file.metadata(), {name: hashlib.sha256(t.tobytes()).hexdigest() for name, t in tensors.items()}
