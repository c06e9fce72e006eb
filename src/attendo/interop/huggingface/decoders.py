"""Decoders that stand alone: GPT-2, Llama, Qwen."""

from __future__ import annotations

from attendo.interop.huggingface.options import (
    Activation,
    Fixed,
    Heads,
    InnerWidth,
    Must,
    Option,
    Same,
    Tied,
    Turned,
)
from attendo.interop.huggingface.table import Head, Table
from attendo.interop.huggingface.weights import Row, blocks, dense

_ALONE = {
    "n_encoder_layers": 0,
    "norm_first": True,
    "embedding_scale": False,
    "initialization": "normal",
}
_GPT2_ROWS = tuple(
    row
    for theirs, ours in {
        "attn.c_attn": ("self_attention.q_proj", "self_attention.k_proj", "self_attention.v_proj"),
        "attn.c_proj": ("self_attention.out_proj",),
        "mlp.c_fc": ("feed_forward.in_proj",),
        "mlp.c_proj": ("feed_forward.out_proj",),
    }.items()
    for row in dense(
        f"transformer.h.{{n}}.{theirs}", *(f"decoder.blocks.{{n}}.{own}" for own in ours), transposed=True
    )
)
_GPT2_HEAD = Head("decoder")
GPT2 = Table(
    (
        Same("vocab_size", "vocab_size", 50257),
        Same("d_model", "n_embd", 768),
        InnerWidth("n_inner", "n_embd", 768),
        Same("n_heads", "n_head", 12),
        Same("n_decoder_layers", "n_layer", 12),
        Same("max_len", "n_positions", 1024),
        Same("dropout", "resid_pdrop", 0.1),
        Same("attention_dropout", "attn_pdrop", 0.1),
        Same("norm_eps", "layer_norm_epsilon", 1e-5),
        Activation("activation_function", "gelu_new"),
        Tied(True),
        Must("scale_attn_weights", True),
        Must("scale_attn_by_inverse_layer_idx", False),
        Must("add_cross_attention", False),
        Fixed(_ALONE | {"norm": "layer", "positions": "learned"}),
    ),
    (
        Row("transformer.wte.weight", ("embedding.tokens.weight",)),
        Row("lm_head.weight", ("output_proj.weight",)),
        Row("transformer.wpe.weight", ("embedding.positions.weight",)),
        *_GPT2_ROWS,
        *blocks(
            "transformer.h",
            "decoder",
            {"ln_1": "self_attention_residual.norm", "ln_2": "feed_forward_residual.norm"},
        ),
        *dense("transformer.ln_f", "decoder.norm"),
    ),
    {"GPT2LMHeadModel": _GPT2_HEAD, "GPT2Model": _GPT2_HEAD},
    prefix="transformer.",
    biased=True,
    passed_over=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)


def _llama(head: str, *options: Option) -> Table:
    """Llama's shape, which others vary in biases and norms of heads."""
    layers = {
        "self_attn.q_proj": "self_attention.q_proj",
        "self_attn.k_proj": "self_attention.k_proj",
        "self_attn.v_proj": "self_attention.v_proj",
        "self_attn.o_proj": "self_attention.out_proj",
        "self_attn.q_norm": "self_attention.q_norm",
        "self_attn.k_norm": "self_attention.k_norm",
        "input_layernorm": "self_attention_residual.norm",
        "mlp.up_proj": "feed_forward.in_proj",
        "mlp.gate_proj": "feed_forward.gate_proj",
        "mlp.down_proj": "feed_forward.out_proj",
        "post_attention_layernorm": "feed_forward_residual.norm",
    }
    turned = tuple(f"self_attention.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
    return Table(
        (
            Same("d_model", "hidden_size", 4096),
            Same("norm_eps", "rms_norm_eps", 1e-6),
            Same("attention_dropout", "attention_dropout", 0.0),
            Activation("hidden_act", "silu"),
            Turned(),
            Tied(False),
            Must("sliding_window", None),
            Fixed(
                _ALONE | {"norm": "rms", "positions": "rotary", "feed_forward_gated": True, "dropout": 0.0}
            ),
            *options,
        ),
        (
            Row("model.embed_tokens.weight", ("embedding.tokens.weight",)),
            Row("lm_head.weight", ("output_proj.weight",)),
            *blocks("model.layers", "decoder", layers, turned),
            *dense("model.norm", "decoder.norm"),
        ),
        {head: Head("decoder")},
        prefix="model.",
        passed_over=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq"),
    )


def _sizes(vocab_size: int, d_ff: int, max_len: int) -> tuple[Option, ...]:
    return (
        Same("vocab_size", "vocab_size", vocab_size),
        Same("d_ff", "intermediate_size", d_ff),
        Same("n_decoder_layers", "num_hidden_layers", 32),
        Same("max_len", "max_position_embeddings", max_len),
    )


_QWEN = (
    *_sizes(151_936, 22_016, 32_768),
    Must("use_sliding_window", False),
    Fixed({"feed_forward_bias": False}),
)


LLAMA = _llama(
    "LlamaForCausalLM",
    *_sizes(32_000, 11_008, 2048),
    Heads(),
    Same("attention_bias", "attention_bias", False),
    Same("feed_forward_bias", "mlp_bias", False),
)
MISTRAL = _llama(
    "MistralForCausalLM",
    *_sizes(32_000, 14_336, 131_072),
    Heads(),
    Fixed({"attention_bias": False, "feed_forward_bias": False}),
)
QWEN2 = _llama(
    "Qwen2ForCausalLM",
    *_QWEN,
    Heads(has_width=False),
    Fixed({"attention_bias": True, "attention_out_bias": False}),
)
QWEN3 = _llama(
    "Qwen3ForCausalLM",
    *_QWEN,
    Heads(default_width=128),
    Same("attention_bias", "attention_bias", False),
    Fixed({"attention_norm": True}),
)
