"""Bundles damaged at random, with matching hashes: the readers accept them or report an error.

ONNX Runtime reads the graphs without prior checks of ours. For graphs the test only checks that its
errors become ours: changed numbers are no errors.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import damage
from support.cpp_library import Library, Probe, build

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import TranslateTrtError

pytestmark = pytest.mark.slow

SEED = 2018
KINDS = {
    "onnx-fp32": {"manifest": 120, "tokenizer": 40, "graph": 40},
    "onnx-fp32-shortlist": {"manifest": 35, "graph": 15},
}
# AddressSanitizer fails allocations instead of aborting.
ALLOCATIONS = {"ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=8192"}
ERRORS = {"TT_BUNDLE_ERROR", "TT_OPTION_ERROR", "TT_BACKEND_ERROR", "TT_MEMORY_ERROR"}


def translate(probe: Probe, bundle: Path) -> list[str]:
    """Return "fine", or status and message of an error."""
    answer: dict[str, Any] = probe.ask(load={"bundle": str(bundle), "threads": 1})
    if "error" not in answer:
        answer = probe.ask(lines=["the cat runs.", "a"], options={"beam_size": 2, "max_length": 6})
    return answer.get("error", ["fine", ""])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "sanitize", ["", pytest.param("address,undefined", marks=pytest.mark.nightly)]
)
def test_damage_is_told(
    compiled_bundle: Path, shortlist_bundle: Path, tmp_path: Path, sanitize: str
) -> None:
    """By the library, and by Python's reader of manifests."""
    library = Library(build(sanitize), sanitize=sanitize)
    counts: dict[str, int] = {}
    with library.probe(TRANSLATE_TRT_KERNELS="none", **ALLOCATIONS) as probe:
        for target, bundle in zip(KINDS, (compiled_bundle, shortlist_bundle), strict=True):
            for case in damage.damaged(bundle, target, tmp_path, SEED, KINDS[target]):
                status, message = translate(probe, case.bundle)
                assert status == "fine" or (status in ERRORS and message), (case, status, message)
                counts[status] = counts.get(status, 0) + 1
                with contextlib.suppress(TranslateTrtError):
                    read_manifest(case.bundle)
                shutil.rmtree(case.bundle)
    assert sum(counts.values()) == 250
    assert counts["TT_BUNDLE_ERROR"] > 100  # the damage does reach what reads the files
    assert counts["fine"] > 10


@pytest.mark.parametrize(
    ("group", "name"), [("encoder_outputs", "cross_key_0"), ("state", "self_value_1")]
)
def test_sizes_beyond_any_model(
    probe: Probe, compiled_bundle: Path, tmp_path: Path, group: str, name: str
) -> None:
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))
    path = bundle / "manifest.json"
    for value in (10**9, 2**63 - 1, 2**63):
        manifest = json.loads(path.read_text())
        for target in manifest["targets"].values():
            target["contract"][group][name]["axes"][1] = value
        path.write_text(json.dumps(manifest))
        status, message = translate(probe, bundle)
        assert status in ERRORS, message
