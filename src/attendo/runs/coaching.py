"""The coach beside a run: it hears each report, sees the heads at each evaluation, and remembers in the progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.inspecting.recording import LayerRecord, recording
from attendo.inspecting.residual_stream import head_contributions
from attendo.models import Model
from attendo.nn.attention import Attention, share_heads
from attendo.nn.blocks import Residual
from attendo.training.coach import Advice, Coach, HeadMeasure
from attendo.training.run import Report, Run

MOST_ROWS, LEAST_ROWS, MOST_POSITIONS = 16, 4, 128
"""Of the inputs that heads are measured on."""
RESIDUAL = "_residual"
"""What the name of a sub-layer's residual has behind that of the sub-layer."""


def measured_heads(model: Model, inputs: dict[str, Tensor]) -> list[HeadMeasure]:
    """Each head on rows of equal length, none of them padded (`even_inputs`), in the order of the model.

    The model is not touched: it runs once, without dropout, on a view. Nothing can be told from fewer than LEAST_ROWS:
    the list is then empty.

    >>> from attendo.models import DecoderLM, ModelConfig
    >>> sizes = dict(vocab_size=9, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", **sizes))
    >>> ids = torch.arange(28).view(4, 7) % 9
    >>> [head.name for head in measured_heads(model, {"token_ids": ids})]
    ['decoder.blocks.0.self_attention[0]', 'decoder.blocks.0.self_attention[1]']
    """
    if len(next(iter(inputs.values()))) < LEAST_ROWS:
        return []
    streams: dict[str, Tensor] = {}
    with torch.no_grad(), recording(model, ("*.weights", "*.value")) as record:
        record.model.eval()
        for path, module in record.model.named_modules():
            if isinstance(module, Residual):
                module.register_forward_hook(partial(_note, streams, path.removesuffix(RESIDUAL)))
        record.model.hidden(**inputs)
    return [
        measure
        for path in record
        for measure in _layer(path, model.get_submodule(path), record[path], streams[path])
    ]


def _note(streams: dict[str, Tensor], path: str, module: nn.Module, given: Any, output: Any) -> None:
    streams[path] = given[0]


def _layer(
    path: str, attention: nn.Module, record: LayerRecord, stream: Float[Tensor, "batch len d_model"]
) -> list[HeadMeasure]:
    """The heads of one layer."""
    assert isinstance(attention, Attention)
    weights = record.weights.float()
    spread = 0.5 * (weights - weights.mean(0)).abs().sum(-1).mean((0, 2))
    mixed = weights @ share_heads(record.value.float(), weights.shape[1])
    added = head_contributions(mixed, attention.out_proj.get_parameter("weight").float())
    share = (differing(added, (0, 2)) / differing(stream.float(), (0, 1))).sqrt()
    return [
        HeadMeasure(path, head, *pair)
        for head, pair in enumerate(zip(spread.tolist(), share.tolist(), strict=True))
    ]


def differing(x: Tensor, over: tuple[int, ...]) -> Tensor:
    """The mean square norm of what differs between the rows of `x` [batch ... d], over these axes.

    >>> differing(torch.tensor([[[1.0, 7.0]], [[3.0, 7.0]]]), (0, 1))
    tensor(1.)
    """
    return (x - x.mean(0)).square().sum(-1).mean(over)


def even_inputs(batch: Batch) -> dict[str, Tensor]:
    """The inputs of some rows of a batch, cut to one length, so that none is padded.

    They are rows no shorter than the median, on the source's side and on the target's.
    """
    inputs = batch.inputs
    if "token_ids" in inputs:
        return {name: tensor[:MOST_ROWS, :MOST_POSITIONS] for name, tensor in inputs.items()}
    src = inputs["src"]
    lengths = {"src": inputs.get("src_lengths", torch.full((len(src),), src.shape[1], device=src.device))}
    if "tgt" in inputs:
        lengths["tgt"] = (batch.targets != batch.pad_id).sum(1)
    long = torch.stack([length >= length.median() for length in lengths.values()]).all(0)
    rows = long.nonzero().squeeze(1)[:MOST_ROWS]
    return {
        name: inputs[name][rows, : min(MOST_POSITIONS, int(length[rows].min()))]
        for name, length in lengths.items()
    }


NOTE = "coach"
"""The name under which the coach's memory stands in a run's progress, and so in its checkpoints."""


@dataclass
class Coaching:
    """A run and its coach."""

    run: Run
    coach: Coach

    @classmethod
    def of(cls, run: Run, dropout: float, fresh: bool) -> Coaching:
        """The coach of a run, with what it remembers if the run was resumed; the rest as for `Coach`."""
        return cls(run, Coach(run.training, dropout, run.progress.notes.get(NOTE), fresh))

    def hear(self, report: Report) -> list[Advice]:
        """What there is to say now; the progress then holds what the coach remembers. All ranks call it together."""
        advice = self.coach.hear(report, self._heads(report))
        self.run.progress.notes[NOTE] = self.coach.as_json()
        return advice

    def _heads(self, report: Report) -> Sequence[HeadMeasure]:
        if report.kind != "evaluation" or report.note:
            return ()
        with self.run.executor.whole():
            return (
                measured_heads(cast(Model, self.run.model), self._inputs) if self.run.ranks.is_first else ()
            )

    @cached_property
    def _inputs(self) -> dict[str, Tensor]:
        """Some rows of a training batch, the same at each evaluation."""
        batches = self.run.task.batches(self.run.training.seed, 0, 0)
        return even_inputs(batches[len(batches) // 2].to(self.run.device))
