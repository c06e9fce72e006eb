"""Random settings of a beam search."""

from attendo.decoding.beam import DecodingConfig


def random_config(rng):
    groups = int(rng.integers(1, 4))
    beam = groups * int(rng.integers(1, 4))
    return DecodingConfig(
        beam=beam,
        n_best=int(rng.integers(1, beam + 1)),
        beam_groups=groups,
        diversity_penalty=float(rng.choice([0.0, 0.5, 2.0])),
        length_norm="plain" if rng.integers(2) else "gnmt",
        length_penalty=float(rng.choice([-1.0, 0.0, 0.6, 2.0])),
        coverage_penalty=float(rng.choice([0.0, 0.0, 0.4])),
        min_length=int(rng.integers(0, 6)),
        no_repeat_ngram=int(rng.integers(0, 4)),
        refill=bool(groups == 1 and rng.integers(2)),
    )
