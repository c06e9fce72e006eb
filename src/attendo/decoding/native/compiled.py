"""Models that run with the compiled C++ functions, and their KV cache."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from attendo.decoding.native.library import (
    Attending,
    Block,
    Embedding,
    FeedForward,
    Heads,
    Matrix,
    NoLibrary,
    Norm,
    Stack,
    TensorArena,
    Tokens,
    address,
    library,
    require_suited,
)
from attendo.decoding.options import Bits, CacheBits
from attendo.decoding.protocols import TokenRows
from attendo.errors import NOT_NUMBERS, diverged
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import ACTIVATIONS, Dropout, InputEmbedding, TokenEmbedding
from attendo.nn.layers import FeedForward as FeedForwardModule
from attendo.nn.positions import Alibi, FixedPositions, LearnedPositions, RelativeBias, Rotary

_POSITIONS_AHEAD = 4096  # computed at once; more only for longer texts, even if max_len is larger
_NOTHING = Attending(heads=Heads())
_FIELDS = {"self_attention": "attention", "cross_attention": "cross", "feed_forward": "feed_forward"}
"""The field of the C structure `Block` for each layer name of a block."""
_KNOWN = {
    EncoderDecoder, EncoderClassifier, MaskedLM, DecoderLM, Encoder, Decoder, EncoderBlock, DecoderBlock,
    Residual, Attention, Attend, FeedForwardModule, Dropout, InputEmbedding, TokenEmbedding, FixedPositions,
    LearnedPositions, Rotary, Alibi, RelativeBias, nn.ModuleList, nn.Identity, nn.LayerNorm, nn.RMSNorm,
}  # fmt: skip
"""The supported modules, besides linear layers of any class. Subclasses are excluded: they may compute other values."""


@dataclass(frozen=True, eq=False)
class Change:
    """A change of an attention layer or a feed-forward network of a compiled model.

    Attributes:
        betas: Inverse temperature β of each attention head (default: unchanged).
        gains: Factor of the output of each head, before `means` is added (default: 1).
        means: Vector that is added to the output of each head (default: 0).
        output: Vector that replaces the output of the layer at each token (default: no replacement).
    """

    betas: Float[Tensor, " heads"] | None = None
    gains: Float[Tensor, " heads"] | None = None
    means: Float[Tensor, "heads value_dim"] | None = None
    output: Float[Tensor, " d_model"] | None = None


class CompiledModel:
    """A model that runs with compiled C++ functions, for decoding (`start` and `step`) or encoder states (`encoded`).

    The results of a row do not depend on the other rows of the batch, bit for bit. The weights of the model are copied.
    With fewer than 32 bits, the embeddings and the KV cache are bfloat16. With 16 bits, so are the weights. With 8
    bits, the weights are integers with one scale per output. With 4 bits, they have one scale per 32 inputs, except for
    the output layer, which has 8 bits. Integer weights multiply inputs of 8 bits with one scale per 32 inputs. With
    `cache_bits` 8, the keys and values of decoded tokens are integers with one scale per 32 numbers. Raises NoLibrary
    if the model, its device or this CPU is not supported.
    """

    def __init__(self, model: Model, bits: Bits = 32, cache_bits: CacheBits | None = None):
        weight = next(model.parameters())
        if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
            raise NoLibrary(
                f"the model is {weight.dtype} on {weight.device.type} (expected float32 or bfloat16 on a CPU)"
            )
        _require_known(model)
        require_suited(bits)
        self.bits: Bits = bits
        self._keeper = keeper = TensorArena(bits)
        self._original: CompiledModel | None = None  # the owner of the weights, if it is another model
        config = model.config
        self._cap = config.output_softcap
        self.width = config.d_model
        self.vocab_size = config.vocab_size
        # only a decoder is limited to max_len; an encoder accepts any length that fits into memory
        self._position_end = min(config.max_len + 1, _POSITIONS_AHEAD)
        self._prepared = 0  # positions for which angles and biases are computed
        self._stacks: dict[str, tuple[Stack, Encoder | Decoder]] = {}
        self._memory: list[Matrix] = []
        if not isinstance(model, DecoderLM):
            self._stacks["encoder"] = self._stack(model.encoder), model.encoder
        if isinstance(model, EncoderDecoder):
            self._source = model.source_embedding
            self._target = model.target_embedding
            crosses = [block.cross_attention for block in model.decoder.blocks]
            self._crosses = [cross for cross in crosses if cross is not None]
            self._memory = [keeper.matrix(cross.k_proj, cross.v_proj) for cross in self._crosses]
        else:
            self._target = self._source = model.embedding
        self._embeddings: dict[int, tuple[int, Embedding]] = {}
        if isinstance(model, EncoderDecoder | DecoderLM):
            self._stacks["decoder"] = self._stack(model.decoder), model.decoder
            self.output = keeper.matrix(model.output_proj, bits=8 if bits == 4 else bits)
            first = model.decoder.blocks[0].self_attention
            kept = cache_bits or (32 if bits == 32 else 16)
            self._cache_type = {32: torch.float32, 16: torch.bfloat16, 8: torch.uint8}[kept]
            width = first.n_kv_heads * (first.head_dim + first.value_dim)
            self._cache_width = library().attendo_cache_length(width, kept)

    def changed(self, changes: Mapping[str, Change]) -> CompiledModel:
        """Return a model with changed layers and the weights of this model. The keys of `changes` are module paths."""
        twin = copy.copy(self)
        twin._original = self
        twin._keeper = TensorArena(self.bits)
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

    def start(self, sources: TokenRows, rows_per_source: int = 1, capacity: int = 256) -> SlotKVCache:
        """Encode the sources, and return a cache without target tokens. A decoder-only model requires empty sources."""
        lengths = [len(source) for source in sources]
        n = sum(lengths)
        memory = torch.empty(
            len(self._memory) or self._stacks["decoder"][0].n_blocks,
            n if self._memory else 0,
            self._memory_width,
        )
        if "encoder" in self._stacks and n:
            states = self.encoded(sources)
            for cross, matrix, place in zip(self._crosses, self._memory, memory, strict=True):
                library().attendo_product(ctypes.byref(matrix), states.data_ptr(), n, place.data_ptr(), _threads())
                keys = place[:, : cross.k_proj.out_features].unflatten(1, (cross.n_kv_heads, -1))
                keys.copy_(cross.k_norm(keys))
        return SlotKVCache(
            memory, lengths, rows_per_source=rows_per_source, capacity=capacity, width=self._cache_width,
            dtype=self._cache_type,
        )  # fmt: skip

    def step(self, token_ids: Int[Tensor, "rows n"], cache: SlotKVCache) -> Float[Tensor, "rows vocab"]:
        """Feed the next `n` tokens of every row, and return the logits after the last of these tokens.

        The logits are valid until the next step of the cache, which reuses their memory.
        """
        if cache.logits.shape[0] < cache.rows:
            cache.logits = torch.empty(cache.rows, self.vocab_size)
        return self.logits(self.states(token_ids, cache)[:, -1], cache.logits[: cache.rows])

    def logits(
        self, states: Float[Tensor, "*batch d_model"], out: Float[Tensor, "*batch vocab"] | None = None
    ) -> Float[Tensor, "*batch vocab"]:
        """Compute the logits of each state with the output layer."""
        states = states.contiguous()
        out = torch.empty(*states.shape[:-1], self.vocab_size) if out is None else out
        rows = states.numel() // self.width
        library().attendo_product(ctypes.byref(self.output), states.data_ptr(), rows, out.data_ptr(), _threads())
        return out if self._cap is None else out.div_(self._cap).tanh_().mul_(self._cap)

    def states(self, token_ids: Int[Tensor, "rows n"], cache: SlotKVCache) -> Float[Tensor, "rows n d_model"]:
        """Feed the next `n` tokens of every row, and return the hidden states of these tokens after the last block."""
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

    def encoded(self, sources: TokenRows) -> Float[Tensor, "tokens d_model"]:
        """Return the concatenated encoder states of all texts. Empty texts are not supported."""
        sizes = np.asarray([len(source) for source in sources], dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        of_row = np.repeat(np.arange(len(sizes)), sizes)
        ids = np.fromiter(chain.from_iterable(sources), dtype=np.int64, count=int(sizes.sum()))
        positions = np.arange(len(ids)) - starts[of_row]
        tokens = Tokens(
            n=len(ids), ids=address(ids), positions=address(positions), rows=address(of_row),
            text_start=address(starts), text_length=address(sizes),
        )  # fmt: skip
        return self._run("encoder", self._embedding(self._source, int(sizes.max())), tokens, torch.from_numpy(ids))

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
            raise ValueError(f"token id {ids.flatten()[wrong]} must be between 0 and {embedding.n - 1}")
        return states

    # conversion of modules to C structures

    @property
    def _memory_width(self) -> int:
        return self._memory[0].n_out if self._memory else 0

    def _embedding(self, module: InputEmbedding, end: int) -> Embedding:
        """Return the embedding with at least `end` positions. More positions are computed in advance."""
        known, made = self._embeddings.get(id(module), (0, None))
        if made is not None and end <= known:
            return made
        table = None
        width = 0
        match module.positions:
            case LearnedPositions():
                module.positions(torch.zeros(1, 1, dtype=torch.long), end)  # raises for a large `end`
                table = module.positions.weight
            case FixedPositions():
                end = self._position_end if end <= self._position_end else 2 * end
                table = module.positions(torch.arange(end), end)
            case None:
                end = self._position_end if end <= self._position_end else 2 * end
        if table is not None:
            end, width = table.shape
        self._prepare_positions(end)
        weight = module.tokens.weight
        keeper = self._keeper
        dtype = torch.float32 if self.bits == 32 else torch.bfloat16
        made = Embedding(
            weight.shape[0], 8 * dtype.itemsize, keeper.pointer(weight, dtype), module.tokens.scale,
            keeper.pointer(table), width, keeper.norm(module.norm),
        )  # fmt: skip
        self._embeddings[id(module)] = end, made
        return made

    def _stack(self, stack: Encoder | Decoder) -> Stack:
        blocks = (Block * len(stack.blocks))(*map(self._block, stack.blocks))
        first = {residual.norm_first for residual in stack.modules() if isinstance(residual, Residual)}
        if len(first) > 1:
            raise NoLibrary("some of its sublayers apply the norm first, and some last")
        return Stack(len(blocks), self.width, first.pop(), blocks, self._keeper.norm(stack.norm))

    def _block(self, block: EncoderBlock | DecoderBlock) -> Block:
        own = self._attending(block.self_attention, block.self_attention_residual)
        cross = _NOTHING
        if isinstance(block, DecoderBlock) and block.cross_attention is not None:
            assert block.cross_attention_residual is not None
            cross = self._attending(block.cross_attention, block.cross_attention_residual, of_itself=False)
        return Block(own, cross, self._feed_forward(block.feed_forward, block.feed_forward_residual))

    def _norms(self, residual: Residual) -> tuple[Norm, Norm]:
        """Return the norm of a sublayer, and the norm of its output, which may be none."""
        first = self._keeper.norm(residual.norm)
        first.width = self.width  # without a norm, the states are copied
        return first, self._keeper.norm(residual.output_norm or nn.Identity())

    def _attending(self, attention: Attention, residual: Residual, *, of_itself: bool = True) -> Attending:
        attend = attention.attend
        keeper = self._keeper
        if attend.inverse_temperature == float("inf"):
            raise NoLibrary("its attention is hard (expected softmax)")
        norms = [keeper.norm(norm) for norm in (attention.q_norm, attention.k_norm)]
        if attention.positions is not None and not of_itself:
            raise NoLibrary("its cross-attention has positions of its own")
        scale = attention.head_dim**-0.5 if attend.scale is None else attend.scale
        beta = float(attend.inverse_temperature)
        projections = [attention.q_proj, attention.k_proj, attention.v_proj][: 3 if of_itself else 1]
        heads = Heads(
            attention.n_heads, attention.n_kv_heads, attention.head_dim, attention.value_dim, scale, None, 0, *norms,
            betas=None if beta == 1 else keeper.pointer(torch.full((attention.n_heads,), beta)),
            window=attention.window or 0, softcap=attend.softcap or 0.0,
        )  # fmt: skip
        out = cast("nn.Linear", attention.out_proj)
        return Attending(keeper.matrix(*projections), keeper.matrix(out), *self._norms(residual), heads)

    def _prepare_positions(self, end: int) -> None:
        """Compute the biases of all distances, and cos and sin of each rotary angle: the rotation of (1, 0)."""
        if end <= self._prepared:  # another embedding may have computed more
            return
        self._prepared = end
        biases: dict[int, int | None] = {}  # layers may share a module
        turns: dict[tuple[object, ...], int | None] = {}  # and most have the same rotary positions
        for stack, module in self._stacks.values():
            for number, block in enumerate(module.blocks):
                attention, heads = block.self_attention, stack.blocks[number].attention.heads
                positions = attention.positions
                if isinstance(positions, Rotary):
                    key = positions.base, tuple(positions.omega or ()), attention.head_dim
                    if key not in turns:
                        apart = torch.tensor([1.0, 0.0]).repeat(attention.head_dim // 2)
                        turned = positions(apart.expand(1, 1, end, -1), torch.arange(end)[None])[0, 0]
                        turns[key] = self._keeper.pointer(turned)
                    heads.turns = turns[key]
                elif positions is not None:
                    if id(positions) not in biases:
                        every = positions(torch.tensor([[end]]), torch.arange(2 * end + 1))[0, :, 0]
                        biases[id(positions)] = self._keeper.pointer(every)
                    heads.biases, heads.span = biases[id(positions)], end

    def _feed_forward(self, net: FeedForwardModule, residual: Residual) -> FeedForward:
        keeper = self._keeper
        activation = list(ACTIVATIONS.values()).index(net.activation)
        gate = Matrix() if net.gate_proj is None else keeper.matrix(net.gate_proj)
        return FeedForward(
            keeper.matrix(net.in_proj), gate, keeper.matrix(net.out_proj), *self._norms(residual), activation
        )


def _copied(stack: Stack) -> Stack:
    blocks = (Block * stack.n_blocks)(*(stack.blocks[number] for number in range(stack.n_blocks)))
    return Stack(stack.n_blocks, stack.width, stack.norm_first, blocks, stack.norm)


def _require_known(model: Model) -> None:
    """Raise NoLibrary if the model contains unsupported modules."""
    for path, module in model.named_modules():
        if type(module) not in _KNOWN and not isinstance(module, nn.Linear):
            raise NoLibrary(f"{path} is a {type(module).__name__}, which the compiled steps do not support")


def best_of_floats(
    logits: Float[Tensor, "rows vocab"],
    k: int,
    banned_ids: tuple[int, ...] = (),
    constrain: Callable[[Tensor], None] | None = None,
    out: Float[Tensor, "rows vocab"] | None = None,
) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
    """Return the result of `best_tokens` for float32 logits on a CPU. The argument `out` is ignored."""
    (rows, vocab) = logits.shape
    logits = logits.contiguous()
    sums = _log_sums(logits)
    if constrain is not None:
        logits = logits.clone()
        constrain(logits)  # forbidden tokens still count in the sum
    k = min(k, vocab)
    tokens = np.empty((rows, k), dtype=np.int64)
    log_probs = np.empty((rows, k))
    banned = (ctypes.c_int64 * len(banned_ids))(*banned_ids)
    library().attendo_best(
        logits.data_ptr(), address(sums), rows, vocab, k, banned, len(banned_ids), address(tokens), address(log_probs),
        _threads(),
    )  # fmt: skip
    if np.isnan(log_probs[:, 0]).any():
        raise diverged(NOT_NUMBERS)
    return tokens, log_probs


def log_probs_of_floats(
    logits: Float[Tensor, "*batch vocab"], wanted: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Compute the log-probability of each row's wanted token in float64, as in `best_of_floats`."""
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


AHEAD = 32
"""Number of slots, or of positions per slot, that are allocated at once.

Proportional growth would leave up to half of the memory unused."""


class SlotKVCache:
    """A KV cache whose rows share the keys and values of the earlier positions that they have in common.

    A slot is the memory for the keys and values of one row. Row i writes its next position into slot `own[i]` and reads
    position p from slot `slots[i, p]`. Reordering the rows therefore copies slot numbers, not keys. A slot belongs to
    one source, and all rows of a source have equal length, so no row overwrites earlier positions of another row.
    `memory` contains the keys and values of all source tokens, without padding and once for all rows of a source.

    >>> cache = SlotKVCache(torch.zeros(1, 7, 8), [3, 4], rows_per_source=2, capacity=5, width=8)
    >>> cache.rows, cache.sources.tolist(), cache.memory_start.tolist(), cache.memory_length.tolist()
    (4, [0, 0, 1, 1], [0, 0, 3, 3], [3, 3, 4, 4])
    >>> cache.keep(torch.tensor([3, 3]))
    >>> cache.rows, cache.sources.tolist(), cache.own.tolist()
    (2, [1, 1], [2, 3])
    """

    def __init__(
        self,
        memory: Float[Tensor, "blocks tokens memory_width"],
        source_lengths: Sequence[int],
        *,
        rows_per_source: int,
        capacity: int,
        width: int,
        dtype: torch.dtype = torch.float32,
    ):
        n_sources = len(source_lengths)
        self.capacity = capacity
        rows = n_sources * rows_per_source
        self.memory = memory
        self._n_memory = memory.shape[1]
        lengths = np.asarray(source_lengths, dtype=np.int64)
        self.sources = np.repeat(np.arange(n_sources), rows_per_source)
        self.memory_length = lengths[self.sources]
        self.memory_start = (np.cumsum(lengths) - lengths)[self.sources]
        self.lengths: Int[np.ndarray, " rows"] = np.zeros(rows, dtype=np.int64)
        self.own = np.arange(rows, dtype=np.int32)
        self.slots = np.zeros((rows, capacity), dtype=np.int32)
        self.cache = torch.empty(memory.shape[0], rows, capacity, width, dtype=dtype)
        self.logits = torch.empty(0, 0)  # logits of the last step
        self._longest = 0
        self._tokens: Tokens | None = None

    @property
    def rows(self) -> int:
        """The number of rows in the cache."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """The number of positions of the longest row."""
        return self._longest

    @property
    def bytes(self) -> int:
        """The allocated memory in bytes, for the positions of all rows and the tokens of all sources."""
        return self.cache.nbytes + self.memory.nbytes + self.slots.nbytes

    def tokens(self) -> Tokens:
        """Return the C structure `Tokens` for one new token per row. The caller sets the token ids."""
        if self._tokens is None:
            self._numbers = np.arange(self.rows)
            self._tokens = Tokens(
                n=self.rows, apart=1, positions=address(self.lengths), rows=address(self._numbers),
                cache=self.cache.data_ptr(), cache_bits=8 * self.cache.itemsize, block_stride=self.cache.stride(0),
                capacity=self.capacity, slots=address(self.slots), own_slot=address(self.own),
                memory=self.memory.data_ptr(), memory_stride=self.memory.stride(0),
                memory_start=address(self.memory_start), memory_length=address(self.memory_length),
            )  # fmt: skip
        return self._tokens

    def advance(self, n: int) -> None:
        """Add `n` positions to the length of every row."""
        self.lengths += n
        self._longest += n

    def require_room(self, n: int) -> None:
        """Raise ValueError if a row has no room for `n` more positions."""
        if self._longest + n > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions, but {self._longest + n} are needed. Start with a "
                "larger capacity"
            )

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the rows: new row i continues old row `rows[i]` of the same source."""
        self._select(rows.numpy())

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Select rows: new row i continues old row `rows[i]`, and all other rows are dropped."""
        self._select(rows.numpy())

    def past(self, row: int, n: int) -> Shaped[Tensor, "blocks n width"]:
        """Return a copy of the keys and values of the first `n` positions of a row."""
        slots = self.slots[row, :n]
        if n and (slots == slots[0]).all():  # as in every decoder-only model, and several times faster
            return self.cache[:, int(slots[0]), :n].clone()
        return self.cache[:, torch.from_numpy(slots.astype(np.int64)), torch.arange(n)]

    def join(self, other: SlotKVCache) -> None:
        """Append the rows and sources of another cache of the same model. The memory of an empty cache is reused."""
        if not self.rows:
            self._n_memory = 0
        # each new row gets a slot of its own, into which its scattered past is copied
        own = self._free_slots(other.rows, other.capacity)
        slots = np.repeat(own[:, None], self.capacity, 1)
        for row, length in enumerate(other.lengths.tolist()):
            self.cache[:, own[row], :length] = other.past(row, length)
        starts = self._add_memory(*other._live_memory())
        self.memory_start = np.concatenate((self.memory_start, starts))
        self.memory_length = np.concatenate((self.memory_length, other.memory_length))
        self.sources = np.concatenate((self.sources, other.sources + self.sources.max(initial=-1) + 1))
        self.lengths = np.concatenate((self.lengths, other.lengths))
        self.own = np.concatenate((self.own, own))
        self.slots = np.concatenate((self.slots, slots))
        self._moved()

    def _free_slots(self, n: int, capacity: int) -> Int[np.ndarray, " n"]:
        """Return n unused slots with room for `capacity` positions. Slots for later joins are allocated in advance."""
        n_slots, held = self.cache.shape[1:3]
        # a slot is in use if a row writes to it, or reads an earlier position from it
        taken = np.zeros(n_slots, dtype=bool)
        taken[self.own] = True
        taken[self.slots[np.arange(self.capacity) < self.lengths[:, None]]] = True
        free = np.flatnonzero(~taken)[:n]
        more = max(0, n - len(free))
        if more or capacity > held:
            self._grow(_ahead(n_slots + more) if more else n_slots, max(held, _ahead(capacity)))
        return np.concatenate((free, np.arange(n_slots, n_slots + more))).astype(np.int32)

    def _grow(self, n_slots: int, capacity: int) -> None:
        """Allocate memory for more slots and positions. Pages that are never written use no physical memory."""
        blocks, n_old, held, width = self.cache.shape
        cache = self.cache.new_empty(blocks, n_slots, capacity, width)
        used = self._longest
        cache[:, :n_old, :used] = self.cache[:, :, :used]
        if capacity > held:
            slots = np.zeros((self.rows, capacity), dtype=np.int32)
            slots[:, :used] = self.slots[:, :used]
            self.slots = slots
            self.capacity = capacity
        self.cache = cache

    def _add_memory(
        self, memory: Float[Tensor, "blocks tokens memory_width"], starts: Int[np.ndarray, " rows"]
    ) -> Int[np.ndarray, " rows"]:
        """Append source memory, and return the new start of each row whose old start is in `starts`."""
        n = memory.shape[1]
        # when full, drop the memory of sources without rows and double the capacity, which keeps joins cheap on average
        if self._n_memory + n > self.memory.shape[1]:
            live, self.memory_start = self._live_memory()
            self._n_memory = live.shape[1]
            self.memory = live.new_empty(live.shape[0], 2 * (self._n_memory + n), live.shape[2])
            self.memory[:, : self._n_memory] = live
        first = self._n_memory
        self._n_memory = self._n_memory + n
        self.memory[:, first : self._n_memory] = memory
        return starts + first

    def _live_memory(self) -> tuple[Tensor, Int[np.ndarray, " rows"]]:
        """Return the memory of the sources that have rows, and the start of each row's source in it."""
        _, first, index = np.unique(self.sources, return_index=True, return_inverse=True)
        starts = self.memory_start[first]
        lengths = self.memory_length[first]
        tokens = np.concatenate(
            [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
            or [np.zeros(0, dtype=np.int64)]
        )
        return self.memory[:, torch.from_numpy(tokens)], (np.cumsum(lengths) - lengths)[index]

    def _select(self, rows: Int[np.ndarray, " new_rows"]) -> None:
        sources = self.sources[rows]
        used = self._longest
        # a usual beam step: only slot numbers move, in place, so all addresses remain valid
        if len(rows) == self.rows and (sources == self.sources).all():
            self.slots[:, :used] = self.slots[rows, :used]
            self.lengths[:] = self.lengths[rows]
            return
        self.own = self._own_slots(sources)
        self.memory_start = self.memory_start[rows]
        self.memory_length = self.memory_length[rows]
        self.sources = sources
        self.lengths = self.lengths[rows]
        slots = np.zeros((len(rows), self.capacity), dtype=np.int32)
        slots[:, :used] = self.slots[rows, :used]
        self.slots = slots
        self._moved()

    def _moved(self) -> None:
        self._longest = int(self.lengths.max(initial=0))
        self._tokens = None

    def _own_slots(self, sources: Int[np.ndarray, " new_rows"]) -> Int[np.ndarray, " new_rows"]:
        """Return a slot for each row of these sources: the slots of the source's old rows in order, then new slots."""
        # ranks: the index of each row among the rows of its source; the old rows are ranked in the same way
        order = np.argsort(sources, kind="stable")
        ranks = np.empty(len(sources), dtype=np.int64)
        ranks[order] = np.arange(len(sources)) - np.searchsorted(sources[order], sources[order])
        old_order = np.argsort(self.sources, kind="stable")
        ordered = self.sources[old_order]
        first = np.searchsorted(ordered, sources)
        n_old = np.searchsorted(ordered, sources, "right")
        has = ranks < n_old - first  # the others need slots that no row of the source has
        own = np.empty(len(sources), dtype=np.int32)
        own[has] = self.own[old_order[(first + ranks)[has]]]
        if more := int((~has).sum()):
            n_slots = self.cache.shape[1]
            own[~has] = np.arange(n_slots, n_slots + more)
            self._grow(n_slots + more, self.capacity)
        return own


def _ahead(n: int) -> int:
    return -(-n // AHEAD) * AHEAD
