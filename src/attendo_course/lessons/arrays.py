"""A training task whose data are arrays, either fixed or newly drawn, and the training of the models of a lesson."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.data.batches import Batch, EpochBatches, Rows, pad_rows
from attendo.data.tokenizers import Tokenizer
from attendo.display.i18n import Localized
from attendo.inspecting.recording import recording
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.distributed import ALONE, Ranks
from attendo.training.loop import train
from attendo.training.losses import Trainable, token_losses
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Evaluation, Run, Task
from attendo_course.pictures import Picture

ModelT = TypeVar("ModelT", bound=nn.Module)
NO_TARGET = -1
"""The target id at positions without a target."""
CHUNK = 1024
"""The number of rows in one evaluation batch."""
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Training or test examples, with one example per index of axis 0.

    Raises ValueError if the arrays have different numbers of rows.

    Attributes:
        inputs: The input arrays by argument name of the model's method `hidden`.
        targets: The class ids `[rows, *places]`, with NO_TARGET (-1) at positions without a target.
    """

    inputs: dict[str, Tensor]
    targets: Int[Tensor, "rows *places"]

    def __post_init__(self):
        for name, tensor in self.inputs.items():
            if len(tensor) != len(self.targets):
                raise ValueError(f"{name} has {len(tensor)} rows, the targets have {len(self.targets)}")

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets)

    def rows(self, ids: Int[np.ndarray, " n"] | slice) -> Examples:
        """Return the examples with the indices `ids`, in the order of `ids`.

        >>> Examples({"x": torch.tensor([[1], [2]])}, torch.tensor([5, 6])).rows(np.array([1])).targets
        tensor([6])
        """
        chosen = ids if isinstance(ids, slice) else torch.from_numpy(ids)
        return Examples({name: tensor[chosen] for name, tensor in self.inputs.items()}, self.targets[chosen])

    def batch(self, ids: Int[np.ndarray, " n"]) -> Batch:
        """Return all examples as one batch. `ids` contains the row numbers of the examples."""
        return Batch(self.inputs, self.targets, int((self.targets != NO_TARGET).sum()), ids, NO_TARGET)


Draw = Callable[[np.random.Generator, int], Examples]
"""A function that draws a number of new examples from a random generator, without other random state."""


@dataclass(frozen=True, eq=False)
class ArrayTask:
    """A training task whose data are arrays, for the training loop of attendo.

    Attributes:
        train: The training examples, or a function that draws new examples. Fixed examples are shuffled by (seed,
            epoch) and split into batches. New examples are drawn from (seed, epoch, batch number).
        test: The test examples. The measures are the mean loss in nats per target, the accuracy over targets, and
            "exact", the share of rows without an error.
        batch_rows: The number of rows per batch.
        batches_per_epoch: The number of batches per epoch if new examples are drawn.
    """

    train: Examples | Draw
    test: Examples
    batch_rows: int
    batches_per_epoch: int = 100
    final: None = None

    def __post_init__(self):
        sizes = {"batch_rows": self.batch_rows, "batches_per_epoch": self.batches_per_epoch}
        sizes |= {"test": len(self.test)}
        if isinstance(self.train, Examples):
            sizes |= {"train": len(self.train)}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be 1 or more")

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """Return the batches of an epoch from number `start` on. The batches are created when they are read."""
        train, size = self.train, self.batch_rows
        if isinstance(train, Examples):
            order = np.random.default_rng((seed, epoch)).permutation(len(train))
            cuts = [order[at : at + size] for at in range(0, len(order), size)]
            return EpochBatches(cuts, lambda ids: train.rows(ids).batch(ids))[start:]
        rows = np.arange(self.batches_per_epoch * size).reshape(-1, size)

        def drawn(ids: Rows) -> Batch:
            return train(np.random.default_rng((seed, epoch, int(ids[0]) // size)), size).batch(ids)

        return EpochBatches(list(rows), drawn)[start:]

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute the loss, the accuracy and the share of exact matches on the test examples."""
        return Evaluation(measures(model, self.test), "loss")

    def better(self, value: float, than: float) -> bool:
        """Return whether a loss is less than another loss."""
        return value < than

    def describe(self) -> dict[str, Any]:
        """Return the number of training rows ("fresh" if new rows are drawn), of rows per batch and of test rows."""
        rows = len(self.train) if isinstance(self.train, Examples) else "fresh"
        return {"rows": rows, "batch_rows": self.batch_rows, "test_rows": len(self.test)}


def sequence_pairs(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Examples:
    """Return padded input for an EncoderDecoder: src = source + eos, tgt = bos + target, targets = target + eos.

    >>> examples = sequence_pairs([[4, 5]], [[5, 4]])
    >>> examples.inputs["src"].tolist(), examples.inputs["tgt"].tolist(), examples.targets.tolist()
    ([[4, 5, 3]], [[2, 5, 4]], [[5, 4, 3]])
    """
    src, lengths = pad_rows([[*ids, Tokenizer.eos_id] for ids in sources], Tokenizer.pad_id)
    tgt, _ = pad_rows([[Tokenizer.bos_id, *ids] for ids in targets], Tokenizer.pad_id)
    wanted, _ = pad_rows([[*ids, Tokenizer.eos_id] for ids in targets], NO_TARGET)
    inputs = {"src": src, "tgt": tgt} | ({} if lengths is None else {"src_lengths": lengths})
    return Examples(inputs, wanted)


@torch.no_grad()
def logits_of(model: nn.Module, examples: Examples) -> Float[Tensor, "rows *places classes"]:
    """Return the model's logits for each target, computed in batches, on the CPU.

    The model is switched to evaluation mode, and no gradients are computed.
    """
    reader = cast(Trainable, model.eval())
    device = reader.output_proj.weight.device
    parts = []
    for start in range(0, len(examples), CHUNK):
        part = examples.rows(slice(start, start + CHUNK))
        inputs = {name: tensor.to(device) for name, tensor in part.inputs.items()}
        parts.append(reader.output_proj(reader.hidden(**inputs)).float().cpu())
    return torch.cat(parts)


def measures(model: nn.Module, examples: Examples) -> dict[str, float]:
    """Return "loss" in nats per target, "accuracy" over targets, and "exact", the share of rows without an error."""
    logits, real = logits_of(model, examples), examples.targets != NO_TARGET
    right = (logits.argmax(-1) == examples.targets) | ~real
    return {
        "loss": float(token_losses(logits[real], examples.targets[real]).double().mean()),
        "accuracy": float(right[real].double().mean()),
        "exact": float(right.flatten(1).all(1).double().mean() if right.ndim > 1 else right.double().mean()),
    }


@dataclass(frozen=True, eq=False)
class Training:
    """A trained model in evaluation mode, and the results of its training.

    Attributes:
        losses: The loss of each step in nats per target.
        measures: The measures on the test examples.
        seconds_per_1000: The CPU seconds per 1,000 training targets, summed over all threads.
    """

    model: nn.Module
    losses: list[float]
    measures: dict[str, float]
    seconds_per_1000: float = 0.0


def trained(
    model: nn.Module,
    task: Task,
    steps: int,
    learning_rate: float,
    seed: int,
    *,
    warmup_steps: int = 1,
    decay_share: float = 0.0,
    clip_norm: float = 0.0,
    weight_decay: float = 0.0,
) -> Training:
    """Train the model in place with Adam (Kingma & Ba 2015) for a number of steps, without writing files.

    The learning rate is constant by default. `warmup_steps` adds a warm-up, and `decay_share` a decay over the last
    share of the steps. A `clip_norm` of 0 disables gradient clipping. `seed` determines the batches and dropout, and
    the global random state is restored afterwards. To initialize the model from a seed, use `seeded`.
    """
    config = TrainingConfig(
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        decay_share=decay_share,
        label_smoothing=0.0,
        clip_norm=clip_norm,
        beta2=0.999,
        epsilon=1e-8,
        weight_decay=weight_decay,
        evaluate_every=steps,
    )
    losses: list[float] = []
    found: dict[str, float] = {}
    seconds, n_targets = 0.0, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        began = time.process_time()
        for report in train(Run(model, task, config, CheckpointConfig(), folder=None)):
            if report.kind == "step":
                losses.append(report.loss)
                seconds, n_targets = time.process_time() - began, report.progress.tokens
            elif report.evaluation is not None:
                found = report.evaluation.measures
    return Training(model.eval(), losses, found, 1000 * seconds / n_targets)


def seeded(build: Callable[[], ModelT], seed: int) -> ModelT:
    """Build a model with torch's random numbers from `seed`, and restore the random state afterwards.

    >>> a, b = (seeded(lambda: nn.Linear(2, 1), 3) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def mean_and_deviation(values: Sequence[float], form: str = ".3f") -> str:
    """Return a table cell with the mean over seeds and the sample standard deviation, or a single value alone.

    >>> mean_and_deviation([0.5, 0.7]), mean_and_deviation([0.25], ".1%")
    ('0.600 ± 0.141', '25.0%')
    """
    mean = format(statistics.fmean(values), form)
    return mean if len(values) < 2 else f"{mean} ± {format(statistics.stdev(values), form)}"


def margin(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean by Student's t, or infinity for a single value.

    >>> round(margin([1.0, 2.0, 3.0]), 2), margin([1.0])
    (2.48, inf)
    """
    n = len(values)
    if n < 2:
        return math.inf
    quantile = T_95[min(n - 2, len(T_95) - 1)]  # a little wide for more than ten values
    return quantile * statistics.stdev(values) / math.sqrt(n)


def curve(losses: Sequence[float], points: int = 60) -> Float[np.ndarray, " points"]:
    """Return the losses as at most `points` points. Each point is the mean of its steps.

    >>> curve([4.0, 2.0, 1.0, 1.0], 2).tolist()
    [3.0, 1.0]
    """
    parts = np.array_split(np.asarray(losses, np.float64), min(points, len(losses)))
    return np.array([part.mean() for part in parts])


def loss_curves(
    title: Localized, runs: Mapping[str, Sequence[Training]] | Mapping[Localized, Sequence[Training]]
) -> Picture:
    """Return curves of the training loss: the mean over the runs of each kind of model, by name.

    The first and the last step are labeled if all runs have the same number of steps. All curves have the length of
    the shortest curve.

    >>> runs = [Training(nn.Identity(), [2.0, 1.0], {}), Training(nn.Identity(), [4.0, 1.0], {})]
    >>> loss_curves(Localized("loss", "損失"), {"linear": runs}).values.tolist()
    [[3.0, 1.0]]
    """
    values = [np.mean([curve(run.losses) for run in of], axis=0) for of in runs.values()]
    n_points = min(map(len, values))
    n_steps = {len(run.losses) for of in runs.values() for run in of}
    ends = ("1", str(n_steps.pop())) if len(n_steps) == 1 else ()
    return Picture("curves", title, np.stack([v[:n_points] for v in values]), tuple(runs), ends)


@torch.no_grad()
def recorded_weights(model: nn.Module, path: str, **inputs: Tensor) -> Float[Tensor, "batch heads q_len k_len"]:
    """Run the model on `inputs`, and return the attention weights of the module at this path."""
    with recording(model, f"{path}.weights") as record:
        record.model(**inputs)
    return record[path].weights
