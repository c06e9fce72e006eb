"""What an update costs on paper: parameters and operations, from a model's modules and the lengths of a batch.

Nothing here is measured and no weight is held: a model is built on torch's meta device. `memory.py` has the bytes,
`scaling.py` many accelerators; docs/en/scale.md has all formulas, and how far they are from what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields

import torch
from torch import nn

from attendo.data.batches import Batch
from attendo.models import Model, ModelConfig, build_model
from attendo.nn.attention import Attention
from attendo.nn.blocks import Residual

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
