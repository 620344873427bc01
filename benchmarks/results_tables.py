"""Tables of docs/results.md and of single pages: everything but the comparisons with peers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from serving import RUNTIME
from table3_rows import PLAIN, TableRow, error_of_differences, has_table3, squares, table3_rows
from tables import table, where

Report = dict[str, Any]


def note_of(report: Report) -> str:
    """Return the conditions that whoever measured has noted, as the next sentence."""
    note = report["settings"].get("note")
    return f" {note}" if note else ""


def sentences_of(count: int) -> str:
    """Return the head of a column."""
    return "1 sentence" if count == 1 else f"{count} sentences"


def ratio(values: list[float], digits: int = 2) -> str:
    """Format a median with its extremes in brackets."""
    middle, least, most = (f"{value:.{digits}f}" for value in values)
    return f"{middle} [{least}, {most}]"


# ---- trained models ----


def render_run(report: Report) -> str:
    """Render a trained model: its shape, its training, and the parity of every target."""
    settings, results = report["settings"], report["results"]
    training, model = results["training"], settings["model"]
    quiet = not settings["note"]  # other work on the machine changes times, and nothing else
    rows, emulated = [], False
    for name, target in results["targets"].items():
        parity = target["parity"]
        low, high = parity["bleu_difference_interval"]
        not_run = parity.get("engine_not_run") is not None
        emulated = emulated or not_run
        rows.append(
            [
                name,
                f"{parity['bleu']:.2f}",
                f"{parity['bleu_difference']:+.2f} [{low:+.2f}, {high:+.2f}]",
                f"{parity['identical_percent']:.1f} %",
                "" if not_run or not quiet else f"{parity['sentences_per_second']:.1f}",
                f"{target['bytes'] / 1e6:.1f} MB",
                ("passed" if parity["passed"] else "FAILED") + (" (its graph)" if not_run else ""),
            ]
        )
    rows.insert(
        0,
        ["PyTorch beam search", f"{parity['reference_bleu']:.2f}", "", "",
         f"{parity['reference_sentences_per_second']:.1f}" if quiet else "", "", ""],
    )  # fmt: skip
    header = ["target", "BLEU", "difference (95 %)", "identical", "sentences/s", "size", "gate"]
    note = "" if quiet else " Times are left out: the machine did other work meanwhile."
    time = (
        f" in {training['wall_seconds'] / 60:.0f} minutes "
        f"({training['median_target_tokens_per_second']:.0f} target tokens/s)"
    )
    if emulated:
        note += (
            " TensorRT could not run there. Its rows are of the graphs that engines are built "
            "from, in a CPU emulation that rounds every operator's result to its type."
        )
    return (
        f"`{settings['command']}`\n\n{where(report)}{note}\n\n"
        f"{model['encoder_layers']}+{model['decoder_layers']} layers, d_model {model['d_model']}, "
        f"d_ff {model['d_ff']}, {model['heads']} heads, vocabulary {model['vocabulary_size']:,}, "
        f"dropout {model['dropout']}, {results['parameters']:,} parameters; "
        f"{settings['train']['steps']:,} steps of up to {settings['train']['batch_tokens']:,} "
        f"tokens{time if quiet else ''}.\n\n"
        f"{table(header, rows)}\n"
        f"{parity['sentences']} sentences, beam {parity['beam_size']}, length penalty "
        f"{parity['length_penalty']}, `{parity['signature']}`.\n"
    )


#: Limits of conclusions from `miniature` and Multi30k.
LIMITS_OF_MINIATURE = (
    "What cannot be concluded: the sizes of the paper's differences, and anything about rows on "
    "WMT. The model has half the layers and an eighth of the widths of base, and the text is one "
    "of short captions, some 150 times smaller than WMT14, so capacity, regularization and "
    "positions matter to other degrees. All rows share one schedule, which may suit some of them "
    "better. "
)


def render_table3(report: Report) -> str:
    """Render the trained rows of the paper's Table 3, and what they allow to conclude."""
    settings, results = report["settings"], report["results"]
    rows = table3_rows(report)
    lines = []
    for row in rows:
        paper = row.paper
        lines.append(
            [
                paper.group,
                row.name,
                row.changes,
                _of_seeds(row.perplexity),
                _of_seeds(row.bleu),
                _of_seeds(row.tokenized),
                f"{row.difference:+.2f}" if row.difference is not None else "",
                f"{row.parameters / 1e6:.2f}",
                f"{paper.perplexity:.2f}",
                f"{paper.bleu:.1f}",
                f"{row.papers_difference:+.1f}" if paper.group else "",
            ]
        )
    header = ["group", "row", "change", "perplexity", "BLEU", "tokenized BLEU", "from `plain`"]
    header += ["10^6 parameters", "paper's perplexity", "paper's tokenized BLEU", "from base"]
    first = next(iter(results.values()))["runs"][0]
    counts = {row: len(found["runs"]) for row, found in results.items()}
    seeds = [str(run["seed"]) for run in results[min(counts, key=counts.__getitem__)]["runs"]]
    command = f"bash scripts/table3.sh DATA OUT {settings['preset']} {' '.join(results)}"
    means = ""
    if len(seeds) > 1:
        command = f'SEEDS="{" ".join(seeds)}" {command}'
        means = ", means of the seeds, with the smallest and largest in brackets"
        if counts[PLAIN] > len(seeds):
            means += f"; `{PLAIN}` has {counts[PLAIN]} seeds"
    devices = "".join(f"{device}; " for device in settings["devices"] if device != "cpu")
    # Reports before 2026-11-28 have no precision.
    precision = f", matmuls in {settings['precision']}" if "precision" in settings else ""
    text = (
        f"`{command}`\n\n{devices}{where(report)}{note_of(report)} Variations of "
        f"`{settings['preset']}`, {first['steps']:,} steps{precision}, the last checkpoint, beam "
        "4, length penalty 0.6; perplexity per token and BLEU of the validation text "
        f"(`{first['signature']}`"
        f"){means}.\n\n{table(header, lines)}"
    )
    return f"{text}\n{_conclusions(rows, report)}" if has_table3(report) else text


def _of_seeds(values: Sequence[float]) -> str:
    """Format the mean of the seeds with their extremes; reports of older versions lack some."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.2f}, {max(values):.2f}]"


def _largest_variance(rows: Sequence[TableRow]) -> str:
    """Name the row that contributes most to the pooled variance over seeds, and its share."""
    found = {row.name: squares(row.tokenized) for row in rows}
    name = max(found, key=found.__getitem__)
    return f"{100 * found[name] / (sum(found.values()) or 1):.0f} % of it from `{name}`"


def _conclusions(rows: Sequence[TableRow], report: Report) -> str:
    """Render the plot, and what the differences allow to conclude."""
    error = error_of_differences([row.tokenized for row in rows])
    moved = [row for row in rows if abs(row.difference or 0) > error]
    signs: dict[str, list[str]] = {"same": [], "opposite": [], "none": []}
    for row in moved:
        agreement = (row.difference or 0) * row.papers_difference
        sign = "same" if agreement > 0 else "opposite" if agreement < 0 else "none"
        signs[sign].append(f"`{row.name}`")
    named = {
        sign: f"{len(found)} ({', '.join(found)})" if found else "0"
        for sign, found in signs.items()
    }
    return (
        "![Differences of tokenized BLEU and perplexity from base, ours beside the paper's]"
        f"(plots/{report['benchmark']}.svg)\n\n"
        "What can be concluded: whether a change moves this model, on this text, in the direction "
        f"in which it moved the paper's. {len(moved)} of {len(rows) - 1} rows differ from `plain` "
        f"by more than {error:.2f} BLEU, two standard errors of a difference (from the variance "
        f"over seeds, pooled over the rows; {_largest_variance(rows)}; one row in twenty does by "
        "chance). The paper's "
        f"difference has the same sign in {named['same']} of these, the opposite sign in "
        f"{named['opposite']}, and is 0.0 in {named['none']}. The other rows decide nothing.\n\n"
        f"{LIMITS_OF_MINIATURE if report['settings']['preset'] == 'miniature' else ''}"
        "Perplexities are per token of different vocabularies: compare their ratios to base only. "
        "The paper does not give the spread of its figures over seeds.\n"
    )


def render_front_summary(report: Report) -> str:
    """Render a teacher and the Pareto front of its students."""
    results = report["results"]
    teacher, *rows = results["rows"]
    front = [row for row in rows if row["on_front"]]
    lines = [
        [
            *_system_of(row, results),
            f"{row['bleu']:.2f}",
            f"{row['bleu'] - teacher['bleu']:+.2f}",
            f"{row['words_per_second']:,.0f}",
            f"{row['words_per_second'] / teacher['words_per_second']:.1f}x",
            f"{row['milliseconds']:.1f}",
            f"{row['megabytes']:.1f}",
        ]
        for row in (teacher, *front)
    ]
    header = ["decoder", "size", "shortlist", "beam", "BLEU", "difference", "words/s", "relative"]
    header += ["ms/sentence", "MB"]
    return (
        f"{where(report)}{note_of(report)} {report['settings']['test']}, int8. The teacher, and "
        f"the Pareto front of BLEU and words per second.\n\n{table(header, lines)}"
    )


def _system_of(row: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """Describe the system of a row: decoder, size, shortlist and beam size."""
    system = results["systems"][row["system"]]
    return [
        system["decoder"] or "teacher",
        system["size"],
        "yes" if row["target"].endswith("shortlist") else "no",
        str(row["beam_size"]),
    ]


def render_front(report: Report) -> str:
    """Render the table of a distillation."""
    settings, results = report["settings"], report["results"]
    rows = results["rows"]
    teacher = rows[0]
    lines = []
    for row in rows:
        speed = row["words_per_second"] / teacher["words_per_second"]
        latency = teacher["milliseconds"] / row["milliseconds"]
        lines.append(
            [
                *_system_of(row, results),
                f"{row['bleu']:.2f}",
                f"{row['chrf']:.2f}",
                f"{row['words_per_second']:,.0f}",
                f"{speed:.1f}x",
                f"{row['milliseconds']:.1f}",
                f"{latency:.1f}x",
                f"{row['megabytes']:.1f}",
                "*" if row["on_front"] else "",
            ]
        )
    header = ["decoder", "size", "shortlist", "beam", "BLEU", "chrF", "words/s", "relative"]
    header += ["ms/sentence", "relative", "MB", "front"]
    counts = results["selection"]
    return (
        f"`{settings['command']}`\n\n{where(report)}{note_of(report)} Int8; {settings['test']}; "
        f"{counts['kept']:,} of {counts['read']:,} translated lines were selected. Words are the "
        "source's, with a single-threaded worker on each core; ms per sentence is the median of "
        "single lines on all cores; relative speeds are to the first row. An asterisk marks the "
        "Pareto front of BLEU and words per second.\n\n"
        f"{table(header, lines)}"
    )


# ---- training speed ----


def render_training(report: Report) -> str:
    """Render training speed beside a peer."""
    settings, speeds = report["settings"], dict(report["results"]["target_tokens_per_second"])
    compared = speeds.pop("translate-trt / joeynmt", None)
    rows = [
        [name, f"{middle:.0f}", f"{least:.0f} to {most:.0f}"]
        for name, (middle, least, most) in speeds.items()
    ]
    text = table(["system", "target tokens/s, median", "range"], rows)
    if compared is not None:
        text += f"\ntranslate-trt / JoeyNMT, pair by pair: {ratio(compared)}.\n"
    return (
        "`python benchmarks/training.py --source train.en --target train.de --joeynmt PYTHON`\n\n"
        f"{where(report)} One epoch over {settings['pairs']:,} pairs of Multi30k, batches of "
        f"{settings['batch_tokens']:,} tokens, the `small` preset's shape, each system at "
        f"its default precision on this processor (JoeyNMT: fp32).\n\n{text}"
    )


def render_training_steps(report: Report) -> str:
    """Render the training steps of one preset."""
    settings, results = report["settings"], report["results"]
    rows = [[name, f"{value:,.4g}"] for name, value in results["figures"].items()]
    return (
        f"`python benchmarks/training.py --data DIR --preset {settings['preset']}`\n\n"
        f"{where(report)} {settings['note']} On {results['device']} in {results['precision']}; "
        "utilization is relative to "
        f"{results['peak_flops'] / 1e12:.3g} TFLOP/s ({results['peak_is']}).\n\n"
        f"{table(['figure', 'median'], rows)}"
    )


def render_loss(report: Report) -> str:
    """Render time and memory of the loss's implementations."""
    settings = report["settings"]
    rows = [
        [name, f"{found['seconds'][0]:.2f} s", "{:.2f} to {:.2f} s".format(*found["seconds"][1:]),
         f"{found['peak_bytes'] / 2**20:.0f} MiB"]
        for name, found in report["results"].items()
    ]  # fmt: skip
    header = ["implementation, rows of a chunk", "CPU seconds, median", "range", "peak memory"]
    return (
        f"`python benchmarks/loss.py --precision {settings['precision']} --threads "
        f"{settings['threads']}`; {where(report)} {settings['tokens']:,} target tokens; output "
        "projection, loss and all gradients. Memory is beyond the inputs, and at least that of two "
        f"float32 gradients of the projection.\n\n{table(header, rows)}"
    )


# ---- compiling ----


def render_compiling(report: Report) -> str:
    """Render seconds and memory of exports."""
    rows = [
        [name, f"{one['seconds'][0]:.0f} s", f"{one['gib'][2]:.1f} GiB"]
        for name, one in report["results"].items()
    ]
    header = ["`translate-trt export` of base", "seconds, median", "memory, peak"]
    return (
        f"A vocabulary of {report['settings']['vocabulary']:,} tokens, a fresh process each.\n\n"
        f"`python benchmarks/compiling.py`; {where(report)}\n\n{table(header, rows)}"
    )


def render_graph_choices(report: Report) -> str:
    """Render the time of a step without each pass, relative to the step as it is shipped."""
    parts: dict[str, dict[int, list[float]]] = {}
    for name, found in report["results"].items():
        part, _, sentences = name.rpartition(", ")
        parts.setdefault(part, {})[int(sentences.split()[0])] = found["other / shipped"]
    sizes = list(next(iter(parts.values())))
    rows = []
    for part, by_size in parts.items():
        precision, _, what = part.partition(", ")
        rows.append([precision, what, *(ratio(by_size[size]) for size in sizes)])
    header = ["precision", "step of base", *map(sentences_of, sizes)]
    return (
        "Time of a decoding step without one pass ([compile.md](compile.md)) over the time of the "
        "step as shipped: above 1, the pass helps. Median and extremes of the pairs, "
        f"{report['settings']['threads']} threads. The other passes and ONNX Runtime's own "
        "optimizer make up for part of a pass that is left out.\n\n"
        f"`python benchmarks/graph_choices.py`; {where(report)}\n\n{table(header, rows)}"
    )


def render_tracing(report: Report) -> str:
    """Render the time of tracing both graphs of a model."""
    systems = ("translate-trt", "torch.onnx.export")
    rows = [
        [
            f"`{name}`",
            *(ratio(found[system], 1) for system in systems),
            ratio(found["torch.onnx.export / translate-trt"]),
        ]
        for name, found in report["results"].items()
    ]
    header = ["preset", "translate-trt", "torch.onnx.export", "ratio"]
    return (
        "Processor seconds of tracing the encoder and the step ([compile.md](compile.md)): median "
        "and extremes of the rounds.\n\n"
        f"`python benchmarks/tracing.py`; {where(report)}\n\n{table(header, rows)}"
    )


# ---- two versions, neighbours in a batch ----


def render_independence(report: Report) -> str:
    """Render how many sentences differ between random batches and alone."""
    settings = report["settings"]
    rows = [
        [
            target,
            f"{found['lines']:,}",
            str(len(found["batches"])),
            f"{min(one['workers'] for one in found['batches'])} to "
            f"{max(one['workers'] for one in found['batches'])}",
            str(sum(one["other tokens"] for one in found["batches"])),
            str(sum(one["other numbers"] for one in found["batches"])),
        ]
        for target, found in report["results"].items()
    ]
    header = ["target", "lines", "batchings", "workers", "with other tokens", "with other scores"]
    return (
        "`python benchmarks/independence.py --bundle DIR --source train.en`\n\n"
        f"{where(report)} Every line is translated alone and in random batches of several sizes, "
        f"beam {settings['beam_size']}. The last columns count lines whose tokens or scores "
        "differ in any bit.\n\n"
        f"{table(header, rows)}"
    )


def render_versions(report: Report) -> str:
    """Render the time of the revision before, relative to this one."""
    rows = []
    for target, found in report["results"].items():
        for way in ("batches", "one by one"):
            compared = ratio(found[way]["seconds"]["before / this"], 3)
            counts = str(found[way]["lines"]), str(found[way]["differing"])
            rows.append([target, way, counts[0], compared, counts[1]])
        for what, name in (("seconds", "time"), ("peak_mib", "peak memory")):
            # Reports of older versions lack it.
            if (measured := found.get("start", {}).get(what)) is not None:
                label = f"start to first translation, {name}"
                rows.append([target, label, "1", ratio(measured["before / this"], 3), ""])
    header = ["target", "measured", "lines", "before / after", "differing translations"]
    return (
        "`python benchmarks/versions.py --before PYTHON --bundle DIR --source test.en`\n\n"
        f"{where(report)} Figure of the revision before the change over the figure after it, "
        f"pair by pair, {report['settings']['rounds']} rounds in turn; below 1, the change "
        "costs.\n\n"
        f"{table(header, rows)}"
    )


def render_exact(report: Report) -> str:
    """Render the number of lines for which two revisions find anything different."""
    rows, has_texts = [], False
    for target, found in report["results"].items():
        counted = {name: one for name, one in found.items() if name != "kernels"}
        for name, one in counted.items():
            has_texts = has_texts or "texts" in one
            texts = [str(one["texts"])] if "texts" in one else []
            rows.append([target, name, f"{one['lines']:,}", str(one["differing"]), *texts])
    header = ["target", "search", "lines", "differing", *(["in text"] if has_texts else [])]
    return (
        "`python benchmarks/versions.py --exact --before PYTHON --bundle DIR --source train.en`\n\n"
        f"{where(report)} Lines of which a text, score or log-probability of any hypothesis "
        f"differs in any bit between two revisions.\n\n{table(header, rows)}"
    )


# ---- clusters and servers ----


def render_corpus(report: Report) -> str:
    """Render a corpus translated by workers of a cluster, and by one process."""
    settings, results = report["settings"], report["results"]
    first = next(iter(results))
    rows = [
        [
            f"{name} worker{'s' if name != '1' else ''}" if name.isdigit() else name,
            f"{found['lines'] / found['seconds'][0]:.1f}",
            f"{found['tokens'] / found['seconds'][0]:.0f}",
            ratio(found["first / this"]),
            f"{found['start_seconds'][0]:.1f} s",
        ]
        for name, found in results.items()
    ]
    header = ["workers", "sentences/s", "target tokens/s", f"times {first} worker", "start"]
    return (
        f"{where(report)}{note_of(report)} {settings['lines']:,} lines, shards of "
        f"{settings['shard_lines']}, {settings['target']}, median of {settings['rounds']} rounds "
        f"in turn; pair by pair, smallest and largest in brackets.\n\n{table(header, rows)}"
    )


def render_serving(report: Report) -> str:
    """Render a Triton server against the number of clients."""
    settings, results = report["settings"], dict(report["results"])
    alone = results.pop(RUNTIME)
    rows = []
    for clients, found in results.items():
        middle, least, most = found["sentences_per_second"]
        rows.append(
            [
                clients,
                f"{middle:.1f} [{least:.1f}, {most:.1f}]",
                *(f"{value:.0f}" for value in found["milliseconds"]),
                str(found["requests"]),
            ]
        )
    several = settings["instances"] > 1
    flag = f" --instances {settings['instances']}" if several else ""
    header = ["clients", "sentences/s", "p50, ms", "p95, ms", "p99, ms", "requests"]
    text = (
        f"`python benchmarks/serving.py --bundle DIR --source {settings['source']}{flag}`\n\n"
        f"{where(report)}{note_of(report)} Triton {settings['triton']}, {settings['target']}, "
        f"instances: {settings['instances']}; gRPC, one line per request. Each client sends its "
        "next request when it has an answer; server and clients share the cores. Speeds are "
        f"medians of {settings['rounds']} rounds, smallest and largest in brackets. Latencies "
        "are of the requests of all rounds. The runtime alone, all lines in "
        f"one call: {alone['sentences_per_second'][0]:.1f} sentences/s.\n\n{table(header, rows)}"
    )
    picture = "\n![throughput and latency](plots/serving-clients.svg)\n"
    return text if several else text + picture


def render_serving_attack(report: Report) -> str:
    """Render the latency of a client beside expensive requests, and the cost of cancelled ones."""
    settings, results = report["settings"], report["results"]
    alone = results["alone"]["milliseconds"][0]
    rows = []
    for name, what in (
        ("alone", "one client, short lines"),
        ("beside 16 beams", "beside 16 rows of 9,950 characters, 16 beams, again and again"),
        ("beside equal options", "beside the same with its own search options"),
        ("200 clients", "200 clients"),
    ):
        middle, p95 = results[name]["milliseconds"]
        times = f"{middle / alone:.2f}" if name.startswith("beside") else ""
        rows.append([what, str(results[name]["requests"]), f"{middle:.0f}", f"{p95:.0f}", times])
    cancelled = results["cancelled"]["processor seconds per sentence / as many"]
    header = ["client", "requests", "p50, ms", "p95, ms", "p50 / alone"]
    return (
        f"`python benchmarks/serving_attack.py --bundle DIR --source {settings['source']}`\n\n"
        f"{where(report)}{note_of(report)} Triton {settings['triton']}, {settings['target']}, "
        f"gRPC; server and clients share the cores.\n\n{table(header, rows)}\n"
        "When the client of a 64-row request cancels it, the processor time per sentence begun is "
        f"{cancelled:.2f} times that of a request of as many sentences.\n"
    )


def render_http_load(report: Report) -> str:
    """Render the load test of the HTTP server beside the service alone."""
    settings, results = report["settings"], dict(report["results"])
    (ratio,) = (results.pop(name) for name in list(results) if " / " in name)
    rows = [
        [
            name, str(found["requests"]), str(found["lost"]),
            f"{found['requests_per_second'][0]:.1f}", f"{found['cpu_milliseconds'][0]:.1f}",
            *(f"{value:.0f}" for value in found["milliseconds"]),
        ]
        for name, found in results.items()
    ]  # fmt: skip
    header = [
        "system", "requests", "lost", "requests/s", "CPU ms per request", "p50, ms", "p95, ms",
        "p99, ms",
    ]  # fmt: skip
    return (
        f"`python benchmarks/http_load.py --bundle DIR --source FILE --requests "
        f"{settings['requests']} --rounds {settings['rounds']}`\n\n"
        f"{where(report)}{note_of(report)} {settings['target']}, {settings['clients']} clients "
        "that send their next line when they have an answer; server and clients share the cores. A "
        "request without the service's translation is lost.\n\n"
        f"{table(header, rows)}\nHTTP / alone: {ratio[0]:.2f}.\n"
    )


def render_device_rows(report: Report) -> str:
    """Render replays of the decoding loop on a device that counts."""
    settings, results = report["settings"], report["results"]
    first = sum(next(iter(results.values()))["steps"].values())
    rows = []
    for name, found in results.items():
        steps = sum(found["steps"].values())
        rows.append(
            [
                name,
                f"{found['batch_tokens']:,}",
                str(found["workers"]),
                f"{steps:,}",
                f"{100 * found['rows_in_use'][0]:.1f} %",
                f"{first / steps:.2f}",
                f"{found['gaps']:,}",
                f"{found['gap_microseconds'][0] / 1e3:.1f} ms",
                f"{found['worker_microseconds'][0]:.0f} us",
                f"{found['caller_microseconds'][0]:.0f} us",
            ]
        )
    header = ["setting", "batch tokens", "workers", "steps", "rows in use", "fewer steps",
              "admissions", "gap of each", "workers, a sentence", "caller, a sentence"]  # fmt: skip
    return (
        "`python benchmarks/device_rows.py --source test.en --target test.de --tokenizer MODEL`\n\n"
        f"{where(report)} {settings['lines']:,} lines of {settings['source']} with "
        f"{settings['target_tokens']:,} target tokens, {settings['pieces']:,} pieces, profiles "
        f"{settings['profiles']}, {settings['beam_size']} beams. Times are CPU time, medians.\n\n"
        f"{table(header, rows)}"
    )


# ---- sentence splitting ----


def render_sentence_splitting(report: Report) -> str:
    """Render F1 of the boundaries, speed, and growth with the length of a line, by library."""
    results = report["results"]
    texts = list(report["settings"]["sentences"])
    rows = []
    for name, found in results.items():
        scores = [found["texts"][text] for text in texts]
        speeds = [score["sentences/s"][0] for score in scores]
        size = "" if name == "translate-trt" else f"{found['bytes'] / 1e6:.1f} MB"
        rows.append(
            [
                name if name == "translate-trt" else f"{name} {found['version']}",
                *(f"{score['f1']:.1f}" for score in scores),
                f"{min(speeds):,.0f} to {max(speeds):,.0f}",
                f"{max(found['growth'].values()):.1f}",
                size,
            ]
        )
    # "newstest2013.en-de.de:de" becomes "newstest2013 de".
    header = ["library", *(f"{text.split('.')[0]} {text.rpartition(':')[2]}" for text in texts)]
    header += ["sentences/s", "growth", "size"]
    return (
        "`python benchmarks/sentence_splitting.py --text FILE:LANGUAGE ...`\n\n"
        f"{where(report)} F1 of the boundaries between consecutive lines that were joined, 2 to 5 "
        "at a time; several sentences in one line of a file cost every library precision. "
        "Sentences per CPU second, the slowest and the fastest text. Growth of the CPU time of a "
        "line that becomes four times as long, for the worst of four patterns: 4 is linear, 16 "
        "quadratic. The first row is sentencex as `runtime/text/sentences.py` uses it.\n\n"
        f"{table(header, rows)}"
    )


# ---- constraints ----


def render_constraints(report: Report) -> str:
    """Render recall, quality and time with constraints, by beam size."""
    rows = []
    for beams, kinds in report["results"].items():
        for kind, found in kinds.items():
            shares = [found.get(name) for name in ("recall_without", "recall")]
            rows.append(
                [
                    beams,
                    kind,
                    *("" if one is None else f"{one:.1f} %" for one in shares),
                    f"{found['bleu']:.1f}",
                    f"{found['chrf']:.1f}",
                    ratio(found["time / none"]),
                ]
            )
    header = ["beams", "constraints", "recall without", "recall", "BLEU", "chrF", "time / none"]
    return (
        f"{where(report)} {report['settings']['lines']} lines of {report['settings']['source']}, "
        f"{report['settings']['target']}.{note_of(report)} The phrases are words of the "
        "references; recall is the share that the translations have as whole words. Time is that "
        "of the search without constraints and with as many beams, in turn.\n\n"
        f"{table(header, rows)}"
    )


# ---- the C++ library ----


def render_cpp_library(report: Report) -> str:
    """Render the C++ library beside Python's reference loop."""
    settings, results = report["settings"], report["results"]
    counts = {"all lines": settings["lines"], "line by line": settings["line_by_line"]}
    first = next(iter(next(iter(results.values()))["seconds"].values()))
    systems = [name for name in first if " / " not in name]
    rows, clients, spent, service = [], [], [], []
    for target, found in results.items():
        for part, seconds in found["seconds"].items():
            medians = [seconds[name][0] for name in systems]
            shown = (
                [f"{1000 * one:.0f} ms" for one in medians]
                if part not in counts
                else [f"{counts[part] / one:.1f} sentences/s" for one in medians]
            )
            shown += [ratio(seconds[f"Python / {name}"]) for name in systems[1:]]
            rows.append([target, part, *shown])
        speeds = [
            f"{settings['lines'] / found['clients'][name][0]:.1f}"
            for name in ("one call", "clients")
        ]
        clients.append([target, *speeds, ratio(found["clients"]["one call / clients"])])
        names = {"clients": f"{settings['clients']} threads"}
        spent += [
            [target, names.get(way, way), f"{one['in graphs']:.2f}", f"{one['outside']:.2f}"]
            for way, one in found["processor time"].items()
        ]
        seconds = found["service"]["seconds"]
        speeds = [
            f"{settings['lines'] / seconds[name][0]:.1f}"
            for name in ("one penalty", "64 penalties")
        ]
        compared = ratio(seconds["one penalty / 64 penalties"])
        service.append([target, *speeds, compared, f"{found['service']['lock'][0]:.0f} us"])
    differing = max(found["differing"] for found in results.values())
    return (
        "`python benchmarks/cpp_library.py --bundle DIR --source test.en`\n\n"
        f"{where(report)}{note_of(report)} {settings['lines']:,} lines in one call with "
        f"{settings['workers']} workers of one thread, {settings['line_by_line']} lines in a call "
        "each with one; tokenization included; a model of "
        f"{settings['model']['parameters'] / 1e6:.1f} million parameters. "
        f"Median of {settings['rounds']} rounds in turn; "
        "relative to Python without the library pair by pair (above 1: faster), smallest and "
        "largest in brackets. Line by line, translations are the same, byte for byte; in calls "
        f"with several workers, {differing} of {settings['lines']:,} lines differed.\n\n"
        + table(["target", "call", *systems, *(f"{name} / Python" for name in systems[1:])], rows)
        + f"\nThe library alone, sentences/s: {settings['workers']} workers, all lines in one "
        f"call, and the same lines submitted one at a time by each of {settings['clients']} "
        "threads.\n\n"
        + table(["target", "one call", f"{settings['clients']} threads", "threads / call"], clients)
        + "\nProcessor time of its workers' threads, ms per sentence, in ONNX Runtime's graphs and "
        "outside of them (scheduling, batches, back-trace, detokenization):\n\n"
        + table(["target", "call", "in the graphs", "outside"], spent)
        + "\nPython's `TranslationService` on the library, sentences/s: lines submitted one by "
        "one, with one length penalty and with 64 different ones; and how long each sentence holds "
        "the interpreter lock when its result is handed over:\n\n"
        + table(["target", "one length penalty", "64 penalties", "64 / one", "lock held"], service)
    )
