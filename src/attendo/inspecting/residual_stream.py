"""The residual stream: the contribution of each head, and predictions from its states (the logit lens)."""

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
    """Return each head's contribution to the output: Concat(heads)Wᵒ = Σ_h head_h W_hᵒ (Vaswani et al. 2017, 3.2.2).

    The sum over heads plus the bias is the output of the output projection.

    Args:
        mixed: The weighted values of each head, recorded as `mixed`.
        out_weight: The weight matrix of the output projection.

    >>> head_contributions(torch.ones(1, 2, 1, 1), torch.tensor([[1.0, 10.0]])).flatten()
    tensor([ 1., 10.])
    """
    return torch.einsum("bhqv,ohv->bhqo", mixed, out_weight.unflatten(1, (mixed.shape[1], -1)))


def head_matrices(attention: Attention) -> Float[Tensor, "heads d_out d_memory"]:
    """Return W^(h) = W_hᵒ W_hᵛ, by which head h transforms an attended token (Bishop & Bishop 2024, exercise 12.5).

    Vectors are columns, as in `nn.Linear`. Biases are ignored. The rank of each matrix is at most value_dim.

    Args:
        attention: The attention layer.

    >>> head_matrices(Attention(6, 2)).shape
    torch.Size([2, 6, 6])
    """
    value = attention.v_proj.weight.unflatten(0, (1, attention.n_kv_heads, -1))
    out = attention.out_proj.get_parameter("weight").unflatten(1, (attention.n_heads, -1))
    return torch.einsum("ohv,hvi->hoi", out, share_heads(value, attention.n_heads)[0])


def value_norms(
    attention: Attention, value: Float[Tensor, "batch kv_heads k_len value_dim"]
) -> Float[Tensor, "batch heads k_len"]:
    """Return ‖v_j W_hᵒ‖, the norm of a head's output if all its weight were on key j (Kobayashi et al. 2020, ‖f(x)‖).

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
    """Return ‖α_ij v_j W_hᵒ‖, the norm of the contribution of key j to query i through head h (Kobayashi et al. 2020).

    A large weight on a short vector contributes little.

    Args:
        attention: The attention layer.
        weights: The attention weights α of the layer.
        value: The projected values of the layer.

    >>> layer = Attention(4, 2)
    >>> weighted_norms(layer, torch.zeros(1, 2, 3, 3), layer.keys_values(torch.ones(1, 3, 4))[1]).sum().item()
    0.0
    """
    return weights * value_norms(attention, value)[:, :, None]


def contribution_norms(
    attention: Attention, mixed: Float[Tensor, "batch heads q_len value_dim"]
) -> Float[Tensor, "batch heads q_len"]:
    """Return ‖Σ_j α_ij v_j W_hᵒ‖, the norm of each head's contribution to each query's output.

    Args:
        attention: The attention layer.
        mixed: The weighted values of each head, recorded as `mixed`.
    """
    return head_contributions(mixed, _out_weight(attention)).norm(dim=-1)


def head_singular_values(attention: Attention) -> Float[Tensor, "heads rank_at_most"]:
    """Return the singular values of each W^(h) = W_hᵒ W_hᵛ, largest first, at most value_dim values per head.

    The computation uses float64 and QR: with W_hᵒ = Q₁R₁ and W_hᵛᵀ = Q₂R₂, the result is the singular values of R₁R₂ᵀ.

    >>> layer = Attention(4, 2)
    >>> _ = torch.nn.init.eye_(layer.v_proj.weight), torch.nn.init.eye_(layer.out_proj.weight)
    >>> head_singular_values(layer)
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    out = _out_weight(attention).detach().double().unflatten(1, (attention.n_heads, -1)).transpose(0, 1)
    value = attention.v_proj.weight.detach().double().unflatten(0, (1, attention.n_kv_heads, -1))
    value = share_heads(value, attention.n_heads)[0].mT
    # numpy decomposes these small matrices in one thread; torch would wake all threads for each matrix
    left, right = (np.linalg.qr(part.cpu().numpy()).R for part in (out, value))
    return torch.from_numpy(np.linalg.svd(left @ right.swapaxes(-1, -2), compute_uv=False))


def head_ranks(attention: Attention) -> Int[Tensor, " heads"]:
    """Return the numerical rank of each W^(h), which is at most value_dim (Bishop & Bishop 2024, exercise 12.5).

    The rank is the number of singular values above max(d_out, d_memory) · ε · the largest singular value, where ε is
    the machine precision of the parameters.

    Args:
        attention: The attention layer.

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
    """Return the logits output(norm(h)) of a block's output h, the logit lens (nostalgebraist 2020).

    For the last block, the lens logits equal the logits of the model. For a classifier, see `pooled_lens`. `norm` is
    the last norm of the stack. In post-norm models, this norm is the identity.

    Args:
        model: Any model.
        states: The recorded outputs of a stack's embedding or of a block.
        stack: The stack that produced the states, "encoder" or "decoder".

    Returns:
        The logits over the vocabulary, or over the classes of a classifier.

    Raises:
        AttendoError: The stack has no output layer. For the encoder of a translator, use `lens_cosines`.

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
    remedy = "use lens_cosines for its nearest embeddings" if stack == "encoder" else "use the other stack"
    raise AttendoError(f"{type(model).__name__} predicts nothing from the {stack}; {remedy}")


def pooled_lens(
    model: EncoderClassifier,
    states: Float[Tensor, "batch len d_model"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch classes"]:
    """Return output(pool(norm(h))), the logits of a classifier if it ended after this block.

    Args:
        model: The model of the classifier.
        states: The outputs of a block. With the outputs of the last block, the result equals the logits of the model.
        lengths: The number of tokens in each row, not counting padding (default: no row is padded).
    """
    return model.output(pool(model.encoder.norm(states), model.config.pooling, lengths))


def lens_cosines(
    model: EncoderDecoder, states: Float[Tensor, "*batch src_len d_model"]
) -> Float[Tensor, "*batch src_len vocab"]:
    """Return the cosine similarity between each normalized encoder state and the embedding of each source token.

    An encoder predicts no tokens, but the cosines show which tokens are nearest to a state. For vectors of length 0,
    the cosine is 0.

    Args:
        model: The model of the translator.
        states: The outputs of the encoder's embedding or of a block.
    """
    weight = model.source_embedding.tokens.weight
    return F.normalize(model.encoder.norm(states), dim=-1) @ F.normalize(weight, dim=-1).T
