"""The commands of docs/parity.md, which need a bundle of engines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/parity.md"
COMMANDS = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
# Expected output of each command, in the order of the page.
SHOWN = ["passed: BLEU at most 0.1 lower", ": none", "[Op: TensorScatter]", "PASSED"]


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "shown"), list(zip(COMMANDS, SHOWN, strict=True)))
def test_commands_run(
    command: str, shown: str, engine_bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    if "polygraphy" in command:
        pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    shutil.copytree(engine_bundle, tmp_path / "bundle")
    (tmp_path / "run").symlink_to(checkpoint.path, target_is_directory=True)
    lines = "the cat runs.\na big dog sleeps\nthe house under the tree\n"
    for language in ("en", "de"):
        (tmp_path / f"test.{language}").write_text(lines, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown in done.stdout
