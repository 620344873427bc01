"""Statistics of comparisons, and the format of reports."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest


def samples_of(times: list[float], tokens: list[int], bleu: float = 20.0) -> dict[str, Any]:
    """Return raw measurements of one system of a throughput comparison."""
    return {
        "setting": {"precision": "int8", "workers": 2, "threads": 1},
        "rounds": [
            {"encode": 0.5, "translate": time, "decode": 0.5, "processor": 2 * time}
            for time in times
        ],
        "tokens": tokens,
        "bleu": bleu,
        "memory": {"peak": 300 * 2**20},
        "work": {},
        "roofline": 0.25,
        "identical_to_first": 1.0,
    }


def summarized(**systems: dict[str, Any]) -> dict[str, Any]:
    """Return the results that throughput.py writes for those systems."""
    from throughput import summarize

    given = {"source_tokens": [1, 2], "systems": systems, "peaks": {}, "trials": {}}
    results: dict[str, Any] = summarize(given)
    return results


def test_int8_is_compared_with_peers_without_it() -> None:
    peer = samples_of([4.0, 12.0, 6.0], [60, 30])
    peer["setting"] = {**peer["setting"], "precision": "fp32"}
    results = summarized(ours=samples_of([2.0, 4.0, 3.0], [60, 30]), **{"torch fp32": peer})
    assert results["int8 / fp32"] == {"translate-trt int8 / torch fp32": [2.0, 2.0, 3.0]}
    assert results["systems"]["torch fp32"]["first / this"] == [1.0, 1.0, 1.0]  # of its precision


def test_percentiles_are_of_all_sentences_and_rounds() -> None:
    from latency import PARTS, pair_ratios, percentiles

    rounds = [
        {"encode": [0.1] * 3, "translate": times, "decode": [0.1] * 3}
        for times in ([1.0, 2.0, 3.0], [5.0, 4.0, 1.0])
    ]
    assert percentiles({"rounds": rounds})[0] == pytest.approx(2500)
    assert percentiles({"rounds": rounds}, PARTS)[0] == pytest.approx(2700)
    slower = [{**one, "translate": [2 * time for time in one["translate"]]} for one in rounds]
    assert pair_ratios({"rounds": rounds}, {"rounds": slower}) == [2.0] * 6


def test_systems_are_compared_pair_by_pair() -> None:
    from harness import compared

    samples = {"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 2.0]}
    assert compared(samples, "b") == {
        "a": [2.0, 1.0, 4.0], "b": [2.0, 2.0, 2.0], "b / a": [1.0, 0.5, 2.0]
    }  # fmt: skip


def test_a_report_is_readable_and_raw_samples_lie_beside_it(tmp_path: Path) -> None:
    from harness import write

    out = tmp_path / "report.json"
    results = {"seconds": {"ours": [1.0, 0.5, 2.0]}, "few": {"a": 1, "b": [2, 3]}}
    args = argparse.Namespace(out=out, samples=False)
    write("name", {"lines": 3}, results, args, {"ours": [1.0, 0.5, 2.0]})
    text = out.read_text()
    assert json.loads(text)["results"] == results
    assert '\n   "ours": [1.0, 0.5, 2.0]' in text or '{"ours": [1.0, 0.5, 2.0]}' in text
    assert list(tmp_path.iterdir()) == [out]
    args.samples = True
    write("name", {}, results, args, {"ours": [1.0, 0.5, 2.0]})
    raw = tmp_path / "report.samples.json"
    assert json.loads(raw.read_text()) == {"ours": [1.0, 0.5, 2.0]}
