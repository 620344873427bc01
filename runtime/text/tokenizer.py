"""Text to token ids and back, with the SentencePiece models of a bundle or a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sentencepiece

from translate_trt.runtime.errors import BundleError

# Control characters (C0, DEL, C1), the Unicode line and paragraph separators, lone surrogates.
#
# On the way in: the normalization rule nmt_nfkc (tried with sentencepiece 0.2.3) turns tab, FF,
# U+2028 and U+2029 into spaces itself, but deletes VT and most other controls, so that "a\vb"
# becomes the word "ab"; it lets NUL, U+0080 and U+0085 through, which byte fallback then spells out
# to the model as bytes that training has hardly seen; and the binding raises on lone surrogates.
# Other models' rules do less. A space is what all of them stand for.
#
# On the way out: byte fallback can spell any of them, and each would break what reads lines after
# us (Python's str.splitlines takes ten characters for line ends).
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# What SentencePiece writes for a space, and before a word.
_SPACE = "\u2581"


_MEND = "Copy the directory again or make it again."


class Tokenizer:
    """The source and target vocabularies, which may be one and the same file.

    Token lists carry no start and no end symbol.
    """

    def __init__(self, source_model: Path, target_model: Path) -> None:
        """Load both models.

        Raises:
            BundleError: a file is missing, truncated, or not a SentencePiece model.
        """
        self._target = _Model(target_model)
        self._source = self._target if source_model == target_model else _Model(source_model)

    def encode_source(self, text: str) -> list[int]:
        """Tokens of one source text; none for a text of spaces."""
        return self.encode_source_batch([text])[0]

    def encode_target(self, text: str) -> list[int]:
        """Tokens of one target text, as training and forced prefixes need them."""
        return self.encode_target_batch([text])[0]

    def decode(self, tokens: Sequence[int]) -> str:
        """Target text of these tokens, without line ends or other control characters."""
        return self.decode_batch([tokens])[0]

    def encode_source_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each source text."""
        return self._source.encode(texts)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each target text."""
        return self._target.encode(texts)

    def decode_batch(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Target text of each token list, always one line each."""
        with self._target.readable():
            texts: list[str] = self._target.processor.decode(
                [list(map(int, tokens)) for tokens in sentences]
            )
        return [_clean(text) for text in texts]

    def source_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The source vocabulary's pieces of these tokens, word starts marked by U+2581."""
        return [str(self._source.processor.id_to_piece(int(token))) for token in tokens]

    def target_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The same of the target vocabulary."""
        return [str(self._target.processor.id_to_piece(int(token))) for token in tokens]

    @property
    def source_vocabulary_size(self) -> int:
        """Number of pieces of the source vocabulary."""
        return int(self._source.processor.get_piece_size())

    @property
    def vocabulary_size(self) -> int:
        """Number of pieces of the target vocabulary."""
        return int(self._target.processor.get_piece_size())

    @property
    def pad_token(self) -> int:
        """Id of the padding piece of the target vocabulary; -1 if it has none."""
        return int(self._target.processor.pad_id())

    @property
    def unknown_token(self) -> int:
        """Id of the unknown piece of the target vocabulary."""
        return int(self._target.processor.unk_id())

    @property
    def start_token(self) -> int:
        """Id of the start symbol of the target vocabulary; -1 if it has none."""
        return int(self._target.processor.bos_id())

    @property
    def end_token(self) -> int:
        """Id of the end symbol of the target vocabulary; -1 if it has none."""
        return int(self._target.processor.eos_id())


def _clean(text: str) -> str:
    return _NOT_TEXT.sub(" ", text)


class _Model:
    """A vocabulary."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.processor = _load(path)
        with self.readable():
            self._of_words = _is_of_words(self.processor)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Raise BundleError for pieces that are not UTF-8, which no training makes."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise BundleError(
                f"the tokenizer model {self._path} has a piece that is not UTF-8. {_MEND}"
            ) from error

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        clean = [_clean(text) for text in texts]
        if self._of_words:
            # SentencePiece would make one token of unknown words that follow each other.
            words = [[_SPACE + word for word in text.split(" ") if word] for text in clean]
            return [list(map(self.processor.piece_to_id, line)) for line in words]
        # One thread: the library's pool has one per processor, whatever --threads says.
        tokens: list[list[int]] = self.processor.encode(clean, num_threads=1)
        return tokens


def _is_of_words(model: sentencepiece.SentencePieceProcessor) -> bool:
    """Whether tokens are what stands between spaces, as in vocabularies of some other toolkits.

    Then every piece that is text begins with a space. A vocabulary that SentencePiece learned has
    others among the first: letters, or bytes.
    """
    return all(
        model.id_to_piece(n).startswith(_SPACE) or model.is_control(n) or model.is_unknown(n)
        for n in range(model.get_piece_size())
    )


def _load(path: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"cannot read the tokenizer model {path}: {error.strerror}. {_MEND}"
        ) from error
    if not content:  # which the library takes for "load later"
        raise BundleError(f"the tokenizer model {path} is empty. {_MEND}")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except (RuntimeError, OSError, ValueError) as error:
        raise BundleError(
            f"{path} is not a SentencePiece model, or only a part of one ({error}). {_MEND}"
        ) from error
