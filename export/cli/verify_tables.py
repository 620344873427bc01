"""Tables that `translate-trt verify` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from translate_trt.export.verify.layers import TOLERANCES, LayerReport
from translate_trt.export.verify.parity import Parity
from translate_trt.runtime.io.report import columns, engine_not_run_note


def parity_table(found: Mapping[str, Parity]) -> str:
    """Format the evidence as a table with one row per target, after the reference's."""
    header = (
        "target",
        "beam",
        "identical",
        "max score diff",
        "BLEU",
        "difference (95 %)",
        "sentences/s",
        "gate",
    )
    rows: list[tuple[str, ...]] = [header]
    # The reference runs once for every beam size.
    for size, parity in {parity.beam_size: parity for parity in found.values()}.items():
        rows.append(
            ("PyTorch", str(size), "", "", f"{parity.reference_bleu:.2f}", "",
             f"{parity.reference_sentences_per_second:.1f}", "")
        )  # fmt: skip
    rows += [_parity_row(name, parity) for name, parity in found.items()]
    lines = columns(rows)
    first = next(iter(found.values()))
    lines.append(f"{first.sentences} sentences, BLEU {first.signature}")
    for name, parity in found.items():
        if parity.engine_not_run is not None:
            lines.append(f"{name}: measured {engine_not_run_note(parity.engine_not_run)}")
    return "\n".join(lines)


def _parity_row(name: str, parity: Parity) -> tuple[str, ...]:
    low, high = parity.bleu_difference_interval
    tied = parity.tied_percent
    return (
        name,
        str(parity.beam_size),
        f"{parity.identical_percent:.2f} %" + (f", tied {tied:.2f} %" if tied else ""),
        f"{parity.largest_score_difference:.2e}",
        f"{parity.bleu:.2f}",
        f"{parity.bleu_difference:+.2f} [{low:+.2f}, {high:+.2f}]",
        f"{parity.sentences_per_second:.1f}",
        f"passed: {parity.gate}" if parity.passed else f"FAILED: {'; '.join(parity.missed)}",
    )


def layer_tables(reports: Sequence[LayerReport]) -> str:
    """Format a table per target, with the first tensor beyond the tolerance below it."""
    return "\n\n".join("\n".join(_layer_table(report)) for report in reports)


def _layer_table(report: LayerReport) -> list[str]:
    tolerance = TOLERANCES[report.precision]
    rows = [(report.target, "max abs diff", "relative", "")]
    for drift in report.drifts:
        if drift.absolute is None or drift.relative is None:
            rows.append((drift.tensor, "", "", "fused away"))
        else:
            mark = "beyond" if drift.relative > tolerance.largest else ""
            rows.append((drift.tensor, f"{drift.absolute:.2e}", f"{drift.relative:.2e}", mark))
    lines = columns(rows)
    if report.emulated:
        lines.append("CPU emulation of the engine")
    lines.append(
        f"first beyond {tolerance.largest:.1e} ({report.precision}: {tolerance.reason}): "
        f"{report.first or 'none'}"
    )
    return lines
