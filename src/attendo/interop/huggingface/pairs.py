"""Encoder and decoder: MarianMT, Pegasus, BART, mBART and T5."""

from __future__ import annotations

from collections.abc import Callable

from attendo.interop.huggingface.options import (
    Activation,
    Both,
    Fixed,
    Must,
    Net,
    OneSize,
    Option,
    OrSame,
    Said,
    Same,
    Theirs,
    Width,
)
from attendo.interop.huggingface.table import Head, Table, always
from attendo.interop.huggingface.weights import Row, blocks, dense

_BART_LAYERS = {
    "self_attn.q_proj": "self_attention.q_proj",
    "self_attn.k_proj": "self_attention.k_proj",
    "self_attn.v_proj": "self_attention.v_proj",
    "self_attn.out_proj": "self_attention.out_proj",
    "self_attn_layer_norm": "self_attention_residual.norm",
    "fc1": "feed_forward.in_proj",
    "fc2": "feed_forward.out_proj",
    "final_layer_norm": "feed_forward_residual.norm",
}
_BART_CROSS = {
    "encoder_attn.q_proj": "cross_attention.q_proj",
    "encoder_attn.k_proj": "cross_attention.k_proj",
    "encoder_attn.v_proj": "cross_attention.v_proj",
    "encoder_attn.out_proj": "cross_attention.out_proj",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
}


_ONE_EMBEDDING = (
    Row(
        "model.shared.weight",
        ("source_embedding.tokens.weight",),
        aliases=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    ),
)
_TWO_EMBEDDINGS = (
    Row("model.encoder.embed_tokens.weight", ("source_embedding.tokens.weight",)),
    Row(
        "model.decoder.embed_tokens.weight", ("target_embedding.tokens.weight",), aliases=("lm_head.weight",)
    ),
)


def _bart(
    head: str,
    vocab_size: int,
    *options: Option,
    learned: bool,
    sinusoids: tuple[str, ...] = (),
    tokens: tuple[Row, ...] = _ONE_EMBEDDING,
    when: Callable[[Theirs], bool] = always,
) -> Table:
    """BART's shape, which others vary in the place of the norms and the kind of positions."""
    positions: tuple[Row, ...] = (
        *(Row("model.encoder.embed_positions.weight", ("source_embedding.positions.weight",), behind=2),),
        *(Row("model.decoder.embed_positions.weight", ("target_embedding.positions.weight",), behind=2),),
        *dense("model.encoder.layernorm_embedding", "source_embedding.norm"),
        *dense("model.decoder.layernorm_embedding", "target_embedding.norm"),
    )
    return Table(
        (
            Same("vocab_size", "vocab_size", vocab_size),
            Same("d_model", "d_model", 1024),
            Both("d_ff", "ffn_dim", 4096),
            Both("n_heads", "attention_heads", 16),
            Same("n_encoder_layers", "encoder_layers", 12),
            Same("n_decoder_layers", "decoder_layers", 12),
            Same("max_len", "max_position_embeddings", 1024),
            Same("dropout", "dropout", 0.1),
            Same("attention_dropout", "attention_dropout", 0.0),
            Same("activation_dropout", "activation_dropout", 0.0),
            Same("embedding_scale", "scale_embedding", False),
            Activation("activation_function", "gelu"),
            Fixed({"norm": "layer", "norm_eps": 1e-5, "initialization": "normal"}),
            *options,
        ),
        (
            *tokens,
            *(positions if learned else ()),
            *blocks("model.encoder.layers", "encoder", _BART_LAYERS),
            *blocks("model.decoder.layers", "decoder", _BART_LAYERS | _BART_CROSS),
            *dense("model.encoder.layer_norm", "encoder.norm"),
            *dense("model.decoder.layer_norm", "decoder.norm"),
            Row("final_logits_bias", ("output_proj.bias",), flat=True),
        ),
        {head: Head("encoder-decoder")},
        prefix="model.",
        passed_over=() if learned else (r"(en|de)coder\.embed_positions\.weight",),
        biased=True,
        sinusoids=sinusoids,
        when=when,
    )


_TIED = (Fixed({"tie": "all"}), Must("tie_word_embeddings", True))
_LEARNED = Fixed({"positions": "learned", "embedding_norm_eps": 1e-5})
_HALVES = Fixed({"positions": "sinusoidal", "position_order": "halves"})


def _shares_embeddings(theirs: Theirs) -> bool:
    return bool(theirs.get("share_encoder_decoder_embeddings", True))


MARIAN = _bart(
    "MarianMTModel",
    58_101,
    *_TIED,
    _HALVES,
    Fixed({"norm_first": False}),
    Must("share_encoder_decoder_embeddings", True),
    learned=False,
    when=_shares_embeddings,
)
MARIAN_OF_TWO = _bart(
    "MarianMTModel",
    58_101,
    Fixed({"tie": "output", "norm_first": False}),
    _HALVES,
    OneSize("decoder_vocab_size", "vocab_size"),
    Must("share_encoder_decoder_embeddings", False),
    learned=False,
    tokens=_TWO_EMBEDDINGS,
)
PEGASUS = _bart(
    "PegasusForConditionalGeneration",
    50_265,
    *_TIED,
    _HALVES,
    Fixed({"norm_first": True}),
    learned=False,
    sinusoids=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
)
BART = _bart(
    "BartForConditionalGeneration", 50_265, *_TIED, _LEARNED, Fixed({"norm_first": False}), learned=True
)
MBART = _bart(
    "MBartForConditionalGeneration", 50_265, *_TIED, _LEARNED, Fixed({"norm_first": True}), learned=True
)


def _t5_factor(theirs: Theirs) -> float:
    """T5 multiplies the last states by 1/√d, except where the output matrix is one of its own (version 1.1)."""
    scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True) is not False)
    return theirs.get("d_model", 512) ** -0.5 if scaled else 1.0


def _t5_layers(*, decoder: bool, gated: bool) -> dict[str, str]:
    """The names of a block's layers, which T5 numbers in their order."""
    parts = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    names = {f"layer.0.SelfAttention.{theirs}": f"self_attention.{ours}" for theirs, ours in parts.items()}
    names["layer.0.layer_norm"] = "self_attention_residual.norm"
    if decoder:
        names |= {
            f"layer.1.EncDecAttention.{theirs}": f"cross_attention.{ours}" for theirs, ours in parts.items()
        }
        names["layer.1.layer_norm"] = "cross_attention_residual.norm"
    last = f"layer.{2 if decoder else 1}"
    inner = {"wi_1": "in_proj", "wi_0": "gate_proj"} if gated else {"wi": "in_proj"}
    names |= {f"{last}.DenseReluDense.{wi}": f"feed_forward.{ours}" for wi, ours in inner.items()}
    names[f"{last}.DenseReluDense.wo"] = "feed_forward.out_proj"
    return names | {f"{last}.layer_norm": "feed_forward_residual.norm"}


_T5_FIXED = {
    "norm": "rms",
    "norm_first": True,
    "positions": "relative",
    "attention_scale": 1.0,
    "attention_bias": False,
    "feed_forward_bias": False,
    "embedding_scale": False,
    "max_len": 1024,
    "initialization": "normal",
}


def _t5(head: str, net: str, *, gated: bool, own_output: bool, scaled: bool) -> Table:
    """T5, of which there are two nets (plain, gated) and two outputs (the embedding, a matrix of its own).

    net: where config.json is silent. scaled: whether the last states are multiplied where the embedding is the output.
    """
    shared = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tokens = (Row("shared.weight", ("source_embedding.tokens.weight",), aliases=(*shared, "lm_head.weight")),)
    if own_output:
        tokens = (
            Row("shared.weight", ("source_embedding.tokens.weight",), aliases=shared),
            Row("lm_head.weight", ("output_proj.weight",)),
        )
    relative = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    def when(theirs: Theirs) -> bool:
        is_gated = theirs.get("feed_forward_proj", net).startswith("gated")
        return is_gated == gated and (theirs.get("tie_word_embeddings") is False) == own_output

    return Table(
        (
            Same("vocab_size", "vocab_size", 32_128),
            Same("d_model", "d_model", 512),
            Width("d_kv", 64),
            Same("d_ff", "d_ff", 2048),
            Same("n_encoder_layers", "num_layers", 6),
            OrSame("n_decoder_layers", "num_decoder_layers", "num_layers", 6),
            Same("n_heads", "num_heads", 8),
            Same("position_buckets", "relative_attention_num_buckets", 32),
            Same("position_reach", "relative_attention_max_distance", 128),
            Same("dropout", "dropout_rate", 0.1),
            Same("norm_eps", "layer_norm_epsilon", 1e-6),
            Net(net),
            Said("tie_word_embeddings", not own_output),
            Fixed(_T5_FIXED | {"tie": "input" if own_output else "all"}),
        ),
        (
            *tokens,
            *blocks("encoder.block", "encoder", _t5_layers(decoder=False, gated=gated)),
            *blocks("decoder.block", "decoder", _t5_layers(decoder=True, gated=gated)),
            *(
                Row(f"{stack}.{relative}", (f"{stack}.blocks.0.self_attention.positions.weight",))
                for stack in ("encoder", "decoder")
            ),
            Row("encoder.final_layer_norm.weight", ("encoder.norm.weight",)),
            Row(
                "decoder.final_layer_norm.weight",
                ("decoder.norm.weight",),
                scaled=_t5_factor if scaled else None,
            ),
        ),
        {head: Head("encoder-decoder")},
        written=own_output,  # of the other, some versions multiply the last states by 1/√d, and others don't
        when=when,
    )


def _t5_tables(head: str, net: str, *, scaled: bool) -> tuple[Table, ...]:
    both = (False, True)
    return tuple(_t5(head, net, gated=gated, own_output=own, scaled=scaled) for gated in both for own in both)


T5 = _t5_tables("T5ForConditionalGeneration", "relu", scaled=True)
MT5 = _t5_tables("MT5ForConditionalGeneration", "gated-gelu", scaled=False)
