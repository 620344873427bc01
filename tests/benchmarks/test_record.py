"""Table 3 from the reports of its runs."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import pytest

from translate_trt.train.config import PRESETS, TrainConfig, apply


@pytest.mark.parametrize("count", [2, 3])
def test_p_values_are_those_of_students_distribution(count: int) -> None:
    from derived import holm, welch

    one = [float(value) for value in range(count)]  # equal variances: twice count - 1 freedom
    other = [value + 3.0 for value in one]
    t = 3.0 / math.sqrt(2 * statistics.variance(one) / count)
    share = t / math.sqrt(t * t + 2 * (count - 1))  # the distribution's closed forms of 2 and 4
    expected = 1 - (share if count == 2 else share * (3 - share**2) / 2)
    assert welch(one, other) == pytest.approx(expected, abs=1e-5)
    assert welch(one, one) == pytest.approx(1, abs=1e-5)
    assert (welch([1.0, 1.0], [1.0, 1.0]), welch([1.0, 1.0], [2.0, 2.0])) == (1, 0)
    assert holm([0.03, 0.01, 0.04, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])


def test_a_row_that_did_not_train_is_not_compared() -> None:
    from derived import table3_rows

    losses = {"plain": [2.0, 2.1], "h1": [2.4, 2.5], "n8": [2.4, 6.0], "k16": [2.0, 2.1]}
    results = {
        row: {"runs": [
            {"perplexity": math.exp(loss), "unigram_loss": 5.5, "bleu": 9.0 - loss,
             "tokenized_bleu": 9.0 - loss, "parameters": 1} for loss in of_seeds
        ]}
        for row, of_seeds in losses.items()
    }  # fmt: skip
    plain, h1, n8, k16 = table3_rows({"settings": {"preset": "miniature"}, "results": results})
    assert (n8.untrained, n8.difference, n8.p_values) == (1, None, {})
    assert not plain.p_values
    assert h1.difference == pytest.approx(-0.4)
    p = 2 * (1 - math.sqrt(32 / 34))  # t is sqrt(32), of two tests
    assert h1.p_values == pytest.approx({"loss": p, "tokenized": p}, abs=1e-5)
    assert k16.p_values["loss"] == pytest.approx(1, abs=1e-5)


def test_recipes_have_equal_tokens_and_the_shares_of_speedrun() -> None:
    from record import COMPARISONS

    _, _, recipe, variations = COMPARISONS["recipes"].values()
    model, speedrun = PRESETS["tiny"].model, PRESETS["speedrun"].train
    known = {**vars(model), **vars(speedrun)}
    for changes in variations.values():
        flags = {flag.replace("-", "_"): value for flag, value in (recipe | changes).items()}
        assert flags.keys() <= {*known, "config"}
        train = apply(TrainConfig(), flags)
        assert train.steps * train.batch_tokens == recipe["steps"] * recipe["batch-tokens"]
        assert train.validate_every * 4 == train.steps
        shares = [
            Fraction(getattr(one, name), one.steps)
            for name in ("cooldown_steps", "checkpoint_every", "warmup_steps")
            for one in (train, speedrun)
            if name.replace("_", "-") not in changes or "steps" in changes
        ]
        assert shares[::2] == shares[1::2]
