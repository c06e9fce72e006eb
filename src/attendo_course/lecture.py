"""The classes of the NYU lecture, with their original names and arguments, as a thin adapter over `attendo.nn`.

The lecture is NYU Deep Learning (2020), week 12, part 3, with notebook 15. To run the notebook on the classes of this
module, import the classes in the notebook:

    from attendo_course.lecture import MultiHeadAttention, EncoderLayer, Encoder, TransformerClassifier

Each class contains one module of attendo, which computes the result: `Attention`, `EncoderBlock`, `Encoder` or
`EncoderClassifier`. The class method `over` wraps an existing module of attendo. All classes accept the dropout
probability `p` but ignore it. The lecture also ignores `p`, and its results come from models without dropout. For a
model with dropout, use `ModelConfig`.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.inspecting.recording import Part, RecordingAttend
from attendo.nn import blocks
from attendo.nn.attention import Attend, Attention, masked_softmax
from attendo.nn.layers import FeedForward, InputEmbedding, TokenEmbedding
from attendo.nn.positions import FixedPositions, sinusoidal_encoding
from attendo_course import presets


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


PAD_ID = 1


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


class MultiHeadAttention(nn.Module):
    """Multi-head attention: H = [H₁ … H_h] W_h, H_i = A_i V_i, A_i = softargmax(Q_i K_iᵀ/√d_k).

    The head width d_k is d_model / num_heads. W_q, W_k and W_v have no bias, but W_h has a bias. The argument `p` is
    ignored. `d_input` contains the widths of X_q, X_k and X_v (default: d_model for each input). The inputs of a call
    determine whether the layer computes self-attention or cross-attention. Raises ValueError if d_model is not a
    multiple of num_heads.

    >>> temp_mha = MultiHeadAttention(d_model=512, num_heads=8, p=0)
    >>> x = torch.ones(2, 5, 512)
    >>> [tuple(t.shape) for t in temp_mha(x[:, :3], x, x)]
    [(2, 3, 512), (2, 8, 3, 5)]
    """

    def __init__(self, d_model: int, num_heads: int, p: float, d_input: tuple[int, int, int] | None = None):
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not a multiple of num_heads={num_heads}; change one")
        d_xq, d_xk, d_xv = (d_model, d_model, d_model) if d_input is None else d_input
        self.num_heads, self.d_model, self.d_k = num_heads, d_model, d_model // num_heads
        self.attention = Attention(
            d_xq,
            num_heads,
            head_dim=self.d_k,
            d_memory=(d_xk, d_xv),
            bias=False,
            out_proj=nn.Linear(d_model, d_model),
            attend=Attend(scale=self.d_k**-0.5),  # T02's keys have another width than d_k
        )

    @classmethod
    def over(cls, attention: Attention) -> MultiHeadAttention:
        """Wrap an attention module of attendo in this class. The parameters are shared."""
        d_xq, d_xk, d_xv = (p.in_features for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        with torch.device("meta"):
            adapter = cls(attention.q_proj.out_features, attention.n_heads, 0.0, (d_xq, d_xk, d_xv))
        adapter.attention = attention
        return adapter

    @property
    def W_q(self) -> nn.Linear:
        """The linear layer that maps X_q to the queries of all heads."""
        return self.attention.q_proj

    @property
    def W_k(self) -> nn.Linear:
        """The linear layer that maps X_k to the keys of all heads."""
        return self.attention.k_proj

    @property
    def W_v(self) -> nn.Linear:
        """The linear layer that maps X_v to the values of all heads."""
        return self.attention.v_proj

    @property
    def W_h(self) -> nn.Module:
        """The output layer, which maps the concatenated heads to the output."""
        return self.attention.out_proj

    def scaled_dot_product_attention(
        self,
        Q: Float[Tensor, "bs heads q_len d_q"],
        K: Float[Tensor, "bs heads k_len d_q"],
        V: Float[Tensor, "bs heads k_len d_v"],
    ) -> tuple[Float[Tensor, "bs heads q_len d_v"], Float[Tensor, "bs heads q_len k_len"]]:
        """Return the output H = AV and the weights A = softargmax(QKᵀ/√d_k).

        The scale uses the width d_k of the layer, even if Q and K have a different width.

        >>> mha = MultiHeadAttention(512, 8, 0)
        >>> K, V = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]]), torch.tensor([[[[1.0], [2.0]]]])
        >>> mha.scaled_dot_product_attention(K[:, :, :1], K, V)[1]
        tensor([[[[1.0000e+00, 3.7266e-06]]]])
        """
        noted: dict[Part, Tensor] = {}
        leaf = RecordingAttend(self.attention.attend, ["weights"], noted.update)
        H = leaf(Q, K, V)
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
    ) -> tuple[Float[Tensor, "bs q_len d_model"], Float[Tensor, "bs heads q_len k_len"]]:
        """Return the output H and the attention weights A of each head. Self-attention requires three equal inputs."""
        Q = self.split_heads(self.W_q(X_q))
        K, V = self.attention.keys_values(X_k, X_v)
        H_cat, A = self.scaled_dot_product_attention(Q, K, V)
        return self.W_h(self.group_heads(H_cat)), A


class CNN(nn.Module):
    """The lecture's convolution of width 1: W₂ ReLU(W₁x + b₁) + b₂ at each position. The argument `p` is ignored.

    >>> CNN(d_model=4, hidden_dim=8, p=0)(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, d_model: int, hidden_dim: int, p: float):
        super().__init__()
        self.feed_forward = FeedForward(d_model, hidden_dim)

    @classmethod
    def over(cls, feed_forward: FeedForward) -> CNN:
        """Wrap a feed-forward network of attendo in this class. The parameters are shared."""
        with torch.device("meta"):
            adapter = cls(feed_forward.in_proj.in_features, feed_forward.in_proj.out_features, 0.0)
        adapter.feed_forward = feed_forward
        return adapter

    @property
    def k1convL1(self) -> nn.Linear:
        """The first dense layer."""
        return self.feed_forward.in_proj

    @property
    def k1convL2(self) -> nn.Linear:
        """The second dense layer."""
        return self.feed_forward.out_proj

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply the two dense layers to each position separately."""
        return self.feed_forward(x)


FFN = CNN
"""The name of `CNN` on the lecture's web page; the notebook uses `CNN`."""


class EncoderLayer(nn.Module):
    """An encoder layer: LN₂(y + CNN(y)), y = LN₁(x + MHA(x, x, x)), with ε = 1e-6. The argument `p` is ignored.

    >>> EncoderLayer(d_model=4, num_heads=2, conv_hidden_dim=8)(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, d_model: int, num_heads: int, conv_hidden_dim: int, p: float = 0.1):
        super().__init__()
        self.block = blocks.EncoderBlock(
            MultiHeadAttention(d_model, num_heads, p).attention,
            CNN(d_model, conv_hidden_dim, p).feed_forward,
            lambda: blocks.Residual(nn.LayerNorm(d_model, eps=1e-6), norm_first=False),
        )

    @classmethod
    def over(cls, block: blocks.EncoderBlock) -> EncoderLayer:
        """Wrap an encoder block of attendo in this class. The parameters are shared."""
        attention, net = block.self_attention, block.feed_forward
        with torch.device("meta"):
            adapter = cls(attention.q_proj.in_features, attention.n_heads, net.in_proj.out_features)
        adapter.block = block
        return adapter

    @property
    def mha(self) -> MultiHeadAttention:
        """The attention of the layer. `mha(x, x, x)` also returns the attention weights."""
        return MultiHeadAttention.over(self.block.self_attention)

    @property
    def cnn(self) -> CNN:
        """The feed-forward network of the layer."""
        return CNN.over(self.block.feed_forward)

    @property
    def layernorm1(self) -> nn.Module:
        """The layer normalization after the attention."""
        return self.block.self_attention_residual.norm

    @property
    def layernorm2(self) -> nn.Module:
        """The layer normalization after the feed-forward network."""
        return self.block.feed_forward_residual.norm

    def forward(self, x: Float[Tensor, "bs len d_model"]) -> Float[Tensor, "bs len d_model"]:
        """Return the output at each position. Each position attends to all positions, without a mask."""
        return self.block(x)


class Embeddings(nn.Module):
    """The input embedding LN(E[ids] + PE), with ε = 1e-12, unscaled embeddings and sinusoidal positions.

    The argument `p` is ignored. Row 1 of the embedding, the padding row, is 0 and stays 0. The position table of the
    notebook ends at max_position_embeddings. A longer text or an id outside the vocabulary raises ValueError.

    >>> Embeddings(d_model=4, vocab_size=9, max_position_embeddings=5, p=0)(torch.tensor([[2, 3, 1]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, d_model: int, vocab_size: int, max_position_embeddings: int, p: float):
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        tokens = TokenEmbedding(vocab_size, d_model, scaled=False, pad_id=PAD_ID)
        presets.start_as_in_the_notebook(tokens)
        positions = FixedPositions(partial(sinusoidal_encoding, d_model=d_model))
        self.embedding = InputEmbedding(tokens, positions, nn.LayerNorm(d_model, eps=1e-12))

    @classmethod
    def over(cls, embedding: InputEmbedding, max_position_embeddings: int) -> Embeddings:
        """Wrap an embedding module of attendo in this class. The parameters are shared."""
        vocab_size, d_model = embedding.tokens.weight.shape
        with torch.device("meta"):
            adapter = cls(d_model, vocab_size, max_position_embeddings, 0.0)
        adapter.embedding = embedding
        return adapter

    @property
    def word_embeddings(self) -> TokenEmbedding:
        """The token embedding, with one row per token id."""
        return self.embedding.tokens

    @property
    def LayerNorm(self) -> nn.Module:
        """The layer normalization of the sum of embedding and position."""
        return self.embedding.norm

    def forward(self, input_ids: Int[Tensor, "bs len"]) -> Float[Tensor, "bs len d_model"]:
        """Return one vector per token."""
        _check_texts(input_ids, len(self.word_embeddings.weight), self.max_position_embeddings)
        return self.embedding(input_ids)


class Encoder(nn.Module):
    """An encoder: `Embeddings`, followed by num_layers layers of type `EncoderLayer`. The argument `p` is ignored.

    >>> encoder = Encoder(2, 4, 2, ff_hidden_dim=8, input_vocab_size=9, maximum_position_encoding=5)
    >>> encoder(torch.tensor([[2, 3, 1]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        ff_hidden_dim: int,
        input_vocab_size: int,
        maximum_position_encoding: int,
        p: float = 0.1,
    ):
        super().__init__()
        self.embedding = Embeddings(d_model, input_vocab_size, maximum_position_encoding, p)
        layers = (EncoderLayer(d_model, num_heads, ff_hidden_dim, p) for _ in range(num_layers))
        self.encoder = blocks.Encoder(layer.block for layer in layers)

    @classmethod
    def over(cls, embedding: InputEmbedding, encoder: blocks.Encoder, max_len: int) -> Encoder:
        """Wrap an embedding module and an encoder of attendo in this class. The parameters are shared."""
        vocab_size, d_model = embedding.tokens.weight.shape
        with torch.device("meta"):
            adapter = cls(0, d_model, 1, 1, vocab_size, max_len)
        adapter.embedding, adapter.encoder = Embeddings.over(embedding, max_len), encoder
        return adapter

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.encoder.blocks)

    @property
    def enc_layers(self) -> list[EncoderLayer]:
        """The layers, in the order in which they run."""
        return [EncoderLayer.over(block) for block in self.encoder.blocks]

    def forward(self, x: Int[Tensor, "bs len"]) -> Float[Tensor, "bs len d_model"]:
        """Return one vector per token id. Padding tokens are not masked, as in the lecture."""
        return self.encoder(self.embedding(x))


class TransformerClassifier(nn.Module):
    """A text classifier: logits = dense(max over time of Encoder(x)).

    The attribute `model` contains the preset `nyu_classifier`. A text can have at most 10,000 tokens, as in the
    notebook. A longer text or an id outside the vocabulary raises ValueError.

    >>> model = TransformerClassifier(num_layers=1, d_model=32, num_heads=2,
    ...                               conv_hidden_dim=128, input_vocab_size=50, num_answers=2)
    >>> model(torch.tensor([[2, 3, 1], [4, 5, 6]])).shape
    torch.Size([2, 2])
    >>> model(torch.tensor([[2, 50]]))
    Traceback (most recent call last):
    ValueError: id 50 is none of a vocabulary of 50 tokens, whose ids are 0 to 49; give ids of this vocabulary
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        conv_hidden_dim: int,
        input_vocab_size: int,
        num_answers: int,
    ):
        super().__init__()
        self.model = presets.nyu_classifier(
            vocab_size=input_vocab_size,
            n_classes=num_answers,
            d_model=d_model,
            n_heads=num_heads,
            d_ff=conv_hidden_dim,
            n_layers=num_layers,
        )

    @property
    def encoder(self) -> Encoder:
        """The embedding and the layers of the model."""
        return Encoder.over(self.model.embedding, self.model.encoder, self.model.config.max_len)

    @property
    def dense(self) -> nn.Linear:
        """The dense layer that maps the pooled vector to the logits."""
        return self.model.output_proj

    def forward(self, x: Int[Tensor, "bs len"]) -> Float[Tensor, "bs num_answers"]:
        """Return the logits of each text."""
        _check_texts(x, self.model.config.vocab_size, self.model.config.max_len)
        return self.model(x)


def _check_texts(token_ids: Tensor, vocab_size: int, most: int) -> None:
    if len(outside := token_ids[(token_ids < 0) | (token_ids >= vocab_size)]):
        raise ValueError(
            f"id {int(outside[0])} is none of a vocabulary of {vocab_size} tokens, whose ids are 0 to {vocab_size - 1};"
            " give ids of this vocabulary"
        )
    if token_ids.shape[1] > most:
        raise ValueError(
            f"the texts have {token_ids.shape[1]} tokens, but the positions end at {most}; cut the texts"
        )
