"""Selection of the best validation: directions, ties, values that are not finite, JSON."""

from __future__ import annotations

import pytest

from translate_trt.train.selection import Selection


def scores(value: float) -> dict[str, float]:
    return {"loss": value, "bleu": value, "chrf": value}


@pytest.mark.parametrize(
    ("metric", "steps", "since"),
    [
        ("bleu", [10, 20, 20, 40], [0, 0, 1, 0]),
        ("chrf", [10, 20, 20, 40], [0, 0, 1, 0]),
        ("loss", [10, 10, 10, 10], [0, 1, 2, 3]),
    ],
)
def test_the_metric_decides_and_a_tie_is_no_improvement(
    metric: str, steps: list[int], since: list[int]
) -> None:
    found = Selection()
    for index, value in enumerate((1.0, 2.0, 2.0, 3.0)):
        found = found.after(10 * (index + 1), scores(value), metric)
        assert (found.step, found.since) == (steps[index], since[index])
        assert found.validated == 10 * (index + 1)
        assert found.improved == (found.since == 0)


def test_a_value_that_is_not_finite_is_never_the_best() -> None:
    found = Selection().after(5, scores(float("nan")), "loss")
    assert (found.step, found.since, found.improved) == (-1, 1, False)
    found = found.after(10, scores(3.0), "loss").after(15, scores(float("nan")), "loss")
    assert (found.step, found.scores["loss"], found.since) == (10, 3.0, 1)


def test_json_keeps_the_fields() -> None:
    found = Selection().after(5, scores(2.0), "bleu").after(6, scores(1.0), "bleu")
    assert Selection.from_json(found.to_json()) == found
    for damaged in ({"unknown": 1}, {"scores": None}, [1]):
        with pytest.raises(TypeError):
            Selection.from_json(damaged)
