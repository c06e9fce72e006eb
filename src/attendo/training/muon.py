"""Muon for the matrices of the hidden layers and AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import Parameter


class MuonWithAdamW(torch.optim.Optimizer):
    """Two of torch's optimizers behind one list of groups and one state, saved and loaded as any optimizer's.

    matrices: stepped by Muon (Jordan et al. 2024): the momentum of each gradient, made orthogonal by a Newton-Schulz
    iteration, times 0.2 · √max(rows, columns), so that it is as large as a step of AdamW at the same rate (Liu et
    al. 2025, eq. 4). decaying, plain: parameters that AdamW steps, with and without weight decay.
    Raises ValueError for a matrix that has not two axes.

    >>> matrix, norm = Parameter(torch.eye(2)), Parameter(torch.ones(2))
    >>> optimizer = MuonWithAdamW([matrix], [], [norm], rate=0.1)
    >>> (matrix.sum() + norm.sum()).backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[matrix]), sorted(optimizer.state[norm])
    (['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step'])
    """

    def __init__(
        self,
        matrices: list[Parameter],
        decaying: list[Parameter],
        plain: list[Parameter],
        *,
        rate: float,
        betas: tuple[float, float] = (0.9, 0.98),
        epsilon: float = 1e-9,
        weight_decay: float = 0.0,
    ):
        self._muon = torch.optim.Muon(
            [{"params": matrices}],
            lr=rate,
            momentum=0.95,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = torch.optim.AdamW(
            [{"params": decaying}, {"params": plain, "weight_decay": 0.0}],
            lr=rate,
            betas=betas,
            eps=epsilon,
            weight_decay=weight_decay,
            fused=True,
        )
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # loading a state replaces groups and state: both parts look at what is there now
        first, *rest = self.param_groups
        for part, groups in ((self._muon, [first]), (self._adamw, rest)):
            part.state, part.param_groups = self.state, groups
            part.step()
        return loss
