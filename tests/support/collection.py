"""Rules of collection: ids that stay the same, and a record of all collected tests."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from support.paths import ROOT

TESTS = ROOT / "tests"

#: Files whose tests take more than some six seconds of processor time together, as measured by
#: --processor-times: they compile, train, build, or start servers. They are in the whole suite and
#: not in the quick tier, which keeps some that check what most changes touch: translation, search
#: and markup.
SLOW_FILES = frozenset(
    {
        "benchmarks/test_peers.py",
        "cli/test_evaluate.py",
        "examples/test_c_service.py",
        "cli/test_export.py",
        "cli/test_interrupted.py",
        "export/importers/test_bart.py",
        "export/importers/test_ctranslate2.py",
        "export/importers/test_damaged_directories.py",
        "export/importers/test_m2m100.py",
        "export/importers/test_marian.py",
        "export/importers/test_marian_itself.py",
        "export/test_aten_to_onnx.py",
        "export/passes/test_pipeline.py",
        "export/fused_ops/test_subgraph.py",
        "export/test_beam_search_step.py",
        "export/test_compile.py",
        "export/test_engines.py",
        "export/test_graphs.py",
        "export/test_imported_models.py",
        "export/verify/test_layers.py",
        "export/verify/test_parity.py",
        "export/verify/test_parity_docs.py",
        "export/test_shortlist.py",
        "export/test_targets.py",
        "runtime/test_corpus_cluster.py",
        "runtime/test_cpp_cuda.py",
        "runtime/test_cpp_jobs.py",
        "runtime/test_cpp_library.py",
        "runtime/bundle/test_damaged_bundles.py",
        "runtime/test_device_batch.py",
        "runtime/test_independence.py",
        "runtime/io/test_killed_writers.py",
        "runtime/test_packaging.py",
        "runtime/test_search_operators.py",
        "runtime/test_tensorrt_backend.py",
        "runtime/test_tile_product.py",
        "runtime/test_triton_server.py",
        "scripts/test_training_scripts.py",
        "test_docs.py",
        "train/trainer/test_distributed.py",
        "train/trainer/test_fine_tuning.py",
        "train/trainer/test_run.py",
        "train/evaluation/test_scoring.py",
        "train/trainer/test_loop.py",
        "export/test_ensembles.py",
        "runtime/test_constraints.py",
        "benchmarks/test_constraints.py",
        "benchmarks/test_front.py",
        "export/test_dump.py",
        "runtime/test_parsing.py",
        "train/trainer/test_parsing.py",
        "test_traces.py",
        "export/test_roles.py",
        "runtime/test_sampling.py",
        "export/test_attention_heads.py",
        "runtime/http/test_lifecycle.py",
        "benchmarks/test_marian.py",
        "benchmarks/test_search_options.py",
        "benchmarks/test_training_estimates.py",
        "benchmarks/test_gpu.py",
        "runtime/pytorch/test_torch_engines.py",
        "train/trainer/test_micro_batches.py",
        "scripts/test_check_words.py",
        "test_collection.py",
        "test_limits.py",
        "benchmarks/test_widen.py",
        "cli/test_plot.py",
        "cli/test_translate_any_input.py",
        "runtime/test_cpp_docs.py",
        "runtime/text/test_cpp_markup.py",
        "runtime/text/test_glossary_library.py",
        "runtime/text/test_cpp_markup_tokens.py",
        "runtime/test_native.py",
        "test_processor_times.py",
        "cli/test_outputs.py",
        "export/fused_ops/test_fuse.py",
        "runtime/http/test_limits.py",
        "runtime/kernels/test_matmuls.py",
        "runtime/test_corpus.py",
        "runtime/test_loops.py",
        "scripts/test_gpu_check.py",
        "train/data/test_token_files.py",
        "train/test_search.py",
    }
)

#: Of those, the ones that take longest, and so go first: none is left to one process at the end
#: while the other has nothing to do. The first mostly waits.
LONGEST = (
    "runtime/test_corpus_cluster.py",
    "runtime/test_cpp_library.py",
    "test_docs.py",
    "train/trainer/test_distributed.py",
    "export/passes/test_pipeline.py",
    "train/trainer/test_loop.py",
    "runtime/test_triton_server.py",
    "train/evaluation/test_scoring.py",
    "scripts/test_training_scripts.py",
    "runtime/test_tile_product.py",
    "export/test_imported_models.py",
    "runtime/bundle/test_damaged_bundles.py",
)

#: Node ids of all collected tests, in order, deselected ones included.
COLLECTED = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files, mark slow ones, and record node ids before -m and -k deselect any."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}

    def name(item: pytest.Item) -> str:
        return item.path.relative_to(TESTS).as_posix()

    items.sort(key=lambda item: ranks.get(name(item), len(ranks)))
    for item in items:
        if name(item) in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
    config.stash[COLLECTED] = [item.nodeid for item in items]


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Refuse test ids that pytest would derive from bytes, paths and sets.

    They may hold times, temporary folders or an order that changes with the hash seed. pytest-xdist
    then runs nothing, since its processes have collected different tests.
    """
    if isinstance(val, bytes | bytearray | PurePath | set | frozenset):
        kind = type(val).__name__
        raise pytest.UsageError(f"parameter {argname} is of {kind}; give it an id (ids=...).")
    return None
