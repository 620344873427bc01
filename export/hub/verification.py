"""Verification of an installed model on the sentences of samples/.

samples/ has the same two dozen sentences in several languages, line by line. If it has both
languages of a model, the targets must not be significantly below PyTorch in BLEU. Otherwise the
sentences of one language are translated, and the share of translations that have PyTorch's tokens
must not be small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from translate_trt.export.hub.sample_languages import SAMPLES, language_options, sample, sampled
from translate_trt.export.verify.parity import thresholds_of, verify
from translate_trt.export.verify.thresholds import LEAST_AGREEMENT_PERCENT, LEAST_BLEU
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.train.checkpoint import Checkpoint


def verify_sample(
    bundle: Path, checkpoint: Checkpoint, threads: int | None = None
) -> dict[str, Any]:
    """Compare all targets of a bundle with the checkpoint, on the samples of its languages.

    Evidence with references is recorded in the bundle's manifest, like that of `verify`.

    Returns:
        Evidence per target, as JSON values.

    Raises:
        TranslateTrtError: A target's translations are not those of the model.
    """
    manifest = read_manifest(bundle)
    languages = language_options(manifest)
    source = sampled(languages.get("source_language", manifest.source_language))
    target = sampled(languages.get("target_language", manifest.target_language))
    lines = sample(source or SAMPLES[0])
    known = source is not None and target is not None
    references = sample(target) if target is not None and known else lines
    found = verify(
        bundle, checkpoint, lines, references, None, threads, languages, record=known
    )  # fmt: skip
    evidence = {}
    for name, parity in found.items():
        kind = "references" if known else "agreement"
        values = asdict(parity)
        if not known:  # scores against lines that are no references mean nothing
            values = {key: value for key, value in values.items() if "bleu" not in key}
            for key in ("gate", "missed", "signature", "reference_sha256"):
                del values[key]
        loss = thresholds_of(manifest.target(name)).bleu_loss
        agreement = parity.identical_percent + parity.tied_percent
        passed = agreement >= LEAST_AGREEMENT_PERCENT
        if known:  # a loss of BLEU that the sample does not tell from a pass is accepted
            passed = parity.passed or (
                loss is not None
                and parity.reference_bleu >= LEAST_BLEU
                and parity.bleu_difference_interval[1] >= -loss
            )
        evidence[name] = {**values, "kind": kind, "passed": passed, **languages}
        if not passed:
            raise TranslateTrtError(
                f"{name} does not translate as the model does: {describe(evidence[name])}. Report "
                "this model; --no-verify installs it without the comparison."
            )
    return evidence


def describe(evidence: Mapping[str, Any]) -> str:
    """Describe the evidence for a target in a line."""
    text = (
        f"{evidence['identical_percent']:.0f} % of {evidence['sentences']} sentences have the "
        "tokens of PyTorch"
    )
    if evidence["kind"] == "references":
        low, high = evidence["bleu_difference_interval"]
        text += (
            f", BLEU {evidence['bleu']:.1f} against {evidence['reference_bleu']:.1f} "
            f"({low:+.1f} to {high:+.1f})"
        )
    return text
