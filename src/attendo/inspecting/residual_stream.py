"""The residual stream: what each head adds to it, and what the model would already say from it (the logit lens)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attendo.errors import AttendoError
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.attention import Attention, share_heads
from attendo.nn.layers import ACTIVATIONS, pool


def head_contributions(
    mixed: Float[Tensor, "batch heads q_len value_dim"],
    out_weight: Float[Tensor, "d_out heads_times_value_dim"],
) -> Float[Tensor, "batch heads q_len d_out"]:
    """What each head adds to the output: Concat(heads)Wᵒ = Σ_h head_h W_hᵒ (Vaswani et al. 2017, section 3.2.2).

    mixed: the values each head has mixed, as `Attend` returns them. Their sum over heads, plus the bias, is what
    the projection back gives.

    >>> head_contributions(torch.ones(1, 2, 1, 1), torch.tensor([[1.0, 10.0]])).flatten()
    tensor([ 1., 10.])
    """
    return torch.einsum("bhqv,ohv->bhqo", mixed, out_weight.unflatten(1, (mixed.shape[1], -1)))


def head_matrices(attention: Attention) -> Float[Tensor, "heads d_out d_memory"]:
    """W^(h) = W_hᵒ W_hᵛ of each head: what it does to a token it attends to; its rank is value_dim at most.

    Column vectors, as in `nn.Linear`; biases aside (Bishop & Bishop 2024, exercise 12.5).

    >>> head_matrices(Attention(6, 2)).shape
    torch.Size([2, 6, 6])
    """
    value = attention.v_proj.weight.unflatten(0, (1, attention.n_kv_heads, -1))
    out = attention.out_proj.get_parameter("weight").unflatten(1, (attention.n_heads, -1))
    return torch.einsum("ohv,hvi->hoi", out, share_heads(value, attention.n_heads)[0])


def value_norms(
    attention: Attention, value: Float[Tensor, "batch kv_heads k_len value_dim"]
) -> Float[Tensor, "batch heads k_len"]:
    """‖v_j W_hᵒ‖: how long the vector is that a head would add if all its weight were on key j.

    value: as the layer projects them, or a recording has them. Kobayashi et al. 2020, ‖f(x)‖.

    >>> layer = Attention(4, 2)
    >>> value_norms(layer, layer.keys_values(torch.ones(1, 3, 4))[1]).shape
    torch.Size([1, 2, 3])
    """
    return head_contributions(share_heads(value, attention.n_heads), _out_weight(attention)).norm(dim=-1)


def weighted_norms(
    attention: Attention,
    weights: Float[Tensor, "batch heads q_len k_len"],
    value: Float[Tensor, "batch kv_heads k_len value_dim"],
) -> Float[Tensor, "batch heads q_len k_len"]:
    """‖α_ij v_j W_hᵒ‖: what key j adds to query i through head h.

    A large weight on a short vector adds little. Kobayashi et al. 2020, "Attention is Not Only a Weight".

    >>> layer = Attention(4, 2)
    >>> weighted_norms(layer, torch.zeros(1, 2, 3, 3), layer.keys_values(torch.ones(1, 3, 4))[1]).sum().item()
    0.0
    """
    return weights * value_norms(attention, value)[:, :, None]


def contribution_norms(
    attention: Attention, mixed: Float[Tensor, "batch heads q_len value_dim"]
) -> Float[Tensor, "batch heads q_len"]:
    """‖Σ_j α_ij v_j W_hᵒ‖: the length of what each head adds directly to each query's output."""
    return head_contributions(mixed, _out_weight(attention)).norm(dim=-1)


def head_singular_values(attention: Attention) -> Float[Tensor, "heads rank_at_most"]:
    """The singular values of each W^(h) = W_hᵒ W_hᵛ that may differ from 0, largest first; value_dim at most.

    In float64, by the two small triangles of QR: W_hᵒ = Q₁R₁ and W_hᵛᵀ = Q₂R₂ give W^(h) the singular values of
    R₁R₂ᵀ. Their root sum of squares is ‖W^(h)‖_F.

    >>> layer = Attention(4, 2)
    >>> _ = torch.nn.init.eye_(layer.v_proj.weight), torch.nn.init.eye_(layer.out_proj.weight)
    >>> head_singular_values(layer)
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    out = _out_weight(attention).detach().double().unflatten(1, (attention.n_heads, -1)).transpose(0, 1)
    value = attention.v_proj.weight.detach().double().unflatten(0, (1, attention.n_kv_heads, -1))
    value = share_heads(value, attention.n_heads)[0].mT
    # numpy's does these small ones in one thread; torch wakes all for each, and they may have to wait for a core
    left, right = (np.linalg.qr(part.cpu().numpy()).R for part in (out, value))
    return torch.from_numpy(np.linalg.svd(left @ right.swapaxes(-1, -2), compute_uv=False))


def head_ranks(attention: Attention) -> Int[Tensor, " heads"]:
    """The numerical rank of each W^(h): its singular values above max(d_out, d_memory) · ε · the largest.

    ε: of the parameters' own precision. Bishop & Bishop 2024, exercise 12.5: value_dim at most.

    >>> head_ranks(Attention(8, 4))
    tensor([2, 2, 2, 2])
    """
    found, weight = head_singular_values(attention), attention.v_proj.weight
    share = max(_out_weight(attention).shape[0], weight.shape[1]) * torch.finfo(weight.dtype).eps
    return ((found > share * found[:, :1]) & (found > 0)).sum(-1)


def _out_weight(attention: Attention) -> Float[Tensor, "d_out heads_times_value_dim"]:
    return attention.out_proj.get_parameter("weight")


Stack = Literal["encoder", "decoder"]


def lens_logits(
    model: Model, states: Float[Tensor, "*batch len d_model"], stack: Stack
) -> Float[Tensor, "*batch len n"]:
    """output(norm(h)) of a block's output h: logits over the vocabulary, or, of a classifier, over its classes.

    states: outputs of a stack's embedding or block, as a recording has them. norm: the stack's last, none where blocks
    take the norm last. Of the last block's output the logits are the model's own (of a classifier: `pooled_lens`).
    nostalgebraist 2020, "interpreting GPT: the logit lens".
    Raises AttendoError for a stack from which nothing is predicted; a translator's encoder has `lens_cosines`.

    >>> import torch
    >>> from attendo.models import DecoderLM, ModelConfig
    >>> from attendo.inspecting.recording import recording
    >>> sizes = dict(vocab_size=9, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=2)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", norm_first=True, **sizes)).eval()
    >>> with recording(model, "decoder.blocks.1.output") as record:
    ...     logits = record.model(torch.tensor([[1, 2, 3]]))
    >>> torch.equal(lens_logits(model, record["decoder.blocks.1"].output, "decoder"), logits)
    True
    """
    match model, stack:
        case EncoderDecoder() | DecoderLM(), "decoder":
            return model.output(model.decoder.norm(states))
        case EncoderClassifier(), "encoder" if model.config.n_classes and model.config.d_output is None:
            return model.output(model.encoder.norm(states))
        case MaskedLM(), "encoder":
            inner = ACTIVATIONS[model.config.activation](model.output_hidden(model.encoder.norm(states)))
            return model.output(model.output_norm(inner))
    remedy = "lens_cosines has its nearest embeddings" if stack == "encoder" else "take its other stack"
    raise AttendoError(f"nothing is predicted from the {stack} of {type(model).__name__}; {remedy}")


def pooled_lens(
    model: EncoderClassifier,
    states: Float[Tensor, "batch len d_model"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch classes"]:
    """output(pool(norm(h))): what a classifier would say of each text if it ended after this block.

    lengths: how many tokens of each row are real. Of the last block's output it is the model's own logits.
    """
    return model.output(pool(model.encoder.norm(states), model.config.pooling, lengths))


def lens_cosines(
    model: EncoderDecoder, states: Float[Tensor, "*batch src_len d_model"]
) -> Float[Tensor, "*batch src_len vocab"]:
    """The cosine of each encoder state norm(h) with each source token's embedding, 0 for one of length 0.

    An encoder predicts nothing; this says which token its states are still nearest to.
    """
    weight = model.source_embedding.tokens.weight
    return F.normalize(model.encoder.norm(states), dim=-1) @ F.normalize(weight, dim=-1).T
