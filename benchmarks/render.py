"""Make docs/results.md, and the generated parts of other pages, from benchmarks/results/.

    python benchmarks/render.py

Every run overwrites them: to change a number, measure again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import engine_options
import engine_plan
import gpu_tables
import layer_growth
import parsing_table
import plan
import training_estimates
from harness import RESULTS, read_reports
from performance_tables import PARTS_OF_PAGE, render_first_translation, render_readme
from plots import (
    PLOT_DIRECTORY,
    plot_front,
    plot_layers,
    plot_parsers,
    plot_scaling,
    plot_serving,
    plot_table3,
)
from results_tables import (
    render_compiling,
    render_constraints,
    render_corpus,
    render_cpp_library,
    render_device_rows,
    render_exact,
    render_front,
    render_front_summary,
    render_graph_choices,
    render_http_load,
    render_independence,
    render_loss,
    render_run,
    render_sentence_splitting,
    render_serving,
    render_serving_attack,
    render_table3,
    render_tracing,
    render_training,
    render_training_steps,
    render_versions,
)
from table3_rows import has_table3
from tables import fill

ROOT = RESULTS.parent.parent
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
SCALE = ROOT / "docs" / "scale.md"
SERVE = ROOT / "docs" / "serve.md"
THOUSAND_GPUS = ROOT / "docs" / "thousand-gpus.md"
GPU = ROOT / "docs" / "gpu.md"
ENGINES = ROOT / "docs" / "engines.md"
TERMINOLOGY = ROOT / "docs" / "terminology.md"
TRAIN = ROOT / "docs" / "train.md"
EMBED = ROOT / "docs" / "embed-cpp.md"
HEAD = """# Results

`python benchmarks/render.py` makes this page from the JSON files in `benchmarks/results/`, which
hold the machine, the versions, the settings, and medians with extremes (`--samples` of each script
keeps all measurements). Ratios compare systems that ran in turn, in one run: the median, and in
brackets the smallest and largest. Absolute times are those of the machine named.

In the tables of trained models, *difference* is BLEU minus PyTorch's BLEU with a 95 % interval,
*identical* counts sentences that are translated as by PyTorch, token for token, and *gate* tells
whether a target meets the thresholds of `translate-trt verify`.
"""

#: Sections of docs/results.md by the report's name: title, and what renders it.
SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "run-multi30k": ("Multi30k English-German, test_2016_flickr", render_run),
    "run-multi30k-fr": ("Multi30k English-French, test_2016_flickr", render_run),
    "run-quickstart": ("The quickstart's generated corpus", render_run),
    "front-multi30k": ("Students of a Multi30k English-German teacher", render_front),
    "front-multi30k-wide": (
        "A student of a wide Multi30k teacher, trained on a CPU",
        render_front,
    ),
    "front-multi30k-small": (
        "Students of a small Multi30k teacher, trained on a CPU",
        render_front,
    ),
    "front-mixed": ("Students of a mixed English-German corpus, trained on a CPU", render_front),
    "training": ("Training speed beside JoeyNMT", render_training),
    "training-without-bf16": (
        "Training speed beside JoeyNMT, on a processor without bf16 instructions",
        render_training,
    ),
    "training-base": ("Training steps of `base`", render_training_steps),
    "training-big": ("Training steps of `big`", render_training_steps),
    "loss-bf16": ("Loss over the vocabulary of `base`, bf16", render_loss),
    "loss-fp32": ("Loss over the vocabulary of `base`, fp32", render_loss),
    "table3-base": ("Table 3", render_table3),
    "table3-miniature": ("Table 3 in miniature", render_table3),
    "table3-tiny": ("Rows of Table 3 with `tiny`", render_table3),
    "parsing-craft": ("Constituency parsing on CRAFT", parsing_table.render),
    "layer-complexity": ("Table 1 measured, on a CPU", layer_growth.render),
    "layer-complexity-cuda": ("Table 1 measured, on a GPU", layer_growth.render),
    "compiling": ("Compiling", render_compiling),
    "tracing": ("Tracing", render_tracing),
    "graph-choices": ("Gain of each graph pass", render_graph_choices),
    "independence": ("Sentences in random batches and alone", render_independence),
    "versions-base": (
        "Cost of batch-independent results, a model of the shape of `base`",
        render_versions,
    ),
    "versions-small": ("Cost of batch-independent results, `small`", render_versions),
    "versions-library-base": (
        "libtranslate_trt against the loop in Python, a model of the shape of `base`",
        render_versions,
    ),
    "versions-library-small": (
        "libtranslate_trt against the loop in Python, `small`",
        render_versions,
    ),
    "exact-library": ("Identical translations before and after: libtranslate_trt", render_exact),
    "exact-reference": (
        "Identical translations before and after: the loop in Python and `runtime/reference.py`",
        render_exact,
    ),
    "exact-rule-6": (
        "Identical translations before and after: hypotheses cut off in the step graph",
        render_exact,
    ),
    "sentence-splitting": ("Sentence splitting", render_sentence_splitting),
    "serving-attack": ("A server under attack", render_serving_attack),
    "http-load-base": (
        "The HTTP server under load, a model of the shape of `base`",
        render_http_load,
    ),
    "http-load-tiny": ("The HTTP server under load, `tiny`", render_http_load),
}

Parts = dict[str, tuple[Callable[[list[dict[str, Any]]], str], tuple[str, ...]]]
#: Parts of docs/gpu.md by name: what renders them, and the reports that it takes if they exist.
PARTS_OF_GPU: Parts = {
    "gpu-search": (gpu_tables.render_search, ("gpu-base-fp16", "gpu-base-fp16-uncaptured")),
    "gpu-kernels": (
        gpu_tables.render_search_kernels,
        ("kernels-base-fp16-64-graphs", "kernels-base-fp16-1-graphs"),
    ),
}
#: The same of docs/train.md.
PARTS_OF_TRAIN: Parts = {
    "training-gpu": (
        gpu_tables.render_training,
        ("training-base-cuda", "training-base-cuda-eager", "training-big-cuda"),
    ),
    "training-gpu-kernels": (gpu_tables.render_training_kernels, ("training-base-cuda",)),
}


def main() -> None:
    """Render the newest report of every kind."""
    reports = read_reports()
    sections = [
        f"## {title}\n\n{render(reports[name])}"
        for name, (title, render) in SECTIONS.items()
        if name in reports
    ]
    PAGE.write_text("\n".join([HEAD, *sections]), encoding="utf-8")
    if {"throughput", "latency"} <= reports.keys():
        fill(README, "performance", render_readme(reports["throughput"], reports["latency"]))
    if "first-translation" in reports:
        found = reports["first-translation"]
        fill(README, "first-translation", render_first_translation(found))
    for name, render in PARTS_OF_PAGE.items():
        if name in reports:
            fill(PERFORMANCE, name, render(reports[name]))
    if "scaling" in reports:
        plot_scaling(reports["scaling"], PLOT_DIRECTORY)
    if "front-multi30k" in reports:
        fill(README, "front-multi30k", render_front_summary(reports["front-multi30k"]))
        plot_front(reports["front-multi30k"], PLOT_DIRECTORY / "front.svg")
    for name in ("table3-miniature", "table3-base"):
        if name in reports and has_table3(reports[name]):
            plot_table3(reports[name], PLOT_DIRECTORY / f"{name}.svg")
    for name in ("layer-complexity", "layer-complexity-cuda"):
        if name in reports:
            plot_layers(reports[name], PLOT_DIRECTORY / f"{name}.svg")
    if "parsing-craft" in reports:
        plot_parsers(reports["parsing-craft"], PLOT_DIRECTORY / "parsing-craft.svg")
    if "corpus" in reports:
        fill(SCALE, "corpus", render_corpus(reports["corpus"]))
    if "serving" in reports:
        found = [reports[name] for name in ("serving", "serving-2-instances") if name in reports]
        fill(SERVE, "triton", "\n".join(map(render_serving, found)))
        plot_serving(reports["serving"], PLOT_DIRECTORY)
    if "constraints" in reports:
        fill(TERMINOLOGY, "constraints", render_constraints(reports["constraints"]))
    if "device-rows" in reports:
        fill(GPU, "device-rows", render_device_rows(reports["device-rows"]))
    for shape in ("base", "small", "tiny"):
        if (name := f"cpp-library-{shape}") in reports:
            fill(EMBED, name, render_cpp_library(reports[name]))
    if (name := "engine-plan") in reports:
        fill(GPU, name, engine_plan.render(reports[name]))
        fill(GPU, f"{name}-kernels", engine_plan.render_kernels(reports[name]))
    if (name := "engine-options") in reports:
        fill(ENGINES, name, engine_options.render(reports[name]))
    for page, parts in ((GPU, PARTS_OF_GPU), (TRAIN, PARTS_OF_TRAIN)):
        for name, (render_parts, wanted) in parts.items():
            if wanted[0] in reports:
                fill(page, name, render_parts([reports[one] for one in wanted if one in reports]))
    fill(THOUSAND_GPUS, "plan", plan.text(plan.Inputs()))
    estimates = training_estimates.text(training_estimates.Inputs())
    fill(TRAIN, "training-estimates", estimates)


if __name__ == "__main__":
    main()
