"""The encoders among the model families of Hugging Face: BERT, RoBERTa, DistilBERT and ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping

from attendo.interop.huggingface.options import (
    Activation,
    ClassifierPooling,
    Fixed,
    Length,
    Must,
    Option,
    RotaryBase,
    Same,
    Windows,
)
from attendo.interop.huggingface.table import Head, Row, Table, attention_layers, blocks, dense

_BERT_LAYERS = {
    **attention_layers("attention", "self_attention", "self.query", "self.key", "self.value", "output.dense"),
    "attention.output.LayerNorm": "self_attention_residual.norm",
    "intermediate.dense": "feed_forward.in_proj",
    "output.dense": "feed_forward.out_proj",
    "output.LayerNorm": "feed_forward_residual.norm",
}
_ENCODER = {
    "n_decoder_layers": 0,
    "norm": "layer",
    "norm_first": False,
    "positions": "learned",
    "embedding_scale": False,
    "initialization": "normal",
}
_CLASSES: Mapping[str, object] = {"pooling": "first", "tie": "none"}
VECTORS: Mapping[str, object] = {"n_classes": 0, "tie": "none"}


def _bert_options(*, unused: int | None) -> tuple[Option, ...]:
    return (
        Same("vocab_size", "vocab_size", 30522),
        Same("d_model", "hidden_size", 768),
        Same("d_ff", "intermediate_size", 3072),
        Same("n_heads", "num_attention_heads", 12),
        Same("n_encoder_layers", "num_hidden_layers", 12),
        Same("dropout", "hidden_dropout_prob", 0.1),
        Same("attention_dropout", "attention_probs_dropout_prob", 0.1),
        Same("norm_eps", "layer_norm_eps", 1e-12),
        Same("embedding_norm_eps", "layer_norm_eps", 1e-12),
        Activation("hidden_act", "gelu"),
        Length(512, unused),
        Must("position_embedding_type", "absolute"),
        Must("type_vocab_size", 2, checked=False),
        Must("is_decoder", False),
        Must("add_cross_attention", False),
        Fixed(_ENCODER),
    )


def _bert_weights(base: str, behind: int) -> tuple[Row, ...]:
    return (
        Row(f"{base}.embeddings.word_embeddings.weight", ("embedding.tokens.weight",)),
        Row(
            f"{base}.embeddings.position_embeddings.weight",
            ("embedding.positions.weight",),
            behind=behind,
            plus=f"{base}.embeddings.token_type_embeddings.weight",
        ),
        *dense(f"{base}.embeddings.LayerNorm", "embedding.norm"),
        *blocks(f"{base}.encoder.layer", "encoder", _BERT_LAYERS),
    )


_MASKED: Mapping[str, object] = {"tie": "all", "output_bias": True}
_BERT_MASKED = Head(
    "masked",
    _MASKED,
    (
        *dense("cls.predictions.transform.dense", "output_hidden"),
        *dense("cls.predictions.transform.LayerNorm", "output_norm"),
        Row("cls.predictions.bias", ("output_proj.bias",), aliases=("cls.predictions.decoder.bias",)),
    ),
)
BERT = Table(
    _bert_options(unused=0),
    _bert_weights("bert", 0),
    {
        "BertForMaskedLM": _BERT_MASKED,
        "BertForPreTraining": _BERT_MASKED,
        "BertForSequenceClassification": Head(
            "classifier",
            _CLASSES | {"output_activation": "tanh"},
            (*dense("bert.pooler.dense", "output_hidden"), *dense("classifier", "output_proj")),
        ),
        "BertModel": Head("classifier", VECTORS),
    },
    prefix="bert.",
    biased=True,
    passed_over=(r"pooler\..*", r"cls\.seq_relationship\..*", r"embeddings\.position_ids"),
)
ROBERTA = Table(
    (*_bert_options(unused=None), Must("hidden_act", "gelu")),  # the head of RoBERTa always uses GELU
    _bert_weights("roberta", -1),
    {
        "RobertaForMaskedLM": Head(
            "masked",
            _MASKED,
            (
                *dense("lm_head.dense", "output_hidden"),
                *dense("lm_head.layer_norm", "output_norm"),
                Row("lm_head.bias", ("output_proj.bias",), aliases=("lm_head.decoder.bias",)),
            ),
        ),
        "RobertaForSequenceClassification": Head(
            "classifier",
            _CLASSES | {"output_activation": "tanh"},
            (*dense("classifier.dense", "output_hidden"), *dense("classifier.out_proj", "output_proj")),
        ),
        "RobertaModel": Head("classifier", VECTORS),
    },
    prefix="roberta.",
    biased=True,
    passed_over=(r"pooler\..*", r"embeddings\.position_ids"),
)
DISTILBERT = Table(
    (
        Same("vocab_size", "vocab_size", 30522),
        Same("d_model", "dim", 768),
        Same("d_ff", "hidden_dim", 3072),
        Same("n_heads", "n_heads", 12),
        Same("n_encoder_layers", "n_layers", 6),
        Same("max_len", "max_position_embeddings", 512),
        Same("dropout", "dropout", 0.1),
        Same("attention_dropout", "attention_dropout", 0.1),
        Activation("activation", "gelu"),
        Fixed(_ENCODER | {"norm_eps": 1e-12, "embedding_norm_eps": 1e-12}),
    ),
    (
        Row("distilbert.embeddings.word_embeddings.weight", ("embedding.tokens.weight",)),
        Row("distilbert.embeddings.position_embeddings.weight", ("embedding.positions.weight",)),
        *dense("distilbert.embeddings.LayerNorm", "embedding.norm"),
        *blocks(
            "distilbert.transformer.layer",
            "encoder",
            {
                **attention_layers("attention", "self_attention", "q_lin", "k_lin", "v_lin", "out_lin"),
                "sa_layer_norm": "self_attention_residual.norm",
                "ffn.lin1": "feed_forward.in_proj",
                "ffn.lin2": "feed_forward.out_proj",
                "output_layer_norm": "feed_forward_residual.norm",
            },
        ),
    ),
    {
        "DistilBertForMaskedLM": Head(
            "masked",
            _MASKED,
            (
                *dense("vocab_transform", "output_hidden"),
                *dense("vocab_layer_norm", "output_norm"),
                Row("vocab_projector.bias", ("output_proj.bias",)),
            ),
        ),
        "DistilBertForSequenceClassification": Head(
            "classifier",
            _CLASSES | {"output_activation": "relu"},
            (*dense("pre_classifier", "output_hidden"), *dense("classifier", "output_proj")),
        ),
        "DistilBertModel": Head("classifier", VECTORS),
    },
    prefix="distilbert.",
    biased=True,
)


_MODERN_LAYERS: Mapping[str, str | tuple[str, ...]] = {
    "attn_norm": "self_attention_residual.norm",
    "attn.Wqkv": tuple(f"self_attention.{name}_proj" for name in "qkv"),
    "attn.Wo": "self_attention.out_proj",
    "mlp_norm": "feed_forward_residual.norm",
    "mlp.Wi": ("feed_forward.gate_proj", "feed_forward.in_proj"),
    "mlp.Wo": "feed_forward.out_proj",
}
_MODERN_HEAD = (*dense("head.dense", "output_hidden"), *dense("head.norm", "output_norm"))


MODERNBERT = Table(
    (
        Same("vocab_size", "vocab_size", 50_368),
        Same("d_model", "hidden_size", 768),
        Same("d_ff", "intermediate_size", 1152),
        Same("n_heads", "num_attention_heads", 12),
        Same("n_encoder_layers", "num_hidden_layers", 22),
        Same("max_len", "max_position_embeddings", 8192),
        Same("dropout", "embedding_dropout", 0.0),
        Same("attention_dropout", "attention_dropout", 0.0),
        Same("activation_dropout", "mlp_dropout", 0.0),
        Same("norm_eps", "norm_eps", 1e-5),
        Same("embedding_norm_eps", "norm_eps", 1e-5),
        Same("attention_bias", "attention_bias", False),
        Same("feed_forward_bias", "mlp_bias", False),
        Must("hidden_activation", "gelu"),
        Must("classifier_activation", "gelu"),
        *(Must(f"{part}_bias", value=True, checked=False) for part in ("norm", "classifier", "decoder")),
        ClassifierPooling(),
        Fixed(_ENCODER | {"positions": "rotary", "norm_first": True, "norm_first_block": False}),
        Fixed({"activation": "gelu", "feed_forward_gated": True}),
        RotaryBase(bases={"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}, scales_local=True),
        Windows(
            default=128,
            is_local=lambda theirs, n: n % theirs.get("global_attn_every_n_layers", 3) > 0,
            half=True,
            kept=True,
        ),
    ),
    (
        Row("model.embeddings.tok_embeddings.weight", ("embedding.tokens.weight",)),
        *dense("model.embeddings.norm", "embedding.norm"),
        *blocks("model.layers", "encoder", _MODERN_LAYERS, ("self_attention.q_proj", "self_attention.k_proj")),
        *dense("model.final_norm", "encoder.norm"),
    ),
    {
        "ModernBertForMaskedLM": Head("masked", _MASKED, (*_MODERN_HEAD, *dense("decoder", "output_proj"))),
        "ModernBertForSequenceClassification": Head(
            "classifier",
            {"tie": "none", "output_activation": "gelu", "output_norm": True},
            (*_MODERN_HEAD, *dense("classifier", "output_proj")),
        ),
        "ModernBertModel": Head("classifier", VECTORS),
    },
    prefix="model.",
    optional=("norm.bias", "head.dense.bias", "decoder.bias"),  # unless config.json requests biases
)
