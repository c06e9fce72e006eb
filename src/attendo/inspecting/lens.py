"""The logit lens: what a model would say if it ended after an earlier block (nostalgebraist 2020)."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attendo.errors import AttendoError
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.feedforward import ACTIVATIONS
from attendo.nn.pooling import pool

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
