"""Token ids of other toolkits made ours, and SentencePiece models that give them.

The four special pieces stand first in every vocabulary of ours (`train/config.py`), which the
search, shortlists and every front end go by. So an import renumbers the tokens: rows of the
matrices change places, and what is computed stays the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from translate_trt.runtime.errors import InputError
from translate_trt.train.config import BANNED_BIAS, END, PAD, START, UNKNOWN

#: Names of the special pieces that a vocabulary lacks, by their ids.
_NAMES = {PAD: "<pad>", UNKNOWN: "<unk>", START: "<s>", END: "</s>"}

# A token that is several of these is the first of them; the others have its row, and never come.
_IN_ONE_PLACE = (END, UNKNOWN, PAD, START)

#: What SentencePiece writes for a space, and before a word.
SPACE = "\u2581"

# Of pieces, what a vocabulary may lack; more than that, and they do not belong together.
_MOST_LACKING = 0.1

# So much below all others SentencePiece scores an unknown character (kUnkPenalty).
_UNKNOWN_PENALTY = 10.0

# The classes that protobuf makes, which have no types.
_messages: Any = sentencepiece_model_pb2
_Model = _messages.ModelProto
_Piece = _Model.SentencePiece
_Kind = _messages.TrainerSpec
_SPECIAL = (_Piece.CONTROL, _Piece.UNKNOWN)


@dataclass(frozen=True)
class Special:
    """Tokens of a toolkit that every vocabulary of ours has, by their ids there; None: it has none.

    Two may be the same, as in Marian, where decoding starts with the padding symbol.
    """

    pad: int | None
    unknown: int | None
    start: int | None
    end: int | None

    def ids(self) -> list[int | None]:
        """In the order of ours."""
        found = {PAD: self.pad, UNKNOWN: self.unknown, START: self.start, END: self.end}
        return [found[place] for place in sorted(found)]


class Numbering:
    """Which token of a toolkit each of ours is.

    Args:
        tokens: of the toolkit, by id.
        special: which of them are special.
        never: ids there that a translation never has.

    Attributes:
        rows: by our id, the toolkit's; None: it has no such token.
        names: by our id.
        known: so many of them are tokens of the toolkit's vocabulary, or special.

    Raises:
        InputError: two tokens are the same.
    """

    def __init__(self, tokens: Sequence[str], special: Special, never: Sequence[int] = ()) -> None:
        if len(set(tokens)) < len(tokens):
            twice = next(token for token in tokens if tokens.count(token) > 1)
            raise InputError(f"the vocabulary has the token {twice!r} twice; it is damaged.")
        first = special.ids()
        taken = {token for token in first if token is not None}
        # Decoding may start with a token that is text, too: then it is both.
        others = (special.pad, special.unknown, special.end)
        start = special.start
        self._start_is_text = (
            start is not None and start not in others and tokens[start] not in _NAMES.values()
        )
        if self._start_is_text:
            taken -= {start}
        rest = [token for token in range(len(tokens)) if token not in taken]
        self.rows: list[int | None] = [*first, *rest]
        # A token that stands in several places comes in one of them.
        seen: set[int | None] = {None, *never}
        self._silent = {place for place, row in enumerate(self.rows) if row in seen}
        for place in _IN_ONE_PLACE:
            if first[place] in seen:
                self._silent.add(place)
            seen.add(first[place])
        if self._start_is_text:
            self._silent.add(START)
        self.names = self._names(tokens)
        self.known = len(self.rows)

    def with_unknown(self, count: int) -> Numbering:
        """So many more tokens that all are the unknown one, and never come."""
        more = copy.copy(self)
        end = self.known + count
        more.rows = [*self.rows, *[self.rows[UNKNOWN]] * count]
        more.names = [*self.names, *(f"<unknown-{place}>" for place in range(self.known, end))]
        more._silent = {*self._silent, *range(self.known, end)}
        return more

    def _names(self, tokens: Sequence[str]) -> list[str]:
        found = ["" if row is None else tokens[row] for row in self.rows]
        if self._start_is_text:
            found[START] = ""
        known: set[str] = set()
        taken = set(tokens)
        for place in _IN_ONE_PLACE:
            name = found[place]
            if not name or name in known:  # there is none, or it is in its second place
                name = _NAMES[place]
                while name in taken or name in known:
                    name = f"<{name}>"
            known.add(name)
            found[place] = name
        return found

    @property
    def size(self) -> int:
        """How many tokens of ours there are."""
        return len(self.rows)

    @property
    def count(self) -> int:
        """Number of tokens in the toolkit's vocabulary."""
        return len({row for row in self.rows if row is not None})

    def place_of(self, token: int) -> int:
        """Our id of a token of the toolkit's, by its id there; of several, one that is text."""
        later = self.rows[END + 1 : self.known]
        return END + 1 + later.index(token) if token in later else self.rows.index(token)

    def matrix(self, rows: Tensor) -> Tensor:
        """A matrix [V of the toolkit, ...] with its rows in our order; new ones are zero."""
        found = rows.new_zeros(self.size, *rows.shape[1:])
        kept = [place for place, row in enumerate(self.rows) if row is not None]
        found[kept] = rows[[row for row in self.rows if row is not None]]
        return found

    def bias(self, bias: Tensor | None) -> Tensor | None:
        """The logits' bias [V], which also says what never comes; None: there is none.

        Args:
            bias: of the toolkit.
        """
        if bias is None and not self._silent:
            return None
        found = torch.zeros(self.size) if bias is None else self.matrix(bias)
        found[sorted(self._silent)] = BANNED_BIAS
        return found


def _none(token: str) -> bool:
    return False


def word_tokenizer(numbering: Numbering) -> bytes:
    """A SentencePiece model whose tokens are words: what stands between spaces.

    `Tokenizer` knows such models by their pieces.

    Raises:
        InputError: the vocabulary is one of SentencePiece's pieces.
    """
    model = _Model()
    for place, name in enumerate(numbering.names):
        if place > END and (SPACE in name or not name or name.split() != [name]):
            raise InputError(
                f"the vocabulary has the token {name!r}, which is a SentencePiece piece and no "
                "word: give the SentencePiece model it came from (--source-spm, --target-spm)."
            )
        model.pieces.append(_special(place, name) or _Piece(piece=SPACE + name, score=0.0))
    model.trainer_spec.model_type = _Kind.WORD
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = True
    model.normalizer_spec.escape_whitespaces = True
    return _finished(model, numbering)


def make_tokenizers(
    paths: tuple[Path | None, Path | None],
    numberings: tuple[Numbering, Numbering],
    is_word: Callable[[str], bool] = _none,
    is_hidden: Callable[[str], bool] = _none,
) -> tuple[tuple[Numbering, Numbering], tuple[bytes, bytes]]:
    """Of the SentencePiece models that are given, or else of words.

    Args:
        paths: of the SentencePiece models of source and target; None: of the target as of the
            source, else there are none.
        numberings: of the vocabularies; the same object where both sides share one.
        is_word: see `arranged_tokenizers`.
        is_hidden: see there.

    Returns:
        The numberings with what the vocabularies lack, and the models as files have them.

    Raises:
        InputError: the models are not of the vocabularies, or the source's alone is missing.
    """
    source, target = paths
    if source is not None:
        return arranged_tokenizers((source, target or source), numberings, is_word, is_hidden)
    if target is not None:
        raise InputError(f"there is {target}, but none of the source: give --source-spm.")
    return numberings, (word_tokenizer(numberings[0]), word_tokenizer(numberings[1]))


def arranged_tokenizers(
    paths: tuple[Path, Path],
    numberings: tuple[Numbering, Numbering],
    is_word: Callable[[str], bool] = _none,
    is_hidden: Callable[[str], bool] = _none,
) -> tuple[tuple[Numbering, Numbering], tuple[bytes, bytes]]:
    """SentencePiece models whose pieces have our numbers, and which cut text as before.

    Pieces keep their scores. What the vocabulary has besides is there as a piece that no text is
    cut into; a piece that the vocabulary lacks stands for the unknown token, behind all others.

    Args:
        paths: of the SentencePiece models of source and target; may be the same.
        numberings: of the vocabularies; the same object where both sides share one.
        is_word: which tokens, at the start of a text or after a space, are never cut, though no
            SentencePiece model has them.
        is_hidden: which tokens that no SentencePiece model has are no text, such as languages:
            decoding does not show them, and merging of byte pairs does not know them.

    Returns:
        The numberings with what the vocabularies lack, and the models as files have them.

    Raises:
        InputError: a file is missing or no SentencePiece model, or not of this vocabulary.
    """
    models = [read_pieces(path) for path in paths]
    counts = []
    for path, model, numbering in zip(paths, models, numberings, strict=True):
        lacking = _lacking(model, numbering)
        if len(lacking) > _MOST_LACKING * len(model.pieces):
            raise InputError(
                f"{path} has {len(lacking)} pieces that the model's vocabulary has not, "
                f"{lacking[0]!r} first; it is another model's tokenizer."
            )
        counts.append(len(lacking))
    if numberings[0] is numberings[1]:
        source = target = numberings[0].with_unknown(max(counts))
    else:
        source, target = (n.with_unknown(c) for n, c in zip(numberings, counts, strict=True))
    arranged = [
        _arranged(path, model, numbering, is_word, is_hidden)
        for path, model, numbering in zip(paths, models, (source, target), strict=True)
    ]
    return (source, target), (arranged[0], arranged[1])


def _lacking(model: Any, numbering: Numbering) -> list[str]:
    """Pieces that the vocabulary has not."""
    known = set(numbering.names)
    return [p.piece for p in model.pieces if p.piece not in known and p.type not in _SPECIAL]


def _arranged(
    path: Path,
    model: Any,
    numbering: Numbering,
    is_word: Callable[[str], bool],
    is_hidden: Callable[[str], bool],
) -> bytes:
    lacking = iter(_lacking(model, numbering))
    resolver = _Resolver(path, model, is_word, is_hidden)
    pieces = []
    for place, name in enumerate(numbering.names):
        in_vocabulary = place < numbering.known
        if not in_vocabulary:
            name = next(lacking, name)
        pieces.append(_special(place, name) or resolver.resolve(name, in_vocabulary))
    del model.pieces[:]
    model.pieces.extend(pieces)
    return _finished(model, numbering)


class _Resolver:
    """Chooses the piece of each token: known | word | character | hidden | unused.

    Args:
        path: File of the SentencePiece model, for error messages.
        model: The SentencePiece model.
        is_word: See `arranged_tokenizers`.
        is_hidden: See `arranged_tokenizers`.
    """

    def __init__(
        self,
        path: Path,
        model: Any,
        is_word: Callable[[str], bool],
        is_hidden: Callable[[str], bool],
    ) -> None:
        self._path, self._model = path, model
        self._is_word, self._is_hidden = is_word, is_hidden
        self._known = {p.piece: p for p in model.pieces if p.type not in _SPECIAL}
        scores = (p.score for p in self._known.values() if p.type == _Piece.NORMAL)
        self._unknown_score = min(scores, default=0.0) - _UNKNOWN_PENALTY

    def resolve(self, token: str, in_vocabulary: bool) -> Any:
        """Return the piece of a token, by the first rule that applies.

        Raises:
            InputError: The model lacks the token, and should not.
        """
        return (
            self._known.get(token)
            or self._word(token)
            or self._character(token, in_vocabulary)
            or self._hidden(token)
            or self._unused(token, in_vocabulary)
        )

    def _word(self, token: str) -> Any:
        """Return a piece that wins over every segmentation: all other scores are negative."""
        return _Piece(piece=SPACE + token, score=0.0) if self._is_word(token) else None

    def _character(self, token: str, in_vocabulary: bool) -> Any:
        """Return a piece for an unknown character, which toolkits look up in the vocabulary."""
        if len(token) != 1:
            return None
        self._check_complete(token, in_vocabulary)
        return _Piece(piece=token, score=self._unknown_score)

    def _hidden(self, token: str) -> Any:
        """Return a control piece, which decoded text does not contain."""
        if not self._is_hidden(token):
            return None
        return _Piece(piece=token, score=0.0, type=_Piece.CONTROL)

    def _unused(self, token: str, in_vocabulary: bool) -> Any:
        """Return a piece that no text is segmented into."""
        self._check_complete(token, in_vocabulary)
        if self._model.trainer_spec.model_type == _Kind.BPE and in_vocabulary:
            raise InputError(
                f"{self._path} is a byte-pair encoding without {token!r}, which the vocabulary "
                "has; a piece more would change how it merges."
            )
        return _Piece(piece=token, score=0.0, type=_Piece.UNUSED)

    def _check_complete(self, token: str, in_vocabulary: bool) -> None:
        """Refuse a model with fewer pieces than were trained, one of which the vocabulary has.

        Pieces may be added after training, and removed if the vocabulary does without them.
        """
        pieces, trained = len(self._model.pieces), self._model.trainer_spec.vocab_size
        if in_vocabulary and pieces < trained and not self._is_hidden(token):
            raise InputError(
                f"{self._path} has {pieces} pieces of the {trained} that it was trained with, and "
                f"lacks the vocabulary's {token!r}: it is damaged. Copy it again."
            )


def read_pieces(path: Path) -> Any:
    """The message that a SentencePiece model's file holds.

    Raises:
        InputError: the file is missing, cut off, or no SentencePiece model.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; copy it to there.") from error
    try:
        model = _Model.FromString(content)
    except DecodeError as error:
        raise InputError(f"{path} is no SentencePiece model: {error}.") from error
    if not model.pieces:
        raise InputError(f"{path} is no SentencePiece model: it has no pieces.")
    # They stand behind the pieces, so that a file cut between two pieces lacks them.
    for part in ("trainer_spec", "normalizer_spec"):
        if not model.HasField(part):
            raise InputError(
                f"{path} has no {part} behind its {len(model.pieces)} pieces: it is cut off. Copy "
                "it again."
            )
    return model


def _special(place: int, name: str) -> Any:
    if place > END:
        return None
    return _Piece(
        piece=name, score=0.0, type=_Piece.UNKNOWN if place == UNKNOWN else _Piece.CONTROL
    )


def _finished(model: Any, numbering: Numbering) -> bytes:
    """The model as its file has it, with the special pieces where they are."""
    spec, names = model.trainer_spec, numbering.names
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNKNOWN, START, END
    spec.pad_piece, spec.unk_piece = names[PAD], names[UNKNOWN]
    spec.bos_piece, spec.eos_piece = names[START], names[END]
    spec.vocab_size = len(model.pieces)
    content: bytes = model.SerializeToString()
    return content
