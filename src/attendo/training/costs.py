"""The cost of an update, calculated: parameters, operations and bytes of memory, from modules and batch lengths.

Nothing here is measured and no weight is held: a model is built on torch's meta device. `scaling.py` has many
accelerators. docs/en/scale.md has all formulas, and how far they are from measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields

import torch
from torch import nn

from attendo.data.batches import Batch
from attendo.models import Model, ModelConfig, build_model
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, InputEmbedding
from attendo.nn.positions import DistanceBias, Rotary
from attendo.training.lora import Adapter
from attendo.training.losses import CHUNK_VALUES
from attendo.training.optimizer import hidden_matrices

BESIDE = {"q_proj", "k_proj", "v_proj", "in_proj", "gate_proj"}
"""Layers that stand side by side: what one of them gives, another does not read."""


def on_paper(config: ModelConfig) -> Model:
    """The model without memory for its weights, on torch's meta device: the very modules that training builds.

    >>> config = ModelConfig(vocab_size=37_000, d_model=1024, d_ff=4096, n_heads=16, attention_bias=False,
    ...                      n_encoder_layers=6, n_decoder_layers=6)
    >>> sum(parameter_groups(on_paper(config)).values())  # Vaswani et al. 2017, table 3, big
    214171648
    """
    with torch.device("meta"):
        return build_model(config)


def parameter_groups(model: nn.Module) -> dict[str, int]:
    """Trained numbers of the embeddings, encoder, decoder and output; a matrix that two share counts at the first."""
    groups: dict[str, int] = {"embeddings": 0, "encoder": 0, "decoder": 0, "output": 0}
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[_part(path)] += parameter.numel()
    return {name: count for name, count in groups.items() if count}


def _part(path: str) -> str:
    first = path.partition(".")[0]
    return (
        "embeddings"
        if first.endswith("embedding")
        else first
        if first in ("encoder", "decoder")
        else "output"
    )


# ---- operations


@dataclass(frozen=True)
class Load:
    """What goes through a model: sums over the rows of a batch, real tokens without padding.

    source, target: tokens that encoder and decoder read. output: rows of the output layer. source_pairs,
    target_pairs, cross_pairs: of query and key, Σ src², ½ Σ tgt² (a causal query sees half of the keys on average)
    and Σ tgt · src.
    """

    source: float = 0.0
    target: float = 0.0
    output: float = 0.0
    source_pairs: float = 0.0
    target_pairs: float = 0.0
    cross_pairs: float = 0.0

    @property
    def tokens(self) -> float:
        """Real tokens, both sides."""
        return self.source + self.target


def load_of(batch: Batch) -> Load:
    """The load of a batch of any kind of task.

    >>> ids = torch.ones(2, 3, dtype=torch.long)
    >>> batch = Batch({"src": ids, "tgt": ids[:, :2], "src_lengths": torch.tensor([3, 1])}, ids[:, :2], 4, None)
    >>> load_of(batch)
    Load(source=4.0, target=4.0, output=4.0, source_pairs=10.0, target_pairs=4.0, cross_pairs=8.0)
    """
    inputs = batch.inputs
    src = tgt = torch.zeros(len(batch.targets), dtype=torch.float64)
    if "src" in inputs:
        rows, length = inputs["src"].shape
        src = inputs.get("src_lengths", torch.full((rows,), length)).double()
    if "tgt" in inputs or "token_ids" in inputs:
        tgt = (batch.targets != batch.pad_id).sum(1).double()
    sums = (float(x.sum()) for x in (src * src, tgt * tgt / 2, src * tgt))
    return Load(float(src.sum()), float(tgt.sum()), float(batch.n_targets), *sums)


def mean_load(loads: Iterable[Load]) -> Load:
    """The mean of several, field by field."""
    rows = [astuple(load) for load in loads]
    return Load(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def multiplications(model: nn.Module) -> Load:
    """How many numbers each unit of a load is multiplied by in one forward pass: weights a token passes, widths a pair.

    A weight of a projection of the memory (the keys and values of cross-attention) is passed by source tokens; a pair
    of query and key takes head_dim multiplications for its score and value_dim for its value, in each head. Embeddings
    are looked up, not multiplied, and cost nothing here.
    """
    found = {field.name: 0.0 for field in fields(Load)}
    for path, module in model.named_modules():
        for name, count in fields_of(module, path).items():
            found[name] += count
    return Load(**found)


def fields_of(module: nn.Module, path: str) -> dict[str, int]:
    """The multiplications of one module by the field of Load that they belong to; none for most.

    >>> fields_of(nn.Linear(2, 3), "decoder.blocks.0.cross_attention.k_proj")
    {'source': 6}
    """
    side = "target" if path.startswith("decoder") else "source"
    match module:
        case nn.Linear():
            if path.partition(".lora")[0].endswith(("cross_attention.k_proj", "cross_attention.v_proj")):
                side = "source"
            return {"output" if path == "output_proj" else side: module.in_features * module.out_features}
        case Attention():
            side = "cross" if path.endswith("cross_attention") else side
            return {f"{side}_pairs": module.n_heads * (module.head_dim + module.value_dim)}
        case _:
            return {}


def reached(model: nn.Module) -> set[str]:
    """The paths of the modules to whose input a gradient goes back, since something before them is trained.

    >>> model = on_paper(ModelConfig(architecture="decoder", vocab_size=11, n_encoder_layers=0, n_decoder_layers=2))
    >>> _ = model.embedding.requires_grad_(False)
    >>> sorted(path for path in reached(model) if path.endswith("q_proj"))
    ['decoder.blocks.1.self_attention.q_proj']
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    comes = {"source": False, "target": False}
    before = {"": dict(comes)}
    found: set[str] = set()
    for path, module in modules.items():
        layer = path.partition(".lora")[0]
        parent, _, name = layer.rpartition(".")
        side = _side(path, modules)
        memory = layer.endswith(("cross_attention.k_proj", "cross_attention.v_proj"))
        residual = modules.get(f"{path}_residual")
        if isinstance(residual, Residual) and residual.norm_first:
            comes[side] = comes[side] or learns(residual.norm)
        before[path] = dict(comes)
        # layers side by side read what came before the first of them, and so does A of an adapter; B reads what A gives
        gives = path.endswith("lora.up")
        at = before[parent] if name in BESIDE and not gives else comes
        if at["source" if memory and not gives else side]:
            found.add(path)
        comes[side] = comes[side] or learns(module, recurse=False) or (memory and comes["source"])
    return found


def learns(module: nn.Module, recurse: bool = True) -> bool:
    """Whether a parameter of the module, or of a module in it, is trained."""
    return any(parameter.requires_grad for parameter in module.parameters(recurse))


def _side(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Whether a module works on what the encoder or on what the decoder reads."""
    if "encoder" not in modules or path.startswith(("decoder", "target_")):
        return "target"
    return "target" if path.startswith("output") and "decoder" in modules else "source"


def training_multiplications(model: nn.Module) -> Load:
    """As `multiplications`, a third for each of the passes that training makes: forward, and, as far as something is
    trained there or before, towards the inputs and towards the weights. Equal to them where nothing is frozen.
    """
    found = {field.name: 0.0 for field in fields(Load)}
    gets = reached(model)
    for path, module in model.named_modules():
        for name, count in fields_of(module, path).items():
            if isinstance(module, nn.Linear):
                passes = 1 + (path in gets or path == "output_proj") + module.weight.requires_grad
            else:
                passes = 3 if f"{path}.out_proj" in gets else 1
            found[name] += count * passes / 3
    return Load(**found)


def training_flops(passed: Load, load: Load) -> float:
    """Floating-point operations of an update's products: 6 for each multiplication of the forward pass.

    2 forward, 4 backward (towards the inputs and towards the weights), Kaplan et al. 2020, section 2.1. With the
    usual widths that is 6 x weights x tokens + 12 x q_len x k_len x d_model per attention layer, half if causal.
    Norms, activations, dropout, softmax and the optimizer are not counted, nor is what is computed twice.

    >>> training_flops(Load(source=100.0), Load(source=7.0))
    4200.0
    """
    return 6.0 * sum(a * b for a, b in zip(astuple(passed), astuple(load), strict=True))


# ---- memory: the terms follow what autograd keeps for these layers; tests compare them with what torch keeps


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
