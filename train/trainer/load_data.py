"""Training data for a run: from text files, or from a directory of `translate-trt data prepare`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from translate_trt.runtime.bundle.contract import forced_token
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.bundle.term_annotation import TermAnnotation
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import DecodingDefaults
from translate_trt.train.config import TOKENIZER, TOKENIZERS
from translate_trt.train.data.batches import ParallelData, encode_parallel, rows_of_weight
from translate_trt.train.data.text_sources import language_of, read_sides
from translate_trt.train.data.token_files import PreparedData
from translate_trt.train.data.vocabulary import sample_rows, train_tokenizer
from translate_trt.train.trainer.settings import Settings

_NEEDS_TREES = "compares trees; prepare the data with --trees, or choose another metric."

_NEEDS_ALIGNMENTS = (
    "--guided-alignment needs the alignments of the training text: prepare it with `translate-trt "
    "data prepare --alignment`, or treebanks with --trees, and name the directory with --data."
)

_NOTHING: Mapping[str, Any] = MappingProxyType({})

# A vocabulary is trained on at most this many sentences, sampled by the seed.
VOCABULARY_SENTENCES = 2_000_000
# Lines tokenized per call into SentencePiece: long enough to hide the cost of the call, and short
# enough (a fraction of a second) for Ctrl-C between two calls.
CHUNK_LINES = 10_000


@dataclass(frozen=True)
class TextPair:
    """A source file and its translation, line by line."""

    source: Path
    target: Path

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Language codes from the endings of the file names, None where an ending is no code."""
        return language_of(self.source), language_of(self.target)


class TextFiles(NamedTuple):
    """Training and validation text."""

    train: TextPair
    valid: TextPair


@dataclass(frozen=True)
class Validation:
    """Validation set.

    Attributes:
        data: Tokenized pairs, for the loss.
        source: Source lines, for BLEU.
        reference: Their translations.
    """

    data: ParallelData
    source: list[str]
    reference: list[str]


@dataclass(frozen=True)
class LoadedData:
    """Data of a run.

    Attributes:
        train: Training pairs.
        validation: Validation set.
        tokenizers: SentencePiece models of source and target; may be the same file.
        languages: Codes of source and target, where known.
        term_annotation: Annotation of prepared training text; None for plain text.
        has_trees: Whether the target is linearized trees of the source.
        prompt: Prompt that the text of prepared data has; empty for plain text.
    """

    train: ParallelData
    validation: Validation
    tokenizers: tuple[Path, Path]
    languages: tuple[str | None, str | None]
    term_annotation: TermAnnotation | None = None
    has_trees: bool = False
    prompt: Prompt = field(default_factory=Prompt)


def load_data(
    source: TextFiles | PreparedData,
    settings: Settings,
    scratch: Path,
    asked: Mapping[str, Any] = _NOTHING,
) -> LoadedData:
    """Read and tokenize text, or open prepared data.

    Args:
        source: Text files, or prepared data.
        settings: Settings of the run. If they name no tokenizers, those of the prepared data are
            taken, or a vocabulary is trained on the text.
        scratch: Directory for a new vocabulary.
        asked: Settings that the user named; sizes of vocabularies must be those of prepared data.

    Raises:
        InputError: Files of unequal line count, without usable text, or damaged.
        OptionError: The data was prepared for other settings.
    """
    if isinstance(source, PreparedData):
        _check_prepared(source, settings, asked)
        validation = Validation(source.split("valid"), *source.text("valid"))
        tokenizers = settings.tokenizers or source.tokenizers
        languages = (source.source_language, source.target_language)
        return LoadedData(
            source.split("train"), validation, tokenizers, languages, source.term_annotation,
            source.has_trees, source.prompt,
        )  # fmt: skip
    if settings.train.best_metric == "f1":
        raise OptionError(f"best_metric f1 {_NEEDS_TREES}")
    if settings.train.guided_alignment:
        raise OptionError(_NEEDS_ALIGNMENTS)
    if settings.train.corpus_weights or settings.train.corpus_temperature != 1:
        raise OptionError(
            "corpus_weights and corpus_temperature need --data, a directory of "
            "`translate-trt data prepare` with several corpora."
        )
    return _load_text(source, settings, scratch)


def _check_prepared(prepared: PreparedData, settings: Settings, asked: Mapping[str, Any]) -> None:
    """Raise an OptionError if a model with these settings cannot be trained on the data."""
    if settings.decoding.prompt not in (Prompt(), prepared.prompt):
        raise OptionError(
            f"{prepared.path} lacks the prompt tokens that this model reads before each text. Give "
            "the text itself, with --train and --valid."
        )
    for path, own in zip(settings.tokenizers or (), prepared.tokenizers, strict=False):
        if path.read_bytes() != own.read_bytes():
            raise OptionError(
                f"{prepared.path} was prepared with another vocabulary than the model's, which is "
                f"{path}. Give the text itself, with --train and --valid."
            )
    annotation, other = settings.decoding.term_annotation, prepared.term_annotation
    if annotation is not None and other not in (None, annotation):
        raise OptionError(
            f"the text of {prepared.path} has annotations in another form than the model reads; "
            f"prepare it again with --terminology-form {annotation.form}."
        )
    for name in ("vocabulary_size", "source_vocabulary_size"):
        size = getattr(prepared, name)
        if asked.get(name) not in (None, size):
            side = "source " if name.startswith("source") else ""
            raise OptionError(
                f"{prepared.path} was prepared with a {side}vocabulary of {size} tokens; leave out "
                f"--{name.replace('_', '-')}, or prepare the data with another."
            )
    if settings.train.best_metric == "f1" and not prepared.has_trees:
        raise OptionError(f"{prepared.path}: best_metric f1 {_NEEDS_TREES}")
    split, weights = prepared.splits["train"], settings.train.weights_of_corpora
    if settings.train.guided_alignment and "link_elements" not in split:
        raise OptionError(f"{prepared.path} has no alignments. {_NEEDS_ALIGNMENTS}")
    count = len(split["corpora"])
    if weights and len(weights) != count:
        raise OptionError(
            f"corpus_weights {settings.train.corpus_weights} has {len(weights)} weights, but "
            f"{prepared.path} was prepared from {count} corpora: give each --from or --trees one."
        )
    if weights and not sum(map(rows_of_weight, split["corpora"], weights)):
        raise OptionError(
            f"corpus_weights {settings.train.corpus_weights} leaves no pair in an epoch; raise a "
            "weight."
        )
    positions = settings.model.longest
    for_validation = _longest_of(prepared.splits["valid"])
    if positions is not None and for_validation > positions:
        raise OptionError(
            f"{prepared.path} has a validation pair of {for_validation} tokens, and the model "
            f"learns positions for {positions}: raise --max-positions, or prepare the data with "
            "shorter text for validation."
        )
    longest = _longest_of(split)
    limit = min(settings.train.max_length, positions or settings.train.max_length)
    if longest > limit:
        raise OptionError(
            f"{prepared.path} has pairs of up to {longest} tokens, more than --max-pair-length or "
            f"the model's positions allow; prepare it with --max-pair-length {limit}."
        )


def _longest_of(split: Mapping[str, Any]) -> int:
    """Return the length of the longest sentence of a split, on either side."""
    return int(max(split["longest_source"], split["longest_target"]))


def _load_text(files: TextFiles, settings: Settings, scratch: Path) -> LoadedData:
    source, target = read_sides(files.train.source, files.train.target)
    valid_source, valid_target = read_sides(files.valid.source, files.valid.target)
    if not source:
        raise InputError(f"{files.train.source} is empty; there is nothing to train on.")
    if not valid_source:
        raise InputError(f"{files.valid.source} is empty; validation needs at least one pair.")
    tokenizers = settings.tokenizers
    if tokenizers is None:
        tokenizers = _train_vocabularies(source, target, settings, scratch)
    tokenizer, longest = Tokenizer(*tokenizers), settings.model.longest
    limit = min(settings.train.max_length, longest or settings.train.max_length)
    decoding = settings.decoding
    data = _tokenize(tokenizer, decoding, files.train, source, target, limit)
    valid_data = _tokenize(tokenizer, decoding, files.valid, valid_source, valid_target, longest)
    validation = Validation(valid_data, valid_source, valid_target)
    return LoadedData(data, validation, tokenizers, files.train.languages)


def _train_vocabularies(
    source: Sequence[str], target: Sequence[str], settings: Settings, directory: Path
) -> tuple[Path, Path]:
    """Train a vocabulary shared by both sides, or one for each."""
    rows = sample_rows(len(source), VOCABULARY_SENTENCES, settings.train.seed)

    def train(name: str, wanted: int, *sides: Sequence[str]) -> Path:
        train_tokenizer((side[row] for side in sides for row in rows), wanted, directory / name)
        return directory / name

    size, source_size = settings.model.vocabulary_size, settings.model.source_vocabulary_size
    if source_size:
        return train(TOKENIZERS[0], source_size, source), train(TOKENIZERS[1], size, target)
    path = train(TOKENIZER, size, source, target)
    return path, path


def _tokenize(
    tokenizer: Tokenizer,
    decoding: DecodingDefaults,
    files: TextPair,
    source: Sequence[str],
    target: Sequence[str],
    max_length: int | None,
) -> ParallelData:
    """Tokenize lines and prepend the prompt, as `translate_reference` does.

    `ParallelData.batch` adds the other special tokens of a model.

    Raises:
        OptionError: A line lacks a target language.
    """
    prompt, greedy = decoding.prompt, decoding.greedy
    lines = [prompt.of_line(line, greedy) for line in source]
    sources = _encode(tokenizer.encode_source_batch, [line for line, _ in lines])
    targets = _encode(tokenizer.encode_target_batch, target)
    if prompt != Prompt():
        for row, (_, options) in enumerate(lines):
            prefix = [forced_token(token) for token in prompt.of_target(options)]
            if sources[row]:
                prompt.check_line(options, f"line {row + 1} of {files.source}")
            # Empty sentences stay empty: encode_parallel leaves them out.
            sources[row] = sources[row] and [*prompt.of_source(options), *sources[row]]
            targets[row] = targets[row] and [*prefix, *targets[row]]
    return encode_parallel(sources, targets, max_length)


def _encode(
    encode: Callable[[Sequence[str]], list[list[int]]], lines: Sequence[str]
) -> list[list[int]]:
    """Tokenize lines in chunks: Python handles no signal within a call into SentencePiece."""
    chunks = (lines[begin : begin + CHUNK_LINES] for begin in range(0, len(lines), CHUNK_LINES))
    return list(itertools.chain.from_iterable(map(encode, chunks)))
