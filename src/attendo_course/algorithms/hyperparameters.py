"""Hyperparameters of Phuong & Hutter 2022 as model configurations, and checks of models against algorithms."""

from __future__ import annotations

from typing import Any, Literal

from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderDecoder, MaskedLM

Transformer = Literal["A8", "A9", "A10"]

_COMMON: dict[str, tuple[Any, ...]] = {
    "norm": ("layer",),
    "attention_scale": (None,),
    "attention_bias": (True,),
    "attention_out_bias": (None, True),
    "feed_forward_bias": (True,),
    "feed_forward_gated": (False,),
    "embedding_scale": (False,),
    "embedding_norm_eps": (None,),
    "pad_id": (None,),
    "output_bias": (False,),
    "dropout": (0.0,),
    "attention_dropout": (0.0,),
    "activation_dropout": (0.0,),
    "positions": ("learned", "sinusoidal"),
}
_OF: dict[Transformer, dict[str, tuple[Any, ...]]] = {
    "A8": {"architecture": ("encoder-decoder",), "norm_first": (False,), "activation": ("relu",)},
    "A9": {"architecture": ("masked",), "norm_first": (False,), "activation": ("gelu",)},
    "A10": {"architecture": ("decoder",), "norm_first": (True,), "activation": ("gelu",)},
}
_HARD_CODED: dict[str, tuple[Any, ...]] = {
    "position_base": ("length",),
    "position_start": (1,),
    "position_first_index": (1,),
    "position_order": ("sincos",),
}
"""The settings of sinusoidal positions that match `hard_coded_positions`."""

_SETTINGS: dict[str, Any] = {
    "dropout": 0.0,
    "positions": "learned",
    "embedding_scale": False,
    "norm_eps": 0.0,
    "output_bias": False,
}
"""The settings that the configurations of A8, A9 and A10 share."""


def formal_ed_config(
    *,
    N_V: int,
    ell_max: int,
    L_enc: int,
    L_dec: int,
    H: int,
    d_e: int,
    d_mlp: int,
    d_attn: int | None = None,
    d_mid: int | None = None,
    tied: bool = False,
) -> ModelConfig:
    """Return the configuration of A8 for `build_formal_ed`: post-norm, ReLU (Phuong & Hutter 2022, algorithm 8).

    The ε of the paper is 0. To use another ε or `hard_coded_positions`, replace the fields of the configuration.

    Args:
        N_V: The vocabulary size.
        ell_max: The maximum length of a text in tokens.
        L_enc: The number of encoder layers.
        L_dec: The number of decoder layers.
        H: The number of attention heads.
        d_e: The width of the embedding.
        d_mlp: The inner width of the feed-forward network.
        d_attn: The width of the queries and keys of a head (default: d_e/H).
        d_mid: The width of the values of a head (default: d_attn).
        tied: Whether W_u = W_eᵀ.

    >>> formal_ed_config(N_V=9, ell_max=6, L_enc=2, L_dec=1, H=2, d_e=8, d_mlp=16).norm_first
    False
    """
    return ModelConfig(
        architecture="encoder-decoder",
        activation="relu",
        norm_first=False,
        n_encoder_layers=L_enc,
        n_decoder_layers=L_dec,
        tie="all" if tied else "none",
        vocab_size=N_V,
        max_len=ell_max,
        n_heads=H,
        d_model=d_e,
        d_ff=d_mlp,
        head_dim=d_attn,
        value_dim=d_mid,
        **_SETTINGS,
    )


def formal_e_config(
    *,
    N_V: int,
    ell_max: int,
    L: int,
    H: int,
    d_e: int,
    d_mlp: int,
    d_f: int | None = None,
    d_attn: int | None = None,
    d_mid: int | None = None,
    tied: bool = False,
) -> ModelConfig:
    """Return the configuration of A9 (BERT), a `MaskedLM`: post-norm, GELU (Phuong & Hutter 2022, algorithm 9).

    Args:
        N_V: The vocabulary size.
        ell_max: The maximum length of a text in tokens.
        L: The number of layers.
        H: The number of attention heads.
        d_e: The width of the embedding.
        d_mlp: The inner width of the feed-forward network.
        d_f: The width of the vectors before the unembedding (default: d_e). W_u is N_V×d_f, but the paper prints
            N_V×d_e.
        d_attn: The width of the queries and keys of a head (default: d_e/H).
        d_mid: The width of the values of a head (default: d_attn).
        tied: Whether W_u = W_eᵀ.

    >>> formal_e_config(N_V=9, ell_max=6, L=2, H=2, d_e=8, d_mlp=16, d_f=4).d_output
    4
    """
    return ModelConfig(
        architecture="masked",
        activation="gelu",
        norm_first=False,
        n_encoder_layers=L,
        n_decoder_layers=0,
        d_output=d_f,
        tie="output" if tied else "none",
        vocab_size=N_V,
        max_len=ell_max,
        n_heads=H,
        d_model=d_e,
        d_ff=d_mlp,
        head_dim=d_attn,
        value_dim=d_mid,
        **_SETTINGS,
    )


def formal_d_config(
    *,
    N_V: int,
    ell_max: int,
    L: int,
    H: int,
    d_e: int,
    d_mlp: int,
    d_attn: int | None = None,
    d_mid: int | None = None,
    tied: bool = False,
) -> ModelConfig:
    """Return the configuration of A10 (GPT), a `DecoderLM`: pre-norm, GELU (Phuong & Hutter 2022, algorithm 10).

    Args:
        N_V: The vocabulary size.
        ell_max: The maximum length of a text in tokens.
        L: The number of layers.
        H: The number of attention heads.
        d_e: The width of the embedding.
        d_mlp: The inner width of the feed-forward network.
        d_attn: The width of the queries and keys of a head (default: d_e/H).
        d_mid: The width of the values of a head (default: d_attn).
        tied: Whether W_u = W_eᵀ.

    >>> formal_d_config(N_V=9, ell_max=6, L=2, H=2, d_e=8, d_mlp=16, d_attn=3).head_dim
    3
    """
    return ModelConfig(
        architecture="decoder",
        activation="gelu",
        norm_first=True,
        n_encoder_layers=0,
        n_decoder_layers=L,
        tie="output" if tied else "none",
        vocab_size=N_V,
        max_len=ell_max,
        n_heads=H,
        d_model=d_e,
        d_ff=d_mlp,
        head_dim=d_attn,
        value_dim=d_mid,
        **_SETTINGS,
    )


def build_formal_ed(config: ModelConfig) -> EncoderDecoder:
    """Return θ of A8, an `EncoderDecoder` whose encoder and decoder share W_e, W_p (Phuong & Hutter 2022, algorithm 8).

    The settings of `ModelConfig` can share W_e only together with the output matrix, and cannot share W_p.

    Args:
        config: A configuration from `formal_ed_config`.

    Raises:
        ValueError: A setting differs from algorithm 8.

    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> theta.source_embedding.positions is theta.target_embedding.positions
    True
    """
    check_config(config, "A8")
    theta = EncoderDecoder(config)
    theta.source_embedding.tokens = theta.target_embedding.tokens
    theta.source_embedding.positions = theta.target_embedding.positions
    return theta


def check_config(config: ModelConfig, algorithm: Transformer) -> None:
    """Raise ValueError with the name of the first setting that differs from an algorithm of the paper.

    The sizes and ε (0 in the paper) can have any value. W_u may be tied to W_e. Positions may be learned or
    hard-coded.

    >>> check_config(formal_d_config(N_V=9, ell_max=6, L=2, H=2, d_e=8, d_mlp=16), "A9")
    Traceback (most recent call last):
    ValueError: architecture='decoder' is not A9's; it has 'masked'
    """
    wanted = _OF[algorithm] | _COMMON | {"n_kv_heads": (None, config.n_heads)}
    if config.positions == "sinusoidal":
        wanted |= _HARD_CODED
    for name, values in wanted.items():
        found = getattr(config, name)
        if found not in values:
            raise ValueError(f"{name}={found!r} is not {algorithm}'s; it has {' or '.join(map(repr, values))}")


def check_theta(theta: EncoderDecoder | MaskedLM | DecoderLM, algorithm: Transformer) -> None:
    """Check the configuration of a model, and that an `EncoderDecoder` shares W_e and W_p between its two parts.

    >>> check_theta(EncoderDecoder(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16)), "A8")
    Traceback (most recent call last):
    ValueError: source_embedding.tokens is not target_embedding.tokens, but A8 has one W_e; use build_formal_ed
    """
    check_config(theta.config, algorithm)
    if isinstance(theta, EncoderDecoder):
        source, target = theta.source_embedding, theta.target_embedding
        for part, symbol in (("tokens", "W_e"), ("positions", "W_p")):
            ours = getattr(source, part)
            if ours is not getattr(target, part):
                raise ValueError(
                    f"source_embedding.{part} is not target_embedding.{part}, but A8 has one {symbol};"
                    " use build_formal_ed"
                )
