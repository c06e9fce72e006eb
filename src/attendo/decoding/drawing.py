"""Draw the texts of many sources: the batches of a search, with the draws of sampling on the same start and step."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from attendo.decoding.candidates import log_probs_of
from attendo.decoding.constraints import Constraints
from attendo.decoding.engine import source_batches
from attendo.decoding.norms import length_norm
from attendo.decoding.options import DecodingConfig
from attendo.decoding.sampling import Drawn, Sampling, SamplingConfig
from attendo.decoding.step import CacheT, Hypothesis, SpecialIds, Start, Step


def draw(
    sources: Sequence[Sequence[int]],
    configs: Sequence[SamplingConfig],
    start: Start[CacheT],
    step: Step[CacheT],
    search: DecodingConfig,
    special: SpecialIds,
    capacity: int,
    device: torch.device | str = "cpu",
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    """One text drawn for each source by its own config and seed, whatever is drawn beside it, in the sources' order.

    start, step, special, capacity: as in `engine.decode`. search: gives the most tokens that a text may have, of which
    the config's `max_tokens` may leave fewer; the norm of the score; and the size of a batch. prefixes: the tokens that
    each text begins with. They count as drawn: what follows is what would have followed, had they been. Raises
    AttendoError for a prefix that fills its text, before anything is drawn, and as `Sampler.draw`.
    """
    starts = [()] * len(sources) if prefixes is None else prefixes
    limits = [search.max_length(len(source), capacity) for source in sources]
    Constraints(limits, special, prefixes=starts)  # refuses what cannot begin a text
    limited = [
        replace(config, max_tokens=min(config.max_tokens, limit))
        for config, limit in zip(configs, limits, strict=True)
    ]
    alone = replace(search, beam=1, n_best=1, beam_groups=1)
    found: list[list[Drawn]] = [[] for _ in sources]
    for length in sorted({len(prefix) for prefix in starts}):  # of one length they are read in step
        alike = [number for number, prefix in enumerate(starts) if len(prefix) == length]
        for places in source_batches([len(sources[number]) for number in alike], alone):
            numbers = [alike[place] for place in places]
            batch = _draw_batch(
                [sources[number] for number in numbers],
                [limited[number] for number in numbers],
                [[special.bos_id, *starts[number]] for number in numbers],
                start,
                step,
                special,
                device,
            )
            for number, tokens in zip(numbers, batch, strict=True):
                found[number] = tokens
    return [_hypothesis(tokens, search, special) for tokens in found]


def _draw_batch(
    sources: Sequence[Sequence[int]],
    configs: Sequence[SamplingConfig],
    prompts: Sequence[Sequence[int]],
    start: Start[CacheT],
    step: Step[CacheT],
    special: SpecialIds,
    device: torch.device | str,
) -> list[list[Drawn]]:
    """The tokens of each text, those of its prefix too; all prompts have one length."""
    found: list[list[Drawn]] = [[] for _ in sources]
    n_drawn = len(prompts[0]) - 1
    ids = torch.tensor(prompts, device=device)
    with torch.inference_mode():
        room = max(n_drawn, *(config.max_tokens for config in configs), 1)
        cache = start(sources, 1, room)
        for place in range(n_drawn):
            log_probs = log_probs_of(step(ids[:, place : place + 1], cache), ids[:, place + 1]).tolist()
            for text, prompt, log_prob in zip(found, prompts, log_probs, strict=True):
                text.append(Drawn(prompt[place + 1], log_prob))
    sampling = Sampling(step, cache, prompts, configs, special, device, [n_drawn] * len(prompts))
    while sampling.going_on:
        for number, token in sampling.advance():
            found[number].append(token)
    return found


def _hypothesis(tokens: Sequence[Drawn], search: DecodingConfig, special: SpecialIds) -> Hypothesis:
    ids = tuple(token.token_id for token in tokens)
    log_probs = tuple(token.log_prob for token in tokens)
    finished = ids[-1:] == (special.eos_id,)
    norm = length_norm(max(1, len(ids)), search.length_penalty, search.length_norm)
    log_prob = math.fsum(log_probs)
    return Hypothesis(ids[:-1] if finished else ids, log_prob, log_prob / norm, log_probs, finished)
