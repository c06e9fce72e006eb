"""Recording and editing a model from outside, without any change in the model's code."""

from attendo.inspecting.edits import Edit, Mean, Off, OffByRow, Replace, Temper
from attendo.inspecting.measures import (
    alignment_error_rate,
    cross_rollout,
    entropy,
    head_measures,
    parse_links,
    patterns,
    rollout,
    word_links,
)
from attendo.inspecting.recording import LayerRecord, Recording, recording, view
from attendo.inspecting.residual_stream import (
    contribution_norms,
    head_contributions,
    head_matrices,
    head_ranks,
    lens_cosines,
    lens_logits,
    pooled_lens,
    weighted_norms,
)

__all__ = [
    "Edit",
    "LayerRecord",
    "Mean",
    "Off",
    "OffByRow",
    "Recording",
    "Replace",
    "Temper",
    "alignment_error_rate",
    "contribution_norms",
    "cross_rollout",
    "entropy",
    "head_contributions",
    "head_matrices",
    "head_measures",
    "head_ranks",
    "lens_cosines",
    "lens_logits",
    "parse_links",
    "patterns",
    "pooled_lens",
    "recording",
    "rollout",
    "view",
    "weighted_norms",
    "word_links",
]
