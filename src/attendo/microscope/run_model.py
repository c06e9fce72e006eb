"""The function `look`, which runs an edited model on a text and stores the input, output and hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.bundle import TaskName
from attendo.data.chat import is_talk, marked_ids
from attendo.data.masking import MASK
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.backends import DecoderBackend, eager_backend, eager_decoder
from attendo.decoding.beam import DecodingConfig, beam_search, log_probs_of
from attendo.decoding.native.compiled import Change
from attendo.decoding.options import SpecialIds
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.decoding.trace import SearchTrace, TraceRecorder
from attendo.display.i18n import Localized, sentence
from attendo.errors import AttendoError
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inference.alignment import attending_step
from attendo.inference.generation import special_ids
from attendo.inference.translations import is_looping
from attendo.inspecting.edits import Edit, LayerEdits, Off, OffByRow, Patch, Temper, resolve
from attendo.inspecting.recording import Recording, edited, recording
from attendo.microscope.protocol import EditRequest, LookRequest, Search, Side, Token
from attendo.models import Model
from attendo.nn.attention import Attention
from attendo.nn.layers import FeedForward

User = Translator | Classifier | Generator | Embedder


def require_shown(user: Any) -> None:
    """Raise AttendoError for a model that `attendo look` does not show, such as a tagger."""
    if getattr(user, "pairs", False):
        raise AttendoError("attendo look does not show classifiers of pairs of texts. Give the run of another model")
    if not isinstance(user, User):
        raise AttendoError(
            f"attendo look does not show models for {user.task}. It shows models for translation, classification,"
            " language-model and masked-language-model"
        )


@dataclass(frozen=True, eq=False)
class Reading:
    """The token ids of a result and the facts about its search.

    Attributes:
        source: The token ids that the encoder reads.
        target: The token ids that the decoder reads.
        wanted: The token id that each target position predicts, or None after the last token.
        prompt_tokens: The number of tokens at the start of `target` that were given, not generated.
        score: The score of the search with length normalization, or None.
        finished: Whether the output reached its end token.
        note: A note about omitted tokens or a text that repeats itself, or None.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    wanted: tuple[int | None, ...]
    prompt_tokens: int = 1
    score: float | None = None
    finished: bool = True
    note: Localized | None = None

    def as_inputs(self, family: TaskName, device: torch.device) -> dict[str, Tensor]:
        """Return the arguments of the forward pass: one row without padding."""
        names = {
            "translation": {"src": self.source, "tgt": self.target},
            "language-model": {"token_ids": self.target},
        }
        chosen = names.get(family, {"src": self.source})
        return {name: torch.tensor([list(ids)], device=device) for name, ids in chosen.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class LookResult(Reading):
    """The result of one run of a model.

    Attributes:
        user: The loaded object, for example a Translator.
        model: The unchanged model.
        tokenizer: The tokenizer of the model.
        family: The task of the model.
        request: The request of the run.
        edits: The edits of the request, in the format that `recording` accepts.
        inputs: The arguments of the forward pass: one row without padding.
        record: The recorded tensors of the edited model: scores, weights, query, key and value of each attention layer,
            and the outputs of all modules.
        logits: The logits of the output layer.
        folder: The run folder, or None for a model in memory.
    """

    user: User
    model: Model
    tokenizer: Tokenizer
    family: TaskName
    request: LookRequest
    edits: tuple[Edit, ...]
    inputs: dict[str, Tensor]
    record: Recording[Any]
    logits: Float[Tensor, "*positions n"]
    folder: Path | None = None

    def token(self, token_id: int) -> Token:
        """Return the id, the piece and the text of a token, as the page shows them.

        Args:
            token_id: The id of the token.
        """
        piece = self.piece(token_id)
        shown: Token = {"id": token_id, "piece": piece, "text": self.tokenizer.decode([token_id])}
        if token_id == self.tokenizer.unk_id and piece != MASK:
            shown["unknown"] = True
        return shown

    def piece(self, token_id: int) -> str:
        """Return the piece of a token. For a masked language model, the mask token is shown as MASK.

        Args:
            token_id: The id of the token.
        """
        hidden = token_id == self.tokenizer.mask_id and self.family == "masked-language-model"
        return MASK if hidden else self.tokenizer.pieces([token_id])[0]

    def sides(self, path: str) -> tuple[Side, Side]:
        """Return the sides ("source" or "target") whose tokens are the queries and the keys of an attention layer.

        Args:
            path: The module path of the attention layer.
        """
        if not path.startswith("decoder"):
            return "source", "source"
        return "target", "source" if path.endswith("cross_attention") else "target"

    def ids(self, side: Side) -> tuple[int, ...]:
        """Return the token ids of a side.

        Args:
            side: The side, "source" or "target".
        """
        return self.source if side == "source" else self.target

    @cached_property
    def n_bytes(self) -> int:
        """The size of the recorded tensors in bytes."""
        calls = [self.record[path] for path in self.record]
        return sum(getattr(call, part).nbytes for call in calls for part in call.parts)

    @cached_property
    def _ngram_log_probs(self) -> Float[Tensor, " classes"]:
        assert isinstance(self.user, Classifier) and self.user.ngrams is not None
        return torch.from_numpy(self.user.ngrams.scores([self.request.text])[0]).log_softmax(-1)

    def label_log_probs(self, logits: Float[Tensor, "*rows classes"]) -> Float[Tensor, "*rows classes"]:
        """Return the calibrated log-probabilities of a classifier's labels, in float64.

        Args:
            logits: The logits of the encoder, for example without a head. The n-grams are those of the text.
        """
        user = self.user
        assert isinstance(user, Classifier)
        logits = logits.double()
        if user.ngrams is not None and user.share < 1.0:
            own = (logits / user.encoder_temperature).log_softmax(-1)
            logits = user.share * own + (1.0 - user.share) * self._ngram_log_probs.to(logits)
        return (logits / user.temperature).log_softmax(-1)

    @property
    def label(self) -> int:
        """The id of a classifier's most probable label."""
        return int(self.label_log_probs(self.logits).argmax())

    def edited(self) -> AbstractContextManager[Any]:
        """Return a context manager that yields the edited model."""
        return edited(self.model, self.edits)

    def log_probs(self) -> Float[Tensor, " positions"]:
        """Return the log-probability in nats of each position's target, or 0 for positions without a target."""
        return log_probs_of_wanted(self.logits, self.wanted)


def log_probs_of_wanted(
    logits: Float[Tensor, "positions vocab"], wanted: Sequence[int | None]
) -> Float[Tensor, " positions"]:
    """Return the log-probability of the token that each position predicts, in nats, or 0 if there is no such token.

    >>> log_probs_of_wanted(torch.zeros(2, 4), (3, None))
    tensor([-1.3863,  0.0000])
    """
    ids = torch.tensor([0 if token is None else token for token in wanted], device=logits.device)
    there = torch.tensor([token is not None for token in wanted], device=logits.device)
    return torch.where(there, log_probs_of(logits, ids), 0.0)


def attention_layers(model: Model) -> dict[str, Attention]:
    """Return the attention layers of a model by path, in the order of the model."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Attention)}


def attention_paths(model: Model) -> dict[str, list[str]]:
    """Return the paths of a model's attention layers by stack: encoder, decoder or cross."""
    found: dict[str, list[str]] = {}
    for path in attention_layers(model):
        stack = "cross" if path.endswith("cross_attention") else path.partition(".")[0]
        found.setdefault(stack, []).append(path)
    return found


def effect_paths(model: Model) -> list[str]:
    """Return the paths of all layers that can be switched off: attention layers and feed-forward networks."""
    ends = ("self_attention", "cross_attention", "feed_forward")
    return [path for path, _ in model.named_modules() if path.endswith(ends)]


KEPT = ("*.scores", "*.weights", "*.query", "*.key", "*.value", "*.mixed", "*.output")


def look(
    user: User, request: LookRequest, folder: Path | None = None, baseline: LookResult | None = None
) -> LookResult:
    """Generate the output of a model with edits, and record one forward pass over the input and the output.

    Args:
        user: The loaded model with its tokenizer.
        request: The text, the search and the edits.
        folder: The run folder (None: the model is in memory).
        baseline: The result of the unchanged model (default: computed if an edit requires it).

    Raises:
        AttendoError: The text is empty, or an edit refers to a part that does not exist.
    """
    require_shown(user)
    model, family = user.model, user.task
    if baseline is None and any(edit.how == "mean" for edit in request.edits):
        baseline = look(user, request.without_edits(), folder)
    edits = tuple(_edit(user, edit, baseline) for edit in request.edits)
    # an open page waits for the result of an edit without work of its own
    with nullcontext() if request.edits else one_thread_less():
        reading = read(user, request, edits)
    inputs = reading.as_inputs(family, user.device)
    with torch.no_grad(), recording(model, keep=KEPT, edits=edits) as record:
        logits = record.model.eval()(**inputs)[0]
    return LookResult(
        user=user,
        model=model,
        tokenizer=user.tokenizer,
        family=family,
        request=request,
        edits=edits,
        inputs=inputs,
        record=record,
        logits=logits,
        folder=folder,
        **vars(reading),
    )


@contextmanager
def one_thread_less() -> Iterator[None]:
    """Use one CPU thread fewer, to leave a core for the browser.

    The threads of a search synchronize at every step, so a thread without a core delays all other threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _edit(user: User, asked: EditRequest, baseline: LookResult | None) -> Edit:
    """Return the requested edit. A mean is computed over the positions of the text in the unchanged model."""
    heads = None if asked.head is None else (asked.head,)
    if asked.kind == "beta":
        return Temper(asked.path, asked.inverse_temperature, heads)
    if asked.how == "zero":
        return Off(asked.path, heads)
    if asked.path not in effect_paths(user.model):
        raise AttendoError(f'{asked.path} has no mean. Use how="zero", or a full path')
    assert baseline is not None
    found = baseline.record[asked.path]
    of_heads = asked.path in attention_layers(user.model)
    whole = Patch(asked.path, found.output.mean(1, keepdim=True))
    return Patch(asked.path, found.mixed.mean(2, keepdim=True), "mixed", heads) if of_heads else whole


def usual_beam(user: User) -> int:
    """Return the default beam size of a model, or 1 if the model does not search."""
    match user:
        case Translator():
            return user.decoding.beam
        case Generator():
            return 4
        case _:
            return 1


def usual_search(user: User) -> Search:
    """Return the default search: beam search for a translator with a beam size above 1, and greedy search otherwise."""
    return "beam" if isinstance(user, Translator) and usual_beam(user) > 1 else "greedy"


def read(user: User, request: LookRequest, edits: Sequence[Edit] = ()) -> Reading:
    """Return the token ids of the input and the output. The output is decoded with the edits, unless it is forced.

    Raise AttendoError for a text without tokens, and for an invalid prefix.
    """
    for token in request.prefix_ids:
        if not 0 <= token < user.model.config.vocab_size:
            raise AttendoError(f"prefix_ids has {token}; ids are 0 to {user.model.config.vocab_size - 1}")
    match user:
        case Translator():
            return _translation(user, request, edits)
        case Generator():
            return _continuation(user, request, edits)
        case Classifier():
            ids = user.tokenizer.encode(request.text)
            part = list(user.long_texts.parts(ids)[0])
            note = _note(len(ids), len(part))
        case Embedder():
            ids = masked_ids(user.tokenizer, request.text)
            part = ids[: user.model.config.max_len - user.tokenizer.specials.n_around_text]
            note = _note(len(ids), len(part))
    _some(part, request.text)
    source = tuple(user.tokenizer.specials.text(part))
    wanted = _of_places(user, edits, source) if isinstance(user, Embedder) else ()
    return Reading(source, (), wanted, note=note)


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a text for a masked language model, with each MASK as the mask token.

    A space before a masked word is part of the word, as in training, unless spaces are tokens.
    """
    *before, last = text.split(MASK)
    if tokenizer.kind not in ("character", "byte"):
        before = [part.removesuffix(" ") for part in before]
    first, *others = [*before, last]
    behind = [id_ for part in others for id_ in (tokenizer.mask_id, *tokenizer.encode_on(part))]
    return [*tokenizer.encode(first), *behind]


def _of_places(user: Embedder, edits: Sequence[Edit], source: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the predictions at the masked tokens. Without masked tokens, return the tokens of the text."""
    mask_id, (before, behind) = user.tokenizer.mask_id, user.tokenizer.specials.around_text
    if mask_id not in source:
        last = len(source) - len(behind)
        return (*[None] * len(before), *source[len(before) : last], *[None] * len(behind))
    with torch.no_grad(), edited(user.model, edits) as view:
        likeliest = view(src=torch.tensor([source], device=user.device))[0].argmax(-1).tolist()
    return tuple(best if id_ == mask_id else None for id_, best in zip(source, likeliest, strict=True))


def _translation(user: Translator, request: LookRequest, edits: Sequence[Edit]) -> Reading:
    tokenizer = user.tokenizer
    ids = tokenizer.encode(request.text)
    _some(ids, request.text)
    part = ids[: user.longest]
    note = _note(len(ids), len(part))
    source = tuple(tokenizer.specials.source(part))
    if request.search == "forced":
        whole = tokenizer.target.encode(request.target or "")
        found = whole[: user.longest]
        note = note or _note(len(whole), len(found), "target")
        score, finished = None, len(found) == len(whole)
    else:
        beam = 1 if request.search == "greedy" else request.beam
        if request.edits or request.prefix_ids:
            (best, *_), _ = search_translation(user, edits, source, request.prefix_ids, beam)
        else:
            ((best, *_),) = user.search([list(source)], config_of(user, beam))
        found, finished = list(best.token_ids)[: user.longest], best.finished
        score = best.score
        if is_looping(source, best):
            note = note or sentence("look.repeats")
    begin = tokenizer.specials.begin
    target = (*begin, *found)
    last = tokenizer.eos_id if finished or request.search == "forced" else None
    return Reading(source, target, (*begin[1:], *found, last), len(begin), score, finished, note)


def _continuation(user: Generator, request: LookRequest, edits: Sequence[Edit]) -> Reading:
    tokenizer, most = user.tokenizer, user.model.config.max_len
    ids = marked_ids(tokenizer, request.text)
    if request.search == "forced" and is_talk(tokenizer, ids):
        talk = marked_ids(tokenizer, request.text + (request.target or ""))
        prompt, found, finished = ids, talk[len(ids) :], False
    elif request.search == "forced":
        behind = (tokenizer.encode_on if request.text else tokenizer.encode)(request.target or "")
        prompt, found, finished = ids, behind, False
    else:
        n_tokens = min(request.max_tokens, most - 1)
        prompt, found, finished = ids[-(most - n_tokens) :], [], False
        if n_tokens:
            beam = 1 if request.search == "greedy" else request.beam or usual_beam(user)
            (best, *_), _ = search_text(user, edits, prompt, request.prefix_ids, beam, n_tokens)
            found, finished = list(best.token_ids), best.finished
    whole = [*prompt, *found]
    kept = whole[-most:]
    left_out = len(ids) + len(found) - len(kept)
    last = _special_ids(tokenizer, ids).eos_id if finished else None
    prompt_tokens = max(1, len(prompt) - (len(whole) - len(kept)))
    note = sentence("look.left_out", n=left_out, most=most) if left_out else None
    return Reading((), tuple(kept), (*kept[1:], last), prompt_tokens, None, finished, note)


def _special_ids(tokenizer: Tokenizer, prompt: Sequence[int]) -> SpecialIds:
    """Return the special token ids. If the prompt is a conversation, the end token is that of a reply."""
    known, chat = special_ids(tokenizer), tokenizer.chat
    return dataclasses.replace(known, eos_id=chat.end_id) if chat and is_talk(tokenizer, prompt) else known


def _some(ids: Sequence[int], text: str) -> None:
    if not ids or not text.strip():
        raise AttendoError("the text is empty. Give a sentence")


def _note(n: int, kept: int, of: str = "text") -> Localized | None:
    return None if n == kept else sentence(f"look.cut.{of}", n=n, kept=kept)


PASSED_OVER = 3
"""The number of rejected candidates that the trace of a step contains, the most probable first."""

Found = tuple[list[Hypothesis], SearchTrace]
"""The hypotheses of a search, with the best hypothesis first, and the tree of the search."""

FormT = TypeVar("FormT", SearchBackend, DecoderBackend)


def config_of(translator: Translator, beam: int | None) -> DecodingConfig:
    """Return the decoding settings of `translate` with a beam size (default: as in the run).

    A beam size of 1 has no beam groups.
    """
    if beam != 1:
        return translator.config(beam=beam)
    return dataclasses.replace(translator.decoding, beam=1, n_best=1, beam_groups=1)


def search_translation(
    translator: Translator,
    edits: Sequence[Edit],
    source: Sequence[int],
    prefix: Sequence[int],
    beam: int | None,
) -> Found:
    """Translate source ids as `translate` does, with edits of the model and a given beginning of the output."""
    config, (first, *others) = config_of(translator, beam), translator.members()
    looks = config.coverage_penalty > 0  # only the modules return attention
    with torch.no_grad(), ExitStack() as until_found:
        backend = None if looks or others else _changed(first, translator.model, edits)
        if backend is None:
            view = until_found.enter_context(edited(translator.model, edits))
            backend = eager_backend(view, translator.tokenizer.pad_id)
            backend = dataclasses.replace(backend, attending=attending_step(view) if looks else None)
        backend = backend.with_decoder_prefix(translator.tokenizer.specials.begin)
        searcher = Searcher(backend, translator.special_ids, translator.longest + 1)
        return searcher.traced(source, config, prefix, PASSED_OVER)


def search_text(
    generator: Generator,
    edits: Sequence[Edit],
    prompt: Sequence[int],
    prefix: Sequence[int],
    beam: int,
    max_tokens: int,
) -> Found:
    """Search for the most probable continuation of a prompt, with edits of the model and a given beginning."""
    known = _special_ids(generator.tokenizer, prompt)
    config = DecodingConfig(beam=beam, n_best=beam, length_penalty=0.0)
    with torch.no_grad(), ExitStack() as until_found:
        changed = _changed(generator.reader(), generator.model, edits)
        model = changed or eager_decoder(until_found.enter_context(edited(generator.model, edits)))
        cache = model.start(beam, len(prompt) + max_tokens)
        if len(prompt) > 1:  # the search itself processes the last token
            model.step(torch.tensor([list(prompt[:-1])] * beam, device=generator.device), cache)
        special = SpecialIds(bos_id=prompt[-1], eos_id=known.eos_id, banned_ids=known.banned_ids)
        recorder = TraceRecorder(1, PASSED_OVER)
        prefixes = [prefix[: max_tokens - 1]] if prefix else None
        hypotheses = beam_search(
            model.step, cache, [max_tokens], config, special, generator.device, prefixes=prefixes, recorder=recorder
        )
    return hypotheses[0], recorder.traces()[0]


def _changed(form: FormT, model: Model, edits: Sequence[Edit]) -> FormT | None:
    """Return the compiled form of a model with edits, or None if the compiled form does not support the edits."""
    changes = None if form.changed is None else changes_of(model, edits)
    return None if form.changed is None or changes is None else form.changed(changes)


def changes_of(model: Model, edits: Sequence[Edit]) -> dict[str, Change] | None:
    """Return the edits as a dict by layer path, or None if the compiled model does not support an edit."""
    layers: dict[nn.Module, list[str]] = {}  # a shared module is edited at all its paths
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Attention | FeedForward):
            layers.setdefault(module, []).append(path)
    heads = {paths[0]: layer.n_heads if isinstance(layer, Attention) else None for layer, paths in layers.items()}
    own = resolve(edits, heads, states=[path for path, _ in model.named_modules() if path not in heads])
    if own.keys() - heads.keys():
        return None
    found: dict[str, Change] = {}
    for layer, paths in layers.items():
        if paths[0] in own:
            change = _change(layer, own[paths[0]], model.config.d_model)
            if change is None:
                return None
            found |= dict.fromkeys(paths, change)
    return found


def _change(layer: nn.Module, own: LayerEdits, width: int) -> Change | None:
    for edit in own.edits:
        if isinstance(edit, OffByRow) or (isinstance(edit, Patch) and not edit.is_constant):
            return None
    if own.on_output:
        return Change(output=own.output(torch.zeros(1, 1, width))[0, 0])
    assert isinstance(layer, Attention)
    betas = torch.full((layer.n_heads,), layer.attend.inverse_temperature, dtype=torch.double)
    for edit in own.edits:
        if isinstance(edit, Temper):
            betas[slice(None) if edit.heads is None else list(edit.heads)] = edit.inverse_temperature
    if betas.max() > torch.finfo(torch.float).max:
        return None
    # edits of mixed values are affine: zeros and ones as inputs determine the gain and the sum
    means = own.mixed(torch.zeros(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    sums = own.mixed(torch.ones(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    return Change(betas, (sums - means)[:, 0], means)
