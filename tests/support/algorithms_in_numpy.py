"""The pseudo-code of Phuong & Hutter 2022, line by line in NumPy float64: what the algorithms are tested against.

Tokens are columns, ids count from 1, loops stand where the paper has them. Parameters are dictionaries with the
paper's names. Slow on purpose, and without a line of attendo.
"""

import math

import numpy as np


def token_embedding(v, W_e):
    return W_e[:, v - 1]


def positional_embedding(ell, W_p):
    return W_p[:, ell - 1]


def hard_coded_positions(d_e, ell_max):
    """Even d_e: for an odd one the paper defines no last row."""
    W_p = np.empty((d_e, ell_max))
    for t in range(1, ell_max + 1):
        for i in range(1, d_e // 2 + 1):
            W_p[2 * i - 1 - 1, t - 1] = math.sin(t / ell_max ** (2 * i / d_e))
            W_p[2 * i - 1, t - 1] = math.cos(t / ell_max ** (2 * i / d_e))
    return W_p


def softmax(scores):
    powers = [math.exp(score - max(scores)) for score in scores]
    return np.array(powers) / sum(powers)


def single_query_attention(e, context, W):
    """`context`: a list of vectors e_1..e_T."""
    q = W["W_q"] @ e + W["b_q"]
    k = [W["W_k"] @ e_t + W["b_k"] for e_t in context]
    v = [W["W_v"] @ e_t + W["b_v"] for e_t in context]
    alpha = softmax([q @ k_t / math.sqrt(len(q)) for k_t in k])
    return sum(alpha_t * v_t for alpha_t, v_t in zip(alpha, v, strict=True))


def Attention(X, Z, W, Mask):
    ell_x, ell_z = X.shape[1], Z.shape[1]
    Q = W["W_q"] @ X + np.outer(W["b_q"], np.ones(ell_x))
    K = W["W_k"] @ Z + np.outer(W["b_k"], np.ones(ell_z))
    V = W["W_v"] @ Z + np.outer(W["b_v"], np.ones(ell_z))
    S = K.T @ Q
    for t_z in range(ell_z):
        for t_x in range(ell_x):
            if not Mask[t_z, t_x]:
                S[t_z, t_x] = -math.inf
    d_attn = W["W_q"].shape[0]
    return V @ np.stack([softmax(S[:, t_x] / math.sqrt(d_attn)) for t_x in range(ell_x)], axis=1)


def MHAttention(X, Z, W, Mask):
    Y = np.concatenate([Attention(X, Z, W_h, Mask) for W_h in W["heads"]])
    return W["W_o"] @ Y + np.outer(W["b_o"], np.ones(X.shape[1]))


def layer_norm(e, gamma, beta):
    m = sum(e) / len(e)
    v = sum((e_i - m) ** 2 for e_i in e) / len(e)
    return (e - m) / math.sqrt(v) * gamma + beta


def rms_norm(e, gamma):
    return e / math.sqrt(sum(e_i**2 for e_i in e) / len(e)) * gamma


def unembedding(e, W_u):
    return softmax(W_u @ e)


def ReLU(X):
    return np.where(X > 0, X, 0.0)


def GELU(X):
    return X * (1 + np.vectorize(math.erf)(X / math.sqrt(2))) / 2


def bidirectional(ell_z, ell_x):
    return np.ones((ell_z, ell_x), dtype=bool)


def unidirectional(ell):
    return np.array([[t_z <= t_x for t_x in range(ell)] for t_z in range(ell)])


def norm_columns(X, norm):
    return np.stack([layer_norm(X[:, t], *norm) for t in range(X.shape[1])], axis=1)


def embed(x, theta):
    columns = [
        token_embedding(x[t - 1], theta["W_e"]) + positional_embedding(t, theta["W_p"]) for t in range(1, len(x) + 1)
    ]
    return np.stack(columns, axis=1)


def mlp(X, layer, activation):
    ones = np.ones(X.shape[1])
    inner = activation(layer["W_mlp1"] @ X + np.outer(layer["b_mlp1"], ones))
    return layer["W_mlp2"] @ inner + np.outer(layer["b_mlp2"], ones)


def unembed_columns(X, theta):
    return np.stack([unembedding(X[:, t], theta["W_u"]) for t in range(X.shape[1])], axis=1)


def EDTransformer(z, x, theta):
    Z = embed(z, theta)
    for layer in theta["encoder"]:
        Z = Z + MHAttention(Z, Z, layer["W"], bidirectional(len(z), len(z)))
        Z = norm_columns(Z, layer["norm1"])
        Z = Z + mlp(Z, layer, ReLU)
        Z = norm_columns(Z, layer["norm2"])
    X = embed(x, theta)
    for layer in theta["decoder"]:
        X = X + MHAttention(X, X, layer["W"], unidirectional(len(x)))
        X = norm_columns(X, layer["norm1"])
        X = X + MHAttention(X, Z, layer["W_cross"], bidirectional(len(z), len(x)))
        X = norm_columns(X, layer["norm_cross"])
        X = X + mlp(X, layer, ReLU)
        X = norm_columns(X, layer["norm2"])
    return unembed_columns(X, theta)


def ETransformer(x, theta):
    X = embed(x, theta)
    for layer in theta["encoder"]:
        X = X + MHAttention(X, X, layer["W"], bidirectional(len(x), len(x)))
        X = norm_columns(X, layer["norm1"])
        X = X + mlp(X, layer, GELU)
        X = norm_columns(X, layer["norm2"])
    X = GELU(theta["W_f"] @ X + np.outer(theta["b_f"], np.ones(len(x))))
    X = norm_columns(X, theta["norm"])
    return unembed_columns(X, theta)


def DTransformer(x, theta):
    X = embed(x, theta)
    for layer in theta["decoder"]:
        X_hat = norm_columns(X, layer["norm1"])
        X = X + MHAttention(X_hat, X_hat, layer["W"], unidirectional(len(x)))
        X_hat = norm_columns(X, layer["norm2"])
        X = X + mlp(X_hat, layer, GELU)
    X = norm_columns(X, theta["norm"])
    return unembed_columns(X, theta)


def ed_loss(z, x, theta):
    P = EDTransformer(z, x, theta)
    return -sum(math.log(P[x[t] - 1, t - 1]) for t in range(1, len(x)))


def e_loss(x, x_masked, theta):
    P = ETransformer(x_masked, theta)
    mask_token = theta["W_u"].shape[0] - 2
    T = [t for t in range(1, len(x) + 1) if x_masked[t - 1] == mask_token]
    return -sum(math.log(P[x[t - 1] - 1, t - 1]) for t in T)


def d_loss(x, theta):
    P = DTransformer(x, theta)
    return -sum(math.log(P[x[t] - 1, t - 1]) for t in range(1, len(x)))


def arrays(theta):
    """Every array of θ, in the order of the dictionaries; none may be part of another."""
    match theta:
        case np.ndarray():
            yield theta
        case dict():
            yield from (array for part in theta.values() for array in arrays(part))
        case list() | tuple():
            yield from (array for part in theta for array in arrays(part))


def gradient(loss, theta, step=1e-5):
    """∇loss(θ) by central differences, an array for each of `arrays(theta)`."""
    gradients = []
    for array in arrays(theta):
        slope = np.empty_like(array)
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            above = loss(theta)
            array[index] = value - step
            slope[index] = (above - loss(theta)) / (2 * step)
            array[index] = value
        gradients.append(slope)
    return gradients


def descend(loss, theta, eta):
    """θ ← θ - η ∇loss(θ), in place; gives the loss before the step."""
    before, gradients = loss(theta), gradient(loss, theta)
    for array, slope in zip(arrays(theta), gradients, strict=True):
        array -= eta * slope
    return before


def EDTraining(pairs, theta, N_epochs, eta):
    return [
        descend(lambda theta, z=z, x=x: ed_loss(z, x, theta), theta, eta) for _ in range(N_epochs) for z, x in pairs
    ]


def ETraining(texts, theta, N_epochs, eta, p_mask, uniform):
    """`uniform(ℓ)` draws ℓ numbers of 0 to 1."""
    losses, mask_token = [], theta["W_u"].shape[0] - 2
    for _ in range(N_epochs):
        for x in texts:
            draws = uniform(len(x))
            x_masked = [mask_token if draws[t] < p_mask else x[t] for t in range(len(x))]
            losses.append(descend(lambda theta, a=x, b=x_masked: e_loss(a, b, theta), theta, eta))
    return losses


def DTraining(texts, theta, N_epochs, eta):
    return [descend(lambda theta, x=x: d_loss(x, theta), theta, eta) for _ in range(N_epochs) for x in texts]


def sharpened(p, tau):
    powers = [p_i ** (1 / tau) for p_i in p]
    return np.array(powers) / sum(powers)


def DInference(x, theta, ell_gen, tau, sample):
    """`sample(q)` gives an id of 1..N_V."""
    x, ell = list(x), len(x)
    for i in range(1, ell_gen + 1):
        P = DTransformer(x, theta)
        p = P[:, ell + i - 1 - 1]
        x = [*x, sample(sharpened(p, tau))]
    return x[ell:]


def EDInference(z, theta, tau, sample):
    N_V = theta["W_u"].shape[0]
    x_hat, y = [N_V - 1], 0
    while y != N_V:
        P = EDTransformer(z, x_hat, theta)
        p = P[:, len(x_hat) - 1]
        y = sample(sharpened(p, tau))
        x_hat = [*x_hat, y]
    return x_hat


# how a model's parameters are called in the paper; torch's matrices are [out, in], as the paper's are for columns


def array(parameter):
    return parameter.detach().numpy().copy()


def linear(module, W, b):
    return {W: array(module.weight), b: array(module.bias)}


def norm(module):
    return array(module.weight), array(module.bias)


def attention(module):
    heads = []
    for h in range(module.n_heads):
        head = {}
        for part, width in (("q", module.head_dim), ("k", module.head_dim), ("v", module.value_dim)):
            all_heads, rows = getattr(module, f"{part}_proj"), slice(h * width, (h + 1) * width)
            head |= {f"W_{part}": array(all_heads.weight)[rows], f"b_{part}": array(all_heads.bias)[rows]}
        heads.append(head)
    return {"heads": heads, **linear(module.out_proj, "W_o", "b_o")}


def layer(block):
    parameters = {"W": attention(block.self_attention), "norm1": norm(block.self_attention_residual.norm)}
    if getattr(block, "cross_attention", None) is not None:
        parameters["W_cross"] = attention(block.cross_attention)
        parameters["norm_cross"] = norm(block.cross_attention_residual.norm)
    parameters |= linear(block.feed_forward.in_proj, "W_mlp1", "b_mlp1")
    parameters |= linear(block.feed_forward.out_proj, "W_mlp2", "b_mlp2")
    return parameters | {"norm2": norm(block.feed_forward_residual.norm)}


def theta_of(model):
    """A copy of a model's θ under the paper's names."""
    modules = dict(model.named_children())
    embedding = modules.get("embedding") or modules["target_embedding"]
    theta = {
        "W_e": array(embedding.tokens.weight).T,
        "W_p": array(embedding.positions.weight).T,
        "W_u": array(model.output_proj.weight),
    }
    if "encoder" in modules:
        theta["encoder"] = [layer(block) for block in model.encoder.blocks]
    if "decoder" in modules:
        theta["decoder"] = [layer(block) for block in model.decoder.blocks]
        if list(model.decoder.norm.parameters()):
            theta["norm"] = norm(model.decoder.norm)
    if "output_hidden" in modules:
        theta |= linear(model.output_hidden, "W_f", "b_f") | {"norm": norm(model.output_norm)}
    return theta
