"""The command `attendo evaluate`: the metrics of a model on a file, and the functions that read the file."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli import options as opt
from attendo.cli.reporting import one_line, say, wrote
from attendo.data.corpora import read_pairs
from attendo.data.data_files import suffix
from attendo.data.languages import misfit
from attendo.data.row_report import RowReport
from attendo.decoding.options import Bits, CacheBits
from attendo.display.formats import plural
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import shown
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.data.chat import Message
    from attendo.data.chat_corpus import ChatData
    from attendo.data.labelled import LabelledRow, LabelledSource
    from attendo.data.texts import Reading
    from attendo.data.token_stream import TokenStream
    from attendo.data.tokenizers import Tokenizer
    from attendo.inference import Classifier, Generator, Translator
    from attendo.inference.classifier import ClassAssessment
    from attendo.inference.label_model import LabelAssessment, LabelModel
    from attendo.inference.perplexity import TextLoss


ONE_NAME = "labeled texts are read from one file, one folder or one quoted pattern. Give only one"
NO_TEMPLATE = (
    "{} contains conversations, but the model has no chat template. Train the model with attendo train chat, or choose"
    " a column of texts with --column"
)
NO_MEASURE = "{} computes vectors, for which there is no metric. Use it with attendo embed"


@dataclasses.dataclass(frozen=True)
class ScoreOptions(opt.DataFiles):
    """The options of `evaluate` and `compare`: the data, and options that apply only to some tasks."""

    tokenize: str | None = opt.option(
        "T", "BLEU tokenizer: 13a, none, char, intl, zh, ja-mecab (default: 13a, or char without spaces)."
    )
    beam: opt.Beam = None
    context: int | None = opt.option(
        "N", "Context length for language models, in tokens (default: that of the model).", min=1
    )
    column: str | None = opt.option("C", "Text column for language models (default: as in training).")


@dataclasses.dataclass(frozen=True)
class TaskOptions(ScoreOptions):
    """The options of `attendo evaluate`."""

    length_penalty: opt.Penalty = None
    stride: int | None = opt.option(
        "N", "Number of tokens scored per window, for language models (default: all).", min=1
    )
    out: Path | None = opt.option("F", "New file for the translations (one per line) or the predicted labels.")
    curves: Path | None = opt.option(
        "F", "New file for a classifier's curves: a picture (.png or .svg) or the numbers (.json)."
    )
    bits: Bits | None = opt.bits_option()
    cache_bits: CacheBits | None = opt.cache_bits_option()


@opt.with_groups
def evaluate(*, folder: opt.Folder, options: TaskOptions, as_json: opt.OneJson = False, machine: opt.Machine) -> int:
    """Measure a model on a file that it was not trained on.

    For a translator, the metrics are BLEU and chrF from sacreBLEU with their signatures, the share of exact matches,
    and the perplexity of the targets. For a classifier, the metrics are the accuracy, macro-F1, calibration error,
    scores per label and the confusion matrix. For several labels per text, they are micro-F1, macro-F1 and exact
    matches. For a number, they are the mean absolute error, the root mean square error and R². For a tagger, they are
    precision, recall and F1 of spans, which are right if start, end and label are right. For a language model, the
    metrics are the perplexity and the bits per byte of whole documents, with the context length and the stride. For an
    assistant and a file of conversations, they are the loss, the perplexity and the bits per byte of the answers.

    The option --out writes the translations or the labels to a new file. For a classifier, the file is a table (.csv,
    .tsv, .jsonl, .parquet or .xlsx) with the line number, the label, the predicted label with its probability, and the
    text. For a tagger, the table has the true spans and the found spans. Skipped rows are not in the table. For a
    classifier, the option --curves draws precision and recall, ROC, the reliability of the
    probabilities, the accuracy of the most certain texts, and the confusion matrix.

    Example: attendo evaluate runs/mine test.tsv

    Example: attendo evaluate runs/mine test.tsv --curves curves.png
    """
    from attendo.inference import Classifier, Generator, Translator, load
    from attendo.inference.label_model import LabelModel

    opt.require_files(options.files)
    for new in (options.out, options.curves):
        if new is not None:
            _check_out(new)
    user = load(folder, machine.chosen(options.bits), bits=options.bits)
    began = time.process_time(), time.monotonic()
    match user:
        case Translator():
            opt.refuse_if(user.bits != 32 and user.decoding.coverage_penalty, opt.BITS_WITH_COVERAGE)
            opt.make_ready(user)
            only(options, "tokenize", "beam", "length_penalty", "columns", "header", "out", "bits")
            facts, lines = _translations(user, folder, options)
        case LabelModel():
            only(options, "columns", "header", "out", *(["curves"] if isinstance(user, Classifier) else []))
            facts, lines = _answers(user, folder, options)
        case Generator():
            facts, lines = _perplexity(user, folder, options)
        case _:
            raise AttendoError(NO_MEASURE.format(folder))
    seconds = {"cpu_seconds": time.process_time() - began[0], "wall_seconds": time.monotonic() - began[1]}
    print(json.dumps(facts | seconds, ensure_ascii=False) if as_json else shown("\n".join(lines)))
    say(f"{seconds['wall_seconds']:,.1f} s ({seconds['cpu_seconds']:,.1f} CPU-seconds)")
    return 0


def only(options: opt.OptionGroup, *allowed: str) -> None:
    """Raise BadParameter if an option was given whose field name is not among those that apply to the task."""
    others = {"columns": "column", "column": "columns"}
    for name in options.given():
        remedy = f"Use {opt.flag(others[name])}" if others.get(name) in allowed else "Leave it out"
        opt.refuse_if(name not in ("files", *allowed), f"{opt.flag(name)} does not apply to this task. {remedy}")


def _check_out(out: Path) -> None:
    from attendo.inference.batch_files import require_absent

    if not out.absolute().parent.is_dir():
        raise AttendoError(f"{out}: folder {out.parent} does not exist. Create it first")
    require_absent(out)


def _translations(translator: Translator, folder: Path, options: TaskOptions) -> tuple[dict[str, Any], list[str]]:
    from attendo.files import write_atomic

    numbered, row_report = pairs_of(folder, options)
    pairs = [(source, target) for _, source, target in numbered]
    say(row_report.line())
    warn_of_order(translator.card.get("languages") or {}, pairs, options.are_parallel)
    beam, penalty = options.beam, options.length_penalty
    result = translator.evaluate(pairs, beam=beam, length_penalty=penalty, tokenize=options.tokenize)
    warn_of_guessing(translator, -result.measures["loss"], 1, options.are_parallel)
    if options.out is not None:
        write_atomic(options.out, "".join(one_line(text) + "\n" for text in result.texts))
    scores = [dataclasses.asdict(found) for found in result.scores]
    beam = beam or translator.decoding.beam
    facts = {"account": row_report.as_json(), "beam": beam, "scores": scores} | result.measures
    lines = [f"{found.name} {found.value:.2f}  {found.signature}" for found in result.scores]
    loss = f"loss {result.measures['loss']:.4f} nats per token"
    lines.append(f"perplexity {result.measures['perplexity']:.3f}  {loss}  (beam {beam})")
    return facts, lines


def _answers(user: LabelModel, folder: Path, options: TaskOptions) -> tuple[dict[str, Any], list[str]]:
    """Return the results for models whose answers are a label, lists (labels, spans) or numbers."""
    from attendo.inference.classifier import ClassAssessment
    from attendo.inference.decisions import CURVE_FILES, decision_curves, write_curves
    from attendo.inference.tables import check_table, label_table

    out, curves = options.out, options.curves
    if out is not None:
        check_table(out, "--out")
    opt.refuse_if(
        curves is not None and curves.suffix.lower() not in CURVE_FILES,
        f"--curves {curves} must end in .json, .png or .svg",
    )
    rows, row_report, name = labelled_rows(user, folder, options)
    result = user.evaluate(rows, name)
    is_classifier = isinstance(result, ClassAssessment)
    if curves is not None and is_classifier:
        names = tuple(user.counts)
        found = decision_curves(result.probabilities, result.true, names)
        write_curves(curves, found, result.confusion, names)
        say(wrote(curves))
    if out is not None:
        head, *more = user.heads
        places = row_report.places_json([row.number for row in rows])
        with label_table(out, ("line", head, "found", *more, "text")) as write:
            for line, row, found in zip(places, rows, result.found, strict=True):
                label = row.label if is_classifier else json.loads(row.label)
                write((line, label, *found.cells, row.text))
    if n_cut := is_classifier and sum(found.cut for found in result.found):
        say(user.long_texts.summary(n_cut, len(rows)))
    scores = [dataclasses.asdict(score) for score in result.labels]
    facts = {"account": row_report.as_json(), "classes" if is_classifier else "labels": scores}
    facts |= {"confusion": result.confusion.tolist()} if is_classifier else {}
    lines = _class_lines(result) if is_classifier else _measure_lines(result)
    if scores:
        noun = "spans" if user.task == "tagging" else "rows"
        n_given = result.confusion.sum(0).tolist() if is_classifier else [0] * len(scores)
        table = [
            [
                s["label"],
                f"{s['precision']:.2%}" if s["support"] or n else "–",
                f"{s['recall']:.2%}" if s["support"] else "–",
                f"{s['f1']:.2%}" if s["support"] or n else "–",
                s["support"],
            ]
            for s, n in zip(scores, n_given, strict=True)
        ]
        lines += ["", *table_lines(["label", "precision", "recall", "F1", noun], table)]
        lines += [f"–: the data has no {noun} with this label"] * (not all(s["support"] for s in scores))
    if is_classifier and len(scores) <= 10:
        lines += _matrix_lines([s["label"] for s in scores], result.confusion.tolist())
    return facts | result.measures, lines


def _matrix_lines(labels: list[str], confusion: list[list[int]]) -> list[str]:
    """Return the confusion matrix. If the names of the columns do not fit, the columns have numbers."""
    lines = table_lines(["label", *labels], [[x, *row] for x, row in zip(labels, confusion, strict=True)], 1000)
    by_number = len(lines[1]) > WIDTH
    if by_number:
        body = [[f"{n} {labels[n - 1]}", *row] for n, row in enumerate(confusion, 1)]
        lines = table_lines(["label", *(str(n) for n in range(1, len(labels) + 1))], body)
    return ["", f"rows: label, columns: prediction{' (by number)' if by_number else ''}", "", *lines]


def _class_lines(result: ClassAssessment) -> list[str]:
    from attendo.data.labelled import shown

    m = result.measures
    commonest = shown(max(result.labels, key=lambda score: score.support).label)
    lines = [
        f"accuracy {m['accuracy']:.2%}  macro-F1 {m['macro_f1']:.2%}  loss {m['loss']:.4f} nats per text",
        f"standard error of the accuracy: {100 * m['accuracy_error']:.2f} points"
        f"  most frequent label ({commonest}): {m['commonest']:.2%}",
        f"calibration error {m['ece']:.2%} (uncalibrated {m['ece_uncalibrated']:.2%})",
    ]
    if "coverage" in m:
        lines.append(f"thresholds of the run: {given_line(m)}")
    return lines


def given_line(measures: Mapping[str, float]) -> str:
    """Return the share of texts with a label, and the share of correct labels among them."""
    coverage, accuracy = measures.get("coverage", 1.0), measures.get("accuracy_given", measures["accuracy"])
    right = f", of which {accuracy:.2%} are correct" if coverage else ""
    return f"{coverage:.2%} of the texts have a label{right}"


def _measure_lines(result: LabelAssessment) -> list[str]:
    from attendo.training.run import measured

    m = result.measures
    lines = ["  ".join(measured(m))]
    if "unit_accuracy" in m:
        lines.append(f"accuracy of single words {m['unit_accuracy']:.2%}")
    if "within" in m:
        lines.append(
            f"{m['within']:.1%} of the numbers are in the interval of their estimate "
            "(expected about 80%, and more for data with a few distinct numbers)"
        )
    if n := int(m.get("unreachable", 0)):
        lines.append(f"{plural(n, 'span')} cannot be found, because they begin or end inside a word or token")
    return lines


def labelled_rows(
    user: LabelModel, folder: Path, data: opt.DataFiles, is_score: bool = True
) -> tuple[list[LabelledRow], RowReport, str]:
    """Return the labeled rows of a file, the report on skipped rows, and the name of the source for messages.

    If the model is scored on the rows, the report is printed, and training texts among them cause a warning.
    """
    from attendo.data.labelled import read_labelled
    from attendo.data.labelled_corpus import n_known
    from attendo.inference import Classifier
    from attendo.runs.settings import data_of

    opt.refuse_if(len(data.files) > 1, ONE_NAME)
    learned = data_of(user.task, folder)
    source = learned.source(data.files[0], data.columns, data.header)
    row_report = RowReport(source.name)
    rows = list(read_labelled(source, row_report=row_report))
    if is_score:
        say(row_report.line())
    if isinstance(user, Classifier):
        refuse_header(rows, source, user)
    if is_score and (n := n_known(learned, rows)):
        say(f"{n:,} of {len(rows):,} texts are also in the training file, so the scores are inflated")
    return rows, row_report, source.name


def refuse_header(rows: list[LabelledRow], source: LabelledSource, classifier: Classifier) -> None:
    """Raise AttendoError if line 1 seems to be a header: its label is unknown and occurs in no other row."""
    from attendo.data.labelled import shown

    number, label, _ = rows[0]
    if number > 1 or label in classifier.labels.names or suffix(source.file) not in (".tsv", ".txt"):
        return
    if sum(row.label == label for row in rows) == 1:
        raise AttendoError(
            f"{source.name}:1: label {shown(label)} was not in the training data. If this line is a header, give"
            " --header. Otherwise fix or delete the row, or choose other --columns"
        )


def _perplexity(generator: Generator, folder: Path, options: TaskOptions) -> tuple[dict[str, Any], list[str]]:
    from attendo.inference.perplexity import answer_losses, text_loss
    from attendo.training.run import measured

    generator.cache_bits = options.cache_bits
    if talks := talks_of(folder, options, [generator]):
        only(options, "columns", "header", "bits", "cache_bits")
        sums = answer_losses(generator.scorer(), generator.tokenizer, *talks).sum(0)
        nats, n_tokens, n_bytes = sums.tolist()
        loss = nats / n_tokens
        facts = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": nats / math.log(2) / n_bytes}
        facts |= {"conversations": len(talks[0]), "answer_tokens": int(n_tokens)}
        said = f"({int(n_tokens):,} tokens of answers in {plural(len(talks[0]), 'conversation')})"
        return facts, ["  ".join(measured(facts)), said]
    only(options, "context", "stride", "column", "header", "bits", "cache_bits")
    [stream], reading = streams_of(folder, options, [generator.tokenizer])
    longest = generator.model.config.max_len
    context = options.context or longest
    if context > longest:
        say(f"note: the model was trained with at most {longest:,} tokens of context, fewer than {context:,}")
    found = text_loss(
        generator.scorer(), stream.documents(), context, options.stride, specials=generator.tokenizer.specials
    )
    facts = dataclasses.asdict(found) | {"reading": reading.as_json(), "perplexity": found.perplexity}
    facts |= {"nats_per_character": found.nats_per_character, "bits_per_byte": found.bits_per_byte}
    return facts, _text_loss_lines(found)


def talks_of(
    folder: Path, options: ScoreOptions, users: Sequence[Generator]
) -> list[list[tuple[list[int], list[bool]]]]:
    """Return the tokens of conversations for each assistant, as `ChatTemplate.encode` does, and print what was read.

    Return [] if a model has no chat template, or if the file has no rows with messages, or with question and answer.
    Conversations that do not fit into the context of all models are left out.
    """
    from attendo.data.chat_corpus import TALKS, template_of
    from attendo.data.texts import has_rows
    from attendo.runs.settings import data_of

    name = options.files[0]
    can_have_rows = options.columns is not None or has_rows(name) or name.is_dir()
    are_texts = options.column is not None or len(options.files) > 1 or not can_have_rows
    if are_texts or any(user.tokenizer.chat is None for user in users):
        roles = {part.partition("=")[0].strip() for part in (options.columns or "").split(",")}
        is_talk = not are_texts and not roles.isdisjoint(("messages", *TALKS.roles))
        opt.refuse_if(is_talk, NO_TEMPLATE.format(name))
        return []
    learned = data_of("chat", folder)
    if users[0].card.get("task") != "chat":  # the columns are those of preferences
        learned = dataclasses.replace(learned, columns=None)
    talks, reading = _conversations(learned, options)
    for line in reading:
        say(line)
    read = [[template_of(user.tokenizer).encode(user.tokenizer, talk) for user in users] for talk in talks]
    longest = min(user.model.config.max_len for user in users)
    kept = [turns for turns in read if max(len(ids) for ids, _ in turns) <= longest + 1]
    if n_long := len(read) - len(kept):
        said = f"{n_long:,} of {plural(len(read), 'conversation')} have more than {longest:,} tokens"
        if not kept:
            raise AttendoError(f"{name}: {said}, the context length. Give shorter conversations")
        say(f"{said} and are not used")
    return [list(turns) for turns in zip(*kept, strict=True)]


def _conversations(learned: ChatData, options: ScoreOptions) -> tuple[list[list[Message]], list[str]]:
    """Read the conversations of a file: from the given columns, those of the run, or those with the usual names.

    Return also the report on the rows. If no row has such columns, both lists are empty. Raise AttendoError if rows
    have such columns but are invalid.
    """
    from attendo.data.chat_corpus import versions
    from attendo.data.labelled import read_labelled

    name = options.files[0]
    usual = [None] if suffix(name) == ".jsonl" else ["messages", "question=question,answer=answer"]
    data = dataclasses.replace(learned, columns=None)
    for columns in [options.columns] if options.columns else [*filter(None, [learned.columns]), *usual]:
        row_report = RowReport(str(name))
        try:
            source = data.source(name, columns, options.header)
            talks = [versions(row)[0] for row in read_labelled(source, row_report=row_report)]
        except AttendoError:
            if options.columns or row_report.skipped.keys() - {"missing key"}:
                raise
            continue
        return talks, [row_report.line()]
    return [], []


def _has_conversations(name: Path, options: ScoreOptions) -> bool:
    from attendo.data.chat_corpus import ChatData

    try:
        return any(_conversations(ChatData(train=(str(name),)), options))
    except AttendoError:  # it has their columns, but invalid rows
        return True


def streams_of(
    folder: Path, options: ScoreOptions, tokenizers: Sequence[Tokenizer]
) -> tuple[list[TokenStream], Reading]:
    """Return the tokens of documents for each tokenizer, and print what was read.

    The column and header settings of the run apply only to tables. The document unit applies only to text files.
    """
    from attendo.data.texts import Reading, TextSource, has_rows, read_documents
    from attendo.data.token_stream import TokenStream
    from attendo.runs.settings import data_of

    learned = data_of("language-model", folder)
    column, header = options.column, options.header
    tables = [has_rows(file) for file in options.files]
    if any(tables):
        column = learned.column if column is None else column
        header = learned.header if header is None else header
    unit = "file" if all(tables) else learned.documents
    source = TextSource(tuple(options.files), column, bool(header), unit)
    readings = [Reading(source.name) for _ in tokenizers]
    try:
        streams = [
            TokenStream.of_chunks(read_documents(source, reading=reading), tokenizer)
            for reading, tokenizer in zip(readings, tokenizers, strict=True)
        ]
    except AttendoError:
        name = options.files[0]
        is_bare = options.column is None and any(tokenizer.chat is None for tokenizer in tokenizers)
        if is_bare and _has_conversations(name, options):
            raise AttendoError(NO_TEMPLATE.format(name)) from None
        raise
    for line in (readings[0].line(), *(report.line() for report in readings[0].row_reports)):
        say(line)
    return streams, readings[0]


def _text_loss_lines(found: TextLoss) -> list[str]:
    """Return the printed lines of the metrics with the context length and the stride."""
    least = "at least " if found.n_unknown else ""
    lines = [
        f"perplexity {found.perplexity:.3f}, {least}{found.nats_per_character:.4f} nats per character,"
        f" {found.bits_per_byte:.4f} bits per byte",
        f"(context {found.context}, stride {found.stride}, {plural(found.n_targets, 'token')})",
    ]
    if found.n_unknown:
        words = plural(found.n_unknown, "unknown word")
        lines.append(f"({words}, each counted as one token, not spelled out)")
    return lines


# ---- pairs of sources and targets


SCRIPT_PAIRS = 1000
"""The approximate maximum number of pairs whose language is checked."""
_OTHER_FILES = "Give the files in the other order"
_OTHER_COLUMNS = "Choose the columns with --columns SOURCE,TARGET"


def warn_of_order(languages: Mapping[str, str | None], pairs: Sequence[tuple[str, str]], are_parallel: bool) -> None:
    """Print a warning if some pairs are not in the languages of the run. Unknown languages are not checked.

    `are_parallel` states whether sources and targets come from two files. Raises AttendoError if they are swapped.
    """
    from attendo.data.scripts import seen_in

    codes = languages.get("source") or "", languages.get("target") or ""
    if not (any(codes) and pairs):
        return
    sources, targets = zip(*pairs[:: max(1, len(pairs) // SCRIPT_PAIRS)], strict=True)
    if (found := misfit(codes, (seen_in(sources), seen_in(targets)))) is None:
        return
    remedy = _OTHER_FILES if are_parallel else _OTHER_COLUMNS
    way = "from" if found.side == "source" else "to"
    said = f"the run translates {way} {found.language}, but the {found.side} is {found.what}. "
    said += remedy if found.swapped else "Check the rows"
    if found.is_sure:
        raise AttendoError(said)
    say(f"warning: {said}")


def warn_of_guessing(translator: Translator, log_prob: float, n_tokens: int, are_parallel: bool) -> None:
    """Print a warning if the targets, with this sum of log-probabilities, are less likely than random tokens."""
    from attendo.metrics import perplexity

    size = translator.tokenizer.target.vocab_size
    if (found := perplexity(log_prob, n_tokens)) > size:
        remedy = _OTHER_FILES if are_parallel else _OTHER_COLUMNS
        say(
            f"warning: perplexity {found:,.0f} is above {size:,}, the size of the vocabulary. The model is hardly"
            f" trained, or source and target are swapped. {remedy}"
        )


def pairs_of(folder: Path, data: opt.DataFiles) -> tuple[Iterator[tuple[int, str, str]], RowReport]:
    """Return an iterator over the usable pairs (line number, source, target), and the report on skipped rows.

    The source and target languages are those of the run. The report is complete after the last pair.
    """
    from attendo.runs.settings import data_of

    source = data_of("translation", folder).source(data.files, data.columns, data.header)
    row_report = RowReport(source.name)
    return read_pairs(source, row_report=row_report), row_report
