"""Runs again the figures that fit in half an hour, and prints for each what is asked, what came out, whether it holds.

    make figures FIGURES="--corpora DIR --run RUN [--minilm FOLDER] [--peers DIR]"
    python benchmarks/figures.py --list
    python benchmarks/figures.py --only training claims/seconds --corpora DIR

The list is `figures.toml`. What a job wants and was not given is said, not left out in silence:
--corpora: a folder with enja_small, multi30k_ende, sst2 and tinyshakespeare, each with its train.tsv (.txt) and so on;
--run: a run folder of a translator of multi30k_ende; --minilm: all-MiniLM-L6-v2 as Hugging Face has it;
--peers: a folder with the environments joey (joeynmt) and hf (transformers below 5, accelerate).
Figures that take longer are listed at the end with the reason and what they were when last measured.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure_list import HERE, LAST, figures_and_jobs
from turns import shared_options, store

SST2 = (
    "--epochs 5 --set training.batch_tokens=1024 --set tokenizer.kind=word --set tokenizer.min_count=2"
    " --set model.positions=alibi --set model.n_encoder_layers=1 --set model.d_model=256 --set model.n_heads=8"
    " --set model.d_ff=512 --set model.dropout=0.4"
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
HOLDS = {"none": "", "short": "NO", "holds": "yes", "aim met": "yes", "aim missed": "yes"}


def run_job(job, places, work):
    """The documents that a job's commands leave, with the CPU seconds of all of them; raises if one fails."""
    places = {name: shlex.quote(str(place)) for name, place in places.items() if place}
    documents, spent = [], 0.0
    for number, command in enumerate(job.commands):
        out = work / f"{number}.json"
        if "peers" in places and "{out}" in command:
            command += job.peers
        call = shlex.split(command.format(**places, out=out, work=work, sst2=SST2))
        with (work / "stdout").open("w+") as stdout, (work / "stderr").open("w+") as stderr:
            child = subprocess.Popen(call, stdout=stdout, stderr=stderr, cwd=HERE.parent)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            said, complained = (file.seek(0) or file.read() for file in (stdout, stderr))
        spent += used.ru_utime + used.ru_stime
        if child.returncode:
            raise RuntimeError(f"{' '.join(call)}\nstopped with status {child.returncode}:\n{complained[-2000:]}")
        documents.append(json.loads(out.read_text()) if out.exists() else read(said))
    return [*documents, {"cpu_seconds": spent}]


def read(text):
    """What a command printed: one JSON value, or one a line, or words.

    >>> read('{"a": 1}'), read('1\\n[2]'), read("three words")
    ({'a': 1}, [1, [2]], 'three words')
    """
    for parse in (json.loads, lambda text: [json.loads(line) for line in text.splitlines()]):
        try:
            return parse(text)
        except json.JSONDecodeError:
            continue
    return text


def chosen(figures, jobs, options, places):
    """(the jobs to run with their figures, why each other figure is not run)."""
    left, running, seconds = {}, {}, 0
    for figure in figures:
        job = jobs[figure.job]
        lacks = [want for want in job.wants if not places.get(want)]
        if options.only and not any(is_named(figure, name) for name in options.only):
            continue
        if not job.commands:
            left[figure.name] = job.why
        elif lacks:
            left[figure.name] = "wants " + ", ".join(f"--{lack}" if lack != "chromium" else lack for lack in lacks)
        elif job.name not in running and (seconds + job.cpu) > 60 * options.cpu_minutes:
            left[figure.name] = f"over {options.cpu_minutes:g} CPU-minutes in all"
        else:
            seconds += job.cpu if job.name not in running else 0
            running.setdefault(job.name, []).append(figure)
    return running, left


def is_named(figure, name):
    """Whether --only NAME means a figure: its name, its beginning up to a slash, or its job."""
    return name in (figure.name, figure.name.partition("/")[0], figure.job)


def row(figure, value):
    """A line of the table."""
    return [figure.name, figure.bar(figure.asked), figure.said(value), HOLDS[figure.verdict(value)]]


def lines(rows, heads):
    """A table for a terminal."""
    widths = [max(len(line[i]) for line in [heads, *rows]) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [heads, *rows]]


def measured(running, jobs, places):
    """(value by figure, CPU seconds, what failed) of the jobs, one after the other; each row is printed as it comes."""
    values, spent, failed = {}, 0.0, {}
    for name, figures in running.items():
        print(f"{name} (about {jobs[name].cpu} CPU-seconds)", file=sys.stderr, flush=True)
        work = Path(tempfile.mkdtemp(prefix="figures-"))
        try:
            documents = run_job(jobs[name], places, work)
        except RuntimeError as error:
            failed[name] = str(error)
            print(error, file=sys.stderr)
            continue
        finally:
            shutil.rmtree(work, ignore_errors=True)
        spent += documents[-1]["cpu_seconds"]
        values[name] = round(documents[-1]["cpu_seconds"])
        for figure in figures:
            values[figure.name] = figure.again(documents)
            if values[figure.name] is not None:
                print("  ", *row(figure, values[figure.name]), file=sys.stderr, flush=True)
    return values, spent, failed


def main():
    """Reads the options, runs, prints; 1 if a figure does not hold or a job fails."""
    made = shared_options(__doc__)
    for name in ("corpora", "run", "minilm", "peers"):
        made.add_argument(f"--{name}", type=lambda text: Path(text).resolve())
    made.add_argument("--only", nargs="+", metavar="NAME", help="figures, their groups or jobs")
    made.add_argument("--list", action="store_true", help="only say what would be run")
    made.add_argument("--cpu-minutes", type=float, default=30, help="leave out what would go over it")
    options = made.parse_args()
    figures, jobs = figures_and_jobs()
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    places = {name: getattr(options, name) for name in ("corpora", "run", "minilm", "peers")}
    places |= {"chromium": chromium, "python": sys.executable, "attendo": Path(sys.executable).with_name("attendo")}
    running, left = chosen(figures, jobs, options, places)
    if options.list:
        for name, of_job in running.items():
            print(f"{name:<18} {jobs[name].cpu:>4} CPU-s  {', '.join(figure.name for figure in of_job)}")
        print(f"{sum(jobs[name].cpu for name in running):>23} in all")
        print("\n".join(f"not run: {name}: {why}" for name, why in left.items()))
        return 0
    began = time.monotonic()
    values, spent, failed = measured(running, jobs, places)
    by_name = {figure.name: figure for figure in figures}
    told = {name: value for name, value in values.items() if name in by_name and value is not None}
    rows = [row(by_name[name], value) for name, value in told.items()]
    print("\n".join(lines(rows, ["figure", "asked", "measured now", "holds"])))
    for name in values.keys() - told.keys() - jobs.keys():
        left[name] = "wants --peers"
    for name, why in left.items():
        stored = by_name[name].measured()
        print(f"not run: {name}: {why}" + (f"; stored: {by_name[name].said(stored)}" if stored is not None else ""))
    print(f"{spent / 60:.1f} CPU-minutes, {(time.monotonic() - began) / 60:.1f} on the wall")
    short = [name for name, value in told.items() if by_name[name].verdict(value) == "short"]
    print(f"{len(told)} figures, {len(short)} short: {', '.join(short)}" if short else f"{len(told)} figures hold")
    print("\n".join(f"failed: {name}" for name in failed))
    if options.out:
        found = {name: {"value": value, "verdict": by_name[name].verdict(value)} for name, value in told.items()}
        facts = {"figures_run": len(told), "cpu_seconds": round(spent), "left": left, "failed": sorted(failed)}
        store(LAST, facts | {"figures": found, "cpu_seconds_of_jobs": {n: values[n] for n in running if n in values}}, options.out)
    return 1 if short or failed else 0


if __name__ == "__main__":
    sys.exit(main())
