"""metrics.jsonl of resumed runs: dropped, damaged and failed entries."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime.errors import InputError
from translate_trt.train.trainer.metrics import DAMAGED, METRICS, Metrics, read_metrics

DAMAGE = (
    b'{"step": 8, "epoch": 1, "lo', b"\0" * 30, b'\xff{"step": 8}', b'{"epoch": 1}',
    b'{"step": 8, "loss": null}', b"[]", b"",
)  # fmt: skip


def write(run: Path, *lines: bytes) -> None:
    run.mkdir(exist_ok=True)
    (run / METRICS).write_bytes(b"".join(line + b"\n" for line in lines))


def entry(step: int) -> dict[str, Any]:
    return {"step": step, "epoch": 1, "loss": step / 3, "validation": {"bleu": 1.5}}


def raw(step: int) -> bytes:
    return json.dumps(entry(step)).encode()


def test_steps_that_a_crash_has_undone_and_a_cut_line_go(tmp_path: Path) -> None:
    write(tmp_path, raw(4), raw(8), raw(12))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(raw(16)[:-9])
    assert read_metrics(tmp_path) == [entry(4), entry(8), entry(12)]
    metrics = Metrics(tmp_path, 8, 100)
    metrics.write(entry(12))
    metrics.close()
    assert (tmp_path / METRICS).read_bytes() == raw(4) + b"\n" + raw(8) + b"\n" + raw(12) + b"\n"
    assert not (tmp_path / DAMAGED).exists()


@pytest.mark.parametrize("finished", [True, False])  # False: it has more steps than before
def test_a_run_that_is_finished_again_has_one_average(finished: bool, tmp_path: Path) -> None:
    average = {"step": 8, "epoch": 1, "averaged": {"loss": 1.5}}
    write(tmp_path, raw(4), raw(8), json.dumps(average).encode())
    Metrics(tmp_path, 8, 12, finished).close()  # before its last step if it stopped early
    assert read_metrics(tmp_path) == [entry(4), entry(8), *([] if finished else [average])]


def test_damaged_lines_are_set_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for times in (1, 2):
        write(tmp_path, raw(4), *DAMAGE, raw(12))
        with pytest.raises(InputError, match=r"metrics\.jsonl.*line 2"):
            read_metrics(tmp_path)
        Metrics(tmp_path, 20, 100).close()
        assert read_metrics(tmp_path) == [entry(4), entry(12)]
        assert (tmp_path / DAMAGED).read_bytes() == times * b"".join(x + b"\n" for x in DAMAGE)
        assert len(caplog.messages) == times


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / METRICS).mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path)


class FullBoard:
    """TensorBoard writer whose thread has failed."""

    def add_scalar(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(tmp_path, 0, 100)
    metrics._file = open("/dev/full", "a", buffering=1)  # noqa: SIM115
    metrics._board = FullBoard()
    for step in (4, 8):
        metrics.write(entry(step))
    metrics.close()
    assert [message.split(": ")[0] for message in caplog.messages] == [
        f"cannot write {tmp_path / name}" for name in ("metrics.jsonl", "tensorboard")
    ]
    assert "Free some space" in caplog.text


def test_missing_entries_are_written_when_the_disk_has_space(tmp_path: Path) -> None:
    class Raw(io.FileIO):
        full = True

        def write(self, content: Any) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content) or 0

    metrics = Metrics(tmp_path, 0, 100)
    raw = Raw(tmp_path / METRICS, "a")
    metrics._file = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", line_buffering=True)
    metrics.write(entry(4))
    assert read_metrics(tmp_path) == []
    raw.full = False
    metrics.write(entry(8))
    assert read_metrics(tmp_path) == [entry(4), entry(8)]
    metrics.close()
