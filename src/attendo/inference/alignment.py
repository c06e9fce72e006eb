"""Word alignments: the source tokens that a translation attends to, and the counts of the coverage penalty.

Both use the mean over all cross-attention layers and heads while a token is predicted; it was correct more often than
any single block (docs/en/decoding.md).
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
"""Of each token of a text: the number of the source token that it looks at most, and the weight there."""


@dataclass(frozen=True)
class Link:
    """A target token and the source token that receives most of its attention.

    Attributes:
        target: The index of the token in `Candidate.token_ids`, from 0.
        source: The index of the source token, counted through all parts; the end token is not counted.
        weight: The attention on that source token, at most 1.
        source_text, target_text: The text of the two tokens, without a leading space.
        source_span, target_span: Character positions (start, end). A token that is part of a character spans all of it.
    """

    source: int
    target: int
    weight: float
    source_text: str
    target_text: str
    source_span: tuple[int, int]
    target_span: tuple[int, int]


def _watched(model: EncoderDecoder) -> tuple[EncoderDecoder, list[Tensor]]:
    """A view of the model, and a list to which each of its cross-attentions adds its weights, the mean over heads."""
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
    """The attention of each target position over the source: the mean over heads, blocks and models.

    Row t is the attention while token t is predicted. Rows sum to 1; padding gets 0.
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
    """Return the inputs of a translator's forward for given targets, and the ids to predict.

    Sources include their special tokens, targets do not. With several begin ids, the later ones are predicted too: the
    first target token is in column `len(begin) - 1`.
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
    """The source tokens that the tokens of each target attend to, by the target's ids, without the source's end."""
    pairs = [(row, ids) for row, found in enumerate(targets) for ids in found]
    lengths = [len(sources[row]) + len(ids) for row, ids in pairs]
    looks: list[dict[tuple[int, ...], Looks]] = [{} for _ in sources]
    device = models[0].output_proj.weight.device
    for numbers in source_batches(lengths, DecodingConfig(beam=1, batch_tokens=batch_tokens)):
        rows, texts = zip(*(pairs[number] for number in numbers), strict=True)
        # the last token is predicted from those before it, so it need not be read
        inputs, _ = teacher_forced(
            tokenizer, [sources[row] for row in rows], [ids[:-1] for ids in texts], device
        )
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
    """The coverage penalty of given targets with their ends, as a search adds it to their scores (`attending_step`)."""
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
    """The attention among the n target and source tokens of one text, without the special tokens."""
    own = tokenizer.specials
    (before, behind) = own.around_source
    first = len(own.begin) - 1
    return weights[first : first + n_target, len(before) : n_source - len(behind)]


def looks_of(weights: Float[Tensor, "n_target n_source"]) -> Looks:
    """The index of each row's largest weight, the first in a tie; empty without a source.

    >>> looks_of(torch.tensor([[0.25, 0.5, 0.125], [0.5, 0.0, 0.25]]))
    ((1, 0.5), (0, 0.5))
    """
    if not weights.numel():
        return ()
    best = weights.argmax(1)
    return tuple(zip(best.tolist(), weights.amax(1).tolist(), strict=True))


def attending_step(model: EncoderDecoder) -> AttendingStep:
    """Return a step function of a model that also returns `source_attention`.

    It uses the caches of `model.start`. Padding of a source gets 1, as the coverage penalty requires.
    """
    twin, seen = _watched(model)

    def step(
        token_ids: Int[Tensor, "rows 1"], cache: DecoderCache, /
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows src_len"]]:
        seen.clear()
        logits = twin.step(token_ids, cache)[:, -1]
        # [sources, rows of each, src_len], or [rows, 1, src_len]: the rows are in order in both
        weights = torch.stack(seen).mean(0).reshape(cache.rows, -1)
        if cache.memory_lengths is not None:
            lengths = cache.memory_lengths[torch.tensor(cache.row_sources, device=weights.device)]
            positions = torch.arange(weights.shape[1], device=weights.device)
            weights = weights.masked_fill(positions >= lengths[:, None], 1.0)
        return logits, weights

    return step


def token_spans(tokenizer: Tokenizer, token_ids: Sequence[int], text: str) -> list[tuple[int, int]]:
    """Return the span (start, end) in characters of each token, without the space before it.

    A token that spells part of a character spans all of it; one that spells nothing has an empty span.
    """
    if tokenizer.kind == "word":  # its words are what stands between two spaces, known or not
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


def links_of(
    tokenizer: Tokenizer, segments: Segments, targets: TokenRows, looks: Sequence[Looks]
) -> tuple[Link, ...]:
    """The alignment of a text translated in parts, with numbers and spans counted in the whole texts."""
    texts = [tokenizer.decode(ids) for ids in targets]
    sources = [tokenizer.encode(piece) for piece in segments.pieces]
    spans = _placed(tokenizer, sources, segments.pieces, segments.separators)
    target_spans = _placed(tokenizer, targets, texts, _gaps(segments, texts))
    source = segments.text
    target = segments.joined(texts)
    firsts = [0, *accumulate(map(len, sources))][:-1]
    seen = [
        (first + token, weight) for first, part in zip(firsts, looks, strict=True) for token, weight in part
    ]
    return tuple(
        Link(at, number, weight, source[slice(*spans[at])], target[slice(*span)], spans[at], span)
        for number, ((at, weight), span) in enumerate(zip(seen, target_spans, strict=True))
    )


def _placed(
    tokenizer: Tokenizer, ids: TokenRows, texts: Sequence[str], gaps: Sequence[str]
) -> list[tuple[int, int]]:
    """The spans of all tokens in the text joined from these texts and separators."""
    lengths = (len(text) + len(gap) for text, gap in zip(texts, gaps[1:], strict=True))
    starts = list(accumulate(lengths, initial=len(gaps[0])))[:-1]
    found = (
        [(start + first, start + last) for first, last in token_spans(tokenizer, row, text)]
        for row, text, start in zip(ids, texts, starts, strict=True)
    )
    return list(chain.from_iterable(found))


def _gaps(segments: Segments, texts: Sequence[str]) -> list[str]:
    """The separators of `segments.joined(texts)`: one more than texts."""
    letters = any(c.isalpha() for text in texts for c in text)
    joined = segments.joined(["\0"] * len(texts), is_spaced(texts) if letters else None)
    return joined.split("\0")
