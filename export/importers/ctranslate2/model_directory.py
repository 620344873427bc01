"""Settings and vocabularies beside model.bin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.importers.ctranslate2.variables import Variables, source_table
from translate_trt.export.importers.imported import find_file
from translate_trt.export.importers.json_file import load_json, shown
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap
from translate_trt.runtime.errors import InputError

_PADDING = ("<blank>", "<pad>")
# Fields of config.json that the importer reads. Any other field must be in `_OFF`, with that value.
_FIELDS = {
    "unk_token", "bos_token", "eos_token", "decoder_start_token", "add_source_bos",
    "add_source_eos", "layer_norm_epsilon",
}  # fmt: skip
_OFF: dict[str, tuple[Any, ...]] = {
    "multi_query_attention": (False,), "quantization_type": (None,), "quantization_bits": (None,),
    "quantization_group_size": (None,),
}  # fmt: skip


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
        values = _read_config(path)
        unknown = _text(path, values, "unk_token", "<unk>")
        end = _text(path, values, "eos_token", "</s>")
        begin = _text(path, values, "bos_token", "<s>")

        def flag(name: str, old: str) -> bool:
            value = values.get(name, old in variables and bool(variables.number(old)))
            if not isinstance(value, bool):
                raise _wrong(path, name, value, "true or false is required")
            return value

        if flag("add_source_bos", "with_source_bos"):
            raise variables.setting_error("add_source_bos", f"puts {begin} before every source")
        with_target_bos = "with_target_bos" not in variables or variables.number("with_target_bos")
        start = None
        if not variables.zero_start():
            if values.get("decoder_start_token", "") is None:
                raise variables.setting_error(
                    "decoder_start_token",
                    "is null: each request must choose the start token",
                )
            start = _text(path, values, "decoder_start_token", begin if with_target_bos else end)
        epsilon = values.get("layer_norm_epsilon")
        if epsilon is not None and (isinstance(epsilon, bool) or not isinstance(epsilon, float)):
            raise _wrong(path, "layer_norm_epsilon", epsilon, "a number such as 1e-5 is required")
        return cls(
            unknown, end, start, flag("add_source_eos", "with_source_eos"),
            1e-5 if epsilon is None else epsilon,
        )  # fmt: skip

    def search(self) -> dict[str, Any]:
        """Return CTranslate2's decoding defaults as fields of `SearchOptions`."""
        return {
            "beam_size": 2, "length_penalty": 1.0, "length_penalty_form": "length",
            "early_stopping": True, "min_length": 2,
        }  # fmt: skip


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = load_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} is not a JSON object; copy or convert the model again.")
    for name, value in values.items():
        if name not in _FIELDS and value not in _OFF.get(name, ()):
            why = "is unknown and may" if name not in _OFF else "would"
            raise _wrong(path, name, value, f"this setting {why} change what the model computes")
    return values


def _text(path: Path, values: dict[str, Any], name: str, default: str) -> str:
    value = values.get(name, default)
    if not isinstance(value, str):
        raise _wrong(path, name, value, "a token is required")
    return value


def _wrong(path: Path, name: str, value: object, why: str) -> InputError:
    return InputError(f"{path}: {name} is {shown(value)}; {why}.")


@dataclass(frozen=True)
class Vocabularies:
    """Token maps of source and target; the same object for a shared vocabulary."""

    source: TokenMap
    target: TokenMap

    @classmethod
    def read(cls, directory: Path, variables: Variables, settings: Settings) -> Vocabularies:
        shared = _read_vocabulary(directory, "shared_vocabulary", settings)
        source = shared or _read_vocabulary(directory, "source_vocabulary", settings)
        target = shared or _read_vocabulary(directory, "target_vocabulary", settings)
        if source is None or target is None:
            raise InputError(
                f"{directory} has neither shared_vocabulary nor source_vocabulary and "
                "target_vocabulary, as .json or .txt; copy the whole directory."
            )
        for name, tokens in (
            (source_table(variables), source), ("decoder/embeddings/weight", target)
        ):  # fmt: skip
            rows = variables.rows(name)
            if rows != len(tokens):
                raise InputError(
                    f"{variables.path}: {name} has {rows} rows, but the vocabulary has "
                    f"{len(tokens)} tokens; they belong to different models."
                )
        if settings.end not in target or settings.start not in (None, *target):
            raise InputError(
                f"{directory}: the target vocabulary lacks the end token {settings.end!r} or the "
                f"start token {settings.start!r} of config.json."
            )
        token_map = _token_map(target, settings)
        if shared is not None:
            return cls(token_map, token_map)
        return cls(_token_map(source, settings), token_map)


def _read_vocabulary(directory: Path, name: str, settings: Settings) -> list[str] | None:
    """Read the tokens; a missing unknown token is appended, as CTranslate2 does."""
    path = find_file(directory, (f"{name}.json", f"{name}.txt"))
    if path is None:
        return None
    if path.suffix == ".json":
        tokens = load_json(path)
    else:
        try:
            tokens = path.read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {error}.") from error
        tokens = [token.removesuffix("\r") for token in tokens[: -1 if tokens[-1] == "" else None]]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path} is not a list of tokens; copy or convert the model again.")
    return tokens if settings.unknown in tokens else [*tokens, settings.unknown]


def _token_map(tokens: list[str], settings: Settings) -> TokenMap:
    known = set(tokens)

    def id_of(*names: str | None) -> int | None:
        return next((tokens.index(name) for name in names if name in known), None)

    special = SpecialTokens(
        id_of(*_PADDING), id_of(settings.unknown), id_of(settings.start), id_of(settings.end)
    )
    return TokenMap(tokens, special)
