"""The influence of tokens and activations on the output: attention rollout, integrated gradients and patching."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.data.chat import marked_ids
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inspecting.attribution import (
    Metric,
    contributions,
    embedding_of,
    integrated_gradients,
    log_prob,
    patching_effects,
)
from attendo.inspecting.measures import cross_rollout, rollout
from attendo.inspecting.residual_stream import Stack
from attendo.microscope.answers import encoded, stack_weights
from attendo.microscope.protocol import AttributionAnswer, From0, Influence, InfluenceAnswer, LogitPart
from attendo.microscope.run_model import LookResult, Reading, masked_ids
from attendo.models import parameter_count

STEPS = 16
"""The number of points of integrated gradients."""
MOST_WORK = 4e11
"""The maximum work of a request, in parameters x tokens of all passes: some seconds on one core."""
SOURCES: dict[Influence, str] = {
    "rollout": "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1",
    "gradients": "Sundararajan, Taly & Yan 2017, Axiomatic Attribution for Deep Networks",
    "patching": "Vig et al. 2020; Meng et al. 2022; Zhang & Nanda 2024",
}


def influence_answer(
    result: LookResult, stack: str, way: Influence = "rollout", position: From0 = 0, other: str = ""
) -> InfluenceAnswer:
    """Return the influence of input tokens or activations on the output, `[q_len, k_len]`.

    "rollout" contains the share of each input token in each position of the last layer. For the stack "encoder" or
    "decoder", each row sums to 1. For "cross", the shares are those of source tokens in target positions, and the
    remainder to 1 comes from target tokens. Edits of attention weights change the result, but switching off a head does
    not.

    "gradients" contains the integrated gradients of each predicted token's log-probability for each input token, in
    nats, with zero vectors as the baseline. For a classifier, see `tokens_answer`.

    "patching" contains the change of the log-probability of the token predicted at `position`, or of the label, if the
    residual stream after a block (row) at a position (column) is replaced by the residual stream of the text `other`,
    in nats. Raise AttendoError if the stack does not exist, the work is too large, or the numbers of tokens differ.
    """
    weights = stack_weights(result, stack)
    match way:
        case "rollout" if stack == "cross":
            memory = rollout(stack_weights(result, "encoder"))
            found, _ = cross_rollout(stack_weights(result, "decoder"), weights, memory)
        case "rollout":
            found = rollout(weights)
        case "gradients":
            found = _gradients(result, stack)
        case "patching":
            found = _patching(result, "decoder" if stack == "decoder" else "encoder", position, other)
    q_len, k_len = found.shape
    return {"q_len": q_len, "k_len": k_len, "data": encoded(found), "source": SOURCES[way]}


def _metric(result: LookResult, position: int) -> Metric:
    """Return the log-probability of the predicted token, or of the label."""
    if isinstance(result.user, Classifier):
        return lambda logits: result.label_log_probs(logits)[:, result.label]
    token = result.wanted[position] if position < len(result.wanted) else None
    if token is None:
        raise AttendoError("this position predicts no token. Choose another position")
    return log_prob(token, position)


def _bounded(result: LookResult, passes: int) -> None:
    n_tokens = sum(tensor.shape[1] for tensor in result.inputs.values())
    if parameter_count(result.model) * n_tokens * passes > MOST_WORK:
        raise AttendoError("this takes too long on the page. Use attendo.inspecting in Python, or a shorter text")


def _gradients(result: LookResult, stack: str) -> Float[Tensor, "q_len k_len"]:
    name = embedding_of(result.model, "decoder" if stack == "decoder" else "encoder")[0]
    there = [at for at, token in enumerate(result.wanted) if token is not None]
    if not there:
        raise AttendoError("a classifier predicts no tokens. See the contribution of each token to its label")
    _bounded(result, 3 * STEPS * len(there))  # a backward pass takes as long as two forward passes
    found = torch.zeros(len(result.wanted), result.inputs[name].shape[1])
    for at in there:
        metric = _metric(result, at)
        own = integrated_gradients(result.model, result.inputs, metric, n_steps=STEPS, edits=result.edits)
        found[at] = own.tokens[name]
    return found


def _patching(result: LookResult, stack: Stack, position: int, other: str) -> Float[Tensor, "blocks positions"]:
    metric, clean = _metric(result, position), _inputs_of(result, other)
    for name, tensor in clean.items():
        if tensor.shape != (expected := result.inputs[name].shape):
            raise AttendoError(
                f"the other text has {tensor.shape[1]} tokens, but this text has {expected[1]}. "
                "Use a text with the same number of tokens"
            )
    _bounded(result, len(stack_weights(result, stack)) * clean[embedding_of(result.model, stack)[0]].shape[1])
    patched = patching_effects(result.model, clean, result.inputs, metric, stack=stack, edits=result.edits)
    return patched.effects


def _inputs_of(result: LookResult, text: str) -> dict[str, Tensor]:
    """Return the inputs of another text, followed by the same output."""
    specials, user = result.tokenizer.specials, result.user
    source, target = [], list(result.target)
    match user:
        case Translator():
            source = specials.source(result.tokenizer.encode(text))
        case Generator():
            target = [*marked_ids(result.tokenizer, text), *target[result.prompt_tokens :]]
        case Classifier():
            source = specials.text(result.tokenizer.encode(text))
        case Embedder():
            source = specials.text(masked_ids(result.tokenizer, text))
    return Reading(tuple(source), tuple(target), ()).as_inputs(result.family, user.device)


BIASES = "biases"
"""The path of the sum of all biases in the parts of a logit."""
OTHERS = 10
"""The number of other tokens that an answer offers for comparison."""


def attribution_answer(result: LookResult, position: From0, other: From0 | None = None) -> AttributionAnswer:
    """Return the direct contributions of all parts to the logit of the token that is predicted at a position.

    See `logit_attribution`. If a position predicts no token, the token is the most probable token. The biases of all
    layers are one part. If `other` is an id, the logit of this token is subtracted. `others` are the most probable
    other tokens. Raise AttendoError if the model has no decoder, or if `position` or `other` is out of range.
    """
    n_positions, vocab_size = len(result.wanted), result.model.config.vocab_size
    if not 0 <= position < n_positions or not 0 <= (other or 0) < vocab_size:
        raise AttendoError(
            f"position {position} must be 0 to {n_positions - 1}, and other={other} must be below {vocab_size}"
        )
    logits = result.logits[position].double()
    likely = logits.topk(min(OTHERS + 1, vocab_size)).indices.tolist()
    wanted = result.wanted[position]
    token = likely[0] if wanted is None else wanted
    found = contributions(result.model, result.record, token, other, position)
    with_heads = {part.path for part in found if part.head is not None}
    parts: list[LogitPart] = [{"path": BIASES, "head": None, "value": 0.0}]
    for part in found:
        is_rest = part.head is None and part.path in with_heads
        if is_rest or part.path.endswith(("norm", "output_proj")):
            parts[0]["value"] += part.value
        else:
            parts.append({"path": part.path, "head": part.head, "value": part.value})
    return {
        "token": result.token(token),
        "others": [result.token(one) for one in likely if one != token][:OTHERS],
        "logit": float(logits[token] - (0.0 if other is None else logits[other])),
        "parts": parts,
    }
