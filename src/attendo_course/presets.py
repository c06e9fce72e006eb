"""The models of the sources, built from modules of attendo with the formulas and sizes of each source.

`PRESETS` is the table of all presets by name. Each complete model has a `ModelConfig` as its attribute `config`. If a
source describes only attention, the preset is an `Attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM
from attendo.nn.attention import Attention
from attendo.nn.layers import InputEmbedding, TokenEmbedding
from attendo.nn.positions import FixedPositions, inverse_encoding, ramp_encoding
from attendo.runs.settings import preset_tables
from attendo_course.algorithms import hyperparameters
from attendo_course.weather_chain import STATES


def vaswani_recipe(size: Literal["base", "big"] = "base", vocab_size: int = 37_000) -> dict[str, dict[str, Any]]:
    """Return the tables [model], [tokenizer], [training] and [decoding] of Vaswani et al. 2017, sections 5 and 6.1.

    The training has 100,000 steps (300,000 for "big") with about 25,000 source and 25,000 target tokens per step. The
    recipe uses Adam with the Noam schedule and the mean of the last 5 checkpoints (20 for "big"). The beam size is 4,
    and the exponent of the length normalization is α = .6. A translation has at most 50 tokens more than the source.
    Together with a [data] table, these tables form a file for `attendo train --config`.

    >>> vaswani_recipe("big")["training"]["average_last"]
    20
    """
    tables = {name: dict(table) for name, table in preset_tables(size).items()}
    tables["model"] |= {"vocab_size": vocab_size}
    tables["tokenizer"] = {"vocab_size": vocab_size}
    tables["training"] = {
        "steps": 100_000 if size == "base" else 300_000,
        "batch_tokens": 25_000,
        "schedule": "noam",
        "warmup_steps": 4000,
        "learning_rate": 1.0,
        "beta1": 0.9,
        "beta2": 0.98,
        "epsilon": 1e-9,
        "weight_decay": 0.0,
        "clip_norm": 0.0,
        "label_smoothing": 0.1,
        "average_last": 5 if size == "base" else 20,
    }
    tables["decoding"] = {
        "beam": 4,
        "length_penalty": 0.6,
        "max_length_ratio": 1.0,
        "max_length_extra": 50,
    }
    return tables


def scalar_embedding(kind: Literal["ramp", "inverse"], length: int = 10) -> InputEmbedding:
    """Return an embedding of each day as one number: e_t = w_t + t/L ("ramp") or e_t = w_t + 1/t ("inverse") (F23).

    The weather is w_t = -1, 0, 1 for rain, cloud and sun, and t counts from 1. The embedding maps ids `[batch, len]`
    to vectors `[batch, len, 1]` in the default dtype. This embedding has no trainable parameters.

    >>> scalar_embedding("ramp")(torch.tensor([[0, 2]])).flatten()
    tensor([-0.9000,  1.2000])
    """
    tokens = TokenEmbedding(len(STATES), 1, scaled=False)
    tokens.weight.data = torch.tensor([[-1.0], [0.0], [1.0]])
    encode = partial(ramp_encoding, length=length) if kind == "ramp" else inverse_encoding
    return InputEmbedding(tokens, FixedPositions(encode, start=1)).requires_grad_(False)


def one_hot_embedding(length: int = 20) -> InputEmbedding:
    """Return the embedding e_t = (one-hot of rain, cloud, sun; t/L), where t counts from 1 (F24).

    The embedding maps ids `[batch, len]` to `[batch, len, 4]` in the default dtype. This embedding has no trainable
    parameters.

    >>> one_hot_embedding()(torch.tensor([[2]]))
    tensor([[[0.0000, 0.0000, 1.0000, 0.0500]]])
    """
    n_states = len(STATES)

    def encode(positions: Tensor) -> Tensor:
        return F.pad(ramp_encoding(positions, length), (n_states, 0))

    tokens = TokenEmbedding(n_states, n_states + 1, scaled=False)
    tokens.weight.data = torch.eye(n_states, n_states + 1)
    return InputEmbedding(tokens, FixedPositions(encode, start=1)).requires_grad_(False)


def distinct_sums(embedding: InputEmbedding, n_positions: int) -> int:
    """Return the number of (weather, position) pairs that an embedding distinguishes.

    >>> [distinct_sums(scalar_embedding("ramp", length=10), 20), distinct_sums(scalar_embedding("inverse"), 20)]
    [40, 60]
    """
    with torch.no_grad():
        days = torch.arange(len(STATES))[:, None].expand(-1, n_positions)
        vectors = embedding(days).double().round(decimals=6).flatten(0, 1)
    return len(vectors.unique(dim=0))


@dataclass(frozen=True)
class Preset:
    """The model of a source: the function that builds it, and its number of parameters with the default sizes."""

    build: Callable[..., nn.Module]
    n_parameters: int


def nyu_classifier(
    *,
    vocab_size: int = 50_002,
    n_classes: int = 2,
    d_model: int = 32,
    n_heads: int = 2,
    d_ff: int = 128,
    n_layers: int = 1,
    max_len: int = 10_000,
    dropout: float = 0.0,
) -> EncoderClassifier:
    """Return the film review classifier of the NYU lecture: logits = W max_t Encoder(LN(E[x] + PE))_t + b.

    The source is NYU Deep Learning (2020), week 12, notebook 15. The model maps ids `[batch, len]` to logits `[batch,
    n_classes]`. The model uses post-norm with ε = 1e-6, and ε = 1e-12 after the embedding. The projections of
    queries, keys and values have no bias, but the output projection has a bias. The embeddings are not scaled. As in
    the notebook, there is no dropout by default. Id 1 is padding, and its embedding is 0. In the notebook, attention
    and pooling include padding. To reproduce the notebook, pass no lengths. The notebook stores max_len × d_model =
    320,000 sinusoid values in a fixed table. In this preset, the values are computed when they are first needed. As in
    the notebook, the values are not parameters.

    >>> from attendo.models import parameter_count
    >>> parameter_count(nyu_classifier(vocab_size=100)) - 100 * 32 == 1_612_802 - 50_002 * 32
    True
    """
    config = ModelConfig(
        architecture="classifier",
        vocab_size=vocab_size,
        d_model=d_model,
        d_ff=d_ff,
        n_heads=n_heads,
        n_encoder_layers=n_layers,
        n_decoder_layers=0,
        max_len=max_len,
        dropout=dropout,
        attention_bias=False,
        attention_out_bias=True,
        norm_eps=1e-6,
        embedding_scale=False,
        embedding_norm_eps=1e-12,
        pad_id=1,
        n_classes=n_classes,
        pooling="max",
    )
    model = EncoderClassifier(config)
    start_as_in_the_notebook(model.embedding.tokens)
    return model


def vaswani_base(vocab_size: int = 37_000, **sizes: Any) -> EncoderDecoder:
    """Return the base model of Vaswani et al. 2017, table 3: from source and target ids to logits over one vocabulary.

    The settings equal `attendo train --preset base`. `sizes` contains other `ModelConfig` settings by name.

    >>> vaswani_base(50, n_encoder_layers=1, n_decoder_layers=1).config.d_model
    512
    """
    return EncoderDecoder(_vaswani("base", vocab_size, sizes))


def vaswani_big(vocab_size: int = 37_000, **sizes: Any) -> EncoderDecoder:
    """Return the big model of Vaswani et al. 2017, table 3, with the settings of `attendo train --preset big`.

    The arguments are as in `vaswani_base`.

    >>> vaswani_big(50, n_encoder_layers=1, n_decoder_layers=1).config.d_model
    1024
    """
    return EncoderDecoder(_vaswani("big", vocab_size, sizes))


def slides(vocab_size: int = 37_000, **sizes: Any) -> EncoderDecoder:
    """Return an encoder-decoder whose attention is softmax(QKᵀ)V without the factor 1/√d_k, as in the slides.

    The source is 「ChatGPTの仕組みを理解したい! 3 Transformer編」.

    The slides contain no sizes. All other settings are as in `vaswani_base`.

    >>> model = slides(50, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1)
    >>> model.encoder.blocks[0].self_attention.attend.scale
    1.0
    """
    return EncoderDecoder(replace(_vaswani("base", vocab_size, sizes), attention_scale=1.0))


def pytorch_wlm(
    *,
    vocab_size: int = 33_278,
    d_model: int = 200,
    d_ff: int = 200,
    n_heads: int = 2,
    n_layers: int = 2,
    dropout: float = 0.2,
    max_len: int = 5_000,
    last_norm: bool = False,
) -> DecoderLM:
    """Return the Transformer of PyTorch's example word_language_model: a post-norm ReLU decoder with a causal mask.

    The input is embeddings × √d + sinusoids, and all dropout rates are equal. The output matrix is not tied to the
    embedding and has a bias. Embedding and output matrix are initialized uniformly in ±0.1. The model maps ids
    `[batch, len]` to logits, but the example returns the log-softmax of the logits. The default vocabulary size is
    the vocabulary size of WikiText-2. With `last_norm`, the model ends with one more LayerNorm, as in later versions
    of the example, which use the encoder of `nn.Transformer`.

    >>> pytorch_wlm(vocab_size=10)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    """
    config = ModelConfig(
        architecture="decoder",
        vocab_size=vocab_size,
        d_model=d_model,
        d_ff=d_ff,
        n_heads=n_heads,
        n_encoder_layers=0,
        n_decoder_layers=n_layers,
        max_len=max_len,
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        tie="none",
        output_bias=True,
    )
    model = DecoderLM(config)
    for weight in (model.embedding.tokens.weight, model.output_proj.weight):
        nn.init.uniform_(weight, -0.1, 0.1)
    if last_norm:
        model.decoder.norm = nn.LayerNorm(d_model, eps=config.norm_eps)
    return model


FORMAL: dict[str, Any] = {"N_V": 12, "ell_max": 8, "H": 2, "d_e": 16, "d_mlp": 32}
"""The sizes of the `formal_` presets, since the paper specifies none: a tiny model with two blocks per stack."""


def formal_ed(**sizes: Any) -> EncoderDecoder:
    """Return the EDTransformer of Phuong & Hutter 2022, algorithm 8: post-norm, ReLU, one W_e and W_p, ε = 0.

    `sizes` replaces the sizes in `FORMAL` and has the argument names of `formal_ed_config`. Call the model through
    `attendo_course.algorithms.EDTransformer`, or as any model of attendo, with ids from 0.

    >>> formal_ed().config.norm_eps
    0.0
    """
    config = hyperparameters.formal_ed_config(**{**FORMAL, "L_enc": 2, "L_dec": 2, **sizes})
    return hyperparameters.build_formal_ed(config)


def formal_e(**sizes: Any) -> MaskedLM:
    """Return the ETransformer of Phuong & Hutter 2022, algorithm 9: post-norm, GELU, no mask, a dense layer before W_u.

    `sizes` replaces the sizes in `FORMAL` and has the argument names of `formal_e_config`.

    >>> formal_e().config.activation
    'gelu'
    """
    return MaskedLM(hyperparameters.formal_e_config(**{**FORMAL, "L": 2, **sizes}))


def formal_d(**sizes: Any) -> DecoderLM:
    """Return the DTransformer of Phuong & Hutter 2022, algorithm 10: pre-norm, GELU, causal mask, final normalization.

    `sizes` overrides single sizes of `FORMAL`. Its keys are arguments of `formal_d_config`.

    >>> formal_d().config.norm_first
    True
    """
    return DecoderLM(hyperparameters.formal_d_config(**{**FORMAL, "L": 2, **sizes}))


def gpt2_small(
    *,
    vocab_size: int = 50_257,
    max_len: int = 1_024,
    d_model: int = 768,
    n_heads: int = 12,
    n_layers: int = 12,
    dropout: float = 0.1,
) -> DecoderLM:
    """Return GPT-2 small (Radford et al. 2019): A10 with W_u = W_eᵀ, an inner width of 4d and ε = 1e-5.

    The released weights were trained with the tanh approximation of GELU. This model therefore uses the
    approximation, but A10 uses the exact GELU. The model maps ids `[batch, len]` to logits and has 124,439,808
    parameters.

    >>> gpt2_small(vocab_size=50, d_model=8, n_heads=2, n_layers=1).config.activation
    'gelu_tanh'
    """
    config = hyperparameters.formal_d_config(
        N_V=vocab_size, ell_max=max_len, L=n_layers, H=n_heads, d_e=d_model, d_mlp=4 * d_model, tied=True
    )
    released = replace(config, activation="gelu_tanh", norm_eps=1e-5, initialization="normal")
    return DecoderLM(replace(released, dropout=dropout, attention_dropout=dropout))


def bert_base(
    *,
    vocab_size: int = 30_522,
    max_len: int = 512,
    d_model: int = 768,
    n_heads: int = 12,
    n_layers: int = 12,
    dropout: float = 0.1,
) -> MaskedLM:
    """Return BERT base (Devlin et al. 2019): A9 with W_u = W_eᵀ plus a bias, a norm after the embedding, ε = 1e-12.

    The model maps ids `[batch, len]` to logits at each position. The model has 109,512,762 parameters: 108,890,112
    before the output head and 622,650 in the head. The well-known number of 110M parameters describes the released
    encoder, with 109,482,240 parameters. The released encoder does not contain this head. Instead, the released
    encoder contains two embeddings for the token type (1,536) and a pooling layer over the first token (590,592),
    which A9 lacks.

    >>> 108_890_112 + 1_536 + 590_592
    109482240
    >>> bert_base(vocab_size=50, d_model=8, n_heads=2, n_layers=1).config.embedding_norm_eps
    1e-12
    """
    config = hyperparameters.formal_e_config(
        N_V=vocab_size, ell_max=max_len, L=n_layers, H=n_heads, d_e=d_model, d_mlp=4 * d_model, tied=True
    )
    released = replace(config, norm_eps=1e-12, embedding_norm_eps=1e-12, output_bias=True)
    return MaskedLM(replace(released, dropout=dropout, attention_dropout=dropout, initialization="normal"))


def weather_blog(*, d_in: int = 4, d_attn: int = 6, d_out: int = 3) -> Attention:
    """Return the model of the weather post: ṽ = Σ_t softmax_t(qᵀk_t/√d_attn) v_t, one attention head with biases.

    The sources are 「Attentionが何をやっているのか理解しよう」, finished version, and Phuong & Hutter 2022, algorithm
    4.

    There are no other layers. Pass the embedded days `[batch, len, d_in]` twice to get the logits of the three kinds
    of weather, `[batch, len, d_out]`. The model has (d_in + 1)(2 d_attn + d_out) = 75 parameters for any length.

    >>> from attendo.models import parameter_count
    >>> parameter_count(weather_blog())
    75
    """
    return Attention(d_in, 1, head_dim=d_attn, value_dim=d_out, out_proj=nn.Identity())


def bishop(*, d_model: int = 512, n_heads: int = 8, d_value: int | None = None) -> Attention:
    """Return multi-head attention without biases: Y = Concat_h[softmax(Q_h K_hᵀ/√D_k) V_h] W⁽ᵒ⁾, Q_h = X W_h⁽q⁾.

    The source is Bishop & Bishop 2024, section 12.1.6. K_h and V_h are computed like Q_h, and the rows of X are
    tokens. The matrices W of the book are the transposed weights of torch. `d_value` is the width D_v of the values
    of a head (default: D_k = d_model / n_heads). The book does not specify the sizes.

    >>> bishop(d_model=6, n_heads=2)(*[torch.ones(1, 4, 6)] * 2).shape
    torch.Size([1, 4, 6])
    """
    return Attention(d_model, n_heads, value_dim=d_value, bias=False)


PRESETS = {
    "nyu_classifier": Preset(nyu_classifier, 1_612_802),
    "vaswani_base": Preset(vaswani_base, 63_045_632),
    "vaswani_big": Preset(vaswani_big, 214_171_648),
    "pytorch_wlm": Preset(pytorch_wlm, 13_828_478),
    "formal_ed": Preset(formal_ed, 11_648),
    "formal_e": Preset(formal_e, 5_264),
    "formal_d": Preset(formal_d, 4_992),
    "gpt2_small": Preset(gpt2_small, 124_439_808),
    "bert_base": Preset(bert_base, 109_512_762),
    "weather_blog": Preset(weather_blog, 75),
    "bishop": Preset(bishop, 1_048_576),
    "slides": Preset(slides, 63_045_632),
}
"""All presets by name."""


def _vaswani(name: str, vocab_size: int, sizes: dict[str, Any]) -> ModelConfig:
    settings: dict[str, Any] = preset_tables(name)["model"] | {"vocab_size": vocab_size} | sizes
    return ModelConfig(**settings)


def start_as_in_the_notebook(tokens: TokenEmbedding) -> None:
    """Initialize an embedding with N(0, 1) and its padding row with 0. The scale is comparable to the sinusoids.

    >>> start_as_in_the_notebook(TokenEmbedding(3, 2, scaled=False, pad_id=1))
    """
    nn.init.normal_(tokens.weight)
    with torch.no_grad():
        tokens.weight[tokens.pad_id].zero_()
