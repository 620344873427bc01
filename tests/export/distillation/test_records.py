"""Records of stages: what is skipped, continued, repeated and refused."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from translate_trt.export.distillation.records import Records, Stage
from translate_trt.runtime.errors import OutputError

STAGE = Stage("train x", {"the text": "1" * 64}, {"steps": 100, "sizes": (1, 2)})


class Work:
    """Work that writes a file and notes how it was called."""

    def __init__(self, root: Path, content: str = "x") -> None:
        self.root, self.content = root, content
        self.calls: list[bool] = []

    def __call__(self, resume: bool) -> list[Path]:
        self.calls.append(resume)
        if self.content == "fail":
            raise ValueError("failed")
        (self.root / "out").write_text(self.content)
        return [self.root / "out"]


@dataclass(frozen=True)
class Settings:
    """Settings of a stage, one of which earlier revisions did not have."""

    steps: int
    later: tuple[int, ...] = (1, 2)


def test_a_setting_that_came_later_had_its_default(tmp_path: Path) -> None:
    work = Work(tmp_path)
    Records(tmp_path).run(Stage("x", {}, {"steps": 1}), work)
    Records(tmp_path).run(Stage("x", {}, asdict(Settings(1)), (Settings,)), work)
    assert len(work.calls) == 1
    with pytest.raises(OutputError):
        Records(tmp_path).run(Stage("x", {}, asdict(Settings(1, (3,))), (Settings,)), work)


def test_an_interrupted_stage_continues(tmp_path: Path) -> None:
    failing = Work(tmp_path, "fail")
    with pytest.raises(ValueError, match="failed"):
        Records(tmp_path).run(STAGE, failing)
    work = Work(tmp_path)
    Records(tmp_path).run(STAGE, work)
    assert work.calls == [True]


@pytest.mark.parametrize(
    ("stage", "difference"),
    [
        (
            Stage("train x", STAGE.inputs, {"steps": 200, "sizes": (1, 2)}),
            "steps 100 there, 200 here",
        ),
        (Stage("train x", {"the text": "2" * 64}, STAGE.settings), "other content of the text"),
        (Stage("train x", STAGE.inputs, {"sizes": (1, 2)}), "steps 100 there, None here"),
    ],
)
@pytest.mark.parametrize("content", ["x", "fail"])
def test_changes_are_refused_by_name_or_forced(
    stage: Stage, difference: str, content: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()  # what an interrupted stage would continue
    try:
        Records(tmp_path).run(STAGE, Work(tmp_path, content), run)
    except ValueError:
        assert content == "fail"
    work = Work(tmp_path, "y")
    with pytest.raises(OutputError, match=difference):
        Records(tmp_path).run(stage, work, run)
    assert not work.calls
    Records(tmp_path, force=True).run(stage, work)
    assert work.calls == [False]
    Records(tmp_path).run(stage, work)
    assert len(work.calls) == 1


def test_a_stage_that_failed_without_progress_may_change(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="failed"):
        Records(tmp_path).run(STAGE, Work(tmp_path, "fail"))
    work = Work(tmp_path)
    Records(tmp_path).run(Stage("train x", STAGE.inputs, {"steps": 7}), work)
    assert work.calls == [False]


def test_a_cheap_stage_is_repeated_without_force(tmp_path: Path) -> None:
    work = Work(tmp_path)
    for beam in (1, 4):
        settings = {"search": {"beam_size": beam}}
        Records(tmp_path).run(Stage("measure", {}, settings, repeats=True), work)
    assert work.calls == [False, False]
    with pytest.raises(OutputError, match=r"search\.beam_size 4"):
        Records(tmp_path).run(Stage("measure", {}, {"search": {"beam_size": 5}}), work)


def test_missing_outputs_are_made_again(tmp_path: Path) -> None:
    work = Work(tmp_path)
    Records(tmp_path).run(STAGE, work)
    (tmp_path / "out").unlink()
    Records(tmp_path).run(STAGE, work)
    assert work.calls == [False, False]


def test_a_repeated_stage_never_continues_what_it_replaces(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def train(resume: bool, steps: int, ends: bool = True) -> list[Path]:
        if not ends:
            raise KeyboardInterrupt
        assert resume == run.exists()
        run.mkdir(exist_ok=True)
        (run / "weights").write_text(f"{steps}")
        return [run / "weights"]

    def run_stage(steps: int, **options: bool) -> None:
        stage = Stage("train x", {}, {"steps": steps})
        Records(tmp_path, force=True).run(
            stage, lambda resume: train(resume, steps, **options), run
        )

    run_stage(100)
    for _ in range(2):  # stopped before it has begun
        with pytest.raises(KeyboardInterrupt):
            run_stage(200, ends=False)
    assert (tmp_path / "run.replaced" / "weights").read_text() == "100"
    stage = Stage("train x", {}, {"steps": 200})
    Records(tmp_path).run(stage, lambda _: train(False, 200), run)
    assert (run / "weights").read_text() == "200"
    assert not (tmp_path / "run.replaced").exists()


def test_changed_outputs_are_found_and_copies_are_not(tmp_path: Path) -> None:
    work = Work(tmp_path)
    outputs = Records(tmp_path).run(STAGE, work)
    assert list(outputs) == ["out"]
    os.utime(tmp_path / "out", ns=(0, 0))  # as by a copy without times
    assert Records(tmp_path).run(STAGE, work) == outputs
    assert work.calls == [False]
    for content in ("y", "longer"):  # the first is as long as before
        (tmp_path / "out").write_text(content)
        os.utime(tmp_path / "out", ns=(1, 1))
        with pytest.raises(OutputError, match="changed since"):
            Records(tmp_path).run(STAGE, work)
    Records(tmp_path, force=True).run(STAGE, work)
    assert (tmp_path / "out").read_text() == "x"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "null", '{"format_version": 2}', '{"format_version": 1, "identity": 3}',
     '{"format_version": 1, "identity": {"inputs": {}, "settings": {}}, "outputs": {"a": {}}}'],
)  # fmt: skip
def test_damaged_records_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "train-x.json").write_text(content)
    with pytest.raises(OutputError, match=r"train-x\.json is damaged"):
        Records(tmp_path).run(STAGE, Work(tmp_path))
