"""Vocabularies of M2M100, NLLB, BARThez and mBART-50, numbered as in fairseq.

Ids are those of tokenizer.json. Older directories lack this file: M2M100's ids are in vocab.json,
followed by the languages. The others use the ids of the SentencePiece model, after fairseq's four
special tokens and followed by languages and a mask token. Newer versions of these tokenizers record
the ids of languages and added tokens; recorded ids replace computed ones.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from translate_trt.export.importers.hugging_face.directory import tokens_by_id
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.input_files import find_file, load_json, load_object
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.vocabulary import TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError

_MODEL = "sentencepiece.bpe.model"
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# SentencePiece's first pieces, which fairseq's special tokens replace.
_SENTENCEPIECE = ["<unk>", "<s>", "</s>"]
# Generic classes, which do not determine the special tokens.
_ANY_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", None)


@dataclass(frozen=True)
class Tokens:
    """Vocabulary that source and target share.

    Attributes:
        directory: Directory of the model.
        settings: Values of tokenizer_config.json; empty without the file.
        spm: Path of the SentencePiece model.
        names: Tokens by the model's ids.
    """

    directory: Path
    settings: dict[str, Any]
    spm: Path
    names: list[str]

    @classmethod
    def read(cls, config: Config, spm: Path | None) -> Tokens:
        """Read the tokenizer's files.

        Args:
            config: The model's config.json.
            spm: SentencePiece model. Default: the model in its directory.

        Raises:
            InputError: A file is missing, or its ids do not match the model.
        """
        directory = config.path.parent
        settings = read_object(directory / "tokenizer_config.json")
        found = spm or find_file(directory, (_MODEL,))
        if found is None:
            raise _no_sentencepiece_model(directory)
        path, ids = _ids(directory, settings, found, config.values["model_type"] == "m2m_100")
        return cls(
            directory, settings, found, tokens_by_id(path, ids, config.integer("vocab_size"))
        )

    def class_name(self, config: Config) -> str | None:
        """Return the tokenizer's class, which determines the prompt, or None if it is generic."""
        found = self.settings.get("tokenizer_class")
        found = config.values.get("tokenizer_class") if found in _ANY_CLASS else found
        return None if found in _ANY_CLASS else str(found).removesuffix("Fast")

    def remap(self, generation: Generation) -> tuple[TokenMap, tuple[bytes, bytes]]:
        """Map the tokens to our ids, and remap the tokenizer.

        Tokens without a piece are languages, special tokens and leftovers: they are all hidden.

        Raises:
            InputError: A special token is not in the vocabulary, or the SentencePiece model belongs
                to another model.
        """
        token_map = generation.token_map(self.names, self.settings)
        token_maps, tokenizers = make_tokenizers(
            (self.spm, None), (token_map, token_map), is_hidden=lambda token: True
        )
        return token_maps[0], tokenizers

    def languages(self, known: dict[str, int], generation: Generation) -> dict[str, str]:
        """Return the directory's default languages as fields of `SearchOptions`.

        Args:
            known: The model's ids by language.
            generation: The model's generation settings.

        Raises:
            InputError: Translations begin with a token that is not a language.
        """
        forced = generation.config.optional_token("forced_bos_token_id", len(self.names))
        forced_language = next((name for name, index in known.items() if index == forced), None)
        if forced is not None and forced_language is None:
            raise generation.config.setting_error(
                "forced_bos_token_id", "a language token is required"
            )
        target = forced_language or self.settings.get("tgt_lang")
        found = {"source_language": self.settings.get("src_lang"), "target_language": target}
        return {
            name: code for name, code in found.items() if isinstance(code, str) and code in known
        }


def _no_sentencepiece_model(directory: Path) -> InputError:
    if (directory / "merges.txt").is_file():
        return InputError(
            f"{directory} has a byte-level BPE tokenizer (vocab.json, merges.txt); only "
            "SentencePiece tokenizers, such as BARThez's and mBART-50's, are supported."
        )
    return InputError(
        f"{directory} has no {_MODEL}; transformers 5 saves tokenizers without it. Pass the file "
        f"of the original model with --spm, or copy it to {directory / _MODEL}."
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty object."""
    values = load_json(path) if path.is_file() else {}
    return values if isinstance(values, dict) else {}


def read_added_tokens(directory: Path, settings: dict[str, Any]) -> dict[str, int]:
    """Return the ids of added tokens, as a tokenizer without tokenizer.json records them.

    Args:
        directory: Directory of the model.
        settings: Values of tokenizer_config.json.

    Raises:
        InputError: A record is not that of a token and an id.
    """
    path, ids = directory / "tokenizer_config.json", settings.get("added_tokens_decoder")
    if ids:
        items = ids.items() if isinstance(ids, dict) else [(None, ids)]
        pairs = [
            (token.get("content") if isinstance(token, dict) else None, _integer(index))
            for index, token in items
        ]
    else:  # before transformers 4.34
        path = directory / "added_tokens.json"
        values = load_json(path) if path.is_file() else {}
        pairs = list(values.items()) if isinstance(values, dict) else [(None, values)]
    found: dict[str, int] = {}
    for token, index in pairs:
        if not isinstance(token, str) or type(index) is not int or index < 0:
            raise InputError(
                f"{path}: the added tokens are damaged: {token!r:.60} has id {index!r:.60}, but a "
                "token and an id are required. Copy the file again."
            )
        found[token] = index
    return found


def _integer(text: object) -> int | None:
    """Return the number that decimal digits stand for; None for anything else."""
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,9}", text) else None


def _ids(
    directory: Path, settings: dict[str, Any], spm: Path, m2m100: bool
) -> tuple[Path, dict[str, Any]]:
    """Return the file of the ids, and the ids by token."""
    path = directory / "tokenizer.json"
    if path.is_file():
        return path, _of_tokenizer(path)
    added = read_added_tokens(directory, settings)
    path = directory / "vocab.json"
    if path.is_file():
        ids = load_object(path)
        ids |= _m2m100_languages(directory, settings, len(ids)) if m2m100 else {}
    else:
        path, ids = spm, _of_sentencepiece(directory, settings, spm, added)
    taken = set(added.values())
    # Values of vocab.json may be of any type, such as lists.
    return path, {
        token: index for token, index in ids.items() if not (type(index) is int and index in taken)
    } | added


def _m2m100_languages(directory: Path, settings: dict[str, Any], count: int) -> dict[str, int]:
    """Return the ids of M2M100's languages, which follow the tokens of vocab.json."""
    kind = settings.get("language_codes") or "m2m100"
    if not isinstance(kind, str) or kind not in _CODES:
        raise InputError(
            f"{directory}: language_codes of tokenizer_config.json is {kind!r:.60}; supported: "
            f"{', '.join(_CODES)}."
        )
    return {f"__{code}__": count + index for index, code in enumerate(_CODES[kind].split())}


def _of_tokenizer(path: Path) -> dict[str, Any]:
    values = load_json(path)
    try:
        listed = values["model"]["vocab"]
        if isinstance(listed, list):
            listed = {token: index for index, (token, _) in enumerate(listed)}
        found = {**listed, **{token["content"]: token["id"] for token in values["added_tokens"]}}
        if all(isinstance(token, str) for token in found):
            return found
        reason = "a token is not a string"
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        reason = f"{error!r:.60}"
    raise InputError(f"{path} has no vocabulary ({reason}); copy it again.")


def _of_sentencepiece(
    directory: Path, settings: dict[str, Any], spm: Path, added: dict[str, int]
) -> dict[str, int]:
    """Return the ids of the pieces, and of special tokens in the ids that `added` leaves free."""
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot read {spm} as a SentencePiece model: {error}.") from error
    names = [model.id_to_piece(index) for index in range(model.get_piece_size())]
    if names[: len(_SENTENCEPIECE)] == _SENTENCEPIECE:
        names = [*_SPECIAL, *names[len(_SENTENCEPIECE) :]]
    elif names[: len(_SPECIAL)] != _SPECIAL:
        raise InputError(
            f"{spm} begins with {', '.join(names[:4])}; special tokens of fairseq "
            f"({', '.join(_SPECIAL)}) or of SentencePiece are required."
        )
    ids = {name: index for index, name in enumerate(names)}
    special = settings | read_object(directory / "special_tokens_map.json")
    more = special.get("additional_special_tokens") or special.get("extra_special_tokens") or []
    taken = set(added.values())
    free = (index for index in itertools.count(len(ids)) if index not in taken)
    for token in (*(more if isinstance(more, list) else []), special.get("mask_token")):
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str) and name not in ids and name not in added:
            ids[name] = next(free)
    return ids


# Languages of M2M100Tokenizer, which only its code lists
# (transformers/models/m2m_100/tokenization_m2m_100.py).
_CODES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
