"""Calls to the system that fail at a chosen place: in a fork of this process, since they do so from then on."""

import errno
import os
import signal
import sys
from itertools import count

from safetensors import SafetensorError

from attendo.training import distributed

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def kill(kind):
    """The process ends here."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(kind):
    """The disk is full; removing still works."""
    if kind == "save_file":
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    if kind not in ("os.remove", "os.rmdir"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def at_call(first, last, act, folder, note=lambda number: None):
    """From the first to the last of this process's calls that change a file in a folder or bring it to the disk: act.

    Where one is a write, a part of it still gets through. note: is told the number of each call.
    """
    calls = count(1)

    def acts():
        number = next(calls)
        note(number)
        return first <= number <= last

    def watch(event, arguments):
        if event in CHANGES or (event == "open" and arguments[1] not in ("r", "rb", None)):
            place = str(arguments[0])  # without a slash: within a folder that is being removed
            if (place.startswith(str(folder)) or "/" not in place) and acts():
                act(event)

    def watched(call, part):
        def calling(*arguments):
            if acts():
                part(*arguments)
                act(call.__name__)
            return call(*arguments)

        return calling

    def half_a_file(tensors, path, header):
        save_file(tensors, path, header)
        os.truncate(path, path.stat().st_size // 2)

    write, save_file = os.write, distributed.save_file
    os.write = watched(write, lambda descriptor, data: write(descriptor, bytes(data)[: len(data) // 2]))
    os.fsync = watched(os.fsync, lambda descriptor: None)
    distributed.save_file = watched(save_file, half_a_file)
    sys.addaudithook(watch)
