"""CPU time of attendo's commands: importing attendo, printing help texts, and `doctor` on a million pairs.

    python benchmarks/commands.py [--rounds 9] [--pairs 1000000]

Each command is a separate process. The result is the median over the rounds of the CPU seconds of all threads, in user
and system mode. The pairs have ten random words on each side and are equal in every run. `doctor` reads the pairs once.
"""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from turns import shared_options, spread, store

ATTENDO = Path(sys.executable).with_name("attendo")
STARTS = {
    "import attendo": [sys.executable, "-c", "import attendo"],
    "attendo --help": [ATTENDO, "--help"],
    "python alone": [sys.executable, "-c", "pass"],
}


def cost(command):
    """Return the CPU seconds and the peak memory in MB of a process. Its exit status must be 0 or 1 (findings)."""
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    words = child.stderr.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} stopped with status {child.returncode}: {words}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def write_pairs(path, count):
    """Write random pairs of ten words per side, from 5,000 words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(5000)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(f"{' '.join(rng.choices(words, k=10))}\t{' '.join(rng.choices(words, k=10))}\n")


def main():
    """Measure all commands, and print and store the results."""
    made = shared_options(__doc__, rounds=9)
    made.add_argument("--pairs", type=int, default=1_000_000)
    options = made.parse_args()
    seconds = {name: [] for name in STARTS}
    for _ in range(options.rounds):
        for name, command in STARTS.items():
            seconds[name].append(cost(command)[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pairs.tsv")
        write_pairs(path, options.pairs)
        spent, most = cost([ATTENDO, "doctor", path])
    result = {
        "rounds": options.rounds,
        "cpu_seconds_quartiles": {name: spread(values) for name, values in seconds.items()},
        "doctor": {"pairs": options.pairs, "cpu_seconds": round(spent, 1), "most_mb": round(most)},
    }
    store("commands", result, options.out)


if __name__ == "__main__":
    main()
