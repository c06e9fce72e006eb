"""Attribution of an output: activation patching, direct logit attribution and integrated gradients.

    look = attendo.look(model, "When Mary and John went out, John called", target="").result
    patched = patching_effects(look.model, look.inputs, other.inputs, logit_difference(token, other_token))

All functions take a model and its inputs: the arguments of a forward pass with one row and without padding. They also
take edits, which apply to each run of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.inspecting.edits import Edit, Patch, PatchedPart
from attendo.inspecting.recording import Given, Recording, edited, known_before, recording
from attendo.inspecting.residual_stream import Stack, head_contributions
from attendo.models import DecoderLM, EncoderDecoder, Model
from attendo.nn.attention import Attention

Inputs = Mapping[str, Tensor]
Metric = Callable[[Tensor], Tensor]
"""A function from logits `[rows, len, vocab]`, or `[rows, classes]` of a classifier, to one number per row."""
MOST_LOGITS = 2**25
"""The maximum number of logits per batch (128 MB)."""


def log_prob(token: int, position: int = -1) -> Metric:
    """Return the metric log p(token) at a position, in nats.

    Args:
        token: The id of the token, or of the label of a classifier.
        position: The position of the prediction (default: the last). A classifier has no positions.

    >>> log_prob(3)(torch.zeros(2, 5, 8))
    tensor([-2.0794, -2.0794])
    """
    return lambda logits: _at(logits, position).log_softmax(-1)[:, token]


def logit_difference(token: int, other: int, position: int = -1) -> Metric:
    """Return the metric logit(token) - logit(other) at a position, which equals log p(token) - log p(other).

    Args:
        token: The id of the expected token or label.
        other: The id of the token or label to compare with.
        position: The position of the prediction (default: the last).

    >>> logit_difference(1, 0)(torch.tensor([[0.5, 2.0, 1.0]]))
    tensor([1.5000])
    """
    return lambda logits: _at(logits, position)[:, token] - _at(logits, position)[:, other]


def _at(logits: Tensor, position: int) -> Float[Tensor, "rows n"]:
    return logits[:, position] if logits.ndim == 3 else logits


def embedding_of(model: Model, stack: Stack) -> tuple[str, str]:
    """Return the name of the input that a stack reads, and the path of its embedding."""
    match model:
        case EncoderDecoder():
            return ("src", "source_embedding") if stack == "encoder" else ("tgt", "target_embedding")
        case DecoderLM():
            return "token_ids", "embedding"
        case _:
            return "src", "embedding"


def block_paths(model: Model, stack: Stack) -> list[str]:
    """Return the paths of the blocks of a stack, in order. Raise AttendoError if the model has no such stack."""
    if not hasattr(model, stack):
        raise AttendoError(f"{type(model).__name__} has no {stack}. Use the other stack")
    return [f"{stack}.blocks.{number}" for number in model.get_submodule(f"{stack}.blocks")._modules]


@dataclass(frozen=True, eq=False)
class PatchingEffects:
    """The result of activation patching.

    Attributes:
        clean: The metric of the clean run.
        corrupted: The metric of the corrupted run.
        effects: The change of the metric of the corrupted run by each patch.
    """

    clean: float
    corrupted: float
    effects: Float[Tensor, "layers positions_or_heads"]

    @property
    def recovered(self) -> Float[Tensor, "layers positions_or_heads"]:
        """The share of the difference between the clean run and the corrupted run that each patch restores."""
        return self.effects / (self.clean - self.corrupted)


@torch.no_grad()
def patching_effects(
    model: Model,
    clean: Inputs,
    corrupted: Inputs,
    metric: Metric,
    *,
    stack: Stack = "decoder",
    layer: str = "",
    part: PatchedPart = "output",
    edits: Sequence[Edit] = (),
    corruption: Sequence[Edit] = (),
) -> PatchingEffects:
    """Patch activations of the clean run into the corrupted run, one at a time, and return the changes of a metric.

    Sources: Vig et al. 2020; Meng et al. 2022 (causal tracing); Wang et al. 2022; Zhang & Nanda 2024.

    Args:
        model: Any model.
        clean: The inputs of the clean run.
        corrupted: The inputs of the corrupted run, with the same numbers of tokens.
        metric: The measured number, for example `log_prob(token)` or `logit_difference(token, other)`.
        stack: The stack whose activations are patched: "encoder" or "decoder".
        layer: The layer of each block: "self_attention", "cross_attention" or "feed_forward" (default: the residual
            stream after the block).
        part: The patched part: "output" at one position, or "mixed" or "weights" of one head at all positions.
        edits: Edits of both runs.
        corruption: Additional edits of the corrupted run, for example noise: `[Patch("embedding", noisy)]`.

    Returns:
        The effects by block, and by position or head.

    Raises:
        AttendoError: The numbers of tokens differ, or the model has no such layer.

    >>> import torch
    >>> from attendo.models import ModelConfig
    >>> sizes = dict(vocab_size=9, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=2)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", **sizes)).eval()
    >>> clean, corrupted = ({"token_ids": torch.tensor([[1, at, 3]])} for at in (2, 5))
    >>> found = patching_effects(model, clean, corrupted, log_prob(4))
    >>> [round(abs(share), 3) for share in found.recovered[-1].tolist()]  # the prediction reads only its own last state
    [0.0, 0.0, 1.0]
    """
    shapes = [{name: list(tensor.shape) for name, tensor in inputs.items()} for inputs in (clean, corrupted)]
    if shapes[0] != shapes[1]:
        raise AttendoError(
            f"patching: the shapes of the clean inputs {shapes[0]} and of the corrupted inputs {shapes[1]} differ. "
            "Use texts with the same number of tokens"
        )
    blocks = block_paths(model, stack)
    paths = [f"{block}.{layer}".rstrip(".") for block in blocks]
    keep = [f"{path}.{part}" for path in paths]
    states = [f"{path}.output" for path in (*blocks, "encoder") if hasattr(model, path.split(".")[0])]
    both = (*edits, *corruption)
    source, clean_logits = _run(model, clean, [*keep, *states], edits)
    record, logits = _run(model, corrupted, [*keep, *states], both)
    before, rows = metric(logits), max(1, min(64, MOST_LOGITS // logits.numel()))
    changes = []
    for path in paths:
        new, old = (getattr(run[path], part) for run in (source, record))
        # row i contains the clean values of position or head i: both are axis 1 of the recorded part
        chosen = torch.eye(old.shape[1], dtype=torch.bool, device=old.device)
        for some in chosen.split(rows):
            values = torch.where(some.view(*some.shape, *[1] * (old.ndim - 2)), new, old)
            wide = {name: tensor.expand(len(some), *tensor.shape[1:]) for name, tensor in corrupted.items()}
            patched = edited(model, (*both, Patch(path, values, part)))
            with patched as view, known_before(view, record, path, len(some)):
                changes.append(metric(view(**wide)) - before)
    effects = torch.cat(changes).view(len(paths), -1)
    return PatchingEffects(float(metric(clean_logits)), float(before), effects)


def _run(model: Model, inputs: Inputs, keep: Sequence[str], edits: Sequence[Edit]) -> tuple[Recording[Model], Tensor]:
    with recording(model, keep, edits) as record:
        return record, record.model.eval()(**inputs)


@dataclass(frozen=True)
class Contribution:
    """The direct contribution of a component to a logit.

    Attributes:
        path: The module path of the component, for example "decoder.blocks.0.self_attention".
        head: The number of the attention head, or None for the rest of the layer, which is its bias.
        value: The contribution to the logit.
    """

    path: str
    head: int | None
    value: float


@torch.no_grad()
def logit_attribution(
    model: Model,
    inputs: Inputs,
    token: int,
    other: int | None = None,
    position: int = -1,
    *,
    edits: Sequence[Edit] = (),
) -> list[Contribution]:
    """Decompose a logit of a decoder into the direct contributions of embedding, heads, layers and biases.

    The residual stream is the sum of all components. Each normalization is linear when its scale 1/σ is fixed ("frozen
    scale"). Therefore, the contributions sum to the logit up to rounding (nostalgebraist 2020; Elhage et al. 2021). In
    a post-norm model, a component passes through all later normalizations (Kobayashi et al. 2021). A residual state
    that an edit replaces is a single component. If the logits have a soft limit, the sum is the logit before the limit.

    Args:
        model: A language model or the model of a translator.
        inputs: The inputs of one row.
        token: The id of the token.
        other: The id of another token, whose logit is subtracted (default: none).
        position: The position of the prediction (default: the last).
        edits: Edits of the model.

    Returns:
        The contributions, in the order of the model. Their sum is the logit, or the difference of two logits.

    Raises:
        AttendoError: The model has no decoder, or a normalization is neither LayerNorm nor RMSNorm.

    >>> import torch
    >>> from attendo.models import ModelConfig
    >>> sizes = dict(vocab_size=9, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", **sizes)).eval()
    >>> inputs = {"token_ids": torch.tensor([[1, 2, 3]])}
    >>> parts = logit_attribution(model, inputs, token=4)
    >>> [(part.path.split(".")[-1], part.head) for part in parts[:4]]
    [('embedding', None), ('self_attention', 0), ('self_attention', 1), ('self_attention', None)]
    >>> bool(abs(sum(part.value for part in parts) - model(**inputs)[0, -1, 4]) < 1e-5)
    True
    """
    record, _ = _run(model, inputs, ["*.output", "*.mixed"], edits)
    return contributions(model, record, token, other, position)


@torch.no_grad()
def contributions(
    model: Model, record: Recording[Any], token: int, other: int | None = None, position: int = -1
) -> list[Contribution]:
    """Return the result of `logit_attribution` for a recorded run with the parts "output" and "mixed"."""
    if not isinstance(model, DecoderLM | EncoderDecoder):
        raise AttendoError(f"{type(model).__name__} has no decoder, so its logits have no direct attribution")
    embedding = embedding_of(model, "decoder")[1]
    names: list[tuple[str, int | None]] = [(embedding, None)]
    parts = record[embedding].output[0, position, None].double()

    def normalized(path: str) -> None:
        nonlocal parts
        parts, has_bias = _frozen(model.get_submodule(path), parts)
        names.extend([(path, None)] * has_bias)

    for n in range(len(model.decoder.blocks)):
        block = f"decoder.blocks.{n}"
        for name in ("self_attention", "cross_attention", "feed_forward"):
            path = f"{block}.{name}"
            if path not in record.paths:
                continue
            added, residual = _added(model, record, path, position), model.get_submodule(f"{path}_residual")
            names += [(path, head) for head in range(len(added) - 1)] + [(path, None)]
            if (output_norm := getattr(residual, "output_norm", None)) is not None:
                added, has_bias = _frozen(output_norm, added)
                names += [(f"{path}_residual.output_norm", None)] * has_bias
            parts = torch.cat([parts, added])
            if not residual.norm_first:
                normalized(f"{path}_residual.norm")
        state = record[block].output[0, position, None].double()
        if not _is_close(parts.sum(0), state[0]):  # an edit or a custom block replaced the state
            names[:], parts = [(block, None)], state
    normalized("decoder.norm")

    def chosen(rows: Float[Tensor, "vocab *d"]) -> Float[Tensor, "*d"]:
        return rows[token].double() - (0.0 if other is None else rows[other].double())

    names.append(("output_proj", None))
    bias = 0.0 if model.output_proj.bias is None else float(chosen(model.output_proj.bias))
    values = [*(parts @ chosen(model.output_proj.weight)).tolist(), bias]
    return [Contribution(*name, value) for name, value in zip(names, values, strict=True)]


def _added(model: Model, record: Recording[Model], path: str, position: int) -> Float[Tensor, "heads_and_rest d"]:
    """Return what each head adds to the residual stream, and what the layer adds in addition to its heads."""
    layer, output = model.get_submodule(path), record[path].output[0, position].double()
    if not isinstance(layer, Attention) or not isinstance(layer.out_proj, nn.Linear):
        return output[None]
    mixed = record[path].mixed[:, :, [position]].double()
    heads = head_contributions(mixed, layer.out_proj.weight.double())[0, :, 0]
    bias = torch.zeros_like(output) if layer.out_proj.bias is None else layer.out_proj.bias.double()
    # an edit of the whole output replaces the sum of the heads
    if not _is_close(heads.sum(0) + bias, output):
        return output[None]
    return torch.cat([heads, (output - heads.sum(0))[None]])


def _is_close(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> bool:
    return float((a - b).norm()) <= 1e-3 * float(a.norm() + b.norm())


def _frozen(norm: nn.Module, parts: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n_or_more d"], bool]:
    """Apply a normalization with the scale of the sum to each part. A bias becomes one more part."""
    match norm:
        case nn.Identity():
            return parts, False
        case nn.LayerNorm():
            parts = parts - parts.mean(-1, keepdim=True)
        case nn.RMSNorm():
            pass
        case _:
            raise AttendoError(f"{type(norm).__name__} is neither LayerNorm nor RMSNorm, so it has no scale")
    scale = (parts.sum(0).square().mean() + (norm.eps or 0.0)).rsqrt()
    parts = parts * scale * norm.weight.double()
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return (parts, False) if bias is None else (torch.cat([parts, bias[None].double()]), True)


@dataclass(frozen=True, eq=False)
class IntegratedGradients:
    """The result of integrated gradients.

    Attributes:
        tokens: The attribution of each token, by the name of the input, for example "src" and "tgt".
        change: The metric of the inputs minus the metric of the baseline.
    """

    tokens: dict[str, Float[Tensor, " len"]]
    change: float

    @property
    def error(self) -> float:
        """The difference between the sum of all attributions and `change`, which is 0 for infinitely many steps."""
        return float(sum(found.sum() for found in self.tokens.values())) - self.change


def integrated_gradients(
    model: Model,
    inputs: Inputs,
    metric: Metric,
    *,
    baseline: int | None = None,
    n_steps: int = 50,
    edits: Sequence[Edit] = (),
) -> IntegratedGradients:
    """Attribute a metric to the token embeddings of all inputs by integrated gradients (Sundararajan et al. 2017).

    The attribution of a token is (x - x') · ∫ ∂F(x' + α(x - x'))/∂x dα for α from 0 to 1, by Gauss-Legendre quadrature.
    Positional encodings are part of the baseline. The attributions sum to `change` (completeness), up to the error of
    the quadrature, which is largest for models with ReLU.

    Args:
        model: Any model.
        inputs: The inputs of one row.
        metric: The attributed number, for example `log_prob(token)`.
        baseline: The token id whose embedding replaces each token, for example the padding id (default: zero vectors).
        n_steps: The number of points between the baseline and the inputs.
        edits: Edits of the model.

    Returns:
        The attribution of each token of each input, and the change of the metric from the baseline.

    >>> import torch
    >>> from attendo.models import ModelConfig
    >>> sizes = dict(vocab_size=9, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", activation="gelu", **sizes)).eval()
    >>> found = integrated_gradients(model, {"token_ids": torch.tensor([[1, 2, 3]])}, log_prob(4))
    >>> found.tokens["token_ids"].shape, abs(found.error) < 1e-4
    (torch.Size([3]), True)
    """
    given = {name: tensor.clone() for name, tensor in inputs.items()}  # inference tensors have no gradient
    nodes, shares = np.polynomial.legendre.leggauss(n_steps)
    places = dict(embedding_of(model, stack) for stack in ("encoder", "decoder"))
    with torch.enable_grad(), edited(model, edits) as view:
        starts, ends = {}, {}
        for name, path in places.items():
            tokens, ids = view.get_submodule(f"{path}.tokens"), given[name]
            ends[name] = tokens(ids).detach()
            starts[name] = tokens(torch.full_like(ids, baseline or 0)).detach() * (baseline is not None)

        def run(alphas: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            points = {}
            for name, path in places.items():
                point = torch.lerp(starts[name], ends[name], alphas[:, None, None].to(ends[name]))
                points[name] = point.requires_grad_()
                view.set_submodule(f"{path}.tokens", Given(points[name]))
            return metric(view(**{n: t.expand(len(alphas), *t.shape[1:]) for n, t in given.items()})), points

        low, high = run(torch.tensor([0.0, 1.0]))[0].tolist()
        found = {name: torch.zeros(end.shape[1]) for name, end in ends.items()}
        rows = max(1, 4096 // sum(end.shape[1] for end in ends.values()))
        points_of = torch.tensor((nodes + 1) / 2).split(rows)
        for alphas, weights in zip(points_of, torch.tensor(shares / 2).split(rows), strict=True):
            values, points = run(alphas)
            gradients = torch.autograd.grad(values.sum(), [*points.values()])
            for name, gradient in zip(points, gradients, strict=True):
                slope = torch.einsum("r,rld->ld", weights.to(gradient), gradient)
                found[name] += (slope * (ends[name] - starts[name])[0]).sum(-1).cpu()
    return IntegratedGradients(found, high - low)
