"""The small examples of the figures about attention: every number is computed by attendo, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.i18n import Language
from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder
from attendo.nn.attention import Attention, attention_scores, attention_weights
from attendo.nn.positions import sinusoidal_encoding

Array = Float[np.ndarray, "rows columns"]

ONE_QUERY: dict[Language, tuple[str, ...]] = {
    "en": ("cats", "drink", "cold", "milk"),
    "ja": ("猫が", "冷たい", "牛乳を", "飲む"),
}
WORD_ORDER: dict[Language, tuple[int, ...]] = {"en": (0, 1, 2, 3), "ja": (0, 2, 3, 1)}
"""The order of the rows of X_ENGLISH in each language."""
X_ENGLISH = ((0, 0, 2), (1, 1, -1), (-1, 1, 1), (0, 2, 2))
W_Q = ((0, -1, 0, 0), (1, 0, 0, 1), (-1, 0, -1, 0))
W_K = ((1, 0, -1, 0), (0, 0, 0, 1), (1, 1, 1, 0))
W_V = ((1, 0), (1, 0), (0, 1))


@dataclass(frozen=True)
class OneQuery:
    """Attention for one query, step by step. Rows are tokens, and products are x W.

    Attributes:
        index: Position of the query.
        products: q·k_t.
        scores: q·k_t / √d_k.
        exponentials: e to the power of each score.
        weights: The softmax of the scores.
        weighted: Each value times its weight.
        result: z, the sum of `weighted`.
    """

    words: tuple[str, ...]
    index: int
    x: Array
    w_q: Array
    w_k: Array
    w_v: Array
    query: Array
    keys: Array
    values: Array
    products: Array
    scores: Array
    exponentials: Array
    weights: Array
    weighted: Array
    result: Array


def one_query(language: Language = "en") -> OneQuery:
    """Return the attention of "drink" in a sentence of four words, with integer vectors and matrices.

    >>> found = one_query()
    >>> found.products.tolist(), found.weights.round(3).tolist()
    ([[4.0, 0.0, 2.0, 6.0]], [[0.237, 0.032, 0.087, 0.644]])
    """
    order = WORD_ORDER[language]
    x = torch.tensor(X_ENGLISH, dtype=torch.float64)[list(order)]
    w_q, w_k, w_v = (torch.tensor(w, dtype=torch.float64) for w in (W_Q, W_K, W_V))
    index = order.index(1)
    query, keys, values = x[index : index + 1] @ w_q, x @ w_k, x @ w_v
    weights = attention_weights(query, keys)
    weighted = weights.T * values
    scores = attention_scores(query, keys)
    arrays = (x, w_q, w_k, w_v, query, keys, values, attention_scores(query, keys, scale=1.0), scores)
    later = (scores.exp(), weights, weighted, weights @ values)
    return OneQuery(ONE_QUERY[language], index, *(array.numpy() for array in (*arrays, *later)))


HEADS: dict[Language, tuple[str, ...]] = {
    "en": ("the", "cat", "sees", "the", "big", "cat"),
    "ja": ("猫", "が", "猫", "を", "見て", "いる"),
}
N_WORDS = 5  # directions of word vectors
GAIN = 5.0  # of queries and keys: how sharply a head attends


@dataclass(frozen=True)
class Heads:
    """The heads of a layer: attention maps, head outputs, their concatenation, W_o and the output of the layer."""

    words: tuple[str, ...]
    weights: Float[np.ndarray, "heads len len"]
    outputs: Float[np.ndarray, "heads len head_dim"]
    concatenated: Array
    w_o: Array
    result: Array


def heads(language: Language = "en") -> Heads:
    """Return the attention of four heads of width 2: previous word, next word, same word, all words equally.

    The queries, keys and values are set by hand in a layer of attendo. W_o is random (PCG64, seed 0). A vector x has
    4 numbers for the word (two points on circles) and 4 sinusoids of the position.

    >>> heads().weights[2, 1].round(2).tolist()  # the word "cat" finds itself at both places
    [0.0, 0.5, 0.0, 0.0, 0.0, 0.5]
    """
    words = HEADS[language]
    distinct = list(dict.fromkeys(words))
    x = _word_vectors([distinct.index(word) for word in words])
    layer = _layer_of_heads()
    with torch.no_grad():
        query = layer.q_proj(x).unflatten(-1, (4, 2)).transpose(0, 1)
        keys, values = (part[0] for part in layer.keys_values(x[None]))
        weights = attention_weights(query, keys)
        outputs = weights @ values
        result = layer(x[None], x[None])[0]
    together = outputs.transpose(0, 1).flatten(1)
    arrays = (weights, outputs, together, layer.state_dict()["out_proj.weight"].T, result)
    return Heads(words, *(array.numpy() for array in arrays))


def _word_vectors(ids: list[int]) -> Float[Tensor, "len d_model"]:
    """Return [cos α, sin α, cos 2α, sin 2α, sinusoids of the position], where α is a multiple of 72° for each word."""
    angles = torch.tensor(ids, dtype=torch.float64) * 2 * math.pi / N_WORDS
    word = torch.stack([angles.cos(), angles.sin(), (2 * angles).cos(), (2 * angles).sin()], dim=-1)
    position = sinusoidal_encoding(torch.arange(len(ids)), 4, base=4.0, dtype=torch.float64)
    return torch.cat([word, position], dim=-1)


def _layer_of_heads() -> Attention:
    """Return a layer whose heads compare positions shifted by -1 and 1, words, and nothing."""
    layer = Attention(8, 4, bias=False).double()
    query, key, value = (torch.zeros(4, 2, 8, dtype=torch.float64) for _ in range(3))
    sine_cosine = torch.eye(8, dtype=torch.float64)[6:]  # of the slow sinusoid: half a radian per position
    for head, shift in enumerate((-0.5, 0.5)):
        cosine, sine = math.cos(shift), math.sin(shift)
        turn = torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64)
        query[head], key[head] = GAIN * turn @ sine_cosine, GAIN * sine_cosine
    query[2] = key[2] = GAIN * torch.eye(2, 8, dtype=torch.float64)
    value[:] = torch.eye(2, 8, dtype=torch.float64)
    random = np.random.default_rng(0).standard_normal((8, 8)) / math.sqrt(8)
    parts = {"q_proj": query, "k_proj": key, "v_proj": value}
    weights = {f"{name}.weight": part.flatten(0, 1) for name, part in parts.items()}
    layer.load_state_dict(weights | {"out_proj.weight": torch.from_numpy(random).T})
    return layer.eval()


TRANSLATION: dict[Language, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "en": (("Katzen", "trinken", "Milch"), ("cats", "drink", "milk")),
    "ja": (("cats", "drink", "milk"), ("猫は", "牛乳を", "飲む")),
}


@dataclass(frozen=True)
class TranslationSteps:
    """The keys and values of a decoder during a translation.

    Attributes:
        source: Words of the source.
        inputs: Input of the decoder in each step.
        outputs: Output of the decoder in each step.
        memory: h^Enc, the output of the encoder.
        memory_keys: Keys of the cross-attention of each decoder layer, computed once.
        memory_values: Values of the cross-attention of each decoder layer, computed once.
        keys: Keys of the self-attention of the first decoder layer after each step.
        values: Values of the self-attention of the first decoder layer after each step.
    """

    source: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    memory: Array
    memory_keys: tuple[Array, ...]
    memory_values: tuple[Array, ...]
    keys: tuple[Array, ...]
    values: tuple[Array, ...]


def translation_steps(language: Language = "en") -> TranslationSteps:
    """Return the cache of a tiny translator with random weights (seed 0), to which the translation is given.

    >>> [keys.shape for keys in translation_steps().keys]
    [(1, 4), (2, 4), (3, 4), (4, 4)]
    """
    source, target = TRANSLATION[language]
    sizes = (("d_model", 4), ("d_ff", 8), ("n_heads", 1), ("n_encoder_layers", 2), ("n_decoder_layers", 2))
    config: dict[str, Any] = {"vocab_size": 8, **dict(sizes)}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = EncoderDecoder(ModelConfig(**config)).double().eval()
        memory = model.encode(torch.tensor([[2, 3, 4]]))
        cache = model.decoder.start(memory, None, rows_per_source=1, capacity=len(target) + 1)
        first = cache.blocks[0]
        keys, values = [], []
        for token in (1, 5, 6, 7):
            model.step(torch.tensor([[token]]), cache)
            keys.append(first.key[0, 0, : cache.longest].numpy().copy())
            values.append(first.value[0, 0, : cache.longest].numpy().copy())
    memory_keys = tuple(block.memory_key[0, 0].numpy() for block in cache.blocks)
    memory_values = tuple(block.memory_value[0, 0].numpy() for block in cache.blocks)
    words = source, ("<bos>", *target), (*target, "<eos>")
    return TranslationSteps(*words, memory[0].numpy(), memory_keys, memory_values, tuple(keys), tuple(values))
