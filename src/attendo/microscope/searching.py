"""A search on a model with edits, with everything that it kept on its way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attendo.decoding.backends import DecoderBackend, eager_backend, eager_decoder
from attendo.decoding.beam import DecodingConfig, traced_beam_search
from attendo.decoding.native.compiled import Change
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.decoding.step import Hypothesis, SpecialIds
from attendo.decoding.trace import SearchTrace
from attendo.inference import Generator, Translator
from attendo.inference.alignment import attending_step
from attendo.inference.generation import special_ids
from attendo.inspecting.edits import Edit, LayerEdits, OffByRow, Replace, Temper, resolve
from attendo.microscope.seen import edited
from attendo.models import Model
from attendo.nn.attention import Attention
from attendo.nn.feedforward import FeedForward


def changes_of(model: Model, edits: Sequence[Edit]) -> dict[str, Change] | None:
    """What the edits change in each layer, by its path. None where a compiled model cannot be told them: attention that
    is hard, weights that are given, and what differs from row to row of a batch."""
    layers: dict[nn.Module, list[str]] = {}  # one that stands at several places is edited at all of them
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Attention | FeedForward):
            layers.setdefault(module, []).append(path)
    heads = {
        paths[0]: layer.n_heads if isinstance(layer, Attention) else None for layer, paths in layers.items()
    }
    own, found = resolve(edits, heads), dict[str, Change]()
    for layer, paths in layers.items():
        if paths[0] in own:
            change = _change(layer, own[paths[0]], model.config.d_model)
            if change is None:
                return None
            found |= dict.fromkeys(paths, change)
    return found


def _change(layer: nn.Module, own: LayerEdits, width: int) -> Change | None:
    if any(isinstance(edit, OffByRow | Replace) for edit in own.edits):
        return None
    if own.on_output:
        return Change(output=own.output(torch.zeros(width)))
    assert isinstance(layer, Attention)
    betas = torch.full((layer.n_heads,), layer.attend.inverse_temperature, dtype=torch.double)
    for edit in own.edits:
        if isinstance(edit, Temper):
            betas[slice(None) if edit.heads is None else list(edit.heads)] = edit.inverse_temperature
    if betas.max() > torch.finfo(torch.float).max:
        return None
    # what the edits do to mixed values is a gain and a sum, which those of zeros and of ones tell
    means = own.mixed(torch.zeros(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    sums = own.mixed(torch.ones(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    return Change(betas, (sums - means)[:, 0], means)


AHEAD = 16
"""Tokens of a draft that are tried at once: a step of so many costs hardly more than a step of one."""

PASSED_OVER = 3
"""Candidates without a place that a step's trace keeps, the likeliest."""

Found = tuple[list[Hypothesis], SearchTrace]
"""What a search found, the best first, and its whole tree."""

FormT = TypeVar("FormT", SearchBackend, DecoderBackend)


def config_of(translator: Translator, beam: int | None) -> DecodingConfig:
    """How `translate` searches with such a beam, the run's own if None; a beam of 1 has no groups."""
    if beam != 1:
        return translator.config(beam=beam)
    return dataclasses.replace(translator.decoding, beam=1, n_best=1, beam_groups=1)


def search_translation(
    translator: Translator,
    edits: Sequence[Edit],
    source: Sequence[int],
    prefix: Sequence[int],
    beam: int | None,
) -> Found:
    """Searches as `translate` does, with edits of its model: a source's ids, with their end.

    prefix: the ids that the translation begins with. beam: the run's own if None.
    """
    config, (first, *others) = config_of(translator, beam), translator.members()
    looks = config.coverage_penalty > 0  # at attention, which modules alone tell
    with torch.no_grad(), ExitStack() as until_found:
        backend = None if looks or others else _changed(first, translator.model, edits)
        if backend is None:
            view = until_found.enter_context(edited(translator.model, edits))
            backend = eager_backend(view, translator.tokenizer.pad_id)
            backend = dataclasses.replace(backend, attending=attending_step(view) if looks else None)
        backend = backend.with_decoder_prefix(translator.tokenizer.specials.begin)
        searcher = Searcher(backend, translator.special_ids, translator.longest + 1)
        return searcher.traced(source, config, prefix, PASSED_OVER)


def _changed(form: FormT, model: Model, edits: Sequence[Edit]) -> FormT | None:
    """The compiled form of a model with these edits, of the same weights; None where that cannot be."""
    changes = None if form.changed is None else changes_of(model, edits)
    return None if form.changed is None or changes is None else form.changed(changes)


def search_text(
    generator: Generator,
    edits: Sequence[Edit],
    prompt: Sequence[int],
    prefix: Sequence[int],
    beam: int,
    max_tokens: int,
) -> Found:
    """Searches for the likeliest text of at most so many tokens behind a prompt's ids, the begin id among them.

    Hypotheses rank by their log-probability. prefix: the ids that the text begins with.
    """
    known = special_ids(generator.tokenizer)
    config = DecodingConfig(beam=beam, n_best=beam, length_penalty=0.0)
    with torch.no_grad(), ExitStack() as until_found:
        changed = _changed(generator.reader(), generator.model, edits)
        model = changed or eager_decoder(until_found.enter_context(edited(generator.model, edits)))
        cache = model.start(beam, len(prompt) + max_tokens)
        if len(prompt) > 1:  # the search itself feeds the last of them
            model.step(torch.tensor([list(prompt[:-1])] * beam, device=generator.device), cache)
        special = SpecialIds(bos_id=prompt[-1], eos_id=known.eos_id, never=known.never)
        hypotheses, traces = traced_beam_search(
            model.step,
            cache,
            [max_tokens],
            config,
            special,
            generator.device,
            prefixes=[prefix[: max_tokens - 1]] if prefix else None,
            n_passed_over=PASSED_OVER,
        )
    return hypotheses[0], traces[0]


def greedy_by_draft(
    step: Callable[[Tensor, Any], Tensor],
    cache: Any,
    begin: Sequence[int],
    draft: Sequence[int],
    limit: int,
    special: SpecialIds,
) -> tuple[list[int], bool]:
    """The greedy text of at most `limit` tokens behind `begin`, its end not among them, and whether it came to an end.

    step: logits of all positions fed. draft: tokens that the text may well have; they are tried many at a time, and
    what is found does not depend on them (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
    Decoding", for the greedy case). The cache holds what stands before `begin`.
    """
    found: list[int] = []
    device, fed, at = cache.lengths.device, list(begin), 0
    while len(found) < limit:
        guess = list(draft[at : at + min(AHEAD, limit - len(found) - 1)])
        logits = step(torch.tensor([[*fed, *guess]], device=device), cache)[0, len(fed) - 1 :]
        logits[:, list(special.never)] = -torch.inf
        best = logits.argmax(-1).tolist()
        right = next((n for n, token in enumerate(guess) if token != best[n]), len(guess))
        cache.advance(right - len(guess))  # the guesses behind the first wrong one were never there
        for token in best[: right + 1]:
            if token == special.eos_id:
                return found, True
            found.append(token)
        fed, at = best[right : right + 1], _going_on(draft, at + right, best[right])
    return found, False


def _going_on(draft: Sequence[int], at: int, token: int) -> int:
    """Where a draft goes on once `token` stands in place of its token `at`: behind the next such one, if it is near."""
    near = list(draft[at : at + AHEAD])
    return at + near.index(token) + 1 if token in near else at + 1
