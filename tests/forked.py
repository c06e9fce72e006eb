"""A part of a test in a fork of this process, which may be killed there; nothing has to be imported again."""

import os
import sys
import warnings


def in_child(action):
    """Runs it in a fork of this process; gives the wait status."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 on forks beside threads; there are none
        pid = os.fork()
    if pid == 0:
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
            os._exit(action())
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]
