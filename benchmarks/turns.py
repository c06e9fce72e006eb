"""What all benchmarks share: options, contenders as processes that take turns, ratios, results with their machine."""

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
    """The options of every benchmark. doc: its text; rounds: how many turns unless told, None where it takes none."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, help="file of results; a new one under results/ unless given")
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds)
        made.add_argument("--work", help=argparse.SUPPRESS)
        made.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    return made


def listed(kind=str):
    """The type of an option that is several values with commas between them.

    >>> listed(int)("1,2")
    [1, 2]
    """
    return lambda text: [kind(part) for part in text.split(",")]


def clock(threads, name=None):
    """(its name, the function): CPU seconds of all threads for one thread, seconds on the wall for more."""
    name = name or ("CPU" if threads == 1 else "wall")
    return name, time.process_time if name == "CPU" else time.perf_counter


@contextmanager
def contenders(commands, threads):
    """Starts a process for each command by name; gives the processes and what each says first, by name.

    Idle threads sleep in all of them: attendo's command line sets this for itself, and on a shared machine a peer whose
    idle threads spin, the default, is several times slower.
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
    """What a contender answers to an order, both JSON."""
    worker.stdin.write(json.dumps(order) + "\n")
    worker.stdin.flush()
    return hear(name, worker)


def hear(name, worker):
    """The next line of a contender."""
    if not (line := worker.stdout.readline()):
        raise SystemExit(f"{name} stopped with status {worker.wait()}; its own words are above")
    return json.loads(line)


def tell(facts):
    """One line to the process that compares; libraries that print get stderr."""
    print(json.dumps(facts), file=sys.__stdout__, flush=True)


def orders():
    """The orders that a contender gets, one after the other."""
    return map(json.loads, sys.stdin)


def machine():
    """The processor, its instructions that matter here, and the number of cores."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in found.get("flags", "").split() if flag.startswith(("avx", "amx"))]
    model = found.get("model name", platform.processor())
    return {"processor": model, "flags": sorted(flags), "cores": os.cpu_count()}


def spread(values):
    """Lower quartile, median and upper quartile."""
    return [round(value, 3) for value in statistics.quantiles(values, method="inclusive")]


def ratios(mine, theirs):
    """The quartiles of the ratios, round by round."""
    return spread([a / b for a, b in zip(mine, theirs, strict=True)])


def store(kind, result, out=None):
    """Writes and prints a result with date, commit and machine; none that stands there already is overwritten."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True
    )
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
