"""Attention functions as students write them: right ones, and wrong ones of every usual kind."""

import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F


def scores(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def masked(q, k, mask, floor):
    s = scores(q, k)
    return s if mask is None else s.masked_fill(~mask, floor)


# ---- right ones


def plain(q, k, v):
    return scores(q, k).softmax(-1) @ v


def with_mask(query, key, value, mask=None):
    weights = masked(query, key, mask, torch.finfo(query.dtype).min).softmax(-1)
    return (weights if mask is None else weights.masked_fill(~mask, 0.0)) @ value


def with_nan_replaced(q, k, v, mask=None):
    return masked(q, k, mask, -math.inf).softmax(-1).nan_to_num() @ v  # masked_fill stops the NaN's gradient


def with_weights(q, k, v, attn_mask=None):
    weights = masked(q, k, attn_mask, -1e9).softmax(-1)
    weights = weights if attn_mask is None else weights * attn_mask
    return weights @ v, weights


def with_required_mask_and_scale(q, k, v, mask, scale):
    weights = (q @ k.mT * scale).masked_fill(~mask, -1e30).softmax(-1) * mask
    return weights @ v


def with_optional_scale(q, k, v, *, scale=None):
    return (q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)).softmax(-1) @ v


def with_number_mask(q, k, v, mask=None):
    if mask is None:
        return plain(q, k, v)
    weights = (scores(q, k) + (1 - mask) * -1e9).softmax(-1)  # torch refuses 1 - a bool
    return weights * mask @ v


def by_einsum(q, k, v):
    s = torch.einsum("...qd,...kd->...qk", q, k) * q.shape[-1] ** -0.5
    powers = (s - s.amax(-1, keepdim=True)).exp()
    return torch.einsum("...qk,...kv->...qv", powers / powers.sum(-1, keepdim=True), v)


class Module(torch.nn.Module):
    def forward(self, query, key, value):
        return plain(query, key, value)


def in_numpy(query, key, value, mask=None):
    s = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    s = s if mask is None else np.where(mask, s, -1e300)
    powers = np.exp(s - s.max(axis=-1, keepdims=True))
    powers = powers if mask is None else powers * mask
    return powers @ value / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)


RIGHT = [
    plain, with_mask, with_nan_replaced, with_weights, with_required_mask_and_scale,
    with_optional_scale, with_number_mask, by_einsum, Module(), in_numpy, F.scaled_dot_product_attention,
]  # fmt: skip

# ---- wrong ones: (function, the properties that must fail, where the hint is looked for, words of the hint)


def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def causal(q, k, v):
    seen = torch.ones(q.shape[-2], k.shape[-2]).tril(k.shape[-2] - q.shape[-2]).bool()
    return with_mask(q, k, v, seen)


def causal_from_the_start(q, k, v):
    s = scores(q, k)
    return s.masked_fill(~torch.ones(s.shape[-2:]).tril().bool(), -math.inf).softmax(-1) @ v


def causal_of_a_square(q, k, v):
    later = torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool()
    return scores(q, k).masked_fill(later, -math.inf).softmax(-1) @ v


def without_batch(q, k, v):
    return torch.softmax(q @ k.permute(1, 0) / math.sqrt(q.shape[1]), 1) @ v


def with_batch_only(q, k, v):
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(q.shape[2])).softmax(2), v)


def weights_first(q, k, v):
    weights = scores(q, k).softmax(-1)
    return weights, weights @ v


def returning_nothing(q, k, v):
    plain(q, k, v)


def mask_too_weak(q, k, v, mask=None):
    weights = masked(q, k, mask, -40.0).softmax(-1)
    return (weights if mask is None else weights * mask.any(-1, keepdim=True)) @ v


def infinity_added(q, k, v, mask=None):
    if mask is None:
        return plain(q, k, v)
    added = torch.zeros(mask.shape).double().masked_fill(~mask, -math.inf)
    return (scores(q, k) + added).softmax(-1).nan_to_num() @ v


def overflowing(q, k, v):
    powers = scores(q, k).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def overflowing_numpy(q, k, v):
    powers = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]))
    return powers / powers.sum(-1, keepdims=True) @ v


def unscaled_numpy(q, k, v):
    s = q @ np.swapaxes(k, -1, -2)
    powers = np.exp(s - s.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def detached(q, k, v):
    return plain(q, k, v).detach()


def sum_with_a_small_number(q, k, v):
    powers = (scores(q, k) - scores(q, k).amax(-1, keepdim=True)).exp()
    return powers / (powers.sum(-1, keepdim=True) + 1e-6) @ v


def scaling_in_place(q, k, v):
    q /= math.sqrt(q.shape[-1])
    return (q @ k.mT).softmax(-1) @ v


def mask_in_place(q, k, v, mask=None):
    if mask is not None:
        mask.logical_not_()
        return with_mask(q, k, v, ~mask)
    return plain(q, k, v)


brief = SimpleNamespace(
    wrong_axis=lambda q, k, v: scores(q, k).softmax(-2) @ v,
    axis_one=lambda q, k, v: scores(q, k).softmax(1) @ v,
    axis_zero=lambda q, k, v: scores(q, k).softmax(0) @ v,
    scaled_by_d=lambda q, k, v: (q @ k.mT / q.shape[-1]).softmax(-1) @ v,
    multiplied_by_root=lambda q, k, v: (q @ k.mT * math.sqrt(q.shape[-1])).softmax(-1) @ v,
    scaled_by_length=lambda q, k, v: (q @ k.mT / math.sqrt(k.shape[-2])).softmax(-1) @ v,
    scaled_afterwards=lambda q, k, v: (q @ k.mT).softmax(-1) / math.sqrt(q.shape[-1]) @ v,
    unscaled_over_wrong_axis=lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    dividing_by_given_scale=lambda q, k, v, scale=None: (
        (q @ k.mT / (math.sqrt(q.shape[-1]) if scale is None else scale)).softmax(-1) @ v
    ),
    without_softmax=lambda q, k, v: scores(q, k) @ v,
    without_division=lambda q, k, v: scores(q, k).exp() @ v,
    twice=lambda q, k, v: scores(q, k).softmax(-1).softmax(-1) @ v,
    hard=lambda q, k, v: F.one_hot(scores(q, k).argmax(-1), k.shape[-2]).to(v.dtype) @ v,
    mean=lambda q, k, v: v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1]),
    reversed_values=lambda q, k, v: scores(q, k).softmax(-1) @ v.flip(-2),
    keys_as_values=lambda q, k, v: scores(q, k).softmax(-1) @ k,
    swapped=lambda q, k, v: plain(k, q, v),
    transposed_weights=lambda q, k, v: scores(q, k).softmax(-1).mT @ v,
    columns=lambda q, k, v: plain(q.mT, k.mT, v.mT).mT,
    same_lengths_only=lambda q, k, v: plain(q, k, v) + torch.zeros(k.shape[-2], 1).double(),
    same_widths_only=lambda q, k, v: plain(q, k, v).reshape(q.shape),
    mask_forgotten=lambda q, k, v, mask=None: plain(q, k, v),
    mask_reversed=lambda q, k, v, mask=None: with_mask(q, k, v, None if mask is None else ~mask),
    floor_on_the_wrong_side=lambda q, k, v, mask=None: (
        masked(q, k, None if mask is None else ~mask, -1e9).softmax(-1) @ v
    ),
    mask_after_softmax=lambda q, k, v, mask=None: scores(q, k).softmax(-1) * (1 if mask is None else mask) @ v,
    mask_times_scores=lambda q, k, v, mask=None: (scores(q, k) * (1 if mask is None else mask)).softmax(-1) @ v,
    mask_added=lambda q, k, v, mask=None: (scores(q, k) + (0 if mask is None else mask)).softmax(-1) @ v,
    infinite_floor=lambda q, k, v, mask=None: masked(q, k, mask, -math.inf).softmax(-1) @ v,
    textbook_floor=lambda q, k, v, mask=None: masked(q, k, mask, -1e9).softmax(-1) @ v,
    detached_weights=lambda q, k, v: scores(q, k).softmax(-1).detach() @ v,
    half_detached=lambda q, k, v: ((scores(q, k) + scores(q, k).detach()) / 2).softmax(-1) @ v,
    in_single_precision=lambda q, k, v: plain(q.float(), k.float(), v.float()).double(),
    giving_single_precision=lambda q, k, v: plain(q.float(), k.float(), v.float()),
    single_precision_numpy=lambda q, k, v: in_numpy(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)),
    with_dropout=lambda q, k, v: F.dropout(scores(q, k).softmax(-1), 0.4) @ v,
)
for name, function in vars(brief).items():
    function.__name__ = name

WRONG = [
    (brief.wrong_axis, "rows scale agreement", "rows", "softmax runs over the queries"),
    (brief.axis_one, "agreement", "agreement", None),
    (brief.axis_zero, "rows scale agreement", "rows", None),
    (unscaled, "scale agreement", "scale", "forgot the scale"),
    (brief.scaled_by_d, "scale agreement", "scale", "scaled by 1/head_dim"),
    (brief.multiplied_by_root, "scale agreement", "agreement", "multiplied by √head_dim"),
    (brief.scaled_by_length, "scale agreement", "agreement", "by the number of keys"),
    (brief.scaled_afterwards, "rows scale agreement", "rows", "the scale comes after the softmax"),
    (
        brief.unscaled_over_wrong_axis,
        "rows scale agreement",
        "agreement",
        "queries; it must run over the keys",
    ),
    (brief.dividing_by_given_scale, "scale", "scale", "scale takes the place of 1/√head_dim"),
    (brief.without_softmax, "rows scale agreement stability", "rows", "the softmax is missing"),
    (brief.without_division, "rows agreement stability", "rows", "without division by its sum"),
    (brief.twice, "scale agreement", "agreement", "taken twice"),
    (brief.hard, "scale agreement permutation gradient", "agreement", "an argmax where a softmax belongs"),
    (brief.mean, "scale agreement", "agreement", "every key weighs the same"),
    (brief.reversed_values, "scale agreement permutation", "agreement", "the values stand in reverse order"),
    (brief.hard, "scale agreement permutation gradient", "gradient", "the output jumps here"),
    (brief.keys_as_values, "shapes rows agreement +", "agreement", "the keys are used as values"),
    (brief.swapped, "shapes agreement +", "shapes", "query and key have changed places"),
    (brief.transposed_weights, "shapes agreement +", "shapes", "the weights are transposed"),
    (brief.columns, "shapes agreement +", "agreement", "tokens are taken for columns"),
    (causal, "rows agreement permutation", "agreement", "a causal mask is built in"),
    (causal_from_the_start, "scale agreement permutation", "scale", "a causal mask is built in"),
    (causal_from_the_start, "scale agreement permutation", "agreement", "a causal mask is built in"),
    (causal_from_the_start, "scale agreement permutation", "permutation", "a causal mask is built in"),
    (causal_of_a_square, "shapes agreement +", "shapes", "more or fewer keys than queries"),
    (causal_of_a_square, "shapes agreement +", "agreement", "; and a causal mask is built in"),
    (without_batch, "shapes", "shapes", "axis 0 or 1 counts from the front"),
    (with_batch_only, "shapes", "shapes", "works with a batch only"),
    (brief.same_lengths_only, "shapes agreement +", "shapes", "more or fewer keys than queries"),
    (brief.same_widths_only, "shapes agreement +", "shapes", "values may have a width of their own"),
    (weights_first, "shapes agreement +", "shapes", "return (output, weights), in this order"),
    (returning_nothing, "shapes", "shapes", "no `return`"),
    (brief.mask_forgotten, "mask empty-row", "mask", "the mask is not used"),
    (brief.mask_reversed, "mask empty-row", "mask", "the mask is reversed"),
    (brief.floor_on_the_wrong_side, "mask empty-row", "mask", "the mask is reversed"),
    (brief.mask_after_softmax, "mask", "mask", "multiplies the weights after the softmax"),
    (brief.mask_times_scores, "mask empty-row", "mask", "the mask multiplies the scores"),
    (brief.mask_added, "mask empty-row", "mask", "the mask is added as 0 and 1"),
    (mask_too_weak, "mask", "mask", "too small to make their weights 0"),
    (brief.infinite_floor, "empty-row", "empty row", "a softmax over -inf alone is 0/0"),
    (brief.textbook_floor, "empty-row", "empty row", "mixes forbidden values"),
    (infinity_added, "empty-row", "empty row", "stays in the gradient"),
    (overflowing, "stability", "stability", "subtract each query's largest score"),
    (overflowing_numpy, "stability", "stability", "subtract each query's largest score"),
    (unscaled_numpy, "scale agreement", "scale", "forgot the scale"),
    (detached, "gradient", "gradient", "detach()"),
    (brief.detached_weights, "gradient", "gradient", "detach()"),
    (brief.half_detached, "gradient", "gradient", "a part of the way is cut off"),
    (brief.in_single_precision, "rows agreement", "agreement", "float32 inside"),
    (brief.giving_single_precision, "rows agreement", "agreement", "float32 inside"),
    (brief.single_precision_numpy, "agreement", "agreement", "float32 inside"),
    (sum_with_a_small_number, "rows agreement", "agreement", "small number added to the sum"),
    (scaling_in_place, "inputs", "inputs", "an operation in place"),
    (mask_in_place, "inputs", "inputs", "an operation in place"),
    (brief.with_dropout, "rows agreement +", "agreement", "two calls with the same input differ"),
]


def outcome(report, name):
    """The outcome of a property in a report of the grader."""
    return next(found for found in report.outcomes if found.property.id == name)
