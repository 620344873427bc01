"""Jobs of libtranslate_trt: results, cancellation, and refused jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cpp_library import Library, Probe, texts

pytestmark = pytest.mark.slow

LINES = [
    "the cat runs.", "", "a dog eats green", "Haus Hund läuft.", "the big tree sleeps",
    "x" * 300, "The cat sleeps under the big tree. A dog walks over the river! " * 8,
]  # fmt: skip


def test_a_thousand_jobs_with_cancels_and_deadlines(probe: Probe, compiled_bundle: Path) -> None:
    probe.load(compiled_bundle, workers=2, threads=1)
    lines = (LINES * 143)[:1000]
    expected = texts(probe.ask(lines=LINES)["found"])
    answer = probe.ask(lines=lines, cancel=3, timeout=30)
    assert answer["told"] == len(lines)
    for index, found in enumerate(answer["found"]):
        allowed = {expected[index % len(LINES)]}
        if index % 3 == 0:
            allowed.add("TT_CANCELLED")
        if index % 2 == 1:
            allowed.add("TT_DEADLINE_EXCEEDED")
        assert found in allowed, index
    assert answer["found"].count("TT_CANCELLED") > 100
    # Sentences that were dropped leave their batches before the next step.
    while (load := probe.ask(statistics=True))["running"]:
        assert load["pending"] == 0
    assert texts(probe.ask(lines=LINES)["found"]) == expected


def test_statistics(probe: Probe, compiled_bundle: Path) -> None:
    probe.load(compiled_bundle, workers=1, threads=1)
    assert set(probe.ask(statistics=True).values()) == {0}
    found = probe.ask(ids=[[5, 6], [7], []])["found"]
    # A job has finished before the last step is counted.
    while not (statistics := probe.ask(statistics=True))["graph_seconds"]:
        pass
    assert statistics["sentences"] == 2
    assert statistics["source_tokens"] == 3
    tokens = [line[0]["pieces"][0]["tokens"] for line in found]
    assert statistics["target_tokens"] == sum(map(len, tokens))
    assert 0 < statistics["steps"] <= statistics["rows"] <= 2 * statistics["steps"]
    assert 0 < statistics["graph_seconds"] < statistics["worker_seconds"]


def test_a_forked_process_is_told_at_once(library: Library, compiled_bundle: Path) -> None:
    with library.probe() as probe:
        probe.load(compiled_bundle, workers=2, threads=1)
        # Who forks before translating has a translator in each process that translates first.
        child = texts(probe.ask(lines=LINES, fork=True)["found"])
        assert texts(probe.ask(lines=LINES)["found"]) == child
        status, message = probe.ask(lines=LINES, fork=True)["error"]
        assert status == "TT_FORKED"
        assert "forked" in message
        assert texts(probe.ask(lines=LINES)["found"]) == child


def test_a_bundle_that_is_only_loaded_starts_no_thread(
    library: Library, compiled_bundle: Path
) -> None:
    with library.probe() as probe:
        probe.load(compiled_bundle, workers=3, threads=1)
        task = Path(f"/proc/{probe.process_id}/task")
        before = len(os.listdir(task))
        probe.ask(lines=["the cat"])
        assert len(os.listdir(task)) == before + 3
