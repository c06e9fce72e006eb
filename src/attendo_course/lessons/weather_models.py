"""The weather lesson's contenders, from a linear layer to a deep Transformer, and how each is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.data import weather
from attendo.decoding.sampling import drawn
from attendo.display.i18n import Localized
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier
from attendo.nn.attention import Attention
from attendo.nn.layers import initialize
from attendo_course.lessons.arrays import (
    NO_TARGET,
    ArrayTask,
    Draw,
    Examples,
    Training,
    measures,
    seeded,
    trained,
)
from attendo_course.lessons.weather_tasks import N_SEEN, N_STATES, Data, NextDay, chain_days

BATCH_ROWS = 100
LONGEST = 32
"""Days that the generating model can look back at."""


class LinearOnDays(nn.Module):
    """The linear baseline: a weight for each weather on each of the ten days."""

    def __init__(self):
        super().__init__()
        self.output_proj = nn.Linear(N_SEEN * N_STATES, N_STATES)
        initialize(self, "xavier")

    def hidden(self, src: Int[Tensor, "batch len"]) -> Float[Tensor, "batch len_times_states"]:
        """The days as one-hot vectors, one behind the other."""
        return F.one_hot(src, N_STATES).flatten(1).float()


class SingleQueryAttention(nn.Module):
    """The blog's attention: the last day asks, all ten answer; no residual, no norm, no feed-forward net.

    A day is a one-hot vector and its number / 20. Phuong & Hutter 2022, algorithm 3, with `n_heads` heads of width 6
    side by side. The blog masks the past where the future was meant; the last day sees all ten either way.
    """

    def __init__(self, n_heads: int = 1, head_dim: int = 6):
        super().__init__()
        self.attention = Attention(N_STATES + 1, n_heads, head_dim=head_dim, out_proj=nn.Identity())
        self.output_proj = nn.Linear(n_heads * head_dim, N_STATES)
        initialize(self, "xavier")

    def hidden(self, src: Int[Tensor, "batch len"]) -> Float[Tensor, "batch heads_times_dim"]:
        """The values of the days, as the last one mixes them."""
        numbers = torch.arange(1, src.shape[1] + 1, device=src.device).expand(src.shape) / 20
        days = torch.cat([F.one_hot(src, N_STATES).float(), numbers[..., None]], dim=-1)
        return self.attention(days[:, -1:], days)[:, 0]


def transformer(n_layers: int, n_heads: int = 4, *, norm: bool = True) -> EncoderClassifier:
    """An encoder of width 16 with trained positions, read at the first day.

    norm: without it, every normalization is taken out.
    """
    model = EncoderClassifier(
        ModelConfig(
            architecture="classifier",
            vocab_size=N_STATES,
            n_classes=N_STATES,
            d_model=16,
            d_ff=64,
            n_heads=n_heads,
            n_encoder_layers=n_layers,
            n_decoder_layers=0,
            max_len=N_SEEN,
            dropout=0.0,
            norm_first=True,
            positions="learned",
            pooling="first",
            tie="none",
        )
    )
    return model if norm else without_norms(model)


def without_norms(model: EncoderClassifier) -> EncoderClassifier:
    """The model, every LayerNorm in it replaced by nothing, in place."""
    for path in [path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)]:
        model.set_submodule(path, nn.Identity())
    return model


def chain_decoder() -> DecoderLM:
    """A decoder of width 16, one layer and one head, that gives the next day after each day."""
    return DecoderLM(
        ModelConfig(
            architecture="decoder",
            vocab_size=N_STATES,
            d_model=16,
            d_ff=64,
            n_heads=1,
            n_encoder_layers=0,
            n_decoder_layers=1,
            max_len=LONGEST,
            dropout=0.0,
            norm_first=True,
            positions="learned",
            tie="none",
        )
    )


@dataclass(frozen=True)
class Recipe:
    """How a contender is trained by Adam (weight_decay: AdamW). steps, weight_decay: the task's own where None."""

    learning_rate: float
    batch_rows: int
    steps: int | None = None
    weight_decay: float | None = None
    warmup_steps: int = 1
    decay_share: float = 0.0
    clip_norm: float = 0.0

    def run(
        self, build: Callable[[], nn.Module], task: ArrayTask, steps: int, weight_decay: float, seed: int
    ) -> Training:
        """A model, built and trained from the seed."""
        return trained(
            seeded(build, seed),
            task,
            steps,
            self.learning_rate,
            seed,
            warmup_steps=self.warmup_steps,
            decay_share=self.decay_share,
            clip_norm=self.clip_norm,
            weight_decay=weight_decay,
        )


BLOG = Recipe(1e-2, 500, steps=500, weight_decay=0.0)
OURS = Recipe(5e-3, BATCH_ROWS, warmup_steps=50, decay_share=0.5, clip_norm=1.0)


@dataclass(frozen=True, eq=False)
class Contender:
    """A model of ten days."""

    name: Localized
    build: Callable[[], nn.Module]
    recipe: Recipe = field(default=OURS)

    def trained(self, task: NextDay, data: Data, seed: int, steps: Callable[[int], int] = int) -> Training:
        """A run on the task's data; its start and its batches are those of `seed`. steps: cuts their number.

        Measured: "loss", "accuracy", "exact", and "excess", the loss above that of the true law on the same rows.
        """
        recipe = self.recipe
        weight_decay = task.weight_decay if recipe.weight_decay is None else recipe.weight_decay
        n_steps = steps(recipe.steps or task.steps)
        array_task = ArrayTask(data.train, data.test, recipe.batch_rows)
        return _above(data.true_loss, recipe.run(self.build, array_task, n_steps, weight_decay, seed))


def _above(true_loss: float, done: Training) -> Training:
    excess = {"excess": done.measures["loss"] - true_loss}
    return Training(done.model, done.losses, done.measures | excess)


LINEAR = Contender(Localized("linear", "線形"), LinearOnDays, BLOG)
BLOG_ATTENTION = Contender(
    Localized("attention, 1 head", "アテンション、1 ヘッド"), SingleQueryAttention, BLOG
)
BLOG_HEADS = Contender(
    Localized("attention, 4 heads", "アテンション、4 ヘッド"), lambda: SingleQueryAttention(4), BLOG
)


def transformer_contender(n_layers: int, n_heads: int, *, norm: bool = True) -> Contender:
    """A Transformer of so many layers and heads."""
    return Contender(
        Localized(
            f"{n_layers} layer{'s' * (n_layers > 1)}, {n_heads} head{'s' * (n_heads > 1)}"
            f"{'' if norm else ', no norm'}",
            f"{n_layers} 層、{n_heads} ヘッド{'' if norm else '、正規化なし'}",
        ),
        lambda: transformer(n_layers, n_heads, norm=norm),
    )


# The chain, learned day by day


def shifted(days: Int[np.ndarray, "n length"]) -> Examples:
    """`token_ids`: all days but the last; targets: the day after each.

    >>> shifted(np.array([[0, 1, 2]])).targets
    tensor([[1, 2]])
    """
    ids = torch.from_numpy(days)
    return Examples({"token_ids": ids[:, :-1]}, ids[:, 1:])


def chain_loss(examples: Examples) -> float:
    """The mean loss in nats of the true transition matrix on the days of `shifted`."""
    today, tomorrow = examples.inputs["token_ids"].numpy(), examples.targets.numpy()
    return float(-np.log(weather.transition_matrix()[today, tomorrow]).mean())


def trained_on_chain(train: Examples | Draw, test: Examples, steps: int, seed: int) -> Training:
    """The decoder, trained on the next day after each day; "excess": its loss above the true chain's on the test."""
    done = OURS.run(chain_decoder, ArrayTask(train, test, BATCH_ROWS), steps, 0.1, seed)
    return _above(chain_loss(test), done)


def fresh_chain(length: int) -> Draw:
    """Fresh rows of so many days of the chain, to be told one after the other."""
    return lambda rng, n: shifted(chain_days(rng, n, length))


def last_day(model: nn.Module, data: Data) -> dict[str, float]:
    """A decoder's "loss", "accuracy", "exact" and "excess" on day 11 of a task's test rows."""
    seen = data.test.inputs["src"]
    targets = torch.full_like(seen, NO_TARGET)
    targets[:, -1] = data.test.targets
    found = measures(model, Examples({"token_ids": seen}, targets))
    return found | {"excess": found["loss"] - data.true_loss}


def all_days(examples: Examples) -> Int[np.ndarray, "n 11"]:
    """The eleven days of a task's rows."""
    return torch.cat([examples.inputs["src"], examples.targets[:, None]], dim=1).numpy()


@torch.inference_mode()
def generated(model: DecoderLM, start: int, n: int, rows: int, seed: int) -> Int[np.ndarray, "rows n"]:
    """`n` days a row after a first day, drawn from the model day by day."""
    generator = torch.Generator().manual_seed(seed)
    cache, days = model.eval().start(rows, capacity=n), []
    last = torch.full((rows,), start)
    for _ in range(n):
        last = drawn(model.step(last[:, None], cache)[:, -1], torch.rand(rows, generator=generator))
        days.append(last)
    return torch.stack(days, dim=1).numpy()


def transition_counts(days: Int[np.ndarray, "rows n"]) -> Int[np.ndarray, "3 3"]:
    """How often each state (column) followed each (row).

    >>> transition_counts(np.array([[0, 0, 2], [1, 0, 0]])).tolist()
    [[2, 0, 1], [1, 0, 0], [0, 0, 0]]
    """
    pairs = days[:, :-1] * N_STATES + days[:, 1:]
    return np.bincount(pairs.ravel(), minlength=N_STATES**2).reshape(N_STATES, N_STATES)
