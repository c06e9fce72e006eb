"""A part of a test in a fork of this process, which may be killed there; nothing has to be imported again."""

import gc
import os
import random
import signal
import sys
import time
import warnings


def begun_child(action):
    """Begins it in a fork of this process, whose exit code is what it returns; gives the number of the process."""
    state = random.getstate()  # which Python draws anew in a fork
    with warnings.catch_warnings():
        # Python 3.12 and JAX warn of threads, which do no work now
        for kind in (DeprecationWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)
        pid = os.fork()
    if pid == 0:
        gc.freeze()  # what was there before is not looked through for garbage, and its memory stays shared
        try:
            random.setstate(state)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
            os._exit(action())
        finally:
            os._exit(99)
    return pid


def in_child(action):
    """Runs it in a fork of this process; gives the wait status."""
    return os.waitpid(begun_child(action), 0)[1]


def dying(action, at, calls):
    """The action, ended by SIGKILL before its `at`-th call of these functions of os; a part of a write gets through."""
    left, write = at, os.write

    def counted(call):
        def wrapper(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                if call is write:
                    write(arguments[0], bytes(arguments[1])[:3])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for name in calls:
        setattr(os, name, counted(getattr(os, name)))
    action()
    return 0


def signalled(pid, number, after, patience=120.0):
    """Sends a signal to a child once it has used so much of the processor's time, in seconds.

    Gives its wait status, and the seconds of the processor's time and of the day that it took to end. One that does
    not end in so many seconds is killed.
    """
    sent = None
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            cpu = used.ru_utime + used.ru_stime
            return status, *((0.0, 0.0) if sent is None else (cpu - sent[0], time.monotonic() - sent[1]))
        cpu = time.clock_gettime((~pid << 3) | 2)  # the clock of that process
        if sent is None and cpu >= after:
            os.kill(pid, number)
            sent = cpu, time.monotonic()
        elif sent is not None and time.monotonic() > sent[1] + patience:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.0005)
