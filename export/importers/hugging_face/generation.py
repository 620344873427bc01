"""How Hugging Face's `generate` is asked to search: what of it is ours, and what is not."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.importers.hugging_face.directory import Config, read_json_file
from translate_trt.export.importers.hugging_face.settings import (
    GENERATION_OFF,
    check_generation_settings,
)
from translate_trt.export.importers.json_file import shown
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions

log = logging.getLogger("translate_trt")


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
        check_generation_settings(path, values)
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
        if not _is_token(value, size):
            raise self.config.setting_error(name, f"one of the {size} tokens is needed")
        return int(value)

    def start(self, model: Config, size: int) -> int | None:
        """The token that decoding starts with; None: nothing says.

        Args:
            model: config.json, which says if generation_config.json does not.
            size: of the vocabulary.

        Raises:
            InputError: it is none of the vocabulary.
        """
        return self._or_of_model("decoder_start_token_id", model).token(
            "decoder_start_token_id", size
        )

    def end(self, model: Config, size: int) -> int:
        """The end symbol.

        Args:
            model: config.json, which says if generation_config.json does not.
            size: of the vocabulary.

        Raises:
            InputError: it is none of the vocabulary, or there are several.
        """
        said = self._or_of_model("eos_token_id", model)
        value = said.values.get("eos_token_id")
        tokens: list[Any] = value if isinstance(value, list) else [value]
        if len(tokens) != 1:
            raise said.config.setting_error("eos_token_id", "one end symbol is represented")
        if not _is_token(tokens[0], size):
            raise said.config.setting_error("eos_token_id", f"one of the {size} tokens is needed")
        token: int = tokens[0]
        return token

    def _or_of_model(self, name: str, model: Config) -> Generation:
        """Configuration that has a field: this one, or else config.json."""
        if self.values.get(name) is not None or self.config is model:
            return self
        log.warning(
            "%s does not say %s; what %s says is taken.",
            self.config.path, name, model.path.name,
        )  # fmt: skip
        return Generation(model, model.values)

    def banned_tokens(self, size: int) -> list[int]:
        """Tokens that are never generated.

        Args:
            size: of the vocabulary.

        Raises:
            InputError: words of several tokens are, or they are none of the vocabulary.
        """
        ends = self.values.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        found = []
        for name in ("bad_words_ids", "suppress_tokens"):
            words = self.values.get(name) or []
            if name == "suppress_tokens" and isinstance(words, list):
                words = [[word] for word in words]
            alone = isinstance(words, list) and all(
                isinstance(word, list) and len(word) == 1 for word in words
            )
            if not alone or not all(_is_token(word[0], size) for word in words):
                raise self.config.setting_error(
                    name, f"words of one token alone, of {size}, are represented"
                )
            if name == "bad_words_ids":  # where transformers leaves the end symbol out
                words = [word for word in words if word[0] not in ends]
            elif any(word[0] in ends for word in words):
                raise self.config.setting_error(name, "a translation could not end")
            found += [word[0] for word in words]
        return found

    def search(self) -> dict[str, Any]:
        """The same search by the names of `SearchOptions`; what those lack is warned of.

        `max_length` and `max_new_tokens` are left to ours, which goes by the source.

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
        if self.values.get("early_stopping") not in (None, True, False, "never"):
            raise self.config.setting_error("early_stopping", 'true, false or "never" is needed')
        if self.values.get("min_length"):  # theirs counts the start symbol, ours the end's
            search["min_length"] = self.values["min_length"]
        least = self.values.get("min_new_tokens")
        if least is not None:  # without the end symbol; transformers prefers it to min_length
            search["min_length"] = least + 1 if _is_whole(least) and least > 0 else least
        for name in ("beam_size", "min_length"):
            if not _is_whole(search.get(name, 0)):
                raise InputError(
                    f"{self.config.path}: how to generate is not represented: {name} would be "
                    f"{shown(search[name])}, and a whole number is needed."
                )
        try:
            SearchOptions(**search)
        except (OptionError, TypeError, OverflowError) as error:
            raise InputError(
                f"{self.config.path.parent}: how to generate is not represented: {error}"
            ) from error
        for name, off in GENERATION_OFF.items():
            value = self.values.get(name)
            if value is not None and value not in off:
                log.warning(
                    "%s: %s is %.60r, which translate-trt does not apply: translations may differ "
                    "from those of transformers.%s", self.config.path, name, value,
                    " Give --max-length when you translate." if name == "max_new_tokens" else "",
                )  # fmt: skip
        return search


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
