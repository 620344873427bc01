"""Tables, pages and plots made from reports, and the format of reports."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

MACHINE = {"cores": 2, "cpu": "a processor", "instructions": ["avx2"],
           "limits": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}}  # fmt: skip


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


def test_speeds_are_compared_pair_by_pair_and_per_token() -> None:
    from performance_tables import throughput_table

    ours = samples_of([2.0, 4.0, 3.0], [60, 30])
    peer = samples_of([4.0, 12.0, 6.0], [50, 40], 19.5)
    systems = summarized(ours=ours, peer=peer)["systems"]
    _, _, first, second = throughput_table(systems).splitlines()
    assert first == "| ours | 30 | 0.7 | 22 | 20.00 | 300 MiB | 2 x 1 | 25 % | 1.00 [1.00, 1.00] |"
    assert second.startswith("| peer | 15 | 0.3 | 13 | 19.50 |")
    assert second.endswith("| 2.00 [2.00, 3.00] |")
    half = {**peer, "tokens": [25, 20]}  # as long for half as many tokens
    assert "4.00 [4.00, 6.00]" in throughput_table(summarized(ours=ours, peer=half)["systems"])


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


def test_the_readme_takes_speed_from_one_report_and_latency_from_the_other() -> None:
    from performance_tables import render_readme

    model = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8}
    report = {
        "date": "2026-01-01",
        "machine": MACHINE,
        "versions": {"onnxruntime": "1.31.1"},
        "settings": {"lines": 2, "cores": 2, "model": {**model, "vocabulary_size": 37_000}},
    }
    results = summarized(ours=samples_of([2.0], [60, 30]), peer=samples_of([3.0], [60, 30]))
    alone = {"ours": {"milliseconds": [200.0, 290.0, 298.0]}}
    text = render_readme({**report, "results": results}, {**report, "results": {"systems": alone}})
    assert "MKL_ENABLE_INSTRUCTIONS=AVX2." in text  # a limit of a peer's library
    assert "| ours | 45 | 20.00 | 200 | 290 | 300 MiB |" in text
    assert "| peer | 30 | 20.00 |  |  | 300 MiB |" in text


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


def test_a_page_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    from tables import fill

    page = tmp_path / "page.md"
    begin = "<!-- {}made by benchmarks/render.py -->\n"
    text = "before\n{}old\n<!-- end -->\nbetween\n{}<!-- end -->\nafter\n"
    page.write_text(text.format(begin.format(""), begin.format("speed, ")))
    fill(page, "speed", "new\n")
    assert page.read_text() == text.format(begin.format(""), begin.format("speed, ") + "new\n")
    fill(page, "", "newer\n")
    assert "between" in page.read_text()
    assert "old" not in page.read_text()
    with pytest.raises(ValueError, match="put both there"):
        fill(page, "missing", "")


@pytest.mark.parametrize(
    ("kernels", "shown"),
    [
        ("avx512_vnni", ", compiled kernels avx512_vnni"),
        ("none (no kernels for this CPU)", ""),
        ("none: switched off by TRANSLATE_TRT_KERNELS", ""),
    ],
)
def test_a_machine_is_described_with_its_kernels(kernels: str, shown: str) -> None:
    from tables import where

    report = {"date": "2026-11-24", "machine": {**MACHINE, "kernels": kernels}, "versions": {}}
    assert where(report).count("compiled kernels") == bool(shown)
    assert f"{shown}, MKL_ENABLE_INSTRUCTIONS" in where(report)


def test_docs_have_a_part_for_every_report() -> None:
    from performance_tables import PARTS_OF_PAGE
    from render import EMBED, GPU, PARTS_OF_GPU, PARTS_OF_TRAIN, PERFORMANCE, README, TRAIN

    page = PERFORMANCE.read_text()
    for name in PARTS_OF_PAGE:
        assert f"<!-- {name}, made by benchmarks/render.py -->" in page
    assert "<!-- performance, made by benchmarks/render.py -->" in README.read_text()
    for shape in ("base", "tiny"):
        part = f"<!-- cpp-library-{shape}, made by benchmarks/render.py -->"
        assert part in EMBED.read_text()
    for path, parts in ((GPU, PARTS_OF_GPU), (TRAIN, PARTS_OF_TRAIN)):
        for name in parts:
            assert f"<!-- {name}, made by benchmarks/render.py -->" in path.read_text()


def test_the_cpp_library_beside_python() -> None:
    from cpp_library import summarize
    from results_tables import render_cpp_library

    samples = {"onnx-int8": {
        "differing": 1,
        "seconds": {
            "all lines": {"Python": [2.0, 4.0, 3.0], "C++": [1.0, 2.0, 2.0]},
            "loading": {"Python": [0.3], "C++": [0.1]},
        },
        "clients": {"one call": [1.0, 1.0, 1.0], "clients": [1.0, 2.0, 1.25]},
        "service": {"one penalty": [1.0], "64 penalties": [1.25], "lock": [13.0, 15.0, 99.0]},
        "processor time": {"clients": {"in graphs": 1.5, "outside": 0.25}},
    }}  # fmt: skip
    report = {
        "date": "2026-11-22",
        "machine": MACHINE,
        "versions": {},
        "settings": {"lines": 100, "line_by_line": 10, "workers": 2, "clients": 64, "note": "",
                     "rounds": 3, "model": {"parameters": 7_600_000}},
        "results": summarize(samples),
    }  # fmt: skip
    text = render_cpp_library(report)
    assert "workers, 1 of 100 lines differed" in text
    assert "| onnx-int8 | 100.0 | 80.0 | 0.80 [0.50, 1.00] |" in text
    assert "| onnx-int8 | 64 threads | 1.50 | 0.25 |" in text
    assert "| onnx-int8 | 100.0 | 80.0 | 0.80 [0.80, 0.80] | 15 us |" in text
    assert "all lines | 33.3 sentences/s | 50.0 sentences/s | 2.00 [1.50, 2.00] |" in text
    assert "loading | 300 ms | 100 ms | 3.00 [3.00, 3.00] |" in text


def test_plots_show_what_was_measured(tmp_path: Path) -> None:
    from plots import PLOTS, height, plot_scaling

    point = {"target_tokens": 30, "seconds": [3.0, 2.0, 9.0], "least_seconds": 0.5, "memory": 2**20}
    assert height("target tokens/s", point, 3.0) == 10
    assert height("ms per sentence", point, 3.0) == 3000
    assert height("peak memory, MiB", point, 3.0) == 1
    growth = {"ours": {"1": point, "2": point}}
    results = dict.fromkeys(("batch", "length", "threads"), growth)
    report = {"date": "2026-01-01", "results": results}
    plot_scaling(report, tmp_path / "a")
    plot_scaling(report, tmp_path / "b")
    for name in PLOTS:
        picture = (tmp_path / "a" / f"{name}.svg").read_bytes()
        assert picture == (tmp_path / "b" / f"{name}.svg").read_bytes()


def test_lines_that_differ_are_counted_by_search() -> None:
    from results_tables import render_exact

    found = {"kernels": {"this": "none"}, "beam 1": {"lines": 5000, "differing": 3}}
    report = {
        "date": "2026-11-24",
        "machine": MACHINE,
        "versions": {},
        "settings": {},
        "results": {"onnx-int8": found},
    }
    assert "| onnx-int8 | beam 1 | 5,000 | 3 |" in render_exact(report)
