"""Corpora, tokenizers, the token store, batches and the data doctor: everything between files and tensors.

The names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.data.accounting import Account as Account
    from attendo.data.batches import Batch as Batch
    from attendo.data.batches import token_batches as token_batches
    from attendo.data.corpora import PairSource as PairSource
    from attendo.data.corpora import read_pairs as read_pairs
    from attendo.data.doctor import examine as examine
    from attendo.data.labelled import LabelledSource as LabelledSource
    from attendo.data.labelled import read_labelled as read_labelled
    from attendo.data.labelled_doctor import examine_labelled as examine_labelled
    from attendo.data.texts import TextSource as TextSource
    from attendo.data.texts import read_documents as read_documents
    from attendo.data.token_stream import TokenStream as TokenStream
    from attendo.data.tokenizer_training import TokenizerConfig as TokenizerConfig
    from attendo.data.tokenizer_training import train_tokenizer as train_tokenizer
    from attendo.data.tokenizers import Tokenizer as Tokenizer

_MODULES = {
    "Account": "accounting",
    "Batch": "batches",
    "LabelledSource": "labelled",
    "PairSource": "corpora",
    "TextSource": "texts",
    "TokenStream": "token_stream",
    "Tokenizer": "tokenizers",
    "TokenizerConfig": "tokenizer_training",
    "examine": "doctor",
    "examine_labelled": "labelled_doctor",
    "read_documents": "texts",
    "read_labelled": "labelled",
    "read_pairs": "corpora",
    "token_batches": "batches",
    "train_tokenizer": "tokenizer_training",
}

__all__ = [
    "Account",
    "Batch",
    "LabelledSource",
    "PairSource",
    "TextSource",
    "TokenStream",
    "Tokenizer",
    "TokenizerConfig",
    "examine",
    "examine_labelled",
    "read_documents",
    "read_labelled",
    "read_pairs",
    "token_batches",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    """The public object of this name."""
    if name not in _MODULES:
        raise AttributeError(f"module 'attendo.data' has no attribute {name!r}")
    return getattr(import_module(f"attendo.data.{_MODULES[name]}"), name)
