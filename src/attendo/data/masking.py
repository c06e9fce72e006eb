"""The masking of tokens for masked language models, either always with the mask token or by BERT's 80/10/10 rule."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attendo.data.tokenizers import SPECIALS, Tokenizer

Rule = Literal["mask", "80/10/10"]

MASK = "<mask>"
"""The text of the mask token in inputs and outputs."""
MASK_ID = Tokenizer.unk_id
"""The id of the mask token, which is also the id of unknown words. Subwords, characters and bytes are never unknown."""


def hidden_tokens(
    token_ids: NDArray[np.int64],
    share: float,
    rule: Rule,
    vocab_size: int,
    rng: np.random.Generator,
    untouched: int = -1,
    *,
    mask_id: int = MASK_ID,
    text_ids: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hide tokens for masked language modeling. Return the inputs and the targets.

    Each ordinary token is hidden with probability `share`, and at least one token is hidden. At the positions of tokens
    that are not hidden, the target is the value `untouched`. The rule "mask" replaces hidden tokens by the mask token
    (Phuong & Hutter 2022, algorithm 12). The rule "80/10/10" uses the mask token for 80% of the hidden tokens and a
    random token for 10%, and leaves 10% unchanged (Devlin et al. 2019, section 3.1).

    >>> ids = np.array([2, 7, 8, 9, 0])
    >>> hidden_tokens(ids, 1.0, "mask", 10, np.random.default_rng(0))
    (array([2, 1, 1, 1, 0]), array([-1,  7,  8,  9, -1]))
    """
    own = np.arange(len(SPECIALS), vocab_size) if text_ids is None else text_ids
    text = token_ids >= len(SPECIALS) if text_ids is None else np.isin(token_ids, text_ids)
    draws = np.where(text, rng.random(token_ids.shape), 2.0)
    chosen = draws < share
    if text.any() and not chosen.any():
        chosen.flat[int(draws.argmin())] = True
    inputs = np.where(chosen, mask_id, token_ids)
    if rule == "80/10/10":
        fate = rng.random(token_ids.shape)
        others = own[rng.integers(0, len(own), token_ids.shape)]
        inputs = np.where(chosen & (fate >= 0.8), np.where(fate < 0.9, others, token_ids), inputs)
    return inputs, np.where(chosen, token_ids, untouched)
