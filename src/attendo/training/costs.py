"""Calculated cost of a training update: operations, memory and, on many accelerators, communication.

Models are built on PyTorch's meta device, without memory for weights. All values are numbers in bytes, seconds and
floating-point operations. docs/en/cost-model.md derives the formulas and compares them with measurements.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from attendo.data.batches import Batch
from attendo.errors import AttendoError
from attendo.models import Model, ModelConfig, build_model
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, InputEmbedding
from attendo.nn.positions import DistanceBias, Rotary
from attendo.training.lora import Adapter
from attendo.training.losses import CHUNK_VALUES
from attendo.training.optimizer import hidden_matrices

PARALLEL = {"q_proj", "k_proj", "v_proj", "in_proj", "gate_proj"}
"""Names of layers that read the same input, in an attention layer or a feed-forward network."""


def on_paper(config: ModelConfig) -> Model:
    """Build a model on PyTorch's meta device, without memory for its weights.

    >>> config = ModelConfig(vocab_size=37_000, d_model=1024, d_ff=4096, n_heads=16, attention_bias=False,
    ...                      n_encoder_layers=6, n_decoder_layers=6)
    >>> sum(parameter_groups(on_paper(config)).values())  # Vaswani et al. 2017, table 3, big
    214171648
    """
    with torch.device("meta"):
        return build_model(config)


def parameter_groups(model: nn.Module) -> dict[str, int]:
    """Count the trainable parameters of the embeddings, the encoder, the decoder and the output.

    A shared matrix is counted only in the first group that uses it.
    """
    groups: dict[str, int] = {"embeddings": 0, "encoder": 0, "decoder": 0, "output": 0}
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            first = path.partition(".")[0]
            part = "embeddings" if first.endswith("embedding") else first
            groups[part if part in groups else "output"] += parameter.numel()
    return {name: count for name, count in groups.items() if count}


# ---- operations


@dataclass(frozen=True)
class Load:
    """The numbers of tokens and query-key pairs in a batch, excluding padding. They determine the cost of an update.

    Attributes:
        source, target: Numbers of encoder tokens and decoder tokens.
        output: Number of vectors that the output layer processes.
        source_pairs: Number of query-key pairs in encoder self-attention, Σ src².
        target_pairs: Number of query-key pairs in decoder self-attention, ½ Σ tgt². A causal query has half of the
            keys on average.
        cross_pairs: Number of query-key pairs in cross-attention, Σ tgt · src.
    """

    source: float = 0.0
    target: float = 0.0
    output: float = 0.0
    source_pairs: float = 0.0
    target_pairs: float = 0.0
    cross_pairs: float = 0.0

    @property
    def tokens(self) -> float:
        """Number of encoder and decoder tokens, without padding."""
        return self.source + self.target


def load_of(batch: Batch) -> Load:
    """Compute the load of a batch of any kind of task.

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
    """Return the mean of several loads, field by field."""
    rows = [astuple(load) for load in loads]
    return Load(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def fields_of(module: nn.Module, path: str) -> dict[str, int]:
    """Count the multiplications of a module in a forward pass, by the field of `Load` that they are proportional to.

    The weights of a linear layer are counted per token. Cross-attention computes keys and values for source tokens. In
    each head, a query-key pair requires head_dim multiplications for its score and value_dim for its value. Embeddings
    are looked up, not multiplied.

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
    """Return the paths of the modules whose input receives a gradient, because a module before them is trainable.

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
        # parallel layers, and A of an adapter, read the input of the first such layer; B reads the output of A
        gives = path.endswith("lora.up")
        at = before[parent] if name in PARALLEL and not gives else comes
        if at["source" if memory and not gives else side]:
            found.add(path)
        comes[side] = comes[side] or learns(module, recurse=False) or (memory and comes["source"])
    return found


def learns(module: nn.Module, recurse: bool = True) -> bool:
    """Return whether a parameter of the module is trainable. With `recurse`, inner modules are also checked."""
    return any(parameter.requires_grad for parameter in module.parameters(recurse))


def _side(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Return "source" for a module that processes the encoder's input, and "target" for the decoder's input."""
    if "encoder" not in modules or path.startswith(("decoder", "target_")):
        return "target"
    return "target" if path.startswith("output") and "decoder" in modules else "source"


def training_multiplications(model: nn.Module) -> Load:
    """Count the multiplications of a model per unit of each field of `Load`, as the mean over three passes.

    The passes are forward, backward to the inputs, and backward to the weights. Frozen parts skip some of these passes.
    If no part is frozen, the result equals the multiplications of one forward pass.
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
    """Return the floating-point operations of all matrix products in an update.

    A multiplication of the forward pass costs 6 operations: 2 forward and 4 backward, to the inputs and to the weights
    (Kaplan et al. 2020, section 2.1). With the usual widths, the total is 6 x weights x tokens + 12 x q_len x k_len x
    d_model per attention layer; a causal layer requires half of the second term. Normalization, activation functions,
    dropout, softmax, recomputation and the optimizer are not counted.

    >>> training_flops(Load(source=100.0), Load(source=7.0))
    4200.0
    """
    return 6.0 * sum(a * b for a, b in zip(astuple(passed), astuple(load), strict=True))


# ---- memory: tests compare the terms with the tensors that autograd keeps


FLOAT, HALF, BOOL = 4, 2, 1
"""Bytes of a float32 number (weights, gradients, optimizer state, residual stream), a 16-bit number and a boolean."""


@dataclass(frozen=True)
class Cells:
    """Numbers of positions and mask entries in a batch, padding included. Without a mask, the number of entries is 0.

    The fields `…_mask` count the entries of a mask. All other fields are as in `Load`, but causal pairs are not halved.
    """

    source: float = 0.0
    target: float = 0.0
    output: float = 0.0
    source_mask: float = 0.0
    target_mask: float = 0.0
    cross_mask: float = 0.0
    source_pairs: float = 0.0
    target_pairs: float = 0.0
    cross_pairs: float = 0.0


def cells_of(batch: Batch) -> Cells:
    """Count the positions and mask entries of a batch of any kind of task.

    >>> import torch
    >>> ids = torch.ones(2, 3, dtype=torch.long)
    >>> cells = cells_of(Batch({"src": ids, "tgt": ids[:, :2]}, ids[:, :2], 4, None))
    >>> cells.source, cells.target, cells.cross_mask, cells.cross_pairs
    (6, 4, 0, 12)
    """
    inputs = batch.inputs
    src, tgt = inputs.get("src"), inputs.get("tgt", inputs.get("token_ids"))
    source, target = (0 if ids is None else ids.numel() for ids in (src, tgt))
    src_len, tgt_len = (0 if ids is None else ids.shape[1] for ids in (src, tgt))
    padded, cut = "src_lengths" in inputs, "segments" in inputs
    pairs = (source * src_len, target * tgt_len, target * src_len)
    masks = [n if there else 0 for n, there in zip(pairs, (padded, cut, padded), strict=True)]
    return Cells(source, target, batch.n_targets, *(masks + list(pairs)))


def times(cells: Cells, factor: float) -> Cells:
    """Return the numbers of positions and mask entries for `factor` times as many rows of the same lengths."""
    return Cells(*(factor * value for value in astuple(cells)))


@dataclass(frozen=True)
class Memory:
    """Memory that a training update requires, in bytes by purpose.

    Attributes:
        weights: Bytes of the weights and of the 16-bit copies that autocast keeps.
        states: Bytes of the optimizer state.
        activations: Bytes that the forward pass stores for the backward pass.
        loss: Bytes of the output layer and its gradients while the loss is computed.
        spare: Bytes of a temporary gradient of the largest matrix while its gradient is summed from parts.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    loss: float
    spare: float

    @property
    def peak(self) -> float:
        """Largest number of bytes in use at one time: the maximum of the start and the end of the backward pass."""
        return self.weights + self.states + max(self.activations + self.loss, self.gradients + self.spare)


@dataclass(frozen=True)
class Formats:
    """Number formats of training: 16-bit matrix products with autocast (`half`), and a GPU or a CPU (`on_gpu`)."""

    half: bool = False
    on_gpu: bool = False

    @property
    def product(self) -> int:
        """Bytes per number in the output of a linear layer."""
        return HALF if self.half else FLOAT

    @property
    def heads(self) -> int:
        """Bytes per number in queries, keys and values. The fused attention kernel works in float32 on a CPU."""
        return HALF if self.half and self.on_gpu else FLOAT

    def mask(self, size: int) -> int:
        """Return the bytes per entry of a dropout mask: 1 on a GPU, and the `size` of the masked numbers on a CPU."""
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
    """Estimate the memory of a training update. `cells` are the positions and mask entries of its largest batch.

    A parameter takes 4 bytes. A trainable parameter takes 4 more bytes for its gradient and 8 for the two moments of
    AdamW. With `muon`, the matrices of hidden layers have only one moment (4 bytes). With `averaged`, a moving average
    takes 4 bytes. Autocast keeps a 16-bit copy (2 bytes) of each linear matrix.
    """
    learned = [p.numel() for p in model.parameters() if p.requires_grad]
    n = sum(learned)
    hidden = sum(p.numel() for p in hidden_matrices(model)) if muon else 0
    linear = {module.weight for module in model.modules() if isinstance(module, nn.Linear)} if formats.half else ()
    copies = HALF * sum(weight.numel() for weight in linear)
    return Memory(
        weights=FLOAT * sum(p.numel() for p in model.parameters()) + copies,
        gradients=FLOAT * n,
        states=FLOAT * ((3 if averaged else 2) * n - hidden),
        activations=activation_bytes(model, cells, formats, checkpointing=checkpointing),
        loss=loss_bytes(model.get_submodule("output_proj"), cells.output, formats),
        spare=FLOAT * max(learned),
    )


def loss_bytes(output: nn.Module, rows: float, formats: Formats = Formats()) -> float:
    """Return the bytes of the output layer and the loss, which is computed in chunks.

    The bytes include the hidden states and their gradient, the weight gradient twice, and one chunk of logits. For each
    logit of the chunk, there are about three numbers: logit, probability and intermediate value.
    """
    assert isinstance(output, nn.Linear)
    vocab, width = output.weight.shape
    chunk = min(rows * vocab, max(CHUNK_VALUES, vocab)) * (3 * FLOAT + (2 * HALF if formats.half else 0))
    return 2 * FLOAT * (rows + vocab) * width + chunk


def activation_bytes(
    model: nn.Module, cells: Cells, formats: Formats = Formats(), *, checkpointing: bool = False
) -> float:
    """Return the bytes that the forward pass stores for the backward pass, with padding and without the loss.

    In float32 with LayerNorm, ReLU and dropout, a block of self-attention stores 10d + d_ff numbers per position. These
    numbers are the inputs of two norms, the input, query, key, value and result of attention, the inputs of the
    feed-forward layers, and two dropout masks. With `checkpointing`, only the input of each block is stored, and the
    blocks are recomputed one at a time (Chen et al. 2016).

    Frozen parts store nothing, unless a module before them is trainable. Frozen parts after a trainable module are
    counted fully. With adapters on all layers, the result is accurate to within 5%. With adapters on only a few layers,
    the result is up to a third too high.
    """
    blocks = [0.0]
    inputs = 0.0
    rest = 0.0
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
            case nn.Linear() if path == "output_hidden":  # the layer and its activation
                rest += n * formats.product * (module.in_features + module.out_features)
            case nn.Linear() if path == "decoder.blocks.0.cross_attention.k_proj" and not formats.half:
                rest += cells.source * FLOAT * module.in_features  # the encoder output, kept once
            case _:
                pass
    return rest + (inputs + max(blocks) if checkpointing else sum(blocks))


def _block_bytes(block: EncoderBlock | DecoderBlock, place: str, cells: Cells, formats: Formats) -> float:
    """Return the bytes that a block stores for the backward pass."""
    decodes = place.startswith("decoder")
    n, mask, pairs = cells.source, cells.source_mask, cells.source_pairs
    if decodes:
        n, mask, pairs = cells.target, cells.target_mask, cells.target_pairs
    total = 0.0
    for path, module in block.named_modules():
        match module:
            case Attention() if path == "cross_attention":
                total += _attention_bytes(module, (n, cells.source), cells.cross_mask, cells.cross_pairs, formats)
            case Attention():
                total += _attention_bytes(module, (n, n), mask, pairs, formats)
            case FeedForward():
                total += n * _feed_forward_bytes(module, formats)
            case Adapter():
                of_memory = path.startswith(("cross_attention.k_proj", "cross_attention.v_proj"))
                total += (cells.source if of_memory else n) * _adapter_bytes(module, formats)
            case Residual():
                kinds = nn.LayerNorm, nn.RMSNorm
                norms = [norm for norm in (module.norm, module.output_norm) if isinstance(norm, kinds)]
                total += n * sum(map(_norm_bytes, norms))
                if module.dropout.p:
                    total += n * block.self_attention.q_proj.in_features * formats.mask(formats.product)
            case _:
                pass
    return total


def _attention_bytes(
    attention: Attention, lengths: tuple[float, float], mask: float, pairs: float, formats: Formats
) -> float:
    queries, keys = lengths
    if attention.window is not None and attention.window * queries < pairs:
        mask = mask or (pairs / queries) ** 2  # all rows share the mask of the window
    width, memory = attention.q_proj.in_features, attention.k_proj.in_features
    heads, scores, values = attention.n_heads, attention.head_dim, attention.value_dim
    given = heads * values * queries
    kept = (queries * heads * scores + keys * heads * (scores + values) + given) * formats.heads
    for norm, vectors in (
        (attention.q_norm, heads * queries),
        (attention.k_norm, attention.n_kv_heads * keys),
    ):
        kept += vectors * _norm_bytes(norm) if isinstance(norm, nn.LayerNorm | nn.RMSNorm) else 0
    biased = isinstance(attention.positions, DistanceBias)
    if attention.attend.softcap is not None:  # tanh, softmax, masked weights and their dropout mask
        kept += heads * pairs * (3 * FLOAT + (formats.mask(FLOAT) if attention.attend.dropout else 0))
    else:  # the log-sum-exp of each row, and the mask or, instead of it, a bias for each head
        kept += FLOAT * heads * queries + FLOAT * mask * (heads if biased else 1)
    if formats.half:  # each projection has its own copy of its input
        kept += HALF * (queries * width + 2 * keys * memory)
        return kept + (0 if formats.on_gpu and not mask else HALF * given)
    copied = mask or isinstance(attention.positions, Rotary)  # a copy for the output projection
    return kept + FLOAT * queries * width + (FLOAT * given if copied else 0)


def _feed_forward_bytes(net: FeedForward, formats: Formats) -> float:
    """Return the bytes per position. ReLU stores its output; other activation functions also store their input."""
    width, inner = net.in_proj.in_features, net.in_proj.out_features
    inputs = formats.product * width * (2 if formats.half and net.gate_proj is not None else 1)
    is_relu, is_gated = net.activation is nn.functional.relu, net.gate_proj is not None
    numbers = (1 if is_relu else 2) + (2 if is_gated else 0)
    kept = inputs + numbers * inner * formats.product
    if net.dropout.p:  # the dropout mask, and the output in addition to the output of ReLU
        kept += inner * (formats.mask(formats.product) + (formats.product if is_relu and not is_gated else 0))
    return kept


def _adapter_bytes(adapter: Adapter, formats: Formats) -> float:
    """Return the bytes per position: the input of B, and with dropout also the input of A and the dropout mask."""
    width, rank = adapter.down.in_features, adapter.down.out_features
    dropped = width * (formats.product + formats.mask(FLOAT)) if adapter.dropout.p else 0
    return rank * formats.product + dropped


def _norm_bytes(norm: nn.Module) -> float:
    """Return the bytes per position: the input of the norm, its mean and deviation, and the quotient of an RMSNorm."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    return FLOAT * norm.normalized_shape[0] * (1 if isinstance(norm, nn.LayerNorm) else 2) + 2 * FLOAT


# ---- training on many accelerators


Sharding = Literal["ddp", "fsdp2"]
BUCKET = 25 * 2**20
"""Bytes of gradients that DDP reduces at once, PyTorch's default (Li et al. 2020)."""
MFU = 0.40
"""Default of the model FLOPs utilization (MFU). Chowdhery et al. 2022 define MFU and reach 0.46 on 6,144 chips."""


@dataclass(frozen=True)
class Accelerator:
    """Data sheet of an accelerator.

    Attributes:
        flops: Dense bfloat16 operations per second.
        memory: Bytes of memory.
        bandwidth: Network bandwidth of one accelerator in each direction, in bytes per second.
        inner, per_node: Bytes per second between the accelerators of a machine, and number of accelerators per machine.
        latency: Seconds per message. This value is assumed, because no data sheet contains it.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    inner: float = 0.0
    per_node: int = 1
    latency: float = 10e-6

    def link(self, world: int) -> float:
        """Return the bytes per second that each of `world` accelerators sends to its neighbor in a ring.

        Between machines, there is one ring per network adapter, so all adapters work at once. Each accelerator then
        performs as if it had all adapters of its machine.

        >>> Accelerator("", 1e12, 1e9, bandwidth=50.0, inner=450.0, per_node=8).link(16)
        400.0
        """
        if self.per_node == 1:
            return self.bandwidth
        return self.inner if world <= self.per_node else min(self.inner, self.per_node * self.bandwidth)


ACCELERATORS = {
    one.name: one
    for one in (
        Accelerator("a100", 312e12, 80e9, 25e9, 300e9, 8),
        Accelerator("h100", 989e12, 80e9, 50e9, 450e9, 8),
        Accelerator("h200", 989e12, 141e9, 50e9, 450e9, 8),
        Accelerator("b200", 2250e12, 180e9, 50e9, 900e9, 8),
    )
}
"""Accelerators by name. The values are from the data sheets of the SXM parts and of the vendor's machines with eight
accelerators. Such a machine has one network adapter of 200 or 400 Gbit/s per accelerator.
"""


def named_accelerator(name: str, given: Mapping[str, float | None] = MappingProxyType({})) -> Accelerator:
    """Return an entry of ACCELERATORS. Values of `given` that are not None replace the values of the entry.

    Raises AttendoError for an unknown name.

    >>> named_accelerator("a100", {"memory": 40e9, "flops": None}).memory
    40000000000.0
    """
    if name not in ACCELERATORS:
        raise AttendoError(f"unknown accelerator {name!r} (expected one of {', '.join(ACCELERATORS)})")
    return replace(ACCELERATORS[name], **{key: value for key, value in given.items() if value is not None})


def ring_bytes(n_bytes: float, world: int) -> float:
    """Return the bytes that each process sends in a ring all-reduce of a buffer of `n_bytes`.

    For W processes, each sends 2 (W-1)/W of the buffer, which is the minimum (Patarasuk & Yuan 2009). An all-gather or
    a reduce-scatter sends half of these bytes.

    >>> ring_bytes(100.0, 2), ring_bytes(100.0, 4)
    (100.0, 150.0)
    """
    return 2 * (world - 1) / world * n_bytes


def all_reduce_seconds(n_bytes: float, world: int, link: Accelerator, messages: int = 1) -> float:
    """Return the seconds of an all-reduce in a number of messages. The faster of ring and tree is assumed.

    A ring takes 2 (W-1) latencies per message and sends 2 (W-1)/W of the bytes. Two trees take 2 ⌈log₂ W⌉ latencies
    per message and send twice the bytes (Thakur et al. 2005; Sanders et al. 2009).

    >>> slow = Accelerator("", 1e12, 1e9, 1e9, latency=0.0)
    >>> all_reduce_seconds(1e9, 4, slow), all_reduce_seconds(1e9, 1, slow)
    (1.5, 0.0)
    """
    if world == 1:
        return 0.0
    ring = messages * 2 * (world - 1) * link.latency + ring_bytes(n_bytes, world) / link.link(world)
    tree = messages * 2 * math.ceil(math.log2(world)) * link.latency + 2 * n_bytes / link.link(world)
    return min(ring, tree)


def gather_seconds(n_bytes: float, world: int, link: Accelerator, messages: int = 1) -> float:
    """Return the seconds of an all-gather or a reduce-scatter of `n_bytes` in total, of which (W-1)/W are sent.

    A ring takes W-1 latencies per message. Recursive doubling takes ⌈log₂ W⌉ latencies. The smaller number is assumed
    (Thakur et al. 2005).
    """
    if world == 1:
        return 0.0
    steps = min(world - 1, math.ceil(math.log2(world)))
    return messages * steps * link.latency + ring_bytes(n_bytes, world) / 2 / link.link(world)


@dataclass(frozen=True)
class Job:
    """Sizes of a training job that determine its time and memory on many accelerators.

    Attributes:
        parameters: Number of all parameters.
        units, largest_unit: Number of parts that FSDP2 gathers one by one, and number of parameters in the largest
            part.
        flops: Floating-point operations of an update over all processes.
        gathered, reduced: Bytes per parameter that are sent as weights and as gradients.
    """

    parameters: float
    units: int
    largest_unit: float
    flops: float
    gathered: float = 4
    reduced: float = 4


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an update: `compute` at the assumed utilization, `traffic` on the links, and `total` with overlap."""

    compute: float
    traffic: float
    total: float

    @property
    def binds(self) -> str:
        """Bottleneck: "traffic" if the update takes over 10% longer than its computation, otherwise "products"."""
        return "traffic" if self.total > 1.1 * self.compute else "products"


def update_time(
    job: Job, world: int, accelerator: Accelerator, sharding: Sharding = "ddp", mfu: float = MFU
) -> UpdateTime:
    """Estimate the time of an update whose rows are divided among `world` accelerators.

    Computation takes C = flops / (world · peak · mfu), of which a third is the forward pass. DDP reduces gradients
    during the backward pass in T seconds: C/3 + max(2C/3, T). FSDP2 gathers the weights of each block before both
    passes in G seconds and scatters its gradients in S seconds: max(C/3, G) + max(2C/3, G + S) (Zhao et al. 2023;
    Rajbhandari et al. 2020, stage 3).
    """
    compute = job.flops / (world * accelerator.flops * mfu)
    forward, backward = compute / 3, 2 * compute / 3
    if sharding == "ddp":
        n_bytes = job.reduced * job.parameters
        traffic = all_reduce_seconds(n_bytes, world, accelerator, math.ceil(n_bytes / BUCKET))
        return UpdateTime(compute, traffic, forward + max(backward, traffic))
    gather = gather_seconds(job.gathered * job.parameters, world, accelerator, job.units)
    scatter = gather_seconds(job.reduced * job.parameters, world, accelerator, job.units)
    total = max(forward, gather) + max(backward, gather + scatter)
    return UpdateTime(compute, 2 * gather + scatter, total)


def hidden_from(job: Job, world: int, accelerator: Accelerator, sharding: Sharding = "ddp", mfu: float = MFU) -> float:
    """Return the factor by which an update must have more rows for its computation to hide the communication.

    If the factor is above 1, communication is the bottleneck of the update with the present number of rows.
    """
    time = update_time(job, world, accelerator, sharding, mfu)
    if sharding == "ddp":
        return time.traffic / (2 / 3 * time.compute)
    gather = gather_seconds(job.gathered * job.parameters, world, accelerator, job.units)
    return max(gather / (time.compute / 3), (time.traffic - gather) / (2 / 3 * time.compute))


def sharded_bytes(job: Job, world: int, states: float, activations: float, sharding: Sharding = "ddp") -> float:
    """Return the bytes on each accelerator, computed from the states and activations of a single process.

    With DDP, each accelerator has all states. With FSDP2, each accelerator has a share of the states, the weights of
    two units (the present and the next unit) and the gradient of one unit.
    """
    if sharding == "ddp":
        return states + activations
    return states / world + (2 * job.gathered + job.reduced) * job.largest_unit + activations
