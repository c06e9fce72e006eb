"""What attendo translate prints of each line: the text, fields behind it, or JSON; and what to say at the end."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter as Counts
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli.drawing import Drawing
from attendo.cli.lines import one_line
from attendo.cli.reporting import Counter, say

if TYPE_CHECKING:
    from attendo.data.segments import Segment
    from attendo.decoding.options import DecodingConfig
    from attendo.inference import Candidate, Translation
    from attendo.inference.translator import Translator


@dataclasses.dataclass(frozen=True)
class TranslationLines:
    """From lines to the lines of their translations, and what is worth saying about them."""

    translator: Translator
    config: DecodingConfig
    longest: int | None
    segment: Segment
    n_best: int
    as_json: bool
    prefix: str
    alignments: bool
    drawing: Drawing | None = None

    def __call__(
        self, number: int, texts: list[str], counter: Counter | None = None
    ) -> tuple[list[str], Counts[str]]:
        """The output of each line, and counts; with a counter, each translation without an end is also said."""
        counts, found = Counts[str](), self._found(number, texts)
        for line, translation in enumerate(found, number):
            counts["split"] += translation.parts > 1
            counts[translation.loop] += 1
            counts[translation.omission] += 1
            if not translation.candidates[0].finished:
                counts["endless"] += 1
                if counter is not None:
                    counter.clear()
                    say(f"line {line}: the translation met its length limit before its end")
        return [self._line(line, translation) for line, translation in enumerate(found, number)], counts

    def _found(self, number: int, texts: list[str]) -> list[Translation]:
        config, prefixes = self.config, self.prefix or None
        if self.drawing is not None:
            return self.translator.sample(
                texts,
                self.drawing.configs(number, len(texts)),
                config.length_penalty,
                longest=self.longest,
                segment=self.segment,
                prefixes=prefixes,
                alignments=self.alignments,
            )
        return self.translator.translate(
            texts,
            beam=config.beam,
            n_best=config.n_best,
            length_penalty=config.length_penalty,
            longest=self.longest,
            segment=self.segment,
            prefixes=prefixes,
            alignments=self.alignments,
        )

    def request(self, folder: Path, others: list[Path], shortlist: Path | None) -> dict[str, Any]:
        """All that the translations depend on, apart from the texts."""
        from attendo.files import sha256_file

        models = [sha256_file(run / "model.safetensors") for run in [folder, *others]]
        own = {"model": models[0], "with": models[1:], "longest": self.longest, "segment": self.segment}
        if shortlist is not None:
            own["shortlist"] = sha256_file(shortlist)
        shown = {"json": self.as_json, "alignments": self.alignments, "prefix": self.prefix}
        drawn = {} if self.drawing is None else {"draw": dataclasses.asdict(self.drawing.config)}
        return own | dataclasses.asdict(self.config) | shown | drawn

    def notes(self, counts: Mapping[str, int], n_lines: int) -> list[str]:
        """What to say at the end; `counts` are those of all lines."""
        said = {
            "split": "texts were translated in parts; --segment none translates each whole",
            "short": "translations are far shorter than usual for their sources; --json marks them",
            "unaligned": "translations leave many source words unaligned; --json marks them",
            "mended": "translations repeated themselves and were searched again",
            "left": "translations repeat themselves or come to no end"
            + (", and another search did not help" if self.drawing is None else ""),
            "endless": "translations met their length limit before their end",
        }
        return [f"{counts[name]:,} of {n_lines:,} {text}" for name, text in said.items() if counts.get(name)]

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
        """The field of --alignments: source-target, as giza-pharaoh has it."""
        links = found.alignment
        return "" if links is None else "\t" + " ".join(f"{link.source}-{link.target}" for link in links)


def candidate_json(found: Candidate) -> dict[str, Any]:
    """A candidate as --json gives it: weights and log-probabilities to 5 digits."""
    values = dataclasses.asdict(found)
    values["token_log_probs"] = [round(value, 5) for value in found.token_log_probs]
    if found.alignment is None:
        del values["alignment"]
    for link in values.get("alignment", ()):
        link["weight"] = round(link["weight"], 5)
    return values
