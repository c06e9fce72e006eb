"""What an update holds in memory, in bytes, on paper: weights, gradients, states, activations, the loss.

The terms follow what autograd keeps for this code's own layers; tests hold them to what torch says it keeps.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from torch import nn

from attendo.data.batches import Batch
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, EncoderBlock, Residual
from attendo.nn.embeddings import InputEmbedding
from attendo.nn.feedforward import FeedForward
from attendo.nn.positions import DistanceBias, Rotary
from attendo.training.costs import learns, reached
from attendo.training.lora import Adapter
from attendo.training.losses import CHUNK_VALUES
from attendo.training.optimizer import hidden_matrices

FLOAT, HALF, BOOL = 4, 2, 1
"""Bytes of a number in float32 (weights, gradients, states, the residual stream) and in 16 bits, and of a truth."""


@dataclass(frozen=True)
class Cells:
    """Positions of a batch with its padding, which takes memory as the real tokens do.

    source, target: what encoder and decoder read; output: rows of the output layer. source_mask, target_mask,
    cross_mask: entries of the matrix that masks attention, 0 where it needs none.
    """

    source: float = 0.0
    target: float = 0.0
    output: float = 0.0
    source_mask: float = 0.0
    target_mask: float = 0.0
    cross_mask: float = 0.0


def cells_of(batch: Batch) -> Cells:
    """The cells of a batch of any kind of task.

    >>> import torch
    >>> ids = torch.ones(2, 3, dtype=torch.long)
    >>> cells_of(Batch({"src": ids, "tgt": ids[:, :2]}, ids[:, :2], 4, None))
    Cells(source=6, target=4, output=4, source_mask=0, target_mask=0, cross_mask=0)
    """
    inputs = batch.inputs
    src, tgt = inputs.get("src"), inputs.get("tgt", inputs.get("token_ids"))
    source, target = (0 if ids is None else ids.numel() for ids in (src, tgt))
    src_len, tgt_len = (0 if ids is None else ids.shape[1] for ids in (src, tgt))
    padded, cut = "src_lengths" in inputs, "segments" in inputs
    return Cells(
        source,
        target,
        batch.n_targets,
        source * src_len if padded else 0,
        target * tgt_len if cut else 0,
        target * src_len if padded else 0,
    )


def times(cells: Cells, factor: float) -> Cells:
    """So many times as many rows of the same lengths."""
    return Cells(*(factor * value for value in astuple(cells)))


@dataclass(frozen=True)
class Memory:
    """Bytes that training holds at once. weights: with the copies that autocast keeps. states: of the optimizer.

    activations: kept by the forward pass for the backward pass. loss: of the output layer and its gradients.
    spare: of the largest matrix, whose gradient may arrive in parts.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    loss: float
    spare: float

    @property
    def peak(self) -> float:
        """The largest sum of what stands at one time.

        Gradients come as activations go, layer by layer, so the peak is at one end of the backward pass: all
        activations and the loss, or all gradients.
        """
        return self.weights + self.states + max(self.activations + self.loss, self.gradients + self.spare)


@dataclass(frozen=True)
class Formats:
    """What decides how many bytes a number takes: products of 16 bits under autocast or not, and where."""

    half: bool = False
    on_gpu: bool = False

    @property
    def product(self) -> int:
        """Of what a linear layer gives."""
        return HALF if self.half else FLOAT

    @property
    def heads(self) -> int:
        """Of queries, keys and values: the fused kernel works in float32 on a CPU."""
        return HALF if self.half and self.on_gpu else FLOAT

    def mask(self, size: int) -> int:
        """What dropout keeps of a value of that size: a number like it on a CPU, a truth on a GPU."""
        return BOOL if self.on_gpu else size


def training_memory(
    model: nn.Module,
    cells: Cells,
    formats: Formats = Formats(),
    *,
    muon: bool = False,
    averaged: bool = False,
    checkpointing: bool = False,
) -> Memory:
    """The memory of an update whose largest batch has these cells.

    A parameter takes 4 bytes, and if it is trained its gradient 4 and AdamW's two moments 8; muon: one moment (4) of
    the hidden layers' matrices; averaged: 4 more, of a moving average. Autocast keeps a copy (2) of each matrix that
    it multiplies with.
    """
    learned = [p.numel() for p in model.parameters() if p.requires_grad]
    n = sum(learned)
    hidden = sum(p.numel() for p in hidden_matrices(model))
    linear = {
        module.weight: module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)
    }
    return Memory(
        weights=FLOAT * sum(p.numel() for p in model.parameters())
        + (HALF * sum(linear.values()) if formats.half else 0),
        gradients=FLOAT * n,
        states=2 * FLOAT * n + (FLOAT * n if averaged else 0) - (FLOAT * hidden if muon else 0),
        activations=activation_bytes(model, cells, formats, checkpointing=checkpointing),
        loss=loss_bytes(model.get_submodule("output_proj"), cells.output, formats),
        spare=FLOAT * max(learned),
    )


def loss_bytes(output: nn.Module, rows: float, formats: Formats = Formats()) -> float:
    """The output layer and the loss in one pass over chunks: hidden states and their gradient, ∂W twice, and one chunk.

    A chunk has logits, probabilities and what is between them, about three numbers each.
    """
    assert isinstance(output, nn.Linear)
    vocab, width = output.weight.shape
    chunk = min(rows * vocab, max(CHUNK_VALUES, vocab)) * (3 * FLOAT + (2 * HALF if formats.half else 0))
    return 2 * FLOAT * (rows + vocab) * width + chunk


def activation_bytes(
    model: nn.Module, cells: Cells, formats: Formats = Formats(), *, checkpointing: bool = False
) -> float:
    """Bytes that the forward pass keeps for the backward pass, padding included, without the loss.

    In float32 with LayerNorm, ReLU and dropout a block of self-attention keeps 10d + d_ff numbers a position: two
    inputs of norms, the input, query, key, value and result of attention, the inputs of the feed-forward net's layers
    and two masks. checkpointing: only the input of each block is kept, and one block at a time is computed again (Chen
    et al. 2016). What is frozen, with all before it, keeps nothing. What is frozen behind something trained is counted
    like the trained: right within 5 % with adapters on all layers, up to a third too much with them on few.
    """
    blocks, inputs, rest = [0.0], 0.0, 0.0
    gets = reached(model)
    for path, module in model.named_modules():
        if not learns(module) and not any(f"{place}.".startswith(f"{path}.") for place in gets):
            continue
        n = cells.target if path.startswith(("decoder", "target_")) else cells.source or cells.target
        match module:
            case EncoderBlock() | DecoderBlock():
                blocks.append(_block_bytes(module, path, cells, formats))
                inputs += n * FLOAT * module.self_attention.q_proj.in_features
            case InputEmbedding() if module.dropout.p:
                rest += n * module.tokens.weight.shape[1] * formats.mask(FLOAT)
            case nn.LayerNorm() | nn.RMSNorm() if ".blocks." not in path:
                rest += n * _norm_bytes(module)
            case nn.Linear() if path == "output_hidden":  # and its activation
                rest += n * formats.product * (module.in_features + module.out_features)
            case nn.Linear() if path == "decoder.blocks.0.cross_attention.k_proj" and not formats.half:
                rest += cells.source * FLOAT * module.in_features  # the memory, kept once for all blocks
            case _:
                pass
    return rest + (inputs + max(blocks) if checkpointing else sum(blocks))


def _block_bytes(block: nn.Module, place: str, cells: Cells, formats: Formats) -> float:
    """What one block keeps."""
    decodes = place.startswith("decoder")
    n, mask = (cells.target, cells.target_mask) if decodes else (cells.source, cells.source_mask)
    total = 0.0
    for path, module in block.named_modules():
        match module:
            case Attention() if path == "cross_attention":
                total += _attention_bytes(module, (n, cells.source), cells.cross_mask, formats)
            case Attention():
                total += _attention_bytes(module, (n, n), mask, formats)
            case FeedForward():
                total += n * _feed_forward_bytes(module, formats)
            case Adapter():
                of_memory = path.startswith(("cross_attention.k_proj", "cross_attention.v_proj"))
                total += (cells.source if of_memory else n) * _adapter_bytes(module, formats)
            case Residual():
                total += n * _norm_bytes(module.norm)
                if module.dropout.p:
                    total += n * _width(module.norm) * formats.mask(formats.product)
            case _:
                pass
    return total


def _attention_bytes(
    attention: Attention, lengths: tuple[float, float], mask: float, formats: Formats
) -> float:
    queries, keys = lengths
    width, memory = attention.q_proj.in_features, attention.k_proj.in_features
    heads, scores, values = attention.n_heads, attention.head_dim, attention.value_dim
    given = heads * values * queries
    kept = (queries * heads * scores + keys * heads * (scores + values) + given) * formats.heads
    biased = isinstance(attention.positions, DistanceBias)
    # the logarithm of each row's sum, and the mask, or a bias of each head in its place
    kept += FLOAT * heads * queries + FLOAT * mask * (heads if biased else 1)
    if formats.half:  # each projection has a copy of its own of what it reads
        kept += HALF * (queries * width + 2 * keys * memory)
        return kept + (0 if formats.on_gpu and not mask else HALF * given)
    copied = mask or isinstance(attention.positions, Rotary)  # what the kernel gives, for the projection
    return kept + FLOAT * queries * width + (FLOAT * given if copied else 0)


def _feed_forward_bytes(net: FeedForward, formats: Formats) -> float:
    """A position. ReLU's result is all that its gradient needs; other activations keep what they read, too."""
    width, inner = net.in_proj.in_features, net.in_proj.out_features
    inputs = formats.product * width * (2 if formats.half and net.gate_proj is not None else 1)
    is_relu, is_gated = net.activation is nn.functional.relu, net.gate_proj is not None
    numbers = (1 if is_relu else 2) + (2 if is_gated else 0)
    kept = inputs + numbers * inner * formats.product
    if net.dropout.p:  # its mask; what it gives takes the place of what it reads, but for ReLU's result
        kept += inner * (formats.mask(formats.product) + (formats.product if is_relu and not is_gated else 0))
    return kept


def _adapter_bytes(adapter: Adapter, formats: Formats) -> float:
    """A position: what B reads, and with dropout what A reads, and the mask."""
    width, rank = adapter.down.in_features, adapter.down.out_features
    dropped = width * (formats.product + formats.mask(FLOAT)) if adapter.dropout.p else 0
    return rank * formats.product + dropped


def _norm_bytes(norm: nn.Module) -> float:
    """A position: what the norm reads, and its mean and deviation; an RMSNorm keeps the quotient, too."""
    return FLOAT * _width(norm) * (1 if isinstance(norm, nn.LayerNorm) else 2) + 2 * FLOAT


def _width(norm: nn.Module) -> int:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    return norm.normalized_shape[0]
