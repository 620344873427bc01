"""Proof that a bundle translates like its checkpoint: the same text through both, compared.

The yardstick is the PyTorch beam search (train/search.py). A target's gate stands in `GATES`; the
evidence goes into the manifest, where `translate-trt info` shows it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from translate_trt.export.compile import describe
from translate_trt.runtime.bundle import read_manifest, write_manifest
from translate_trt.runtime.cli.output import columns
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.scoring import Score, bleu, paired_bootstrap
from translate_trt.train.search import beam_search

log = logging.getLogger("translate_trt")


@dataclass(frozen=True)
class Gate:
    """What a target must reach. None: not asked of it.

    Attributes:
        identical_percent: sentences with the yardstick's very tokens, at least.
        bleu_loss: BLEU below the yardstick's, at most.
    """

    identical_percent: float | None = None
    bleu_loss: float | None = None

    def __str__(self) -> str:
        if self.identical_percent is not None:
            return f"at least {self.identical_percent} % identical"
        return f"BLEU at most {self.bleu_loss} lower"

    def passes(self, identical_percent: float, bleu_difference: float) -> bool:
        """Whether these numbers reach it."""
        if self.identical_percent is not None and identical_percent < self.identical_percent:
            return False
        return self.bleu_loss is None or bleu_difference >= -self.bleu_loss


#: By precision.
GATES = {"fp32": Gate(identical_percent=99.9), "int8": Gate(bleu_loss=0.3)}


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
) -> dict[str, Parity]:
    """Translate with the checkpoint and with each target, compare, and record it in the manifest.

    Args:
        bundle: directory of the bundle.
        checkpoint: what it was compiled from.
        source: lines to translate.
        reference: their translations by people.
        targets: None takes all.
        threads: for the targets; PyTorch's are the caller's.

    Returns:
        The evidence per target.

    Raises:
        BundleError: the bundle is damaged, or not of this checkpoint.
        InputError: no lines.
    """
    if not source:
        raise InputError("the test set is empty; verify needs at least one line.")
    manifest = read_manifest(bundle)
    model = checkpoint.load_model()
    if manifest.model != describe(model):
        raise BundleError(
            f"{bundle} was not compiled from {checkpoint.path}: the models differ in shape. "
            "Give the checkpoint that the bundle was exported from."
        )
    names = list(manifest.targets) if targets is None else list(targets)
    translators = {name: Translator(bundle, name, threads=threads) for name in names}
    options = manifest.search_options()
    tokenizer = translators[names[0]].tokenizer
    limit = manifest.limits.max_source_length - 1
    sources = [tokens[:limit] for tokens in tokenizer.encode_source_batch(source)]

    def measure(name: str, translate: Any) -> _Output:
        log.info("translating %d lines with %s", len(sources), name)
        begin = time.perf_counter()
        results: list[list[Hypothesis]] = translate()
        seconds = time.perf_counter() - begin
        best = [hypotheses[0] for hypotheses in results]
        texts = tokenizer.decode_batch([hypothesis.tokens for hypothesis in best])
        return _Output(best, texts, bleu(texts, reference), len(sources) / seconds)

    yardstick = measure("PyTorch", lambda: beam_search(model, sources, options))
    found = {}
    for name, translator in translators.items():
        output = measure(name, lambda: translator.translate_ids(sources, options))  # noqa: B023
        gate = GATES[translator.target.precision]
        found[name] = compare(yardstick, output, reference, options, gate)
        entry = replace(manifest.targets[name], parity=asdict(found[name]))
        manifest = replace(manifest, targets={**manifest.targets, name: entry})
    write_manifest(bundle, manifest)
    return found


def compare(
    yardstick: _Output,
    output: _Output,
    reference: Sequence[str],
    options: SearchOptions,
    gate: Gate,
) -> Parity:
    """The evidence from two systems' output on one test set."""
    pairs = list(zip(yardstick.hypotheses, output.hypotheses, strict=True))
    identical = 100 * sum(a.tokens == b.tokens for a, b in pairs) / len(pairs)
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
        gate=str(gate),
        passed=gate.passes(identical, difference.bleu),
    )


def table(found: dict[str, Parity]) -> str:
    """The evidence as text, one line per target, the yardstick first."""
    first = next(iter(found.values()))
    header = (
        "target",
        "identical",
        "max score diff",
        "BLEU",
        "difference (95 %)",
        "sentences/s",
        "gate",
    )
    rows = [header]
    rows.append(
        ("PyTorch", "", "", f"{first.reference_bleu:.2f}", "",
         f"{first.reference_sentences_per_second:.1f}", "")
    )  # fmt: skip
    for name, parity in found.items():
        low, high = parity.bleu_difference_interval
        rows.append(
            (
                name,
                f"{parity.identical_percent:.2f} %",
                f"{parity.largest_score_difference:.2e}",
                f"{parity.bleu:.2f}",
                f"{parity.bleu_difference:+.2f} [{low:+.2f}, {high:+.2f}]",
                f"{parity.sentences_per_second:.1f}",
                f"{'passed' if parity.passed else 'FAILED'}: {parity.gate}",
            )
        )
    lines = columns(rows)
    lines.append(f"{first.sentences} sentences, beam {first.beam_size}, BLEU {first.signature}")
    return "\n".join(lines)
