"""The comparison of an exported model's results with the results of attendo."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float

from attendo.bundle import Bundle, embeds_texts
from attendo.data import forecasts
from attendo.data.batches import pad_rows
from attendo.data.chat_corpus import ChatCorpus
from attendo.data.labelled import read_labelled
from attendo.data.labelled_corpus import LabelledCorpus
from attendo.data.pair_corpus import PairCorpus
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.inference.translator import Translator
from attendo.metrics import bleu, bleu_tokenizer, log_softmax
from attendo.models import DecoderLM, EncoderDecoder, Model
from attendo.runs.settings import section
from attendo.runs.task_specs import family_of

BUILT_IN = 200
"""The maximum number of built-in weather forecasts that are used if the run has no validation set."""


@dataclass(frozen=True)
class Examples:
    """The example texts of a comparison, with a description of the texts, and reference translations or None."""

    name: str
    texts: tuple[str, ...]
    references: tuple[str, ...] | None = None


def examples_of(bundle: Bundle, valid: Sequence[Path] = (), most: int = 500) -> Examples:
    """Return at most `most` example texts for a comparison.

    The texts come from the files in `valid` or from the validation set of the run. If there are no such files, built-in
    texts are used.

    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> bundle = Bundle({"data": {"train": ["gone.tsv"]}}, train_tokenizer(["a"], TokenizerConfig(kind="byte")))
    >>> bundle.card["task"] = "translation"
    >>> examples_of(bundle).name, examples_of(bundle).references
    ('200 built-in English sentences, without references', None)
    """
    table: dict[str, Any] = dict(bundle.tables.get("data", {}))
    if valid:
        names = [str(path) for path in valid]
        table |= {"train": names, "valid": names}
        table.pop("drop", None)  # a setting of translators only: compare on all rows
        return _read(bundle, table, most, f"rows of {', '.join(names)}")
    if table.get("train"):  # an imported run has no data
        with suppress(AttendoError):  # the files may no longer exist
            return _read(bundle, table, most, "validation rows of the run")
    texts = tuple(source for source, _ in forecasts.pairs(min(most, BUILT_IN), "valid"))
    return Examples(f"{len(texts)} built-in English sentences, without references", texts)


def _read(bundle: Bundle, table: dict[str, Any], most: int, what: str) -> Examples:
    family = family_of(bundle.card.get("task", ""))
    data: Any = section(family.data, {"data": table}, "data", "config.toml")
    data.check()
    corpus: Any = family.open(data, lambda line: None)
    references = None
    match corpus:
        case PairCorpus():
            pairs, _ = corpus.validation(most)
            texts, references = tuple(source for source, _ in pairs), tuple(target for _, target in pairs)
        case LabelledCorpus() if data.valid:  # only the validation texts are needed
            rows = islice(read_labelled(data.source(Path(data.valid[0]))), most)
            texts = tuple(row.text for row in rows)
        case LabelledCorpus() | ChatCorpus():
            texts = tuple(row.text for row in corpus.validation(most)[0])
        case _:
            texts = tuple(chunk.text for chunk in islice(corpus.chunks("valid"), most))
    return Examples(f"{len(texts)} {what}", texts, references)


BATCH = 16
"""The batch size for attendo's model."""


class Found(NamedTuple):
    """A translation by another program: the tokens without the end token, the text, and the score."""

    pieces: Sequence[str]
    text: str
    score: float


@runtime_checkable
class ForeignTranslator(Protocol):
    """An exported translator that another program runs on texts."""

    @property
    def same_search(self) -> Mapping[str, Any]:
        """The DecodingConfig options with which attendo's search equals the search of the other program."""
        ...

    def translate(self, texts: Sequence[str], beam: int) -> list[Found]:
        """Return the best translation of each text. The score is computed as in attendo with `same_search`."""
        ...


@runtime_checkable
class ForeignModel(Protocol):
    """An exported model that another program runs on token ids."""

    def logits(self, rows: Sequence[Sequence[int]]) -> list[Float[np.ndarray, "*len classes"]]:
        """Return the logits of each row: `[classes]` (classifier), a vector (embedding model), or `[len, vocab]`."""
        ...


Foreign = ForeignTranslator | ForeignModel


def measured(bundle: Bundle, model: Model, foreign: Foreign, examples: Examples) -> dict[str, Any]:
    """Compare the results of attendo and another program: shares of equal results (0 to 1), and score differences.

    For translators, the report also contains the agreement with the search settings of the run, and the BLEU of both
    programs if there are reference translations. Texts that exceed the context length are left out.

    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> from attendo.models import ModelConfig, build_model
    >>> sizes = dict(d_model=8, d_ff=8, n_heads=2, n_encoder_layers=0, n_decoder_layers=1, architecture="decoder")
    >>> model = build_model(ModelConfig(vocab_size=260, **sizes)).eval()
    >>> bundle = Bundle({}, train_tokenizer(["a"], TokenizerConfig(kind="byte")))
    >>> class Itself:
    ...     def logits(self, rows):
    ...         return [model(torch.tensor([row]))[0].detach().numpy() for row in rows]
    >>> measured(bundle, model, Itself(), Examples("a text", ("rain",)))
    {'compared': 'a text', 'n': 1, 'same_choice': 1.0, 'largest_difference': 0.0}
    """
    if isinstance(foreign, ForeignTranslator):
        assert isinstance(model, EncoderDecoder)
        return _translations(bundle, model, foreign, examples)
    return _logits(bundle, model, foreign, examples)


def parity_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the printed lines of a parity report.

    Args:
        found: The result of `measured`.

    >>> parity_lines({"compared": "3 texts", "n": 3, "same_tokens": 1.0, "largest_difference": 2e-6})
    ['compared on 3 texts', 'identical: tokens 100.0%', 'largest difference of a score 2.0e-06']
    """
    names = {"same_tokens": "tokens", "same_texts": "texts", "same_choice": "best choices"}
    shares = [f"{words} {100 * found[name]:.1f}%" for name, words in names.items() if name in found]
    what = "a score" if "same_tokens" in found else "a log-probability" if "same_choice" in found else "a number"
    lines = [f"compared on {found['compared']}"]
    lines += [f"identical: {', '.join(shares)}"] if shares else []
    if found.get("largest_difference") is not None:
        lines.append(f"largest difference of {what} {found['largest_difference']:.1e}")
    if "bleu" in found:
        score = found["bleu"]
        lines.append(f"BLEU {score['there']:.2f} exported, {score['here']:.2f} here ({score['signature']})")
    if "same_texts_own_search" in found:
        own = f"texts identical to the run's own search: {100 * found['same_texts_own_search']:.1f}%"
        lines.append(f"{own}, BLEU {found['bleu']['own_search']:.2f}" if "bleu" in found else own)
    return lines


def _translations(
    bundle: Bundle, model: EncoderDecoder, foreign: ForeignTranslator, examples: Examples
) -> dict[str, Any]:
    translator = Translator.from_bundle(bundle, model).prepare()
    read = [i for i, text in enumerate(examples.texts) if _fits(translator, text)]
    texts = [examples.texts[i] for i in read]
    own = translator.decoding
    translator.decoding = dataclasses.replace(own, n_best=1, **foreign.same_search)
    translator.segment = "none"
    here = [found.candidates[0] for found in translator.translate(texts, guard=False)]
    there = foreign.translate(texts, own.beam)
    entries = bundle.tokenizer.entries
    tokens = [[entries[i] for i in mine.token_ids] == list(its.pieces) for mine, its in zip(here, there, strict=True)]
    scores = [abs(m.score - f.score) for m, f, same in zip(here, there, tokens, strict=True) if same]
    found: dict[str, Any] = {
        "compared": examples.name if len(read) == len(examples.texts) else f"{len(read)} of {examples.name}",
        "n": len(read),
        "beam": own.beam,
        "attendo_search": dataclasses.asdict(translator.decoding),
        "same_tokens": _share(tokens),
        "same_texts": _share([m.text == f.text for m, f in zip(here, there, strict=True)]),
        "largest_difference": max(scores, default=None),
    }
    mine = [m.text for m in here]
    theirs = [f.text for f in there]
    as_run = None
    if translator.decoding != own:
        translator.decoding = own
        as_run = [t.text for t in translator.translate(texts, n_best=1, guard=False)]
        found["same_texts_own_search"] = _share([a == b for a, b in zip(as_run, theirs, strict=True)])
    if examples.references is not None:
        wanted = [examples.references[i] for i in read]
        tokenize = bleu_tokenizer(wanted)
        score = bleu(theirs, wanted, tokenize)
        found["bleu"] = {
            "there": score.value,
            "here": bleu(mine, wanted, tokenize).value,
            "signature": score.signature,
        } | ({} if as_run is None else {"own_search": bleu(as_run, wanted, tokenize).value})
    return found


def _fits(translator: Translator, text: str) -> bool:
    """Return whether a text fits into the context length."""
    return 0 < len(translator.tokenizer.encode(text)) <= translator.longest and bool(text.strip())


def _logits(bundle: Bundle, model: Model, foreign: ForeignModel, examples: Examples) -> dict[str, Any]:
    tokenizer, longest = bundle.tokenizer, model.config.max_len
    framed = tokenizer.specials.prompt if isinstance(model, DecoderLM) else tokenizer.specials.text
    rows = [framed(ids)[:longest] for ids in tokenizer.encode_batch(examples.texts)]
    chosen = not embeds_texts(model.config)  # vectors have no best choice
    same, largest = [], 0.0
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        for pair in zip(_own_logits(model, part, tokenizer), foreign.logits(part), strict=True):
            here, there = (np.atleast_2d(logits).astype(np.float64) for logits in pair)
            if chosen:
                here, there = log_softmax(here), log_softmax(there)
                same += (here.argmax(-1) == there.argmax(-1)).tolist()
            largest = max(largest, float(np.abs(here - there).max()))
    found: dict[str, Any] = {"compared": examples.name, "n": len(rows)}
    return found | ({"same_choice": _share(same)} if chosen else {}) | {"largest_difference": largest}


@torch.inference_mode()
def _own_logits(
    model: Model, rows: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> list[Float[np.ndarray, "*len classes"]]:
    """Return attendo's logits in the form of `ForeignModel`. Raise TypeError for a translator."""
    if isinstance(model, EncoderDecoder):
        raise TypeError("a translator must be compared by its translations")
    ids, lengths = pad_rows(rows, tokenizer.pad_id, next(model.parameters()).device)
    # padding comes after the tokens of a decoder, so it does not change their logits
    logits = model(ids) if isinstance(model, DecoderLM) else model(ids, lengths)
    found = logits.float().cpu().numpy()
    return [row[: len(own)] if found.ndim == 3 else row for row, own in zip(found, rows, strict=True)]


def _share(same: Sequence[bool]) -> float:
    return sum(same) / max(1, len(same))
