"""Systems of the comparisons translate like the reference, each in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from support.models import lively_model, save_model
from support.processor import saturates

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.search import beam_search

if TYPE_CHECKING:
    from systems import Models

pytestmark = pytest.mark.slow

SOURCES = [[5, 9, 11, 30, 8, 14], [7, 7, 21], [33, 12, 4, 6], [35, 5]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer_model: Path) -> Path:
    pieces = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    run = tmp_path_factory.mktemp("model") / "run"
    return save_model(lively_model(pieces), run, tokenizer_model)


@pytest.fixture
def models(checkpoint: Path, tmp_path: Path) -> Models:
    from systems import Models

    return Models(checkpoint, tmp_path / "bundle", tmp_path)


def expected(checkpoint: Path, options: SearchOptions) -> list[list[int]]:
    found = beam_search(open_checkpoint(checkpoint).load_model(), SOURCES, options)
    return [list(hypotheses[0].tokens) for hypotheses in found]


@pytest.fixture
def process(models: Models, request: pytest.FixtureRequest) -> Iterator[Any]:
    from comparison import convert
    from processes import Process
    from systems import Setting

    from translate_trt.export.build_options import BuildOptions
    from translate_trt.export.compile import compile_bundle

    name, precision = request.param
    if (name, precision) == ("ctranslate2", "int8") and saturates():
        pytest.skip("int8 translations of CTranslate2 differ on processors without VNNI")
    if name == "translate-trt":
        options = BuildOptions((f"onnx-{precision}",))
        compile_bundle(open_checkpoint(models.checkpoint), models.bundle, options)
    setting = Setting(name, precision, beam_size=1)  # greedy: early stopping changes nothing
    convert(setting, models)
    with Process(setting, models) as opened:
        yield opened


@pytest.mark.parametrize(
    "process",
    [
        ("translate-trt", "int8"),
        ("ctranslate2", "fp32"),
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in (
                ("translate-trt", "fp32"),
                ("ctranslate2", "int8"),
                ("onnx-host-search", "fp32"),
                ("onnx-host-search", "int8"),
                ("torch", "fp32"),
            )
        ),
    ],
    indirect=True,
)
def test_a_system_translates_as_the_reference(process: Any, models: Models) -> None:
    process.ask("sources", sources=SOURCES)
    answer = process.translate([2, 0, 1, 3])
    found = process.ask("last")["ids"]
    wanted = expected(models.checkpoint, SearchOptions(beam_size=1))
    assert found == [wanted[row] for row in (2, 0, 1, 3)]
    assert answer["tokens"] == [len(tokens) for tokens in found]
    assert answer["translate"] > 0
    memory = process.memory()
    assert memory["peak"] > 10_000_000
    assert memory["share"] > 0


@pytest.mark.nightly
def test_a_shortlist_is_the_same_for_both(models: Models) -> None:
    import numpy as np
    from comparison import convert
    from processes import Process
    from systems import Setting

    from translate_trt.export.build_options import BuildOptions
    from translate_trt.export.compile import compile_bundle
    from translate_trt.train.config import END
    from translate_trt.train.shortlist.table import Shortlist, shared_copies, tokenizer_hash

    checkpoint = open_checkpoint(models.checkpoint)
    size = checkpoint.model.vocabulary_size
    # Every source token brings the same, as CTranslate2 makes one list for a whole batch.
    brought = np.tile(np.arange(8, 12, dtype=np.int32), (size, 1))
    brought[: END + 1] = 0
    always = np.array([END, *range(22, 40)], np.int32)
    count = len(always)
    table = models.converted / "table.safetensors"
    Shortlist(
        always, np.ones(count, np.int64), np.zeros((size, count), np.float32),
        brought, np.ones(brought.shape, np.float32), shared_copies(size), size,
        tokenizer_hash(*checkpoint.tokenizers), 1, 1,
    ).save(table)  # fmt: skip
    build = BuildOptions(("onnx-fp32-shortlist",), attention=True, shortlist=table)
    compile_bundle(checkpoint, models.bundle, build)
    found = []
    for name in ("translate-trt", "ctranslate2"):
        setting = Setting(name, "fp32", beam_size=1, shortlist=True)
        convert(setting, models, table)
        with Process(setting, models) as process:
            process.ask("sources", sources=SOURCES)
            process.translate([0, 1, 2, 3])
            found.append(process.ask("last")["ids"])
    assert found[0] == found[1]
    assert {token for tokens in found[0] for token in tokens} <= {*range(22, 40), *range(8, 12)}
    assert found[0] != expected(models.checkpoint, SearchOptions(beam_size=1))


def test_a_stopped_process_takes_no_turn(models: Models) -> None:
    from processes import Process
    from systems import Setting

    setting = replace(Setting("torch", "fp32"), beam_size=2)
    with Process(setting, models) as process:
        texts = ["the dog runs", "a cat sleeps"]
        assert len(process.ask("texts", texts=texts)) == 2
        answer = process.translate([1])
        assert len(answer["tokens"]) == 1
        seen = psutil.Process(process._process.pid)
        begin = monotonic()
        while seen.status() != psutil.STATUS_STOPPED and monotonic() < begin + 30:
            sleep(0.01)  # signals take a moment
        assert seen.status() == psutil.STATUS_STOPPED
    assert not seen.is_running()
