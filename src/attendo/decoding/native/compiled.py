"""A model lowered to the C++ functions: the start and the step of its search."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.decoding.native.library import NoLibrary, library, require_suited
from attendo.decoding.native.slots import (
    Attending,
    Block,
    Embedding,
    FeedForward,
    Heads,
    Matrix,
    SlotKVCache,
    Stack,
    TensorArena,
    Tokens,
    address,
)
from attendo.errors import NOT_NUMBERS, AttendoError
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import ACTIVATIONS, Dropout, InputEmbedding, TokenEmbedding
from attendo.nn.layers import FeedForward as FeedForwardModule
from attendo.nn.positions import Alibi, FixedPositions, LearnedPositions, RelativeBias, Rotary

_POSITIONS_AHEAD = 4096  # computed at once; more where a text is longer, whatever max_len a file names
_NOTHING = Attending(heads=Heads())
_FIELDS = {"self_attention": "attention", "cross_attention": "cross", "feed_forward": "feed_forward"}
"""Of a Block, by the name of a block's layer."""
_KNOWN = {
    *(EncoderDecoder, EncoderClassifier, MaskedLM, DecoderLM, Encoder, Decoder, EncoderBlock, DecoderBlock),
    *(
        Residual,
        Attention,
        Attend,
        FeedForwardModule,
        Dropout,
        InputEmbedding,
        TokenEmbedding,
        FixedPositions,
    ),
    *(LearnedPositions, Rotary, Alibi, RelativeBias, nn.ModuleList, nn.Identity, nn.LayerNorm, nn.RMSNorm),
}
"""What is lowered, beside linear layers of any kind. A child of one of them may compute something else."""


@dataclass(frozen=True, eq=False)
class Change:
    """What is other in an attention layer or a feed-forward net than in the model that was compiled.

    betas: β of each head, finite. gains, means: what a head mixes is weighed by its gain, and its mean is added.
    output: what the layer gives at each token, in place of all that.
    """

    betas: Float[Tensor, " heads"] | None = None
    gains: Float[Tensor, " heads"] | None = None
    means: Float[Tensor, "heads value_dim"] | None = None
    output: Float[Tensor, " d_model"] | None = None


class CompiledModel:
    """A model in compiled form: `start` and `step` for a search, `encoded` for what an encoder makes of texts.

    The results of a row are the same bits whatever rows are beside it. int8: matrices and their inputs in 8 bits, each
    with scales of its own outputs and rows. The weights are copied. Raises NoLibrary, in words for the user, for a
    model or a machine that this is not for.
    """

    def __init__(self, model: Model, *, int8: bool = False):
        weight = next(model.parameters())
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise NoLibrary(
                f"the model is {weight.dtype} on {weight.device.type}, not float32 on a processor"
            )
        _require_known(model)
        require_suited(8 if int8 else 32)
        self._keeper = keeper = TensorArena(int8=int8)
        self._original: CompiledModel | None = None  # whose weights these are, if not its own
        config = model.config
        self.width = config.d_model
        self.vocab_size = config.vocab_size
        # the encoder may be fed what the decoder is not: texts as long as memory allows
        self._position_end = min(config.max_len + 1, _POSITIONS_AHEAD)
        self._turned = 0  # positions for which rotary heads have their angles
        self._stacks: dict[str, tuple[Stack, Encoder | Decoder]] = {}
        self._memory: list[Matrix] = []
        if not isinstance(model, DecoderLM):
            self._stacks["encoder"] = self._stack(model.encoder), model.encoder
        if isinstance(model, EncoderDecoder):
            self._source = model.source_embedding
            self._target = model.target_embedding
            crosses = [block.cross_attention for block in model.decoder.blocks]
            self._memory = [
                keeper.matrix(cross.k_proj, cross.v_proj) for cross in crosses if cross is not None
            ]
        else:
            self._target = self._source = model.embedding
        self._embeddings: dict[int, tuple[int, Embedding]] = {}
        if isinstance(model, EncoderDecoder | DecoderLM):
            self._stacks["decoder"] = self._stack(model.decoder), model.decoder
            self.output = keeper.matrix(model.output_proj)
            first = model.decoder.blocks[0].self_attention
            self._cache_width = first.n_kv_heads * (first.head_dim + first.value_dim)

    def changed(self, changes: Mapping[str, Change]) -> CompiledModel:
        """The same model with other layers at some paths, such as `decoder.blocks.0.cross_attention`.

        No weights are copied.
        """
        twin = copy.copy(self)
        twin._original = self
        twin._keeper = TensorArena(int8=self._keeper.int8)
        twin._embeddings = dict(self._embeddings)
        twin._stacks = {name: (_copied(stack), module) for name, (stack, module) in self._stacks.items()}
        for path, change in changes.items():
            name, _, number, layer = path.split(".")
            block = twin._stacks[name][0].blocks[int(number)]
            if change.output is not None:
                getattr(block, _FIELDS[layer]).out = twin._keeper.given(change.output)
            elif layer != "feed_forward":
                heads = getattr(block, _FIELDS[layer]).heads
                if change.betas is not None:
                    heads.betas = twin._keeper.pointer(change.betas)
                heads.gains, heads.means = map(twin._keeper.pointer, (change.gains, change.means))
        return twin

    def start(
        self, sources: Sequence[Sequence[int]], rows_per_source: int = 1, capacity: int = 256
    ) -> SlotKVCache:
        """Encodes the sources once; an empty cache for `rows_per_source` rows of each.

        A decoder that stands alone reads nothing: its sources are empty.
        """
        lengths = [len(source) for source in sources]
        n = sum(lengths)
        memory = torch.empty(
            len(self._memory) or self._stacks["decoder"][0].n_blocks,
            n if self._memory else 0,
            self._memory_width,
        )
        if "encoder" in self._stacks and n:
            states = self.encoded(sources)
            for matrix, place in zip(self._memory, memory, strict=True):
                library().attendo_product(
                    ctypes.byref(matrix), states.data_ptr(), n, place.data_ptr(), _threads()
                )
        return SlotKVCache(
            memory, lengths, rows_per_source=rows_per_source, capacity=capacity, width=self._cache_width
        )

    def step(self, token_ids: Int[Tensor, "rows n"], cache: SlotKVCache) -> Float[Tensor, "rows vocab"]:
        """The logits after the last of the next `n` tokens of every row; the cache is advanced by `n`.

        They stand until the cache's next step: to ask the system for new memory would cost more than some products.
        """
        if cache.logits.shape[0] < cache.rows:
            cache.logits = torch.empty(cache.rows, self.vocab_size)
        return self.logits(self.states(token_ids, cache)[:, -1], cache.logits[: cache.rows])

    def logits(
        self, states: Float[Tensor, "*batch d_model"], out: Float[Tensor, "*batch vocab"] | None = None
    ) -> Float[Tensor, "*batch vocab"]:
        """W_u h of each state."""
        states = states.contiguous()
        out = torch.empty(*states.shape[:-1], self.vocab_size) if out is None else out
        rows = states.numel() // self.width
        library().attendo_product(
            ctypes.byref(self.output), states.data_ptr(), rows, out.data_ptr(), _threads()
        )
        return out

    def states(self, token_ids: Int[Tensor, "rows n"], cache: SlotKVCache) -> Float[Tensor, "rows n d_model"]:
        """The states behind the last block of the next `n` tokens of every row; the cache is advanced by `n`."""
        rows, n = token_ids.shape
        longest = cache.longest
        cache.require_room(n)
        ids = token_ids.contiguous()
        tokens = cache.tokens()
        if n > 1:
            positions = (cache.lengths[:, None] + np.arange(n)).reshape(-1)
            of_row = np.arange(rows).repeat(n)
            tokens = Tokens.from_buffer_copy(tokens)
            tokens.apart = 0
            tokens.positions = address(positions)
            tokens.rows = address(of_row)
        tokens.n = rows * n
        tokens.ids = ids.data_ptr()
        states = self._run("decoder", self._embedding(self._target, longest + n), tokens, ids)
        cache.advance(n)
        return states.view(rows, n, self.width)

    def encoded(self, sources: Sequence[Sequence[int]]) -> Float[Tensor, "tokens d_model"]:
        """The states behind the encoder of all texts, none of them empty, side by side."""
        sizes = np.asarray([len(source) for source in sources], dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        of_row = np.repeat(np.arange(len(sizes)), sizes)
        ids = np.fromiter(chain.from_iterable(sources), dtype=np.int64, count=int(sizes.sum()))
        positions = np.arange(len(ids)) - starts[of_row]
        tokens = Tokens(
            n=len(ids), ids=address(ids), positions=address(positions), rows=address(of_row),
            text_start=address(starts), text_length=address(sizes),
        )  # fmt: skip
        return self._run(
            "encoder", self._embedding(self._source, int(sizes.max())), tokens, torch.from_numpy(ids)
        )

    def _run(
        self, stack: str, embedding: Embedding, tokens: Tokens, ids: Int[Tensor, "..."]
    ) -> Float[Tensor, "tokens d_model"]:
        states = torch.empty(ids.numel(), self.width)
        wrong = library().attendo_states(
            ctypes.byref(self._stacks[stack][0]),
            ctypes.byref(embedding),
            ctypes.byref(tokens),
            states.data_ptr(),
            _threads(),
        )
        if wrong >= 0:
            raise ValueError(f"token id {ids.flatten()[wrong]} is none of a vocabulary of {embedding.n}")
        return states

    # lowering

    @property
    def _memory_width(self) -> int:
        return self._memory[0].n_out if self._memory else 0

    def _embedding(self, module: InputEmbedding, end: int) -> Embedding:
        """The embedding with positions up to `end` at least; they are computed ahead."""
        known, made = self._embeddings.get(id(module), (0, None))
        if made is not None and end <= known:
            return made
        table = None
        width = 0
        match module.positions:
            case LearnedPositions():
                module.positions(torch.zeros(1, 1, dtype=torch.long), end)  # refuses an end beyond its table
                table = module.positions.weight
            case FixedPositions():
                end = self._position_end if end <= self._position_end else 2 * end
                table = module.positions(torch.arange(end), end)
            case None:
                end = self._position_end if end <= self._position_end else 2 * end
        if table is not None:
            end, width = table.shape
        self._turn_up_to(end)
        weight = module.tokens.weight
        keeper = self._keeper
        made = Embedding(
            weight.shape[0], keeper.pointer(weight), module.tokens.scale, keeper.pointer(table), width,
            keeper.norm(module.norm),
        )  # fmt: skip
        self._embeddings[id(module)] = end, made
        return made

    def _stack(self, stack: Encoder | Decoder) -> Stack:
        blocks = (Block * len(stack.blocks))(*map(self._block, stack.blocks))
        first = {residual.norm_first for residual in stack.modules() if isinstance(residual, Residual)}
        if len(first) > 1:
            raise NoLibrary("some of its sub-layers have the norm first, and some last")
        return Stack(len(blocks), self.width, first.pop(), blocks, self._keeper.norm(stack.norm))

    def _block(self, block: EncoderBlock | DecoderBlock) -> Block:
        own = self._attending(block.self_attention, block.self_attention_residual.norm)
        cross = _NOTHING
        if isinstance(block, DecoderBlock) and block.cross_attention is not None:
            assert block.cross_attention_residual is not None
            cross = self._attending(
                block.cross_attention, block.cross_attention_residual.norm, of_itself=False
            )
        return Block(own, cross, self._feed_forward(block.feed_forward, block.feed_forward_residual.norm))

    def _attending(self, attention: Attention, norm: nn.Module, *, of_itself: bool = True) -> Attending:
        attend = attention.attend
        keeper = self._keeper
        if attend.inverse_temperature == float("inf"):
            raise NoLibrary("its attention is hard, not a softmax")
        if not (isinstance(attention.q_norm, nn.Identity) and isinstance(attention.k_norm, nn.Identity)):
            raise NoLibrary("its queries and keys have a norm of their own (attention_norm)")
        if isinstance(attention.positions, RelativeBias):
            raise NoLibrary("its scores have a trained bias by distance (positions='relative')")
        if attention.positions is not None and not of_itself:
            raise NoLibrary("its cross-attention has positions of its own")
        scale = attention.head_dim**-0.5 if attend.scale is None else attend.scale
        beta = float(attend.inverse_temperature)
        projections = [attention.q_proj, attention.k_proj, attention.v_proj][: 3 if of_itself else 1]
        slopes = attention.positions.slopes if isinstance(attention.positions, Alibi) else None
        heads = Heads(
            attention.n_heads, attention.n_kv_heads, attention.head_dim, attention.value_dim, scale,
            keeper.pointer(slopes), None, None if beta == 1 else keeper.pointer(torch.full((attention.n_heads,), beta)),
            None, None,
        )  # fmt: skip
        out = cast("nn.Linear", attention.out_proj)
        return Attending(keeper.matrix(*projections), keeper.matrix(out), keeper.norm(norm), heads)

    def _turn_up_to(self, end: int) -> None:
        """Gives rotary heads the cos and sin of the angle of each pair at each position: what (1, 0) is turned to."""
        if end <= self._turned:  # another embedding may have asked for more
            return
        self._turned = end
        for stack, module in self._stacks.values():
            for number, block in enumerate(module.blocks):
                attention = block.self_attention
                if isinstance(attention.positions, Rotary):
                    apart = torch.tensor([1.0, 0.0]).repeat(attention.head_dim // 2)
                    turns = attention.positions(apart.expand(1, 1, end, -1), torch.arange(end)[None])[0, 0]
                    stack.blocks[number].attention.heads.turns = self._keeper.pointer(turns)

    def _feed_forward(self, net: FeedForwardModule, norm: nn.Module) -> FeedForward:
        keeper = self._keeper
        activation = list(ACTIVATIONS.values()).index(net.activation)
        gate = Matrix() if net.gate_proj is None else keeper.matrix(net.gate_proj)
        return FeedForward(
            keeper.matrix(net.in_proj), gate, keeper.matrix(net.out_proj), keeper.norm(norm), activation
        )


def _copied(stack: Stack) -> Stack:
    blocks = (Block * stack.n_blocks)(*(stack.blocks[number] for number in range(stack.n_blocks)))
    return Stack(stack.n_blocks, stack.width, stack.norm_first, blocks, stack.norm)


def _require_known(model: Model) -> None:
    """Raises NoLibrary for a model with a part of its user's own."""
    for path, module in model.named_modules():
        if type(module) not in _KNOWN and not isinstance(module, nn.Linear):
            raise NoLibrary(f"{path} is a {type(module).__name__}, a part that the compiled steps don't know")


def best_of_floats(
    logits: Float[Tensor, "rows vocab"],
    k: int,
    banned_ids: tuple[int, ...] = (),
    constrain: Callable[[Tensor], None] | None = None,
    out: Float[Tensor, "rows vocab"] | None = None,
) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
    """`best_tokens` of float32 logits on a processor; `out` is not needed."""
    (rows, vocab) = logits.shape
    logits = logits.contiguous()
    sums = _log_sums(logits)
    if constrain is not None:
        logits = logits.clone()
        constrain(logits)  # what is forbidden keeps its share of the sum
    k = min(k, vocab)
    tokens = np.empty((rows, k), dtype=np.int64)
    log_probs = np.empty((rows, k))
    banned = (ctypes.c_int64 * len(banned_ids))(*banned_ids)
    library().attendo_best(
        logits.data_ptr(), address(sums), rows, vocab, k, banned, len(banned_ids), address(tokens), address(log_probs),
        _threads(),
    )  # fmt: skip
    if np.isnan(log_probs[:, 0]).any():
        raise AttendoError(NOT_NUMBERS)
    return tokens, log_probs


def log_probs_of_floats(
    logits: Float[Tensor, "*batch vocab"], wanted: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The log-probability of the wanted token of each row, the number that `best_of_floats` gives it, in float64."""
    logits = logits.contiguous()
    chosen = logits.gather(-1, wanted[..., None]).squeeze(-1).double()
    return chosen - torch.from_numpy(_log_sums(logits)).view(wanted.shape)


def _log_sums(logits: Float[Tensor, "*batch vocab"]) -> Float[np.ndarray, " rows"]:
    vocab = logits.shape[-1]
    sums = np.empty(logits.numel() // vocab)
    library().attendo_log_sums(logits.data_ptr(), len(sums), vocab, address(sums), _threads())
    return sums


def _threads() -> int:
    return torch.get_num_threads()
