"""Vocabularies of M2M100, NLLB, BARThez and mBART-50, which fairseq numbered first.

Ids come from tokenizer.json if there is one. Older directories have none: there M2M100's are in
vocab.json, with languages behind, and the others are those of the SentencePiece model with four
special tokens before (fairseq's), languages and a mask behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from translate_trt.export.importers.hugging_face.directory import (
    Config,
    read_json_file,
    tokens_by_id,
)
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.imported import find_file
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, remap_tokenizers
from translate_trt.runtime.errors import InputError

_MODEL = "sentencepiece.bpe.model"
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# What SentencePiece itself puts first; fairseq has its own four instead.
_SENTENCEPIECE = ["<unk>", "<s>", "</s>"]
# Classes that say nothing of a tokenizer's special tokens.
_ANY_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", None)


@dataclass(frozen=True)
class Tokens:
    """Of a model whose source and target share a vocabulary.

    Attributes:
        directory: that they are from.
        settings: of tokenizer_config.json, or none.
        pieces: the SentencePiece model.
        names: by the model's ids.
    """

    directory: Path
    settings: dict[str, Any]
    pieces: Path
    names: list[str]

    @classmethod
    def read(cls, directory: Path, config: Config, pieces: Path | None) -> Tokens:
        """Of a directory that `save_pretrained` of a model and its tokenizer wrote.

        Args:
            directory: with the files.
            config: of the model.
            pieces: the SentencePiece model; None: it is in the directory.

        Raises:
            InputError: a file is missing, or its ids are not the model's.
        """
        settings = read_object(directory / "tokenizer_config.json")
        found = pieces or find_file(directory, (_MODEL,))
        if found is None:
            raise _no_pieces(directory)
        path, ids = _ids(directory, settings, found, config.values["model_type"] == "m2m_100")
        return cls(
            directory, settings, found, tokens_by_id(path, ids, config.integer("vocab_size"))
        )

    def class_name(self, config: Config) -> str | None:
        """The tokenizer's class, which knows what stands around texts; None: nothing says."""
        found = self.settings.get("tokenizer_class")
        found = config.values.get("tokenizer_class") if found in _ANY_CLASS else found
        return None if found in _ANY_CLASS else str(found).removesuffix("Fast")

    def token_map(self, config: Config, generation: Generation) -> TokenMap:
        """Our numbers of the tokens.

        Raises:
            InputError: special tokens are none of the vocabulary.
        """
        size = len(self.names)
        start = generation.start(config, size)
        if start is None:
            raise config.setting_error(
                "decoder_start_token_id", f"one of the {size} tokens is needed"
            )
        end, pad = generation.end(config, size), config.token("pad_token_id", size)
        check_end(generation.config, self.names[end], self.settings)
        unknown = self.names.index("<unk>") if "<unk>" in self.names else None
        return TokenMap(
            self.names, SpecialTokens(pad, unknown, start, end), generation.banned_tokens(size)
        )

    def arrange(self, token_map: TokenMap) -> tuple[TokenMap, tuple[bytes, bytes]]:
        """The token_map with what the vocabulary lacks, and the tokenizers with its numbers.

        What the SentencePiece model has not are languages, special tokens and leftovers.

        Raises:
            InputError: the SentencePiece model is another model's.
        """
        found = remap_tokenizers(
            (self.pieces, self.pieces), (token_map, token_map), is_hidden=lambda token: True
        )
        return found[0][0], found[1]

    def languages(self, known: dict[str, int], forced: int | None) -> dict[str, str]:
        """What the directory says to translate from and into, by the names of `SearchOptions`.

        Args:
            known: ids of the languages, the model's.
            forced: the token that translations begin with.
        """
        forced_language = next((name for name, place in known.items() if place == forced), None)
        target = forced_language or self.settings.get("tgt_lang")
        found = {"source_language": self.settings.get("src_lang"), "target_language": target}
        return {
            name: code for name, code in found.items() if isinstance(code, str) and code in known
        }


def check_end(config: Config, end: str, settings: dict[str, Any]) -> None:
    """Find out whether translations end with the symbol that the tokenizer puts behind sources.

    Args:
        config: that says the end symbol of translations.
        end: its name.
        settings: of tokenizer_config.json.

    Raises:
        InputError: they do not.
    """
    said = settings.get("eos_token") or "</s>"
    said = said.get("content") if isinstance(said, dict) else said
    if end != said:
        raise config.setting_error(
            "eos_token_id",
            f"translations would end with {end!r:.60} and sources with {said!r:.60}, and one "
            "symbol for both is represented",
        )


def _no_pieces(directory: Path) -> InputError:
    if (directory / "merges.txt").is_file():
        return InputError(
            f"{directory} has a byte-level BPE tokenizer (vocab.json, merges.txt), which is no "
            "SentencePiece model. Models that have one, such as BARThez and mBART-50, are imported."
        )
    return InputError(
        f"{directory} has no {_MODEL}; transformers 5 saves tokenizers without it. Give the one of "
        f"the model that this was made from with --spm, or copy it to there as {_MODEL}."
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one if there is no such file."""
    values = read_json_file(path) if path.is_file() else {}
    return values if isinstance(values, dict) else {}


def _ids(
    directory: Path, settings: dict[str, Any], pieces: Path, m2m100: bool
) -> tuple[Path, dict[str, Any]]:
    """The ids by token, and the file that they are of."""
    path = directory / "tokenizer.json"
    if path.is_file():
        return path, _of_tokenizer(path)
    path = directory / "vocab.json"
    if not path.is_file():
        return pieces, _of_pieces(directory, settings, pieces)
    ids = read_json_file(path)
    if not isinstance(ids, dict):
        raise InputError(f"{path} is no JSON object of tokens and ids; copy the directory again.")
    return path, ids | (_behind(directory, settings, len(ids)) if m2m100 else {})


def _behind(directory: Path, settings: dict[str, Any], count: int) -> dict[str, int]:
    """M2M100's languages, which stand behind the tokens of vocab.json, however many."""
    kind = settings.get("language_codes") or "m2m100"
    if not isinstance(kind, str) or kind not in _CODES:
        raise InputError(
            f"{directory}: language_codes of tokenizer_config.json is {kind!r:.60}; known are "
            f"{', '.join(_CODES)}."
        )
    return {f"__{code}__": count + place for place, code in enumerate(_CODES[kind].split())}


def _of_tokenizer(path: Path) -> dict[str, Any]:
    values = read_json_file(path)
    try:
        listed = values["model"]["vocab"]
        if isinstance(listed, list):
            listed = {token: place for place, (token, _) in enumerate(listed)}
        found = {**listed, **{token["content"]: token["id"] for token in values["added_tokens"]}}
        if all(isinstance(token, str) for token in found):
            return found
        reason = "a token is no text"
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        reason = f"{error!r:.60}"
    raise InputError(f"{path} has no vocabulary ({reason}); copy it again.")


def _of_pieces(directory: Path, settings: dict[str, Any], pieces: Path) -> dict[str, int]:
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot read {pieces} as a SentencePiece model: {error}.") from error
    names = [model.id_to_piece(place) for place in range(model.get_piece_size())]
    if names[: len(_SENTENCEPIECE)] == _SENTENCEPIECE:
        names = [*_SPECIAL, *names[len(_SENTENCEPIECE) :]]
    elif names[: len(_SPECIAL)] != _SPECIAL:
        raise InputError(
            f"{pieces} begins with {', '.join(names[:4])}; special tokens of fairseq "
            f"({', '.join(_SPECIAL)}) or of SentencePiece are needed."
        )
    ids = {name: place for place, name in enumerate(names)}
    special = settings | read_object(directory / "special_tokens_map.json")
    more = special.get("additional_special_tokens") or special.get("extra_special_tokens") or []
    for token in (*(more if isinstance(more, list) else []), special.get("mask_token")):
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            ids.setdefault(name, len(ids))
    return ids


# Of M2M100Tokenizer (transformers/models/m2m_100/tokenization_m2m_100.py), which has them in its
# code alone.
_CODES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
