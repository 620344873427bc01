"""Settings of transformers' `generate` as fields of `SearchOptions`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from translate_trt.export.importers.hugging_face.settings import GENERATION, GENERATION_OFF
from translate_trt.export.importers.imported import check_search
from translate_trt.export.importers.input_files import load_object
from translate_trt.export.importers.settings_table import Config, is_token
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap

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
    """Generation settings of a model.

    Attributes:
        config: generation_config.json or, in older models, config.json.
        model: config.json, which has special tokens that generation_config.json lacks.
    """

    config: Config
    model: Config

    @classmethod
    def read(cls, model: Config) -> Generation:
        """Read the settings beside a config.json.

        Raises:
            InputError: The file is damaged, or a setting is unknown.
        """
        path = model.path.with_name("generation_config.json")
        if not path.is_file():
            return cls(model, model)
        config = Config(path, load_object(path))
        config.check(GENERATION)
        return cls(config, model)

    def start(self, size: int) -> int | None:
        """Return the token id that decoding starts with, or None.

        Args:
            size: Size of the vocabulary.

        Raises:
            InputError: The value is not a token id.
        """
        name = "decoder_start_token_id"
        return self._config_of(name).optional_token(name, size)

    def _end(self, size: int) -> int:
        config = self._config_of("eos_token_id")
        value = config.values.get("eos_token_id")
        tokens: list[Any] = value if isinstance(value, list) else [value]
        if len(tokens) != 1 or not is_token(tokens[0], size):
            raise config.setting_error("eos_token_id", f"one of the {size} tokens is required")
        token: int = tokens[0]
        return token

    def _config_of(self, name: str) -> Config:
        """Return the settings that contain a field: these, or those of config.json."""
        if self.config.values.get(name) is not None or self.config is self.model:
            return self.config
        log.warning(
            "%s does not set %s; the value in %s is used.",
            self.config.path, name, self.model.path.name,
        )  # fmt: skip
        return self.model

    def token_map(
        self, tokens: list[str], tokenizer: dict[str, Any] | None, unused: Sequence[int] = ()
    ) -> TokenMap:
        """Map the vocabulary of translations to our ids.

        Args:
            tokens: Tokens by the model's ids.
            tokenizer: Values of tokenizer_config.json, if sources have the same vocabulary.
            unused: Ids without a token, which translations must not contain.

        Raises:
            InputError: A special token is not in the vocabulary, or sources end with another one.
        """
        size, start = len(tokens), self.start(len(tokens))
        if start is None:
            raise self.model.setting_error(
                "decoder_start_token_id", f"one of the {size} tokens is required"
            )
        pad, end = self.model.token("pad_token_id", size), self._end(size)
        if tokenizer is not None:
            of_source = tokenizer.get("eos_token") or "</s>"
            of_source = of_source.get("content") if isinstance(of_source, dict) else of_source
            if tokens[end] != of_source:
                raise self.config.setting_error(
                    "eos_token_id",
                    f"translations would end with {tokens[end]!r:.60} and sources with "
                    f"{of_source!r:.60}, but only one end token for both is supported",
                )
        unknown = tokens.index("<unk>") if "<unk>" in tokens else None
        banned = [*self._banned_tokens(size), *unused]
        return TokenMap(tokens, SpecialTokens(pad, unknown, start, end), banned)

    def _banned_tokens(self, size: int) -> list[int]:
        """Return the ids of banned tokens.

        Raises:
            InputError: A banned word has several tokens, or is not in the vocabulary.
        """
        ends = self.config.values.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        found = []
        for name in ("bad_words_ids", "suppress_tokens"):
            words = self.config.values.get(name) or []
            if name == "suppress_tokens" and isinstance(words, list):
                words = [[word] for word in words]
            if not isinstance(words, list) or not all(
                isinstance(word, list) and len(word) == 1 and is_token(word[0], size)
                for word in words
            ):
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
        values = self.config.values
        beams, penalty = values.get("num_beams"), values.get("length_penalty")
        stops = self.config.choice("early_stopping", (None, True, False, "never"))
        search: dict[str, Any] = {
            "beam_size": 1 if beams is None else beams,
            "length_penalty": 1.0 if penalty is None else penalty,
            "length_penalty_form": "length",
            "early_stopping": stops is True,
        }
        if values.get("min_length"):  # theirs counts the start token, ours the end token
            search["min_length"] = values["min_length"]
        least = values.get("min_new_tokens")
        if least is not None:  # excludes the end token; transformers prefers it to min_length
            search["min_length"] = least + 1 if type(least) is int and least > 0 else least
        for name, off in GENERATION_OFF.items():
            value = values.get(name)
            if value is not None and value not in off:
                log.warning(
                    "%s: %s is %.60r, which translate-trt does not apply: translations may differ "
                    "from those of transformers.%s", self.config.path, name, value,
                    f" Pass {flag} to translate." if (flag := _FLAGS.get(name)) else "",
                )  # fmt: skip
        return check_search(self.config.path, search)
