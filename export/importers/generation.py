"""How Hugging Face's `generate` is asked to search: what of it is ours, and what is not."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.importers.hugging_face import Config, read_json_file
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions

log = logging.getLogger("translate_trt")

# Options that change translations and are not ours, and their values when they are off.
_OFF: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "do_sample": (False,),
    "num_beam_groups": (1,),
    "guidance_scale": (1.0,),
    "sequence_bias": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "force_words_ids": ([],),
}


@dataclass(frozen=True)
class Generation:
    """The values of generation_config.json; older models have them in config.json."""

    config: Config
    values: dict[str, Any]

    @classmethod
    def read(cls, directory: Path, config: Config) -> Generation:
        """Of a model's directory.

        Raises:
            InputError: the file is damaged.
        """
        path = directory / "generation_config.json"
        if not path.is_file():
            return cls(config, config.values)
        values = read_json_file(path)
        if not isinstance(values, dict):
            raise InputError(f"{path} holds no JSON object; copy the directory again.")
        return cls(Config(path, values), values)

    def token(self, name: str, size: int) -> int | None:
        """The token of a field such as forced_bos_token_id; None: it has none.

        Args:
            name: of the field.
            size: of the vocabulary.

        Raises:
            InputError: it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
            raise self.config.refused(name, f"one of the {size} tokens is needed")
        return value

    def never(self) -> list[int]:
        """Tokens that are never generated.

        Raises:
            InputError: words of several tokens are.
        """
        words = self.values.get("bad_words_ids") or []
        if any(not isinstance(word, list) or len(word) != 1 for word in words):
            raise self.config.refused("bad_words_ids", "words of one token alone are represented")
        return [int(word[0]) for word in words]

    def search(self) -> dict[str, Any]:
        """The same search by the names of `SearchOptions`; what those lack is warned of.

        `max_length` is left to ours, which goes by the source.

        Raises:
            InputError: a value is out of range.
        """
        beams, penalty = self.values.get("num_beams"), self.values.get("length_penalty")
        search: dict[str, Any] = {
            "beam_size": 1 if beams is None else beams,
            "length_penalty": 1.0 if penalty is None else penalty,
            "length_penalty_form": "length",
            "early_stopping": self.values.get("early_stopping") is True,
        }
        if self.values.get("min_length"):  # theirs counts the start symbol, ours the end's
            search["min_length"] = self.values["min_length"]
        try:
            SearchOptions(**search)
        except (OptionError, TypeError) as error:
            raise InputError(
                f"{self.config.path.parent}: how to generate is not represented: {error}"
            ) from error
        for name, off in _OFF.items():
            value = self.values.get(name)
            if value is not None and value not in off:
                log.warning(
                    "%s: %s is %r, which translate-trt does not apply: translations may differ "
                    "from those of transformers.", self.config.path, name, value,
                )  # fmt: skip
        return search
