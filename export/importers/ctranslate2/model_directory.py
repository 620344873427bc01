"""Settings and vocabularies beside model.bin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from translate_trt.export.importers.ctranslate2.variables import Variables
from translate_trt.export.importers.input_files import find_file, load_json, load_object, read_lines
from translate_trt.export.importers.settings_table import Config, SettingsTable
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap
from translate_trt.runtime.errors import InputError

_PADDING = ("<blank>", "<pad>")
# Of config.json.
_SETTINGS = SettingsTable(
    known={
        "unk_token", "bos_token", "eos_token", "decoder_start_token", "add_source_bos",
        "add_source_eos", "layer_norm_epsilon",
    },
    only={
        "multi_query_attention": (False,), "quantization_type": (None,),
        "quantization_bits": (None,), "quantization_group_size": (None,),
    },
    off=(),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of config.json or, before layout version 6, of arrays of model.bin."""

    unknown: str
    end: str
    start: str | None  # None for a zero embedding
    source_end: bool
    epsilon: float

    @classmethod
    def read(cls, directory: Path, variables: Variables) -> Settings:
        path = directory / "config.json"
        config = Config(path, load_object(path) if path.is_file() else {})
        config.check(_SETTINGS)
        unknown = config.text("unk_token", "<unk>")
        end = config.text("eos_token", "</s>")
        begin = config.text("bos_token", "<s>")

        def flag(name: str, old: str) -> bool:
            default = name not in config.values and old in variables
            return config.flag(name, default and bool(variables.number(old)))

        if flag("add_source_bos", "with_source_bos"):
            raise variables.setting_error("add_source_bos", f"puts {begin} before every source")
        with_target_bos = "with_target_bos" not in variables or variables.number("with_target_bos")
        start = None
        if not variables.zero_start():
            if config.values.get("decoder_start_token", "") is None:
                raise variables.setting_error(
                    "decoder_start_token",
                    "is null: each request must choose the start token",
                )
            start = config.text("decoder_start_token", begin if with_target_bos else end)
        epsilon = config.values.get("layer_norm_epsilon")
        if epsilon is None:
            epsilon = 1e-6 if variables.relative() else 1e-5
        if not isinstance(epsilon, float):
            raise config.setting_error("layer_norm_epsilon", "a number such as 1e-5 is required")
        return cls(
            unknown, end, start, flag("add_source_eos", "with_source_eos"), epsilon
        )  # fmt: skip


def read_token_maps(directory: Path, settings: Settings) -> tuple[TokenMap, TokenMap]:
    """Read the maps of source and target; the same object for a shared vocabulary.

    Raises:
        InputError: A vocabulary is missing or damaged.
    """
    shared = _read_vocabulary(directory, "shared_vocabulary", settings)
    source = shared or _read_vocabulary(directory, "source_vocabulary", settings)
    target = shared or _read_vocabulary(directory, "target_vocabulary", settings)
    if source is None or target is None:
        raise InputError(
            f"{directory} has neither shared_vocabulary nor source_vocabulary and "
            "target_vocabulary, as .json or .txt; copy the whole directory."
        )
    if settings.end not in target or settings.start not in (None, *target):
        raise InputError(
            f"{directory}: the target vocabulary lacks the end token {settings.end!r} or the "
            f"start token {settings.start!r} of config.json."
        )
    token_map = _token_map(target, settings)
    return (token_map if shared is not None else _token_map(source, settings)), token_map


def _read_vocabulary(directory: Path, name: str, settings: Settings) -> list[str] | None:
    """Read the tokens; a missing unknown token is appended, as CTranslate2 does."""
    path = find_file(directory, (f"{name}.json", f"{name}.txt"))
    if path is None:
        return None
    tokens = load_json(path) if path.suffix == ".json" else read_lines(path)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path} is not a list of tokens; copy or convert the model again.")
    return tokens if settings.unknown in tokens else [*tokens, settings.unknown]


def _token_map(tokens: list[str], settings: Settings) -> TokenMap:
    names = (_PADDING, (settings.unknown,), (settings.start,), (settings.end,))
    return TokenMap(tokens, SpecialTokens.named(tokens, *names))
