"""Algorithms 8 to 15 of Phuong & Hutter 2022: Transformers, their training and inference, on models of attendo."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.models import DecoderLM, EncoderDecoder, MaskedLM
from attendo.nn.attention import masked_softmax
from attendo.training.losses import token_losses
from attendo_course.algorithms.components import Text, core_ids, special_ids
from attendo_course.algorithms.hyperparameters import check_theta

ModelT = TypeVar("ModelT", EncoderDecoder, MaskedLM, DecoderLM)
ExampleT = TypeVar("ExampleT")


class Trained(NamedTuple, Generic[ModelT]):
    """The result of training: the model θ̂, and the loss of each step in nats, computed before the step."""

    theta: ModelT
    losses: list[float]


def EDTraining(
    texts: Sequence[tuple[Text, Text]], theta: EncoderDecoder, *, N_epochs: int, eta: float
) -> Trained[EncoderDecoder]:
    """Compute algorithm 11: θ ← θ - η ∇loss for each pair (z_n, x_n), N_epochs times (Phuong & Hutter 2022).

    The loss is -Σ_{t=1}^{ℓ-1} log P[x[t+1], t] with P = EDTransformer(z_n, x_n | θ). This loss is a sum over tokens,
    not a mean.

    Args:
        texts: The pairs of texts (z_n, x_n).
        theta: The initial model, which is copied and not changed.
        N_epochs: The number of epochs.
        eta: The learning rate η.

    Returns:
        The trained copy θ̂ and the loss of each step.

    Raises:
        ValueError: The model or a text is invalid, as in `EDTransformer`.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> _ = torch.manual_seed(0)
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> theta_hat, losses = EDTraining([([1, 2], [8, 2, 1, 9])], theta, N_epochs=10, eta=0.1)
    >>> losses[-1] < losses[0] / 2
    True
    """
    return _descend(texts, theta, lambda pair, model: ed_loss(*pair, model), N_epochs, eta)


def ETraining(
    texts: Sequence[Text],
    theta: MaskedLM,
    *,
    N_epochs: int,
    eta: float,
    p_mask: float,
    generator: torch.Generator | None = None,
) -> Trained[MaskedLM]:
    """Compute algorithm 12: train as in A11, with each token masked with probability p_mask (Phuong & Hutter 2022).

    The loss is -Σ_{t∈T̃} log P[x[t], t] over the masked positions T̃, with P = ETransformer(x̃ | θ). `masked` draws
    new masks in each epoch, and `e_loss` computes the loss. The paper omits the case without a masked token. If no
    token is masked, the loss is 0 and the step does not change the model.

    Args:
        texts: The texts.
        theta: The initial model, which is copied and not changed.
        N_epochs: The number of epochs.
        eta: The learning rate η.
        p_mask: The probability that a token is masked.
        generator: The random number generator (default: torch's global generator).

    Returns:
        The trained copy θ̂ and the loss of each step.

    Raises:
        ValueError: The model or a text is invalid, as in `ETransformer`, or p_mask is outside 0..1.

    >>> from attendo_course.algorithms import formal_e_config
    >>> theta = MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> ETraining([[8, 1, 2, 9]], theta, N_epochs=2, eta=0.1, p_mask=0.0).losses
    [0.0, 0.0]
    """
    if not 0.0 <= p_mask <= 1.0:
        raise ValueError(f"p_mask={p_mask} is not a probability; use a value from 0 to 1")
    N_V = theta.config.vocab_size
    return _descend(texts, theta, lambda x, model: e_loss(x, masked(x, N_V, p_mask, generator), model), N_epochs, eta)


def DTraining(texts: Sequence[Text], theta: DecoderLM, *, N_epochs: int, eta: float) -> Trained[DecoderLM]:
    """Compute algorithm 13: train a decoder on -Σ_{t=1}^{ℓ-1} log P[x[t+1], t] (Phuong & Hutter 2022).

    P is DTransformer(x_n | θ). Training makes one step of gradient descent per text x_n.

    Args:
        texts: The texts x_n.
        theta: The initial model, which is copied and not changed.
        N_epochs: The number of epochs.
        eta: The learning rate η.

    Returns:
        The trained copy θ̂ and the loss of each step.

    Raises:
        ValueError: The model or a text is invalid, as in `DTransformer`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> _ = torch.manual_seed(0)
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> theta_hat, losses = DTraining([[8, 2, 1, 9]], theta, N_epochs=10, eta=0.1)
    >>> losses[-1] < losses[0] / 2
    True
    """
    return _descend(texts, theta, d_loss, N_epochs, eta)


def ed_loss(z: Text, x: Text, theta: EncoderDecoder) -> Float[Tensor, ""]:
    """Return the loss of algorithm 11: -Σ_{t=1}^{ℓ-1} log P[x[t+1], t], P = EDTransformer(z, x | θ).

    Args:
        z: The source text.
        x: The target text.
        theta: A model from `build_formal_ed`.

    Returns:
        The loss in nats.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)
    >>> ed_loss([1, 2], [8, 2, 9], theta) / 2  # ln 9
    tensor(2.1972, grad_fn=<DivBackward0>)
    """
    logits = ed_logits(z, x, theta)
    return token_losses(logits[:-1], model_ids(x, theta)[0, 1:]).sum()


def e_loss(x: Text, x_masked: Text, theta: MaskedLM) -> Float[Tensor, ""]:
    """Return the loss of algorithm 12: -Σ_{t∈T̃} log P[x[t], t] with P = ETransformer(x̃ | θ).

    T̃ = {t: x̃[t] = mask_token} is the set of masked positions.

    Args:
        x: The original text.
        x_masked: The masked text x̃.
        theta: A model with a configuration from `formal_e_config`.

    Returns:
        The loss in nats.

    Raises:
        ValueError: x and x̃ have different lengths.

    >>> from attendo_course.algorithms import formal_e_config
    >>> theta = MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)
    >>> e_loss([8, 2, 1, 9], [8, 7, 1, 7], theta) / 2  # ln 9
    tensor(2.1972, grad_fn=<DivBackward0>)
    """
    if len(x) != len(x_masked):
        raise ValueError(f"x has {len(x)} tokens and x_masked {len(x_masked)}; they must be as many")
    logits = e_logits(x_masked, theta)
    mask_token = special_ids(theta.config.vocab_size).mask_token
    chosen = model_ids(x_masked, theta, "x_masked")[0] == mask_token - 1
    return token_losses(logits[chosen], model_ids(x, theta)[0, chosen]).sum()


def d_loss(x: Text, theta: DecoderLM) -> Float[Tensor, ""]:
    """Return the loss of algorithm 13: -Σ_{t=1}^{ℓ-1} log P[x[t+1], t], P = DTransformer(x | θ).

    Args:
        x: The text.
        theta: A model with a configuration from `formal_d_config`.

    Returns:
        The loss in nats.

    >>> from attendo_course.algorithms import formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)
    >>> d_loss([8, 2, 9], theta) / 2  # ln 9
    tensor(2.1972, grad_fn=<DivBackward0>)
    """
    return token_losses(d_logits(x, theta)[:-1], model_ids(x, theta)[0, 1:]).sum()


def masked(x: Text, N_V: int, p_mask: float, generator: torch.Generator | None = None) -> Int[Tensor, " ell"]:
    """Return x̃: a copy of x in which each token is replaced by mask_token with probability p_mask (algorithm 12).

    Args:
        x: The text.
        N_V: The vocabulary size.
        p_mask: The probability that a token is masked.
        generator: The random number generator (default: torch's global generator).

    >>> masked([8, 1, 2, 9], N_V=9, p_mask=1.0)
    tensor([7, 7, 7, 7])
    """
    ids = torch.as_tensor(x)
    draws = torch.rand(len(ids), dtype=torch.float64, generator=generator)
    return ids.masked_fill((draws < p_mask).to(ids.device), special_ids(N_V).mask_token)


def _descend(
    examples: Sequence[ExampleT],
    theta: ModelT,
    loss_of: Callable[[ExampleT, ModelT], Tensor],
    N_epochs: int,
    eta: float,
) -> Trained[ModelT]:
    theta = copy.deepcopy(theta)
    descent = torch.optim.SGD(theta.parameters(), lr=eta)
    losses = []
    for _ in range(N_epochs):
        for example in examples:
            loss = loss_of(example, theta)
            losses.append(loss.item())
            descent.zero_grad()
            loss.backward()
            descent.step()
    return Trained(theta, losses)


def EDTransformer(z: Text, x: Text, theta: EncoderDecoder) -> Float[Tensor, "N_V ell_x"]:
    """Compute algorithm 8: P ∈ (0,1)^{N_V×ℓ_x}, column t is the distribution of x[t+1] given x[1:t] and z.

    The model of Phuong & Hutter 2022 uses post-norm and ReLU. The encoder and the cross-attention use all tokens of
    z. The self-attention of the decoder uses x[1:t]. The encoder and the decoder share W_e and W_p.

    Args:
        z: The source text.
        x: The target text.
        theta: A model from `build_formal_ed`.

    Returns:
        The differentiable matrix P.

    Raises:
        ValueError: θ is not a model of A8, an id is outside 1..N_V, or a text is empty or longer than ℓ_max.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> EDTransformer([1, 2, 3, 4], [8, 5], theta).shape
    torch.Size([9, 2])
    """
    return columns(ed_logits(z, x, theta))


def ETransformer(x: Text, theta: MaskedLM) -> Float[Tensor, "N_V ell_x"]:
    """Compute algorithm 9 (BERT): P ∈ (0,1)^{N_V×ℓ_x}, column t is the distribution of x[t] given all tokens of x.

    The model of Phuong & Hutter 2022 uses post-norm, GELU and Mask ≡ 1. The layers are followed by GELU(W_f X + b_f
    1ᵀ), layer normalization and the unembedding.

    Args:
        x: The text.
        theta: A model with a configuration from `formal_e_config`.

    Returns:
        The differentiable matrix P.

    Raises:
        ValueError: θ is not a model of A9, an id is outside 1..N_V, or the text is empty or longer than ℓ_max.

    >>> from attendo_course.algorithms import formal_e_config
    >>> theta = MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16, d_f=5))
    >>> ETransformer([8, 1, 7, 9], theta).shape
    torch.Size([9, 4])
    """
    return columns(e_logits(x, theta))


def DTransformer(x: Text, theta: DecoderLM) -> Float[Tensor, "N_V ell_x"]:
    """Compute algorithm 10 (GPT): P ∈ (0,1)^{N_V×ℓ_x}, column t is the distribution of x[t+1] given x[1:t].

    The model of Phuong & Hutter 2022 uses pre-norm, a final normalization, GELU and a causal mask.

    Args:
        x: The text.
        theta: A model with a configuration from `formal_d_config`.

    Returns:
        The differentiable matrix P.

    Raises:
        ValueError: θ is not a model of A10, an id is outside 1..N_V, or the text is empty or longer than ℓ_max.

    >>> from attendo_course.algorithms import formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> DTransformer([8, 1, 2], theta).sum(0).detach().round(decimals=4)
    tensor([1., 1., 1.])
    """
    return columns(d_logits(x, theta))


def ed_logits(z: Text, x: Text, theta: EncoderDecoder) -> Float[Tensor, "ell_x N_V"]:
    """Return the logits W_u X of A8 with one row per token; the loss of A11 is computed from them.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> ed_logits([1, 2, 3, 4], [8, 5], theta).shape
    torch.Size([2, 9])
    """
    check_theta(theta, "A8")
    return theta(model_ids(z, theta, "z"), model_ids(x, theta))[0]


def e_logits(x: Text, theta: MaskedLM) -> Float[Tensor, "ell_x N_V"]:
    """Return the logits W_u X of A9 with one row per token; the loss of A12 is computed from them.

    >>> from attendo_course.algorithms import formal_e_config
    >>> e_logits([1, 2, 3], MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))).shape
    torch.Size([3, 9])
    """
    check_theta(theta, "A9")
    return theta(model_ids(x, theta))[0]


def d_logits(x: Text, theta: DecoderLM) -> Float[Tensor, "ell_x N_V"]:
    """Return the logits W_u X of A10 with one row per token; the loss of A13 is computed from them.

    >>> from attendo_course.algorithms import formal_d_config
    >>> d_logits([1, 2, 3], DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))).shape
    torch.Size([3, 9])
    """
    check_theta(theta, "A10")
    return theta(model_ids(x, theta))[0]


def model_ids(text: Text, theta: EncoderDecoder | MaskedLM | DecoderLM, name: str = "x") -> Int[Tensor, "1 ell"]:
    """Return a text as input of the model: a batch of one, with ids from 0, checked by `core_ids`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> model_ids([1, 9], DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16)))
    tensor([[0, 8]])
    """
    ids = core_ids(text, theta.config.vocab_size, theta.config.max_len, name)
    return ids[None].to(theta.output_proj.weight.device)


def columns(logits: Float[Tensor, "ell N_V"]) -> Float[Tensor, "N_V ell"]:
    """Return P = softmax(W_u X) with one distribution per column.

    >>> import torch
    >>> columns(torch.zeros(1, 2))
    tensor([[0.5000],
            [0.5000]])
    """
    return logits.softmax(-1).T


class Drawn(NamedTuple):
    """A sampled token y, and the distribution q ∝ p^{1/τ} from which it was sampled.

    >>> y, q = Drawn(2, torch.tensor([0.25, 0.75]))
    >>> q[y - 1].item()  # ids count from 1
    0.75
    """

    y: int
    q: Float[Tensor, " N_V"]


class Inferred(NamedTuple):
    """The result of A15: the tokens x̂ including bos, and whether x̂ ends with eos or was stopped at the limit.

    >>> Inferred([8, 1, 9], ended=True)
    Inferred(x_hat=[8, 1, 9], ended=True)
    """

    x_hat: list[int]
    ended: bool


def DInference(
    x: Text, theta: DecoderLM, *, ell_gen: int, tau: float, generator: torch.Generator | None = None
) -> list[int]:
    """Compute algorithm 14: return y, the ℓ_gen tokens that continue the prompt x (Phuong & Hutter 2022).

    Each step computes p = P[:, last] of DTransformer(x | θ), samples y from q ∝ p^{1/τ}, and appends y to the text.

    Args:
        x: The prompt.
        theta: A model with a configuration from `formal_d_config`.
        ell_gen: The number of tokens to sample.
        tau: The temperature τ. τ = 1 samples from p, and τ = `math.inf` samples uniformly from the vocabulary. τ = 0,
            a limit in the paper, selects the most probable token (the first token in a tie).
        generator: The random number generator (default: torch's global generator).

    Returns:
        The sampled tokens.

    Raises:
        ValueError: The model or the prompt is invalid, τ or ℓ_gen is negative, or the prompt and all tokens of y
            except the last are more than ℓ_max tokens. The last token of y needs no position, because no other token is
            predicted from the last token.

    >>> from attendo_course.algorithms import DTransformer, formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> y = DInference([8, 1], theta, ell_gen=2, tau=0.0)
    >>> y == (DTransformer([8, 1, y[0]], theta)[:, 1:].argmax(0) + 1).tolist()
    True
    """
    return [drawn.y for drawn in d_inference_steps(x, theta, ell_gen=ell_gen, tau=tau, generator=generator)]


def EDInference(
    z: Text,
    theta: EncoderDecoder,
    *,
    tau: float,
    generator: torch.Generator | None = None,
    max_len: int | None = None,
) -> Inferred:
    """Compute algorithm 15: return x̂ from bos to eos, given z (Phuong & Hutter 2022).

    Tokens are sampled as in A14 from p = P[:, last] of EDTransformer(z, x̂ | θ), until eos. The algorithm of the
    paper has no length limit and may never stop. At `max_len` tokens, this function stops and returns `ended` =
    False.

    Args:
        z: The source text.
        theta: A model from `build_formal_ed`.
        tau: The temperature, as in `DInference`.
        generator: The random number generator (default: torch's global generator).
        max_len: The maximum number of tokens of x̂, including bos and eos (default: ℓ_max + 1, the largest possible
            value).

    Returns:
        The tokens x̂, and whether eos was sampled.

    Raises:
        ValueError: The model or the text is invalid, τ is negative, or max_len is outside 2..ℓ_max + 1.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> _ = torch.manual_seed(0)
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)  # all tokens alike, of which 0 takes the first
    >>> EDInference([1, 2, 3], theta, tau=0.0, max_len=4)
    Inferred(x_hat=[8, 1, 1, 1], ended=False)
    """
    ell_max, (_, bos, eos) = theta.config.max_len, special_ids(theta.config.vocab_size)
    max_len = ell_max + 1 if max_len is None else max_len
    if not 2 <= max_len <= ell_max + 1:
        raise ValueError(f"max_len={max_len} must lie in 2..{ell_max + 1}: positions end at ell_max={ell_max}")
    x_hat = [bos]
    for drawn in islice(ed_inference_steps(z, theta, tau=tau, generator=generator), max_len - 1):
        x_hat.append(drawn.y)
    return Inferred(x_hat, x_hat[-1] == eos)


def d_inference_steps(
    x: Text, theta: DecoderLM, *, ell_gen: int, tau: float, generator: torch.Generator | None = None
) -> Iterator[Drawn]:
    """Yield each token of A14 with the distribution from which it was sampled.

    Args:
        x: The prompt.
        theta: A model with a configuration from `formal_d_config`.
        ell_gen: The number of tokens to sample.
        tau: The temperature, as in `DInference`.
        generator: The random number generator (default: torch's global generator).

    Raises:
        ValueError: An argument is invalid, as in `DInference`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=4, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> [drawn.q.tolist() for drawn in d_inference_steps([3, 1], theta, ell_gen=1, tau=torch.inf)]
    [[0.25, 0.25, 0.25, 0.25]]
    """
    check_theta(theta, "A10")
    beta, prompt, ell_max = _inverse(tau), model_ids(x, theta), theta.config.max_len
    if ell_gen < 0 or prompt.shape[1] + ell_gen - 1 > ell_max:
        raise ValueError(
            f"ell_gen={ell_gen} must lie in 0..{ell_max - prompt.shape[1] + 1}: positions end at"
            f" ell_max={ell_max}, and x has {prompt.shape[1]} tokens"
        )
    cache = theta.start(capacity=ell_max)
    return islice(_draw(lambda new: theta.step(new, cache), prompt, beta, generator), ell_gen)


def ed_inference_steps(
    z: Text, theta: EncoderDecoder, *, tau: float, generator: torch.Generator | None = None
) -> Iterator[Drawn]:
    """Yield each token of A15 with its distribution, until eos or for ℓ_max steps. The encoder runs once.

    Args:
        z: The source text.
        theta: A model from `build_formal_ed`.
        tau: The temperature, as in `DInference`.
        generator: The random number generator (default: torch's global generator).

    Raises:
        ValueError: An argument is invalid, as in `EDInference`.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> 1 <= len(list(ed_inference_steps([1, 2], theta, tau=1.0))) <= 6
    True
    """
    check_theta(theta, "A8")
    beta, source, ell_max = _inverse(tau), model_ids(z, theta, "z"), theta.config.max_len
    _, bos, eos = special_ids(theta.config.vocab_size)
    with torch.no_grad():
        cache = theta.start(source, capacity=ell_max)
    steps = _draw(lambda new: theta.step(new, cache), model_ids([bos], theta), beta, generator)
    return _up_to(eos, islice(steps, ell_max))


def distribution(logits: Float[Tensor, " N_V"], tau: float) -> Float[Tensor, " N_V"]:
    """Return q ∝ p^{1/τ} = softmax(logits/τ), from which algorithms 14 and 15 sample, on the CPU in float64.

    Args:
        logits: The logits of all tokens in the vocabulary.
        tau: The temperature, as in `DInference`.

    Raises:
        ValueError: τ is negative.

    >>> distribution(torch.tensor([0.0, 1.0, 1.0]), tau=0.0)
    tensor([0., 1., 0.], dtype=torch.float64)
    """
    return _tempered(logits, _inverse(tau))


def _draw(
    step: Callable[[Tensor], Tensor], new: Tensor, beta: float, generator: torch.Generator | None
) -> Iterator[Drawn]:
    """Feed `new`, then each sampled token, to `step`, which returns the logits after all tokens so far."""
    while True:
        with torch.no_grad():
            q = _tempered(step(new)[0, -1], beta)
        new = torch.multinomial(q, 1, generator=generator)[None].to(new.device)
        yield Drawn(int(new) + 1, q)


def _up_to(y: int, steps: Iterator[Drawn]) -> Iterator[Drawn]:
    for drawn in steps:
        yield drawn
        if drawn.y == y:
            return


def _tempered(logits: Tensor, beta: float) -> Tensor:
    # from the largest, so that a β near infinity meets 0 there and not infinity
    scores = logits.cpu().double()
    scores = scores - scores.max()
    return masked_softmax(scores[None], inverse_temperature=beta)[0]


def _inverse(tau: float) -> float:
    if not tau >= 0.0:
        raise ValueError(f"tau={tau} must be 0 or more (0 takes the most probable token)")
    return 1.0 / tau if tau else math.inf
