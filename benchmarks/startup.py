"""What it costs to begin: `import attendo`, `attendo --help`, the help of each command.

    python benchmarks/startup.py [--rounds 15]

Each is a process of its own, one after the other in each round, its bytecode compiled in a round before that is not
counted. CPU seconds are user and system of the whole process, all threads; `python -c pass` stands beside them, which
each of them includes. The figures are quartiles over the rounds. `tests/test_startup.py` holds which modules are not
imported.
"""

import os
import sys
import time
from pathlib import Path

from turns import shared_options, spread, store
from typer.main import get_command

from attendo.cli import build_app

LIMITS = {"import attendo": 0.3, "attendo --help": 0.5}
"""CPU seconds that the medians have to stay under."""


def timed(arguments):
    """CPU and wall seconds of `python` with these arguments, what it prints thrown away."""
    start = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2)]
    pid = os.posix_spawn(sys.executable, [sys.executable, *arguments], os.environ, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"python {' '.join(arguments)} failed")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start


def begun_things():
    """The arguments of Python for each thing that is begun, by its name."""
    command = str(Path(sys.executable).with_name("attendo"))
    names = get_command(build_app()).commands
    helps = {f"attendo {name} --help": [command, name, "--help"] for name in names}
    return {
        "python -c pass": ["-c", "pass"],
        "import attendo": ["-c", "import attendo"],
        "attendo --version": [command, "--version"],
        "attendo --help": [command, "--help"],
        **helps,
    }


def main():
    """Measures in rounds, and stores the quartiles."""
    options = shared_options(__doc__, rounds=15).parse_args()
    begun = begun_things()
    rounds = [
        {name: timed(arguments) for name, arguments in begun.items()} for _ in range(options.rounds + 1)
    ][1:]
    cpu = {name: spread([found[name][0] for found in rounds]) for name in begun}
    wall = {name: spread([found[name][1] for found in rounds]) for name in begun}
    facts = {
        "rounds": options.rounds,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "limits": LIMITS,
        "kept": {name: cpu[name][1] < limit for name, limit in LIMITS.items()},
        "load": list(os.getloadavg()),
    }
    store("startup", facts, options.out)


if __name__ == "__main__":
    main()
