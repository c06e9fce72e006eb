"""What a model reads of a text, and what it answers: the ids of one look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attendo.bundle import TaskName
from attendo.data.masking import MASK
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.repetition import runs_away
from attendo.decoding.step import Hypothesis
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inference.generation import special_ids
from attendo.inspecting.edits import Edit
from attendo.microscope.ask import Ask, Search
from attendo.microscope.searching import (
    AHEAD,
    config_of,
    greedy_by_draft,
    search_text,
    search_translation,
)
from attendo.microscope.seen import User, edited


@dataclass(frozen=True, eq=False)
class Reading:
    """The ids of a look, as `Seen` has them, and what its search says of the answer."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    wanted: tuple[int | None, ...]
    prompt_tokens: int = 1
    score: float | None = None
    finished: bool = True
    note: str = ""

    def inputs(self, family: TaskName, device: torch.device) -> dict[str, Tensor]:
        """The inputs of the model's forward: one row, no padding."""
        names = {
            "translation": {"src": self.source, "tgt": self.target},
            "language-model": {"token_ids": self.target},
        }
        chosen = names.get(family, {"src": self.source})
        return {name: torch.tensor([list(ids)], device=device) for name, ids in chosen.items()}


def usual_beam(user: User) -> int:
    """The width of a search for its answer unless another is asked for; 1 where nothing is searched for."""
    match user:
        case Translator():
            return user.decoding.beam
        case Generator():
            return 4
        case _:
            return 1


def usual_search(user: User) -> Search:
    """How an answer is found unless told otherwise: a translator's by its own beam, where that is more than 1."""
    return "beam" if isinstance(user, Translator) and usual_beam(user) > 1 else "greedy"


def read(user: User, ask: Ask, edits: Sequence[Edit] = (), draft: Sequence[int] = ()) -> Reading:
    """What is read and answered: by a search with the edits, unless the ask forces the answer.

    draft: ids that a greedy answer may well have, for a quicker search. Raises AttendoError for a text without a
    token, and for a prefix that isn't one.
    """
    for token in ask.prefix_ids:
        if not 0 <= token < user.model.config.vocab_size:
            raise AttendoError(f"prefix_ids has {token}; ids are 0 to {user.model.config.vocab_size - 1}")
    match user:
        case Translator():
            return _translation(user, ask, edits, draft)
        case Generator():
            return _continuation(user, ask, edits, draft)
        case Classifier():
            ids = user.tokenizer.encode(ask.text)
            part = list(user.long_texts.parts(ids)[0])
            note = _note(len(ids), len(part), "what the classifier reads of it at once")
        case Embedder():
            ids = masked_ids(user.tokenizer, ask.text)
            part = ids[: user.model.config.max_len - user.tokenizer.specials.n_around_text]
            note = _note(len(ids), len(part), "what the model reads at once")
    _some(part, ask.text)
    source = tuple(user.tokenizer.specials.text(part))
    wanted = _of_places(user, edits, source) if isinstance(user, Embedder) else ()
    return Reading(source, (), wanted, note=note)


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text for a masked language model: each MASK in it is the token that hid others in training.

    The space before a hidden word is part of it, as in training; not so where a space is a token of its own.
    """
    *before, last = text.split(MASK)
    if tokenizer.kind not in ("character", "byte"):
        before = [part.removesuffix(" ") for part in before]
    first, *others = [*before, last]
    behind = [id_ for part in others for id_ in (tokenizer.mask_id, *tokenizer.encode_on(part))]
    return [*tokenizer.encode(first), *behind]


def _of_places(user: Embedder, edits: Sequence[Edit], source: tuple[int, ...]) -> tuple[int | None, ...]:
    """What a masked model is asked for: its first choice where a token is hidden; without any, each token of the text.

    The specials around it are never asked for.
    """
    mask_id, (before, behind) = user.tokenizer.mask_id, user.tokenizer.specials.around_text
    if mask_id not in source:
        last = len(source) - len(behind)
        return (*[None] * len(before), *source[len(before) : last], *[None] * len(behind))
    with torch.no_grad(), edited(user.model, edits) as view:
        likeliest = view(src=torch.tensor([source], device=user.device))[0].argmax(-1).tolist()
    return tuple(best if id_ == mask_id else None for id_, best in zip(source, likeliest, strict=True))


def _translation(user: Translator, ask: Ask, edits: Sequence[Edit], draft: Sequence[int]) -> Reading:
    tokenizer = user.tokenizer
    ids = tokenizer.encode(ask.text)
    _some(ids, ask.text)
    part = ids[: user.longest]
    note = _note(len(ids), len(part), "what the model reads at once")
    source = tuple(tokenizer.specials.source(part))
    if ask.search == "forced":
        whole = tokenizer.target.encode(ask.target or "")
        found = whole[: user.longest]
        note = note or _note(len(whole), len(found), "what the model writes at once", "of the target")
        score, finished = None, len(found) == len(whole)
    else:
        best = _found_translation(user, ask, source, edits, draft)
        found, finished = list(best.token_ids)[: user.longest], best.finished
        score = best.score if best.token_log_probs else None  # a search by draft adds nothing up
        if runs_away(source, best):
            note = (
                note
                or "the text repeats itself; attendo translate searches such a one again, without repetition"
            )
    begin = tokenizer.specials.begin
    target = (*begin, *found)
    last = tokenizer.eos_id if finished or ask.search == "forced" else None
    return Reading(source, target, (*begin[1:], *found, last), len(begin), score, finished, note)


def _found_translation(
    user: Translator, ask: Ask, source: tuple[int, ...], edits: Sequence[Edit], draft: Sequence[int]
) -> Hypothesis:
    """By the engine where nothing is changed, else with the edits; a greedy one by the draft."""
    beam = 1 if ask.search == "greedy" else ask.beam
    config = config_of(user, beam)
    if not ask.edits and not ask.prefix_ids:
        ((best, *_),) = user.search([list(source)], config)
        return best
    plain = not (config.min_length or config.no_repeat_ngram or config.coverage_penalty)
    if config.beam > 1 or not plain:
        return search_translation(user, edits, source, ask.prefix_ids, beam)[0][0]
    limit = config.max_length(len(source), user.longest + 1)
    prefix = ask.prefix_ids[: limit - 1]
    with torch.no_grad(), edited(user.model, edits) as view:
        cache = view.start(
            torch.tensor([source], device=user.device),
            capacity=limit + AHEAD + len(user.tokenizer.specials.begin) - 1,
        )
        begin = (*user.tokenizer.specials.begin, *prefix)
        found, finished = greedy_by_draft(
            view.step, cache, begin, draft, limit - len(prefix), user.special_ids
        )
    return Hypothesis((*prefix, *found), 0.0, 0.0, (), finished)


def _continuation(user: Generator, ask: Ask, edits: Sequence[Edit], draft: Sequence[int]) -> Reading:
    tokenizer, most = user.tokenizer, user.model.config.max_len
    ids = tokenizer.specials.prompt(tokenizer.encode(ask.text))
    if ask.search == "forced":
        behind = (tokenizer.encode_on if ask.text else tokenizer.encode)(ask.target or "")
        prompt, found, finished = ids, behind, False
    else:
        n_tokens = min(ask.max_tokens, most - 1)
        prompt = ids[-(most - n_tokens) :]
        found, finished = _found_text(user, ask, edits, prompt, n_tokens, draft) if n_tokens else ([], False)
    whole = [*prompt, *found]
    kept = whole[-most:]
    left_out = len(ids) + len(found) - len(kept)
    note = (
        f"the first {left_out:,} tokens are left out: the model's context holds {most:,}" if left_out else ""
    )
    last = tokenizer.eos_id if finished else None
    prompt_tokens = max(1, len(prompt) - (len(whole) - len(kept)))
    return Reading((), tuple(kept), (*kept[1:], last), prompt_tokens, None, finished, note)


def _found_text(
    user: Generator, ask: Ask, edits: Sequence[Edit], prompt: list[int], n_tokens: int, draft: Sequence[int]
) -> tuple[list[int], bool]:
    if ask.search == "beam":
        best = search_text(user, edits, prompt, ask.prefix_ids, ask.beam or usual_beam(user), n_tokens)[0][0]
        return list(best.token_ids), best.finished
    prefix = ask.prefix_ids[: n_tokens - 1]
    with torch.no_grad(), edited(user.model, edits) as view:
        cache = view.start(1, len(prompt) + n_tokens + AHEAD)
        begin = (*prompt, *prefix)
        known = special_ids(user.tokenizer)
        found, finished = greedy_by_draft(view.step, cache, begin, draft, n_tokens - len(prefix), known)
    return [*prefix, *found], finished


def _some(ids: Sequence[int], text: str) -> None:
    if not ids or not text.strip():
        raise AttendoError("there is nothing to look at in an empty text; give a sentence")


def _note(n: int, kept: int, reason: str, of: str = "of the text") -> str:
    return "" if n == kept else f"{kept:,} of {n:,} tokens {of} are looked at, {reason}"
