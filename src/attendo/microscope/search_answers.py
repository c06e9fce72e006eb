"""The microscope page's data about a search: the candidate tree, and the reason why a text was not found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.decoding.backends import eager_backend
from attendo.decoding.beam import length_norm
from attendo.decoding.options import DecodingConfig
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.trace import SearchTrace, TraceNode
from attendo.display.i18n import Localized, sentence
from attendo.errors import AttendoError
from attendo.inference import Generator, Translator
from attendo.inference.alignment import coverage_scores
from attendo.inference.incremental_decode import Spelling
from attendo.microscope.protocol import MOST_BEAMS, From1, TreeAnswer, TreeNode, Verdict, WhyAnswer, WhyToken
from attendo.microscope.run_model import LookResult, config_of, search_text, search_translation


@dataclass(frozen=True)
class Searched:
    """The result of a beam search on the edited model. `best_ids` include the end token if the text ended."""

    config: DecodingConfig
    best: Hypothesis
    best_ids: tuple[int, ...]
    trace: SearchTrace


def searched(result: LookResult, beam: int, at_least: int = 0) -> Searched:
    """Run a beam search on the edited model, for the source or prompt of a result.

    For a translator, the search equals that of `translate`. For a language model, the search maximizes the
    log-probability of at most `max_tokens` tokens (or `at_least`, if this is larger). Raise AttendoError for other
    models, and if the beam size is out of range.
    """
    if not 1 <= beam <= MOST_BEAMS:
        raise AttendoError(f"beam={beam} must be 1 to {MOST_BEAMS}")
    prefix = result.request.prefix_ids
    match result.user:
        case Translator() as user:
            config = config_of(user, beam)
            hypotheses, trace = search_translation(user, result.edits, result.source, prefix, beam)
        case Generator() as user:
            config, prompt = DecodingConfig(beam=beam, length_penalty=0.0), prompt_of(result)
            limit = max(result.request.max_tokens, at_least)
            limit = min(limit, user.model.config.max_len + 1 - len(prompt))
            if not limit:
                raise AttendoError("max_tokens=0 must be 1 or more for a search")
            hypotheses, trace = search_text(user, result.edits, prompt, prefix, beam, limit)
        case _:
            raise AttendoError(f"a model for {result.family} answers in one pass without a search, so there is no tree")
    best = hypotheses[0]
    ended = (result.tokenizer.eos_id,) if best.finished else ()
    return Searched(config, best, (*best.token_ids, *ended), trace)


def prompt_of(result: LookResult) -> tuple[int, ...]:
    """Return the token ids that a language model continues. Raise AttendoError if the prompt exceeds the context."""
    if not result.prompt_tokens:
        raise AttendoError("the prompt exceeds the context length of the model. Use a shorter text")
    return result.target[: result.prompt_tokens]


def text_of(result: LookResult, found: Hypothesis) -> str:
    """Return the text of a hypothesis: a whole translation, or the continuation of the prompt."""
    if result.family == "translation":
        return result.tokenizer.decode(found.token_ids)
    spelling = Spelling(result.tokenizer, going_on=result.prompt_tokens > 1)
    return "".join(map(spelling.add, found.token_ids)) + spelling.end()


def tree_answer(result: LookResult, beam: From1) -> TreeAnswer:
    """Return the tree of a beam search as a list of nodes, with parents before children.

    A node contains its id, its parent (None at the root) and its step (from 0). It also contains its token, the
    log-probability of the token, and the sum of the log-probabilities on the path. If a text ends at the node, the node
    also contains the score with length normalization. `kept` is False for rejected candidates, and `best` marks the
    path of the best text. Raise the same errors as `searched`.
    """
    found = searched(result, beam)
    nodes, names = _nodes(result, found), _best_path(found)
    by_id = {node["id"]: node for node in nodes}
    for name in names:
        by_id[name]["best"] = True
    if names and not found.best.finished:  # it reached the length limit, but has a score
        by_id[names[-1]]["score"] = found.best.score
    return {
        "nodes": nodes,
        "best_text": text_of(result, found.best),
        "best_score": found.best.score,
        "beam": beam,
    }


def _nodes(result: LookResult, found: Searched) -> list[TreeNode]:
    nodes: list[TreeNode] = []
    before: dict[int | None, TreeNode] = {}
    passed = found.trace.passed_over or ((),) * len(found.trace.steps)
    for step, (kept, others) in enumerate(zip(found.trace.steps, passed, strict=True)):
        here = {}
        for number, node in enumerate((*kept, *others)):
            item = _node(result, found, node, (step, number), before.get(node.parent))
            item["kept"] = number < len(kept)
            nodes.append(item)
            if node.beam is not None:
                here[node.beam] = item
        before = here
    _cover(result, found, nodes)
    return nodes


def _node(
    result: LookResult, found: Searched, node: TraceNode, place: tuple[int, int], parent: TreeNode | None
) -> TreeNode:
    step, number = place
    total = node.log_prob + (0.0 if parent is None else parent["sum"])
    norm = length_norm(step + 1, found.config.length_penalty, found.config.length_norm)
    return {
        "id": f"{step}.{number}",
        "parent": None if parent is None else parent["id"],
        "step": step,
        "token": result.token(node.token),
        "log_prob": node.log_prob,
        "sum": total,
        "score": total / norm if node.finished else None,
        "kept": True,
        "finished": node.finished,
        "best": False,
    }


def _cover(result: LookResult, found: Searched, nodes: list[TreeNode]) -> None:
    """Add the coverage penalty to the scores, if the search uses a coverage penalty."""
    ended = [node for node in nodes if node["finished"]]
    if not (found.config.coverage_penalty and ended):
        return
    paths = [found.trace.path(*map(int, node["id"].split(".")))[0][:-1] for node in ended]
    for node, covered in zip(ended, covered_scores(result, found, paths), strict=True):
        node["score"] = (node["score"] or 0.0) + covered


def covered_scores(result: LookResult, found: Searched, targets: list[tuple[int, ...]]) -> list[float]:
    """Return the coverage penalties of translations without end tokens, computed with the edits."""
    sources, beta = [result.source] * len(targets), found.config.coverage_penalty
    with result.edited() as view:
        return coverage_scores([view], result.tokenizer, sources, targets, beta)


def _best_path(found: Searched) -> list[str]:
    """Return the ids of the nodes on the path of the best text, from the root."""
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


def why_answer(result: LookResult, target: str, beam: From1) -> WhyAnswer:
    """Return the comparison of a given text with the best text of a beam search.

    The `verdict` is "same" if the texts are equal, and "model" if the model prefers the text of the search. The verdict
    is "search" if the search lost a text that the model prefers (a search error; Stahlberg & Byrne 2019, "On NMT Search
    Errors and Model Errors"). The verdict is "forced" if the output had to begin with other tokens. `diverges_at` is
    the first different token. `lost_at` is the step (from 0) in which the beam rejected the text, or None. A `rank` of
    1 is the most probable token.

    For a language model, both texts are compared over the number of tokens in the given text. Raise the same errors as
    `searched`, and AttendoError for an empty or overlong text.
    """
    ids = _ids(result, target)
    found = searched(result, beam, at_least=len(ids))
    logits = _forced(result, ids)
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, torch.tensor([ids], device=log_probs.device).mT)
    ranks = 1 + (log_probs > chosen).sum(-1)
    best, first = log_probs.max(-1)
    rows = zip(ids, chosen[:, 0].tolist(), ranks.tolist(), best.tolist(), first.tolist(), strict=True)
    tokens: list[WhyToken] = [
        {
            **result.token(token),
            "log_prob": log_prob,
            "rank": rank,
            "best": {**result.token(other), "log_prob": most},
        }
        for token, log_prob, rank, most, other in rows
    ]
    is_translation = result.family == "translation"
    answer: WhyAnswer = {
        "text": target,
        "tokens": tokens,
        "score": _score(result, found, ids, chosen[:, 0].tolist()),
        "best_text": text_of(result, found.best),
        # a text of a language model counts up to the length of the given text
        "best_score": found.best.score if is_translation else sum(found.best.token_log_probs[: len(ids)]),
        "diverges_at": _diverges_at(ids, found.best_ids),
        "lost_at": lost_at(found.trace, ids),
        "verdict": "model",
        "sentence_en": "",
        "sentence_ja": "",
    }
    prefix = result.request.prefix_ids
    forced = tuple(ids[: len(prefix)]) != prefix
    answer["verdict"] = _verdict(answer, is_translation=is_translation, forced=forced)
    lost = sentence("why.lost.forced") if forced else _lost(answer, beam, len(found.trace.steps))
    said = _said(answer, lost, is_translation=is_translation)
    return {**answer, "sentence_en": said.en, "sentence_ja": said.ja}


def lost_at(trace: SearchTrace, ids: Sequence[int]) -> int | None:
    """Return the first step (from 0) in which the beam rejects the beginning of a text, or None.

    >>> from attendo.decoding.trace import TraceNode
    >>> tree = SearchTrace(((TraceNode(7, -0.5, 0, 0, False),), (TraceNode(1, -0.2, 0, None, True),)))
    >>> lost_at(tree, (7, 1)), lost_at(tree, (7, 9)), lost_at(tree, (8, 1))
    (None, 1, 0)
    """
    alive: set[int | None] | None = None
    for step, (token, nodes) in enumerate(zip(ids, trace.steps, strict=False)):
        kept = [node for node in nodes if node.token == token and (alive is None or node.parent in alive)]
        if not kept:
            return step
        alive = {node.beam for node in kept}
    return None


def _ids(result: LookResult, target: str) -> tuple[int, ...]:
    """Return the token ids of the target. For a translation, they include the end token."""
    tokenizer = result.tokenizer
    match result.user:
        case Translator() as user:
            ids, most = (*tokenizer.target.encode(target), tokenizer.eos_id), user.longest + 1
        case Generator() as user:
            prompt = prompt_of(result)
            ids = tuple(tokenizer.encode_on(target) if len(prompt) > 1 else tokenizer.encode(target))
            most = user.model.config.max_len + 1 - len(prompt)
        case _:
            raise AttendoError(f"a model for {result.family} writes no text, so none can be missing")
    if not ids:
        raise AttendoError("the text is empty. Enter the expected text")
    if len(ids) > most:
        raise AttendoError(f"the text has {len(ids):,} tokens (expected at most {most:,}). Shorten it")
    return ids


@torch.inference_mode()
def _forced(result: LookResult, ids: Sequence[int]) -> Float[Tensor, "n vocab"]:
    """Return the logits with which each of the given tokens is predicted from the earlier tokens."""
    tokenizer, device = result.tokenizer, result.user.device
    with result.edited() as view:
        if isinstance(result.user, Translator):
            begin = tokenizer.specials.begin
            read = torch.tensor([[*begin, *ids[:-1]]], device=device)
            return eager_backend(view, tokenizer.pad_id).forced([result.source], read)[0, len(begin) - 1 :]
        prompt = prompt_of(result)
        return view(torch.tensor([[*prompt, *ids[:-1]]], device=device))[0, len(prompt) - 1 :]


def _score(result: LookResult, found: Searched, ids: tuple[int, ...], log_probs: Sequence[float]) -> float:
    config = found.config
    norm = length_norm(len(ids), config.length_penalty, config.length_norm)
    return sum(log_probs) / norm + covered_scores(result, found, [ids[:-1]])[0]


def _diverges_at(ids: Sequence[int], best: Sequence[int]) -> int | None:
    pairs = zip(ids, best, strict=False)
    first = next((number for number, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    if first is None and len(best) < len(ids):
        return len(best)  # the search reached its length limit
    return first


def _verdict(answer: WhyAnswer, *, is_translation: bool, forced: bool) -> Verdict:
    """Return the verdict of `why_answer`, which is "model" if the scores are equal up to rounding."""
    if answer["diverges_at"] is None:
        return "same"
    best_score = answer["best_score"]
    if not answer["score"] > best_score + 1e-6 * max(1.0, abs(best_score)):
        return "model"
    # the search of a language model can keep a text and choose another
    kept = not is_translation and answer["lost_at"] is None
    return "forced" if forced else "model" if kept else "search"


def _said(answer: WhyAnswer, lost: Localized | str, *, is_translation: bool) -> Localized:
    """Return the verdict as one or more sentences, of which one contains the first difference of the two texts."""
    continued = answer["verdict"] == "model" and answer["score"] > answer["best_score"]
    at = answer["diverges_at"] or 0
    choice: Localized | str = ""
    if at < len(answer["tokens"]) and (token := answer["tokens"][at])["rank"] > 1:
        choice = sentence(
            "why.choice",
            mine=token["piece"],
            p=math.exp(token["log_prob"]),
            first=token["best"]["piece"],
            most=math.exp(token["best"]["log_prob"]),
        )
    alike = sentence("why.alike") if answer["best_text"] == answer["text"] else ""
    return sentence(
        f"why.{'continuation' if continued else answer['verdict']}",
        whole=sentence("why.translation" if is_translation else "why.text"),
        mine=f"{answer['score']:.4f}",
        theirs=f"{answer['best_score']:.4f}",
        parting=sentence("why.parting", place=at + 1, choice=choice, alike=alike),
        lost=lost,
    )


def _lost(answer: WhyAnswer, beam: int, n_steps: int) -> Localized | str:
    """Return the step in which a search lost the text, if there is one."""
    if answer["lost_at"] is not None:
        return sentence("why.lost.dropped", beam=beam, place=answer["lost_at"] + 1)
    return sentence("why.lost.ended", n_steps=n_steps) if len(answer["tokens"]) > n_steps else ""
