"""SentencePiece tokenization for bundles and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.text.bracketings import is_label_vocabulary

# Control characters (C0, DEL, C1), the Unicode line and paragraph separators, lone surrogates.
#
# In input they become spaces, because normalization rules are inconsistent: nmt_nfkc (tested with
# sentencepiece 0.2.3) maps tab, FF, U+2028 and U+2029 to spaces, but deletes VT and most other
# controls ("a\vb" becomes "ab") and keeps NUL, U+0080 and U+0085, which byte fallback then turns
# into bytes that training has hardly seen. The binding raises on lone surrogates.
#
# In output they become spaces, because byte fallback can generate any of them and programs that
# read lines would break: str.splitlines knows ten line ends.
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_WORD = re.compile("[^ ]+")  # of a vocabulary of words

#: SentencePiece's symbol for a space, which also marks the start of a word.
WORD_START = "\u2581"


_REMEDY = "Copy the directory again or make it again."


@dataclass(frozen=True)
class ModelFile:
    """A SentencePiece model that has been read.

    Attributes:
        path: Path of the file, for error messages.
        content: Content of the file.
    """

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> ModelFile:
        """Read a model.

        Raises:
            BundleError: The file cannot be read.
        """
        try:
            return cls(path, path.read_bytes())
        except OSError as error:
            raise BundleError(
                f"cannot read the tokenizer model {path}: {error.strerror}. {_REMEDY}"
            ) from error


class Tokenizer:
    """Tokenizer of a source and a target vocabulary, which may be the same file.

    Token lists contain neither start nor end symbols.
    """

    def __init__(self, source_model: Path | ModelFile, target_model: Path | ModelFile) -> None:
        """Load both models, from their paths unless they have been read.

        Raises:
            BundleError: A file is missing, truncated, or not a SentencePiece model.
        """
        self._target = _Model(target_model)
        self._source = self._target if source_model == target_model else _Model(source_model)

    def encode_source(self, text: str) -> list[int]:
        """Tokenize a source text; a blank text has no tokens."""
        return self.encode_source_batch([text])[0]

    def encode_target(self, text: str) -> list[int]:
        """Tokenize a target text for training or as a forced prefix."""
        return self.encode_target_batch([text])[0]

    def decode(self, tokens: Sequence[int]) -> str:
        """Detokenize target tokens to one line without control characters."""
        return self.decode_batch([tokens])[0]

    def encode_source_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize source texts."""
        return self._source.encode(texts)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize target texts."""
        return self._target.encode(texts)

    def decode_batch(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Detokenize target token lists to one line each."""
        with self._target.readable():
            texts: list[str] = self._target.processor.decode(
                [list(map(int, tokens)) for tokens in sentences]
            )
        return [without_controls(text) for text in texts]

    @property
    def writes_trees(self) -> bool:
        """Whether the target vocabulary consists of labels of parse trees."""
        return is_label_vocabulary(self.target_pieces(range(self.vocabulary_size)))

    def source_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Convert source tokens to SentencePiece pieces; U+2581 marks the start of a word."""
        return [str(self._source.processor.id_to_piece(int(token))) for token in tokens]

    def target_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Convert target tokens to SentencePiece pieces."""
        return [str(self._target.processor.id_to_piece(int(token))) for token in tokens]

    @property
    def source_vocabulary_size(self) -> int:
        """Size of the source vocabulary."""
        return int(self._source.processor.get_piece_size())

    @property
    def vocabulary_size(self) -> int:
        """Size of the target vocabulary."""
        return int(self._target.processor.get_piece_size())

    @property
    def pad_token(self) -> int:
        """Padding symbol of the target vocabulary; -1 if it has none."""
        return int(self._target.processor.pad_id())

    @property
    def unknown_token(self) -> int:
        """Unknown symbol of the target vocabulary."""
        return int(self._target.processor.unk_id())

    @property
    def start_token(self) -> int:
        """Start symbol of the target vocabulary; -1 if it has none."""
        return int(self._target.processor.bos_id())

    @property
    def end_token(self) -> int:
        """End symbol of the target vocabulary; -1 if it has none."""
        return int(self._target.processor.eos_id())


def without_controls(text: str) -> str:
    """Replace characters that are no text, such as controls, by spaces; the length is the same."""
    return _NOT_TEXT.sub(" ", text)


class _Model:
    """A SentencePiece model."""

    def __init__(self, file: Path | ModelFile) -> None:
        file = ModelFile.read(file) if isinstance(file, Path) else file
        self._path = file.path
        self.processor = _load(file)
        with self.readable():
            self._has_only_words = _has_only_words(self.processor)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Raise BundleError for pieces that are not UTF-8, which only a damaged model has."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise BundleError(
                f"the tokenizer model {self._path} has a piece that is not UTF-8. {_REMEDY}"
            ) from error

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        clean = [without_controls(text) for text in texts]
        if self._has_only_words:
            # SentencePiece would merge consecutive unknown words into one token.
            words = [[WORD_START + word for word in _WORD.findall(text)] for text in clean]
            return [list(map(self.processor.piece_to_id, line)) for line in words]
        # The library's thread pool would use all cores, whatever `threads` is.
        tokens: list[list[int]] = self.processor.encode(clean, num_threads=1)
        return tokens


def _has_only_words(model: sentencepiece.SentencePieceProcessor) -> bool:
    """Return True if all tokens are whole words, as in vocabularies imported from other toolkits.

    In such a vocabulary every text piece begins with a space. Vocabularies that SentencePiece
    learned also contain single letters or bytes.
    """
    return all(
        model.id_to_piece(n).startswith(WORD_START) or model.is_control(n) or model.is_unknown(n)
        for n in range(model.get_piece_size())
    )


def _load(file: ModelFile) -> sentencepiece.SentencePieceProcessor:
    if not file.content:  # SentencePiece would interpret empty content as "load later"
        raise BundleError(f"the tokenizer model {file.path} is empty. {_REMEDY}")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=file.content)
    except (RuntimeError, OSError, ValueError) as error:
        raise BundleError(
            f"{file.path} is not a SentencePiece model, or only a part of one ({error}). {_REMEDY}"
        ) from error
