"""Comparison of a bundle's translations with those of its checkpoint.

The reference is the PyTorch beam search (train/search.py). `thresholds.py` lists the acceptance
thresholds. The evidence is recorded in the manifest, and `translate-trt info` prints it.
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
from translate_trt.export.verify.cpu_emulation import (
    emulated_bundle,
    graphs_of,
    why_engine_cannot_run,
)
from translate_trt.export.verify.thresholds import SHORTLIST_THRESHOLDS, THRESHOLDS, Thresholds
from translate_trt.runtime.backends.packages import TORCH
from translate_trt.runtime.bundle.manifest import (
    Manifest,
    TargetEntry,
    locked_manifest,
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
from translate_trt.train.search import Ensemble, Model, beam_search

log = logging.getLogger("translate_trt")

#: A smaller test set causes a warning.
MIN_LINES = 100

TranslateIds: TypeAlias = Callable[[Sequence[Sequence[int]], SearchOptions], list[list[Hypothesis]]]
_NO_LANGUAGES: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Parity:
    """Evidence for one target; the fields are keys of the manifest.

    Attributes:
        sentences: Number of sentences.
        identical_percent: Share of sentences with the reference's tokens.
        largest_score_difference: Largest difference of best scores, over all sentences.
        bleu: BLEU of the target.
        reference_bleu: BLEU of the reference.
        bleu_difference: BLEU of the target minus that of the reference.
        bleu_difference_interval: 95 % paired bootstrap interval of the difference.
        signature: Signature of sacrebleu.
        sentences_per_second: Speed of the target, without tokenization.
        reference_sentences_per_second: Speed of the PyTorch beam search.
        beam_size: Beam size of both searches.
        length_penalty: Length penalty of both searches.
        gate: Acceptance thresholds as text.
        passed: Whether the target passed them.
        missed: The checks that it failed, with the measured values.
        score_error: Largest `score_error` of the identical sentences.
        tied_percent: Share of near ties: other tokens, but a score within the acceptance
            threshold of the reference's.
        engine_not_run: Why the target did not run on a GPU, but on the CPU (an engine in CPU
            emulation, a torch target in PyTorch); None if the target itself ran.
        source_sha256: SHA-256 of the source lines in UTF-8, each with a newline. For a plain text
            file, `sha256sum` prints the same value.
        reference_sha256: SHA-256 of the human translations.
        date: Date of the comparison in UTC, as 2026-01-31.
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
    missed: tuple[str, ...]
    score_error: float
    tied_percent: float
    engine_not_run: str | None = None
    source_sha256: str | None = None
    reference_sha256: str | None = None
    date: str | None = None


def is_weaker(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether new evidence is weaker than the evidence in the manifest.

    An engine counts more than its emulation, and then more sentences count more. Passing does not
    count: otherwise, failures could be hidden by trying test sets until one passes.
    """
    return _strength(new) < _strength(old)


def _strength(evidence: Mapping[str, Any]) -> tuple[bool, int]:
    sentences = evidence.get("sentences")  # untrusted: the manifest may have been edited
    count = sentences if isinstance(sentences, int) else 0
    return evidence.get("engine_not_run") is None and count > 0, count


@dataclass(frozen=True)
class _Output:
    """Translations of the test set by one system."""

    hypotheses: list[Hypothesis]  # best of each sentence
    texts: list[str]
    bleu: Score
    sentences_per_second: float


def warn_of_few_lines(count: int) -> None:
    """Warn of a test set with too few lines; for callers whose users choose the lines."""
    if count < MIN_LINES:
        log.warning(
            "a test set of %d lines is weak evidence; use at least %d lines", count, MIN_LINES
        )


def verify(
    bundle: Path,
    checkpoint: Checkpoint,
    source: Sequence[str],
    reference: Sequence[str],
    targets: Sequence[str] | None = None,
    threads: int | None = None,
    languages: Mapping[str, Any] = _NO_LANGUAGES,
    others: Sequence[Checkpoint] = (),
    record: bool = True,
) -> dict[str, Parity]:
    """Compare each target's translations with the checkpoint's, and record the evidence.

    Args:
        bundle: Directory of the bundle.
        checkpoint: Checkpoint that the bundle was exported from, or its ensemble's first member.
        source: Lines to translate.
        reference: Human translations of the lines.
        targets: Names of targets; None for all.
        threads: CPU threads of the targets. PyTorch's threads are not changed.
        languages: `source_language` and `target_language` of `SearchOptions`. Default: the
            bundle's languages.
        others: Further members of an ensemble, in the order of the export.
        record: Write the evidence to the manifest.

    Returns:
        The evidence per target. The manifest keeps stronger evidence that it already has.

    Raises:
        BundleError: The bundle is damaged, does not belong to the checkpoint, or was replaced
            during the comparison.
        InputError: There are no lines.
        OptionError: The model does not support a language, or requires one.
    """
    if not source:
        raise InputError("the test set is empty; verify needs at least one line.")
    manifest = read_manifest(bundle)
    model = load_origin(bundle, manifest, [checkpoint, *others])
    entries = [manifest.target(name) for name in (manifest.targets if targets is None else targets)]
    for entry in entries:  # before translating, which may take hours
        verify_files(bundle, manifest, entry.name)
        if why_engine_cannot_run(entry, bundle) is not None:
            graphs_of(entry)  # which run instead
    chosen = replace(manifest.search_options(), **languages)
    manifest.check_languages(chosen)
    test_set = _TestSet.of(bundle, manifest, source, reference, chosen)
    references: dict[SearchOptions, _Output] = {}
    found = {}
    for entry in entries:
        options = replace(_options(manifest, entry), **languages)
        if options not in references:
            references[options] = test_set.translate(
                "PyTorch", _reference_search(model, manifest.prompt), options
            )
        reason = why_engine_cannot_run(entry, bundle)
        translator = open_target(bundle, manifest, entry, reason, threads)
        output = test_set.translate(entry.name, translator.translate_ids, options)
        evidence = compare(
            references[options], output, reference, options, thresholds_of(entry)
        )  # fmt: skip
        found[entry.name] = replace(
            evidence,
            engine_not_run=reason,
            source_sha256=_hash_lines(source),
            reference_sha256=_hash_lines(reference),
            date=datetime.now(UTC).date().isoformat(),
        )
    if record:
        with locked_manifest(bundle):
            _record(bundle, entries, found)
    return found


def thresholds_of(target: TargetEntry) -> Thresholds:
    """Return the acceptance thresholds of a target."""
    if target.contract.shortlist is not None:
        return SHORTLIST_THRESHOLDS
    return THRESHOLDS[target.precision]


def _record(bundle: Path, verified: Sequence[TargetEntry], found: Mapping[str, Parity]) -> None:
    """Write evidence to the manifest, which may have changed since `verified` was read.

    Raises:
        BundleError: A target's files are no longer those that were verified.
    """
    manifest = read_manifest(bundle)
    for before in verified:
        entry, evidence = manifest.targets.get(before.name), asdict(found[before.name])
        if entry is None or entry.files != before.files:
            raise BundleError(
                f"{bundle} was replaced while {before.name} was verified, so the result does not "
                "apply to it; run verify again."
            )
        if entry.parity is not None and is_weaker(evidence, entry.parity):
            log.warning(
                "%s: the manifest keeps its evidence (%s), which is stronger than this (%s)",
                entry.name, _extent(entry.parity), _extent(evidence),
            )  # fmt: skip
            continue
        verified_entry = replace(entry, parity=evidence)
        manifest = replace(manifest, targets={**manifest.targets, entry.name: verified_entry})
    write_manifest(bundle, manifest)


def _extent(evidence: Mapping[str, Any]) -> str:
    """Describe evidence by its sentences, its device if that is the wrong one, and its date."""
    emulated = "" if evidence.get("engine_not_run") is None else " on a CPU"
    date = evidence.get("date")
    return f"{evidence.get('sentences')} sentences{emulated}{f', {date}' if date else ''}"


def _hash_lines(lines: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _reference_search(model: Model, prompt: Prompt) -> TranslateIds:
    """Return the PyTorch beam search with the signature of `Translator.translate_ids`."""

    def translate_ids(
        texts: Sequence[Sequence[int]], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        before, begin = prompt.of_source(options), prompt.of_target(options)
        sources = [[*before, *text] if text else [] for text in texts]
        return beam_search(model, sources, options, [begin] * len(sources))

    return translate_ids


def load_origin(
    bundle: Path, manifest: Manifest, checkpoints: Sequence[Checkpoint]
) -> Transformer | Ensemble:
    """Load the model or ensemble that a bundle was exported from.

    Raises:
        BundleError: The bundle was not exported from the checkpoints.
        CheckpointError: A checkpoint is damaged.
    """
    recorded = [(manifest.model, manifest.weights_sha256)]
    if manifest.members:
        recorded = [(one.model, one.weights_sha256) for one in manifest.members]
    if len(checkpoints) != len(recorded):
        what = f"an ensemble of {len(recorded)} models" if manifest.members else "a single model"
        raise BundleError(
            f"{bundle} has {what}, and {len(checkpoints)} checkpoints are given. Pass each "
            "checkpoint that the bundle was exported from, in the same order."
        )
    models = [checkpoint.load_model() for checkpoint in checkpoints]
    for checkpoint, model, (description, weights) in zip(
        checkpoints, models, recorded, strict=True
    ):
        _check_origin(bundle, manifest, checkpoint, description == describe(model), weights)
    return Ensemble(models) if manifest.members else models[0]


def _check_origin(
    bundle: Path, manifest: Manifest, checkpoint: Checkpoint, fits: bool, weights: str
) -> None:
    """Raise a BundleError if the bundle was not exported from the checkpoint.

    Args:
        bundle: Directory of the bundle.
        manifest: Manifest of the bundle.
        checkpoint: The checkpoint.
        fits: Whether its model has the shape that the manifest records.
        weights: SHA-256 of the weights that the manifest records.
    """
    pairs = zip(("source", "target"), checkpoint.tokenizers, strict=True)
    if not fits:
        difference = "the models differ in shape"
    elif any(manifest.tokenizer[side].sha256 != sha256_of_file(path)[0] for side, path in pairs):
        difference = "the tokenizers differ"
    elif weights != checkpoint.weights_sha256:
        difference = "the weights differ"
    else:
        return
    order = "; members of an ensemble have the order of the export" if manifest.members else ""
    raise BundleError(
        f"{bundle} was not exported from this checkpoint, {checkpoint.path}: {difference}{order}. "
        "Pass the checkpoint that the bundle was exported from, or export this one."
    )


def open_target(
    bundle: Path,
    manifest: Manifest,
    entry: TargetEntry,
    engine_not_run: str | None,
    threads: int | None,
) -> Translator:
    """Open a translator for a target, or for its CPU emulation if the engine cannot run.

    PyTorch runs a torch target on a CPU itself.
    """
    if engine_not_run is None:
        return Translator(bundle, entry.name, threads=threads)
    if entry.backend == TORCH:
        log.info("%s: running on the CPU: %s", entry.name, engine_not_run)
        return Translator(bundle, entry.name, threads=threads, device="cpu")
    log.info("%s: emulating the engine on the CPU: %s", entry.name, engine_not_run)
    with emulated_bundle(bundle, manifest, entry) as directory:
        return Translator(directory, threads=threads)


def _options(manifest: Manifest, entry: TargetEntry) -> SearchOptions:
    """Return the manifest's search options, with the beam size of the engine."""
    options, beams = manifest.search_options(), entry.contract.beams
    if beams is None or beams == options.beam_size:
        return options
    return replace(options, beam_size=beams, num_hypotheses=1)


@dataclass(frozen=True)
class _TestSet:
    """Tokenized source lines, the target language of each, and their human translations."""

    sources: list[list[int]]  # without the prompt
    languages: list[str | None]
    reference: Sequence[str]
    tokenizer: Tokenizer

    @classmethod
    def of(
        cls, bundle: Path, manifest: Manifest, source: Sequence[str], reference: Sequence[str],
        options: SearchOptions,
    ) -> _TestSet:  # fmt: skip
        """Tokenize the lines, and truncate those that are too long for the bundle.

        Raises:
            OptionError: Neither a line nor the options name a target language that is needed, or
                the model does not know that of a line.
        """
        sides = manifest.tokenizer
        tokenizer = Tokenizer(sides["source"].locate(bundle), sides["target"].locate(bundle))
        limit = manifest.limits.max_source_length - 1 - manifest.prompt.source_length
        lines = [manifest.prompt.of_line(line, options) for line in source]
        sources = tokenizer.encode_source_batch([text for text, _ in lines])
        for line, tokens, (_, own) in zip(source, sources, lines, strict=True):
            if tokens:
                manifest.prompt.check_line(own, f"the line {line!r:.60}")
        languages = [own.target_language for _, own in lines]
        return cls([tokens[:limit] for tokens in sources], languages, reference, tokenizer)

    def translate(
        self,
        name: str,
        search: TranslateIds,
        options: SearchOptions,
    ) -> _Output:
        """Translate the lines and measure the speed."""
        log.info("translating %d lines with %s", len(self.sources), name)
        begin = time.perf_counter()
        results: list[list[Hypothesis]] = [[] for _ in self.sources]
        for language in dict.fromkeys(self.languages):
            rows = [row for row, own in enumerate(self.languages) if own == language]
            of_language = replace(options, target_language=language)
            found = search([self.sources[row] for row in rows], of_language)
            for row, hypotheses in zip(rows, found, strict=True):
                results[row] = hypotheses
        seconds = time.perf_counter() - begin
        best = [hypotheses[0] for hypotheses in results]
        texts = self.tokenizer.decode_batch([hypothesis.tokens for hypothesis in best])
        return _Output(best, texts, bleu(texts, self.reference), len(self.sources) / seconds)


def compare(
    expected: _Output,
    output: _Output,
    reference: Sequence[str],
    options: SearchOptions,
    thresholds: Thresholds,
) -> Parity:
    """Compare a target's output with the expected output of the PyTorch beam search."""
    pairs = list(zip(expected.hypotheses, output.hypotheses, strict=True))
    same = [(a, b) for a, b in pairs if a.tokens == b.tokens]
    identical = 100 * len(same) / len(pairs)
    error = max((score_error(a.score, b.score) for a, b in same), default=0.0)
    limit = thresholds.score_error
    # Other tokens, because scores are equal up to rounding.
    ties = 0
    if limit is not None:
        different = ((a, b) for a, b in pairs if a.tokens != b.tokens)
        ties = sum(score_error(a.score, b.score) <= limit for a, b in different)
    tied = 100 * ties / len(pairs)
    (difference,) = paired_bootstrap([expected.texts, output.texts], reference)
    missed = thresholds.missed(identical + tied, error, difference.value, expected.bleu.score)
    return Parity(
        sentences=len(pairs),
        identical_percent=identical,
        largest_score_difference=max(abs(a.score - b.score) for a, b in pairs),
        bleu=output.bleu.score,
        reference_bleu=expected.bleu.score,
        bleu_difference=difference.value,
        bleu_difference_interval=difference.interval,
        signature=output.bleu.signature,
        sentences_per_second=output.sentences_per_second,
        reference_sentences_per_second=expected.sentences_per_second,
        beam_size=options.beam_size,
        length_penalty=options.length_penalty,
        gate=str(thresholds),
        passed=not missed,
        missed=missed,
        score_error=error,
        tied_percent=tied,
    )


def score_error(expected: float, found: float) -> float:
    """Return the difference of two scores, relative to scores beyond 1.

    Without a length penalty, scores and their errors are sums over the sentence.
    """
    return abs(expected - found) / max(1.0, abs(expected))
