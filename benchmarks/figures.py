"""Measure again the figures that fit into half an hour. Print requirement, result and verdict of each figure.

    make figures FIGURES="--corpora DIR --run RUN [--minilm FOLDER] [--peers DIR] [--llama PYTHON]"
    python benchmarks/figures.py --list
    python benchmarks/figures.py --only training claims/seconds --corpora DIR

The figures are listed in `figures.toml`. If a job requires an option that was not given, the option is printed. The
options are:

--corpora: a folder with enja_small, multi30k_ende, sst2 and tinyshakespeare, each with its train.tsv (.txt) and so on;
--run: the run folder of a translator for multi30k_ende; --minilm: all-MiniLM-L6-v2 in Hugging Face's format;
--peers: a folder with the environments joey (joeynmt) and hf (transformers below 5, accelerate);
--llama: an interpreter with llama-cpp-python, built for this machine, and gguf.

Figures that take longer are listed at the end, with the reason and the stored values. --store saves the run as
results/figures-DATE.json, which `make docs` uses to write the pages.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from figure_list import HERE, LAST, figures_and_jobs
from turns import shared_options, store

SST2 = (
    "--epochs 5 --set training.batch_tokens=1024 --set tokenizer.kind=word --set tokenizer.min_count=2"
    " --set model.positions=alibi --set model.n_encoder_layers=1 --set model.d_model=256 --set model.n_heads=8"
    " --set model.d_ff=512 --set model.dropout=0.4 --set model.norm=layer --set model.activation=gelu"
    " --set model.attention_bias=true --set model.feed_forward_gated=false --set model.feed_forward_bias=true"
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
HOLDS = {"none": "", "short": "NO", "holds": "yes", "aim met": "yes", "aim missed": "yes"}


def run_job(job, places, work):
    """Return the documents that the commands of a job write, and the CPU seconds of all commands.

    Raises an error if a command fails.
    """
    if places["corpora"]:
        places = places | {"lines": sources(places["corpora"], work)}
    places = {name: shlex.quote(str(place)) for name, place in places.items() if place}
    documents, spent = [], 0.0
    for number, command in enumerate(job.commands):
        out = work / f"{number}.json"
        if "peers" in places:
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
    return [*documents, {"all_cpu_seconds": spent}]


def sources(corpora, work):
    """Write a file of sources, one per line, as the clients of the server send them."""
    path = work / "lines.txt"
    rows = (corpora / "multi30k_ende/val.tsv").read_text(encoding="utf-8").splitlines()
    path.write_text("".join(row.partition("\t")[0] + "\n" for row in rows), encoding="utf-8")
    return path


def read(text):
    """Parse the output of a command: one JSON value, one JSON value per line, or plain text.

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
    """Return the jobs to run with their figures, and the reason why each other figure is not run.

    The jobs are chosen in the order of the list, as long as they fit into the time limit.
    """
    asked = [f for f in figures if not options.only or any(is_named(f, name) for name in options.only)]
    running, left, seconds = {}, {}, 0
    for job in jobs.values():
        if not (of_job := [figure for figure in asked if figure.job == job.name]):
            continue
        lacks = [want for want in job.wants if not places.get(want)]
        if not job.commands:
            why = job.why
        elif lacks:
            why = "wants " + ", ".join(lack if lack == "chromium" else f"--{lack}" for lack in lacks)
        elif seconds + job.cpu > 60 * options.cpu_minutes:
            why = f"over {options.cpu_minutes:g} CPU-minutes in all"
        else:
            seconds += job.cpu
            running[job.name] = of_job
            continue
        left |= {figure.name: why for figure in of_job}
    return running, left


def is_named(figure, name):
    """Return whether --only NAME selects a figure: by its name, by the beginning up to a slash, or by its job."""
    return name in (figure.name, figure.group, figure.job)


def row(figure, value):
    """Return the line of the table for a figure."""
    return [figure.name, figure.bar(figure.asked), figure.said(value), HOLDS[figure.verdict(value)]]


def lines(rows, heads):
    """Format a table for a terminal."""
    widths = [max(len(line[i]) for line in [heads, *rows]) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [heads, *rows]]


def measured(running, jobs, places):
    """Run all jobs one after the other. Return values by figure, CPU seconds by job, and failures by job."""
    values, spent, failed = {}, {}, {}
    for name, figures in running.items():
        print(f"{name} (about {jobs[name].cpu} CPU-seconds)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="figures-") as work:
            try:
                documents = run_job(jobs[name], places, Path(work))
            except RuntimeError as error:
                failed[name] = str(error)
                print(error, file=sys.stderr)
                continue
        spent[name] = round(documents[-1]["all_cpu_seconds"])
        for figure in figures:
            if (value := figure.again(documents)) is not None:
                values[figure.name] = value
                print("  ", *row(figure, value), file=sys.stderr, flush=True)
    return values, spent, failed


def told(figures, values, spent, failed, left):
    """Return the table, the figures that were not run with their reasons, the time, and the figures that fell short."""
    rows = [row(figure, values[figure.name]) for figure in figures if figure.name in values]
    text = lines(rows, ["figure", "asked", "measured now", "holds"])
    for figure in figures:
        if figure.name in left:
            stored = figure.measured()
            before = "" if stored is None else f"; stored: {figure.said(stored)}"
            text.append(f"not run: {figure.name}: {left[figure.name]}{before}")
    text += [f"failed: {name}" for name in failed]
    short = short_of(figures, values)
    end = f"{len(short)} fall short: {', '.join(short)}" if short else "all hold"
    return "\n".join([*text, f"{sum(spent.values()) / 60:.1f} CPU-minutes, {len(values)} figures, {end}"])


def short_of(figures, values):
    """Return the names of the figures that do not reach their requirement."""
    return [f.name for f in figures if f.name in values and f.verdict(values[f.name]) == "short"]


def kept(options, figures, values, spent, failed, left):
    """Store the results of the run in benchmarks/results."""
    verdicts = {figure.name: figure.verdict(values[figure.name]) for figure in figures if figure.name in values}
    found = {name: {"value": values[name], "verdict": verdict} for name, verdict in verdicts.items()}
    facts = {"figures_run": len(values), "cpu_seconds": sum(spent.values()), "cpu_seconds_of_jobs": spent}
    store(LAST, facts | {"figures": found, "left": left, "failed": sorted(failed)}, options.out)


def read_options():
    """Parse the command line. Return the options, and the paths that commands name in braces."""
    made = shared_options(__doc__)
    for name in ("corpora", "run", "minilm", "peers"):
        made.add_argument(f"--{name}", type=lambda text: Path(text).resolve())
    made.add_argument("--llama", type=lambda text: Path(text).absolute())  # may be a link: not resolved
    made.add_argument("--only", nargs="+", metavar="NAME", help="figures, their groups or jobs")
    made.add_argument("--list", action="store_true", help="only say what would be run")
    made.add_argument("--store", action="store_true", help="as a result under results/, or as --out says")
    made.add_argument("--cpu-minutes", type=float, default=30, help="leave out what would go over it")
    options = made.parse_args()
    places = {name: getattr(options, name) for name in ("corpora", "run", "minilm", "peers", "llama")}
    places["chromium"] = next(filter(None, map(shutil.which, CHROMIUM)), None)
    return options, places | {"python": sys.executable, "attendo": Path(sys.executable).with_name("attendo")}


def main():
    """Run the jobs, and print and store the results. Return 1 if a figure misses its requirement or a job fails."""
    options, places = read_options()
    figures, jobs = figures_and_jobs()
    running, left = chosen(figures, jobs, options, places)
    if options.list:
        for name, of_job in running.items():
            print(f"{name:<18} {jobs[name].cpu:>4} CPU-s  {', '.join(figure.name for figure in of_job)}")
        print(f"{sum(jobs[name].cpu for name in running):>23} in all")
        print("\n".join(f"not run: {name}: {why}" for name, why in left.items()))
        return 0
    values, spent, failed = measured(running, jobs, places)
    for figure in (figure for name in spent for figure in running[name] if figure.name not in values):
        left[figure.name] = "not among what its command measures here"
    if options.store or options.out:
        kept(options, figures, values, spent, failed, left)
    print(told(figures, values, spent, failed, left))
    return 1 if failed or short_of(figures, values) else 0


if __name__ == "__main__":
    sys.exit(main())
