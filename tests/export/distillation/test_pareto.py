"""Pareto front of the table."""

from __future__ import annotations

from translate_trt.export.distillation.pareto import Row, mark_front, table


def row(name: str, bleu: float, speed: float) -> Row:
    return Row(name, "onnx-int8", 1, bleu, 50.0, speed, 2.0, 10.0)


def test_the_front_has_the_rows_that_none_dominates() -> None:
    rows = [row("a", 30, 100), row("b", 29, 200), row("c", 29, 150), row("d", 28, 200),
            row("e", 27, 500), row("f", 27, 500)]  # fmt: skip
    marked = {one.system: one.on_front for one in mark_front(rows)}
    assert marked == {"a": True, "b": True, "c": False, "d": False, "e": True, "f": True}


def test_the_table_compares_with_the_first_row() -> None:
    lines = table(mark_front([row("teacher", 30, 100), row("student", 29, 1250)]))
    assert lines[0].split()[:3] == ["system", "target", "beam"]
    assert lines[2].split() == [
        "student", "onnx-int8", "1", "29.00", "50.00", "1,250", "12.50x", "2.0", "10.0", "*",
    ]  # fmt: skip
