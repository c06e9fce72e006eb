"""The loss of a language model on whole documents, with a sliding window: nats, perplexity and bits per byte."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo import metrics
from attendo.data.token_stream import Document
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.decoding.native.compiled import CompiledModel
from attendo.errors import AttendoError
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM
from attendo.training.distributed import Ranks
from attendo.training.losses import CHUNK_VALUES, Trainable, token_losses

_WAITING = 512  # number of windows that are sorted by length at a time


@dataclass(frozen=True)
class TextLoss:
    """The negative log-likelihood of documents, with the values that are needed to interpret this loss.

    Attributes:
        nats: Negative log-likelihood Σ -ln p over all targets, in nats.
        n_targets: Number of targets: the tokens and the end token of each document.
        n_unknown: Number of unknown words among the targets, which make nats per character and bits per byte too low.
        n_characters: Number of characters in the documents.
        n_bytes: Number of UTF-8 bytes in the documents.
        context: Length of the window in tokens.
        stride: Number of tokens that are scored per window, except for the first window.
    """

    nats: float
    n_targets: int
    n_unknown: int
    n_characters: int
    n_bytes: int
    context: int
    stride: int

    @property
    def nats_per_token(self) -> float:
        """The mean loss per target token, in nats."""
        return self.nats / self.n_targets

    @property
    def perplexity(self) -> float:
        """The perplexity exp(nats per token), which is comparable only between models with the same tokenizer."""
        return metrics.perplexity(-self.nats, self.n_targets)

    @property
    def nats_per_character(self) -> float:
        """The loss in nats per character, which is comparable between tokenizers without unknown words."""
        return self.nats / self.n_characters

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per UTF-8 byte, which is comparable between tokenizers without unknown words.

        >>> TextLoss(8 * math.log(2), 9, 0, 8, 8, context=64, stride=64).bits_per_byte
        1.0
        """
        return self.nats / math.log(2) / self.n_bytes


class CompiledReader(nn.Module):
    """A compiled language model, whose loss `text_loss` computes."""

    def __init__(self, compiled: CompiledModel, config: ModelConfig):
        super().__init__()
        self.config = config
        self.compiled = compiled
        self.output_proj = _CompiledOutput(compiled)

    def hidden(self, token_ids: Int[Tensor, "rows len"]) -> Float[Tensor, "rows len d_model"]:
        """Return the states from which the next tokens are predicted."""
        rows, n = token_ids.shape
        return self.compiled.states(token_ids, self.compiled.start([[]] * rows, 1, n))


class _CompiledOutput(nn.Module):
    def __init__(self, compiled: CompiledModel):
        super().__init__()
        self.compiled = compiled
        self.weight = torch.empty(0)  # on the device of the model
        self.out_features = compiled.vocab_size

    def forward(self, states: Float[Tensor, "n d_model"]) -> Float[Tensor, "n vocab"]:
        return self.compiled.logits(states)


class Window(NamedTuple):
    """The input token ids and the targets of one window of a document. Only the last `n_scored` targets are scored."""

    token_ids: np.ndarray
    targets: np.ndarray
    n_scored: int


def document_windows(document: Document, context: int, stride: int, specials: SpecialTokens = OWN) -> Iterator[Window]:
    """Yield the windows over one document. Every target is scored in exactly one window.

    Inputs are the begin token and the document, and targets are the document and the end token. The first window scores
    all its positions. Window j = 1, 2, ... starts at position j · stride and scores its last `stride` positions.

    >>> document = Document(np.array([4, 5, 6, 7]), 4, 4)
    >>> [(w.token_ids.tolist(), w.targets[-w.n_scored :].tolist()) for w in document_windows(document, 3, 2)]
    [([2, 4, 5], [4, 5, 6]), ([5, 6, 7], [7, 3])]
    """
    n = document.n_targets
    scored = 0
    for start in range(0, max(1, n - context + stride), stride):
        end = min(start + context, n)
        # only the window itself is read from the file
        before = np.full(int(start == 0), specials.opening)
        behind = np.full(int(end > len(document.ids)), specials.eos_id)
        token_ids = np.concatenate([before, document.ids[max(start - 1, 0) : end - 1]], dtype=np.int64)
        targets = np.concatenate([document.ids[start:end], behind], dtype=np.int64)
        yield Window(token_ids, targets, end - scored)
        scored = end


def text_loss(
    model: nn.Module,
    documents: Iterable[Document],
    context: int,
    stride: int | None = None,
    batch_tokens: int = 4096,
    specials: SpecialTokens = OWN,
) -> TextLoss:
    """Compute the negative log-likelihood of documents, including the end token of each document.

    `model` is a DecoderLM, or a model with `output_proj` and `hidden(token_ids=...)`. `stride` is the number of scored
    tokens per window. The default stride, `context`, is the fastest. A stride of 1 provides the longest context for
    each token. The losses are computed in the precision of the model and summed in float64, in constant memory. Raises
    AttendoError if there is no text, or if `stride` or `context` is out of range.
    """
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise AttendoError(
            f"stride {stride} must be 1 to {context}, the context length, because each token is scored once"
        )
    if isinstance(model, DecoderLM | CompiledReader):
        longest = model.config.max_len
        if model.config.positions == "learned" and context > longest:
            raise AttendoError(
                f"context {context} exceeds the {longest} learned positions of the model. Use at most {longest}"
            )
    n_characters, n_bytes = 0, 0

    def windows() -> Iterator[Window]:
        nonlocal n_characters, n_bytes
        for document in documents:
            n_characters += document.n_characters
            n_bytes += document.n_bytes
            yield from document_windows(document, context, stride, specials)

    nats, n_targets, n_unknown = 0.0, 0, 0
    for batch in scored_batches(model, windows(), batch_tokens):
        nats += sum(float(losses.sum()) for _, _, losses in batch)
        for _, window, losses in batch:
            n_targets += len(losses)
            n_unknown += int((window.targets[-len(losses) :] == specials.unk_id).sum())
    if not n_characters:
        raise AttendoError("there is no text to score. Give at least one document")
    return TextLoss(nats, n_targets, n_unknown, n_characters, n_bytes, context, stride)


def shared_text_loss(
    model: nn.Module,
    documents: Sequence[Document],
    context: int,
    batch_tokens: int,
    ranks: Ranks,
    specials: SpecialTokens = OWN,
) -> TextLoss:
    """Compute the total loss of documents that are distributed over several processes."""
    own = documents[ranks.rank :: ranks.world]
    found = text_loss(model, own, context, batch_tokens=batch_tokens, specials=specials) if own else None
    mine = {} if found is None else asdict(found)
    parts = [part for part in ranks.gathered(mine) if part]
    windows = {"context": context, "stride": context}
    return TextLoss(**{name: sum(part[name] for part in parts) for name in parts[0] if name not in windows}, **windows)


def answer_losses(
    model: nn.Module, tokenizer: Tokenizer, turns: Sequence[tuple[list[int], list[bool]]]
) -> Float[np.ndarray, "talks 3"]:
    """Compute the sum of -ln p over the answers of each conversation, and the numbers of their tokens and UTF-8 bytes.

    `turns` are results of `ChatTemplate.encode`, with at least one answer each. The end marks of answers are included.
    """
    starts = [mask.index(True, 1) for _, mask in turns]
    windows = (
        Window(np.array(ids[:-1]), np.array(ids[1:]), len(ids) - start)
        for (ids, _), start in zip(turns, starts, strict=True)
    )
    found = np.zeros((len(turns), 3))
    for number, window, losses in itertools.chain.from_iterable(scored_batches(model, windows, 4096)):
        asked = np.array(turns[number][1][starts[number] :])
        answers = window.targets[-len(losses) :][asked]
        n_bytes = len(tokenizer.decode(answers.tolist()).encode())
        found[number] = losses[asked].sum(), len(answers), n_bytes
    return found


def scored_batches(
    model: nn.Module, windows: Iterable[Window], batch_tokens: int
) -> Iterator[list[tuple[int, Window, Float[np.ndarray, " scored"]]]]:
    """Yield the number of each window, the window, and the losses of its scored targets, in constant memory.

    A batch contains windows of similar length, and at most `batch_tokens` positions, including padding.
    """
    numbered = enumerate(windows)
    was_training = model.training
    reader = cast(Trainable, model.eval())
    while waiting := list(itertools.islice(numbered, _WAITING)):
        waiting.sort(key=lambda pair: -len(pair[1].targets))
        start = 0
        while start < len(waiting):
            end = start + max(1, batch_tokens // len(waiting[start][1].targets))
            batch = waiting[start:end]
            with torch.inference_mode():
                found = window_losses(reader, [window for _, window in batch])
            yield [(*pair, losses) for pair, losses in zip(batch, found, strict=True)]
            start = end
    model.train(was_training)


def window_losses(model: Trainable, windows: list[Window]) -> list[Float[np.ndarray, " scored"]]:
    """Compute the loss -ln p of each scored target, for each window."""
    shape = (len(windows), max(len(window.targets) for window in windows))
    token_ids = np.full(shape, OWN.pad_id)  # any valid id
    targets = np.full(shape, OWN.pad_id)
    scored = np.zeros(shape, bool)
    for row, (ids, wanted, n_scored) in enumerate(windows):
        token_ids[row, : len(ids)] = ids
        targets[row, : len(ids)] = wanted
        scored[row, len(ids) - n_scored : len(ids)] = True
    device = model.output_proj.weight.device
    hidden = model.hidden(token_ids=torch.from_numpy(token_ids).to(device)).flatten(0, 1)
    places = torch.from_numpy(np.flatnonzero(scored)).to(device)
    wanted = torch.from_numpy(targets[scored]).to(device)
    rows = max(1, CHUNK_VALUES // model.output_proj.out_features)
    parts = zip(hidden[places].split(rows), wanted.split(rows), strict=True)
    losses = torch.cat([token_losses(model.output_proj(states), ids).double() for states, ids in parts])
    return np.split(losses.cpu().numpy(), np.cumsum([window.n_scored for window in windows])[:-1])
