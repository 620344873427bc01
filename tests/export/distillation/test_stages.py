"""A whole distillation, from a compiled teacher to the table, with an interruption."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from translate_trt.export.distillation import stages
from translate_trt.export.distillation.distillation_options import DistillationOptions, Student
from translate_trt.export.distillation.pareto import Row
from translate_trt.export.distillation.selection import SOURCE, TARGET
from translate_trt.export.distillation.stages import Distillation, Resources
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.bundle.term_annotation import TermAnnotation
from translate_trt.runtime.errors import OutputError, TranslateTrtError
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.serve.corpus import run
from translate_trt.runtime.serve.corpus.shard import translate_shard
from translate_trt.runtime.translator import Translator
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.terminology import TerminologyOptions
from translate_trt.train.data.token_files import open_prepared

pytest.importorskip("ray", reason="Ray, of the extra `distill`, is not installed")

pytestmark = pytest.mark.slow

LINES = ["the cat runs", "a big dog sleeps", "Haus Hund läuft", "the house", "small river"]
TRAINING = {
    "steps": 120, "warmup_steps": 10, "validate_every": 60, "checkpoint_every": 20,
    "batch_tokens": 512, "learning_rate": 5e-3, "patience": 0,
}  # fmt: skip
SHAPE = {"encoder_layers": 1, "d_model": 32, "d_ff": 48, "heads": 4, "decoder_layers": 1}


@pytest.fixture
def options(tmp_path: Path, compiled_bundle: Path) -> DistillationOptions:
    words = sorted({word for line in LINES for word in line.split()})
    text = [*LINES, *(f"{a} {b}" for a in words for b in words), ""]
    for name, lines in (("train", text), ("valid", LINES)):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    valid = tmp_path / "valid.en", tmp_path / "valid.de"
    return DistillationOptions(
        teacher=compiled_bundle,
        sources=(tmp_path / "train.en",),
        valid=valid,
        students=(Student("student-tiny", SHAPE),),
        references=(tmp_path / "train.de",),
        prepare=PrepareOptions(vocabulary_size=300, max_length_ratio=99.0),
        training=TRAINING,
        beams=(1,),
        rounds=1,
    )


@pytest.fixture
def without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Translate shards in this process."""

    def translate(shards: Any, work: Any, on_finished: Any, address: object) -> None:
        translator = Translator(work.bundle, work.target, threads=1)
        for shard in shards:
            found = translate_shard(shard, work.job, translator, work.search, work.options)
            on_finished(shard, found)

    monkeypatch.setattr(run, "translate_shards", translate)


@pytest.mark.parametrize("cluster", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_distillation_continues_and_refuses_changes(
    cluster: bool, options: DistillationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if not cluster:
        request.getfixturevalue("without_cluster")
    out = tmp_path / "out"

    def distill(changed: DistillationOptions = options, force: bool = False) -> list[Row]:
        return Distillation(changed, out, Resources(1, device="cpu"), force).run()

    def fail(*_: object) -> None:
        raise TranslateTrtError("the training was stopped")

    together = threading.Barrier(2)  # a hang is a failure: the tests have a limit

    def fail_together(*_: object) -> None:
        together.wait()
        fail()

    with monkeypatch.context() as patch:
        patch.setattr(stages, "train_student", fail_together)
        two = (*options.students, Student("student-tiny", SHAPE | {"heads": 2}))
        resources = Resources(1, device="cpu", concurrent_students=2)
        with pytest.raises(TranslateTrtError, match="training"):
            Distillation(dataclasses.replace(options, students=two), out, resources).run()
    assert not together.broken
    translations = out / "translations" / "train.en"
    first = translations.stat().st_mtime_ns
    hypotheses = [json.loads(line)["hypotheses"] for line in translations.read_text().splitlines()]
    assert {len(found) for found in hypotheses[:-1]} == {8}

    rows = distill()
    assert [(row.system, row.beam_size) for row in rows if row.system == "teacher"] == [
        ("teacher", 4), ("teacher", 1),
    ]  # fmt: skip
    assert [row.target for row in rows[2:]] == ["onnx-int8-shortlist", "onnx-int8"]
    assert any(row.on_front for row in rows)
    assert translations.stat().st_mtime_ns == first

    (student,) = (out / "students").iterdir()
    manifest = read_manifest(student / "bundle")
    assert manifest.search_options().beam_size == 1
    assert all(target.parity["passed"] for target in manifest.targets.values())
    Translator(student / "bundle").translate(LINES)

    with monkeypatch.context() as patch:  # nothing is left to do
        for name in ("translate_inputs", "select", "prepare", "train_student", "measure"):
            patch.setattr(stages, name, fail)
        assert distill() == rows
        longer = dataclasses.replace(options, training=TRAINING | {"steps": 121})
        with pytest.raises(OutputError, match="steps 120"):
            distill(longer)
        (tmp_path / "train.de").write_text("other\n" * len(hypotheses))
        with pytest.raises(OutputError, match="reference 1"):
            distill()


@pytest.mark.usefixtures("without_cluster")
def test_pairs_have_the_terms_of_a_glossary(
    options: DistillationOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TranslateTrtError("stop before the training")

    monkeypatch.setattr(stages, "train_student", fail)
    glossary, out = tmp_path / "glossary.tsv", tmp_path / "out"
    glossary.write_text("Dog\tHund\nhouse\tHaus\n")
    with_terms = dataclasses.replace(
        options,
        references=(),
        terminology=TerminologyOptions(glossary, "replace", 1.0, terminology_ignore_case=True),
        annotated=True,
    )

    def distill(changed: DistillationOptions, message: str) -> None:
        with pytest.raises(TranslateTrtError, match=message):
            Distillation(changed, out, Resources(1, device="cpu")).run()

    distill(with_terms, "stop before the training")
    pairs = list(read_parallel(out / "pairs" / SOURCE, out / "pairs" / TARGET))
    of_dogs = [target for source, target in pairs if "dog" in source]
    assert len(of_dogs) > 9
    assert all("Hund" in target for target in of_dogs)
    prepared = open_prepared(out / "data")
    assert prepared.term_annotation == TermAnnotation("replace")
    assert prepared.index["terminology"]["annotated"] > 9

    terms = with_terms.terminology
    assert terms is not None
    other = dataclasses.replace(terms, terminology_form="append")
    distill(dataclasses.replace(with_terms, terminology=other), "terminology_form replace there")
    other = dataclasses.replace(terms, terminology_ignore_case=False)
    distill(dataclasses.replace(with_terms, terminology=other), "terminology_ignore_case True")
    glossary.write_text("Dog\tKatze\n")
    distill(with_terms, "other content of glossary 1")
