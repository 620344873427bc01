"""Proof that a bundle translates like its checkpoint: the same text through both, compared.

The yardstick is the PyTorch beam search (train/search.py). A target's gate stands in `GATES`; the
evidence goes into the manifest, where `translate-trt info` shows it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from translate_trt.export.compile import describe
from translate_trt.export.verify.cpu_emulation import stand_in, why_engine_cannot_run
from translate_trt.export.verify.thresholds import SHORTLIST_THRESHOLDS, THRESHOLDS, Thresholds
from translate_trt.runtime.bundle.manifest import (
    Manifest,
    TargetEntry,
    changing,
    read_manifest,
    verify_files,
    write_manifest,
)
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.evaluation.scoring import Score, bleu, paired_bootstrap
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

log = logging.getLogger("translate_trt")

#: A test set of fewer lines gets a warning.
FEWEST_LINES = 100

TranslateIds: TypeAlias = Callable[[Sequence[Sequence[int]], SearchOptions], list[list[Hypothesis]]]
_NO_LANGUAGES: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Parity:
    """The evidence for one target.

    Attributes:
        sentences: how many were translated.
        identical_percent: of them with the yardstick's very tokens.
        largest_score_difference: between the best hypotheses' scores, over all sentences.
        bleu: of the target.
        reference_bleu: of the yardstick.
        bleu_difference: target minus yardstick.
        bleu_difference_interval: 95 % paired bootstrap interval of it.
        signature: sacrebleu's.
        sentences_per_second: of the target, tokenization excluded.
        reference_sentences_per_second: of the PyTorch beam search.
        beam_size: of both searches.
        length_penalty: of both.
        gate: what was asked.
        passed: whether it was reached.
        engine_not_run: why the target's engine was not run, but in its place the graph that it is
            built from, in ONNX Runtime on the CPU; None: the target itself ran.
        score_error: largest `score_error` over the identical sentences.
        source_sha256: of the source lines, each with a newline, in UTF-8; of a plain text file it
            is what sha256sum prints.
        reference_sha256: the same of their translations by people.
        date: of the comparison, as 2026-01-31, in UTC.
    """

    sentences: int
    identical_percent: float
    largest_score_difference: float
    bleu: float
    reference_bleu: float
    bleu_difference: float
    bleu_difference_interval: tuple[float, float]
    signature: str
    sentences_per_second: float
    reference_sentences_per_second: float
    beam_size: int
    length_penalty: float
    gate: str
    passed: bool
    engine_not_run: str | None = None
    score_error: float | None = None
    source_sha256: str | None = None
    reference_sha256: str | None = None
    date: str | None = None


def is_weaker(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether evidence of a target proves less than what the manifest holds of it.

    The engine itself proves more than its graph; after that, more sentences prove more. Whether the
    gate was passed does not count: else one could try test sets until one passes.
    """
    return _strength(new) < _strength(old)


def _strength(evidence: Mapping[str, Any]) -> tuple[bool, int]:
    sentences = evidence.get("sentences")  # a manifest by other hands may hold anything
    count = sentences if isinstance(sentences, int) else 0
    return evidence.get("engine_not_run") is None and count > 0, count


@dataclass(frozen=True)
class _Output:
    """What one system made of the test set."""

    hypotheses: list[Hypothesis]  # best of each sentence
    texts: list[str]
    bleu: Score
    sentences_per_second: float


def verify(
    bundle: Path,
    checkpoint: Checkpoint,
    source: Sequence[str],
    reference: Sequence[str],
    targets: Sequence[str] | None = None,
    threads: int | None = None,
    languages: Mapping[str, Any] = _NO_LANGUAGES,
) -> dict[str, Parity]:
    """Translate with the checkpoint and with each target, compare, and record it in the manifest.

    Args:
        bundle: directory of the bundle.
        checkpoint: what it was compiled from.
        source: lines to translate.
        reference: their translations by people.
        targets: None takes all.
        threads: for the targets; PyTorch's are the caller's.
        languages: `source_language` and `target_language` of `SearchOptions`, for a model of
            several; the bundle's defaults stand for what is left out.

    Returns:
        The evidence per target, of which the manifest keeps what is not weaker than what it holds.

    Raises:
        BundleError: the bundle is damaged, or not of this checkpoint, or was replaced meanwhile.
        InputError: no lines.
        OptionError: the model does not know a language, or has to be told one.
    """
    if not source:
        raise InputError("the test set is empty; verify needs at least one line.")
    if len(source) < FEWEST_LINES:
        log.warning(
            "%d lines prove little; give verify a test set of at least %d",
            len(source),
            FEWEST_LINES,
        )
    manifest = read_manifest(bundle)
    model = checkpoint.load_model()
    check_origin(bundle, manifest, checkpoint, model)
    entries = [manifest.target(name) for name in (manifest.targets if targets is None else targets)]
    for entry in entries:  # before hours of translating
        verify_files(bundle, manifest, entry.name)
    manifest.check_languages(replace(manifest.search_options(), **languages))
    test_set = _TestSet.of(bundle, manifest, source, reference)
    yardsticks: dict[SearchOptions, _Output] = {}
    found = {}
    for entry in entries:
        options = replace(_options(manifest, entry), **languages)
        if options not in yardsticks:
            yardsticks[options] = test_set.translate(
                "PyTorch", _yardstick(model, manifest.prompt), options
            )
        reason = why_engine_cannot_run(entry, bundle)
        translator = open_target(bundle, manifest, entry, reason, threads)
        output = test_set.translate(entry.name, translator.translate_ids, options)
        thresholds = THRESHOLDS[entry.precision]
        if entry.contract.shortlist is not None:
            thresholds = SHORTLIST_THRESHOLDS
        evidence = compare(yardsticks[options], output, reference, options, thresholds)
        found[entry.name] = replace(
            evidence,
            engine_not_run=reason,
            source_sha256=_hash_lines(source),
            reference_sha256=_hash_lines(reference),
            date=datetime.now(UTC).date().isoformat(),
        )
    with changing(bundle):
        _record(bundle, entries, found)
    return found


def _record(bundle: Path, verified: Sequence[TargetEntry], found: Mapping[str, Parity]) -> None:
    """Write evidence into the manifest, which may have changed since `verified` was read from it.

    Raises:
        BundleError: a target's files are not those that were verified.
    """
    manifest = read_manifest(bundle)
    for before in verified:
        entry, evidence = manifest.targets.get(before.name), asdict(found[before.name])
        if entry is None or entry.files != before.files:
            raise BundleError(
                f"{bundle} was replaced while {before.name} was verified, so that the result says "
                "nothing of it; run verify again."
            )
        if entry.parity is not None and is_weaker(evidence, entry.parity):
            log.warning(
                "%s: the manifest keeps its evidence (%s), which is stronger than this (%s)",
                entry.name, _extent(entry.parity), _extent(evidence),
            )  # fmt: skip
            continue
        proven = replace(entry, parity=evidence)
        manifest = replace(manifest, targets={**manifest.targets, entry.name: proven})
    write_manifest(bundle, manifest)


def _extent(evidence: Mapping[str, Any]) -> str:
    """Describe the extent of evidence: sentences, engine or graph, date."""
    of = "" if evidence.get("engine_not_run") is None else " of its graph"
    date = evidence.get("date")
    return f"{evidence.get('sentences')} sentences{of}{f', {date}' if date else ''}"


def _hash_lines(lines: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _yardstick(model: Transformer, prompt: Prompt) -> TranslateIds:
    """The PyTorch beam search of texts, as `Translator.translate_ids` takes them."""

    def translate_ids(
        texts: Sequence[Sequence[int]], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        before, begin = prompt.of_source(options), prompt.of_target(options)
        sources = [[*before, *text] if text else [] for text in texts]
        return beam_search(model, sources, options, [begin] * len(sources))

    return translate_ids


def check_origin(
    bundle: Path, manifest: Manifest, checkpoint: Checkpoint, model: Transformer
) -> None:
    """Raise a BundleError if the bundle was not exported from that checkpoint.

    Of a bundle that does not say which weights it was exported from, shape and tokenizers are
    compared, with a warning.
    """
    pairs = zip(("source", "target"), checkpoint.tokenizers, strict=True)
    if manifest.model != describe(model):
        difference = "the models differ in shape"
    elif any(manifest.tokenizer[side].sha256 != _sha256(path) for side, path in pairs):
        difference = "the tokenizers differ"
    elif manifest.weights_sha256 is None:
        log.warning(
            "%s does not say which weights it was exported from (an older version made it): that "
            "%s holds them was not checked; export it again",
            bundle, checkpoint.path,
        )  # fmt: skip
        return
    elif manifest.weights_sha256 != checkpoint.weights_sha256:
        difference = "the weights differ"
    else:
        return
    raise BundleError(
        f"{bundle} was not exported from this checkpoint, {checkpoint.path}: {difference}. "
        "Give the checkpoint that the bundle was exported from, or export this one."
    )


def _sha256(path: Path) -> str:
    return sha256_of_file(path)[0]


def open_target(
    bundle: Path,
    manifest: Manifest,
    entry: TargetEntry,
    engine_not_run: str | None,
    threads: int | None,
) -> Translator:
    """A translator for a target or, if there is a reason for that, for what stands in for it."""
    if engine_not_run is None:
        return Translator(bundle, entry.name, threads=threads)
    log.info("%s: the graph stands in for the engine: %s", entry.name, engine_not_run)
    with stand_in(bundle, manifest, entry) as directory:
        return Translator(directory, threads=threads)


def _options(manifest: Manifest, entry: TargetEntry) -> SearchOptions:
    """The manifest's, with the number of beams that an engine was made for."""
    options, beams = manifest.search_options(), entry.contract.beams
    if beams is None or beams == options.beam_size:
        return options
    return replace(options, beam_size=beams, num_hypotheses=1)


@dataclass(frozen=True)
class _TestSet:
    """Lines to translate, as tokens, and their translations by people."""

    sources: list[list[int]]  # of texts alone
    reference: Sequence[str]
    tokenizer: Tokenizer

    @classmethod
    def of(
        cls, bundle: Path, manifest: Manifest, source: Sequence[str], reference: Sequence[str]
    ) -> _TestSet:
        """Tokenize; a line that is too long for the bundle is cut off."""
        sides = manifest.tokenizer
        tokenizer = Tokenizer(sides["source"].locate(bundle), sides["target"].locate(bundle))
        limit = manifest.limits.max_source_length - 1 - manifest.prompt.source_length
        sources = [tokens[:limit] for tokens in tokenizer.encode_source_batch(source)]
        return cls(sources, reference, tokenizer)

    def translate(
        self,
        name: str,
        search: TranslateIds,
        options: SearchOptions,
    ) -> _Output:
        """What a system makes of it, and how fast."""
        log.info("translating %d lines with %s", len(self.sources), name)
        begin = time.perf_counter()
        results = search(self.sources, options)
        seconds = time.perf_counter() - begin
        best = [hypotheses[0] for hypotheses in results]
        texts = self.tokenizer.decode_batch([hypothesis.tokens for hypothesis in best])
        return _Output(best, texts, bleu(texts, self.reference), len(self.sources) / seconds)


def compare(
    yardstick: _Output,
    output: _Output,
    reference: Sequence[str],
    options: SearchOptions,
    thresholds: Thresholds,
) -> Parity:
    """The evidence from two systems' output on one test set."""
    pairs = list(zip(yardstick.hypotheses, output.hypotheses, strict=True))
    same = [(a, b) for a, b in pairs if a.tokens == b.tokens]
    identical = 100 * len(same) / len(pairs)
    error = max((score_error(a.score, b.score) for a, b in same), default=0.0)
    (difference,) = paired_bootstrap([yardstick.texts, output.texts], reference)
    return Parity(
        sentences=len(pairs),
        identical_percent=identical,
        largest_score_difference=max(abs(a.score - b.score) for a, b in pairs),
        bleu=output.bleu.score,
        reference_bleu=yardstick.bleu.score,
        bleu_difference=difference.bleu,
        bleu_difference_interval=difference.interval,
        signature=output.bleu.signature,
        sentences_per_second=output.sentences_per_second,
        reference_sentences_per_second=yardstick.sentences_per_second,
        beam_size=options.beam_size,
        length_penalty=options.length_penalty,
        gate=str(thresholds),
        passed=thresholds.accept(identical, error, difference.bleu),
        score_error=error,
    )


def score_error(expected: float, found: float) -> float:
    """The difference of two scores, relative to those beyond 1.

    Without a length penalty scores are sums over the sentence, and so are their errors.
    """
    return abs(expected - found) / max(1.0, abs(expected))
