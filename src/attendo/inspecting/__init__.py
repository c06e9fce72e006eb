"""Recording and editing a model from outside, without any change in the model's code."""

from attendo.inspecting.attribution import (
    Contribution,
    IntegratedGradients,
    PatchingEffects,
    integrated_gradients,
    log_prob,
    logit_attribution,
    logit_difference,
    patching_effects,
)
from attendo.inspecting.edits import Edit, Off, OffByRow, Patch, Temper
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
from attendo.inspecting.probing import Probe, linear_probes
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
    "Contribution",
    "Edit",
    "IntegratedGradients",
    "LayerRecord",
    "Off",
    "OffByRow",
    "Patch",
    "PatchingEffects",
    "Probe",
    "Recording",
    "Temper",
    "alignment_error_rate",
    "contribution_norms",
    "cross_rollout",
    "entropy",
    "head_contributions",
    "head_matrices",
    "head_measures",
    "head_ranks",
    "integrated_gradients",
    "lens_cosines",
    "lens_logits",
    "linear_probes",
    "log_prob",
    "logit_attribution",
    "logit_difference",
    "parse_links",
    "patching_effects",
    "patterns",
    "pooled_lens",
    "recording",
    "rollout",
    "view",
    "weighted_norms",
    "word_links",
]
