"""The small files beside a model from Hugging Face, as far as they tell of its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attendo.errors import AttendoError

_TRANSLATORS = {"marian", "bart", "mbart", "t5", "mt5", "umt5", "m2m_100", "pegasus"}
_DECODERS = {"gpt2", "llama", "qwen2", "qwen3", "mistral", "gpt_neo", "gpt_neox", "phi", "gemma"}


@dataclass(frozen=True)
class TokenizerFacts:
    """The small files beside a model."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def translates(self) -> bool:
        return bool(self.config.get("is_encoder_decoder", self.kind in _TRANSLATORS))

    @property
    def writes(self) -> bool:
        """Whether it is a decoder that stands alone."""
        names = " ".join(map(str, self.config.get("architectures") or ()))
        return not self.translates and ("CausalLM" in names or "LMHead" in names or self.kind in _DECODERS)

    @cached_property
    def own(self) -> dict[str, Any]:
        """What tokenizer_config.json says, over special_tokens_map.json."""
        return self.table("special_tokens_map.json") | self.table("tokenizer_config.json")

    @cached_property
    def generation(self) -> dict[str, Any]:
        return self.table("generation_config.json")

    def name(self, role: str) -> str | None:
        """The special token of a role ("eos")."""
        return _content(self.own.get(f"{role}_token"))

    def more_names(self) -> list[str]:
        """Special tokens without a role."""
        found: list[str] = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            value = self.own.get(key) or []
            found += [str(_content(one)) for one in (value.values() if isinstance(value, dict) else value)]
        return found

    def added(self) -> dict[int, dict[str, Any]]:
        """Added tokens by id, as tokenizer_config.json has them."""
        table = self.own.get("added_tokens_decoder") or {}
        return {int(i): one for i, one in table.items() if isinstance(one, dict) and "content" in one}

    def id(self, *keys: str) -> int | None:
        """The id that the model's files give for the first of these keys, the generation's file before the model's."""
        for key in keys:
            for table in (self.generation, self.config):
                value = table.get(key)
                value = value[0] if isinstance(value, list) and value else value
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocab_size:
                    return value
        return None

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, or a number above all ids where the config does not say."""
        value = self.config.get("vocab_size")
        return value if isinstance(value, int) else 1 << 30

    def json(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise AttendoError(f"{path} is damaged (no valid JSON: {error}); copy it again") from None

    def table(self, name: str) -> dict[str, Any]:
        if not (self.folder / name).is_file():
            return {}
        table = self.json(name)
        if not isinstance(table, dict):
            raise AttendoError(f"{self.folder / name} is damaged (no table); copy it again")
        return table


def _content(value: Any) -> str | None:
    """A token's text, alone or in a table."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
