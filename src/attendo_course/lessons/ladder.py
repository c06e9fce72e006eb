"""The attention ladder: counting letters, their difference, a signal, three signals (tasks T06a to T06d)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.models import parameter_count
from attendo.nn.attention import Attention
from attendo.nn.blocks import Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, xavier
from attendo.nn.positions import LearnedPositions
from attendo_course.book import passage, translated
from attendo_course.lessons import arrays
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.pictures import Picture
from attendo_course.weather_chain import entropy

SYMBOLS = " ABC^"
"""The symbols by id: a blank, the letters, and the mark at the beginning."""
N_LETTERS = 3
BEGIN = 4


def one_hot(ids: Int[np.ndarray, "*batch"], n_symbols: int) -> Float[Tensor, "*batch symbols"]:
    """Return a one-hot vector for each id.

    >>> one_hot(np.array([1]), 3)
    tensor([[0., 1., 0.]])
    """
    return F.one_hot(torch.from_numpy(ids), n_symbols).float()


def letter_counts(ids: Int[np.ndarray, "rows length"]) -> Int[np.ndarray, "rows 3"]:
    """Return the counts of A, B and C in each row.

    >>> letter_counts(np.array([[1, 0, 1, 3]])).tolist()
    [[2, 0, 1]]
    """
    return np.stack([(ids == letter).sum(1) for letter in range(1, N_LETTERS + 1)], axis=1)


def counting(lengths: Sequence[int], *, begin: bool, difference: bool = False) -> arrays.Draw:
    """Return a function that draws examples of tasks T06a and T06b.

    The input x contains letters or blanks as one-hot vectors `[rows, length, 4]`. The targets are the counts of A, B
    and C. All rows of a batch have the same length, drawn from `lengths`. With `begin`, a mark precedes the first
    letter, and the vectors have 5 entries. With `difference`, the fourth target is |count of A - count of B|.
    """

    def draw(rng: np.random.Generator, n: int) -> arrays.Examples:
        length = int(rng.choice(np.asarray(lengths)))
        ids = rng.integers(0, N_LETTERS + 1, (n, length))
        targets = letter_counts(ids)
        if difference:
            targets = np.column_stack([targets, np.abs(targets[:, 0] - targets[:, 1])])
        if begin:
            ids = np.column_stack([np.full(n, BEGIN), ids])
        x = one_hot(ids, len(SYMBOLS) if begin else BEGIN)
        return arrays.Examples({"x": x}, torch.from_numpy(targets))

    return draw


def signals(n_signals: int, length: int) -> arrays.Draw:
    """Return a function that draws examples of tasks T06c and T06d: the first letters select the letters to count.

    The input x has the shape `[rows, n_signals + length, 3]` and contains no blanks. The targets `[rows, n_signals]`
    contain one count per signal.
    """

    def draw(rng: np.random.Generator, n: int) -> arrays.Examples:
        ids = rng.integers(0, N_LETTERS, (n, n_signals + length))
        targets = (ids[:, :n_signals, None] == ids[:, None, n_signals:]).sum(-1)
        return arrays.Examples({"x": one_hot(ids, N_LETTERS)}, torch.from_numpy(targets))

    return draw


def text(x: Float[Tensor, "length symbols"]) -> str:
    """Return the letters of one row. In tasks with signals, there is no blank, and id 0 is A.

    >>> text(one_hot(np.array([4, 1, 0]), 5)), text(one_hot(np.array([0, 2]), 3))
    ('^A ', 'AC')
    """
    first = 1 if x.shape[-1] == N_LETTERS else 0
    return "".join(SYMBOLS[first + int(i)] for i in x.argmax(-1))


def count_distribution(length: int, share: float) -> Float[np.ndarray, " counts"]:
    """Return P(n = 0..length): the binomial distribution of a letter's count among `length` letters.

    >>> p = count_distribution(10, 1 / 4)
    >>> float(entropy(p).round(3)), round(float(p.max()), 3), float(entropy(count_distribution(5, 1 / 4)).round(3))
    (1.714, 0.282, 1.342)
    """
    return np.array([math.comb(length, n) * share**n * (1 - share) ** (length - n) for n in range(length + 1)])


def difference_distribution(length: int) -> Float[np.ndarray, " counts"]:
    """Return P(|count of A - count of B| = 0..length), where A, B, C and the blank are equally likely.

    >>> difference_distribution(1).tolist()
    [0.5, 0.5]
    """
    probs = np.zeros(length + 1)
    for (a, b, _), p in _compositions(length, (0.25, 0.25, 0.5)):
        probs[abs(a - b)] += p
    return probs


def unordered_signal_limit(length: int) -> tuple[float, float]:
    """Return the loss and the accuracy of the best guess in task T06c without the order of the letters.

    Each of the 1 + length letters may have been the first letter. If letter l occurs k_l times, l was the signal with
    probability k_l / (1 + length), and the answer is k_l - 1.

    >>> [round(value, 4) for value in unordered_signal_limit(1)]
    [0.0, 1.0]
    """
    loss = accuracy = 0.0
    for counts, p in _compositions(length + 1, (1 / 3, 1 / 3, 1 / 3)):
        answers = np.zeros(length + 1)
        for count in counts:
            if count:
                answers[count - 1] += count / (length + 1)
        loss += p * float(entropy(answers))
        accuracy += p * float(answers.max())
    return loss, accuracy


def _compositions(total: int, shares: tuple[float, float, float]) -> Iterator[tuple[tuple[int, int, int], float]]:
    """Yield all triples of counts with this sum, and their probability (multinomial)."""
    for a in range(total + 1):
        for b in range(total + 1 - a):
            c = total - a - b
            ways = math.comb(total, a) * math.comb(total - a, b)
            yield (a, b, c), ways * shares[0] ** a * shares[1] ** b * shares[2] ** c


Start = Literal["drawn", "zero", "none"]
D_MODEL = 64
N_ANSWERS = 4
"""The number of answers in task T06b: the counts of A, B and C, and a difference."""


class NormOnly(nn.Module):
    """A module that computes norm(f(x)). It replaces a `Residual` if the queries are not added."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(
        self, x: Float[Tensor, "*batch d_query"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the normalized output of `sublayer`, in the width of this output."""
        return self.norm(sublayer(x))


class SetEncoder(nn.Module):
    """A stack of encoder blocks over vectors, with optional positions."""

    def __init__(self, embedding: nn.Linear, positions: LearnedPositions | None, encoder: Encoder):
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.encoder = encoder

    def forward(self, x: Float[Tensor, "batch len d_in"]) -> Float[Tensor, "batch len d_model"]:
        """Return the memory to which the queries attend."""
        h, n = self.embedding(x), x.shape[1]
        if self.positions is not None:
            h = h + self.positions(torch.arange(n, device=x.device), n)
        return self.encoder(h)


class QueryModel(nn.Module):
    """A model that computes one answer per query from a set of vectors by cross-attention.

    The answers can attend to each other by self-attention. `queries` has the shape `[n_queries, d_query]` and is
    trained if it is a Parameter. `encoder` transforms the vectors first (default: no encoder).
    """

    queries: Tensor

    def __init__(
        self,
        queries: Float[Tensor, "queries d_query"],
        cross_attention: Attention,
        cross_residual: Residual | NormOnly,
        output_proj: nn.Linear,
        *,
        encoder: SetEncoder | None = None,
        self_attention: Attention | None = None,
        self_residual: Residual | None = None,
    ):
        super().__init__()
        if isinstance(queries, nn.Parameter):
            self.queries = queries
        else:
            self.register_buffer("queries", queries)
        self.encoder = nn.Identity() if encoder is None else encoder
        self.cross_attention = cross_attention
        self.cross_residual = cross_residual
        self.self_attention = self_attention
        self.self_residual = self_residual
        self.output_proj = output_proj

    def hidden(self, x: Float[Tensor, "batch len d_in"]) -> Float[Tensor, "batch queries d_model"]:
        """Return the vector from which the answer to each query is computed."""
        memory = self.encoder(x)
        queries = self.queries.expand(len(x), -1, -1)
        found = self.cross_residual(queries, lambda q: self.cross_attention(q, memory))
        if (attention := self.self_attention) is not None and self.self_residual is not None:
            found = self.self_residual(found, lambda h: attention(h, h))
        return found

    def forward(self, x: Float[Tensor, "batch len d_in"]) -> Float[Tensor, "batch queries classes"]:
        """Return the logits of each answer."""
        return self.output_proj(self.hidden(x))


def without_projection(linear: nn.Linear) -> None:
    """Replace a square projection by the identity, and exclude it from training.

    >>> linear = nn.Linear(2, 2)
    >>> without_projection(linear)
    >>> linear(torch.tensor([1.0, 2.0])), linear.weight.requires_grad
    (tensor([1., 2.]), False)
    """
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    linear.requires_grad_(False)


def bare_attention(d_model: int) -> Attention:
    """Return softmax(xxᵀ/√d)x as an attention module: one head without projections, as in attention-primer."""
    attention = Attention(d_model, 1, out_proj=nn.Identity())
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
        without_projection(linear)
    return attention


def counter(n_symbols: int, n_queries: int, n_classes: int, *, projected: bool) -> QueryModel:
    """Return the model of T06a in attention-primer: cross-attention from trainable queries, a residual and a norm.

    The queries start at 0. With `projected`, the model has the usual projections of query, key, value and output.
    Without `projected`, the model has a single projection, whose output is both key and value, as in
    attention-primer.
    """
    cross = Attention(D_MODEL, 1, d_memory=n_symbols, out_proj=None if projected else nn.Identity())
    if not projected:
        cross.v_proj = cross.k_proj
    model = QueryModel(nn.Parameter(torch.zeros(n_queries, D_MODEL)), cross, _residual(), nn.Linear(D_MODEL, n_classes))
    xavier(model)
    if not projected:
        without_projection(cross.q_proj)
    return model


def one_hot_counter(n_symbols: int, letters: range, n_classes: int) -> QueryModel:
    """Return the model of T06a in Shumi-Note: one-hot vectors of the letters as queries, a norm, no residual."""
    cross = Attention(n_symbols, 1, head_dim=D_MODEL, d_memory=n_symbols, out_proj=nn.Linear(D_MODEL, D_MODEL))
    queries = torch.eye(n_symbols)[list(letters)]
    model = QueryModel(queries, cross, NormOnly(nn.LayerNorm(D_MODEL)), nn.Linear(D_MODEL, n_classes))
    xavier(model)
    return model


def difference_counter(n_symbols: int, n_classes: int, *, self_attention: bool) -> QueryModel:
    """Return the model of T06b: the counter with a fourth query, with or without self-attention among the answers."""
    model = counter(n_symbols, N_ANSWERS, n_classes, projected=False)
    if self_attention:
        model.self_attention, model.self_residual = bare_attention(D_MODEL), _residual()
    return model


def signal_counter(
    n_signals: int, length: int, n_classes: int, *, n_heads: int | None, positions: Start = "drawn"
) -> QueryModel:
    """Return the model of T06c and T06d: one encoder block on letters and positions, one trainable query per signal.

    The inner width of the feed-forward network is twice the model width. If `n_heads` is None, the attention has one
    head and no projections (`bare_attention`). Positions are trainable vectors that start as N(0, 1/d) ("drawn") or,
    as in attention-primer, at 0 ("zero"). With "none", there are no positions.
    """

    def attention() -> Attention:
        return bare_attention(D_MODEL) if n_heads is None else Attention(D_MODEL, n_heads)

    place = None if positions == "none" else LearnedPositions(D_MODEL, n_signals + length)
    block = EncoderBlock(attention(), FeedForward(D_MODEL, 2 * D_MODEL), _residual)
    model = QueryModel(
        nn.Parameter(torch.zeros(n_signals, D_MODEL)),
        attention(),
        _residual(),
        nn.Linear(D_MODEL, n_classes),
        encoder=SetEncoder(nn.Linear(3, D_MODEL), place, Encoder([block])),
    )
    frozen = [m for m in model.modules() if isinstance(m, nn.Linear) and not m.weight.requires_grad]
    xavier(model)
    for linear in frozen:
        without_projection(linear)
    if place is not None and positions == "zero":
        nn.init.zeros_(place.weight)
    return model


def _residual() -> Residual:
    return Residual(nn.LayerNorm(D_MODEL), norm_first=False)


LENGTH = 10
BATCH_ROWS = 100
DECAY_SHARE = 0.25  # the sources keep the rate constant; their last losses jump
TEST_ROWS = 2000
TEST_SEED = 2**31  # of the test rows; no run draws from it
TRAINING_LOSS = translated("Training loss")
MODEL, LOSS = translated("model"), translated("loss (nats)")
EXACT, ACCURACY = translated("all right"), translated("right")
NOTHING_SEEN = translated("letters not seen (exact)")


@dataclass(frozen=True)
class Contender:
    """A model and its training settings. `name` labels the curves and is the same in all languages."""

    name: str
    build: Callable[[], QueryModel]
    draw: arrays.Draw
    steps: int
    learning_rate: float

    def trained(self, seed: int) -> arrays.Training:
        """Train the model on `BATCH_ROWS` new rows per step, and test it on `TEST_ROWS` other rows."""
        test = self.draw(np.random.default_rng(TEST_SEED), TEST_ROWS)
        task = arrays.ArrayTask(self.draw, test, BATCH_ROWS)
        model = arrays.seeded(self.build, seed)
        return arrays.trained(model, task, self.steps, self.learning_rate, seed, decay_share=DECAY_SHARE)


def contest(contenders: Sequence[Contender], seeds: int) -> dict[str, list[arrays.Training]]:
    """Train each model with seeds 1, 2, ..., and return the runs by model name."""
    return {c.name: [c.trained(seed) for seed in range(1, seeds + 1)] for c in contenders}


def teach(options: Options) -> Iterator[Piece]:
    """Yield the four steps of the ladder in order."""
    for step in (counting_step, difference_step, signal_step, several_signals_step):
        yield from step(options)


def counting_step(options: Options) -> Iterator[Piece]:
    """Yield task T06a: the models of the sources count A, B and C, with and without a mark at the beginning."""
    yield passage("ladder.counting_step", LENGTH=LENGTH)
    contenders = counters(options.steps(2000))
    runs = contest(contenders, options.seeds or 2)
    by_length = {c.name: [_exact_by_length(c.draw, run.model) for run in runs[c.name]] for c in contenders}
    chance = count_distribution(LENGTH, 1 / 4)
    rows: list[tuple[Cell, ...]] = [(NOTHING_SEEN, f"{entropy(chance):.3f}", f"{chance.max():.3f}", "", "", "")]
    for name, of in runs.items():
        cells = [arrays.mean_and_deviation(values) for values in zip(*by_length[name], strict=True)]
        rows.append((name, *_cells(of, "loss", "accuracy"), *cells))
    lengths = [translated("{EXACT.en}, length {n}", EXACT=EXACT, n=n) for n in _lengths()]
    yield Table("counting", translated("Counting letters"), (MODEL, LOSS, ACCURACY, *lengths), tuple(rows))
    yield arrays.loss_curves(TRAINING_LOSS, runs)
    last = contenders[-1]
    yield _letters_map(runs[last.name][0].model, last.draw)
    bare, marked = (
        np.mean([exact for name, exact in by_length.items() if name.endswith("^") == mark], axis=(0, 1))
        for mark in (False, True)
    )
    said = passage(
        "ladder.counting_step-2",
        change=_doubling(runs["K=V"][0].model, contenders[0].draw),
        bare=bare,
        marked=marked,
        LENGTH=LENGTH,
    )
    yield Conclusion(said)


def counters(steps: int) -> list[Contender]:
    """Return the models of T06a, for training at length 10 with a learning rate up to 1e-2 (the source's rate)."""
    classes = LENGTH + 2  # 0 to 11, for the longest rows they are tested on
    letters = range(1, N_LETTERS + 1)

    def builders(n: int) -> list[tuple[str, Callable[[], QueryModel], float]]:
        return [
            ("K=V", lambda: counter(n, N_LETTERS, classes, projected=False), 1e-2),
            ("QKV", lambda: counter(n, N_LETTERS, classes, projected=True), 3e-3),
            ("one-hot", lambda: one_hot_counter(n, letters, classes), 1e-2),
        ]

    return [
        Contender(name + " ^" * begin, build, counting([LENGTH], begin=begin), steps, rate)
        for begin in (False, True)
        for name, build, rate in builders(len(SYMBOLS) if begin else BEGIN)
    ]


def difference_step(options: Options) -> Iterator[Piece]:
    """Yield task T06b, a fourth answer |A - B|, with and without self-attention among the answers."""
    yield passage("ladder.difference_step")
    draw = counting([LENGTH], begin=True, difference=True)
    steps, build = options.steps(1000), partial(difference_counter, len(SYMBOLS), LENGTH + 2)
    contenders = [
        Contender("no self", partial(build, self_attention=False), draw, steps, 1e-2),
        Contender("self", partial(build, self_attention=True), draw, steps, 1e-2),
    ]
    runs = contest(contenders, options.seeds or 2)
    counts, difference = count_distribution(LENGTH, 1 / 4), difference_distribution(LENGTH)
    chance = (3 * entropy(counts) + entropy(difference)) / 4
    rows: list[tuple[Cell, ...]] = [(NOTHING_SEEN, f"{chance:.3f}", "", f"{difference.max():.3f}")]
    right = {name: [_fourth_right(run.model, draw) for run in of] for name, of in runs.items()}
    for name, of in runs.items():
        rows.append((name, *_cells(of, "loss", "exact"), arrays.mean_and_deviation(right[name])))
    columns = (MODEL, LOSS, EXACT, translated("difference right"))
    yield Table("difference", translated("Counts and a difference"), columns, tuple(rows))
    test = draw(np.random.default_rng(TEST_SEED), TEST_ROWS)
    each = arrays.recorded_weights(runs["self"][0].model, "self_attention", **test.inputs)
    weights = each[:, 0].mean(0).double().numpy()
    answers = ("A", "B", "C", "|A-B|")
    title = translated("Self-attention among the answers, mean of the test rows")
    yield Picture("matrix", title, weights, answers, answers)
    share = float(weights[3, :2].sum())
    said = passage(
        "ladder.difference_step-2",
        share=share,
        compared=translated("more than") if share > 0.5 else translated("no more than"),
        own=np.mean(right["self"]),
        without=np.mean(right["no self"]),
    )
    yield Conclusion(said)


SignalModel = tuple[str, int | None, Start]
"""The name, the number of heads and the positions of a `signal_counter`."""


def signal_contenders(n_signals: int, kinds: Sequence[SignalModel], steps: int) -> list[Contender]:
    """Return the models of T06c or T06d."""
    draw, build = signals(n_signals, LENGTH), partial(signal_counter, n_signals, LENGTH, LENGTH + 1)
    return [
        Contender(name, partial(build, n_heads=n_heads, positions=positions), draw, steps, 1e-3)
        for name, n_heads, positions in kinds
    ]


def signal_step(options: Options) -> Iterator[Piece]:
    """Yield task T06c, in which the first letter selects the letter to count, with and without positions."""
    yield passage("ladder.signal_step", LENGTH=LENGTH)
    kinds: tuple[SignalModel, ...] = (("no positions", 1, "none"), ("positions", 1, "drawn"))
    contenders = signal_contenders(1, kinds, options.steps(2000))
    runs = contest(contenders, options.seeds or 1)
    chance, (loss, accuracy) = count_distribution(LENGTH, 1 / 3), unordered_signal_limit(LENGTH)
    unordered = translated("letters without their order (exact)")
    rows: list[tuple[Cell, ...]] = [
        (NOTHING_SEEN, f"{entropy(chance):.3f}", f"{chance.max():.3f}"),
        (unordered, f"{loss:.3f}", f"{accuracy:.3f}"),
    ]
    rows += [(name, *_cells(of, "loss", "accuracy")) for name, of in runs.items()]
    yield Table("signal", translated("A signal"), (MODEL, LOSS, ACCURACY), tuple(rows))
    yield arrays.loss_curves(TRAINING_LOSS, runs)
    model = cast(QueryModel, runs["positions"][0].model)
    places = cast(SetEncoder, model.encoder).positions
    assert places is not None, "this contender has positions"
    norms = places.weight.detach().norm(dim=1).numpy()
    names = tuple(str(i) for i in range(LENGTH + 1))
    title = translated("Length of the vector of each position")
    yield Picture("matrix", title, norms[None].astype(np.float64), ("",), names)
    without, with_places = (float(np.mean([run.measures["loss"] for run in of])) for of in runs.values())
    said = passage(
        "ladder.signal_step-2",
        loss=loss,
        without=without,
        with_places=with_places,
        norms=norms,
        others=norms[1:].mean(),
    )
    yield Conclusion(said)


def several_signals_step(options: Options) -> Iterator[Piece]:
    """Yield task T06d with three signals: models with one head (with or without projections) or four heads.

    One head with projections and four heads have equal numbers of parameters.
    """
    yield passage("ladder.several_signals_step")
    kinds: tuple[SignalModel, ...] = (
        ("source", None, "zero"),
        ("bare", None, "drawn"),
        ("1 head", 1, "drawn"),
        ("4 heads", 4, "drawn"),
    )
    contenders = signal_contenders(3, kinds, options.steps(4000))
    runs = contest(contenders, options.seeds or 1)
    rows = tuple((name, parameter_count(of[0].model), *_cells(of, "loss", "exact")) for name, of in runs.items())
    columns = (MODEL, translated("parameters"), LOSS, EXACT)
    yield Table("signals", translated("Three signals"), columns, rows)
    yield arrays.loss_curves(TRAINING_LOSS, runs)
    source, bare, one, four = (float(np.mean([run.measures["loss"] for run in of])) for of in runs.values())
    said = passage("ladder.several_signals_step-2", source=source, bare=bare, one=one, four=four, ratio=one / four)
    yield Conclusion(said)


def _lengths() -> tuple[int, int, int]:
    return LENGTH - 1, LENGTH, LENGTH + 1


def _exact_by_length(draw: arrays.Draw, model: nn.Module) -> list[float]:
    begin = draw(np.random.default_rng(0), 1).inputs["x"].shape[-1] == len(SYMBOLS)
    rng = np.random.default_rng(TEST_SEED)
    return [arrays.measures(model, counting([n], begin=begin)(rng, TEST_ROWS))["exact"] for n in _lengths()]


def _fourth_right(model: nn.Module, draw: arrays.Draw) -> float:
    test = draw(np.random.default_rng(TEST_SEED), TEST_ROWS)
    return float((arrays.logits_of(model, test).argmax(-1) == test.targets)[:, 3].double().mean())


@torch.no_grad()
def _doubling(model: nn.Module, draw: arrays.Draw) -> float:
    """Return the largest change of a logit if each row is repeated."""
    x = draw(np.random.default_rng(TEST_SEED), 100).inputs["x"]
    return float((model(torch.cat([x, x], dim=1)) - model(x)).abs().max())


def _cells(runs: Sequence[arrays.Training], *names: str) -> tuple[str, ...]:
    forms = {"loss": ".4f"}
    return tuple(
        arrays.mean_and_deviation([run.measures[name] for run in runs], forms.get(name, ".3f")) for name in names
    )


def _letters_map(model: nn.Module, draw: arrays.Draw) -> Picture:
    x = draw(np.random.default_rng(TEST_SEED), 1).inputs["x"]
    weights = arrays.recorded_weights(model, "cross_attention", x=x)[0, 0].double().numpy()
    title = translated("What the queries for A, B and C attend to")
    columns = tuple(text(x[0]).replace(" ", "_"))
    return Picture("matrix", title, weights, tuple(SYMBOLS[1 : N_LETTERS + 1]), columns)


LESSON = Lesson(
    name="ladder",
    source="attention-primer (Greenfrapp 2018), tasks 1 to 4; Shumi-Note",
    title=translated("The attention ladder"),
    question=translated("What can attention count, and what do marks, self-attention, positions and heads add?"),
    cpu_minutes=3.5,
    teach=teach,
    seeds=(2, 2, 1, 1),
)
LESSONS = (LESSON,)
