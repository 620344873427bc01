"""Settings of transformers' `generate` as fields of `SearchOptions`."""

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


# Flags of `translate` for settings that do not become decoding defaults: other limits depend on the
# source's length, and targets of a fixed beam size would refuse every translation.
_FLAGS = {
    "max_new_tokens": "--max-length",
    "no_repeat_ngram_size": "--no-repeat-ngram-size",
    "repetition_penalty": "--repetition-penalty",
}


@dataclass(frozen=True)
class Generation:
    """Values of generation_config.json or, in older models, of config.json."""

    config: Config
    values: dict[str, Any]

    @classmethod
    def read(cls, directory: Path, config: Config) -> Generation:
        """Read the settings of a model's directory.

        Raises:
            InputError: The file is damaged.
        """
        path = directory / "generation_config.json"
        if not path.is_file():
            return cls(config, config.values)
        values = read_json_file(path)
        if not isinstance(values, dict):
            raise InputError(f"{path} is not a JSON object; copy the directory again.")
        check_generation_settings(path, values)
        return cls(Config(path, values), values)

    def token(self, name: str, size: int) -> int | None:
        """Return the token id of a field such as forced_bos_token_id, or None.

        Args:
            name: Name of the field.
            size: Size of the vocabulary.

        Raises:
            InputError: The value is not a token id.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_token(value, size):
            raise self.config.setting_error(name, f"one of the {size} tokens is required")
        return int(value)

    def start(self, model: Config, size: int) -> int | None:
        """Return the token id that decoding starts with, or None.

        Args:
            model: config.json, the fallback of generation_config.json.
            size: Size of the vocabulary.

        Raises:
            InputError: The value is not a token id.
        """
        return self._or_of_model("decoder_start_token_id", model).token(
            "decoder_start_token_id", size
        )

    def end(self, model: Config, size: int) -> int:
        """Return the id of the end token.

        Args:
            model: config.json, the fallback of generation_config.json.
            size: Size of the vocabulary.

        Raises:
            InputError: The value is not a single token id.
        """
        settings = self._or_of_model("eos_token_id", model)
        value = settings.values.get("eos_token_id")
        tokens: list[Any] = value if isinstance(value, list) else [value]
        config = settings.config
        if len(tokens) != 1:
            raise config.setting_error("eos_token_id", "only one end token is supported")
        if not _is_token(tokens[0], size):
            raise config.setting_error("eos_token_id", f"one of the {size} tokens is required")
        token: int = tokens[0]
        return token

    def _or_of_model(self, name: str, model: Config) -> Generation:
        """Return these settings if they contain a field, and those of config.json otherwise."""
        if self.values.get(name) is not None or self.config is model:
            return self
        log.warning(
            "%s does not set %s; the value in %s is used.",
            self.config.path, name, model.path.name,
        )  # fmt: skip
        return Generation(model, model.values)

    def banned_tokens(self, size: int) -> list[int]:
        """Return the ids of banned tokens.

        Args:
            size: Size of the vocabulary.

        Raises:
            InputError: A banned word has several tokens, or is not in the vocabulary.
        """
        ends = self.values.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        found = []
        for name in ("bad_words_ids", "suppress_tokens"):
            words = self.values.get(name) or []
            if name == "suppress_tokens" and isinstance(words, list):
                words = [[word] for word in words]
            single = isinstance(words, list) and all(
                isinstance(word, list) and len(word) == 1 for word in words
            )
            if not single or not all(_is_token(word[0], size) for word in words):
                raise self.config.setting_error(
                    name, f"only words of a single token (0 to {size - 1}) are supported"
                )
            if name == "bad_words_ids":  # transformers ignores the end token here
                words = [word for word in words if word[0] not in ends]
            elif any(word[0] in ends for word in words):
                raise self.config.setting_error(name, "translations could not end")
            found += [word[0] for word in words]
        return found

    def search(self) -> dict[str, Any]:
        """Return decoding defaults as fields of `SearchOptions`, and warn of unsupported settings.

        `max_length` and `max_new_tokens` are ignored: our limit depends on the source's length.

        Raises:
            InputError: A value is out of range.
        """
        beams, penalty = self.values.get("num_beams"), self.values.get("length_penalty")
        search: dict[str, Any] = {
            "beam_size": 1 if beams is None else beams,
            "length_penalty": 1.0 if penalty is None else penalty,
            "length_penalty_form": "length",
            "early_stopping": self.values.get("early_stopping") is True,
        }
        if self.values.get("early_stopping") not in (None, True, False, "never"):
            raise self.config.setting_error("early_stopping", 'true, false or "never" is required')
        if self.values.get("min_length"):  # theirs counts the start token, ours the end token
            search["min_length"] = self.values["min_length"]
        least = self.values.get("min_new_tokens")
        if least is not None:  # excludes the end token; transformers prefers it to min_length
            search["min_length"] = least + 1 if _is_integer(least) and least > 0 else least
        for name in ("beam_size", "min_length"):
            if not _is_integer(search.get(name, 0)):
                raise InputError(
                    f"{self.config.path}: the generation settings are not supported: {name} would "
                    f"be {shown(search[name])}, and an integer is required."
                )
        try:
            SearchOptions(**search)
        except (OptionError, TypeError, OverflowError) as error:
            raise InputError(
                f"{self.config.path.parent}: the generation settings are not supported: {error}"
            ) from error
        for name, off in GENERATION_OFF.items():
            value = self.values.get(name)
            if value is not None and value not in off:
                log.warning(
                    "%s: %s is %.60r, which translate-trt does not apply: translations may differ "
                    "from those of transformers.%s", self.config.path, name, value,
                    f" Pass {flag} to translate." if (flag := _FLAGS.get(name)) else "",
                )  # fmt: skip
        return search


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
