"""The data that the microscope page requests about a text, except data about search and effects."""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from attendo.decoding.beam import length_norm
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Translator
from attendo.inspecting.edits import OffByRow, Temper
from attendo.inspecting.measures import head_measures, sinks
from attendo.inspecting.recording import recording
from attendo.inspecting.residual_stream import (
    contribution_norms,
    head_ranks,
    head_singular_values,
    lens_cosines,
    lens_logits,
    pooled_lens,
    value_norms,
)
from attendo.microscope.protocol import (
    Baseline,
    FilmAnswer,
    Frame,
    From0,
    From1,
    Label,
    Layer,
    LayerStack,
    LensAnswer,
    MatricesAnswer,
    NextAnswer,
    Outcome,
    PositionsAnswer,
    ScoredToken,
    Side,
    Thumbnail,
    Token,
)
from attendo.microscope.run_model import LookResult, attention_paths, log_probs_of_wanted
from attendo.model_config import ModelConfig
from attendo.models import EncoderClassifier, EncoderDecoder, Model
from attendo.nn.attention import Attention
from attendo.nn.layers import InputEmbedding
from attendo.nn.positions import Alibi, DistanceBias, RelativeBias, Rotary
from attendo.training.checkpoints import kept_weights, load_weights, sound_checkpoints


def tokens_of(result: LookResult, ids: tuple[int, ...], *, of_source: bool) -> list[Token]:
    """Return the tokens of a side, with the predicted tokens."""
    known = {token: result.token(token) for token in {*ids, *(w for w in result.wanted if w is not None)}}
    predicts = bool(result.wanted) and of_source == (result.family == "masked-language-model")
    if not predicts:
        return [known[token] for token in ids]
    log_probs = result.log_probs().tolist()
    wanted = torch.tensor([0 if w is None else w for w in result.wanted], device=result.logits.device)
    ranks = (result.logits > result.logits.gather(-1, wanted[:, None])).sum(-1).tolist()
    return [
        {**known[token], "out": None if w is None else {**known[w], "log_prob": log_prob, "rank": rank + 1}}
        for token, w, log_prob, rank in zip(ids, result.wanted, log_probs, ranks, strict=True)
    ]


def outcome(result: LookResult) -> Outcome:
    """Return the output of a model with its log-probability, or a classifier's labels, most probable first.

    For a masked language model, the output is the text with predictions for its masked tokens. `filled` is the number
    of masked tokens. If the text has no masked tokens, the output is the most probable token at each position, and the
    log-probability is that of the given text.
    """
    if isinstance(result.user, Classifier):
        return {"labels": _labels(result), **_ngrams(result, result.user)}
    if isinstance(result.user, Embedder):
        n = result.source.count(result.tokenizer.mask_id)
        places = zip(result.source, result.wanted, strict=True)
        ids = [id_ if w is None else w for id_, w in places] if n else result.logits.argmax(-1).tolist()
        before, behind = result.tokenizer.specials.around_text
        text = result.tokenizer.decode(ids[len(before) : len(ids) - len(behind)])
        return {"text": text, "log_prob": float(result.log_probs().sum()), "finished": True, "filled": n}
    written = [w for w in result.wanted[result.prompt_tokens - 1 :] if w is not None]
    log_prob = float(result.log_probs()[result.prompt_tokens - 1 :].sum())
    score = result.score
    if score is None and isinstance(result.user, Translator):
        score = normalized(result.user, log_prob, len(written))
    text = result.tokenizer.decode(written)
    found: Outcome = {"text": text, "log_prob": log_prob, "finished": result.finished}
    return found if score is None else {**found, "score": score}


def normalized(translator: Translator, log_prob: float, n_tokens: int) -> float:
    """Return the score of a translation: its log-probability with the length normalization of the run's search."""
    config = translator.decoding
    return log_prob / length_norm(n_tokens, config.length_penalty, config.length_norm)


def _labels(result: LookResult) -> list[Label]:
    user = result.user
    assert isinstance(user, Classifier)
    probabilities = result.label_log_probs(result.logits).exp().tolist()
    rows = zip(user.labels.names, probabilities, strict=True)
    return [{"label": name, "probability": p} for name, p in sorted(rows, key=lambda row: -row[1])]


def _ngrams(result: LookResult, user: Classifier) -> Outcome:
    """Return the n-grams that change the score of the most probable label most, if n-grams take part in the decision.

    The contributions include the share of the n-grams and the temperature.
    """
    if user.ngrams is None or user.share == 1.0:
        return {}
    part = (1.0 - user.share) / user.temperature
    reasons = user.ngrams.reasons(result.request.text, result.label)
    return {
        "ngrams_share": 1.0 - user.share,
        "ngrams": [{"ngram": ngram, "delta": part * nats} for ngram, nats in reasons],
    }


def compared(result: LookResult, baseline: LookResult) -> Baseline:
    """Return the output of the unchanged model, and how the edits change its log-probability, token by token."""
    before = outcome(baseline)
    if isinstance(result.user, Classifier):
        now = {row["label"]: row["probability"] for row in _labels(result)}
        labels = _labels(baseline)
        by_label = {row["label"]: now[row["label"]] - row["probability"] for row in labels}
        return {**before, "deltas": by_label, "total": by_label[labels[0]["label"]]}
    logits = result.logits
    if (result.source, result.target) != (baseline.source, baseline.target):
        # the same computation as for the unchanged model, so equal values have a difference of exactly 0
        with torch.no_grad(), recording(result.model, "*.weights", result.edits) as record:
            logits = record.model.eval()(**baseline.inputs)[0]
    changed = log_probs_of_wanted(logits, baseline.wanted) - baseline.log_probs()
    deltas = changed[baseline.prompt_tokens - 1 :].tolist()
    written = baseline.wanted[baseline.prompt_tokens - 1 :]
    tokens = [None if token is None else baseline.token(token) for token in written]
    return {**before, "deltas": deltas, "total": sum(deltas), "tokens": tokens}


def stacks_of(result: LookResult) -> list[LayerStack]:
    """Return the data of all attention layers of a result, by stack."""
    return [
        {"name": name, "layers": [layer_of(result, path) for path in paths]}
        for name, paths in attention_paths(result.model).items()
    ]


def layer_of(result: LookResult, path: str) -> Layer:
    """Return the data of an attention layer: its shape, its edits, and the measures and thumbnail of each head."""
    attention = result.model.get_submodule(path)
    assert isinstance(attention, Attention)
    record = result.record[path]
    weights = record.weights[0]
    n_heads, q_len, k_len = weights.shape
    queries, keys = result.sides(path)
    cross = queries != keys
    causal = queries == "target" and not cross
    betas, off = _edited(result, path, n_heads, attention.attend.inverse_temperature)
    positions = attention.positions
    slopes = positions.slopes.tolist() if type(positions) is Alibi else None
    return {
        "path": path,
        "heads": n_heads,
        "kv_heads": attention.n_kv_heads,
        "queries": queries,
        "keys": keys,
        "q_len": q_len,
        "k_len": k_len,
        "causal": causal,
        "scale": attention.head_dim**-0.5 if attention.attend.scale is None else attention.attend.scale,
        "slopes": slopes,
        "biases": None if slopes or not isinstance(positions, DistanceBias) else _biases(attention, k_len),
        "head_dim": attention.head_dim,
        "value_dim": attention.value_dim,
        "beta": betas,
        "off": off,
        "measures": head_measures(weights, result.ids(queries), result.ids(keys), cross=cross),
        "sinks": [{"key": key, "share": share} for key, share in sinks(weights, causal=causal)],
        "thumb": thumbnail(weights, causal=causal),
    }


def _edited(result: LookResult, path: str, n_heads: int, beta: float) -> tuple[list[float | Literal["inf"]], list[int]]:
    """Return the inverse temperature of each head of a layer, and the heads that are off or replaced."""
    betas: list[float | Literal["inf"]] = [beta] * n_heads
    off: set[int] = set()
    for edit in result.edits:
        if isinstance(edit, OffByRow) or not fnmatchcase(path, edit.path):
            continue
        heads = range(n_heads) if edit.heads is None else edit.heads
        if isinstance(edit, Temper):
            for head in heads:
                betas[head] = "inf" if edit.inverse_temperature == math.inf else edit.inverse_temperature
        else:
            off |= set(heads)
    return betas, sorted(off)


@torch.no_grad()
def _biases(attention: Attention, n: int) -> list[list[float | None]]:
    """Return the bias of each head at each distance key - query, from -(n - 1) to n - 1. None means -inf."""
    device = attention.q_proj.weight.device
    here = torch.zeros(1, 1, dtype=torch.long, device=device)
    distances = torch.arange(1 - n, n, device=device)
    assert isinstance(attention.positions, DistanceBias)
    added = attention.positions(here, distances)[0, :, 0]
    rows = added.expand(attention.n_heads, -1).tolist()
    return [[None if number == -math.inf else number for number in row] for row in rows]


THUMB = 40
"""The maximum number of cells on a side of a thumbnail."""


def thumbnail(weights: Float[Tensor, "heads q_len k_len"], *, causal: bool) -> Thumbnail:
    """Return a small image of each head. A pixel is the largest weight of a patch; the weight `darkest` becomes 255."""
    rows, columns = (min(THUMB, n) for n in weights.shape[1:])
    small = F.adaptive_max_pool2d(weights[None].float(), (rows, columns))[0].cpu()
    tops = [darkest(head, causal=causal) for head in weights.float().cpu().numpy()]
    data = (small / torch.tensor(tops)[:, None, None] * 255).round().clamp(max=255).to(torch.uint8).numpy()
    image = base64.b64encode(data.tobytes()).decode()
    return {"rows": rows, "columns": columns, "darkest": tops, "data": image}


MANY = 48
"""The number of keys above which the color scale is adapted to the weights."""


def darkest(weights: Float[np.ndarray, "queries keys"], *, causal: bool = False) -> float:
    """Return the weight above which an image uses the darkest color.

    For at most `MANY` keys, the result is 1. For more than `MANY` keys, the result is the largest weight, but at least
    four times the weight of uniform attention. Uniform attention therefore has a light color. If `causal` is true, the
    first rows are ignored.

    >>> darkest(np.eye(3) / 2), darkest(np.full((1, 100), 0.01))
    (1.0, 0.04)
    >>> even = np.tril(np.ones((100, 100))) / np.arange(1, 101)[:, None]
    >>> darkest(even), darkest(even, causal=True)
    (1.0, 0.04)
    """
    n = weights.shape[-1]
    counted = weights[max(0, MANY - n + len(weights)) :] if causal else weights
    return 1.0 if n <= MANY else min(1.0, max(float(counted.max()), 4 / n))


def float_bytes(numbers: Float[Tensor, "..."]) -> bytes:
    """Return the numbers of a tensor as little-endian float32 bytes.

    >>> import torch
    >>> float_bytes(torch.tensor([1.0, 0.5])).hex(" ", 4)
    '0000803f 0000003f'
    """
    return np.ascontiguousarray(numbers.detach().float().cpu().numpy(), "<f4").tobytes()


def encoded(numbers: Float[Tensor, "..."]) -> str:
    """Return the numbers of a tensor as float32 in base64, for JSON.

    >>> import torch
    >>> encoded(torch.tensor([1.0]))
    'AACAPw=='
    """
    return base64.b64encode(float_bytes(numbers)).decode()


@torch.no_grad()
def tensor_answer(result: LookResult, path: str, head: From0 | None = None) -> bytes:
    """Return query, key, value and ‖v Wᵒ‖ of all heads or one head, as float32. Raise AttendoError for a missing
    head.
    """
    attention = result.model.get_submodule(path)
    assert isinstance(attention, Attention)
    record = result.record[path]
    parts = [record.query[0], record.key[0], record.value[0], value_norms(attention, record.value)[0]]
    if head is not None:
        if head >= attention.n_heads:
            raise AttendoError(f"{path} has no head {head}; its {attention.n_heads} heads are numbered from 0")
        shared = head * attention.n_kv_heads // attention.n_heads
        parts = [part[at] for part, at in zip(parts, (head, shared, shared, head), strict=True)]
    return b"".join(map(float_bytes, parts))


def matrices_answer(result: LookResult, path: str) -> MatricesAnswer:
    """Return the rank and the Frobenius norm of W^(h) = W_hᵒ W_hᵛ of each head, and the norm of its contributions.

    Each head has one contribution per query, computed with the edits. The sum of all contributions and the bias is the
    output of the layer (Vaswani et al. 2017, section 3.2.2; Bishop & Bishop 2024, exercise 12.5). Raise AttendoError if
    the path is not an attention layer.
    """
    layer = dict(result.model.named_modules()).get(path)
    if not isinstance(layer, Attention):
        raise AttendoError(f"{path} is not an attention layer of this model")
    with torch.inference_mode(), recording(result.model, keep=f"{path}.mixed", edits=result.edits) as record:
        record.model.hidden(**result.inputs)
        added = contribution_norms(layer, record[path].mixed)[0]
    return {
        "path": path,
        "rank": head_ranks(layer).tolist(),
        "norms": head_singular_values(layer).norm(dim=-1).tolist(),
        "contribution": added.tolist(),
    }


def next_answer(result: LookResult, position: From0, n: From1) -> NextAnswer:
    """Return the n most probable tokens at a position, with cumulative probabilities, and the entropy in nats.

    `position` is a target position, or a source position for a masked language model. `actual` is the token that
    follows the position, with its rank (from 1), or None at the end. The probabilities include the edits, but not the
    tokens that a search excludes. Raise AttendoError for a classifier, and if `position` or `n` is out of range.
    """
    if result.family == "classification":
        raise AttendoError("a classifier predicts a label, not a token. Look at its classes instead")
    if not 0 <= position < len(result.logits):
        raise AttendoError(f"position {position} must be 0 to {len(result.logits) - 1}")
    if n < 1:
        raise AttendoError(f"n={n} must be 1 or more")
    log_probs = result.logits[position].double().log_softmax(-1)
    probabilities = log_probs.exp()
    best, ids = probabilities.topk(min(n, len(probabilities)))
    rows = zip(ids.tolist(), best.tolist(), best.cumsum(0).tolist(), strict=True)
    wanted = result.wanted[position]
    actual: ScoredToken | None = None
    if wanted is not None:
        rank = 1 + int((log_probs > log_probs[wanted]).sum())
        actual = {**result.token(wanted), "p": float(probabilities[wanted]), "rank": rank}
    return {
        "tokens": [{**result.token(token), "p": p, "cumulative": mass} for token, p, mass in rows],
        "entropy": float(-(probabilities * log_probs).nan_to_num().sum()),
        "actual": actual,
    }


def stack_weights(result: LookResult, stack: str) -> list[Float[Tensor, "heads q_len k_len"]]:
    """Return the attention weights of each layer of a stack. Raise AttendoError if the stack does not exist."""
    ends = {"encoder": "self_attention", "decoder": "self_attention", "cross": "cross_attention"}
    start = "decoder" if stack == "cross" else stack
    paths = [path for path in result.record if path.startswith(start) and path.endswith(ends.get(stack, "/"))]
    if not paths:
        raise AttendoError(f"stack={stack!r}: this model has no such attention")
    return [result.record[path].weights[0] for path in paths]


@torch.inference_mode()
def lens_answer(result: LookResult, stack: str) -> LensAnswer:
    """Return the logit lens (nostalgebraist 2020): the most probable prediction at each position after each layer.

    `tokens` is indexed by layer and position. Layer 0 is the embedding, and the last layer is the output of the model.
    Each entry contains the predicted token with its probability, and the rank and probability of the final prediction.
    The `kind` of the predictions is "vocabulary" (the next tokens, or the tokens at the position for a masked language
    model), "classes" or "nearest embedding". For "classes", `pooled` contains the label probabilities of the whole text
    after each layer. For the encoder of a translator, the kind is "nearest embedding": the source token with the
    nearest embedding, where p is the cosine. Raise AttendoError if the stack does not exist.
    """
    states = _states(result, stack)
    last = _values(result, states[-1], stack)
    final = last.argmax(-1)
    tokens = [list(_row(result, _values(result, layer, stack), final)) for layer in states]
    answer: LensAnswer = {
        "stack": stack,
        "kind": _kind(result, stack),
        "layers": ["embedding", *(f"block {number}" for number in range(1, len(states)))],
        "positions": len(final),
        "tokens": tokens,
    }
    if isinstance(result.user, Classifier):
        answer["pooled"] = [_pooled(result, result.user, layer) for layer in states]
    return answer


def _kind(result: LookResult, stack: str) -> Literal["vocabulary", "classes", "nearest embedding"]:
    if result.family == "classification":
        return "classes"
    return "nearest embedding" if result.family == "translation" and stack == "encoder" else "vocabulary"


def _states(result: LookResult, stack: str) -> list[Float[Tensor, "len d_model"]]:
    """Return the outputs of the embedding and of each block of a stack, with the edits."""
    model = result.model
    if stack not in dict(model.named_children()) or stack not in ("encoder", "decoder"):
        there = [name for name, _ in model.named_children() if name in ("encoder", "decoder")]
        raise AttendoError(f"stack={stack!r}: the logit lens of this model exists for {' and '.join(there)}")
    side = ("source_" if stack == "encoder" else "target_") if isinstance(model, EncoderDecoder) else ""
    blocks = [path for path in result.record if path.startswith(f"{stack}.blocks.") and path.count(".") == 2]
    return [result.record[path].output[0] for path in (f"{side}embedding", *blocks)]


def _values(result: LookResult, states: Float[Tensor, "len d_model"], stack: str) -> Float[Tensor, "len n"]:
    """Return the probabilities of tokens or labels, or cosines."""
    model = result.model
    if isinstance(model, EncoderDecoder) and stack == "encoder":
        return lens_cosines(model, states).double()
    logits = lens_logits(model, states, "encoder" if stack == "encoder" else "decoder").double()
    return result.label_log_probs(logits).exp() if _kind(result, stack) == "classes" else logits.softmax(-1)


def _row(result: LookResult, values: Float[Tensor, "len n"], final: Tensor) -> Iterator[ScoredToken]:
    best, ids = values.max(-1)
    of_final = values.gather(-1, final[:, None])
    ranks = 1 + (values > of_final).sum(-1)
    columns = zip(ids.tolist(), best.tolist(), ranks.tolist(), of_final[:, 0].tolist(), strict=True)
    shown = {token: _shown(result, token) for token in set(ids.tolist())}
    for token, p, rank, p_of_final in columns:
        yield {**shown[token], "p": p, "rank_of_final": rank, "p_of_final": p_of_final}


def _shown(result: LookResult, token: int) -> Token:
    if not isinstance(result.user, Classifier):
        return result.token(token)
    label = result.user.labels.names[token]
    return {"id": token, "piece": label, "text": label}


def _pooled(result: LookResult, user: Classifier, states: Float[Tensor, "len d_model"]) -> dict[str, float]:
    assert isinstance(user.model, EncoderClassifier)
    log_probs = result.label_log_probs(pooled_lens(user.model, states[None])[0])
    return dict(zip(user.labels.names, log_probs.exp().tolist(), strict=True))


_BIASES = {"alibi": Alibi, "relative": RelativeBias}

AT_LEAST = 64
"""The minimum number of positions to show, up to the context length. A short text would show no pattern."""


def positions_answer(result: LookResult, side: Side) -> PositionsAnswer:
    """Return the positional encoding of the first n positions `[n, d]` and the dot products of its rows `[n, n]`, as
    base64 float32.

    For RoPE, the rows contain cos and sin of each angle, and the products are those of a rotated unit vector. Position
    biases (ALiBi, relative, custom) have no rows, and n is then the length of the text. `layer_of` returns the biases.
    `name` is the class name of custom positions. `trained` is the `max_len` of the model. Raise AttendoError if the
    model has no such side.
    """
    embedding, tokens = _side(result, side)
    config, within = result.model.config, _within(result, side)
    biased = isinstance(within, DistanceBias)
    n = len(tokens) if biased else max(len(tokens), min(AT_LEAST, config.max_len))
    rows, dots = _matrices(config, embedding, within, n)
    own = biased and type(within) is not _BIASES.get(config.positions)
    in_pairs = config.d_model % 2 == 0 and config.position_order != "cossin"
    is_odd = config.positions == "sinusoidal" and not in_pairs  # the page has an own text about it
    return {
        "kind": "own" if own else config.positions,
        "name": type(within).__name__ if own else "",
        "n": n,
        "d": config.n_heads if biased else rows.shape[1],
        "trained": config.max_len,
        "data": encoded(rows),
        "dots": encoded(dots),
        "note": "own" if own else "sinusoidal-odd" if is_odd else config.positions,
    }


def _side(result: LookResult, side: Side) -> tuple[InputEmbedding, tuple[int, ...]]:
    names = {"source": result.source, "target": result.target}
    if side not in names or not names[side]:
        there = " and ".join(name for name, ids in names.items() if ids)
        raise AttendoError(f"side={side!r}: this model has the {there} only")
    name = f"{side}_embedding" if result.family == "translation" else "embedding"
    embedding = result.model.get_submodule(name)
    assert isinstance(embedding, InputEmbedding)
    return embedding, names[side]


def _matrices(
    config: ModelConfig, embedding: InputEmbedding, within: Any, n: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n n"]]:
    places = torch.arange(n)
    if isinstance(within, DistanceBias):
        return torch.zeros(0, 0), torch.zeros(0, 0)
    match config.positions:
        case "rotary":
            assert isinstance(within, Rotary)
            half = config.head_width // 2
            units = torch.tensor([1.0, 0.0]).repeat(n, half)[None, None]
            rows = within(units, places[None])[0, 0]
            return rows, rows @ rows.mT / half
        case "none":
            return torch.zeros(n, 0), torch.zeros(n, n)
        case _:
            assert embedding.positions is not None
            rows = embedding.positions(places.to(embedding.tokens.weight.device), n).detach().float().cpu()
            return rows, rows @ rows.mT


def _within(result: LookResult, side: Side) -> Any:
    """Return the position module in the self-attention of a side, or None."""
    layers = (
        module
        for path, module in result.model.named_modules()
        if isinstance(module, Attention) and result.sides(path) == (side, side)
    )
    return next((layer.positions for layer in layers if layer.positions is not None), None)


MOST_FRAMES = 24
"""The maximum number of frames. They are evenly chosen, and include the first and the last checkpoint."""
HOW_TO_KEEP_MORE = "checkpoint.keep_last=20 and checkpoint.every_steps=200"


def film_answer(result: LookResult, path: str, head: From0) -> FilmAnswer:
    """Return the attention weights of a head in each checkpoint, over the same tokens (teacher forcing).

    The last frame is the trained model, for which `final` is True. The weights `[q_len, k_len]` are float32 in base64.
    Damaged checkpoints are skipped and listed in `note`. The edits of the request apply to every frame. Raise
    AttendoError if the head does not exist, or if there is no run folder.
    """
    layer = dict(result.model.named_modules()).get(path)
    if not isinstance(layer, Attention) or not 0 <= head < layer.n_heads:
        raise AttendoError(f"{path} with head {head} is not an attention head of this model")
    if result.folder is None:
        raise AttendoError("the model is only in memory. A film requires a run folder with checkpoints")
    newest, notes = sound_checkpoints(result.folder / "checkpoints", most=1_000_000)
    chosen = _evenly(newest[::-1], MOST_FRAMES - 1)
    if len(chosen) < len(newest):
        notes.append(f"{len(chosen)} of {len(newest)} checkpoints are shown")
    if not newest:
        notes.append(f"this run has no other checkpoints. Train with {HOW_TO_KEEP_MORE} to keep more")
    queries, keys = result.sides(path)
    frames: list[Frame] = []
    for step, final, weights in _weights(result, path, head, chosen):
        found = head_measures(weights[None], result.ids(queries), result.ids(keys), cross=queries != keys)
        measures = {name: values[0] for name, values in found.items()}
        frames.append({"weights": encoded(weights), "measures": measures, "step": step, "final": final})
    q_len, k_len = result.record[path].weights.shape[2:]
    return {"frames": frames, "q_len": q_len, "k_len": k_len, "note": "; ".join(notes)}


def _evenly(paths: list[Path], most: int) -> list[Path]:
    """Return at most `most` evenly spaced items, including the first and the last item.

    >>> [path.name for path in _evenly([Path(name) for name in "abcde"], 3)]
    ['a', 'c', 'e']
    """
    if len(paths) <= most:
        return paths
    return [paths[round(i * (len(paths) - 1) / (most - 1))] for i in range(most)]


def _weights(
    result: LookResult, path: str, head: int, checkpoints: list[Path]
) -> Iterator[tuple[int, bool, Float[Tensor, "q_len k_len"]]]:
    assert result.folder is not None
    model = copy.deepcopy(result.model) if checkpoints else result.model
    for folder in checkpoints:
        load_weights(model, kept_weights(result.folder, folder), str(folder))
        yield int(folder.name.removeprefix("step-")), False, _seen_by(model, result, path, head)
    with safe_open(result.folder / "model.safetensors", framework="pt") as file:
        step = int((file.metadata() or {}).get("step", 0))
    yield step, True, result.record[path].weights[0, head]


@torch.inference_mode()
def _seen_by(model: Model, result: LookResult, path: str, head: int) -> Float[Tensor, "q_len k_len"]:
    with recording(model, keep=f"{path}.weights", edits=result.edits) as record:
        record.model.hidden(**result.inputs)
    return record[path].weights[0, head]
