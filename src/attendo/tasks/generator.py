"""Generator: a trained language model, its tokenizer and its sampling, with raw text in and raw text out."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.bundle import Bundle, load_as
from attendo.config import build
from attendo.data.tokenizers import BYTES, SPECIALS, Tokenizer
from attendo.decoding.sampling import SamplingConfig, fresh_seed, generate
from attendo.decoding.step import SpecialIds
from attendo.errors import AttendoError
from attendo.inspecting.recording import Recording, recording
from attendo.models import DecoderLM
from attendo.nn.cache import DecoderCache

FinishedBy = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Generation:
    """How a prompt goes on: `prompt + text` is the whole.

    token_ids: what was drawn, the end token left out; with a stop, the tokens that spell it are among them. log_probs:
    of each in nats, as the model has it before any penalty or filter, that of the end token included where there is
    one. finished_by: "end" the model's end of a document, "stop" a stop text, "length" max_tokens. cut: tokens on the
    left of the prompt that were not read, since the model's context holds no more. unknown: words of the prompt that
    the tokenizer does not know. slides: how often the window slid. seed: gives this text again. window: the tokens
    from which the text would go on, those of a recording.
    """

    prompt: str
    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finished_by: FinishedBy
    cut: int
    unknown: int
    slides: int
    seed: int
    window: tuple[int, ...]

    @property
    def log_prob(self) -> float:
        """Of all that was drawn, in nats."""
        return sum(self.log_probs)


class Window:
    """The tokens that a language model has before its eyes, at most `max_len` of them, and their keys and values.

    What is read goes behind what was read. Where that would be more than the model holds, the window slides: the last
    half of it stays, and is read again from position 0, in one pass. Like the windows of training that begin inside of
    a document it then has no begin id.
    """

    def __init__(self, model: DecoderLM, n_expected: int) -> None:
        """n_expected: tokens that will be read after the first call; fewer take less memory."""
        self.model = model
        self.ids: list[int] = []
        self.slides = 0
        self._n_expected = n_expected
        self._cache: DecoderCache | None = None

    def after(self, new_ids: Sequence[int]) -> list[int]:
        """What the window holds once these are read."""
        ids, most = [*self.ids, *new_ids], self.model.config.max_len
        return ids if len(ids) <= most else ids[-max(1, most // 2) :]

    def read(self, new_ids: Sequence[int]) -> Float[Tensor, "1 vocab"]:
        """The logits after these tokens, which follow those read before."""
        ids = self.after(new_ids)
        if self._cache is None or len(ids) < len(self.ids) + len(new_ids):
            self.slides += self._cache is not None
            self._cache = self.model.start(1, min(self.model.config.max_len, len(ids) + self._n_expected))
            new_ids = ids
        self._n_expected -= 1
        self.ids = ids
        token_ids = torch.tensor([new_ids], device=self.model.output_proj.weight.device)
        return self.model.step(token_ids, self._cache)[:, -1]


class Spelling:
    """Token ids to text as they come, whole characters only: the pieces together are `decode` of all ids.

    going_on: they go on from a text, so that a space before the first word is one.
    """

    def __init__(self, tokenizer: Tokenizer, going_on: bool) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = not going_on and tokenizer.kind not in ("character", "byte")
        # decode drops a space at the very beginning: a token is decoded behind another
        self._lead = tokenizer.unk_id if tokenizer.kind == "word" else len(SPECIALS) + ord("a")
        self._lead_text = tokenizer.decode([self._lead])

    def add(self, token_id: int) -> str:
        """The characters that this token completes, perhaps none."""
        data = self._bytes_of(token_id)
        if data and self._drops_space:
            self._drops_space, data = False, data.removeprefix(b" ")
        return self._characters.decode(data)

    def end(self) -> str:
        """U+FFFD where the text broke off inside of a character, else nothing."""
        return self._characters.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        byte = token_id - len(SPECIALS)
        if self._tokenizer.kind != "word" and 0 <= byte < len(BYTES):
            return bytes([byte])
        return self._tokenizer.decode([self._lead, token_id]).removeprefix(self._lead_text).encode()


class Stops:
    """Lets a text through up to the first stop text in it, and holds back what may be the beginning of one.

    The first is the one that is complete first; of those complete at the same character, the longest. How the text is
    cut into pieces changes nothing.

    >>> stops = Stops(("END",))
    >>> stops.add("the E"), stops.add("N"), stops.add("V"), stops.add("ENDs"), stops.found
    ('the ', '', 'ENV', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=1)
        self._held = ""
        self.found = False

    def add(self, piece: str) -> str:
        """What may be shown once this piece has come."""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.found, self._held = True, ""
            return text[: min(found)[1]]
        lengths = range(min(len(text), self._longest - 1), 0, -1)
        n_held = next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
        shown = len(text) - n_held
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held = self._held, ""
        return held


class Stream(Iterator[str]):
    """The pieces of a text as they are written, none empty; together they are the text of `generation`.

    cut, unknown, seed are known before the first piece, as in Generation.
    """

    def __init__(
        self,
        model: DecoderLM,
        tokenizer: Tokenizer,
        prompt: str,
        config: SamplingConfig,
        at_end: Callable[[Generation], None],
    ) -> None:
        self.prompt = prompt
        self.seed = fresh_seed() if config.seed is None else config.seed
        ids = tokenizer.encode(prompt)
        self.unknown = ids.count(tokenizer.unk_id)
        self.cut = max(0, len(ids) - model.config.max_len)
        self._prompt_ids = [tokenizer.bos_id, *ids][-model.config.max_len :]
        self._config = dataclasses.replace(config, seed=self.seed)
        self._window = Window(model, config.max_tokens)
        self._spelling = Spelling(tokenizer, going_on=bool(ids))
        self._special = _special(tokenizer)
        self._at_end = at_end
        self._generation: Generation | None = None
        self._pieces = self._written()

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """All that there is to know, once the last piece has come. Raises AttendoError before."""
        if self._generation is None:
            raise AttendoError("the text is still being written; take all pieces of the stream first")
        return self._generation

    def _written(self) -> Iterator[str]:
        stops, pieces, token_ids, log_probs = Stops(self._config.stop), [], [], []
        ended, unread = False, self._prompt_ids
        for token in generate(self._window.read, self._prompt_ids, self._config, self._special):
            log_probs.append(token.log_prob)
            if ended := token.token_id == self._special.eos_id:
                unread = []
                break
            unread = [token.token_id]
            token_ids += unread
            if piece := stops.add(self._spelling.add(token.token_id)):
                pieces.append(piece)
                yield piece
            if stops.found:
                break
        if not stops.found and (piece := stops.add(self._spelling.end()) + stops.end()):
            pieces.append(piece)
            yield piece
        generation = Generation(
            prompt=self.prompt,
            text="".join(pieces),
            token_ids=tuple(token_ids),
            log_probs=tuple(log_probs),
            finished_by="stop" if stops.found else "end" if ended else "length",
            cut=self.cut,
            unknown=self.unknown,
            slides=self._window.slides,
            seed=self.seed,
            window=tuple(self._window.after(unread)),
        )
        self._at_end(generation)
        self._generation = generation


@dataclass
class Generator:
    """Continues raw text. `decoding` holds the defaults that `generate` and `stream` start from.

    The model reads at most `max_len` tokens at a time, its context. A prompt that has more is cut on the left, and
    `Generation.cut` says by how many tokens; where prompt and text together come to more, the window slides (`Window`).
    """

    model: DecoderLM
    tokenizer: Tokenizer
    decoding: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    _record: Recording[DecoderLM] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Generator:
        """The generator of a run folder. Raises AttendoError naming what is missing, damaged or for another task."""
        return cls.from_bundle(*load_as(DecoderLM, folder, device))

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: DecoderLM) -> Generator:
        """A generator around a model that is in memory already."""
        decoding = build(SamplingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.output_proj.weight.device

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Generation:
        """The prompt continued; without one, a new document. See SamplingConfig for the options.

        Options left out are the run's own. Raises AttendoError for one out of range.
        """
        stream = self.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            stop=stop,
            seed=seed,
        )
        for _ in stream:
            pass
        return stream.generation

    def stream(
        self,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Stream:
        """As `generate`, piece by piece: never half a character, and nothing that a stop text might still take back."""
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "stop": stop if stop is None or isinstance(stop, str) else tuple(stop),
            "seed": seed,
        }
        chosen = {name: value for name, value in options.items() if value is not None}
        try:
            config = dataclasses.replace(self.decoding, **chosen)
        except ValueError as error:
            raise AttendoError(str(error)) from None
        return Stream(self.model, self.tokenizer, prompt, config, self._record_pass)

    @contextmanager
    def recording(self) -> Iterator[Recording[DecoderLM]]:
        """Within it, each text that is finished is also recorded: every attention layer, by module path.

        The text is written as always; then one pass over `Generation.window`, which is the begin id, prompt and text if
        the context holds them, is recorded on a view of the model: `record["decoder.blocks.0.self_attention"].weights`.
        With max_tokens=0 it is the prompt alone.
        """
        if self._record is not None:
            raise AttendoError("recording() is already open on this generator; leave it first")
        with recording(self.model) as record:
            self._record = record
            try:
                yield record
            finally:
                self._record = None

    def _record_pass(self, generation: Generation) -> None:
        if self._record is not None:
            with torch.inference_mode():
                self._record.model(torch.tensor([generation.window], device=self.device))


def _special(tokenizer: Tokenizer) -> SpecialIds:
    """No text has pad or bos, and unk only where it is a word: else it would be a token that spells nothing."""
    nothing = () if tokenizer.kind == "word" else (tokenizer.unk_id,)
    return SpecialIds(
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        never=(tokenizer.pad_id, tokenizer.bos_id, *nothing),
    )
