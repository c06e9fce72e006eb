"""The supported model families of Hugging Face, described as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from attendo.interop.huggingface.encoders import BERT, DISTILBERT, MODERNBERT, ROBERTA, VECTORS
from attendo.interop.huggingface.options import (
    Activation,
    Both,
    ClassifierPooling,
    Fixed,
    GatedActivation,
    Heads,
    InnerWidth,
    Must,
    NoRope,
    OneSize,
    Option,
    QueryScalar,
    RotaryBase,
    Same,
    Theirs,
    Tied,
    Windows,
)
from attendo.interop.huggingface.table import Head, Row, Table, always, attention_layers, blocks, dense

_ALONE = {"n_encoder_layers": 0, "norm_first": True, "embedding_scale": False, "initialization": "normal"}
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
        *blocks(
            "transformer.h",
            "decoder",
            {
                "ln_1": "self_attention_residual.norm",
                "attn.c_attn": tuple(f"self_attention.{name}_proj" for name in "qkv"),
                "attn.c_proj": "self_attention.out_proj",
                "ln_2": "feed_forward_residual.norm",
                "mlp.c_fc": "feed_forward.in_proj",
                "mlp.c_proj": "feed_forward.out_proj",
            },
            transposed=True,
        ),
        *dense("transformer.ln_f", "decoder.norm"),
    ),
    {"GPT2LMHeadModel": _GPT2_HEAD, "GPT2Model": _GPT2_HEAD},
    prefix="transformer.",
    biased=True,
    passed_over=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)


_APART: Mapping[str, str | tuple[str, ...]] = {
    **attention_layers("self_attn", "self_attention", "q_proj", "k_proj", "v_proj", "o_proj"),
    "self_attn.q_norm": "self_attention.q_norm",
    "self_attn.k_norm": "self_attention.k_norm",
    "mlp.up_proj": "feed_forward.in_proj",
    "mlp.gate_proj": "feed_forward.gate_proj",
}
_JOINED: Mapping[str, str | tuple[str, ...]] = {
    "self_attn.qkv_proj": tuple(f"self_attention.{name}_proj" for name in "qkv"),
    "self_attn.o_proj": "self_attention.out_proj",
    "mlp.gate_up_proj": ("feed_forward.gate_proj", "feed_forward.in_proj"),
}


def _llama(
    head: str,
    *options: Option,
    layers: Mapping[str, str | tuple[str, ...]] = _APART,
    rotary: RotaryBase | None = None,
    windows: Windows | None = None,
    tied: bool = False,
    defaults: Theirs | None = None,
    stack: str = "decoder",
) -> Table:
    """Return the table of a model like Llama, with variants in biases, positions, norms and joined layers."""
    layers = {
        "input_layernorm": "self_attention_residual.norm",
        "mlp.down_proj": "feed_forward.out_proj",
        "post_attention_layernorm": "feed_forward_residual.norm",
        **layers,
    }
    turned = tuple(f"self_attention.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
    return Table(
        (
            Same("d_model", "hidden_size", 4096),
            Same("norm_eps", "rms_norm_eps", 1e-6),
            Same("attention_dropout", "attention_dropout", 0.0),
            Activation("hidden_act", "silu"),
            Tied(tied),
            Fixed(_ALONE | {"norm": "rms", "positions": "rotary", "feed_forward_gated": True, "dropout": 0.0}),
            *options,
            rotary or RotaryBase(),
            *(() if windows is None else (windows,)),
        ),
        (
            Row("model.embed_tokens.weight", ("embedding.tokens.weight",)),
            Row("lm_head.weight", ("output_proj.weight",)),
            *blocks("model.layers", stack, layers, turned),
            *dense("model.norm", f"{stack}.norm"),
        ),
        {head: Head("decoder")},
        prefix="model.",
        passed_over=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq"),
        defaults={"num_attention_heads": 32, **(defaults or {})},
    )


def _sizes(vocab_size: int, d_ff: int, max_len: int, stack: str = "decoder") -> tuple[Option, ...]:
    return (
        Same("vocab_size", "vocab_size", vocab_size),
        Same("d_ff", "intermediate_size", d_ff),
        Same(f"n_{stack}_layers", "num_hidden_layers", 32),
        Same("max_len", "max_position_embeddings", max_len),
    )


def _shape(*numbers: int) -> dict[str, float]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip(names, numbers, strict=True))


_QWEN = (*_sizes(151_936, 22_016, 32_768), Fixed({"feed_forward_bias": False}))
_QWEN_WINDOWS = Windows(used=False, is_local=lambda theirs, n: n >= theirs.get("max_window_layers", 28))


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
    windows=Windows(),
    defaults={"num_key_value_heads": 8},
)
PHI3 = _llama(
    "Phi3ForCausalLM",
    *_sizes(32_064, 8192, 4096),
    Heads(),
    Same("dropout", "resid_pdrop", 0.0),
    Fixed({"attention_bias": False, "feed_forward_bias": False}),
    layers=_JOINED,
    rotary=RotaryBase(partial=True),
    windows=Windows(default=None),
    defaults={"hidden_size": 3072, "rms_norm_eps": 1e-5},
)
SMOLLM3 = _llama(
    "SmolLM3ForCausalLM",
    *_sizes(128_256, 11_008, 32_768),
    Heads(),
    NoRope(),
    Same("attention_bias", "attention_bias", False),
    Same("feed_forward_bias", "mlp_bias", False),
    windows=Windows(used=False, default=None, is_local=lambda theirs, n: not NoRope.rotated(theirs)[n]),
    tied=True,
    defaults=_shape(2048, 36, 16, 4) | {"rope_theta": 2_000_000.0},
)
QWEN2 = _llama(
    "Qwen2ForCausalLM",
    *_QWEN,
    Heads(has_width=False),
    Fixed({"attention_bias": True, "attention_out_bias": False}),
    windows=_QWEN_WINDOWS,
)
QWEN3 = _llama(
    "Qwen3ForCausalLM",
    *_QWEN,
    Heads(),
    Same("attention_bias", "attention_bias", False),
    Fixed({"attention_norm": True}),
    windows=_QWEN_WINDOWS,
    defaults={"head_dim": 128},
)


def _eurobert() -> Table:
    """Return the table of EuroBERT: an encoder with the blocks of Llama, and classes for texts and for tokens."""
    table = _llama(
        "",
        *_sizes(128_256, 3072, 8192, "encoder"),
        Heads(),
        Same("attention_bias", "attention_bias", False),
        Same("feed_forward_bias", "mlp_bias", False),
        ClassifierPooling("bos", "late"),
        Must("mask_token_id", 0, checked=False),
        Fixed({"n_decoder_layers": 0, "tie": "none"}),
        defaults=_shape(768, 12, 12, 12) | {"rms_norm_eps": 1e-5},
        stack="encoder",
    )
    output = dense("classifier", "output_proj")
    heads = {
        "EuroBertForSequenceClassification": Head(
            "classifier", {"output_activation": "gelu"}, (*dense("dense", "output_hidden"), *output)
        ),
        "EuroBertForTokenClassification": Head("classifier", {"pooling": "none", "d_output": None}, output),
        "EuroBertModel": Head("classifier", {**VECTORS, "pooling": "mean"}),
    }
    rows = (row for row in table.weights if row.theirs != "lm_head.weight")
    return replace(table, weights=tuple(rows), heads=heads)


EUROBERT = _eurobert()


def _gemma(
    head: str, *options: Option, is_local: Callable[[Theirs, int], bool], rotary: RotaryBase | None = None
) -> Table:
    """Return the table of a Gemma: norms before and after each sublayer, GeGLU, and local and global attention."""
    norms = {
        "post_attention_layernorm": "self_attention_residual.output_norm",
        "pre_feedforward_layernorm": "feed_forward_residual.norm",
        "post_feedforward_layernorm": "feed_forward_residual.output_norm",
    }
    table = _llama(
        head,
        Activation("hidden_activation", "gelu_pytorch_tanh"),
        Heads(),
        QueryScalar(),
        Must("use_bidirectional_attention", False),
        Same("attention_bias", "attention_bias", False),
        Fixed({"embedding_scale": True, "norm_output": True, "feed_forward_bias": False}),
        *options,
        layers={**_APART, **norms},
        rotary=rotary,
        windows=Windows(is_local=is_local, kept=rotary is not None),
        tied=True,
        defaults=_shape(2304, 26, 8, 4) | {"head_dim": 256, "query_pre_attn_scalar": 256},
    )
    rows = (replace(row, minus=1.0) if "norm" in row.theirs else row for row in table.weights)
    return replace(table, weights=tuple(rows))


GEMMA2 = _gemma(
    "Gemma2ForCausalLM",
    *_sizes(256_000, 9216, 8192),
    Same("attention_softcap", "attn_logit_softcapping", 50.0),
    Same("output_softcap", "final_logit_softcapping", 30.0),
    is_local=lambda theirs, n: n % 2 == 0,
)
GEMMA3 = _gemma(
    "Gemma3ForCausalLM",
    *_sizes(262_208, 9216, 131_072),
    Fixed({"attention_norm": True}),
    Must("attn_logit_softcapping", None),
    Same("output_softcap", "final_logit_softcapping", None),
    is_local=lambda theirs, n: (n + 1) % theirs.get("sliding_window_pattern", 6) != 0,
    rotary=RotaryBase(bases={"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}),
)


_BART_LAYERS = {
    **attention_layers("self_attn", "self_attention", "q_proj", "k_proj", "v_proj", "out_proj"),
    "self_attn_layer_norm": "self_attention_residual.norm",
    "fc1": "feed_forward.in_proj",
    "fc2": "feed_forward.out_proj",
    "final_layer_norm": "feed_forward_residual.norm",
}
_BART_CROSS = {
    **attention_layers("encoder_attn", "cross_attention", "q_proj", "k_proj", "v_proj", "out_proj"),
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
    Row("model.decoder.embed_tokens.weight", ("target_embedding.tokens.weight",), aliases=("lm_head.weight",)),
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
    """Return the table of a model like BART, with variants in normalization and positions."""
    positions: tuple[Row, ...] = (
        Row("model.encoder.embed_positions.weight", ("source_embedding.positions.weight",), behind=2),
        Row("model.decoder.embed_positions.weight", ("target_embedding.positions.weight",), behind=2),
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


MARIAN = _bart(
    "MarianMTModel",
    58_101,
    *_TIED,
    _HALVES,
    Fixed({"norm_first": False}),
    Must("share_encoder_decoder_embeddings", True),
    learned=False,
    when=lambda theirs: bool(theirs.get("share_encoder_decoder_embeddings", True)),
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
BART = _bart("BartForConditionalGeneration", 50_265, *_TIED, _LEARNED, Fixed({"norm_first": False}), learned=True)
MBART = _bart("MBartForConditionalGeneration", 50_265, *_TIED, _LEARNED, Fixed({"norm_first": True}), learned=True)


def _t5_factor(theirs: Theirs) -> float:
    """Return the factor of the last states in T5: 1/√d, or 1 with a separate output matrix (version 1.1)."""
    scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True) is not False)
    return theirs.get("d_model", 512) ** -0.5 if scaled else 1.0


def _t5_layers(*, decoder: bool, gated: bool) -> dict[str, str]:
    """Return our names of a block's layers, by the names of T5, which numbers the layers."""
    names = attention_layers("layer.0.SelfAttention", "self_attention", *"qkvo")
    names["layer.0.layer_norm"] = "self_attention_residual.norm"
    if decoder:
        names |= attention_layers("layer.1.EncDecAttention", "cross_attention", *"qkvo")
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
    """Return the table of a T5 model.

    `gated` and `own_output` select the feed-forward network and the output matrix. `net` is the default activation.
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
            Same("head_dim", "d_kv", 64, written="head_width"),
            Same("d_ff", "d_ff", 2048),
            Same("n_encoder_layers", "num_layers", 6),
            Same("n_decoder_layers", "num_decoder_layers", 6, other="num_layers"),
            Same("n_heads", "num_heads", 8),
            Same("position_buckets", "relative_attention_num_buckets", 32),
            Same("position_reach", "relative_attention_max_distance", 128),
            Same("dropout", "dropout_rate", 0.1),
            Same("norm_eps", "layer_norm_epsilon", 1e-6),
            GatedActivation(net),
            Must("tie_word_embeddings", not own_output, checked=False),
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
        written=own_output,  # with a tied output, only some versions multiply the last states by 1/√d
        when=when,
    )


def _t5_tables(head: str, net: str, *, scaled: bool) -> tuple[Table, ...]:
    both = (False, True)
    return tuple(_t5(head, net, gated=gated, own_output=own, scaled=scaled) for gated in both for own in both)


T5 = _t5_tables("T5ForConditionalGeneration", "relu", scaled=True)
MT5 = _t5_tables("MT5ForConditionalGeneration", "gated-gelu", scaled=False)

FAMILIES: Mapping[str, tuple[Table, ...]] = {
    "bart": (BART,),
    "bert": (BERT,),
    "camembert": (ROBERTA,),
    "distilbert": (DISTILBERT,),
    "eurobert": (EUROBERT,),
    "gemma2": (GEMMA2,),
    "gemma3_text": (GEMMA3,),
    "gpt2": (GPT2,),
    "llama": (LLAMA,),
    "marian": (MARIAN, MARIAN_OF_TWO),
    "mbart": (MBART,),
    "mistral": (MISTRAL,),
    "modernbert": (MODERNBERT,),
    "mt5": MT5,
    "pegasus": (PEGASUS,),
    "phi3": (PHI3,),
    "qwen2": (QWEN2,),
    "qwen3": (QWEN3,),
    "roberta": (ROBERTA,),
    "smollm3": (SMOLLM3,),
    "t5": T5,
    "xlm-roberta": (ROBERTA,),
}
"""The tables of each model family, by the `model_type` of config.json."""
