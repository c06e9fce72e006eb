"""One update of the weights; left out, to the bit, where its numbers are none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from attendo.data.batches import Batch
from attendo.errors import AttendoError
from attendo.own_parts import own_part_at
from attendo.training.checkpoints import checkpoints
from attendo.training.ending import share_done
from attendo.training.finite import first_not_finite, gradient_not_finite
from attendo.training.gradients import split_note, summed_gradients
from attendo.training.losses import width
from attendo.training.optimizer import learning_rate
from attendo.training.run import Report, Run
from attendo.training.state import set_torch_states, torch_states

MOST_IN_A_ROW = 3
"""Updates that may be left out one after the other before the run stops."""


def update(run: Run, micro_batches: Sequence[Batch]) -> Report:
    """One step of the optimizer on one or several batches; left out where loss or gradient are not finite.

    The loss is the sum over all real targets, divided once by their number, whatever the padding and the accumulation.
    Raises AttendoError when MOST_IN_A_ROW updates in a row were left out, and Interrupted when the run is to stop
    before the last of the batches; the state is then that before the update.
    """
    progress, config = run.progress, run.training
    run.engine.model.train()
    before, too_large = torch_states(), progress.too_large
    n_targets = sum(batch.n_targets for batch in micro_batches)
    loss = run.agree(summed_gradients(run, micro_batches, 1.0 / n_targets))
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm = run.engine.clip(config.clip_norm)
    rate = learning_rate(config, width(run.model), progress.step + 1, progress.horizon)
    finite = math.isfinite(norm) and math.isfinite(loss)
    note = "" if too_large == progress.too_large else split_note(progress.too_large)
    if finite:
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        take_step(run)
    source = "" if finite else culprit(run, micro_batches, before)
    if run.scaler is not None:
        run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    progress.batch += len(micro_batches)
    progress.saw(batch.ids for batch in micro_batches)
    if not finite:
        return left_out(run, source, loss, norm)
    progress.step += 1
    progress.skipped_in_a_row = 0
    counts = [batch.n_targets if batch.n_tokens is None else batch.n_tokens for batch in micro_batches]
    progress.tokens += sum(counts)
    progress.link(loss, norm)
    return Report("step", progress, loss, rate, norm, note=note, done=share_done(run))


def take_step(run: Run) -> None:
    """The optimizer's step, and that of the average of the weights."""
    if run.scaler is None:
        run.optimizer.step()
    else:
        run.scaler.step(run.optimizer)
    if run.average is not None:
        run.average.update(run.engine.model, run.progress.step + 1)


def left_out(run: Run, source: str, loss: float, norm: float) -> Report:
    """Counts an update that was left out, for what `source` gave; the batches count as seen.

    Raises AttendoError where it is one too many.

    A gradient that overflows in float16 is no fault as long as the loss can be scaled by less the next time.
    """
    progress = run.progress
    progress.skipped += 1
    note = f"{source} is not finite at step {progress.step + 1}"
    if run.scaler is not None and math.isfinite(loss) and (scale := run.scaler.get_scale()) >= 1.0:
        note += f": its update was left out, and the loss is scaled by {scale:,.0f} from now on"
        return Report("skipped", progress, loss, gradient_norm=norm, note=note, done=share_done(run))
    progress.skipped_in_a_row += 1
    if progress.skipped_in_a_row >= MOST_IN_A_ROW:
        raise AttendoError(f"{note}: {MOST_IN_A_ROW} updates in a row were not finite; {remedy(run, source)}")
    note += ": its update was left out"
    return Report("skipped", progress, loss, gradient_norm=norm, note=note, done=share_done(run))


def remedy(run: Run, source: str) -> str:
    """What to do where updates are left out, for what `source` (see `culprit`) gave."""
    part = own_part_at(run.engine.model, source.removeprefix("the gradient of "))
    rate = f"{run.training.learning_rate:.2g}"
    saved = run.folder is not None and checkpoints(run.folder)
    if part is not None:
        again = "resume from the last checkpoint" if saved else "train again"
        return f"{type(part).__name__}, your part, gives NaN or infinity: correct its formula, then {again}"
    if saved:
        return f"train with a lower training.learning_rate (now {rate}), then resume from the last checkpoint"
    return f"train again with a lower training.learning_rate (now {rate})"


def culprit(run: Run, micro_batches: Sequence[Batch], before: dict[str, Tensor]) -> str:
    """What gave the first number that is none: the passes are done once more, watched, with the same random numbers."""
    after, model, ranks = torch_states(), run.engine.model, run.ranks
    set_torch_states(before)
    try:
        parts = [batch.share(ranks.rank, ranks.world)[0] for batch in micro_batches]
        found = [first_not_finite(model, partial(run.engine.loss, part, 1.0)) for part in parts]
    finally:
        set_torch_states(after)
    found = [
        path for of_rank in ranks.gathered([*found, gradient_not_finite(model)]) for path in of_rank if path
    ]
    return found[0] if found else "the norm of the gradient"
