"""Samples, the languages in which a model is tried, and what passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from translate_trt.export.hub import verification
from translate_trt.export.hub.sample_languages import SAMPLES, language_options, sample
from translate_trt.export.hub.verification import describe, verify_sample
from translate_trt.export.verify.parity import Parity
from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import TranslateTrtError

PARITY = Parity(
    sentences=24, identical_percent=50.0, largest_score_difference=0.1, bleu=29.0,
    reference_bleu=30.0, bleu_difference=-1.0, bleu_difference_interval=(-2.0, -0.5), signature="",
    sentences_per_second=1.0, reference_sentences_per_second=1.0, beam_size=4, length_penalty=1.0,
    gate="", passed=False, missed=(), score_error=0.0, tied_percent=0.0,
)  # fmt: skip


def test_samples_are_parallel() -> None:
    texts = [sample(language) for language in SAMPLES]
    assert {len(lines) for lines in texts} == {24}
    assert all(line == line.strip() and line for lines in texts for line in lines)
    assert len({line for lines in texts for line in lines}) == 24 * len(SAMPLES)


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        ((), (), {}),
        ((), ("fra", "deu"), {"target_language": "deu"}),
        (("deu_Latn", "eng_Latn", "fin_Latn"), ("deu_Latn", "eng_Latn", "fin_Latn"),
         {"source_language": "eng_Latn", "target_language": "deu_Latn"}),
        (("fi", "sv"), ("fi", "sv"), {"source_language": "fi", "target_language": "fi"}),
    ],
)  # fmt: skip
def test_language_options(
    source: tuple[str, ...], target: tuple[str, ...], options: dict[str, str],
    make_bundle: Callable[..., Path],
) -> None:  # fmt: skip
    sides = [{code: 100 + index for index, code in enumerate(codes)} for codes in (source, target)]
    prompt = Prompt(source_languages=sides[0], target_languages=sides[1])
    manifest = replace(read_manifest(make_bundle()), prompt=prompt, source_language=None)
    assert language_options(manifest) == options


@pytest.mark.parametrize(
    ("languages", "parity", "passes"),
    [
        (("en", "de"), {}, False),
        (("en", "de"), {"bleu_difference_interval": (-2.0, -0.2)}, True),
        (("en", "de"), {"passed": True}, True),
        (("en", "de"), {"reference_bleu": 0.0, "bleu_difference_interval": (0.0, 0.0)}, False),
        (("en", "fi"), {}, True),
        (("en", "fi"), {"identical_percent": 12.5}, False),
        ((None, None), {"identical_percent": 12.5, "tied_percent": 12.5}, True),
    ],
)
def test_what_passes(
    languages: tuple[str | None, str | None], parity: dict[str, Any], passes: bool,
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    bundle = make_bundle(targets=("onnx-int8",))
    manifest = replace(
        read_manifest(bundle), source_language=languages[0], target_language=languages[1]
    )
    write_manifest(bundle, manifest)
    asked = {}

    def verify(*arguments: Any, record: bool) -> dict[str, Parity]:
        asked.update(lines=arguments[2], references=arguments[3], record=record)
        return {"onnx-int8": replace(PARITY, **parity)}

    monkeypatch.setattr(verification, "verify", verify)
    if not passes:
        with pytest.raises(TranslateTrtError, match=r"onnx-int8.*--no-ver"):
            verify_sample(bundle, None)  # type: ignore[arg-type]
        return
    [evidence] = verify_sample(bundle, None).values()  # type: ignore[arg-type]
    known = languages == ("en", "de")
    assert asked["record"] is known
    assert asked["lines"] == sample("en")
    assert asked["references"] == sample("de" if known else "en")
    assert ("bleu" in evidence, "BLEU" in describe(evidence)) == (known, known)


def test_targets_that_bleu_does_not_judge(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(targets=("onnx-fp32",))
    manifest = replace(read_manifest(bundle), source_language="en", target_language="de")
    write_manifest(bundle, manifest)
    equal = replace(PARITY, bleu_difference_interval=(0.0, 0.0))
    monkeypatch.setattr(verification, "verify", lambda *_, **__: {"onnx-fp32": equal})
    with pytest.raises(TranslateTrtError, match="onnx-fp32"):
        verify_sample(bundle, None)  # type: ignore[arg-type]
