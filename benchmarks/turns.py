"""Shared parts of all benchmarks: options, compared programs as alternating processes, ratios, and stored results."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent


def shared_options(doc, rounds=None):
    """Return a parser with the options of every benchmark.

    `doc` describes the benchmark. `rounds` is the default number of rounds, or None if there are no rounds.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, help="file of results; a new one under results/ unless given")
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds)
        made.add_argument("--work", help=argparse.SUPPRESS)
        made.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    return made


def listed(kind=str):
    """Return the argparse type of an option with several values separated by commas.

    >>> listed(int)("1,2")
    [1, 2]
    """
    return lambda text: [kind(part) for part in text.split(",")]


def clock(threads, name=None):
    """Return a clock and its name: CPU seconds of all threads with one thread, wall time with more threads."""
    name = name or ("CPU" if threads == 1 else "wall")
    return name, time.process_time if name == "CPU" else time.perf_counter


@contextmanager
def contenders(commands, threads):
    """Start a process for each command by name. Yield the processes, and the first message of each by name.

    Idle threads sleep in all processes. attendo's command line sets this itself. On a shared machine, a peer whose
    idle threads spin (the default) is several times slower.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    workers = {}
    try:
        for name, command in commands.items():
            workers[name] = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        yield workers, {name: hear(name, worker) for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()


def asked(name, worker, order):
    """Send a request to a contender and return its answer, both in JSON."""
    worker.stdin.write(json.dumps(order) + "\n")
    worker.stdin.flush()
    return hear(name, worker)


def hear(name, worker):
    """Return the next message of a contender."""
    if not (line := worker.stdout.readline()):
        raise SystemExit(f"{name} stopped with status {worker.wait()}; its own words are above")
    return json.loads(line)


def tell(facts):
    """Send one message to the comparing process. The output of libraries goes to stderr."""
    print(json.dumps(facts), file=sys.__stdout__, flush=True)


def orders():
    """Return an iterator over the requests that a contender receives."""
    return map(json.loads, sys.stdin)


def machine():
    """Return the CPU model, its relevant instructions, and the number of cores."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in found.get("flags", "").split() if flag.startswith(("avx", "amx"))]
    model = found.get("model name", platform.processor())
    return {"processor": model, "flags": sorted(flags), "cores": os.cpu_count()}


def spread(values):
    """Return the lower quartile, the median and the upper quartile."""
    return [round(value, 3) for value in statistics.quantiles(values, method="inclusive")]


def ratios(mine, theirs):
    """Return the quartiles of the ratios of corresponding rounds."""
    return spread([a / b for a, b in zip(mine, theirs, strict=True)])


def store(kind, result, out=None):
    """Write and print a result with date, commit and machine. Existing results are not overwritten."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    whole = {
        "date": str(date.today()),
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "python": platform.python_version(),
    } | result
    path = HERE / "results" / f"{kind}-{date.today()}.json"
    free = [path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, 100))]
    out = out or next(name for name in free if not name.exists())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(whole, indent=1))
