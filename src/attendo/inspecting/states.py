"""The vectors that run through a model, from the embedding through every block, noted on a view of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from attendo.inspecting.recording import view
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock
from attendo.nn.embeddings import InputEmbedding

ModelT = TypeVar("ModelT", bound=nn.Module)


class States(Generic[ModelT]):
    """The latest output of each embedding, block and stack by module path. `model` is the view to run.

    `states["encoder.blocks.0"]`: `[batch, len, d_model]` behind the first block; `states["encoder"]`: behind the
    whole stack, its last norm included.
    """

    def __init__(self, model: ModelT) -> None:
        self.model = model
        self._found: dict[str, Tensor] = {}

    def __getitem__(self, path: str) -> Float[Tensor, "batch len d_model"]:
        return self._found[path]

    def __iter__(self) -> Iterator[str]:
        """The paths that have run, in the order in which they first did."""
        return iter(self._found)

    def note(self, path: str, module: nn.Module, given: Any, output: Any) -> None:
        """Keeps an output; the form of a forward hook."""
        self._found[path] = output


@contextmanager
def noted_states(model: ModelT) -> Iterator[States[ModelT]]:
    """Notes what each embedding, block and stack gives; run `states.model` within the `with`.

    Tensors are kept with their graph: run under `torch.no_grad` to spare it. The model itself is not touched.

    >>> import torch
    >>> from attendo.models import DecoderLM, ModelConfig
    >>> sizes = dict(vocab_size=5, d_model=4, d_ff=8, n_heads=1, n_encoder_layers=0, n_decoder_layers=2)
    >>> with noted_states(DecoderLM(ModelConfig(architecture="decoder", **sizes))) as states:
    ...     logits = states.model(torch.tensor([[1, 2, 3]]))
    >>> list(states)
    ['embedding', 'decoder.blocks.0', 'decoder.blocks.1', 'decoder']
    """
    twin = view(model)
    states = States(twin)
    for path, module in twin.named_modules():
        if isinstance(module, InputEmbedding | EncoderBlock | DecoderBlock | Encoder | Decoder):
            module.register_forward_hook(partial(states.note, path))
    yield states
