"""Quality at equal time: BLEU on a test set after some CPU minutes of training, with one tool and one thread.

    python benchmarks/quality.py --tool attendo --train train.tsv --valid val.tsv --test test.tsv --out DIR
    joey/bin/python benchmarks/quality.py --tool joeynmt ...        (pip install joeynmt importlib_metadata)
    peers/bin/python benchmarks/quality.py --tool transformers ...  (pip install "transformers<5" accelerate sacrebleu)

Each run is planned for the last value of --cpu-minutes. It is scored at each of these values, with the weights that a
user would receive at that time: attendo's best weights so far, and the current weights of the peers. CPU time counts
from the start of the process and includes everything except the scoring. To resume a run that was stopped, run the same
command again. BLEU is computed by sacreBLEU on raw text with case. Beams and penalties are the defaults of each tool
(attendo's card, JoeyNMT 5, Hugging Face 4). quality_peers.py describes the settings of the peers and their source.
`--settings small` uses 3+3 layers and d 256 for the peers, which is better for such a short time than their documented
settings.
"""

import json
import shutil
import time
from importlib.metadata import version
from pathlib import Path

from turns import listed, shared_options, store

TOOLS = ("attendo", "joeynmt", "transformers")


def pairs_of(path):
    """Return the tab-separated rows of a file."""
    return [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]


def score(found, wanted):
    """Return BLEU and chrF with their signatures."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(), CHRF()
    return {
        "bleu": round(bleu.corpus_score(found, [wanted]).score, 2),
        "chrf": round(chrf.corpus_score(found, [wanted]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def train_attendo(files, plan, out):
    """Train with attendo, as `attendo train translation --cpu-minutes` does. Copy the run folder at the marks."""
    import torch

    import attendo

    torch.set_num_threads(1)
    last = out / f"at-{plan['marks'][-1]:g}"
    if not last.exists():
        for report in attendo_run(files, plan, out / "run").reports():
            spent = report.progress.cpu_seconds
            for mark in plan["marks"]:
                over = spent >= 60 * mark if mark != plan["marks"][-1] else report.kind == "end"
                if over and not (out / f"at-{mark:g}").exists():
                    facts = {
                        "steps": report.progress.step,
                        "epochs": report.progress.epoch,
                        "cpu_seconds": spent,
                    }
                    keep_copy(out / "run", out / f"at-{mark:g}", facts)

    def translations(mark):
        folder = out / f"at-{mark:g}"
        found = attendo.load(folder).translate([pair[0] for pair in pairs_of(files["test"])], segment="none")
        return [one.text for one in found], json.loads((folder / "facts.json").read_text())

    config = (last / "config.toml").read_text()
    for path in files.values():  # results contain no paths of this machine
        config = config.replace(str(path.resolve()), path.name)
    return translations, {"config": config, "card": json.loads((last / "card.json").read_text())}


def attendo_run(files, plan, folder):
    """Return the run of attendo. A run that has begun is resumed from its newest checkpoint."""
    from attendo.runs.resume import resumed_run
    from attendo.runs.task_specs import family_of
    from attendo.runs.training_run import new_run
    from attendo.training.run import Clock

    clock = Clock.of_process()
    if any((folder / "checkpoints").glob("step-*")):
        return resumed_run(folder, say=print, device="cpu", clock=clock)
    shutil.rmtree(folder, ignore_errors=True)
    data = {"train": [str(files["train"])], "valid": [str(files["valid"])]}
    tables = {"data": data, "training": {"cpu_minutes": plan["marks"][-1], "seed": plan["seed"]}}
    return new_run(family_of("translation"), tables, folder, say=print, device="cpu", clock=clock)


def keep_copy(run, folder, facts):
    """Copy a run folder without its checkpoints, and add a file with facts, atomically."""
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(run, part, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
    (part / "facts.json").write_text(json.dumps(facts))
    part.rename(folder)


def trained(options, plan, files):
    """Train to the last mark (a number of CPU minutes). Return a function from a mark to translations and facts."""
    if options.tool == "attendo":
        return train_attendo(files, plan, options.out_folder)
    import quality_peers

    rows = {name: pairs_of(path) for name, path in files.items()}
    train = {"joeynmt": quality_peers.train_joeynmt, "transformers": quality_peers.train_transformers}
    return train[options.tool](rows, plan, options.out_folder)


def versions(tool):
    """Return the versions of a tool and its libraries."""
    if tool == "attendo":
        return {"torch": version("torch")}
    import quality_peers

    return quality_peers.versions(tool)


def read_options():
    """Parse the command line. The plan of a run that has begun does not change."""
    parser = shared_options(__doc__)
    parser.add_argument("--tool", choices=TOOLS, required=True)
    parser.add_argument("--settings", choices=("documented", "small"), default="documented")
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="pairs, a tab between the sides")
    parser.add_argument("--cpu-minutes", type=listed(float), default=[20.0, 40.0], metavar="A,B")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path, help="file of results; a new one under results/ unless given")
    options = parser.parse_args()
    options.out_folder = options.out
    if options.out is None:
        parser.error("give --out, a folder for the run")
    plan = {"marks": sorted(options.cpu_minutes), "seed": options.seed, "settings": options.settings}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "plan.json"
    if path.exists():
        kept = json.loads(path.read_text())
        if any(kept[key] != plan[key] for key in plan):
            parser.error(f"{path} has another plan, {kept}; give another --out")
        plan = kept
    path.write_text(json.dumps(plan))
    return options, plan


def main():
    """Train, score, and store the results."""
    options, plan = read_options()
    files = {"train": options.train, "valid": options.valid, "test": options.test}
    translations, facts = trained(options, plan, files)
    wanted = [pair[1] for pair in pairs_of(options.test)]
    marks = []
    for mark in plan["marks"]:
        began = time.process_time()
        found, then = translations(mark)
        (options.out / f"found-{mark:g}.txt").write_text("".join(line + "\n" for line in found), encoding="utf-8")
        seconds = round(time.process_time() - began, 1)
        marks.append({"cpu_minutes": mark, **then, **score(found, wanted), "scoring_cpu_seconds": seconds})
    result = {
        "tool": options.tool,
        "settings": "its own choice" if options.tool == "attendo" else options.settings,
        "versions": versions(options.tool),
        "threads": 1,
        "seed": plan["seed"],
        "marks": marks,
        **facts,
    }
    store(f"quality-{options.tool}", result, options.result)


if __name__ == "__main__":
    main()
