"""Parsers of Marian's settings and vocabularies.

The YAML parser reads the subset that Marian writes: a key and a value per line, and lists of
scalars in brackets or with one item per line. People add comments and the line `---`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from translate_trt.export.importers.input_files import load_object, read_lines
from translate_trt.export.importers.vocabulary import read_sentencepiece
from translate_trt.runtime.errors import InputError

#: Array of a model file that contains its settings.
SETTINGS = "special:model.yml"

#: Spellings of Booleans in yaml-cpp (convert<bool>). Its `y` and `n` are Booleans only where one is
#: expected: `transformer-preprocess: n` is a string.
BOOLEANS = {
    spelled: value
    for words, value in (("true yes on y", True), ("false no off n", False))
    for word in words.split()
    for spelled in (word, word.capitalize(), word.upper())
}
_WORDS: dict[str, Any] = {word: value for word, value in BOOLEANS.items() if len(word) > 1}
_WORDS |= {"null": None, "~": None, "[]": []}
# A quoted scalar, or else a comment.
_COMMENT = re.compile(
    r"""(?<![^\s\[,])("(?:\\.|[^"\\])*"|'(?:''|[^'])*')(?![^\s\],:])|(?<!\S)\#.*"""
)
_TRAINED_WITH = "pass the vocabulary that Marian was trained with"
# Escape sequences of YAML.
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_CHARACTERS = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "e": "\x1b", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip


def read_settings(path: Path, text: str, part: str = SETTINGS) -> dict[str, Any]:
    """Parse settings in YAML.

    Args:
        path: Path of the file, for error messages.
        text: The YAML text.
        part: Part of the file, for error messages.

    Raises:
        InputError: The text is not in the form that Marian writes.
    """
    found: dict[str, Any] = {}
    name = None
    for whole in text.split("\n"):
        line = _COMMENT.sub(lambda match: match[1] or "", whole).rstrip(" \t\r")
        if not line or (line == "---" and not found):
            continue
        try:
            name = _read_line(line, found, name)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}: {part} has the line {whole[:60]!r}, which Marian does not write; the "
                "file is damaged."
            ) from error
    return found


def _read_line(line: str, found: dict[str, Any], name: str | None) -> str | None:
    """Add the setting or the item of a list on a line, and return the name of the last setting.

    Raises:
        ValueError: The line is neither.
        RecursionError: Lists are nested too deeply.
    """
    item = re.fullmatch(r" *- (.*)", line)
    pair = re.fullmatch(r"([^\s:#][^:]*):(?: (.*))?", line)
    flow = re.fullmatch(r" +(\[.*\])", line)  # on the line after its name
    if item is not None and name is not None and isinstance(found[name], list):
        found[name].append(_scalar(item[1]))
    elif flow is not None and name is not None and found[name] == []:
        found[name] = _scalar(flow[1])
    elif pair is not None and pair[1] not in found:
        name = pair[1]
        found[name] = [] if pair[2] is None else _scalar(pair[2])
    else:
        raise ValueError(line)
    return name


def _scalar(text: str) -> Any:
    text = text.strip()
    if text in _WORDS:
        value = _WORDS[text]
        return list(value) if isinstance(value, list) else value
    if len(text) > 1 and text[0] == "[" and text[-1] == "]":
        inner = text[1:-1].strip()
        return [_scalar(item) for item in inner.split(",")] if inner else []
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _unquoted(text)


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPE.sub(_character, text[1:-1])
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


def _character(match: re.Match[str]) -> str:
    """Return the character of an escape sequence.

    Raises:
        ValueError: Unicode has no such character; yaml-cpp refuses surrogates, too.
    """
    code = match[1]
    if len(code) == 1:
        return _CHARACTERS.get(code, code)
    number = int(code[1:], 16)
    if 0xD800 <= number <= 0xDFFF:
        raise ValueError("a surrogate is not a character")
    return chr(number)


def read_vocabulary(path: Path) -> list[str]:
    """Read the tokens of a vocabulary in YAML, JSON, plain text or SentencePiece format (.spm).

    Raises:
        InputError: The file is missing or damaged, or has factors.
    """
    if path.suffix == ".fsv":
        raise InputError(
            f"{path} is a vocabulary of factors (.fsv), which are not supported; train a model "
            "without factors, such as a student of this one."
        )
    if path.suffix == ".spm":
        return [str(piece.piece) for piece in read_sentencepiece(path).pieces]
    if path.suffix not in (".yml", ".yaml", ".json"):
        return read_lines(path, _TRAINED_WITH)
    ids = (_json if path.suffix == ".json" else _yaml)(path)
    tokens = {index: token for token, index in ids}
    if len(tokens) < len(ids) or sorted(tokens) != list(range(len(tokens))):
        raise InputError(
            f"{path}: token ids are not the numbers 0 to {len(ids) - 1}; the file is damaged."
        )
    return [tokens[index] for index in range(len(tokens))]


def _json(path: Path) -> list[tuple[str, int]]:
    values = load_object(path, _TRAINED_WITH)
    if not all(isinstance(index, int) for index in values.values()):
        raise InputError(f"{path} is not a JSON object of tokens and ids.")
    return list(values.items())


def _yaml(path: Path) -> list[tuple[str, int]]:
    found = []
    key: str | None = None
    for number, line in enumerate(read_lines(path, _TRAINED_WITH), 1):
        if not line:
            continue
        if line.startswith("? "):  # a long key, with its value on the next line
            key = line[2:]
            continue
        token, separator, index = line.rpartition(":")
        try:
            if not separator or not index.strip().isdigit() or (key is not None and token):
                raise ValueError(line)
            found.append((_unquoted(token if key is None else key), int(index)))
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: {line[:60]!r} is not a token and an id; {_TRAINED_WITH}."
            ) from error
        key = None
    return found
