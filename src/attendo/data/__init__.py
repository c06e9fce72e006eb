"""Corpora, tokenizers, the token store, batches and the data doctor: everything between files and tensors."""
