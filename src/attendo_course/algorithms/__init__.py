"""Algorithms 1 to 15 of Phuong & Hutter 2022, "Formal Algorithms for Transformers" (arXiv 2207.09238), on attendo.

Names and signatures are as in the paper. Columns are tokens, token ids count from 1, and the special ids are the last
ids of the vocabulary. The last argument of each function contains the parameters `| θ` of the paper. Algorithms 1 to
7 take arrays. Algorithms 8 to 15 take a model of attendo: `build_formal_ed(formal_ed_config(...))`,
`MaskedLM(formal_e_config(...))` or `DecoderLM(formal_d_config(...))`.
"""

from attendo_course.algorithms.components import (
    Attention,
    AttentionParameters,
    MHAttention,
    MHAttentionParameters,
    bidirectional,
    hard_coded_positions,
    layer_norm,
    positional_embedding,
    single_query_attention,
    special_ids,
    token_embedding,
    unembedding,
    unidirectional,
)
from attendo_course.algorithms.hyperparameters import (
    build_formal_ed,
    formal_d_config,
    formal_e_config,
    formal_ed_config,
)
from attendo_course.algorithms.transformers import (
    DInference,
    DTraining,
    DTransformer,
    EDInference,
    EDTraining,
    EDTransformer,
    ETraining,
    ETransformer,
    d_inference_steps,
    d_loss,
    distribution,
    e_loss,
    ed_inference_steps,
    ed_loss,
    masked,
)

ALGORITHMS = (
    ("A1", token_embedding),
    ("A2", positional_embedding),
    ("A3", single_query_attention),
    ("A4", Attention),
    ("A5", MHAttention),
    ("A6", layer_norm),
    ("A7", unembedding),
    ("A8", EDTransformer),
    ("A9", ETransformer),
    ("A10", DTransformer),
    ("A11", EDTraining),
    ("A12", ETraining),
    ("A13", DTraining),
    ("A14", DInference),
    ("A15", EDInference),
)
"""All algorithms of the paper, as pairs of a number ("A1" to "A15") and a function."""

__all__ = [
    "ALGORITHMS",
    "Attention",
    "AttentionParameters",
    "DInference",
    "DTraining",
    "DTransformer",
    "EDInference",
    "EDTraining",
    "EDTransformer",
    "ETraining",
    "ETransformer",
    "MHAttention",
    "MHAttentionParameters",
    "bidirectional",
    "build_formal_ed",
    "d_inference_steps",
    "d_loss",
    "distribution",
    "e_loss",
    "ed_inference_steps",
    "ed_loss",
    "formal_d_config",
    "formal_e_config",
    "formal_ed_config",
    "hard_coded_positions",
    "layer_norm",
    "masked",
    "positional_embedding",
    "single_query_attention",
    "special_ids",
    "token_embedding",
    "unembedding",
    "unidirectional",
]
