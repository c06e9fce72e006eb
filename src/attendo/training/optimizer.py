"""The settings of training, and the optimizer, learning rate schedules and weight average that they select."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attendo.training.acceleration import Precision, Products

Schedule = Literal["wsd", "cosine", "noam"]


@dataclass(frozen=True)
class Horizon:
    """Planned start of the learning rate decay and planned end of the run, in steps. Each is None until it is known."""

    decay_start: int | None = None
    end: int | None = None


def noam(step: int, d_model: int, warmup: int) -> float:
    """Return the learning rate d_model^-.5 · min(step^-.5, step · warmup^-1.5) (Vaswani et al. 2017, eq. 3).

    Steps are counted from 1.

    >>> f"{noam(4000, 512, 4000):.5e}"
    '6.98771e-04'
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def warmup_stable_decay(step: int, peak: float, warmup: int, horizon: Horizon) -> float:
    """Return the learning rate of the `wsd` schedule at a step (Hu et al. 2024).

    The rate rises linearly to `peak` over `warmup` steps, is then constant, and falls linearly to nearly 0 at the end
    of `horizon`.

    >>> [warmup_stable_decay(s, 1.0, 2, Horizon(4, 8)) for s in range(1, 9)]
    [0.5, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    rate = peak * min(1.0, step / max(warmup, 1))
    if horizon.decay_start is None or horizon.end is None or step <= horizon.decay_start:
        return rate
    return rate * max(horizon.end + 1 - step, 0) / (horizon.end + 1 - horizon.decay_start)


def cosine(step: int, peak: float, warmup: int, end: int) -> float:
    """Return the learning rate of the `cosine` schedule at a step (Loshchilov & Hutter 2017).

    The rate rises linearly to `peak` over `warmup` steps, and then falls to 0 at the step `end` along half a cosine.

    >>> cosine(10, 1.0, 0, 20)
    0.5
    """
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(step - warmup, end - warmup) / max(end - warmup, 1)))


class CpuMuon(torch.optim.Muon):
    """torch's Muon with its iteration in the number format of the weights. torch uses bfloat16.

    Without bfloat16 instructions, bfloat16 takes 15 times as long. It also changes updates of low rank by half.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient. `closure` is not supported."""
        for group in self.param_groups:
            rate, beta = group["lr"], group["momentum"]
            a, b, c = group["ns_coefficients"]
            for matrix in (p for p in group["params"] if p.grad is not None):
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                x = matrix.grad.lerp(state["momentum_buffer"].lerp_(matrix.grad, 1 - beta), beta)
                is_tall = len(x) > x.shape[1]
                x = (x.T if is_tall else x) / x.norm().clamp(min=group["eps"])
                for _ in range(group["ns_steps"]):
                    gram = x @ x.T
                    x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
                size = rate * 0.2 * max(x.shape) ** 0.5
                matrix.mul_(1 - rate * group["weight_decay"]).add_(x.T if is_tall else x, alpha=-size)


class MuonWithAdamW(torch.optim.Optimizer):
    """Optimizer that combines Muon and AdamW. Its state is saved and loaded like that of any optimizer.

    Muon (Jordan et al. 2024) orthogonalizes the momentum of each gradient by a Newton-Schulz iteration. The result is
    multiplied by 0.2 · √max(rows, columns). An update is then as large as an AdamW update at the same learning rate
    (Liu et al. 2025, eq. 4).

    >>> matrix, norm = nn.Parameter(torch.eye(2)), nn.Parameter(torch.ones(2))
    >>> optimizer = MuonWithAdamW(torch.optim.Muon([matrix]), torch.optim.AdamW([norm]))
    >>> (matrix.sum() + norm.sum()).backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[matrix]), sorted(optimizer.state[norm])
    (['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step'])
    """

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW):
        self._muon, self._adamw = muon, adamw
        super().__init__([*muon.param_groups, *adamw.param_groups], {"lr": adamw.defaults["lr"]})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient. Return the loss of `closure`, or None without a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # loading a saved optimizer replaces its groups and its state
        first, *rest = self.param_groups
        for part, groups in ((self._muon, [first]), (self._adamw, rest)):
            part.state, part.param_groups = self.state, groups
            part.step()
        return loss


OptimizerKind = Literal["adamw", "muon"]
BUDGETS = ("steps", "epochs", "minutes", "cpu_minutes")
"""Settings that limit the length of a run. Each run has exactly one of these limits."""
RANK_TIMEOUT = 600.0
"""Default of `rank_timeout` in seconds."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings for training. Exactly one of steps, epochs, minutes and cpu_minutes limits the length of the run.

    Attributes:
        steps: Length of the run in optimizer steps.
        epochs: Length of the run in passes over the training data.
        minutes: Time limit of the run in minutes of wall time.
        cpu_minutes: Time limit of the run in minutes of CPU time, summed over all threads.
        seed: Random seed for the initial weights, the data order and dropout.
        batch_tokens: Batch size in tokens, including padding. For sentence pairs, the longer side is counted.
        accumulation: Number of batches in one optimizer step (gradient accumulation).
        learning_rate: Peak learning rate. The `noam` schedule uses this value as a factor.
        schedule: Learning rate schedule after the warm-up. `wsd` is constant and then decays linearly, `cosine`
            follows half a cosine, and `noam` decays with `1 / √step`.
        warmup_steps: Number of steps in which the learning rate rises to its peak.
        decay_share: Final share of the run, in which the `wsd` schedule lowers the learning rate to almost 0.
        label_smoothing: Share of the target probability that label smoothing spreads over all tokens or labels.
        clip_norm: Largest norm of the gradient, for gradient clipping. 0 disables clipping.
        beta1: Decay rate of AdamW's moving average of the gradients.
        beta2: Decay rate of AdamW's moving average of the squared gradients.
        epsilon: Constant that AdamW adds to the denominator of an update.
        weight_decay: Weight decay of all matrices. Biases and normalization layers have no weight decay.
        precision: Number format of matrix multiplications. `tf32` affects only GPUs. `float16` uses loss scaling.
        products: Library for float32 matrix multiplications on a CPU.
        optimizer: Optimizer. `muon` uses Muon for the matrices of the hidden layers and AdamW for all other
            parameters.
        ema_decay: Decay rate of a moving average of the weights. The average is evaluated and saved instead of the
            last weights. 0 disables the average.
        activation_checkpointing: Whether the backward pass recomputes activations, which saves memory and takes a
            third more time.
        compile: Whether each block is compiled with `torch.compile`.
        evaluate_every: Number of steps between two evaluations on the validation set.
        evaluate_rows: Largest number of validation pairs or labeled texts in an evaluation during training.
        patience: Number of evaluations without improvement after which early stopping ends the run. 0 disables early
            stopping.
        average_last: Number of last checkpoints whose mean weights are evaluated at the end of the run. 1 disables
            averaging.
        reserve_share: Share of a time budget that is reserved for the last evaluation and for saving.
        prefetch: Number of batches that a thread prepares in advance.
        tensorboard: Whether the log is also written for TensorBoard.
        parallel: Method of training in several processes. `ddp` copies the model to each process, and `fsdp` splits
            its parameters.
        rank_timeout: Number of seconds that a process waits for the other processes before the job ends.
        frozen: Paths of modules or parameters that are not trained, for example `encoder` or `decoder.blocks.0`.
    """

    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    cpu_minutes: float | None = None
    seed: int = 1
    batch_tokens: int = 2048
    accumulation: int = 1
    learning_rate: float = 1e-3
    schedule: Schedule = "wsd"
    warmup_steps: int = 400
    decay_share: float = 0.25
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.01
    precision: Precision = "float32"
    products: Products = "torch"
    optimizer: OptimizerKind = "adamw"
    ema_decay: float = 0.0
    activation_checkpointing: bool = False
    compile: bool = False
    evaluate_every: int = 500
    evaluate_rows: int = 500
    patience: int = 0
    average_last: int = 1
    reserve_share: float = 0.02
    prefetch: int = 0
    tensorboard: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    rank_timeout: float = RANK_TIMEOUT
    frozen: tuple[str, ...] = ()

    def __post_init__(self):
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) != 1:
            raise ValueError(f"give exactly one of steps, epochs, minutes and cpu_minutes (given: {budgets or 'none'})")
        positive = ("batch_tokens", "accumulation", "learning_rate", "evaluate_every", "average_last")
        for name in (*budgets, *positive):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("label_smoothing", "decay_share", "reserve_share", "beta1", "beta2", "ema_decay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        if self.prefetch < 0:
            raise ValueError(f"prefetch={self.prefetch} must be at least 0 (0 prepares no batch ahead)")
        if self.ema_decay > 0 and self.average_last > 1:
            raise ValueError(
                f"ema_decay={self.ema_decay} and average_last={self.average_last} cannot be combined. Set "
                "ema_decay=0 or average_last=1"
            )
        if self.parallel == "fsdp" and self.precision == "float16":
            raise ValueError(
                "precision='float16' is not supported with parallel='fsdp'. Use bfloat16, or parallel='ddp'"
            )
        if self.schedule == "cosine" and self.seconds is not None:
            raise ValueError(
                "schedule='cosine' requires a fixed number of steps. Give steps or epochs, or use schedule='wsd'"
            )

    @property
    def planned_end(self) -> str:
        """Name and value of the setting that ends the run, for example "steps 4000"."""
        name = next(name for name in BUDGETS if getattr(self, name) is not None)
        return f"{name} {getattr(self, name):.12g}"

    @property
    def seconds(self) -> float | None:
        """Time budget in seconds, or None if the run has no time budget."""
        minutes = self.minutes if self.minutes is not None else self.cpu_minutes
        return None if minutes is None else 60.0 * minutes


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Settings for LoRA, which replaces W by W + (α / r) B A in linear layers (Hu et al. 2021, section 4.1).

    Attributes:
        rank: Rank r of the matrices A and B. 0 disables LoRA, and 8 is a usual value.
        alpha: Scale α. The low-rank update is multiplied by α / r.
        dropout: Dropout probability of the input of the matrix A.
        targets: Linear layers that receive an adapter: `all` for all layers except the output layer, or a list of
            layer names or path endings such as `q_proj`.
        trained: Paths of modules whose weights are all trained (default: the modules that the initial model does not
            have).
    """

    rank: int = 0
    alpha: float = 16.0
    dropout: float = 0.0
    targets: Literal["all"] | tuple[str, ...] = "all"
    trained: tuple[str, ...] = ()

    def __post_init__(self):
        if self.rank < 0:
            raise ValueError(f"rank={self.rank} must be at least 0 (0 is off; a common value is 8)")
        if not self.alpha > 0:
            raise ValueError(f"alpha={self.alpha} must be above 0 (a common value is 16)")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        if not self.targets:
            raise ValueError('targets=[] leaves nothing to adapt. Name layers, or use "all"')

    @property
    def scale(self) -> float:
        """Factor α / r of the low-rank update, or 0 without adapters."""
        return self.alpha / self.rank if self.rank else 0.0


OFF = LoraConfig()
"""Settings without adapters."""


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the optimizer: AdamW (Loshchilov & Hutter 2019), or Muon for `hidden_matrices` with AdamW for the rest.

    Biases and normalization layers have no weight decay.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    hidden = hidden_matrices(model) if config.optimizer == "muon" else set[Tensor]()
    decaying = [p for p in parameters if p.ndim >= 2 and p not in hidden]
    plain = [p for p in parameters if p.ndim < 2]
    adamw = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
    if config.optimizer == "adamw":
        return adamw
    kind = CpuMuon if all(p.device.type == "cpu" for p in hidden) else torch.optim.Muon
    muon = kind(
        [{"params": [p for p in parameters if p in hidden]}],
        lr=config.learning_rate,
        momentum=0.95,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return MuonWithAdamW(muon, adamw)


def hidden_matrices(model: nn.Module) -> set[Tensor]:
    """Return the trainable weights of all linear layers except the output layer `output_proj`."""
    output = {id(p) for path, p in model.named_parameters(remove_duplicate=False) if path.startswith("output_proj.")}
    return {
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad and id(module.weight) not in output
    }


def learning_rate(config: TrainingConfig, d_model: int, step: int, horizon: Horizon) -> float:
    """Return the learning rate of the update with the number `step`, counted from 1."""
    match config.schedule:
        case "noam":
            return config.learning_rate * noam(step, d_model, config.warmup_steps)
        case "cosine":
            assert horizon.end is not None, "cosine requires an end in steps"
            return cosine(step, config.learning_rate, config.warmup_steps, horizon.end)
        case "wsd":
            return warmup_stable_decay(step, config.learning_rate, config.warmup_steps, horizon)


class WeightAverage:
    """Moving average of the weights w: a ← β a + (1 - β) w after each update (after Polyak & Juditsky 1992).

    `decay` is the largest value of β. At update n, β is at most (1 + n) / (10 + n), so the initial weights are soon
    forgotten. The average has one tensor per trainable parameter.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> average = WeightAverage(model, decay=0.5)
    >>> _ = nn.init.ones_(model.weight)
    >>> average.update(model, step=100)
    >>> with average.swapped(model):
    ...     model.weight.item()
    0.5
    >>> model.weight.item()
    1.0
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after the update with the number `step`, counted from 1, to the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = dict(model.named_parameters())
        for name, tensor in self.tensors.items():
            tensor.lerp_(parameters[name], 1.0 - decay)

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """Use the average as the model's weights during the `with` block. Then restore the original weights exactly."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a saved average. Raises ValueError if the names of the parameters differ."""
        if unlike := sorted(self.tensors.keys() ^ tensors.keys()):
            raise ValueError(f"the saved average and the model differ in {unlike[0]}")
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        for name, tensor in self.tensors.items():
            own = parameters[name].clone()
            parameters[name].copy_(tensor)
            tensor.copy_(own)
