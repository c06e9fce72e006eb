"""Encoders that read both ways: BERT, RoBERTa, DistilBERT, with a head for words, for classes, or none."""

from __future__ import annotations

from collections.abc import Mapping

from attendo.interop.huggingface.options import Activation, Fixed, Length, Must, Option, Said, Same
from attendo.interop.huggingface.table import Head, Table
from attendo.interop.huggingface.weights import Row, blocks, dense

_BERT_LAYERS = {
    "attention.self.query": "self_attention.q_proj",
    "attention.self.key": "self_attention.k_proj",
    "attention.self.value": "self_attention.v_proj",
    "attention.output.dense": "self_attention.out_proj",
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
_VECTORS: Mapping[str, object] = {"n_classes": 0, "tie": "none"}


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
        Said("type_vocab_size", 2),
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
        "BertModel": Head("classifier", _VECTORS),
    },
    prefix="bert.",
    biased=True,
    passed_over=(r"pooler\..*", r"cls\.seq_relationship\..*", r"embeddings\.position_ids"),
)
ROBERTA = Table(
    (*_bert_options(unused=None), Must("hidden_act", "gelu")),  # its head has that whatever the file says
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
        "RobertaModel": Head("classifier", _VECTORS),
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
                "attention.q_lin": "self_attention.q_proj",
                "attention.k_lin": "self_attention.k_proj",
                "attention.v_lin": "self_attention.v_proj",
                "attention.out_lin": "self_attention.out_proj",
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
        "DistilBertModel": Head("classifier", _VECTORS),
    },
    prefix="distilbert.",
    biased=True,
)
