"""Seeds of texts that belong together: the lines of a file, the parts of a text. Each is a function of one seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from attendo.decoding.filters import SamplingConfig
from attendo.decoding.sampling import fresh_seed, splitmix64
from attendo.errors import AttendoError


def of_lines(config: SamplingConfig, first: int, n: int) -> list[SamplingConfig]:
    """One config for each of `n` lines of a file, from line number `first`; each with a seed of its own.

    It is a function of the config's seed (0 if it has none) and the line's number, so that a file can be gone on with
    anywhere: 53 bits of `splitmix64`, which every reader of JSON can hold.

    >>> [config.seed for config in of_lines(SamplingConfig(seed=7), first=3, n=2)]
    [7577217395468747, 5413335610565082]
    """
    numbers = torch.arange(first, first + n)
    seeds = splitmix64(torch.tensor(config.seed or 0), numbers) & (2**53 - 1)
    return [dataclasses.replace(config, seed=seed) for seed in seeds.tolist()]


def of_parts(config: SamplingConfig, n: int) -> list[SamplingConfig]:
    """One config for each of the `n` parts of a text: the first has the text's own seed, so one part is the text.

    >>> [config.seed for config in of_parts(SamplingConfig(seed=7), n=3)]
    [7, 3444597933762076, 6826321073220098]
    """
    return [config, *of_lines(config, 1, n - 1)][:n] if n else []


def of_texts(configs: SamplingConfig | Sequence[SamplingConfig], n: int) -> list[SamplingConfig]:
    """A config with a seed for each of `n` texts, from one for all or one for each; no seed becomes a fresh one.

    Raises AttendoError for another number of configs than texts, and for a stop text.

    >>> [config.seed for config in of_texts(SamplingConfig(seed=7), n=2)]
    [7, 7]
    """
    each = [configs] * n if isinstance(configs, SamplingConfig) else configs
    if len(each) != n:
        raise AttendoError(f"{len(each)} configs for {n} texts; give one for each, or one for all")
    if any(config.stop for config in each):
        raise AttendoError(
            "stop ends a text before a given one, and these come to their own end; leave it out"
        )
    return [
        config if config.seed is not None else dataclasses.replace(config, seed=fresh_seed())
        for config in each
    ]
