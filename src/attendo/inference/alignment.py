"""Word alignments from the attention to source tokens, and the attention sums of the coverage penalty.

Alignments and sums use the mean attention over all cross-attention layers and heads while a token is predicted.
Alignments from this mean are correct more often than alignments from a single block (docs/en/decoding.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.data.segments import Segments
from attendo.data.tokenizers import Tokenizer, is_spaced
from attendo.decoding.beam import coverage_penalty
from attendo.decoding.options import DecodingConfig
from attendo.decoding.protocols import AttendingStep, TokenRows
from attendo.decoding.searcher import source_batches
from attendo.inference.incremental_decode import Spelling
from attendo.inspecting.recording import Part, RecordingAttend, view
from attendo.models import EncoderDecoder
from attendo.nn.attention import Attend
from attendo.nn.cache import DecoderCache

Looks = tuple[tuple[int, float], ...]
"""For each token of a text, the index of the source token that it attends to most, and the attention weight."""


@dataclass(frozen=True)
class Link:
    """A target token and the source token that receives most of its attention.

    Attributes:
        target: Index of the target token in `Candidate.token_ids`, from 0.
        source: Index of the source token in the whole text, from 0. End tokens are not counted.
        weight: Attention weight of the source token, between 0 and 1.
        source_text: Text of the source token, without a leading space.
        target_text: Text of the target token, without a leading space.
        source_span: Start and end of the source token in the source text, in characters. A token that is only part of
            a character spans the whole character.
        target_span: Start and end of the target token in the translation, in characters.
    """

    source: int
    target: int
    weight: float
    source_text: str
    target_text: str
    source_span: tuple[int, int]
    target_span: tuple[int, int]


def _watched(model: EncoderDecoder) -> tuple[EncoderDecoder, list[Tensor]]:
    """Return a view of the model, and a list to which each cross-attention appends its mean weights over the heads."""
    twin = view(model)
    seen = []

    def note(parts: dict[Part, Tensor]) -> None:
        seen.append(parts["weights"].mean(1))

    for number in range(len(twin.decoder.blocks)):
        path = f"decoder.blocks.{number}.cross_attention.attend"
        leaf = twin.get_submodule(path)
        edits = None
        if isinstance(leaf, RecordingAttend):  # the model is a view with edits
            edits = leaf.edits
            leaf = leaf.plain
        assert isinstance(leaf, Attend)
        twin.set_submodule(path, RecordingAttend(leaf, ("weights",), note, edits))
    return twin, seen


@torch.inference_mode()
def source_attention(
    models: Sequence[EncoderDecoder], inputs: dict[str, Any]
) -> Float[Tensor, "batch tgt_len src_len"]:
    """Compute the cross-attention of each target position, as the mean over heads, blocks and models.

    Row t is the attention while token t is predicted. The weights of a row sum to 1, and the weight of padding is 0.
    """
    found = []
    for model in models:
        twin, seen = _watched(model)
        twin.hidden(**inputs)
        found.append(torch.stack(seen).mean(0))
    return torch.stack(found).mean(0)


def teacher_forced(
    tokenizer: Tokenizer, sources: TokenRows, targets: TokenRows, device: torch.device
) -> tuple[dict[str, Any], Int[Tensor, "batch tgt_len"]]:
    """Return the inputs of an encoder-decoder model for given targets, and the token ids to predict.

    Sources contain their special tokens, and targets contain no special tokens. If there are several begin ids, all
    except the first are predicted, and the first target token is in column `len(begin) - 1`.
    """
    own = tokenizer.specials
    nothing = tokenizer.specials.source([])
    begin = own.begin
    pad_id = own.pad_id
    src, lengths = pad_rows([source or nothing for source in sources], pad_id, device)
    tgt, _ = pad_rows([[*begin, *target] for target in targets], pad_id, device)
    wanted, _ = pad_rows([[*begin[1:], *target, own.eos_id] for target in targets], pad_id, device)
    return {"src": src, "tgt": tgt, "src_lengths": lengths}, wanted


def where_tokens_look(
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    sources: TokenRows,
    targets: Sequence[Sequence[tuple[int, ...]]],
    batch_tokens: int,
) -> list[dict[tuple[int, ...], Looks]]:
    """Return one dict per source, which maps the token ids of each target to the alignment of the target.

    The alignments contain no special tokens of the source.
    """
    pairs = [(row, ids) for row, found in enumerate(targets) for ids in found]
    lengths = [len(sources[row]) + len(ids) for row, ids in pairs]
    looks: list[dict[tuple[int, ...], Looks]] = [{} for _ in sources]
    device = models[0].output_proj.weight.device
    for numbers in source_batches(lengths, DecodingConfig(beam=1, batch_tokens=batch_tokens)):
        rows, texts = zip(*(pairs[number] for number in numbers), strict=True)
        # the last token is predicted from those before it, so it need not be read
        inputs, _ = teacher_forced(tokenizer, [sources[row] for row in rows], [ids[:-1] for ids in texts], device)
        for row, ids, weights in zip(rows, texts, source_attention(models, inputs), strict=True):
            looks[row][ids] = looks_of(own_part(tokenizer, weights, len(ids), len(sources[row])))
    return looks


def coverage_scores(
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    sources: TokenRows,
    targets: TokenRows,
    beta: float,
) -> list[float]:
    """Compute the coverage penalty of given targets, including their end tokens, as in a search."""
    if not beta:
        return [0.0] * len(targets)
    inputs, _ = teacher_forced(tokenizer, sources, targets, models[0].output_proj.weight.device)
    weights = source_attention(models, inputs).double().cpu().numpy()
    sizes = zip(sources, targets, strict=True)
    first = len(tokenizer.specials.begin) - 1
    least = tokenizer.specials.n_around_source
    rows = zip(weights[:, first:], sizes, strict=True)
    seen = [row[: len(t) + 1, : len(s) or least].sum(0) for row, (s, t) in rows]
    return [float(coverage_penalty(attended, beta)) for attended in seen]


def own_part(
    tokenizer: Tokenizer, weights: Float[Tensor, "tgt_len src_len"], n_target: int, n_source: int
) -> Float[Tensor, "n_target n_own"]:
    """Return the attention of the target tokens to the source tokens of one text, without the special tokens."""
    own = tokenizer.specials
    (before, behind) = own.around_source
    first = len(own.begin) - 1
    return weights[first : first + n_target, len(before) : n_source - len(behind)]


def looks_of(weights: Float[Tensor, "n_target n_source"]) -> Looks:
    """Return the index and the weight of the source token that each target token attends to most.

    In a tie, the first index is returned. The result is empty if there is no source token.

    >>> looks_of(torch.tensor([[0.25, 0.5, 0.125], [0.5, 0.0, 0.25]]))
    ((1, 0.5), (0, 0.5))
    """
    if not weights.numel():
        return ()
    best = weights.argmax(1)
    return tuple(zip(best.tolist(), weights.amax(1).tolist(), strict=True))


def attending_step(model: EncoderDecoder) -> AttendingStep:
    """Return a step function that returns the logits and the mean cross-attention (`source_attention`) of each row.

    The step function uses the caches of `model.start`. The weight of padding is 1, as the coverage penalty requires.
    """
    twin, seen = _watched(model)

    def step(
        token_ids: Int[Tensor, "rows 1"], cache: DecoderCache, /
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows src_len"]]:
        seen.clear()
        logits = twin.step(token_ids, cache)[:, -1]
        # [sources, rows per source, src_len] or [rows, 1, src_len], both in the order of the rows
        weights = torch.stack(seen).mean(0).reshape(cache.rows, -1)
        if cache.memory_lengths is not None:
            lengths = cache.memory_lengths[torch.tensor(cache.row_sources, device=weights.device)]
            positions = torch.arange(weights.shape[1], device=weights.device)
            weights = weights.masked_fill(positions >= lengths[:, None], 1.0)
        return logits, weights

    return step


def token_spans(tokenizer: Tokenizer, token_ids: Sequence[int], text: str) -> list[tuple[int, int]]:
    """Return the span (start, end) of each token in characters, without the space before the token.

    A token that is only part of a character spans the whole character. A token without text has an empty span.
    """
    if tokenizer.kind == "word":  # a token is the text between two spaces, known or not
        words = text.split(" ") if token_ids else []
        ends = accumulate((len(word) + 1 for word in words), initial=-1)
        return [(end + 1, end + 1 + len(word)) for word, end in zip(words, ends, strict=False)]
    spelling = Spelling(tokenizer, going_on=False)
    at = 0
    found = []
    for token in token_ids:
        piece = spelling.add(token)
        begun = not piece and tokenizer.is_part(token)
        start = at + len(piece) - len(piece.lstrip()) if piece.strip() else at
        found.append((start, min(len(text), at + len(piece) + begun)))
        at += len(piece)
    return found


def links_of(tokenizer: Tokenizer, segments: Segments, targets: TokenRows, looks: Sequence[Looks]) -> tuple[Link, ...]:
    """Return the alignment of a text that was translated in parts. Token indices and spans refer to the whole texts."""
    texts = [tokenizer.decode(ids) for ids in targets]
    sources = [tokenizer.encode(piece) for piece in segments.pieces]
    spans = _placed(tokenizer, sources, segments.pieces, segments.separators)
    target_spans = _placed(tokenizer, targets, texts, _gaps(segments, texts))
    source = segments.text
    target = segments.joined(texts)
    firsts = [0, *accumulate(map(len, sources))][:-1]
    seen = [(first + token, weight) for first, part in zip(firsts, looks, strict=True) for token, weight in part]
    return tuple(
        Link(at, number, weight, source[slice(*spans[at])], target[slice(*span)], spans[at], span)
        for number, ((at, weight), span) in enumerate(zip(seen, target_spans, strict=True))
    )


def _placed(tokenizer: Tokenizer, ids: TokenRows, texts: Sequence[str], gaps: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans of all tokens in the text that is joined from `texts` and the separators `gaps`."""
    lengths = (len(text) + len(gap) for text, gap in zip(texts, gaps[1:], strict=True))
    starts = list(accumulate(lengths, initial=len(gaps[0])))[:-1]
    found = (
        [(start + first, start + last) for first, last in token_spans(tokenizer, row, text)]
        for row, text, start in zip(ids, texts, starts, strict=True)
    )
    return list(chain.from_iterable(found))


def _gaps(segments: Segments, texts: Sequence[str]) -> list[str]:
    """Return the separators of `segments.joined(texts)`, one more than texts."""
    letters = any(c.isalpha() for text in texts for c in text)
    joined = segments.joined(["\0"] * len(texts), is_spaced(texts) if letters else None)
    return joined.split("\0")
