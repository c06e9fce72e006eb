"""A beam search as a tree, as the page draws it: everything a step kept, and the best of what it passed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendo.data.segments import Segments
from attendo.decoding.beam import length_norm
from attendo.decoding.options import DecodingConfig
from attendo.decoding.step import Hypothesis
from attendo.decoding.trace import SearchTrace, TraceNode
from attendo.errors import AttendoError
from attendo.inference import Generator, Translator
from attendo.inference.alignment import coverage_scores
from attendo.inference.incremental_decode import Spelling
from attendo.inference.translations import translation_of
from attendo.microscope.ask import MOST_BEAMS
from attendo.microscope.searching import config_of, search_text, search_translation
from attendo.microscope.seen import Seen


@dataclass(frozen=True)
class Searched:
    """A search on the edited model: its options, the best text found, and the whole tree."""

    config: DecodingConfig
    best: Hypothesis
    best_ids: tuple[int, ...]
    trace: SearchTrace


def searched(seen: Seen, beam: int, at_least: int = 0) -> Searched:
    """The search of this width on the model with the edits, from the source or the prompt that was looked at.

    A translator searches as `translate` does. A language model finds the likeliest text of at most `max_tokens` tokens
    (of `at_least`, if that is more, as far as its context goes). `best_ids` has the end token, where the text has one.
    Raises AttendoError for a model that searches for nothing, and for a beam out of range.
    """
    if not 1 <= beam <= MOST_BEAMS:
        raise AttendoError(f"beam={beam} must be 1 to {MOST_BEAMS}")
    match seen.user:
        case Translator() as user:
            config = config_of(user, beam)
            hypotheses, trace = search_translation(user, seen.edits, seen.source, seen.ask.prefix_ids, beam)
        case Generator() as user:
            config, prompt = DecodingConfig(beam=beam, length_penalty=0.0), prompt_of(seen)
            limit = max(seen.ask.max_tokens, at_least)
            limit = min(limit, user.model.config.max_len + 1 - len(prompt))
            if not limit:
                raise AttendoError("max_tokens=0 leaves nothing to search for; ask for 1 at least")
            hypotheses, trace = search_text(user, seen.edits, prompt, seen.ask.prefix_ids, beam, limit)
        case _:
            raise AttendoError(
                f"a model for {seen.family} answers in one pass: it searches for nothing, so there is no tree"
            )
    best = hypotheses[0]
    ended = (seen.tokenizer.eos_id,) if best.finished else ()
    return Searched(config, best, (*best.token_ids, *ended), trace)


def prompt_of(seen: Seen) -> tuple[int, ...]:
    """The ids that a language model goes on from. Raises AttendoError where its context did not hold one of them."""
    if not seen.prompt_tokens:
        raise AttendoError("the model's context does not hold the prompt any more; look at a shorter text")
    return seen.target[: seen.prompt_tokens]


def text_of(seen: Seen, found: Hypothesis) -> str:
    """A hypothesis as text: a whole translation, or what follows the prompt."""
    if seen.family == "translation":
        whole = Segments((seen.ask.text,), ("", ""))
        return translation_of(whole, [([found], "none")], seen.tokenizer, 1, None).text
    spelling = Spelling(seen.tokenizer, going_on=seen.prompt_tokens > 1)
    return "".join(map(spelling.add, found.token_ids)) + spelling.end()


def tree_answer(seen: Seen, beam: int) -> dict[str, Any]:
    """The search as a list of nodes, parents before children: {nodes, best_text, best_score, beam}.

    A node: id, parent (None at the root), step (from 0), token, log_prob of the token, sum over its path, score where
    a text ends (as the search has it, normalized by length), kept, finished, best: on the path of the best text. Nodes
    that are not kept had no place in their step. All of the model with the edits. Raises AttendoError as `searched`.
    """
    found = searched(seen, beam)
    nodes, names = _nodes(seen, found), _best_path(found)
    by_id = {node["id"]: node for node in nodes}
    for name in names:
        by_id[name]["best"] = True
    if names and not found.best.finished:  # it met its limit, and is scored all the same
        by_id[names[-1]]["score"] = found.best.score
    return {
        "nodes": nodes,
        "best_text": text_of(seen, found.best),
        "best_score": found.best.score,
        "beam": beam,
    }


def _nodes(seen: Seen, found: Searched) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = []
    before: dict[int, dict[str, Any]] = {}
    passed = found.trace.passed_over or ((),) * len(found.trace.steps)
    for step, (kept, others) in enumerate(zip(found.trace.steps, passed, strict=True)):
        here = {}
        for number, node in enumerate((*kept, *others)):
            told = _node(seen, found, node, (step, number), before.get(node.parent))
            told["kept"] = number < len(kept)
            nodes.append(told)
            if node.beam is not None:
                here[node.beam] = told
        before = here
    _cover(seen, found, nodes)
    return nodes


def _node(
    seen: Seen, found: Searched, node: TraceNode, place: tuple[int, int], parent: dict[str, Any] | None
) -> dict[str, Any]:
    step, number = place
    total = node.log_prob + (0.0 if parent is None else parent["sum"])
    norm = length_norm(step + 1, found.config.length_penalty, found.config.length_norm)
    return {
        "id": f"{step}.{number}",
        "parent": None if parent is None else parent["id"],
        "step": step,
        "token": seen.token(node.token),
        "log_prob": node.log_prob,
        "sum": total,
        "score": total / norm if node.finished else None,
        "kept": True,
        "finished": node.finished,
        "best": False,
    }


def _cover(seen: Seen, found: Searched, nodes: list[dict[str, Any]]) -> None:
    """Adds the coverage penalty to the scores, where the search has one."""
    ended = [node for node in nodes if node["finished"]]
    if not (found.config.coverage_penalty and ended):
        return
    paths = [found.trace.path(*map(int, node["id"].split(".")))[0][:-1] for node in ended]
    for node, covered in zip(ended, covered_scores(seen, found, paths), strict=True):
        node["score"] += covered


def covered_scores(seen: Seen, found: Searched, targets: list[tuple[int, ...]]) -> list[float]:
    """What the coverage penalty adds to the scores of translations without their ends, with the edits."""
    sources, beta = [seen.source] * len(targets), found.config.coverage_penalty
    with seen.edited() as view:
        return coverage_scores([view], seen.tokenizer, sources, targets, beta)


def _best_path(found: Searched) -> list[str]:
    """The ids of the nodes of the best text, from the root on."""
    steps, last = found.trace.steps, len(found.best_ids) - 1
    if last < 0:
        return []
    ends = (n for n, node in enumerate(steps[last]) if node.finished == found.best.finished)
    number = next(n for n in ends if found.trace.path(last, n)[0] == found.best_ids)
    names = [f"{last}.{number}"]
    for step in range(last - 1, -1, -1):
        parent = steps[step + 1][number].parent
        number = next(n for n, node in enumerate(steps[step]) if node.beam == parent)
        names.append(f"{step}.{number}")
    return names[::-1]
