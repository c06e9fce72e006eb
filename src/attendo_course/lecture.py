"""The classes of the NYU lecture, with their original names and arguments, as a thin adapter over `attendo.nn`.

The lecture is NYU Deep Learning (2020), week 12, part 3, with notebook 15. To run the notebook on the classes of this
module, import the classes in the notebook:

    from attendo_course.lecture import MultiHeadAttention, EncoderLayer, Encoder, TransformerClassifier

Each class contains one module of attendo, which computes the result. The class method `over` wraps an existing module
of attendo. `DecoderLayer` and `Decoder` are described in the text of the lecture, but the lecture has no code for them.

The classes differ from the published classes in two points:

- Dropout: the published classes accept the dropout probability `p` but ignore it. In this module, three classes apply
  dropout to their own output in training: `MultiHeadAttention` to H, `CNN` to its second layer, and `Embeddings` to the
  normalized sum. The other classes pass `p` on. These are the places of Vaswani et al. 2017, section 5.4: the output of
  each sub-layer before the residual sum, and the sum of embeddings and positions. The attention weights A are not
  dropped. Section 5.4 does not drop them either, and a zero in A shows a masked key.
- Padding: in the published classes, padding receives attention, and the maximum over time can select padding. In this
  module, `Encoder` and `TransformerClassifier` derive a mask from the padding id 1. Attention and the maximum ignore
  padding, and A is exactly 0 for padding.

With `as_published=True`, `Encoder` and `TransformerClassifier` compute the results of the published classes. The other
classes compute the results of the published classes if `p` is 0 and no mask is given.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Generic, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.inspecting.recording import Part, RecordingAttend
from attendo.nn import blocks
from attendo.nn.attention import Attend, Attention, masked_softmax
from attendo.nn.cache import DecoderCache
from attendo.nn.layers import Dropout, FeedForward, InputEmbedding, TokenEmbedding
from attendo.nn.masks import Mask, within_lengths
from attendo.nn.positions import FixedPositions, sinusoidal_encoding
from attendo_course import presets

PAD_ID = 1
"""The id of padding in the notebook."""
ModuleT = TypeVar("ModuleT", bound=nn.Module)
BlockT = TypeVar("BlockT", blocks.EncoderBlock, blocks.DecoderBlock)


def _wrapped(cls: type[ModuleT], **parts: object) -> ModuleT:
    """Return an object of a class with the given attributes, without calling the constructor of the class."""
    adapter = cls.__new__(cls)
    nn.Module.__init__(adapter)
    for name, part in parts.items():
        setattr(adapter, name, part)
    adapter.training = all(part.training for part in adapter.children())
    return adapter


def _part(path: str, doc: str) -> property:
    """Return a property whose value is the part of the wrapped module at a path."""
    return property(attrgetter(path), doc=doc)


def stacked_projection(*projections: nn.Linear) -> nn.Linear:
    """Return one linear layer for q, k and v: [q; k; v] = [W_q; W_k; W_v]x (NYU Deep Learning 2020, week 12-3).

    The rows of the projections are stacked in the given order. All projections must have the same input width.

    >>> w = torch.nn.Linear(2, 3)
    >>> stacked_projection(w, w)(torch.ones(2)).shape
    torch.Size([6])
    """
    first = projections[0]
    stacked = nn.Linear(
        first.in_features,
        sum(projection.out_features for projection in projections),
        bias=first.bias is not None,
        device=first.weight.device,
        dtype=first.weight.dtype,
    )
    for name, parameter in stacked.named_parameters():
        parameter.data = torch.cat([getattr(projection, name).detach() for projection in projections])
    return stacked


class nn_Softargmax(nn.Module):
    """The softmax a_i = exp(s_i) / Σ_j exp(s_j) along `dim`, which the lecture calls softargmax.

    >>> nn_Softargmax(dim=-1)(torch.tensor([[0.0, 0.0]]))
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, s: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """Return the weights in the shape of `s`. The weights along `dim` sum to 1."""
        return masked_softmax(s.movedim(self.dim, -1)).movedim(-1, self.dim)


def padding_mask(input_ids: Int[Tensor, "bs len"], pad_id: int = PAD_ID) -> Mask:
    """Return the attention mask that hides the padding at the end of each text.

    Raises ValueError if a text has no token or has padding before a token.

    >>> padding_mask(torch.tensor([[2, 3, 1]])).dense(3, 3)[0, 0, 0]
    tensor([ True,  True, False])
    """
    real = input_ids != pad_id
    lengths = real.sum(1)
    wrong = (lengths == 0) | (real != within_lengths(lengths, real.shape[1])).any(1)
    if wrong.any():
        raise ValueError(
            f"text {int(wrong.nonzero()[0])} has padding (id {pad_id}) at its beginning or between tokens."
            " Move padding to the end of the text, and give each text at least one token"
        )
    return Mask(key_lengths=lengths)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: H = dropout([H₁ … H_h] W_h), H_i = A_i V_i, A_i = softargmax(Q_i K_iᵀ/√d_k).

    The head width d_k is d_model / num_heads. W_q, W_k and W_v have no bias, but W_h has a bias. `p` is the dropout
    probability of H in training. `d_input` contains the widths of X_q, X_k and X_v (default: d_model for each input).
    The inputs of a call determine whether the layer computes self-attention or cross-attention. Raises ValueError if
    d_model is not a multiple of num_heads.

    >>> temp_mha = MultiHeadAttention(d_model=512, num_heads=8, p=0)
    >>> x = torch.ones(2, 5, 512)
    >>> [tuple(t.shape) for t in temp_mha(x[:, :3], x, x)]
    [(2, 3, 512), (2, 8, 3, 5)]
    """

    num_heads = _part("attention.n_heads", "The number of heads.")
    d_model = _part("attention.q_proj.out_features", "The width of the queries of all heads together.")
    d_k = _part("attention.head_dim", "The width of the queries and keys of one head.")
    W_q = _part("attention.q_proj", "The linear layer that maps X_q to the queries of all heads.")
    W_k = _part("attention.k_proj", "The linear layer that maps X_k to the keys of all heads.")
    W_v = _part("attention.v_proj", "The linear layer that maps X_v to the values of all heads.")
    W_h = _part("attention.out_proj", "The output layer, which maps the concatenated heads to the output.")

    def __init__(self, d_model: int, num_heads: int, p: float, d_input: tuple[int, int, int] | None = None):
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not a multiple of num_heads={num_heads}; change one")
        d_xq, d_xk, d_xv = (d_model, d_model, d_model) if d_input is None else d_input
        d_k = d_model // num_heads
        self.attention = Attention(
            d_xq,
            num_heads,
            head_dim=d_k,
            d_memory=(d_xk, d_xv),
            bias=False,
            out_proj=nn.Linear(d_model, d_model),
            attend=Attend(scale=d_k**-0.5),  # T02's keys have another width than d_k
        )
        self.dropout = Dropout(float(p))

    @classmethod
    def over(cls, attention: Attention, dropout: Dropout | None = None) -> MultiHeadAttention:
        """Wrap an attention module of attendo and its dropout (default: none). The parameters are shared."""
        return _wrapped(cls, attention=attention, dropout=dropout or Dropout())

    def scaled_dot_product_attention(
        self,
        Q: Float[Tensor, "bs heads q_len d_q"],
        K: Float[Tensor, "bs heads k_len d_q"],
        V: Float[Tensor, "bs heads k_len d_v"],
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "bs heads q_len d_v"], Float[Tensor, "bs heads q_len k_len"]]:
        """Return the output H = AV and the weights A = softargmax(QKᵀ/√d_k) over the keys that the mask allows.

        The scale uses the width d_k of the layer, even if Q and K have a different width.

        >>> mha = MultiHeadAttention(512, 8, 0)
        >>> K, V = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]]), torch.tensor([[[[1.0], [2.0]]]])
        >>> mha.scaled_dot_product_attention(K[:, :, :1], K, V)[1]
        tensor([[[[1.0000e+00, 3.7266e-06]]]])
        """
        noted: dict[Part, Tensor] = {}
        leaf = RecordingAttend(self.attention.attend, ["weights"], noted.update)
        H = leaf(Q, K, V, mask)
        return H, noted["weights"]

    def split_heads(
        self, x: Float[Tensor, "bs len d_model"], batch_size: int | None = None
    ) -> Float[Tensor, "bs heads len d_k"]:
        """Split the vector of each token into one vector per head. `batch_size`, as in the notebook, is ignored.

        >>> MultiHeadAttention(6, 2, 0).split_heads(torch.ones(1, 4, 6), 1).shape
        torch.Size([1, 2, 4, 3])
        """
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def group_heads(
        self, x: Float[Tensor, "bs heads len d_k"], batch_size: int | None = None
    ) -> Float[Tensor, "bs len d_model"]:
        """Concatenate the vectors of all heads, the inverse of `split_heads`. `batch_size` is ignored.

        >>> MultiHeadAttention(6, 2, 0).group_heads(torch.ones(1, 2, 4, 3), 1).shape
        torch.Size([1, 4, 6])
        """
        return x.transpose(1, 2).flatten(2)

    def forward(
        self,
        X_q: Float[Tensor, "bs q_len d_xq"],
        X_k: Float[Tensor, "bs k_len d_xk"],
        X_v: Float[Tensor, "bs k_len d_xv"],
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "bs q_len d_model"], Float[Tensor, "bs heads q_len k_len"]]:
        """Return the output H and the attention weights A of each head. Self-attention requires three equal inputs.

        A is exactly 0 for the keys that the mask hides (default: no key is hidden).
        """
        Q = self.split_heads(self.W_q(X_q))
        K, V = self.attention.keys_values(X_k, X_v)
        H_cat, A = self.scaled_dot_product_attention(Q, K, V, mask)
        return self.dropout(self.W_h(self.group_heads(H_cat))), A


class CNN(nn.Module):
    """The lecture's convolution of width 1: dropout(W₂ ReLU(W₁x + b₁) + b₂) at each position, with probability `p`.

    >>> CNN(d_model=4, hidden_dim=8, p=0)(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    k1convL1 = _part("feed_forward.in_proj", "The first dense layer.")
    k1convL2 = _part("feed_forward.out_proj", "The second dense layer.")

    def __init__(self, d_model: int, hidden_dim: int, p: float):
        super().__init__()
        self.feed_forward = FeedForward(d_model, hidden_dim)
        self.dropout = Dropout(float(p))

    @classmethod
    def over(cls, feed_forward: FeedForward, dropout: Dropout | None = None) -> CNN:
        """Wrap a feed-forward network of attendo and its dropout (default: none). The parameters are shared."""
        return _wrapped(cls, feed_forward=feed_forward, dropout=dropout or Dropout())

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply the two dense layers to each position separately."""
        return self.dropout(self.feed_forward(x))


FFN = CNN
"""The name of `CNN` on the lecture's web page; the notebook uses `CNN`."""


class _Layer(nn.Module, Generic[BlockT]):
    """The first and the last sub-layer of a block of attendo, which encoder and decoder layers have in common."""

    block: BlockT
    layernorm1 = _part("block.self_attention_residual.norm", "The layer normalization after the self-attention.")

    @classmethod
    def over(cls, block: BlockT) -> Self:
        """Wrap a block of attendo in this class. The parameters are shared."""
        return _wrapped(cls, block=block)

    @property
    def mha(self) -> MultiHeadAttention:
        """The self-attention of the layer. `mha(x, x, x)` also returns the attention weights."""
        return MultiHeadAttention.over(self.block.self_attention, self.block.self_attention_residual.dropout)

    @property
    def cnn(self) -> CNN:
        """The feed-forward network of the layer."""
        return CNN.over(self.block.feed_forward, self.block.feed_forward_residual.dropout)


def _add_norm(d_model: int, p: float) -> blocks.Residual:
    return blocks.Residual(nn.LayerNorm(d_model, eps=1e-6), norm_first=False, dropout=float(p))


class EncoderLayer(_Layer[blocks.EncoderBlock]):
    """An encoder layer: LN₂(y + CNN(y)), y = LN₁(x + MHA(x, x, x)), with ε = 1e-6 and dropout `p` in MHA and CNN.

    >>> EncoderLayer(d_model=4, num_heads=2, conv_hidden_dim=8)(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    layernorm2 = _part("block.feed_forward_residual.norm", "The layer normalization after the feed-forward network.")

    def __init__(self, d_model: int, num_heads: int, conv_hidden_dim: int, p: float = 0.1):
        super().__init__()
        self.block = blocks.EncoderBlock(
            MultiHeadAttention(d_model, num_heads, p).attention,
            CNN(d_model, conv_hidden_dim, p).feed_forward,
            partial(_add_norm, d_model, p),
        )

    def forward(self, x: Float[Tensor, "bs len d_model"], mask: Mask | None = None) -> Float[Tensor, "bs len d_model"]:
        """Return the output at each position. Each position attends to all positions that the mask allows."""
        return self.block(x, mask)


class DecoderLayer(_Layer[blocks.DecoderBlock]):
    """A decoder layer: LN₃(z + CNN(z)), z = LN₂(u + MHA₂(u, h_enc, h_enc)), u = LN₁(y + MHA₁(y, y, y)).

    MHA₁ is causal: each position attends to itself and to earlier positions. MHA₂ is the cross-attention to the output
    h_enc of the encoder. ε and `p` are as in `EncoderLayer`. The lecture describes this layer in its section on the
    decoder module and in figure 4.

    >>> layer = DecoderLayer(d_model=4, num_heads=2, conv_hidden_dim=8)
    >>> layer(torch.ones(1, 3, 4), h_enc=torch.ones(1, 5, 4)).shape
    torch.Size([1, 3, 4])
    """

    layernorm2 = _part("block.cross_attention_residual.norm", "The layer normalization after the cross-attention.")
    layernorm3 = _part("block.feed_forward_residual.norm", "The layer normalization after the feed-forward network.")

    def __init__(self, d_model: int, num_heads: int, conv_hidden_dim: int, p: float = 0.1):
        super().__init__()
        self.block = blocks.DecoderBlock(
            MultiHeadAttention(d_model, num_heads, p).attention,
            MultiHeadAttention(d_model, num_heads, p).attention,
            CNN(d_model, conv_hidden_dim, p).feed_forward,
            partial(_add_norm, d_model, p),
        )

    @property
    def cross_mha(self) -> MultiHeadAttention:
        """The cross-attention of the layer. `cross_mha(u, h_enc, h_enc)` also returns the attention weights."""
        attention, residual = self.block.cross_attention, self.block.cross_attention_residual
        if attention is None or residual is None:
            raise ValueError("the block of this layer has no cross-attention; wrap a block of an encoder-decoder")
        return MultiHeadAttention.over(attention, residual.dropout)

    def forward(
        self,
        y: Float[Tensor, "bs t_len d_model"],
        h_enc: Float[Tensor, "bs len d_model"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "bs t_len d_model"]:
        """Return h_dec, the output at each target position. The mask hides padding in `h_enc` (default: no padding)."""
        return self.block(y, h_enc, Mask(causal=True), mask)


class Embeddings(nn.Module):
    """The input embedding dropout(LN(E[ids] + PE)), with ε = 1e-12, unscaled embeddings and sinusoidal positions.

    `p` is the dropout probability in training. Row 1 of the embedding, the padding row, is 0 and stays 0. The position
    table of the notebook ends at max_position_embeddings. A longer text or an id outside the vocabulary raises
    ValueError.

    >>> Embeddings(d_model=4, vocab_size=9, max_position_embeddings=5, p=0)(torch.tensor([[2, 3, 1]])).shape
    torch.Size([1, 3, 4])
    """

    word_embeddings = _part("embedding.tokens", "The token embedding, with one row per token id.")
    LayerNorm = _part("embedding.norm", "The layer normalization of the sum of embedding and position.")

    def __init__(self, d_model: int, vocab_size: int, max_position_embeddings: int, p: float):
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        tokens = TokenEmbedding(vocab_size, d_model, scaled=False, pad_id=PAD_ID)
        presets.start_as_in_the_notebook(tokens)
        positions = FixedPositions(partial(sinusoidal_encoding, d_model=d_model))
        self.embedding = InputEmbedding(tokens, positions, nn.LayerNorm(d_model, eps=1e-12), float(p))

    @classmethod
    def over(cls, embedding: InputEmbedding, max_position_embeddings: int) -> Embeddings:
        """Wrap an embedding module of attendo in this class. The parameters are shared."""
        return _wrapped(cls, embedding=embedding, max_position_embeddings=max_position_embeddings)

    def forward(
        self, input_ids: Int[Tensor, "bs len"], cache: DecoderCache | None = None
    ) -> Float[Tensor, "bs len d_model"]:
        """Return one vector per token. With a cache, the tokens follow the positions in the cache."""
        start, n_before = (None, 0) if cache is None else (cache.lengths, cache.longest)
        end = n_before + input_ids.shape[1]
        _check_texts(input_ids, len(self.word_embeddings.weight), end, self.max_position_embeddings)
        return self.embedding(input_ids, start, end)

    def mask(self, input_ids: Int[Tensor, "bs len"]) -> Mask | None:
        """Return the padding mask of the texts, or None if no id of the embedding is padding."""
        pad_id = self.word_embeddings.pad_id
        return None if pad_id is None else padding_mask(input_ids, pad_id)


class Encoder(nn.Module):
    """An encoder: `Embeddings`, followed by num_layers layers of type `EncoderLayer`, each with dropout `p`.

    With `as_published`, the encoder ignores `p`, and padding receives attention as in the notebook.

    >>> encoder = Encoder(2, 4, 2, ff_hidden_dim=8, input_vocab_size=9, maximum_position_encoding=5)
    >>> encoder(torch.tensor([[2, 3, 1]])).shape
    torch.Size([1, 3, 4])
    """

    num_layers = property(lambda self: len(self.encoder.blocks), doc="The number of layers.")

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        ff_hidden_dim: int,
        input_vocab_size: int,
        maximum_position_encoding: int,
        p: float = 0.1,
        *,
        as_published: bool = False,
    ):
        super().__init__()
        p = 0.0 if as_published else p
        self.embedding = Embeddings(d_model, input_vocab_size, maximum_position_encoding, p)
        layers = (EncoderLayer(d_model, num_heads, ff_hidden_dim, p) for _ in range(num_layers))
        self.encoder = blocks.Encoder(layer.block for layer in layers)
        self.as_published = as_published

    @classmethod
    def over(
        cls, embedding: InputEmbedding, encoder: blocks.Encoder, max_len: int, *, as_published: bool = False
    ) -> Encoder:
        """Wrap an embedding module and an encoder of attendo in this class. The parameters are shared."""
        embeddings = Embeddings.over(embedding, max_len)
        return _wrapped(cls, embedding=embeddings, encoder=encoder, as_published=as_published)

    @property
    def enc_layers(self) -> list[EncoderLayer]:
        """The layers, in the order in which they run."""
        return [EncoderLayer.over(block) for block in self.encoder.blocks]

    def forward(self, x: Int[Tensor, "bs len"], mask: Mask | None = None) -> Float[Tensor, "bs len d_model"]:
        """Return one vector per token id. By default, the mask hides the padding at the end of each text."""
        if mask is None and not self.as_published:
            mask = self.embedding.mask(x)
        return self.encoder(self.embedding(x), mask)


class Decoder(nn.Module):
    """A decoder: `Embeddings`, followed by num_layers layers of type `DecoderLayer`, each with dropout `p`.

    The arguments are named as in `Encoder`. To predict tokens, map the output h_dec to logits with a linear layer.

    >>> sizes = dict(num_layers=2, d_model=4, num_heads=2, ff_hidden_dim=8, maximum_position_encoding=5)
    >>> encoder, decoder = Encoder(input_vocab_size=9, **sizes), Decoder(target_vocab_size=7, **sizes)
    >>> x, y = torch.tensor([[2, 3, 1]]), torch.tensor([[0, 6]])
    >>> decoder(y, encoder(x), padding_mask(x)).shape
    torch.Size([1, 2, 4])
    """

    num_layers = property(lambda self: len(self.decoder.blocks), doc="The number of layers.")

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        ff_hidden_dim: int,
        target_vocab_size: int,
        maximum_position_encoding: int,
        p: float = 0.1,
    ):
        super().__init__()
        self.embedding = Embeddings(d_model, target_vocab_size, maximum_position_encoding, p)
        layers = (DecoderLayer(d_model, num_heads, ff_hidden_dim, p) for _ in range(num_layers))
        self.decoder = blocks.Decoder(layer.block for layer in layers)

    @classmethod
    def over(cls, embedding: InputEmbedding, decoder: blocks.Decoder, max_len: int) -> Decoder:
        """Wrap an embedding module and a decoder of attendo in this class. The parameters are shared."""
        return _wrapped(cls, embedding=Embeddings.over(embedding, max_len), decoder=decoder)

    @property
    def dec_layers(self) -> list[DecoderLayer]:
        """The layers, in the order in which they run."""
        return [DecoderLayer.over(block) for block in self.decoder.blocks]

    def forward(
        self,
        y: Int[Tensor, "bs t_len"],
        h_enc: Float[Tensor, "bs len d_model"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "bs t_len d_model"]:
        """Return h_dec, from which the token after each target position is predicted.

        `mask` is the `padding_mask` of the source texts (default: no padding). The target texts need no padding mask,
        because the causal mask hides all later positions.
        """
        return self.decoder(self.embedding(y), h_enc, Mask(causal=True), mask)

    def start(
        self, h_enc: Float[Tensor, "bs len d_model"], mask: Mask | None = None, capacity: int = 256
    ) -> DecoderCache:
        """Return a cache for `step` with the keys and values of `h_enc`, for at most `capacity` target positions."""
        return self.decoder.start(h_enc, mask, 1, capacity)

    def step(self, y: Int[Tensor, "bs n"], cache: DecoderCache) -> Float[Tensor, "bs n d_model"]:
        """Return h_dec of the next `n` tokens of each text. The cache keeps the keys and values of these tokens."""
        return self.decoder.step(self.embedding(y, cache), cache)


class TransformerClassifier(nn.Module):
    """A text classifier: logits = dense(max over time of Encoder(x)), where the encoder has dropout `p`.

    The attribute `model` contains the preset `nyu_classifier`. A text can have at most 10,000 tokens, as in the
    notebook. A longer text or an id outside the vocabulary raises ValueError. With `as_published`, the classifier
    ignores `p`, and attention and the maximum include padding as in the notebook.

    >>> model = TransformerClassifier(num_layers=1, d_model=32, num_heads=2,
    ...                               conv_hidden_dim=128, input_vocab_size=50, num_answers=2)
    >>> model(torch.tensor([[2, 3, 1], [4, 5, 6]])).shape
    torch.Size([2, 2])
    >>> model(torch.tensor([[2, 50]]))
    Traceback (most recent call last):
    ValueError: id 50 is none of a vocabulary of 50 tokens, whose ids are 0 to 49; give ids of this vocabulary
    """

    dense = _part("model.output_proj", "The dense layer that maps the pooled vector to the logits.")

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        conv_hidden_dim: int,
        input_vocab_size: int,
        num_answers: int,
        p: float = 0.1,
        *,
        as_published: bool = False,
    ):
        super().__init__()
        self.model = presets.nyu_classifier(
            vocab_size=input_vocab_size,
            n_classes=num_answers,
            d_model=d_model,
            n_heads=num_heads,
            d_ff=conv_hidden_dim,
            n_layers=num_layers,
            dropout=0.0 if as_published else float(p),
        )
        self.as_published = as_published

    @property
    def encoder(self) -> Encoder:
        """The embedding and the layers of the model."""
        model = self.model
        return Encoder.over(model.embedding, model.encoder, model.config.max_len, as_published=self.as_published)

    def forward(self, x: Int[Tensor, "bs len"]) -> Float[Tensor, "bs num_answers"]:
        """Return the logits of each text."""
        _check_texts(x, self.model.config.vocab_size, x.shape[1], self.model.config.max_len)
        return self.model(x, None if self.as_published else padding_mask(x).key_lengths)


def _check_texts(token_ids: Tensor, vocab_size: int, end: int, most: int) -> None:
    if len(outside := token_ids[(token_ids < 0) | (token_ids >= vocab_size)]):
        raise ValueError(
            f"id {int(outside[0])} is none of a vocabulary of {vocab_size} tokens, whose ids are 0 to {vocab_size - 1};"
            " give ids of this vocabulary"
        )
    if end > most:
        raise ValueError(f"the texts have {end} tokens, but the positions end at {most}; cut the texts")
