"""What a language model has before its eyes while texts go on: windows of tokens that slide, many in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.backends import DecoderBackend
from attendo.decoding.step import JoiningCache


@dataclass(eq=False)
class Row:
    """One text's window: the ids in it, and those that will be read with the next.

    n_steps: how many steps are still expected; fewer take less memory. slides: how often the window slid.
    """

    unread: list[int]
    n_steps: int
    ids: list[int] = field(default_factory=list)
    slides: int = 0


class Windows:
    """The tokens that a language model sees of each of several texts, at most `max_len`, and their keys and values.

    What is read goes behind what was read. Where that would be more than the model holds, the window slides: the last
    half of it stays, and is read again from position 0, in one pass. Like the windows of training that begin inside of
    a document it then has no begin id. A row sees the same whatever the others do: rows that are new or slide are read
    apart, those of one length together, and join the others. It is a cache as a search moves it (`decoding.step`).

    >>> from attendo.decoding.backends import eager_decoder
    >>> from attendo.models import DecoderLM, ModelConfig
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1, max_len=4)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", vocab_size=9, **sizes))
    >>> windows = Windows(eager_decoder(model), [[2], [2, 5, 6]], [2, 2])
    >>> [windows.step(torch.tensor([[7], [8]])).shape for _ in range(2)]
    [torch.Size([2, 9]), torch.Size([2, 9])]
    >>> [row.ids for row in windows.rows]  # the second has slid
    [[2, 7, 7], [8, 8]]
    """

    def __init__(
        self, model: DecoderBackend, prompts: Sequence[Sequence[int]], n_steps: Sequence[int]
    ) -> None:
        """prompts: what each row is to see before the first id that it is given. n_steps: how many it will be given."""
        self.model = model
        self.rows = [Row(list(prompt), n) for prompt, n in zip(prompts, n_steps, strict=True)]
        self._cache: JoiningCache | None = None
        self._cached: list[Row] = []

    def after(self, row: Row, new_ids: Sequence[int]) -> list[int]:
        """What the row's window holds once these are read."""
        ids, most = [*row.ids, *row.unread, *new_ids], self.model.max_len
        return ids if len(ids) <= most else ids[-max(1, most // 2) :]

    def step(self, token_ids: Int[Tensor, "rows 1"]) -> Float[Tensor, "rows vocab"]:
        """The logits after one more token of each row."""
        cached, going_on, apart = set(map(id, self._cached)), set[int](), list[Row]()
        for row, new_ids in zip(self.rows, token_ids.tolist(), strict=True):
            window = self.after(row, new_ids)
            if id(row) in cached and len(window) == len(row.ids) + 1:
                going_on.add(id(row))
            else:
                row.slides += id(row) in cached and len(window) <= len(row.ids)
                apart.append(row)
            row.ids, row.unread = window, []
            row.n_steps -= 1
        self._keep(going_on)
        parts = [] if self._cache is None else [self._read(self._cached, 1, self._cache)]
        apart.sort(key=lambda row: len(row.ids))
        for length, rows in groupby(apart, key=lambda row: len(row.ids)):
            parts.append(self._start(list(rows), length))
        place = {id(row): number for number, row in enumerate(self._cached)}
        order = [place[id(row)] for row in self.rows]
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        return logits if order == list(range(len(order))) else logits[order]

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Row `i` goes on with old row `rows[i]`, each at most once; the others are forgotten at the next step."""
        self.rows = [self.rows[row] for row in rows.tolist()]

    def join(self, other: Windows) -> None:
        """Takes in the rows of other windows that have not read anything yet, behind its own."""
        assert not other._cached
        self.rows += other.rows

    def _keep(self, rows: set[int]) -> None:
        places = [place for place, row in enumerate(self._cached) if id(row) in rows]
        if self._cache is not None and len(places) < len(self._cached):
            if places:
                self._cache.keep(torch.tensor(places, device=self.model.device))
            else:
                self._cache = None
            self._cached = [self._cached[place] for place in places]

    def _start(self, rows: list[Row], length: int) -> Float[Tensor, "rows vocab"]:
        """Reads rows of one length from the beginning and joins them to the others."""
        capacity = max(min(self.model.max_len, length + max(0, row.n_steps)) for row in rows)
        cache = self.model.start(len(rows), capacity)
        logits = self._read(rows, length, cache)
        if self._cache is None:
            self._cache = cache
        else:
            self._cache.join(cache)
        self._cached = self._cached + rows
        return logits

    def _read(self, rows: list[Row], n: int, cache: JoiningCache) -> Float[Tensor, "rows vocab"]:
        """The logits after the last n ids of each row; of a long prompt, those of its last position alone."""
        token_ids = torch.tensor([row.ids[-n:] for row in rows], device=self.model.device)
        return self.model.step(token_ids, cache)


class Window:
    """The window of a single text, by lists of ids: what `decoding.sampling.generate` takes as a step is `read`."""

    def __init__(self, model: DecoderBackend, n_expected: int) -> None:
        """n_expected: tokens that will be read after the first call; fewer take less memory."""
        self._windows = Windows(model, [[]], [n_expected + 1])

    def read(self, new_ids: Sequence[int]) -> Float[Tensor, "1 vocab"]:
        """The logits after these tokens: the prompt at first, then one at a time."""
        [row] = self._windows.rows
        row.unread += new_ids[:-1]
        return self._windows.step(torch.tensor([new_ids[-1:]]))
