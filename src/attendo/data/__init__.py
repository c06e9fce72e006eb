"""Data: readers, tokenizers, token stores, batches of token ids, and the data doctor.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.data.batches import Batch, TokenDataset, token_batches
    from attendo.data.corpora import PairSource, read_lines, read_pairs
    from attendo.data.doctor import examine
    from attendo.data.labelled import LabelledSource, read_labelled
    from attendo.data.labelled_doctor import examine_labelled
    from attendo.data.row_report import RowError, RowReport
    from attendo.data.segments import split_sentences
    from attendo.data.store import pair_store
    from attendo.data.texts import TextSource, read_documents
    from attendo.data.token_stream import TokenStream, window_batches
    from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    from attendo.data.tokenizers import SpecialTokens, Tokenizer

__all__ = [
    "Batch",
    "LabelledSource",
    "PairSource",
    "RowError",
    "RowReport",
    "SpecialTokens",
    "TextSource",
    "TokenDataset",
    "TokenStream",
    "Tokenizer",
    "TokenizerConfig",
    "examine",
    "examine_labelled",
    "pair_store",
    "read_documents",
    "read_labelled",
    "read_lines",
    "read_pairs",
    "split_sentences",
    "token_batches",
    "train_tokenizer",
    "window_batches",
]

__getattr__ = names_from(
    __name__,
    batches=["Batch", "TokenDataset", "token_batches"],
    corpora=["PairSource", "read_lines", "read_pairs"],
    doctor=["examine"],
    labelled=["LabelledSource", "read_labelled"],
    labelled_doctor=["examine_labelled"],
    row_report=["RowError", "RowReport"],
    segments=["split_sentences"],
    store=["pair_store"],
    texts=["TextSource", "read_documents"],
    token_stream=["TokenStream", "window_batches"],
    tokenizer_training=["TokenizerConfig", "train_tokenizer"],
    tokenizers=["SpecialTokens", "Tokenizer"],
)
