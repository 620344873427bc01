"""Environment variables that `translate-trt train` sets for the libraries below torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from translate_trt.train.cli.torch_settings import (
    PRIMITIVES_KEPT,
    SPIN_COUNT,
    set_training_defaults,
)

DEFAULTS = {
    "GOMP_SPINCOUNT": SPIN_COUNT,
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": PRIMITIVES_KEPT,
    "LRU_CACHE_CAPACITY": PRIMITIVES_KEPT,
}


@pytest.mark.parametrize("name", ["HOME", *DEFAULTS])
def test_what_the_user_has_set_stays(name: str) -> None:
    environment = {name: "7"}
    set_training_defaults(environment)
    assert environment == {**DEFAULTS, name: "7"}


def test_a_policy_of_the_user_decides_how_threads_wait() -> None:
    environment = {"OMP_WAIT_POLICY": "active"}
    set_training_defaults(environment)
    assert "GOMP_SPINCOUNT" not in environment


def test_nothing_is_set_once_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    before = dict(os.environ)
    set_training_defaults()
    assert dict(os.environ) == before


PROGRAM = """
import json, os, sys
from pathlib import Path
from click.testing import CliRunner
from translate_trt.runtime.cli import main

class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))
            os._exit(0)

sys.meta_path.insert(0, Watch())
CliRunner().invoke(main, ["train", "--data", sys.argv[2], "--output", sys.argv[3]])
"""


def test_train_sets_them_before_torch_is_imported(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in DEFAULTS}
    seen = tmp_path / "seen.json"
    command = [sys.executable, "-c", PROGRAM, seen, tmp_path, tmp_path / "run"]
    subprocess.run(command, env=environment, check=True)
    found = json.loads(seen.read_text())
    assert {name: found.get(name) for name in DEFAULTS} == DEFAULTS
