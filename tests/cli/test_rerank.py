"""`translate-trt rerank` through the command line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main

TEXTS = ["Ein Hund.", "Ein Hund läuft schnell.", "Ein Hund läuft.", "Ein Hund läuft."]


def hypothesis(text: str, score: float = -1.0) -> dict[str, Any]:
    return {"text": text, "score": score, "token_log_probs": [score], "truncated": False}


def line(source: str | None, texts: list[str]) -> dict[str, Any]:
    return {"source": source, "hypotheses": [hypothesis(text) for text in texts], "id": 1e-7}


def run(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["rerank", *map(str, arguments)], input=stdin)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, *lines: dict[str, Any]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
        return path

    return write


def utilities(done: Result) -> list[dict[str, float]]:
    """Return the utility of each hypothesis, in order, for each line of JSON."""
    assert done.exit_code == 0, done.output
    lines = map(json.loads, done.stdout.splitlines())
    return [{one["text"]: one["utility"] for one in value["hypotheses"]} for value in lines]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize("weights", [(0.25,) * 4, (0.1, 0.4, 0.3, 0.2)])
def test_the_mean_similarity_to_all(
    metric: str, weights: tuple[float, ...], write: Callable[..., Path]
) -> None:
    of = sacrebleu.CHRF() if metric == "chrf" else sacrebleu.BLEU(effective_order=True)
    expected = {
        text: sum(
            weight * of.sentence_score(text, [other]).score
            for weight, other in zip(weights, TEXTS, strict=True)
        )
        for text in TEXTS
    }
    value = line("A dog runs.", TEXTS)
    for one, weight in zip(value["hypotheses"], weights, strict=True):
        one["score"] = math.log(weight) - 2
    path = write("a.jsonl", value)
    done = run(path, "--metric", metric, "--json")
    (found,) = utilities(done)
    assert found == {text: round(value, 4) for text, value in expected.items()}
    assert list(found) == sorted(expected, key=expected.__getitem__, reverse=True)
    value = json.loads(done.stdout)
    assert value["id"] == 1e-7
    assert value["hypotheses"][0]["token_log_probs"] == [-1.0]
    assert run(path, "--metric", metric).stdout == f"{next(iter(found))}\n"
    same = run(path, "--metric", metric, "--weights", "uniform", "--json").stdout == done.stdout
    assert same == (weights[0] == weights[1])


def test_lines_without_a_choice(write: Callable[..., Path]) -> None:
    lines = line("a", ["\ud800b\nc"]), line(None, []), line("", ["", ""])
    path = write("a.jsonl", *lines)
    assert run(path).stdout == "\ufffdb c\n\n\n"
    assert utilities(run("--json", stdin=path.read_text())) == [
        {"\ufffdb\nc": 100.0},
        {},
        {"": 0.0},
    ]


def test_hypotheses_of_several_files_are_compared_together(write: Callable[..., Path]) -> None:
    files = [write(f"{place}.jsonl", line("s", [text])) for place, text in enumerate(TEXTS)]
    one = write("all.jsonl", line("s", TEXTS))
    assert run(*files, "--json").stdout == run(one, "--json").stdout
    other = write("other.jsonl", line("t", TEXTS))
    done = run(one, other)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{other}, line 1 has another source" in done.stderr
    longer = write("longer.jsonl", line("s", TEXTS), line("t", TEXTS))
    for inputs in ((one, longer), (longer, one)):
        done = run(*inputs)
        assert done.exit_code == 1
        assert f"{one} ends before line 2" in done.stderr


@pytest.mark.parametrize("needs_references", [True, False])
def test_comet(needs_references: bool, fake_comet: Any, write: Callable[..., Path]) -> None:
    fake_comet.needs_references = needs_references
    path = write("a.jsonl", line("Hund", TEXTS), line("x", ["y"]))
    found = utilities(run(path, "--metric", "comet", "--comet-model", "Unbabel/x", "--json"))
    score = fake_comet.score
    if needs_references:
        means = {
            text: 100 * sum(score("Hund", text, other) for other in TEXTS) / 4 for text in TEXTS
        }
        only = {"y": round(100 * score("x", "y", "y"), 4)}
        assert found == [pytest.approx(means, abs=1e-4), only]
    else:
        means = {text: 100 * score("Hund", text) for text in TEXTS}
        assert found == [pytest.approx(means, abs=1e-4), {"y": 100 * score("x", "y")}]
    assert list(found[0]) == sorted(means, key=means.__getitem__, reverse=True)
    assert fake_comet.loaded == ["/hub/Unbabel/x/checkpoints/model.ckpt"]


def test_what_a_metric_lacks(
    write: Callable[..., Path], fake_comet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("a.jsonl", line("a", TEXTS))
    done = run(path, "--metric", "comet", "--comet-model", "missing")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "missing cannot be downloaded" in done.stderr
    done = run(path, "--metric", "comet", "--comet-model", "bad.ckpt")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--comet-model is bad.ckpt, which cannot be loaded: no hparams" in done.stderr
    monkeypatch.setitem(sys.modules, "comet", None)
    done = run(path, "--metric", "comet")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "pip install" in done.stderr


def test_estimates_of_quality(write: Callable[..., Path], tmp_path: Path) -> None:
    lines, references = [], []
    for number in range(120):
        words = [f"word{number}"] * 5
        right = number % 6
        lines.append(line("s", [" ".join(words), " ".join([*words[:right], *("xy" * 3)])]))
        for score, one in zip((-0.1, right - 6.0), lines[-1]["hypotheses"], strict=True):
            one["token_log_probs"] = [score, score]
        references.append(" ".join(words))
    lines[0]["hypotheses"].append(hypothesis("not possible") | {"token_log_probs": [-1.0, None]})
    path, quality = write("dev.jsonl", *lines), tmp_path / "quality.json"
    reference = tmp_path / "dev.de"
    reference.write_text("".join(f"{text}\n" for text in references))
    done = run(path, "--calibrate", reference, "--output", quality)
    assert done.exit_code == 0, done.output
    found = json.loads(quality.read_text())
    assert found["held_out"]["translations"] == 240
    assert found["held_out"]["spearman"] > 0.9
    assert "calibration_error" in done.stderr

    done = run(path, "--quality", quality, "--json")
    estimates = {
        one["token_log_probs"][-1]: (one["quality"], one["quality_spread"])
        for value in map(json.loads, done.stdout.splitlines())
        for one in value["hypotheses"]
    }
    assert estimates.pop(None) == (None, None)
    values = [estimates[mean][0] for mean in sorted(estimates)]
    assert values == sorted(values)
    assert values[0] < 20 < 99 < values[-1] <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quality", "bad.json"], "add --json"),
        (["--quality", "bad.json", "--json"], "bad.json is no calibration"),
        (["--quality", "bad.json", "--calibrate", "dev.de"], "leave --quality and --json out"),
        (["--calibrate", "dev.de"], "1 lines have translations"),
        (["--calibrate", "bad.json"], "bad.json has 2"),
    ],
)
def test_refused_estimates(
    write: Callable[..., Path], tmp_path: Path, arguments: list[str], message: str
) -> None:
    path = write("a.jsonl", line("s", ["t"]))
    (tmp_path / "bad.json").write_text('{"points":\n[[1, 2, NaN]]}')
    (tmp_path / "dev.de").write_text("t\n")
    named = [str(tmp_path / one) if "." in one else one for one in arguments]
    done = run(path, *named, "--output", tmp_path / "out")
    assert (done.exit_code > 0, message in done.stderr) == (True, True), done.stderr
    assert {one.name for one in tmp_path.iterdir()} == {"a.jsonl", "bad.json", "dev.de"}
