from __future__ import annotations

import pytest

from translate_trt.train.schedule import cooldown, learning_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 512**-0.5 * 4000**-1.5),
        (100, 512**-0.5 * 100 * 4000**-1.5),
        (2000, 512**-0.5 * 2000 * 4000**-1.5),
        (4000, 512**-0.5 * 4000**-0.5),
        (100_000, 512**-0.5 * 100_000**-0.5),
    ],
)
def test_equation_3(step: int, expected: float) -> None:
    assert learning_rate(step, 512, 4000) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(step, 512, 4000, scale=2.0) == pytest.approx(2 * expected, rel=1e-12)


def test_a_peak_of_ones_own() -> None:
    papers = (512 * 4000) ** -0.5
    for step in (1, 100, 4000, 4001, 100_000):
        expected = learning_rate(step, 512, 4000, scale=0.5)
        assert learning_rate(step, 64, 4000, 0.5, papers) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(200, 512, 200, peak=1e-4) == 1e-4
    assert learning_rate(800, 512, 200, peak=1e-4) == 5e-5


def test_without_decay_the_rate_stays_at_its_maximum() -> None:
    for peak in (0.0, 1e-3):
        rates = [learning_rate(step, 512, 750, 0.5, peak, decays=False) for step in range(1, 3_000)]
        usual = [learning_rate(step, 512, 750, 0.5, peak) for step in range(1, 751)]
        assert rates == usual + [usual[-1]] * 2_249


def test_the_cooldown_falls_linearly_over_the_last_steps() -> None:
    assert [cooldown(step, 10, 4) for step in (1, 6, 7, 8, 9, 10)] == [1, 1, 0.8, 0.6, 0.4, 0.2]
    assert {cooldown(step, 10, 0) for step in range(1, 11)} == {1}
    # Longer than the run: from a rate below that of the schedule.
    assert [cooldown(step, 3, 5) for step in (1, 2, 3)] == [3 / 6, 2 / 6, 1 / 6]


def test_a_1_sqrt_cooldown() -> None:
    # After k of 99 cooldown steps of 100 parts: 1 - sqrt(k / 100).
    rates = [cooldown(1_000 - 99 + k, 1_000, 99, "1-sqrt") for k in (0, 1, 25, 81)]
    assert rates == pytest.approx([1.0, 0.9, 0.5, 0.1])
