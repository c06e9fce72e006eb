"""Decode many sources: longest first, in batches of a token budget, handed back in the order they came."""

from collections.abc import Iterator, Sequence

import torch

from attendo.decoding.beam import DecodingConfig, beam_search
from attendo.decoding.step import CacheT, Hypothesis, SpecialIds, Start, Step


def source_batches(lengths: Sequence[int], config: DecodingConfig) -> list[list[int]]:
    """Which sources are decoded together: their numbers, longest source first, every number once.

    The padded tokens of a batch times the beam are at most `config.batch_tokens`, except where one
    source alone has more. Similar lengths come together, so little is padded and rows end together.

    >>> source_batches([2, 5, 5, 1], DecodingConfig(beam=1, batch_tokens=10))
    [[1, 2], [0, 3]]
    """
    batches: list[list[int]] = []
    room = 0
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            batches.append([])
            room = max(1, config.batch_tokens // (config.beam * max(1, lengths[number])))
        batches[-1].append(number)
        room -= 1
    return batches


def decode_as_found(
    sources: Sequence[Sequence[int]],
    start: Start[CacheT],
    step: Step[CacheT],
    config: DecodingConfig,
    special: SpecialIds,
    capacity: int,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield (number of the source, its hypotheses) as batches are done, longest sources first.

    `sources` are rows of token ids as the model reads them; `capacity` is the most tokens the model can
    hold per text. `start` and `step` are called under `torch.inference_mode`; a model in training
    mode is the caller's to put in evaluation mode.
    """
    for numbers in source_batches([len(source) for source in sources], config):
        rows = [sources[number] for number in numbers]
        limits = [config.max_length(len(row), capacity) for row in rows]
        with torch.inference_mode():  # closed before the yield: it must not leak into the caller's code
            cache = start(rows, config.beam, max(limits))
            found = beam_search(step, cache, limits, config, special, device)
        yield from zip(numbers, found, strict=True)


def decode(
    sources: Sequence[Sequence[int]],
    start: Start[CacheT],
    step: Step[CacheT],
    config: DecodingConfig,
    special: SpecialIds,
    capacity: int,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The hypotheses of every source, in the order of the sources; see `decode_as_found`."""
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for number, hypotheses in decode_as_found(sources, start, step, config, special, capacity, device):
        results[number] = hypotheses
    return results
