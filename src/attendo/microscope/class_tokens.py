"""Which tokens a classifier's label rests on: the label without each, gradient times input, rollout, the pooling."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inference import Classifier
from attendo.inspecting.rollout import cross_rollout, rollout
from attendo.microscope.layers import encoded
from attendo.microscope.seen import Seen
from attendo.models import EncoderClassifier
from attendo.nn.pooling import Pooling

SOURCE = "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1"
LABEL = (
    "approximation: heads count alike, the residual stream for half, values and feed-forward nets not at all"
)


def rollout_answer(seen: Seen, stack: str) -> dict[str, Any]:
    """How much of each position, behind the last layer, is said to come from each input token `[q_len, k_len]`.

    "encoder", "decoder": through the self-attention of that stack; rows sum to 1. "cross": from the source's tokens to
    the target's positions, through both stacks; what is left of 1 comes from the target's own tokens. With the edits of
    weights (a head that is switched off still attends). Raises AttendoError for a stack that the model has not.
    """
    layers = weights_of(seen, stack)
    if stack == "cross":
        found, _ = cross_rollout(weights_of(seen, "decoder"), layers, rollout(weights_of(seen, "encoder")))
    else:
        found = rollout(layers)
    q_len, k_len = found.shape
    return {"q_len": q_len, "k_len": k_len, "data": encoded(found), "label": LABEL, "source": SOURCE}


def weights_of(seen: Seen, stack: str) -> list[Float[Tensor, "heads q_len k_len"]]:
    """The weights of each layer of a stack. Raises AttendoError for one that the model has not."""
    ends = {"encoder": "self_attention", "decoder": "self_attention", "cross": "cross_attention"}
    start = "decoder" if stack == "cross" else stack
    paths = [path for path in seen.record if path.startswith(start) and path.endswith(ends.get(stack, "/"))]
    if not paths:
        raise AttendoError(f"stack={stack!r}: this model has no such attention")
    return [seen.record[path].weights[0] for path in paths]


NOTES = (
    "Four answers to different questions. Without the token: by how much the label's log-probability is higher with it"
    " than in the text that lacks it (below 0: it speaks against the label); of two that say the same either can be"
    " spared. Gradient × input: to first order, what each token's embedding adds to the label's log-probability; it"
    " misleads most where a norm comes first and takes away how long a vector is. Pooled: the share of the text's"
    " vector that was taken at this position. Rollout: that share, traced back through the attention weights alone (an"
    " approximation; Abnar & Zuidema 2020).",
    "四つはそれぞれ別の問いへの答えです。「そのトークンを除いたとき」は、そのトークンがある文でラベルの対数確率が"
    "どれだけ高いかを示します（負なら、ラベルに不利なトークンです）。同じ働きのトークンが二つあると、どちらも小さく"
    "なります。勾配×入力は、各トークンの埋め込みがラベルの対数確率に一次近似でどれだけ加えるか（正規化が先にくる"
    "モデルでは、ベクトルの長さが失われるため当てになりません）、プーリングは、文のベクトルのうちこの位置から取られた"
    "割合、ロールアウトは、その割合をアテンションの重みだけでさかのぼったもの（近似、Abnar & Zuidema 2020）です。",
)
MOST_WORK = 2e11
"""Weights times tokens of all the shorter texts together: some seconds of one core; beyond, none is read."""
TOKENS_AT_ONCE = 8192


def tokens_answer(seen: Seen) -> dict[str, Any]:
    """Each token's part in the label: {label, left_out, gradient_times_input, rollout, pooled, note_en, note_ja}.

    left_out: log p(label) less what it is without the token, in nats; 0 for the specials around a text, which no text
    lacks; None where that takes too long (Li et al. 2016).
    gradient_times_input: Σ_d x_d ∂ log p(label) / ∂x_d of what enters the encoder at each position (Denil et al. 2014;
    Shrikumar et al. 2016), in nats. pooled: sums to 1, see `pooled_shares`. rollout: the same shares traced back to the
    encoder's input. Raises AttendoError for a model that is no classifier.
    """
    if not isinstance(seen.user, Classifier):
        raise AttendoError(
            "only a classifier gives a text a label; for other models see the effects of their heads"
        )
    label = int(seen.logits.argmax())
    states = seen.record["encoder"].output[0]
    shares = pooled_shares(states, seen.user.model.config.pooling)
    traced = shares @ rollout(weights_of(seen, "encoder")).to(shares)
    return {
        "label": seen.user.labels.names[label],
        "left_out": left_out(seen, seen.user, label),
        "gradient_times_input": _gradient_times_input(seen, label, seen.user.temperature).tolist(),
        "rollout": traced.tolist(),
        "pooled": shares.tolist(),
        "note_en": NOTES[0],
        "note_ja": NOTES[1],
    }


def pooled_shares(states: Float[Tensor, "len d_model"], kind: Pooling) -> Float[Tensor, " len"]:
    """The share of the pooled vector that comes from each position.

    "max": the share of the d_model largest values that stand there, the first of equals; "mean": 1 / len; "first": all
    from the first.

    >>> pooled_shares(torch.tensor([[1.0, 5.0, 2.0, 0.0], [3.0, 4.0, 1.0, 0.0]]), "max")
    tensor([0.7500, 0.2500])
    """
    n, d_model = states.shape
    match kind:
        case "max":
            return torch.bincount(states.argmax(0), minlength=n).float() / d_model
        case "mean":
            return torch.full((n,), 1 / n)
        case "first":
            return torch.eye(n)[0]


def left_out(seen: Seen, user: Classifier, label: int, most_work: float | None = None) -> list[float] | None:
    """log p(label | text) - log p(label | text without token i), for each i; None beyond most_work, else MOST_WORK."""
    ids, (before, behind) = seen.inputs["src"][0], user.tokenizer.specials.around_text
    places = range(len(before), len(ids) - len(behind))
    weights = sum(p.numel() for p in seen.model.get_submodule("encoder").parameters())
    if weights * len(ids) * len(places) > (MOST_WORK if most_work is None else most_work):
        return None
    if len(places) < 2:  # without its only token there is no text
        return [0.0] * len(ids)
    shorter = torch.stack([torch.cat([ids[:i], ids[i + 1 :]]) for i in places])
    with torch.inference_mode(), seen.edited() as view:
        texts = shorter.split(max(1, TOKENS_AT_ONCE // len(ids)))
        logits = torch.cat([view(src=part) for part in texts])
    whole, without = ((x / user.temperature).log_softmax(-1)[..., label] for x in (seen.logits, logits))
    return [0.0] * len(before) + (whole - without).tolist() + [0.0] * len(behind)


def _gradient_times_input(seen: Seen, label: int, temperature: float) -> Float[Tensor, " len"]:
    """One backward pass on the view; the parameters get no gradient."""
    inputs: list[Tensor] = []

    def cut(module: Any, given: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[0]

    with torch.enable_grad(), seen.edited() as view:
        assert isinstance(view, EncoderClassifier)
        view.embedding.register_forward_hook(cut)
        # what inference has made can take no part in a gradient
        logits = view(**{name: tensor.clone() for name, tensor in seen.inputs.items()})
        log_prob = (logits[0] / temperature).log_softmax(-1)[label]
        (gradient,) = torch.autograd.grad(log_prob, inputs)
    return (gradient * inputs[0]).sum(-1)[0].detach().cpu()
