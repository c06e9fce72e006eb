"""How much a model needs each of its heads: each switched off alone, over all rows of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.data.masking import hidden_tokens
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.candidates import log_probs_of
from attendo.decoding.options import DecodingConfig
from attendo.decoding.searcher import source_batches
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inference.alignment import looks_of, own_part, teacher_forced, token_spans
from attendo.inspecting.alignment_error import GivenLinks, Pair, alignment_error_rate, word_links
from attendo.inspecting.edits import Edit, Off
from attendo.inspecting.recording import recording
from attendo.microscope.layers import attention_layers
from attendo.microscope.seen import User
from attendo.models import Model

NONE = -1
"""Among the ids that are wanted: nothing is asked at this position."""
HIDDEN = 0.15
"""Of a masked language model's texts, as in its training; the same tokens at every call."""

OUTPUT_ROWS = 512
"""Positions whose logits are in memory at a time."""


@dataclass(frozen=True)
class HeadEffect:
    """What becomes of a row's log-probability without a head: the mean change in nats, and its standard error.

    An effect below 0 says that the model needs the head. alignment_error: of a cross-attention whose links are given,
    the alignment error rate of what the head looks at most.
    """

    path: str
    head: int
    effect: float
    standard_error: float
    alignment_error: float | None = None


@dataclass(frozen=True)
class Importance:
    """The heads of a model, the most needed first. log_prob: of a row with all heads, the mean; n_cut: rows of which
    only a part was read, since the model holds no more.
    """

    heads: tuple[HeadEffect, ...]
    n_rows: int
    n_tokens: int
    n_cut: int
    log_prob: float


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows as a model reads them; wanted: ids `[rows len]`, or the labels `[rows]`; NONE where nothing is asked."""

    inputs: dict[str, Any]
    wanted: Int[Tensor, "rows *len"]
    temperature: float = 1.0

    def log_probs(self, model: Model) -> Float[Tensor, " rows"]:
        """Of all that is wanted in each row, in nats and float64."""
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
    """Switches off each head alone and measures the log-probability of the rows: a ranking of the heads.

    rows: (source, target) of a translator, teacher-forced; (text, label) of a classifier; texts of a language model,
    and of a masked one, of which HIDDEN of the tokens are hidden and to be found. batch_tokens: at most so many, with
    padding, go through the model at a time, but at least one row. say: is told how many batches are done, and of how
    many: all the rows go through the model once as it is, and once without each head.
    links: between words of the pairs, by which the heads of a translator's cross-attention are measured, too.

    Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2. The effects of heads do not add up:
    where two do the same, either can be missed. Raises AttendoError for fewer than 2 rows, and for a label that the
    classifier does not know.
    """
    batches, n_cut = _batches(user, rows, batch_tokens)
    layers = attention_layers(user.model)
    places = [(path, head) for path, layer in layers.items() for head in range(layer.n_heads)]
    done = _Done((len(places) + 1) * len(batches), say)
    errors = {} if links is None else head_alignment_errors(user, rows, links, batch_tokens)
    plain, heads = _measured(user.model, batches, (), done), []
    for path, head in places:
        changes = _measured(user.model, batches, (Off(path, (head,)),), done) - plain
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


class _Done:
    """Counts the batches that are done, and says so."""

    def __init__(self, of: int, say: Callable[[int, int], None]) -> None:
        self.of, self.say, self.n = of, say, 0
        say(0, of)

    def one_more(self) -> None:
        self.n += 1
        self.say(self.n, self.of)


@torch.inference_mode()
def _measured(
    model: Model, batches: Sequence[_Batch], edits: Sequence[Edit], done: _Done
) -> Float[Tensor, " rows"]:
    found = []
    with recording(model, keep=(), edits=edits) as record:
        view = record.model.eval()
        for batch in batches:
            found.append(batch.log_probs(view))
            done.one_more()
    return torch.cat(found).cpu()


def _batches(user: User, rows: Sequence[Any], batch_tokens: int) -> tuple[list[_Batch], int]:
    if len(rows) < 2:
        raise AttendoError(
            f"{len(rows)} usable rows are too few to measure heads on; give a file with 2 or more"
        )
    match user:
        case Translator():
            return _pairs(user, rows, batch_tokens)
        case Classifier():
            return _labelled(user, rows, batch_tokens)
        case Generator() | Embedder():
            return _texts(user, rows, batch_tokens)


def _grouped(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    return source_batches(lengths, DecodingConfig(beam=1, batch_tokens=batch_tokens))


def _pairs(user: Translator, rows: Sequence[tuple[str, str]], batch_tokens: int) -> tuple[list[_Batch], int]:
    tokenizer, most = user.tokenizer, user.longest
    encoded = _sides(tokenizer, rows)
    n_cut = sum(max(map(len, pair)) > most for pair in zip(*encoded, strict=True))
    sources, targets = ([ids[:most] for ids in side] for side in encoded)
    lengths = [len(source) + len(target) + 2 for source, target in zip(sources, targets, strict=True)]
    batches = []
    for numbers in _grouped(lengths, batch_tokens):
        chosen = [targets[number] for number in numbers]
        read, first = (
            [tokenizer.specials.source(sources[n]) for n in numbers],
            len(tokenizer.specials.begin) - 1,
        )
        inputs, wanted = teacher_forced(tokenizer, read, chosen, user.device)
        for row, target in zip(wanted, chosen, strict=True):
            row[:first] = NONE
            row[first + len(target) + 1 :] = NONE
        batches.append(_Batch(inputs, wanted))
    return batches, n_cut


def _sides(tokenizer: Tokenizer, rows: Sequence[Any]) -> list[list[list[int]]]:
    sources, targets = zip(*rows, strict=True)
    return [tokenizer.encode_batch(sources), tokenizer.target.encode_batch(targets)]


def _labelled(
    user: Classifier, rows: Sequence[tuple[str, str]], batch_tokens: int
) -> tuple[list[_Batch], int]:
    labels = [user.labels.id_of(label, f"row {number}") for number, (_, label) in enumerate(rows, 1)]
    ids = user.tokenizer.encode_batch([text for text, _ in rows])
    texts = [user.tokenizer.specials.text(user.long_texts.parts(row)[0]) for row in ids]
    around = user.tokenizer.specials.n_around_text
    n_cut = sum(len(row) + around > len(text) for row, text in zip(ids, texts, strict=True))
    batches = []
    for numbers in _grouped([len(text) for text in texts], batch_tokens):
        src, lengths = pad_rows([texts[n] for n in numbers], user.tokenizer.pad_id, user.device)
        wanted = torch.tensor([labels[n] for n in numbers], device=user.device)
        batches.append(_Batch({"src": src, "src_lengths": lengths}, wanted, user.temperature))
    return batches, n_cut


def _texts(user: Generator | Embedder, rows: Sequence[str], batch_tokens: int) -> tuple[list[_Batch], int]:
    tokenizer, most = user.tokenizer, user.model.config.max_len
    ids = tokenizer.encode_batch(rows)
    own = tokenizer.specials
    if isinstance(user, Generator):
        texts = [own.prompt(row)[:most] for row in ids]
        n_cut = sum(len(own.prompt(row)) > most for row in ids)
    else:
        room = most - own.n_around_text
        texts = [own.text(row[:room]) for row in ids]
        n_cut = sum(len(row) > room for row in ids)
    batches = []
    for numbers in _grouped([len(text) for text in texts], batch_tokens):
        chosen = [texts[n] for n in numbers]
        read, wanted = zip(*map(_asked(user), numbers, chosen), strict=True)
        token_ids, lengths = pad_rows(read, tokenizer.pad_id, user.device)
        inputs = {"token_ids": token_ids}
        if isinstance(user, Embedder):
            inputs = {"src": token_ids, "src_lengths": lengths}
        batches.append(_Batch(inputs, pad_rows(wanted, NONE, user.device)[0]))
    return batches, n_cut


def _asked(user: Generator | Embedder) -> Callable[[int, list[int]], tuple[list[int], list[int]]]:
    """From a row's number and ids to what is read and what is wanted."""
    if isinstance(user, Generator):
        return lambda number, ids: (ids, [*ids[1:], NONE])

    def hide(number: int, ids: list[int]) -> tuple[list[int], list[int]]:
        rng, tokenizer = np.random.default_rng((0, number)), user.tokenizer
        own = {"mask_id": tokenizer.mask_id, "text_ids": tokenizer.text_ids}
        read, wanted = hidden_tokens(np.array(ids), HIDDEN, "mask", tokenizer.vocab_size, rng, NONE, **own)
        return read.tolist(), wanted.tolist()

    return hide


@torch.inference_mode()
def head_alignment_errors(
    user: User, pairs: Sequence[Any], links: Sequence[GivenLinks], batch_tokens: int = 4096
) -> dict[tuple[str, int], float]:
    """The alignment error rate of each cross-attention head, by path and number, over (source, target) pairs.

    A head links a target token with the source token on which it has most weight while that token is predicted, the
    source's end left out; words are linked where tokens of theirs are. links: given ones, of each pair. Raises
    AttendoError for a model that is no translator, and where pairs and links are not as many.
    """
    if not isinstance(user, Translator):
        raise AttendoError("only a translator's heads can be measured by alignments; leave them out")
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
