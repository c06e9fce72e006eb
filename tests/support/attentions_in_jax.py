"""Attention functions as students write them in JAX and Equinox: right ones and wrong ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def with_mask(query, key, value, mask=None, scale=None):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return jax.nn.softmax(scores, axis=-1) @ value
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.where(mask, weights, 0.0) @ value


class Module(eqx.Module):
    steepness: jax.Array

    @eqx.filter_jit
    def __call__(self, query, key, value, mask=None):
        return with_mask(query * self.steepness, key, value, mask)


@jax.jit
def unscaled(query, key, value):
    return jax.nn.softmax(query @ key.mT, axis=-1) @ value


def through_numpy(query, key, value):
    return with_mask(jnp.array(np.asarray(query)), key, value)


def imports_inside(query, key, value):
    import jax.numpy

    return jax.numpy.matmul(query, key.mT) @ value


def broken(query, key, value):
    return jax.nn.softmax(query @ key.nothing)
