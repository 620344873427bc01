"""Tables, pages and plots from the JSON of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SETTING = {"precision": "int8", "workers": 2, "threads": 1}


def system(times: list[float], tokens: list[int], bleu: float = 20.0) -> dict[str, Any]:
    return {
        "setting": SETTING,
        "rounds": [{"encode": 0.5, "translate": time, "decode": 0.5} for time in times],
        "tokens": tokens,
        "bleu": bleu,
        "memory": {"peak": 300 * 2**20},
        "roofline": 0.25,
    }


def test_speeds_are_compared_pair_by_pair_and_per_token() -> None:
    from performance import throughput_table

    ours, peer = system([2.0, 4.0, 3.0], [60, 30]), system([4.0, 12.0, 6.0], [50, 40], 19.5)
    _, _, first, second = throughput_table({"ours": ours, "peer": peer}).splitlines()
    assert first == "| ours | 30 | 0.7 | 22 | 20.00 | 300 MiB | 2 x 1 | 25 % | 1.00 [1.00, 1.00] |"
    assert second.startswith("| peer | 15 | 0.3 | 13 | 19.50 |")
    assert second.endswith("| 2.00 [2.00, 3.00] |")
    half = {**peer, "tokens": [25, 20]}  # as long for half as many tokens
    assert "4.00 [4.00, 6.00]" in throughput_table({"ours": ours, "peer": half})


def test_percentiles_are_of_all_sentences_and_rounds() -> None:
    from performance import PARTS, pair_ratios, percentiles

    rounds = [
        {"encode": [0.1] * 3, "translate": times, "decode": [0.1] * 3}
        for times in ([1.0, 2.0, 3.0], [5.0, 4.0, 1.0])
    ]
    assert percentiles({"rounds": rounds})[0] == pytest.approx(2500)
    assert percentiles({"rounds": rounds}, PARTS)[0] == pytest.approx(2700)
    slower = [{**one, "translate": [2 * time for time in one["translate"]]} for one in rounds]
    assert pair_ratios({"rounds": rounds}, {"rounds": slower}) == [2.0] * 6


def test_how_long_ctrl_c_takes() -> None:
    from performance import render_interrupt

    report = {
        "date": "2026-01-01",
        "machine": {"cores": 2, "cpu": "a processor", "instructions": ["avx2"],
                    "limits": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}},
        "versions": {},
        "settings": {"workers": 2},
        "samples": {"seconds": [0.2, 0.5, 0.3]},
    }  # fmt: skip
    text = render_interrupt(report)
    assert "3 times, 2 workers: 0.30 s in the median, 0.50 s at most." in text
    assert "MKL_ENABLE_INSTRUCTIONS=AVX2." in text  # what a peer was limited to


def test_the_readme_takes_speed_from_one_report_and_latency_from_the_other() -> None:
    from performance import render_readme

    rounds = [{part: [0.1, 0.3] for part in ("encode", "translate", "decode")}]
    model = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8}
    report = {
        "date": "2026-01-01",
        "machine": {"cores": 2, "cpu": "a processor", "instructions": ["avx2"]},
        "versions": {"onnxruntime": "1.31.1"},
        "settings": {"lines": 2, "cores": 2, "model": {**model, "vocabulary_size": 37_000}},
    }
    systems = {"ours": system([2.0], [60, 30]), "peer": system([3.0], [60, 30])}
    throughput = {**report, "samples": {"systems": systems}}
    latency = {**report, "samples": {"systems": {"ours": {"rounds": rounds}}}}
    text = render_readme(throughput, latency)
    assert "| ours | 45 | 20.00 | 200 | 290 | 300 MiB |" in text
    assert "| peer | 30 | 20.00 |  |  | 300 MiB |" in text


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


def test_docs_have_a_part_for_every_report() -> None:
    from performance import PARTS_OF_PAGE
    from render import EMBED, PERFORMANCE, README

    page = PERFORMANCE.read_text()
    for name in PARTS_OF_PAGE:
        assert f"<!-- {name}, made by benchmarks/render.py -->" in page
    assert "<!-- performance, made by benchmarks/render.py -->" in README.read_text()
    for shape in ("base", "tiny"):
        part = f"<!-- cpp-library-{shape}, made by benchmarks/render.py -->"
        assert part in EMBED.read_text()


def test_the_cpp_library_beside_python() -> None:
    from render import render_cpp_library

    report = {
        "date": "2026-11-22",
        "machine": {"cpu": "X", "cores": 2, "instructions": ["avx2"]},
        "versions": {},
        "settings": {"lines": 100, "line_by_line": 10, "workers": 2, "clients": 64, "note": "",
                     "model": {"parameters": 7_600_000}},
        "samples": {"onnx-int8": {"differing": 1, "seconds": {
            "all lines": {"Python": [2.0, 4.0, 3.0], "C++": [1.0, 2.0, 2.0]},
            "loading": {"Python": [0.3], "C++": [0.1]}},
            "clients": {"one call": [1.0, 1.0, 1.0], "clients": [1.0, 2.0, 1.25]},
            "service": {"one penalty": [1.0], "64 penalties": [1.25], "lock": [13.0, 15.0, 99.0]},
            "processor time": {"clients": {"in graphs": 1.5, "outside": 0.25}}}},
    }  # fmt: skip
    text = render_cpp_library(report)
    assert "workers, 1 of 100 lines differed" in text
    assert "| onnx-int8 | 100.0 | 80.0 | 0.80 [0.50, 1.00] |" in text
    assert "| onnx-int8 | 64 threads | 1.50 | 0.25 |" in text
    assert "| onnx-int8 | 100.0 | 80.0 | 0.80 [0.80, 0.80] | 15 us |" in text
    assert "all lines | 33.3 sentences/s | 50.0 sentences/s | 2.00 [1.50, 2.00] |" in text
    assert "loading | 300 ms | 100 ms | 3.00 [3.00, 3.00] |" in text


def test_plots_show_what_was_measured(tmp_path: Path) -> None:
    from plots import PLOTS, height, plot

    point = {"tokens": [10, 20], "seconds": [2.0, 3.0, 9.0], "least_seconds": 0.5, "memory": 2**20}
    assert height("target tokens/s", point, 3.0) == 10
    assert height("ms per sentence", point, 3.0) == 3000
    assert height("peak memory, MiB", point, 3.0) == 1
    growth = {"ours": {"1": point, "2": point}}
    samples = dict.fromkeys(("batch", "length", "threads"), growth)
    report = {"date": "2026-01-01", "samples": samples}
    plot(report, tmp_path / "a")
    plot(report, tmp_path / "b")
    for name in PLOTS:
        picture = (tmp_path / "a" / f"{name}.svg").read_bytes()
        assert picture == (tmp_path / "b" / f"{name}.svg").read_bytes()


def test_lines_that_differ_are_counted_by_search() -> None:
    from isolation import render_exact

    machine = {"cpu": "Some CPU", "cores": 2, "instructions": ["avx2"], "kernels": "none"}
    found = {"kernels": {"this": "none"}, "beam 1": {"lines": 5000, "differing": 3}}
    report = {
        "date": "2026-11-24",
        "machine": machine,
        "versions": {},
        "settings": {},
        "samples": {"onnx-int8": found},
    }
    assert "| onnx-int8 | beam 1 | 5,000 | 3 |" in render_exact(report)
