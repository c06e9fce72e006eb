"""The effects of heads, layers and tokens: the change of the output's log-probability without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.data.masking import hidden_tokens
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.beam import log_probs_of
from attendo.decoding.options import DecodingConfig
from attendo.decoding.searcher import source_batches
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inference.alignment import looks_of, own_part, teacher_forced, token_spans
from attendo.inspecting.attribution import integrated_gradients
from attendo.inspecting.edits import Edit, Off, OffByRow
from attendo.inspecting.measures import GivenLinks, Pair, alignment_error_rate, rollout, word_links
from attendo.inspecting.recording import edited, known_before, recording
from attendo.microscope.answers import stack_weights
from attendo.microscope.protocol import EffectsAnswer, LayerStack, OpenedHead, TokensAnswer, WithoutHead
from attendo.microscope.run_model import LookResult, User, attention_layers, effect_paths
from attendo.models import EncoderClassifier, Model, parameter_count
from attendo.nn.attention import Attention
from attendo.nn.layers import FeedForward, Pooling

MOST_POSITIONS = 4096
"""The maximum number of positions in a batch, over all rows: for a text of 512 positions, a batch has 8 heads."""


def effects_answer(result: LookResult, path: str) -> EffectsAnswer:
    """Return the change of the output's log-probability when a layer, or each of its heads, is switched off.

    `deltas` contains the change in nats for each output token (teacher forcing), or for the label of a classifier.
    `delta` is the sum of `deltas`. The edits of the request remain in effect. For a feed-forward network, the result
    has no heads. Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2. Raise AttendoError if
    the path is neither an attention layer nor a feed-forward network.
    """
    module = dict(result.model.named_modules()).get(path)
    if not isinstance(module, Attention | FeedForward):
        raise AttendoError(f"{path} is not an attention or feed-forward layer of this model")
    before = _output_log_probs(result, result.logits[None])
    layer = _changes(result, Off(path), 1, before)
    of_layer: dict[Literal["delta"], float] = {"delta": float(layer.sum())}
    if isinstance(module, FeedForward):
        return {"path": path, "layer": of_layer}
    n_rows = max(1, MOST_POSITIONS // max(1, sum(tensor.shape[1] for tensor in result.inputs.values())))
    chunks = torch.eye(module.n_heads, dtype=torch.bool).split(n_rows)  # a row switches one head off
    rows = [row for off in chunks for row in _changes(result, OffByRow(path, off), len(off), before)]
    heads: list[WithoutHead] = [
        {"head": head, "delta": float(deltas.sum()), "deltas": deltas.tolist()} for head, deltas in enumerate(rows)
    ]
    if isinstance(result.user, Classifier):
        for head in heads:
            head["label_probability"] = float((before[0, 0] + head["delta"]).exp())
    return {"path": path, "layer": of_layer, "heads": heads}


def _changes(
    result: LookResult, edit: Off | OffByRow, n_rows: int, before: Float[Tensor, "1 tokens"]
) -> Float[Tensor, "rows tokens"]:
    """Return the change of the log-probabilities by an additional edit, in rows with equal inputs."""
    inputs = {name: tensor.expand(n_rows, *tensor.shape[1:]) for name, tensor in result.inputs.items()}
    edits = (*result.edits, edit)
    with torch.inference_mode(), recording(result.model, keep=(), edits=edits) as record:
        with known_before(record.model, result.record, edit.path, n_rows):
            hidden = record.model.hidden(**inputs)
        # logits are computed row by row, because those of all rows would be the largest tensor by far
        rows = [_output_log_probs(result, record.model.output(row[None])) for row in hidden]
    return torch.cat(rows) - before


def _output_log_probs(result: LookResult, logits: Float[Tensor, "1 *positions n"]) -> Float[Tensor, "1 tokens"]:
    """Return the log-probabilities of the output in float64. If the output is empty, return those of the prompt."""
    if isinstance(result.user, Classifier):
        return result.label_log_probs(logits)[:, [result.label]]
    there = [at for at, token in enumerate(result.wanted) if token is not None]
    there = [at for at in there if at >= result.prompt_tokens - 1] or there
    wanted = torch.tensor([[result.wanted[at] for at in there]], device=logits.device)
    return log_probs_of(logits[:, there], wanted).double()


MOST_FIRST_WORK, MOST_QUICK_WORK = 6e8, 3e9
"""The maximum work of `opened_head` and `is_quick`, in parameters x positions x parts (about 0.1 and 0.5 s of CPU)."""


def opened_head(result: LookResult, stacks: Sequence[LayerStack]) -> OpenedHead:
    """Return the head that a page opens first: a cross-attention head if there is one, and no head that is off.

    The head is the cross-attention head that the output needs most, if the measurement of all effects is cheap and the
    model is unchanged, since a page with changes has already opened a head.
    Otherwise, the head has sharp attention, but on different keys: the mean of its largest weights exceeds the share of
    its attention sink most.
    """
    stack = next((stack for stack in stacks if stack["name"] == "cross"), stacks[-1])
    heads = [(layer, head) for layer in stack["layers"] for head in range(layer["heads"])]
    rows = [(layer, head) for layer, head in heads if head not in layer["off"]] or heads
    if stack["name"] == "cross" and not result.edits and _work(result, len(heads)) <= MOST_FIRST_WORK:
        effects = {layer["path"]: effects_answer(result, layer["path"]) for layer in stack["layers"]}
        found = [effects[layer["path"]].get("heads", [])[head]["delta"] for layer, head in rows]
    else:
        found = [layer["sinks"][head]["share"] - layer["measures"]["maximum"][head] for layer, head in rows]
    layer, head = rows[found.index(min(found))]
    return {"layer": layer["path"], "head": head}


def is_quick(result: LookResult, stacks: Sequence[LayerStack]) -> bool:
    """Return whether the effects of all heads and layers can be measured without a noticeable delay."""
    n_heads = sum(layer["heads"] for stack in stacks for layer in stack["layers"])
    return _work(result, n_heads + len(effect_paths(result.model))) <= MOST_QUICK_WORK


def _work(result: LookResult, n: int) -> int:
    return parameter_count(result.model) * (len(result.source) + len(result.target)) * n


MOST_WORK = 2e11
"""The maximum work of a measure of `tokens_answer`, in weights x tokens of all passes: some seconds on one core."""
STEPS = 32
"""The number of points of integrated gradients."""
TOKENS_AT_ONCE = 8192


def tokens_answer(result: LookResult) -> TokensAnswer:
    """Return the contribution of each token to the label of a classifier, by five measures.

    `left_out` is the decrease of log p(label) without the token, in nats (Li et al. 2016). `left_out` is 0 for special
    tokens. `integrated_gradients` is the integrated gradient of log p(label) from a zero vector, in nats (Sundararajan
    et al. 2017). Both are None if the computation is too slow. `gradient_times_input` is Σ_d x_d ∂ log p(label) / ∂x_d
    at the encoder's input, in nats (Denil et al. 2014; Shrikumar et al. 2016). `pooled` contains the shares of
    `pooled_shares`, which sum to 1. `rollout` contains the shares of `pooled`, traced back to the encoder's input.
    Raise AttendoError if the model is not a classifier.
    """
    if not isinstance(result.user, Classifier):
        raise AttendoError("only a classifier predicts a label. For other models, see the effects of their heads")
    label = result.label
    states = result.record["encoder"].output[0]
    shares = pooled_shares(states, result.user.model.config.pooling)
    traced = shares @ rollout(stack_weights(result, "encoder")).to(shares)
    return {
        "label": result.user.labels.names[label],
        "left_out": left_out(result, result.user, label),
        "integrated_gradients": _integrated(result, label),
        "gradient_times_input": _gradient_times_input(result, label).tolist(),
        "rollout": traced.tolist(),
        "pooled": shares.tolist(),
    }


def pooled_shares(states: Float[Tensor, "len d_model"], kind: Pooling) -> Float[Tensor, " len"]:
    """Return the share of the pooled vector that comes from each position.

    For "max" pooling, the share is the fraction of the d_model maxima at the position (the first position in a tie).
    For "mean" pooling, all shares are 1 / len. For "first" pooling, the first position has the share 1.

    >>> pooled_shares(torch.tensor([[1.0, 5.0, 2.0, 0.0], [3.0, 4.0, 1.0, 0.0]]), "max")
    tensor([0.7500, 0.2500])
    """
    n, d_model = states.shape
    match kind:
        case "max":
            return torch.bincount(states.argmax(0), minlength=n).float() / d_model
        case "mean":
            return torch.full((n,), 1 / n)
        case _:
            return torch.eye(n)[0]


def left_out(result: LookResult, user: Classifier, label: int, most_work: float | None = None) -> list[float] | None:
    """Return log p(label | text) - log p(label | text without token i) for each i.

    Return None if the work exceeds `most_work` (default: MOST_WORK).
    """
    ids, (before, behind) = result.inputs["src"][0], user.tokenizer.specials.around_text
    places = range(len(before), len(ids) - len(behind))
    weights = sum(p.numel() for p in result.model.get_submodule("encoder").parameters())
    if weights * len(ids) * len(places) > (MOST_WORK if most_work is None else most_work):
        return None
    if len(places) < 2:  # a text cannot lose its only token
        return [0.0] * len(ids)
    shorter = torch.stack([torch.cat([ids[:i], ids[i + 1 :]]) for i in places])
    with torch.inference_mode(), result.edited() as view:
        texts = shorter.split(max(1, TOKENS_AT_ONCE // len(ids)))
        logits = torch.cat([view(src=part) for part in texts])
    whole, without = (result.label_log_probs(x)[..., label] for x in (result.logits, logits))
    return [0.0] * len(before) + (whole - without).tolist() + [0.0] * len(behind)


def _integrated(result: LookResult, label: int) -> list[float] | None:
    """Return the integrated gradients of log p(label) of each token, or None if the work exceeds MOST_WORK."""
    if 3 * STEPS * _work(result, 1) > MOST_WORK:  # a backward pass takes as long as two forward passes
        return None

    def log_probs(logits: Tensor) -> Tensor:
        return result.label_log_probs(logits)[:, label]

    found = integrated_gradients(result.model, result.inputs, log_probs, n_steps=STEPS, edits=result.edits)
    return found.tokens["src"].tolist()


def _gradient_times_input(result: LookResult, label: int) -> Float[Tensor, " len"]:
    """Return gradient times input of each token, by one backward pass without gradients of parameters."""
    inputs: list[Tensor] = []

    def cut(module: Any, given: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[0]

    with torch.enable_grad(), result.edited() as view:
        assert isinstance(view, EncoderClassifier)
        view.embedding.register_forward_hook(cut)
        # inference tensors cannot be part of a gradient
        logits = view(**{name: tensor.clone() for name, tensor in result.inputs.items()})
        log_prob = result.label_log_probs(logits[0])[label]
        (gradient,) = torch.autograd.grad(log_prob, inputs)
    return (gradient * inputs[0]).sum(-1)[0].detach().cpu()


NONE = -1
"""The target id of positions without a target."""
HIDDEN = 0.15
"""The share of tokens that are masked for a masked language model. Every call masks the same tokens."""
OUTPUT_ROWS = 512
"""The maximum number of positions whose logits are in memory at the same time."""


@dataclass(frozen=True)
class HeadEffect:
    """The effect of one attention head: the mean change of a row's log-probability without the head, in nats.

    If the effect is negative, the model needs the head. `alignment_error` is the alignment error rate of the largest
    weights, for cross-attention with given links.
    """

    path: str
    head: int
    effect: float
    standard_error: float
    alignment_error: float | None = None


@dataclass(frozen=True)
class Importance:
    """The ranking of the heads of a model.

    Attributes:
        heads: The effects of all heads, with the most important head first.
        n_rows: The number of rows.
        n_tokens: The number of predicted tokens or labels.
        n_cut: The number of rows that were truncated to the context length.
        log_prob: The mean log-probability of a row with all heads, in nats.
    """

    heads: tuple[HeadEffect, ...]
    n_rows: int
    n_tokens: int
    n_cut: int
    log_prob: float


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch of model inputs, and the target ids `[rows len]` or labels `[rows]`. NONE means no target."""

    inputs: dict[str, Any]
    wanted: Int[Tensor, "rows *len"]
    temperature: float = 1.0

    def log_probs(self, model: Model) -> Float[Tensor, " rows"]:
        """Return the sum of the log-probabilities of the targets in each row, in nats and float64."""
        asked = self.wanted != NONE
        hidden, ids, owners = model.hidden(**self.inputs)[asked], self.wanted[asked], asked.nonzero()[:, 0]
        total = torch.zeros(len(self.wanted), dtype=torch.float64, device=hidden.device)
        for part, wanted, rows in zip(*(x.split(OUTPUT_ROWS) for x in (hidden, ids, owners)), strict=True):
            found = log_probs_of(model.output(part) / self.temperature, wanted)
            total.index_add_(0, rows, found.double())
        return total


def importance(
    user: User,
    rows: Sequence[tuple[str, str]] | Sequence[str],
    *,
    links: Sequence[GivenLinks] | None = None,
    batch_tokens: int = 4096,
    say: Callable[[int, int], None] = lambda done, of: None,
) -> Importance:
    """Rank the heads by the log-probability that is lost when a head is switched off, and return the ranking.

    The effects of several heads do not add up. If two heads have the same function, each head can seem unnecessary
    (Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2).

    Args:
        user: The loaded model of any task.
        rows: Pairs (source, target) for a translator, (text, label) for a classifier, or texts for a language model.
            For a masked language model, the share HIDDEN of the tokens is masked and predicted.
        links: Gold word alignments of the pairs, to measure the alignment error of a translator's cross-attention
            heads.
        batch_tokens: The maximum number of tokens per batch, with padding. A batch has at least one row.
        say: The function that receives the number of finished batches and the total number of batches.

    Raises:
        AttendoError: There are fewer than 2 rows, or a label is unknown.
    """
    batches, n_cut = _batches(user, rows, batch_tokens)
    layers = attention_layers(user.model)
    places = [(path, head) for path, layer in layers.items() for head in range(layer.n_heads)]
    total = (len(places) + 1) * len(batches)
    say(0, total)
    errors = {} if links is None else head_alignment_errors(user, rows, links, batch_tokens)
    plain, heads = _measured(user.model, batches, (), lambda n: say(n, total)), []
    for number, (path, head) in enumerate(places, 1):
        before = number * len(batches)
        edits = (Off(path, (head,)),)
        without = _measured(user.model, batches, edits, lambda n, before=before: say(before + n, total))
        changes = without - plain
        error = float(changes.std(correction=1)) / len(changes) ** 0.5
        found = errors.get((path, head))
        heads.append(HeadEffect(path, head, float(changes.mean()), error, found))
    return Importance(
        heads=tuple(sorted(heads, key=lambda head: head.effect)),
        n_rows=len(plain),
        n_tokens=sum(int((batch.wanted != NONE).sum()) for batch in batches),
        n_cut=n_cut,
        log_prob=float(plain.mean()),
    )


@torch.inference_mode()
def _measured(
    model: Model, batches: Sequence[_Batch], edits: Sequence[Edit], say: Callable[[int], None]
) -> Float[Tensor, " rows"]:
    """Return the log-probability of each row with edits. `say` receives the number of finished batches."""
    found = []
    with edited(model, edits) as view:
        for n, batch in enumerate(batches, 1):
            found.append(batch.log_probs(view))
            say(n)
    return torch.cat(found).cpu()


@dataclass(frozen=True)
class _Row:
    """The token ids that the encoder and the decoder read, and the ids to predict: one per position, or a label."""

    source: Sequence[int]
    target: Sequence[int]
    wanted: Sequence[int]


def _batches(user: User, rows: Sequence[Any], batch_tokens: int) -> tuple[list[_Batch], int]:
    """Return the rows in batches, truncated to the context length, and the number of truncated rows."""
    if len(rows) < 2:
        raise AttendoError(f"{len(rows)} usable rows are too few to rank heads. Give a file with 2 or more")
    read, n_cut = _rows(user, rows)
    temperature = 1.0
    if isinstance(user, Classifier):
        temperature = user.encoder_temperature if user.ngrams else user.temperature
    batches = []
    for numbers in _grouped([len(row.source) + len(row.target) for row in read], batch_tokens):
        chosen = [read[number] for number in numbers]
        inputs: dict[str, Any] = {}
        if not isinstance(user, Generator):
            sources = [row.source for row in chosen]
            inputs["src"], inputs["src_lengths"] = pad_rows(sources, user.tokenizer.pad_id, user.device)
        if isinstance(user, Translator | Generator):
            name = "tgt" if isinstance(user, Translator) else "token_ids"
            inputs[name], _ = pad_rows([row.target for row in chosen], user.tokenizer.pad_id, user.device)
        wanted, _ = pad_rows([row.wanted for row in chosen], NONE, user.device)
        batches.append(_Batch(inputs, wanted[:, 0] if isinstance(user, Classifier) else wanted, temperature))
    return batches, n_cut


def _rows(user: User, rows: Sequence[Any]) -> tuple[list[_Row], int]:
    tokenizer, own = user.tokenizer, user.tokenizer.specials
    match user:
        case Translator():
            pairs = list(zip(*_sides(tokenizer, rows), strict=True))
            n_cut = sum(max(map(len, pair)) > user.longest for pair in pairs)
            cut = [[ids[: user.longest] for ids in pair] for pair in pairs]
            before = [NONE] * (len(own.begin) - 1)
            return [_Row(own.source(s), [*own.begin, *t], [*before, *t, own.eos_id]) for s, t in cut], n_cut
        case Classifier():
            labels = [user.labels.id_of(label, f"row {number}") for number, (_, label) in enumerate(rows, 1)]
            ids = tokenizer.encode_batch([text for text, _ in rows])
            parts = [user.long_texts.parts(row)[0] for row in ids]
            n_cut = sum(len(row) > len(part) for row, part in zip(ids, parts, strict=True))
            return [_Row(own.text(part), (), [y]) for part, y in zip(parts, labels, strict=True)], n_cut
        case Generator():
            most, texts = user.model.config.max_len, [own.prompt(ids) for ids in tokenizer.encode_batch(rows)]
            n_cut = sum(len(text) > most for text in texts)
            return [_Row((), text[:most], [*text[1:most], NONE]) for text in texts], n_cut
        case Embedder():
            most, ids = user.model.config.max_len - own.n_around_text, tokenizer.encode_batch(rows)
            n_cut = sum(len(row) > most for row in ids)
            texts = [own.text(row[:most]) for row in ids]
            return [_hidden(tokenizer, text, number) for number, text in enumerate(texts)], n_cut


def _hidden(tokenizer: Tokenizer, ids: list[int], number: int) -> _Row:
    """Return a row of a masked language model with masked tokens, which depend on the number of the row."""
    rng = np.random.default_rng((0, number))
    own = {"mask_id": tokenizer.mask_id, "text_ids": tokenizer.text_ids}
    read, wanted = hidden_tokens(np.array(ids), HIDDEN, "mask", tokenizer.vocab_size, rng, NONE, **own)
    return _Row(read.tolist(), (), wanted.tolist())


def _grouped(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    return source_batches(lengths, DecodingConfig(beam=1, batch_tokens=batch_tokens))


def _sides(tokenizer: Tokenizer, rows: Sequence[Any]) -> list[list[list[int]]]:
    sources, targets = zip(*rows, strict=True)
    return [tokenizer.encode_batch(sources), tokenizer.target.encode_batch(targets)]


@torch.inference_mode()
def head_alignment_errors(
    user: User, pairs: Sequence[Any], links: Sequence[GivenLinks], batch_tokens: int = 4096
) -> dict[tuple[str, int], float]:
    """Return the alignment error rate of each cross-attention head, by path and number, over (source, target) pairs.

    A head links each target token with the source token that has the largest weight when the target token is predicted.
    The end token of the source is ignored. Raise AttendoError if the model is not a translator, or if the numbers of
    pairs and links differ.
    """
    if not isinstance(user, Translator):
        raise AttendoError("alignments apply only to the heads of a translator. Leave them out")
    tokenizer, most = user.tokenizer, user.longest
    sides = [[ids[:most] for ids in side] for side in _sides(tokenizer, pairs)]
    lengths = [len(source) + len(target) + 2 for source, target in zip(*sides, strict=True)]
    found: dict[tuple[str, int], list[frozenset[Pair]]] = {}
    for numbers in _grouped(lengths, batch_tokens):
        sources, targets = ([side[n] for n in numbers] for side in sides)
        read = [tokenizer.specials.source(ids) for ids in sources]
        inputs, _ = teacher_forced(tokenizer, read, [ids[:-1] for ids in targets], user.device)
        with recording(user.model, keep="*cross_attention.weights") as record:
            record.model.eval().hidden(**inputs)
        for row, number in enumerate(numbers):
            spans = [token_spans(tokenizer, side[number], pairs[number][i]) for i, side in enumerate(sides)]
            for path in record:
                for head, weights in enumerate(record[path].weights[row]):
                    looks = looks_of(own_part(tokenizer, weights, len(targets[row]), len(read[row])))
                    tokens = [(spans[0][at], span) for (at, _), span in zip(looks, spans[1], strict=False)]
                    own = found.setdefault((path, head), [frozenset()] * len(pairs))
                    own[number] = word_links(tokens, *pairs[number])
    return {place: alignment_error_rate(own, links) for place, own in found.items()}
