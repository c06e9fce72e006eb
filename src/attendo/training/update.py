"""One update of the weights; left out, to the bit, where its numbers are none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.errors import AttendoError
from attendo.training.ending import share_done
from attendo.training.finite import first_not_finite, gradient_not_finite
from attendo.training.gradients import batch_loss, split_note, summed_gradients
from attendo.training.optimizer import learning_rate
from attendo.training.precision import autocast
from attendo.training.run import Report, Run, Trainable
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
    run.model.train()
    before, too_large = torch_states(), progress.too_large
    n_targets = sum(batch.n_targets for batch in micro_batches)
    loss = summed_gradients(run, micro_batches, 1.0 / n_targets)
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    total_norm = nn.utils.get_total_norm(gradients)
    norm = float(total_norm)
    rate = learning_rate(config, width(run.model), progress.step + 1, progress.horizon)
    finite = math.isfinite(norm) and math.isfinite(loss)
    note = "" if too_large == progress.too_large else split_note(progress.too_large)
    if finite:
        if config.clip_norm:
            nn.utils.clip_grads_with_norm_(run.model.parameters(), config.clip_norm, total_norm)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        run.optimizer.step()
    else:
        note = f"{culprit(run, micro_batches, before)} is not finite at step {progress.step + 1}"
    run.optimizer.zero_grad(set_to_none=True)
    progress.batch += len(micro_batches)
    progress.saw(batch.ids for batch in micro_batches)
    if not finite:
        return left_out(run, note, loss, norm)
    progress.step += 1
    progress.skipped_in_a_row = 0
    counts = [batch.n_targets if batch.n_tokens is None else batch.n_tokens for batch in micro_batches]
    progress.tokens += sum(counts)
    progress.link(loss, norm)
    return Report("step", progress, loss, rate, norm, note=note, done=share_done(run))


def left_out(run: Run, note: str, loss: float, norm: float) -> Report:
    """Counts an update that was left out; the batches count as seen. Raises AttendoError where it is one too many."""
    progress, config = run.progress, run.training
    progress.skipped += 1
    progress.skipped_in_a_row += 1
    if progress.skipped_in_a_row >= MOST_IN_A_ROW:
        raise AttendoError(
            f"{note}, the {MOST_IN_A_ROW}rd update in a row that is not; train with a lower training.learning_rate (now"
            f" {config.learning_rate:.2g}), then resume from the last checkpoint"
        )
    note += ": its update was left out"
    return Report("skipped", progress, loss, gradient_norm=norm, note=note, done=share_done(run))


def culprit(run: Run, micro_batches: Sequence[Batch], before: dict[str, Tensor]) -> str:
    """What gave the first number that is none: the passes are done once more, watched, with the same random numbers."""
    after, config = torch_states(), run.training
    set_torch_states(before)
    try:
        for batch in micro_batches:

            def forward(batch: Batch = batch) -> Tensor:
                with autocast(config.precision, run.device):
                    return batch_loss(run.model, batch, config.label_smoothing, 1.0)

            if (found := first_not_finite(run.model, forward)) is not None:
                return found
    finally:
        set_torch_states(after)
    return gradient_not_finite(run.model) or "the norm of the gradient"


def width(model: nn.Module) -> int:
    """d_model, as the output layer sees it."""
    return cast(Trainable, model).output_proj.in_features
