"""Fine-tune an OPUS-MT model on your text, compile it to int8 and verify the result.

python fine_tune.py opus-mt-en-de/ --languages en de --output work/ \
    --train train.en train.de --valid valid.en valid.de

Each step is a command of translate-trt. Run the script again after an interruption: the import is
kept, and training resumes. Arguments that the script does not know go to `translate-trt train`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def run(*arguments: str | Path) -> None:
    """Run a command of translate-trt, or end with its exit code."""
    command = [sys.executable, "-m", "translate_trt", *map(str, arguments)]
    print("translate-trt", *arguments, file=sys.stderr)
    code = subprocess.run(command, check=False).returncode
    if code:
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="directory of the Hugging Face model")
    parser.add_argument("--languages", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--train", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--valid", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--output", type=Path, required=True)
    arguments, training = parser.parse_known_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    imported, run_directory, bundle = (
        arguments.output / name for name in ("imported", "run", "bundle")
    )

    if not imported.exists():
        run("import", "marian-hf", arguments.model, "--output", imported,
            "--languages", *arguments.languages)  # fmt: skip
    resume = ["--resume"] if run_directory.exists() else []
    run("train", "--from", imported, "--train", *arguments.train, "--valid", *arguments.valid,
        "--output", run_directory, *resume, *training)  # fmt: skip
    run("export", run_directory, "--output", bundle, "--target", "onnx-fp32", "--target",
        "onnx-int8", "--force")  # fmt: skip
    source, reference = arguments.valid
    run("verify", bundle, "--checkpoint", run_directory, "--source", source,
        "--reference", reference)  # fmt: skip


if __name__ == "__main__":
    main()
