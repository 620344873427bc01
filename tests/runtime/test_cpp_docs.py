"""Every command and program of docs/embed-cpp.md, in the order it stands there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.cpp_library import ROOT, build, environment

from translate_trt.runtime import SearchOptions, Translator

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"^```(bash|cpp|c)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = ["Two men are working.", "A dog runs."]
# How a reader compiles the program in C++, and where this one's libraries are.
AFTERWARDS = """
c++ -std=c++17 -Wall -Wextra -Werror program.cpp -o program++ \
    $(pkg-config --cflags --libs translate_trt)
export LD_LIBRARY_PATH=$(dirname $(find installed -name libtranslate_trt.so))
./program > c.txt
./program++ > c++.txt
"""


@pytest.mark.nightly
def test_the_commands_and_programs_run(tmp_path: Path, compiled_bundle: Path) -> None:
    build()  # skips where something lacks
    (tmp_path / "scripts").mkdir()
    script = f'exec bash "{ROOT}/scripts/build_library.sh" "$@"\n'
    (tmp_path / "scripts/build_library.sh").write_text(script)
    for name in ("runtime", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bundle").symlink_to(compiled_bundle)
    (tmp_path / "test.en").write_text("".join(f"{line}\n" for line in LINES))
    commands = ""
    for language, text in BLOCK.findall((ROOT / "docs/embed-cpp.md").read_text("utf-8")):
        if language == "bash":
            commands += text
        else:
            (tmp_path / f"program.{language}").write_text(text)
    variables = environment()
    del variables["TRANSLATE_TRT_ONNXRUNTIME"]  # one of the commands sets it
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands + AFTERWARDS], env=variables, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

    int8, fp32 = Translator(compiled_bundle, "onnx-int8"), Translator(compiled_bundle)
    best = int8.translate(LINES)
    served = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    assert [one["translation"] for one in served] == [t.text for t in best]
    three = int8.translate(LINES[1:], SearchOptions(beam_size=8, num_hypotheses=3))[0].hypotheses
    written = [line.split("\t") for line in (tmp_path / "c++.txt").read_text().splitlines()]
    assert [one[0] for one in written[:2]] == [t.text for t in best]
    assert [one[1] for one in written[2:]] == [one.text for one in three]
    two = fp32.translate(LINES[:1], SearchOptions(num_hypotheses=2))[0].hypotheses
    written = [line.split("\t") for line in (tmp_path / "c.txt").read_text().splitlines()]
    assert [one[1] for one in written] == [one.text for one in two]
