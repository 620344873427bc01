"""Make docs/results.md, and the tables of the README and docs/performance.md, from the JSON files
in benchmarks/results/.

    python benchmarks/render.py

All are overwritten: to change a number, measure again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import plan
from isolation import (
    render_exact,
    render_independence,
    render_memory,
    render_serving_attack,
    render_versions,
    render_waiting,
)
from performance import PARTS_OF_PAGE, render_readme
from plots import PLOT_DIRECTORY, plot, plot_serving, serving_percentiles
from report import RESULTS, ratios, throughput_figures
from serving import RUNTIME
from tables import fill, table, where

from translate_trt.train.config import TABLE3, TABLE3_MODELS

ROOT = RESULTS.parent.parent
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
SCALE = ROOT / "docs" / "scale.md"
SERVE = ROOT / "docs" / "serve.md"
DEPLOY = ROOT / "docs" / "deploy.md"
EMBED = ROOT / "docs" / "embed-cpp.md"
IMPORT = ROOT / "docs" / "import.md"
HEAD = """# Results

Made by `python benchmarks/render.py` from the JSON files in `benchmarks/results/`, which hold the
machine, the versions, the settings and every sample. Ratios compare systems that ran in turn,
in one run; absolute times are those of the machine named.
"""


def render_run(report: dict[str, Any]) -> str:
    """A trained model: how it was made, and its evidence."""
    settings, samples = report["settings"], report["samples"]
    training, model = samples["training"], settings["model"]
    quiet = not settings["note"]  # other work on the machine changes times, and nothing else
    rows, stands_in = [], False
    for name, target in samples["targets"].items():
        parity = target["parity"]
        low, high = parity["bleu_difference_interval"]
        stand_in = parity.get("engine_not_run") is not None
        stands_in = stands_in or stand_in
        rows.append(
            [
                name,
                f"{parity['bleu']:.2f}",
                f"{parity['bleu_difference']:+.2f} [{low:+.2f}, {high:+.2f}]",
                f"{parity['identical_percent']:.1f} %",
                "" if stand_in or not quiet else f"{parity['sentences_per_second']:.1f}",
                f"{target['bytes'] / 1e6:.1f} MB",
                ("passed" if parity["passed"] else "FAILED") + (" (its graph)" if stand_in else ""),
            ]
        )
    rows.insert(
        0,
        ["PyTorch beam search", f"{parity['reference_bleu']:.2f}", "", "",
         f"{parity['reference_sentences_per_second']:.1f}" if quiet else "", "", ""],
    )  # fmt: skip
    header = ["", "BLEU", "difference (95 %)", "identical", "sentences/s", "size", "gate"]
    note = "" if quiet else " Times are left out: the machine did other work meanwhile."
    time = (
        f" in {training['wall_seconds'] / 60:.0f} minutes "
        f"({training['median_target_tokens_per_second']:.0f} target tokens/s)"
    )
    if stands_in:
        note += (
            " Engines could not run there; the graphs they are built from did, in ONNX Runtime on "
            "the CPU with every operator rounding as its type does."
        )
    return (
        f"`{settings['command']}`\n\n{where(report)}{note}\n\n"
        f"{model['encoder_layers']}+{model['decoder_layers']} layers, d_model {model['d_model']}, "
        f"d_ff {model['d_ff']}, {model['heads']} heads, vocabulary {model['vocabulary_size']:,}, "
        f"dropout {model['dropout']}, {samples['parameters']:,} parameters; "
        f"{settings['train']['steps']:,} steps of up to {settings['train']['batch_tokens']:,} "
        f"tokens{time if quiet else ''}.\n\n"
        f"{table(header, rows)}\n"
        f"{parity['sentences']} sentences, beam {parity['beam_size']}, length penalty "
        f"{parity['length_penalty']}, `{parity['signature']}`.\n"
    )


def render_training(report: dict[str, Any]) -> str:
    """Training speed beside a peer."""
    settings, samples = report["settings"], report["samples"]["target_tokens_per_second"]
    rows = [
        [name, f"{statistics.median(values):.0f}", f"{min(values):.0f} to {max(values):.0f}"]
        for name, values in samples.items()
    ]
    text = table(["", "target tokens/s, median", "range"], rows)
    if "joeynmt" in samples:
        middle, low, high = ratios(samples, "joeynmt", "translate-trt")
        text += f"\nRatio, pair by pair: {middle:.2f} [{low:.2f}, {high:.2f}].\n"
    return (
        "`python benchmarks/training.py --source train.en --target train.de --joeynmt PYTHON`\n\n"
        f"{where(report)} One epoch over {settings['pairs']:,} pairs of Multi30k, batches of "
        f"{settings['batch_tokens']:,} tokens, the `small` preset's shape, each system at "
        f"its default precision on this processor (JoeyNMT: fp32).\n\n{text}"
    )


def render_parts(report: dict[str, Any]) -> str:
    """The parts of a training step."""
    samples = report["samples"]
    rows = []
    for part in ("dropout, s", "loss, s", "attention in bfloat16, s"):
        for name, values in samples.get(part, {}).items():
            rows.append([part[:-3], name, f"{1e3 * statistics.median(values):.1f} ms"])
    for name, share in samples["padding"].items():
        rows.append(["batches", name, f"{100 * share:.1f} % padding"])
    return (
        "`python benchmarks/training.py --parts --source train.en --target train.de "
        f"--pairs {report['settings']['pairs']}`\n\n{where(report)}\n\n"
        + table(["part", "how", "median"], rows)
    )


def render_corpus(report: dict[str, Any]) -> str:
    """A corpus by workers on a cluster, and by one process."""
    settings, samples = report["settings"], report["samples"]
    first = next(iter(samples))
    seconds = {name: [one["seconds"] for one in rounds] for name, rounds in samples.items()}
    rows = []
    for name, rounds in samples.items():
        middle = statistics.median(seconds[name])
        ratio, low, high = ratios(seconds, name, first)
        rows.append(
            [
                f"{name} worker{'s' if name != '1' else ''}" if name.isdigit() else name,
                f"{rounds[0]['lines'] / middle:.1f}",
                f"{rounds[0]['tokens'] / middle:.0f}",
                f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
                f"{statistics.median(one['start_seconds'] for one in rounds):.1f} s",
            ]
        )
    note = f" {settings['note']}" if settings["note"] else ""
    header = ["", "sentences/s", "target tokens/s", f"times {first} worker", "start"]
    return (
        f"{where(report)}{note} {settings['lines']:,} lines, shards of {settings['shard_lines']}, "
        f"{settings['target']}, median of {len(seconds[first])} rounds in turn; pair by pair, "
        f"smallest and largest in brackets.\n\n{table(header, rows)}"
    )


def render_serving(report: dict[str, Any]) -> str:
    """A Triton server against the number of clients."""
    settings, samples = report["settings"], dict(report["samples"])
    alone = [one["lines"] / one["seconds"] for one in samples.pop(RUNTIME)]
    rows = []
    for clients, rounds in samples.items():
        speeds = [len(one["latencies"]) / one["seconds"] for one in rounds]
        rows.append(
            [
                clients,
                f"{statistics.median(speeds):.1f} [{min(speeds):.1f}, {max(speeds):.1f}]",
                *(f"{1e3 * value:.0f}" for value in serving_percentiles(rounds)),
                str(sum(len(one["latencies"]) for one in rounds)),
            ]
        )
    note = f" {settings['note']}" if settings["note"] else ""
    several = settings["instances"] > 1
    flag = f" --instances {settings['instances']}" if several else ""
    header = ["clients", "sentences/s", "p50, ms", "p95", "p99", "requests"]
    text = (
        f"`python benchmarks/serving.py --bundle DIR --source {settings['source']}{flag}`\n\n"
        f"{where(report)}{note} Triton {settings['triton']}, {settings['target']}, "
        f"instances: {settings['instances']}; gRPC, a line a request, each client sends its next "
        "when it has an answer; server and clients share the cores. Speeds are medians of "
        f"{len(alone)} rounds, smallest and largest in brackets. Latencies are of the requests of "
        "all rounds. The runtime alone, all lines in "
        f"one call: {statistics.median(alone):.1f} sentences/s.\n\n{table(header, rows)}"
    )
    picture = "\n![throughput and latency](plots/serving-clients.svg)\n"
    return text if several else text + picture


def render_cpp_library(report: dict[str, Any]) -> str:
    """The C++ library beside Python's runtime."""
    settings, samples = report["settings"], report["samples"]
    counts = {"all lines": settings["lines"], "line by line": settings["line_by_line"]}
    rows = []
    systems = list(next(iter(next(iter(samples.values()))["seconds"].values())))
    for target, found in samples.items():
        for part, seconds in found["seconds"].items():
            medians = [statistics.median(seconds[name]) for name in systems]
            shown = (
                [f"{1000 * one:.0f} ms" for one in medians]
                if part not in counts
                else [f"{counts[part] / one:.1f} sentences/s" for one in medians]
            )
            compared = [ratios(seconds, name, "Python") for name in systems[1:]]
            shown += [f"{middle:.2f} [{low:.2f}, {high:.2f}]" for middle, low, high in compared]
            rows.append([target, part, *shown])
    clients = []
    for target, found in samples.items():
        middle, low, high = ratios(found["clients"], "clients", "one call")
        speeds = [
            settings["lines"] / statistics.median(found["clients"][name])
            for name in ("one call", "clients")
        ]
        clients.append(
            [target, *(f"{one:.1f}" for one in speeds), f"{middle:.2f} [{low:.2f}, {high:.2f}]"]
        )
    names = {"clients": f"{settings['clients']} threads"}
    spent = [
        [target, names.get(way, way), f"{one['in graphs']:.2f}", f"{one['outside']:.2f}"]
        for target, found in samples.items()
        for way, one in found["processor time"].items()
    ]
    note = f" {settings['note']}" if settings["note"] else ""
    model = settings["model"]
    rounds = len(next(iter(samples.values()))["seconds"]["all lines"]["C++"])
    differing = max(found["differing"] for found in samples.values())
    return (
        "`python benchmarks/cpp_library.py --bundle DIR --source test.en`\n\n"
        f"{where(report)}{note} {settings['lines']:,} lines in one call with {settings['workers']} "
        f"workers of one thread, {settings['line_by_line']} lines in a call each with one; "
        f"tokenization included; a model of {model['parameters'] / 1e6:.1f} million parameters. "
        f"Median of {rounds} rounds in turn; "
        "relative to Python without the library pair by pair (above 1: faster), smallest and "
        "largest in brackets. Line by line, translations are the same, byte for byte; in calls "
        f"with several workers, {differing} of {settings['lines']:,} lines differed.\n\n"
        + table(["", "", *systems, *(f"{name} / Python" for name in systems[1:])], rows)
        + f"\nThe library alone, sentences/s: {settings['workers']} workers, all lines in one "
        f"call, and the same lines submitted one at a time by each of {settings['clients']} "
        "threads.\n\n"
        + table(["", "one call", f"{settings['clients']} threads", "threads / call"], clients)
        + "\nProcessor time of its workers' threads, ms per sentence, in ONNX Runtime's graphs and "
        "outside of them (scheduling, batches, back-trace, detokenization):\n\n"
        + table(["", "", "in the graphs", "outside"], spent)
        + _python_service(settings["lines"], samples)
    )


def _python_service(lines: int, samples: dict[str, Any]) -> str:
    """Python's service on the library: mixed options, and the interpreter lock."""
    rows = []
    for target, found in samples.items():
        service = found["service"]
        middle, low, high = ratios(service, "64 penalties", "one penalty")
        speeds = [
            f"{lines / statistics.median(service[name]):.1f}"
            for name in ("one penalty", "64 penalties")
        ]
        lock = f"{statistics.median(service['lock']):.0f} us"
        rows.append([target, *speeds, f"{middle:.2f} [{low:.2f}, {high:.2f}]", lock])
    header = ["", "one length penalty", "64 penalties", "64 / one", "lock held"]
    return (
        "\nPython's `TranslationService` on the library, sentences/s: lines submitted one by one, "
        "with one length penalty and with 64 different ones; and how long each sentence holds the "
        "interpreter lock when its result is handed over:\n\n" + table(header, rows)
    )


def render_cache(report: dict[str, Any]) -> str:
    """Cache policies."""
    rows = []
    for name, values in report["samples"].items():
        middle, low, high = ratios(values, "ancestry", "reordered")
        rows.append(
            [
                name,
                *(f"{statistics.median(values[p]):.2f}" for p in ("reordered", "ancestry")),
                f"{middle:.2f} [{low:.2f}, {high:.2f}]",
            ]
        )
    return (
        f"`python benchmarks/cache_policy.py`\n\n{where(report)} Self-attention of six layers of "
        "`base`, beam 4, after T steps, ms per step.\n\n"
        + table(["", "reordered", "ancestry", "reordered / ancestry"], rows)
    )


def render_int8(report: dict[str, Any]) -> str:
    """Forms of the int8 product."""
    first = next(iter(report["samples"].values()))["seconds"]
    rows = [
        [
            name,
            *(f"{1e6 * statistics.median(values['seconds'][form]):.0f}" for form in first),
        ]
        for name, values in report["samples"].items()
    ]
    return (
        f"`python benchmarks/int8_product.py`\n\n{where(report)} Microseconds per product with M "
        f"rows, quantizing included.\n\n{table(['', *first], rows)}"
    )


def render_data(report: dict[str, Any]) -> str:
    """Preparation of a large corpus."""
    settings, samples = report["settings"], report["samples"]
    prepare, train = samples["prepare"], samples["prepare"]["train"]
    batches = [sample["all"] for sample in samples["first_batch_seconds"]]
    many = samples["36 million pairs"]
    rows = [
        *([stage, f"{seconds:.0f} s"] for stage, seconds in prepare["seconds"].items()),
        ["peak memory, all processes", f"{prepare['peak_memory_gib']:.1f} GiB"],
        [
            "first batch, from the start of a process",
            f"{statistics.median(batches):.1f} s ({min(batches):.1f} to {max(batches):.1f})",
        ],
        *(
            [
                f"36 million pairs: {name}",
                f"{part['seconds']:.1f} s, {part['peak_memory_gib']:.1f} GiB",
            ]
            for name, part in many.items()
        ),
    ]
    note = f" {settings['note']}" if settings["note"] else ""
    return (
        f"`python benchmarks/data_preparation.py --pairs {settings['pairs']} --directory DIR`\n\n"
        f"{where(report)}{note} A generated corpus of {settings['pairs']:,} pairs "
        f"({samples['text_bytes'] / 1e9:.1f} GB of text), {settings['workers']} processes; "
        f"{train['pairs']:,} pairs and {train['source_tokens'] + train['target_tokens']:,} tokens "
        f"are kept, in a vocabulary of {prepare['vocabulary_size']:,}.\n\n"
        f"{table(['', ''], rows)}"
    )


def render_table3(report: dict[str, Any]) -> str:
    """The rows of Table 3 that were trained."""
    settings, samples = report["settings"], report["samples"]
    rows = []
    for name, found in samples.items():
        row = TABLE3.get(name)
        rows.append(
            [
                row.group if row else "",
                name,
                f"{found['perplexity']:.2f}",
                f"{found['bleu']:.2f}",
                # Reports of older versions lack it.
                f"{found['tokenized_bleu']:.2f}" if "tokenized_bleu" in found else "",
                f"{found['parameters'] / 1e6:.2f}",
                f"{row.perplexity:.2f}" if row else f"{TABLE3_MODELS['base'].perplexity:.2f}",
                f"{row.bleu:.1f}" if row else f"{TABLE3_MODELS['base'].bleu:.1f}",
            ]
        )
    header = ["", "row", "perplexity", "BLEU", "tokenized BLEU", "10^6 parameters"]
    header += ["paper's perplexity (of base)", "paper's tokenized BLEU"]
    note = f" {settings['note']}" if settings["note"] else ""
    first = next(iter(samples.values()))
    return (
        f"`bash scripts/table3.sh DATA OUT {settings['preset']} {' '.join(samples)}`\n\n"
        f"{where(report)}{note} Variations of `{settings['preset']}`, {first['steps']:,} steps, "
        "the last checkpoint, beam 4, length penalty 0.6; perplexity per piece and BLEU of the "
        f"validation text (`{first['signature']}`).\n\n{table(header, rows)}"
    )


def render_throughput(report: dict[str, Any]) -> str:
    """Training steps of one preset."""
    settings, samples = report["settings"], report["samples"]
    rows = [[name, f"{value:,.4g}"] for name, value in throughput_figures(samples).items()]
    return (
        f"`python benchmarks/training.py --data DIR --preset {settings['preset']}`\n\n"
        f"{where(report)} {settings['note']} On {samples['device']} in {samples['precision']}; "
        "the utilization is of "
        f"{samples['peak_flops'] / 1e12:.3g} TFLOP/s ({samples['peak_is']}).\n\n"
        f"{table(['', 'median'], rows)}"
    )


def by_sentences(samples: dict[str, Any]) -> dict[str, dict[int, Any]]:
    """Samples named "part, N sentences": by part, then by N."""
    found: dict[str, dict[int, Any]] = {}
    for name, value in samples.items():
        part, _, sentences = name.rpartition(", ")
        found.setdefault(part, {})[int(sentences.split()[0])] = value
    return found


def render_imported_shapes(report: dict[str, Any]) -> str:
    """Both graphs of models that are not the paper's: milliseconds of one that is, and ratios."""
    settings, rows = report["settings"], []
    paper = next(name for name, changes in settings["shapes"].items() if not changes)
    for part, found in report["samples"].items():
        precision, graph, sentences = part.split(", ")
        cells = [f"{1e3 * statistics.median(found[paper]):.1f} ms"]
        others = [ratios(found, paper, name) for name in found if name != paper]
        cells += [f"{middle:.2f} [{low:.2f}, {high:.2f}]" for middle, low, high in others]
        rows.append([precision, graph, sentences, *cells])
    names = [paper, *(name for name in settings["shapes"] if name != paper)]
    return (
        f"{where(report)} One thread, vocabulary {settings['vocabulary']:,}, {settings['beams']} "
        f"beams.\n\n{table(['', '', '', *names], rows)}"
    )


def render_graph_choices(report: dict[str, Any]) -> str:
    """A step without each pass: time relative to the step as it is shipped."""
    parts = by_sentences(report["samples"])
    sizes = list(next(iter(parts.values())))
    rows = []
    for part, by_size in parts.items():
        precision, _, what = part.partition(", ")
        cells = []
        for size in sizes:
            middle, low, high = ratios(by_size[size], "shipped", "other")
            cells.append(f"{middle:.2f} [{low:.2f}, {high:.2f}]")
        rows.append([precision, what, *cells])
    header = ["", "a step of base", *(f"{size} sentences" for size in sizes)]
    return (
        "Time relative to the step as it is shipped (above 1: the pass helps), median and extremes "
        f"of the pairs; {report['settings']['threads']} thread. Dropping one pass leaves the "
        "others, and ONNX Runtime's own optimizer, to make up for part of it.\n\n"
        f"`python benchmarks/graph_choices.py`; {where(report)}\n\n{table(header, rows)}"
    )


def render_operator_choices(report: dict[str, Any]) -> str:
    """Ways to write a part of a step: time relative to the first of each part."""
    parts = by_sentences(report["samples"])
    sizes = list(next(iter(parts.values())))
    rows = []
    for part, by_size in parts.items():
        plain, *others = by_size[sizes[0]]
        rows.append([part, plain, *("1" for _ in sizes)])
        for way in others:
            cells = [f"{ratios(by_size[size], plain, way)[0]:.2f}" for size in sizes]
            rows.append(["", way, *cells])
    header = ["part", "written as", *(f"{size} sentences" for size in sizes)]
    return (
        "Time relative to the first way of each part, median of the pairs; "
        f"{report['settings']['threads']} thread.\n\n"
        f"`python benchmarks/operator_choices.py`; {where(report)}\n\n{table(header, rows)}"
    )


def render_compiling(report: dict[str, Any]) -> str:
    """Seconds and memory of exports."""
    rows = [
        [name, f"{statistics.median(one['seconds']):.0f} s", f"{max(one['gib']):.1f} GiB"]
        for name, one in report["samples"].items()
    ]
    header = ["`translate-trt export` of base", "seconds, median", "memory, peak"]
    return (
        f"{report['settings']['vocabulary']:,} pieces, a fresh process each.\n\n"
        f"`python benchmarks/compiling.py`; {where(report)}\n\n{table(header, rows)}"
    )


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "run-multi30k": ("Multi30k English-German, test_2016_flickr", render_run),
    "run-multi30k-fr": ("Multi30k English-French, test_2016_flickr", render_run),
    "run-quickstart": ("The quickstart's generated corpus", render_run),
    "training": ("Training speed beside JoeyNMT", render_training),
    "training-without-bf16": (
        "Training speed beside JoeyNMT, on a processor without bf16 instructions",
        render_training,
    ),
    "training-base": ("Training steps of `base`", render_throughput),
    "training-big": ("Training steps of `big`", render_throughput),
    "table3-base": ("Table 3", render_table3),
    "table3-tiny": ("Table 3 in miniature", render_table3),
    "training-parts": ("Parts of a training step", render_parts),
    "data-preparation": ("Preparing millions of pairs", render_data),
    "compiling": ("Compiling", render_compiling),
    "graph-choices": ("What each pass is worth", render_graph_choices),
    "operator-choices": ("Ways to write a part of a step", render_operator_choices),
    "cache-policy": ("Caches: reordered or masked", render_cache),
    "int8-product": ("Forms of the int8 product", render_int8),
    "independence": ("Sentences in random batches and alone", render_independence),
    "versions-base": ("What independence costs, a model of the shape of `base`", render_versions),
    "versions-small": ("What independence costs, `small`", render_versions),
    "versions-library-base": (
        "What libtranslate_trt brings over Python's loop, a model of the shape of `base`",
        render_versions,
    ),
    "versions-library-small": (
        "What libtranslate_trt brings over Python's loop, `small`",
        render_versions,
    ),
    "exact-library": ("The same translations before and after: libtranslate_trt", render_exact),
    "exact-reference": (
        "The same translations before and after: Python's loop and `runtime/reference.py`",
        render_exact,
    ),
    "exact-rule-6": (
        "The same translations before and after: hypotheses cut off in the step graph",
        render_exact,
    ),
    "serving-attack": ("A server under attack", render_serving_attack),
    "shared-machine-quiet": ("Training on a quiet machine", render_waiting),
    "shared-machine-busy": ("Training beside busy neighbours", render_waiting),
    "shared-machine-memory": ("Memory of training in bf16", render_memory),
}


def main() -> None:
    """Render the newest report of every kind."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json")):  # names begin with the date
        # The name ends with the benchmark's; one benchmark may have several, by its settings.
        newest[path.stem.split("-", 5)[5]] = json.loads(path.read_text())
    page = [HEAD]
    for name, (title, render) in SECTIONS.items():
        if name in newest:
            page.append(f"## {title}\n\n{render(newest[name])}")
    PAGE.write_text("\n".join(page), encoding="utf-8")
    fill_readme(newest)
    fill_performance(newest)
    if "corpus" in newest:
        fill(SCALE, "corpus", render_corpus(newest["corpus"]))
    if "serving" in newest:
        found = [newest[name] for name in ("serving", "serving-2-instances") if name in newest]
        fill(SERVE, "triton", "\n".join(map(render_serving, found)))
        plot_serving(newest["serving"], PLOT_DIRECTORY)
    for shape in ("base", "small", "tiny"):
        if (name := f"cpp-library-{shape}") in newest:
            fill(EMBED, name, render_cpp_library(newest[name]))
    if "imported-shapes" in newest:
        fill(IMPORT, "imported-shapes", render_imported_shapes(newest["imported-shapes"]))
    fill(DEPLOY, "plan", plan.text(plan.Inputs()))


def fill_readme(newest: dict[str, dict[str, Any]]) -> None:
    """Speed and BLEU beside a peer."""
    if {"throughput", "latency"} <= newest.keys():
        fill(README, "performance", render_readme(newest["throughput"], newest["latency"]))


def fill_performance(newest: dict[str, dict[str, Any]]) -> None:
    """The tables that are measured, and the plots beside them."""
    for name, render in PARTS_OF_PAGE.items():
        if name in newest:
            fill(PERFORMANCE, name, render(newest[name]))
    if "scaling" in newest:
        plot(newest["scaling"], PLOT_DIRECTORY)


if __name__ == "__main__":
    main()
