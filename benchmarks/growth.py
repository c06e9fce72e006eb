"""Cost of a decoding step after many tokens, and memory of the cache of a search.

    python benchmarks/growth.py [--form float32|int8|plain] [--rounds 9]

Time: a decoder-only model and an encoder-decoder (3 layers, width 256, 8,000 words, 20 source tokens), with one text
and with four beams of one source, after 64 to 2,048 tokens. In each round, some steps are timed at each length, one
length after the other. The figures are medians over the rounds, in CPU milliseconds per step with one thread:

- step: the whole step
- attention: the part of the step in which self-attention reads the keys and values. In the model's own modules
  (`--form plain`), the call is timed. In compiled form, it is the time of a step at this length minus the time of a
  step at length 0, in a model with equal heads that is otherwise as narrow as possible
- rest: step minus attention. The rest must not grow: its largest value is at most 1.2 times the smallest
- cold: the rest of a step after 64 tokens, if as many bytes as the keys and values of this length were read right
  before. Reading them removes the weights from the CPU caches, so the rest of a step waits for memory. This wait is
  also a cost of attention. `growth when as cold` is the largest rest / cold
- reorder: one reordering of the four beams, in which two beams are swapped. The reordering is not part of the step

Memory: bytes of all tensors of a cache, each storage once, for 1, 2, 4 and 8 beams of 8 sources and for capacities
from 64 to 2,048. `own` (keys and values of the texts) is linear in both numbers. `source` (keys and values of the
sources) depends on neither.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from turns import listed, shared_options, store

from attendo.decoding.backends import best_backend
from attendo.decoding.native.compiled import CompiledModel, SlotKVCache
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig

LENGTHS, VOCABULARY, SOURCE_TOKENS = (64, 256, 512, 1024, 2048), 8000, 20
BEAMS, MOST_GROWTH = (1, 2, 4, 8), 1.2


@dataclass
class Searched:
    """A model for search: its step, a function (sources, beam, capacity) → an empty cache, and its modules, if any."""

    start: Any
    step: Any
    modules: Any


def searched(kind, form, narrow=False):
    """Build a random model. `kind` is "decoder" or "encoder-decoder", and `form` is "plain", "float32" or "int8".

    With `narrow`, everything except the heads is as narrow as possible.
    """
    torch.manual_seed(1)
    sizes = {"vocab_size": 64 if narrow else VOCABULARY, "max_len": 4096}
    sizes |= {"d_model": 16, "d_ff": 16, "head_dim": 64} if narrow else {}
    src = torch.randint(4, sizes["vocab_size"], (64, SOURCE_TOKENS), generator=torch.Generator().manual_seed(1))
    if kind == "decoder":
        made = DecoderLM(ModelConfig(architecture=kind, n_encoder_layers=0, n_decoder_layers=3, **sizes)).eval()
        if form == "plain":
            return Searched(lambda n, beam, room: made.start(n * beam, room), made.step, made)
        compiled = CompiledModel(made, bits=8 if form == "int8" else 32)
        return Searched(lambda n, beam, room: compiled.start([[]] * n, beam, room), compiled.step, None)
    made = EncoderDecoder(ModelConfig(n_encoder_layers=3, n_decoder_layers=3, **sizes)).eval()
    if form == "plain":
        return Searched(lambda n, beam, room: made.start(src[:n], None, beam, room), made.step, made)
    member = best_backend(made, 0, bits=8 if form == "int8" else 32)
    if member.why is not None:
        raise SystemExit(f"there is no compiled form here: {member.why}")
    return Searched(lambda n, beam, room: member.start(src[:n].tolist(), beam, room), member.step, None)


class AttentionClock:
    """Clock of the CPU seconds in the self-attention of a decoder. For a compiled model (None), it returns 0."""

    def __init__(self, model):
        self.seconds = 0.0
        for block in model.decoder.blocks if model is not None else ():
            attend = block.self_attention.attend
            attend.register_forward_pre_hook(self._begin)
            attend.register_forward_hook(self._end)

    def _begin(self, module, inputs):
        self._began = time.process_time()

    def _end(self, module, inputs, output):
        self.seconds += time.process_time() - self._began

    def read(self):
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def filled(model, beam, length, capacity):
    """Return a cache in which each row has `length` tokens."""
    cache = model.start(1, beam, capacity)
    for first in range(0, length, 64):
        model.step(torch.full((beam, min(64, length - first)), 5), cache)
    return cache


@torch.inference_mode()
def step_times(model, narrow, beam, rounds, steps):
    """Return the median seconds by length: of a step, its attention, a reordering, and the rest of a cold step."""
    clock = AttentionClock(model.modules)
    capacity = max(LENGTHS) + (rounds + 1) * max(steps + 1, 2 * len(LENGTHS))
    caches = {length: filled(model, beam, length, capacity) for length in LENGTHS}
    narrow_caches = {length: filled(narrow, beam, length, capacity) for length in LENGTHS}
    control = filled(model, beam, LENGTHS[0], capacity)
    tokens, swap = torch.full((beam, 1), 7), torch.arange(beam)
    swap[:2] = swap[:2].flip(0)
    read = {length: torch.ones(parts_of(cache)[0] * length // capacity // 4) for length, cache in caches.items()}
    spent = {length: {"step": [], "attention": [], "reorder": [], "cold": []} for length in LENGTHS}
    for number in range(rounds + 1):
        nothing = seconds(narrow, tokens, narrow.start(1, beam, capacity), steps)
        for length, cache in caches.items():
            model.step(tokens, cache)  # loads the data that the next step reads into the caches
            clock.read()
            step = seconds(model, tokens, cache, steps)
            attention = clock.read() / steps
            if model.modules is None:
                narrow.step(tokens, narrow_caches[length])
                attention = seconds(narrow, tokens, narrow_caches[length], steps) - nothing
            model.step(tokens, control)
            read[length].sum()
            clock.read()
            cold = seconds(model, tokens, control, 1) - clock.read()
            began = time.process_time()
            if beam > 1:
                cache.reorder(swap)
            reordered = time.process_time() - began
            if number:  # the first round is a warm-up
                figures = step, attention, reordered, cold
                for name, value in zip(spent[length], figures, strict=True):
                    spent[length][name].append(value)
    return {
        length: {name: statistics.median(values) for name, values in parts.items()} for length, parts in spent.items()
    }


def seconds(model, tokens, cache, steps):
    """Return the CPU seconds per step, as the mean over `steps` steps."""
    began = time.process_time()
    for _ in range(steps):
        model.step(tokens, cache)
    return (time.process_time() - began) / steps


def growth_of(times):
    """Return milliseconds by length, the growth of the rest, and whether the growth is within the limit.

    >>> times = {1000 * n: {"step": (n + 2) * 1e-3, "attention": n * 1e-3, "cold": 2e-3} for n in (1, 2)}
    >>> found = growth_of(times)
    >>> found["growth of the rest"], found["growth when as cold"], found["flat"]
    (1.0, 1.0, True)
    """
    rows = {length: {name: 1000 * value for name, value in parts.items()} for length, parts in times.items()}
    for row in rows.values():
        row["rest"] = row["step"] - row["attention"]
    rests = [row["rest"] for row in rows.values()]
    growth = max(rests) / min(rests)
    as_cold = max(row["rest"] / row["cold"] for row in rows.values())
    return {
        "milliseconds": {
            length: {name: round(value, 3) for name, value in row.items()} for length, row in rows.items()
        },
        "growth of the rest": round(growth, 3),
        "growth when as cold": round(as_cold, 3),
        "flat": growth <= MOST_GROWTH,
        "flat when as cold": as_cold <= MOST_GROWTH,
    }


def storages(tensors):
    """Return the bytes of the storages of tensors and arrays. Each storage is counted once.

    >>> numbers = torch.zeros(100)
    >>> storages([numbers, numbers[:10], torch.zeros(5, dtype=torch.int32).numpy()])
    420
    """
    found = {}
    for tensor in tensors:
        storage = torch.as_tensor(tensor).untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def parts_of(cache):
    """Return the bytes of a cache: of the texts' keys, values and indices, and of the sources' keys and values."""
    if isinstance(cache, SlotKVCache):
        return storages([cache.cache, cache.slots]), storages([cache.memory])
    own = [tensor for block in cache.blocks for tensor in (block.key, block.value)]
    return storages(own), storages(
        [tensor for block in cache.blocks for tensor in (block.memory_key, block.memory_value)]
    )


@torch.inference_mode()
def held(model, sources, beam, capacity, steps=3):
    """Return the bytes of a cache after some steps and reorderings: for the texts and for the sources."""
    cache = model.start(sources, beam, capacity)
    turned = torch.arange(sources * beam).view(sources, beam).flip(1).flatten()
    for _ in range(steps):
        model.step(torch.full((sources * beam, 1), 7), cache)
        cache.reorder(turned)
    own, source = parts_of(cache)
    return {"own": own, "source": source}


def memory(kind, form):
    """Return the bytes by beam and by capacity, and whether they are linear as required."""
    model = searched(kind, form)
    by_beam = {beam: held(model, 8, beam, 64) for beam in BEAMS}
    by_capacity = {capacity: held(model, 8, 1, capacity) for capacity in LENGTHS}
    places = [*((beam, found) for beam, found in by_beam.items())]
    places += [(capacity / LENGTHS[0], found) for capacity, found in by_capacity.items()]
    first = by_beam[1]
    return {
        "by_beam": by_beam,
        "by_capacity": by_capacity,
        "own is linear": all(found["own"] == times * first["own"] for times, found in places),
        "source is constant": all(found["source"] == first["source"] for _, found in places),
    }


def main():
    """Parse the options, run the measurements, and print and store the results."""
    parser = shared_options(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4, help="at each length, in each round")
    parser.add_argument("--form", choices=("plain", "float32", "int8"), default="float32")
    parser.add_argument("--kinds", type=listed(), default=["decoder", "encoder-decoder"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {"form": options.form, "rounds": options.rounds, "time": {}, "bytes": {}}
    for kind in options.kinds:
        for beam in (1, 4):
            models = (searched(kind, options.form, narrow) for narrow in (False, True))
            times = step_times(*models, beam, options.rounds, options.steps)
            result["time"][f"{kind}, {beam} beams"] = growth_of(times)
        result["bytes"][kind] = memory(kind, options.form)
    store("growth", result, options.out)


if __name__ == "__main__":
    main()
