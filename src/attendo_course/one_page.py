"""A GPT on one page: from text to the next word, with every step of the model, of its training and of its use.

Read this file from top to bottom. It requires only torch. Run: python -m attendo_course.one_page

The model is a decoder-only Transformer with learned positions, pre-norm, and one matrix for input and output words, as
in GPT-2 (Radford et al. 2019; Phuong & Hutter 2022, algorithms 10, 13 and 14). Three choices make it easier to check
by hand: a token is a word, attention has no biases, and the activation is ReLU.
"""

import math
from collections import namedtuple

import torch
from torch import Tensor

N_LAYERS, D_MODEL, N_HEADS, D_FF, CONTEXT = 2, 8, 2, 16, 8  # the model reads at most CONTEXT words at once
TEXT = """
the cat sat on the mat . the dog sat on the rug . the bird sat on the branch .
the cat slept on the bed . the dog slept on the rug . the bird slept in the nest .
the cat sat on the bed . the dog sat on the rug . the bird sat on the branch .
the cat sat on the mat . the dog slept on the bed . the bird slept in the nest .
"""
Weights = dict[str, Tensor]  # by name; "1 W_Q" is the matrix W_Q of layer 1
Steps = namedtuple("Steps", "words positions x layers normed logits")  # every result of the model
LayerSteps = namedtuple(
    "LayerSteps", "normed_1 query key value scores weights mixed attended middle normed_2 hidden fed output"
)

# 1. From text to ids. A large GPT splits rare words into parts. Here, a token is a word or a period.


def encode(text: str, vocabulary: list[str]) -> Tensor:
    """Return the id of each word, which is its index in the vocabulary. Raise ValueError for an unknown word.

    >>> encode("the cat sat .", [".", "cat", "sat", "the"])
    tensor([3, 1, 2, 0])
    """
    return torch.tensor([vocabulary.index(word) for word in text.split()])  # [len]


# 2. The weights: all numbers that training changes. At first, the matrices are random.


def new_weights(n_words: int, seed: int = 3) -> Weights:
    """Return the weights before training, in float64, for a vocabulary of n_words words.

    >>> sum(weight.numel() for weight in new_weights(n_words=14).values())
    1328
    """
    d, random = D_MODEL, torch.Generator().manual_seed(seed)
    layer = {"gain_1": [d], "shift_1": [d], "W_Q": [d, d], "W_K": [d, d], "W_V": [d, d], "W_O": [d, d]}
    layer |= {"gain_2": [d], "shift_2": [d], "W_1": [d, D_FF], "b_1": [D_FF], "W_2": [D_FF, d], "b_2": [d]}
    shapes = {"words": [n_words, d], "positions": [CONTEXT, d], "gain": [d], "shift": [d]}
    for i in range(1, N_LAYERS + 1):
        shapes |= {f"{i} {name}": shape for name, shape in layer.items()}
    weights = {}
    for name, shape in shapes.items():
        weight = torch.full(shape, 1.0 if "gain" in name else 0.0, dtype=torch.float64)
        if len(shape) == 2:
            weight.normal_(std=shape[1] ** -0.5, generator=random)
        weights[name] = weight.requires_grad_()
    return weights


# 3. One layer. Attention moves information between words. Then the feed-forward network changes each word's vector.
# In the shapes, "..." is the number of texts, or nothing for one text.


def normalize(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Scale each vector to mean 0 and variance 1, then multiply by the gain and add the shift (layer normalization).

    >>> normalize(torch.tensor([1.0, 3.0]), torch.ones(2), torch.zeros(2))
    tensor([-1.0000,  1.0000])
    """
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain + shift


def softmax(x: Tensor) -> Tensor:
    """Turn each row into positive numbers with sum 1. Subtracting the largest number first prevents overflow.

    >>> softmax(torch.tensor([0.0, math.log(3.0)]))
    tensor([0.2500, 0.7500])
    """
    exp = (x - x.amax(-1, keepdim=True)).exp()
    return exp / exp.sum(-1, keepdim=True)


def run_layer(all_weights: Weights, i: int, x: Tensor) -> LayerSteps:
    """Return every result inside layer i for the vectors x, [..., len, d_model].

    >>> run_layer(new_weights(14), 1, torch.zeros(5, D_MODEL).double()).weights.shape
    torch.Size([2, 5, 5])
    """
    w = {name.split()[-1]: weight for name, weight in all_weights.items() if name.startswith(f"{i} ")}
    normed_1 = normalize(x, w["gain_1"], w["shift_1"])
    # three vectors per word, cut into heads of width head_dim = d_model / heads: [..., heads, len, head_dim]
    vectors = [normed_1 @ w["W_Q"], normed_1 @ w["W_K"], normed_1 @ w["W_V"]]
    query, key, value = [v.unflatten(-1, (N_HEADS, -1)).transpose(-3, -2) for v in vectors]
    # a row for each query and a column for each key, [..., heads, len, len]; later words get the weight exp(-∞) = 0
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = softmax(scores.masked_fill(later, -math.inf))
    mixed = weights @ value  # a weighted mean of the values, [..., heads, len, head_dim]
    attended = mixed.transpose(-3, -2).flatten(-2) @ w["W_O"]  # the heads side by side, [..., len, d_model]
    middle = x + attended  # residual connection
    normed_2 = normalize(middle, w["gain_2"], w["shift_2"])
    hidden = (normed_2 @ w["W_1"] + w["b_1"]).relu()  # negative numbers become 0, [..., len, d_ff]
    fed = hidden @ w["W_2"] + w["b_2"]  # [..., len, d_model]
    attention = normed_1, query, key, value, scores, weights, mixed, attended
    return LayerSteps(*attention, middle, normed_2, hidden, fed, output=middle + fed)


# 4. The whole model, from ids to logits. The logits at a position rate the words that can follow there.


def run(weights: Weights, ids: Tensor) -> Steps:
    """Return every result of the model for ids, [..., len], with at most CONTEXT ids per text.

    >>> run(new_weights(14), torch.tensor([13, 4, 11])).logits.shape
    torch.Size([3, 14])
    """
    words, positions = weights["words"][ids], weights["positions"][: ids.shape[-1]]
    layers, x = [], words + positions  # [..., len, d_model]
    for i in range(1, N_LAYERS + 1):
        layers.append(run_layer(weights, i, layers[-1].output if layers else x))
    normed = normalize(layers[-1].output, weights["gain"], weights["shift"])
    logits = normed @ weights["words"].T  # [..., len, n_words]
    return Steps(words, positions, x, layers, normed, logits)


# 5. Training makes the words that really follow in the text more probable.


def mean_loss(weights: Weights, ids: Tensor) -> Tensor:
    """Return the cross-entropy, which is the mean of -log p(next word), in nats for ids [..., len].

    >>> round(mean_loss(new_weights(14), torch.tensor([13, 4, 11])).item(), 2)
    3.84
    """
    probabilities = softmax(run(weights, ids[..., :-1]).logits)
    return -probabilities.gather(-1, ids[..., 1:, None]).log().mean()


def train(weights: Weights, ids: Tensor, n_steps: int = 200, rate: float = 0.01) -> list[float]:
    """Train on all windows of a text with Adam (Kingma & Ba 2015), and return the loss before each step.

    >>> train(new_weights(2), torch.tensor([0, 1] * 8), n_steps=20)[-1] < 0.2
    True
    """
    windows = ids.unfold(0, CONTEXT + 1, 1)  # [windows, CONTEXT + 1]
    losses, moments = [], [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights.values()]
    for step in range(1, n_steps + 1):
        loss = mean_loss(weights, windows)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(weights.values()))  # backpropagation
        with torch.no_grad():
            for w, g, (mean, square) in zip(weights.values(), gradients, moments, strict=True):
                mean += 0.1 * (g - mean)  # running means of the gradient and of its square
                square += 0.001 * (g * g - square)
                w -= rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    return losses


# 6. Use: draw the next word, append it to the text, and repeat.


def draw(probabilities: Tensor, u: float) -> int:
    """Return the id whose part of the line from 0 to 1 contains u. Each part is as long as the word's probability.

    >>> [draw(torch.tensor([0.5, 0.2, 0.3]), u) for u in (0.49, 0.69, 0.71)]
    [0, 1, 2]
    """
    return min(int((probabilities.cumsum(-1) <= u).sum()), len(probabilities) - 1)


@torch.no_grad()
def generate(weights: Weights, ids: Tensor, n_words: int, temperature: float = 1.0, seed: int = 0) -> Tensor:
    """Append words to ids, [len]. Temperature 0 takes the most probable word; a high temperature draws more freely.

    >>> generate(new_weights(14), torch.tensor([13, 4]), n_words=3).shape
    torch.Size([5])
    """
    random = torch.Generator().manual_seed(seed)
    for _ in range(n_words):
        logits = run(weights, ids[-CONTEXT:]).logits[-1]  # the last position rates the next word
        u = torch.rand((), generator=random).item()
        word = draw(softmax(logits / temperature), u) if temperature else int(logits.argmax())
        ids = torch.cat([ids, torch.tensor([word])])
    return ids


if __name__ == "__main__":
    vocabulary: list[str] = sorted({*TEXT.split()})
    weights = new_weights(len(vocabulary))
    losses = train(weights, encode(TEXT, vocabulary))
    print(f"loss: {losses[0]:.2f} nats before training, {losses[-1]:.2f} nats after training")
    for temperature in (0.0, 1.0, 3.0):
        ids = generate(weights, encode("the cat sat on the", vocabulary), 16, temperature)
        print(f"temperature {temperature:g}:", *[vocabulary[i] for i in ids])
