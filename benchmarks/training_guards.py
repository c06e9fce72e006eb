"""Cost of guards, checkpoints and the log: attendo's whole training loop compared with bare updates.

    python benchmarks/training_guards.py --train pairs.tsv [--rounds 9]

The benchmark uses one process with one thread, and CPU seconds of all its threads. Blocks of updates of both sides
alternate. One side is a run as `attendo train translation --cpu-minutes 40` sets it up (automatic settings, guards,
hashes, metrics.jsonl), with the display of the command. The other side has only passes, clipping, schedule and
optimizer, on the same batches and a copy of the model. Every other block of the whole loop ends with a checkpoint,
saved in the background. Its cost is the time above a block without a checkpoint, until the last byte is hashed. The
total contains one checkpoint per number of steps in the settings of the run. Evaluations are left out.
"""

import contextlib
import io
import shutil
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from turns import ratios, shared_options, spread, store


def prepared(options, folder):
    """Return the run that `attendo train translation --cpu-minutes 40` would train, and its checkpoint interval."""
    from dataclasses import replace

    from attendo.runs.task_specs import family_of
    from attendo.runs.training_run import new_run

    tables = {"data": {"train": [str(options.train)]}, "training": {"cpu_minutes": 40.0, **options.training}}
    trained = new_run(family_of("translation"), tables, folder, device="cpu")
    run = trained.run
    apart = run.checkpoint.every_steps or run.training.evaluate_every
    # no evaluation runs during the measurement, and every second block ends with a checkpoint
    run.training = replace(run.training, evaluate_every=10**9)
    run.checkpoint = replace(run.checkpoint, every_steps=2 * options.steps_per_round)
    return trained, apart


def settled(now):
    """Return the time of the clock after all threads of the process have finished their work."""
    while True:
        before = now()
        time.sleep(0.05)
        if now() - before < 0.005:
            return now()


def whole_blocks(trained, steps):
    """Yield after each block of this many updates of the whole loop, with all work that belongs to the updates."""
    from attendo.cli.reporting import Screen

    screen, done = Screen(), 0
    for report in trained.reports():
        screen.show(report)
        done += report.kind == "step"
        is_last = report.kind == "checkpoint" or (report.kind == "step" and done % (2 * steps) == steps)
        if is_last:
            yield report.loss


def bare_blocks(trained, steps):
    """Yield after each block of bare updates on the same batches, in the same order."""
    import copy

    import torch

    from attendo.training.acceleration import autocast
    from attendo.training.loop import grouped
    from attendo.training.losses import batch_loss
    from attendo.training.optimizer import Horizon, build_optimizer, learning_rate

    run = trained.run
    config, model = run.training, copy.deepcopy(run.model)
    optimizer, step, epoch = build_optimizer(model, config), 0, 0
    model.train()
    while True:
        for micro_batches in grouped(run.task.batches(config.seed, epoch, 0), config.accumulation):
            n_targets = sum(batch.n_targets for batch in micro_batches)
            for batch in micro_batches:
                with autocast(config.precision, run.device):
                    loss = batch_loss(model, batch, config.label_smoothing, 1.0 / n_targets)
                loss.backward()
            if config.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, model.output_proj.in_features, step, Horizon())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % steps == 0:
                yield float(loss.detach())
        epoch += 1


def timed(block, now):
    """Return the CPU seconds of a block, including the threads that it leaves running."""
    began = settled(now)
    next(block)
    return settled(now) - began


def measured(options, trained):
    """Return the seconds of each block: the loop and bare updates, without a checkpoint and with a checkpoint."""
    now = time.process_time
    whole, bare = (
        whole_blocks(trained, options.steps_per_round),
        bare_blocks(trained, options.steps_per_round),
    )
    found = {"plain": [], "plain_bare": [], "saving": [], "saving_bare": []}
    with contextlib.redirect_stderr(io.StringIO()):
        for number in range(options.rounds + 1):
            for name, block in zip(found, (whole, bare, whole, bare), strict=True):
                seconds = timed(block, now)
                if number:  # the first round is a warm-up
                    found[name].append(seconds)
    whole.close()
    return found


def figures(found, apart, steps):
    """Return the cost of the parts of the whole loop as shares of the time of bare updates.

    >>> found = {"plain": [10.1] * 3, "plain_bare": [10.0] * 3, "saving": [11.1] * 3, "saving_bare": [10.0] * 3}
    >>> result = figures(found, apart=100, steps=10)
    >>> result["guards_and_log_share"], result["seconds_of_a_checkpoint"], result["total_share"]
    (0.01, 1.0, 0.02)
    """
    bare = statistics.median(found["plain_bare"] + found["saving_bare"]) / steps
    share = ratios(found["plain"], found["plain_bare"])
    guards = share[1] - 1
    above = [
        (saving - theirs) - guards * theirs
        for saving, theirs in zip(found["saving"], found["saving_bare"], strict=True)
    ]
    checkpoint = statistics.median(above)
    return {
        "whole_to_bare_quartiles": share,
        "guards_and_log_share": round(guards, 4),
        "bare_seconds_a_step": round(bare, 4),
        "seconds_of_a_checkpoint": round(checkpoint, 3),
        "seconds_of_a_checkpoint_quartiles": spread(above),
        "steps_between_checkpoints": apart,
        "checkpoint_share": round(checkpoint / (apart * bare), 4),
        "total_share": round(guards + checkpoint / (apart * bare), 4),
    }


def main():
    """Parse the options, run the measurements, and print and store the results."""
    parser = shared_options(__doc__, rounds=9)
    parser.add_argument("--train", type=Path, required=True, help="pairs, a tab between the sides")
    parser.add_argument("--steps-per-round", type=int, default=10)
    parser.add_argument("--precision", help="else as attendo chooses")
    options = parser.parse_args()
    options.training = {"precision": options.precision} if options.precision else {}
    import torch

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    try:
        trained, apart = prepared(options, folder / "run")
        config = trained.run.training
        result = {
            "versions": {"torch": version("torch")},
            "corpus": options.train.parent.name,
            "threads": 1,
            "rounds": options.rounds,
            "steps_per_round": options.steps_per_round,
            "parameters": sum(p.numel() for p in trained.run.model.parameters()),
            "training": {name: getattr(config, name) for name in ("batch_tokens", "precision", "products", "prefetch")},
            **figures(measured(options, trained), apart, options.steps_per_round),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    store("training-guards", result, options.out)


if __name__ == "__main__":
    main()
