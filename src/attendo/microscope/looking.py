"""A look: run a model on a text, with edits, recorded; and the answer that the page draws."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Translator
from attendo.inspecting.edits import Edit, Mean, Off, Temper
from attendo.inspecting.recording import recording
from attendo.microscope.ask import Ask, AskedEdit
from attendo.microscope.layers import attention_layers, effect_paths, stacks_of
from attendo.microscope.reading import read
from attendo.microscope.seen import Seen, User, log_probs_of_wanted

KEPT = ("*.scores", "*.weights", "*.query", "*.key", "*.value", "*.mixed", "*.output")


def look(user: User, ask: Ask, folder: Path | None = None, baseline: Seen | None = None) -> Seen:
    """One look: the answer is searched on the model with the edits, then one pass over it is recorded.

    baseline: the look at the model as it is, where there is one; it is taken anew when an edit needs it. Its answer
    makes a greedy search quicker. Raises AttendoError for a text of nothing, and for an edit of what isn't there.
    """
    model, family = user.model, user.task
    if baseline is None and any(edit.how == "mean" for edit in ask.edits):
        baseline = look(user, ask.without_edits(), folder)
    edits = tuple(_edit(user, edit, baseline) for edit in ask.edits)
    draft = () if baseline is None else baseline.target[baseline.prompt_tokens :]
    with a_thread_fewer():
        reading = read(user, ask, edits, draft)
    inputs = reading.inputs(family, user.device)
    with torch.no_grad(), recording(model, keep=KEPT, edits=edits) as record:
        logits = record.model.eval()(**inputs)[0]
    return Seen(
        user=user,
        model=model,
        tokenizer=user.tokenizer,
        family=family,
        ask=ask,
        edits=edits,
        inputs=inputs,
        source=reading.source,
        target=reading.target,
        wanted=reading.wanted,
        prompt_tokens=reading.prompt_tokens,
        score=reading.score,
        finished=reading.finished,
        record=record,
        logits=logits,
        folder=folder,
        note=reading.note,
    )


@contextmanager
def a_thread_fewer() -> Iterator[None]:
    """Leaves a core to the browser that draws: the threads of a search wait for each other at each of its short steps,
    so one that has lost its core to a browser holds up all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _edit(user: User, asked: AskedEdit, baseline: Seen | None) -> Edit:
    """The change that is asked for; a mean is that over the positions of the text, in the model as it is."""
    heads = None if asked.head is None else (asked.head,)
    if asked.kind == "beta":
        return Temper(asked.path, asked.inverse_temperature, heads)
    if asked.how == "zero":
        return Off(asked.path, heads)
    if asked.path not in effect_paths(user.model):
        raise AttendoError(f'{asked.path} is no layer that has a mean; take how "zero", or a whole path')
    assert baseline is not None
    found = baseline.record[asked.path]
    of_heads = asked.path in attention_layers(user.model)
    return Mean(asked.path, found.mixed[0].mean(1) if of_heads else found.output[0].mean(0), heads)


def look_answer(seen: Seen, baseline: Seen | None, began: float) -> dict[str, Any]:
    """What the page is told of a look; baseline: the same of the model as it is, where something is changed."""
    return {
        "key": seen.ask.key,
        "family": seen.family,
        "source": _tokens(seen, seen.source, of_source=True),
        "target": _tokens(seen, seen.target, of_source=False),
        "prompt_tokens": seen.prompt_tokens,
        "stacks": stacks_of(seen),
        "outcome": outcome(seen),
        "baseline": None if baseline is None else compared(seen, baseline),
        "note": seen.note,
        "seconds": round(time.perf_counter() - began, 3),
    }


def _tokens(seen: Seen, ids: tuple[int, ...], *, of_source: bool) -> list[dict[str, Any]]:
    """The tokens of a side; those that a token is predicted at tell which."""
    known = {token: seen.token(token) for token in {*ids, *(w for w in seen.wanted if w is not None)}}
    predicts = bool(seen.wanted) and of_source == (seen.family == "masked-language-model")
    if not predicts:
        return [known[token] for token in ids]
    log_probs = seen.log_probs().tolist()
    wanted = torch.tensor([0 if w is None else w for w in seen.wanted], device=seen.logits.device)
    ranks = (seen.logits > seen.logits.gather(-1, wanted[:, None])).sum(-1).tolist()
    return [
        known[token] | {"out": None if w is None else {**known[w], "log_prob": log_prob, "rank": rank + 1}}
        for token, w, log_prob, rank in zip(ids, seen.wanted, log_probs, ranks, strict=True)
    ]


def outcome(seen: Seen) -> dict[str, Any]:
    """The answer of a model: its text and how probable it is, or a classifier's labels, likeliest first.

    Of a masked language model: the text with its hidden tokens found, whose number is `filled`; where none is hidden,
    the likeliest token at each place, and the log-probability is that of the text as it is.
    """
    if isinstance(seen.user, Classifier):
        return {"labels": _labels(seen)}
    if isinstance(seen.user, Embedder):
        n = seen.source.count(seen.tokenizer.mask_id)
        places = zip(seen.source, seen.wanted, strict=True)
        ids = [id_ if w is None else w for id_, w in places] if n else seen.logits.argmax(-1).tolist()
        before, behind = seen.tokenizer.specials.around_text
        text = seen.tokenizer.decode(ids[len(before) : len(ids) - len(behind)])
        return {"text": text, "log_prob": float(seen.log_probs().sum()), "finished": True, "filled": n}
    written = [w for w in seen.wanted[seen.prompt_tokens - 1 :] if w is not None]
    log_prob = float(seen.log_probs()[seen.prompt_tokens - 1 :].sum())
    score = seen.score
    if score is None and isinstance(seen.user, Translator):
        score = normalized(seen.user, log_prob, len(written))
    found = {"text": seen.tokenizer.decode(written), "log_prob": log_prob, "finished": seen.finished}
    return found if score is None else found | {"score": score}


def normalized(translator: Translator, log_prob: float, n_tokens: int) -> float:
    """A translation's score: its log-probability by the length norm of the run's search."""
    from attendo.decoding.beam import length_norm

    config = translator.decoding
    return log_prob / length_norm(n_tokens, config.length_penalty, config.length_norm)


def _labels(seen: Seen) -> list[dict[str, Any]]:
    assert isinstance(seen.user, Classifier)
    probabilities = (seen.logits.double() / seen.user.temperature).softmax(-1).tolist()
    rows = zip(seen.user.labels.names, probabilities, strict=True)
    return [{"label": name, "probability": p} for name, p in sorted(rows, key=lambda row: -row[1])]


def compared(seen: Seen, baseline: Seen) -> dict[str, Any]:
    """The answer of the model as it is, and what the edits change in its log-probability, token by token."""
    before = outcome(baseline)
    if isinstance(seen.user, Classifier):
        now = {row["label"]: row["probability"] for row in _labels(seen)}
        deltas = {row["label"]: now[row["label"]] - row["probability"] for row in before["labels"]}
        return before | {"deltas": deltas, "total": deltas[before["labels"][0]["label"]]}
    logits = seen.logits
    if (seen.source, seen.target) != (baseline.source, baseline.target):
        # by the same readable computation as the look at the model as it is: what is equal differs by nothing
        with torch.no_grad(), recording(seen.model, "*.weights", seen.edits) as record:
            logits = record.model.eval()(**baseline.inputs)[0]
    changed = log_probs_of_wanted(logits, baseline.wanted) - baseline.log_probs()
    deltas = changed[baseline.prompt_tokens - 1 :].tolist()
    written = baseline.wanted[baseline.prompt_tokens - 1 :]
    tokens = [None if token is None else baseline.token(token) for token in written]
    return before | {"deltas": deltas, "total": sum(deltas), "tokens": tokens}
