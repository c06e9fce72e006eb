"""The command `attendo translate`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter as Counts
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli import options as opt
from attendo.cli.reporting import Counter, arguments_as_lines, lines_given, one_line, refuse_file_name, say
from attendo.decoding.options import Bits, DecodingConfig

if TYPE_CHECKING:
    from attendo.data.segments import Segment
    from attendo.decoding.options import DecodingConfig
    from attendo.inference import Candidate, Translation
    from attendo.inference.translator import Translator


@dataclasses.dataclass(frozen=True)
class TranslationLines:
    """A function object that translates chunks of lines, and counts the translations that look wrong."""

    translator: Translator
    config: DecodingConfig
    longest: int | None
    segment: Segment
    n_best: int
    as_json: bool
    prefix: str
    alignments: bool
    drawing: opt.Drawing | None = None

    def __call__(self, number: int, texts: list[str], counter: Counter | None = None) -> tuple[list[str], Counts[str]]:
        """Return the output of each line, and the counts for `notes`. With a counter, print unfinished translations."""
        counts = Counts[str]()
        found = self._found(number, texts)
        for line, translation in enumerate(found, number):
            counts["split"] += translation.parts > 1
            counts[translation.loop] += 1
            counts[translation.omission] += 1
            if not translation.candidates[0].finished:
                counts["endless"] += 1
                if counter is not None:
                    counter.clear()
                    say(f"line {line}: the translation reached its length limit before its end")
        return [self._line(line, translation) for line, translation in enumerate(found, number)], counts

    def _found(self, number: int, texts: list[str]) -> list[Translation]:
        config = self.config
        options: dict[str, Any] = {"length_penalty": config.length_penalty, "longest": self.longest}
        options |= {"segment": self.segment, "prefixes": self.prefix or None, "alignments": self.alignments}
        if self.drawing is not None:
            return self.translator.sample(texts, self.drawing.configs(number, len(texts)), **options)
        return self.translator.translate(texts, beam=config.beam, n_best=config.n_best, **options)

    def request(self, folder: Path, others: list[Path], shortlist: Path | None) -> dict[str, Any]:
        """Return the model hashes and the options on which the translations depend."""
        from attendo.files import sha256_file

        models = [sha256_file(run / "model.safetensors") for run in [folder, *others]]
        own = {"model": models[0], "with": models[1:], "longest": self.longest, "segment": self.segment}
        if shortlist is not None:
            own["shortlist"] = sha256_file(shortlist)
        shown = {"json": self.as_json, "alignments": self.alignments, "prefix": self.prefix}
        drawn = {} if self.drawing is None else {"draw": dataclasses.asdict(self.drawing.config)}
        return own | dataclasses.asdict(self.config) | shown | drawn

    @property
    def notes(self) -> dict[str, str]:
        """The words of the summary that is printed at the end, by the names of the counts."""
        return {
            "split": "texts were translated in parts; --segment none translates each whole",
            "short": "translations are far shorter than usual for their sources; --json marks them",
            "unaligned": "translations leave many source words unaligned; --json marks them",
            "mended": "translations repeated themselves and were searched again",
            "left": "translations repeat themselves or have no end"
            + (", and another search did not help" if self.drawing is None else ""),
            "endless": "translations reached their length limit before their end",
        }

    def _line(self, number: int, translation: Translation) -> str:
        if self.as_json:
            found = {"line": number, "source": translation.source}
            found |= {"translations": [candidate_json(c) for c in translation.candidates]}
            found |= {"parts": translation.parts, "loop": translation.loop, "omission": translation.omission}
            if self.translator.shortlist is not None:
                found["shortlist"] = True
            found |= {} if translation.seed is None else {"seed": translation.seed}
            return json.dumps(found, ensure_ascii=False)
        lines = [one_line(c.text) + self._aligned(c) for c in translation.candidates]
        if self.n_best == 1:
            return lines[0]
        scores = [f"{number}\t{c.score:.4f}\t" for c in translation.candidates]
        return "\n".join(score + line for score, line in zip(scores, lines, strict=True))

    def _aligned(self, found: Candidate) -> str:
        """Return the field of --alignments: source-target pairs in the giza-pharaoh format."""
        links = found.alignment
        return "" if links is None else "\t" + " ".join(f"{link.source}-{link.target}" for link in links)


def candidate_json(found: Candidate) -> dict[str, Any]:
    """Return a candidate as a JSON object, with weights and log-probabilities rounded to 5 decimal places."""
    values = dataclasses.asdict(found)
    values["token_log_probs"] = [round(value, 5) for value in found.token_log_probs]
    if found.alignment is None:
        del values["alignment"]
    for link in values.get("alignment", ()):
        link["weight"] = round(link["weight"], 5)
    return values


LEFT = 12
WIDTH = 79


@opt.with_groups
def translate(
    *,
    folder: opt.Folder,
    texts: opt.Texts = None,
    beam: opt.Beam = None,
    n_best: int | None = opt.option("N", "Number of translations per input line, at most the beam size."),
    length_penalty: opt.Penalty = None,
    longest: int | None = opt.option("N", "Maximum number of tokens per translated unit (default: as in training)."),
    segment: opt.Segmented = "sentence",
    others: opt.With = None,
    bits: Bits | None = opt.bits_option(),
    shortlist: Path | None = opt.option("F", "Shortlist file, which speeds up the translation of few texts at a time."),
    prefix: str | None = opt.option("TEXT", "Required beginning of each translation, in whole words."),
    alignments: bool = opt.switch("--alignments", "Append a tab and the token alignment to each output line."),
    draw: opt.DrawOptions,
    stream: bool = opt.switch("--stream", "Print the greedy translation of one TEXT while it is generated."),
    set_: list[str] | None = opt.option(
        "K=V", "Decoding setting, for example decoding.no_repeat_ngram=3; repeatable.", "--set"
    ),
    source: opt.Input = None,
    out: opt.Output = None,
    cluster: opt.RayOptions,
    as_json: opt.JsonLines = False,
    machine: opt.Machine,
) -> int:
    """Translate texts, the lines of stdin, or a file. The command prints one output line per input line, in order.

    Each line is translated sentence by sentence, because most models are trained on sentences. With --segment none,
    each line is translated as a whole. If text is probably missing in a translation, the field "omission" of --json is
    "short" or "unaligned".

    Line breaks in a translation are written as spaces. The translation of an empty line is an empty line. With --n-best
    N above 1, the command prints up to N lines per input line, with the best translation first. Each output line then
    has three fields separated by tabs: the line number from 1, the score, and the text. The score is the
    log-probability (nats) with length normalization. The option --alignments adds a last field such as 0-0 1-2, which
    contains pairs of source and target token numbers from 0. With --json, the alignment also contains weights, texts
    and positions. The input file can have any size. To resume an interrupted command, run the same command again.

    The option --temperature T samples each translation. The options --top-k, --top-p and --min-p restrict the sampled
    tokens. For a single TEXT, the seed is the value of --seed. With several lines, the seed of a line is computed from
    --seed and the line number. The option --json prints the seed.

    Example: attendo translate runs/mine < input.txt > output.txt

    Example: attendo translate runs/mine --input big.txt.gz --output big.ja.txt

    Example: attendo translate runs/mine --input big.txt.gz --output big.ja.txt --ray --ray-address auto

    Example: attendo translate runs/mine "It will rain." --prefix "明日は" --alignments

    Example: attendo translate runs/mine "It will rain." --temperature 0.8 --top-p 0.9 --seed 7
    """
    from attendo.inference import Translator

    files = opt.both_files(source, out, bool(texts))
    refuse_file_name(texts, "use < FILE, or --input FILE --output G")
    is_utf8 = (prefix or "").encode(errors="ignore").decode() == (prefix or "")
    opt.refuse_if(not is_utf8, "--prefix is not valid UTF-8. Type it in a UTF-8 terminal")
    searched = {"--beam": beam is not None, "--n-best": (n_best or 1) > 1}
    drawing, note = opt.drawing_of(draw.given(), len(texts or []), in_files=files is not None)
    if drawing:
        opt.refuse("--temperature", searched, set_ or [], opt.OF_DRAWS)
    if stream:
        opt.refuse_if(len(texts or []) != 1, "--stream requires exactly one TEXT on the command line")
        shown = {"--temperature": drawing is not None, "--json": as_json, "--alignments": alignments}
        opt.refuse("--stream", searched | {"--beam": beam not in (None, 1)} | shown, set_ or [], opt.OF_STREAMS)
    cluster.check(files is not None, bits, machine.device)
    loading = dataclasses.replace(machine, device="cpu") if cluster.ray else machine
    translator = Translator.load(folder, loading.chosen(bits), others or (), bits)
    _set_search(translator, set_ or [])
    if shortlist is not None:
        from attendo.decoding.shortlist import load_shortlist

        translator.shortlist = load_shortlist(shortlist, translator.tokenizer)
    config = translator.config(beam, n_best, length_penalty)
    opt.refuse_if(
        translator.bits != 32 and config.coverage_penalty and not (drawing or stream),
        opt.BITS_WITH_COVERAGE,
    )
    work = TranslationLines(
        translator, config, longest, segment, n_best or 1, as_json, prefix or "", alignments, drawing
    )
    opt.make_ready(translator)
    if texts and stream:
        [(_, [text])] = arguments_as_lines(texts)
        opt.show(translator.stream(text, longest=longest, segment=segment, prefix=prefix or None))
        return 0
    if files:
        request = work.request(folder, others or [], shortlist) | {"bits": translator.bits}
        if not cluster.ray:
            return opt.file_done(*files, work, request, work.notes)
        runs = [folder, *(others or [])]
        with cluster.cluster(work, runs, shortlist, translator.bits, machine) as ahead:
            return opt.file_done(*files, ahead, request, work.notes)
    counter = Counter("lines")
    counts = Counts[str]()
    n_lines = 0
    for number, chunk in lines_given(texts):
        if number == 1 and not texts and "\t" in chunk[0].strip():
            say(
                "stdin:1 contains a tab, but each line is read as one text. To translate the first column of a table,"
                f" run: cut -f1 FILE | attendo translate {folder}"
            )
        lines, found = work(number, chunk, counter)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        counts.update(found)
        n_lines = number + len(chunk) - 1
        counter.show(n_lines)
    counter.clear()
    del counts["endless"]  # each was printed
    opt.say_notes(work.notes, counts, n_lines)
    if note:
        say(note)
    return 0


def _set_search(translator: Translator, assignments: list[str]) -> None:
    """Change the decoding settings of the translator by the assignments of --set."""
    from attendo.config import build, override

    tables = override({}, assignments)
    if other := tables.keys() - {"decoding"}:
        raise typer.BadParameter(f"--set {other.pop()}.…: only settings of [decoding] can be set here")
    chosen = dataclasses.asdict(translator.decoding) | tables.get("decoding", {})
    translator.decoding = build(DecodingConfig, chosen, "--set [decoding]")
