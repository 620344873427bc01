"""Training runs: arguments of the command, prepared data, and comparison of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from translate_trt.runtime.cli import main
from translate_trt.train.data.token_files import PreparedData, open_prepared
from translate_trt.train.trainer.load_data import TextFiles


def train_arguments(text: TextFiles, out: Path, settings: dict[str, Any], *more: str) -> list[str]:
    """Return the arguments of a command that trains on a CPU."""
    arguments = ["train", "--config", "tiny", "--device", "cpu", "--threads", "1"]
    for flag, pair in (("--train", text.train), ("--valid", text.valid)):
        arguments += [flag, str(pair.source), str(pair.target)]
    for name, value in settings.items():
        arguments += ["--" + name.replace("_", "-"), str(value)]
    return [*arguments, "--output", str(out), *more]


def prepare_text(text: TextFiles, out: Path, *flags: str) -> PreparedData:
    """Prepare text with a vocabulary of 330 tokens."""
    command = ["data", "prepare", "--output", str(out), "--vocabulary-size", "330"]
    command += ["--workers", "1"]
    for flag, pair in (("--from", text.train), ("--valid", text.valid)):
        command += [flag, str(pair.source), str(pair.target)]
    done = CliRunner().invoke(main, [*command, *flags])
    assert done.exit_code == 0, done.output
    return open_prepared(out)


def assert_equal_tensors(one: Path, other: Path, name: str = "model.safetensors") -> None:
    """Check that a file of two checkpoints has the same tensors, to the bit."""
    first, second = load_file(one / name), load_file(other / name)
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), key
