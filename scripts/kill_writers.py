"""Kill every command that writes at random moments, and check what each kill leaves.

    python scripts/kill_writers.py DIRECTORY [--kills 20] [--signal KILL] [--seed 1]
        [--only COMMAND]...

Makes a small corpus and a tiny model in DIRECTORY, which must not exist. Each command then runs
again and again over its finished output, and gets a signal after a random part of its usual time.
After each signal the output must be the complete old one or the complete new one: it is opened,
loaded and checked against its hashes. A command that can handle the signal must end by it, and
leave no temporary files but lines that it reports. Finally the command runs undisturbed and must
leave no temporary files. The exit code is 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PROGRAM = [sys.executable, "-m", "translate_trt.runtime.cli"]
WORDS = {
    "en": "the a cat dog house tree runs sleeps eats green big small".split(),  # noqa: SIM905
    "de": "der ein Katze Hund Haus Baum rennt schläft frisst grün groß klein".split(),  # noqa: SIM905
}
SIZE = {"encoder-layers": 1, "decoder-layers": 1, "d-model": 16, "d-ff": 16, "heads": 2}
RECIPE = ["--batch-tokens", "512", "--micro-batch-tokens", "512", "--learning-rate", "1e-2",
          "--warmup-steps", "20", "--dropout", "0", "--average-checkpoints", "1",
          "--checkpoint-every", "5", "--validate-every", "0", "--device", "cpu",
          "--precision", "fp32"]  # fmt: skip
TINY = [*(f"--{name}={value}" for name, value in SIZE.items()), *RECIPE, "--threads", "1"]
VOCABULARY = ["--vocabulary-size", "320"]


class Command(NamedTuple):
    """Command that writes a file or directory.

    Attributes:
        arguments: Returns its arguments for the `old` or the `new` input, whose outputs differ.
        output: File or directory.
        check: Raises if the output is incomplete; returns text that tells the versions apart.
        cache: Directory removed before each run.
    """

    arguments: Callable[[str], list[str]]
    output: Path
    check: Callable[[Path], str]
    cache: Path | None = None


def call(*arguments: object) -> str:
    """Run a command that must succeed and return its standard output."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, arguments[:2]))}: {done.stderr.strip()}")
    return done.stdout


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_bundle(path: Path) -> str:
    call("info", path)  # reads and hashes every file
    manifest = json.loads((path / "manifest.json").read_text())
    # Only evidence that is the same in every run, unlike measured speeds.
    evidence = [
        one["parity"] and one["parity"]["sentences"] for one in manifest["targets"].values()
    ]
    return json.dumps([manifest["limits"], evidence])


def check_checkpoint(path: Path) -> str:
    from translate_trt.train.checkpoint import open_checkpoint

    found = open_checkpoint(path)
    found.load_model()
    return str(found.source_language)


def check_run(path: Path) -> str:
    """Check that every checkpoint is complete, and return which run they belong to."""
    from translate_trt.train.checkpoint import (
        AVERAGED,
        numbered_checkpoints,
        open_checkpoint,
    )
    from translate_trt.train.training_state import TrainingState

    seeds = set()
    averaged = [path / AVERAGED] if (path / AVERAGED).exists() else []
    for checkpoint in (*numbered_checkpoints(path), *averaged):
        found = open_checkpoint(checkpoint)
        found.load_model()
        if checkpoint.name != AVERAGED:
            TrainingState.load(checkpoint / "training")
        seeds.add(str(found.train["seed"]))
    if len(seeds) > 1:
        raise ValueError(f"checkpoints of runs with seeds {seeds} lie in one directory")
    return f"seed {seeds.pop()}" if seeds else "begun anew"


def check_data(path: Path) -> str:
    call("data", "info", path, "--check")
    return str(json.loads((path / "data.json").read_text())["source_language"])


def check_lines(path: Path) -> str:
    lines = path.read_text().splitlines()
    if len(lines) != COUNT:
        raise ValueError(f"{path} has {len(lines)} lines of {COUNT}")
    return sha256(path)


def check_corpus(path: Path) -> str:
    return " ".join(check_lines(path / f"{name}.txt")[:8] for name in ("a", "b"))


def check_repository(path: Path) -> str:
    (model,) = json.loads((path / "repository.json").read_text())["models"]
    check_bundle(path / model / "1" / "bundle")
    return str(model)


def check_model(path: Path) -> str:
    check_bundle(path / "bundle")
    return str(json.loads((path / "model.json").read_text())["revision"])


def check_calibration(path: Path) -> str:
    check_bundle(path)
    manifest = json.loads((path / "manifest.json").read_text())
    return json.dumps([one["calibration"] for one in manifest["targets"].values()])


def check_distilled(path: Path) -> str:
    """Check the files of finished stages, and return the source's hash and the other stages."""
    records = {one.stem: json.loads(one.read_text()) for one in (path / "stages").glob("*.json")}
    for stage, values in records.items():
        for name, entry in (values["outputs"] or {}).items():
            # A repeated export changes the manifest, and repeats the verification.
            changed = (path / name).exists() and sha256(path / name) != entry["sha256"]
            if changed and not stage.startswith("verify"):
                raise ValueError(f"the stage {stage} is finished, and {name} has another hash")
    for run in path.glob("students/*/run*"):
        check_run(run)
    for bundle in path.glob("students/*/bundle"):
        check_bundle(bundle)
    unfinished = sorted(stage for stage, values in records.items() if not values["outputs"])
    return f"{records['translate']['identity']['inputs']['source 1']} without {unfinished}"


COUNT = 40
COMMITS = {"old": "", "new": ""}  # of the repository that `get` installs
SECONDS_TO_END = 60
BY_PARTS = ("train", "corpus", "distill")  # have outputs between the old and the new one
KEEP_LINES = ("translate", "score", "parse")  # and report them


def write_text(directory: Path) -> None:
    directory.mkdir(parents=True)
    rng = random.Random(1)
    for name, count in (("train", 400), ("valid", 20), ("a", COUNT), ("b", COUNT), ("c", 300)):
        rows = [[rng.randrange(12) for _ in range(rng.randint(2, 8))] for _ in range(count)]
        for language, words in WORDS.items():
            text = "".join(" ".join(words[index] for index in row) + "\n" for row in rows)
            (directory / f"{name}.{language}").write_text(text)
    for name in "ab":
        shutil.copy(directory / f"{name}.en", directory / f"{name}.txt")
        # Other words have other trees, whatever the parser makes of them.
        rows = [line.split() for line in (directory / f"{name}.en").read_text().splitlines()]
        trees = [f"( (S {' '.join(f'(NN {word})' for word in row)}) )" for row in rows]
        (directory / f"{name}.mrg").write_text("\n".join(trees))


def save_foreign(checkpoint: Path, out: Path) -> None:
    """Save a random model of transformers with the checkpoint's tokenizer, to import."""
    from support.marian_models import save_random_marian

    tokenizer = checkpoint / "tokenizer.spm"
    save_random_marian(out, tokenizer, tokenizer)


def make_parser(home: Path) -> None:
    """Train and export a parser."""
    text, data, run = home / "text", home / "trees", home / "parser-run"
    trees = ["--trees", text / "a.mrg", "--valid-trees", text / "b.mrg"]
    call("data", "prepare", *trees, "--source-vocabulary-size", "290", "--output", data)
    call("train", "--config", "tiny", "--data", data, *TINY, "--steps", "20", "--output", run)
    call("export", run, "--output", home / "parser")


@contextlib.contextmanager
def hub(foreign: Path, models: Path) -> Iterator[None]:
    """Serve the commits of a repository to the commands, whose models go to the directory."""
    from support.hub_server import serve_hub

    with serve_hub() as served:
        os.environ |= {"HF_ENDPOINT": served.url, "HF_HOME": str(models.parent / "hf"),
                       "TRANSLATE_TRT_MODELS": str(models)}  # fmt: skip
        repository = served.repository("someone/model", license="mit")
        for version in COMMITS:
            COMMITS[version] = repository.commit_directory(foreign)
        yield


def train_arguments(text: Path, seed: int, steps: int) -> list[str]:
    train, valid = (
        [str(text / f"{name}.{language}") for language in WORDS] for name in ("train", "valid")
    )
    return ["train", "--config", "tiny", "--train", *train, "--valid", *valid, *VOCABULARY, *TINY,
            "--seed", str(seed), "--steps", str(steps), "--force"]  # fmt: skip


def commands(home: Path) -> dict[str, Command]:
    text = home / "text"
    sides = [str(text / f"train.{language}") for language in WORDS]
    valid = [str(text / f"valid.{language}") for language in WORDS]
    bundle, run = str(home / "bundle"), str(home / "run")

    def data(version: str) -> list[str]:
        return ["data", "prepare", "--from", *sides, "--valid", *valid, "--source-language",
                version, *VOCABULARY, "--workers", "1", "--force"]  # fmt: skip

    def train(version: str) -> list[str]:
        return train_arguments(text, seed={"old": 1, "new": 2}[version], steps=20)

    def export(version: str) -> list[str]:
        length = {"old": "20", "new": "30"}[version]
        return ["export", run, "--max-source-length", length, "--force"]

    def import_(version: str) -> list[str]:
        return ["import", "marian-hf", str(home / "foreign"), "--languages", version, "de",
                "--force"]  # fmt: skip

    def translate(version: str) -> list[str]:
        # No scores: their last digits may change with the batches of a run.
        length = {"old": "5", "new": "9"}[version]
        given = ["translate", "--bundle", bundle, "--max-length", length, "--force", "--resume"]
        return [*given, "--chunk-lines", "8", str(text / "a.txt")]

    def score(version: str) -> list[str]:
        form = {"old": "gnmt", "new": "length"}[version]
        given = ["score", "--bundle", bundle, "--length-penalty-form", form, "--force"]
        return [*given, "--chunk-lines", "8", *(str(text / f"a.{side}") for side in WORDS)]

    def shortlist(version: str) -> list[str]:
        given = ["shortlist", "--text", *sides, "--tokenizer", run, "--workers", "1", "--force"]
        return [*given, "--best", {"old": "1", "new": "4"}[version]]

    def corpus(version: str) -> list[str]:
        beam = {"old": "1", "new": "3"}[version]
        given = ["corpus", "--bundle", bundle, str(text / "a.txt"), str(text / "b.txt")]
        return [*given, "--beam-size", beam, "--workers", "1", "--shard-lines", "10", "--force"]

    def verify(version: str) -> list[str]:
        # More lines are stronger evidence, which replaces the existing one.
        lines = {"old": "valid", "new": "a"}[version]
        files = [str(text / f"{lines}.{language}") for language in WORDS]
        return ["verify", "--checkpoint", run, "--source", files[0], "--reference", files[1]]

    def triton(version: str) -> list[str]:
        return ["triton", bundle, "--name", version, "--force"]

    def get(version: str) -> list[str]:
        given = ["get", "someone/model", "--languages", "en", "de", "--force"]
        return [*given, "--revision", COMMITS[version]]

    def distill(version: str) -> list[str]:
        name = {"old": "a", "new": "b"}[version]
        student = ",".join(["tiny", *(f"{field}={value}" for field, value in SIZE.items())])
        return ["distill", "--teacher", bundle, "--source", str(text / f"{name}.en"),
                "--valid", *valid, "--student", student, *VOCABULARY, *RECIPE, "--steps", "20",
                "--workers", "1", "--target", "onnx-fp32", "--beam", "1", "--rounds", "1",
                "--force"]  # fmt: skip

    def calibrate(version: str) -> list[str]:
        name = {"old": "train", "new": "c"}[version]
        files = [str(text / f"{name}.{language}") for language in WORDS]
        return ["calibrate", "--source", files[0], "--reference", files[1]]

    def parse(version: str) -> list[str]:
        name = {"old": "a", "new": "b"}[version]
        given = ["parse", "--bundle", str(home / "parser"), "--tokenized", "--force"]
        return [*given, "--chunk-lines", "8", str(text / f"{name}.en")]

    def to(arguments: Callable[[str], list[str]], output: Path) -> Callable[[str], list[str]]:
        return lambda version: [*arguments(version), "--output", str(output)]

    def inside(arguments: Callable[[str], list[str]], bundle: Path) -> Callable[[str], list[str]]:
        return lambda version: [*arguments(version), str(bundle)]

    out = home / "out"
    models = out / "models"
    return {
        "data prepare": Command(to(data, out / "data"), out / "data", check_data),
        "train": Command(to(train, out / "run"), out / "run", check_run),
        "import": Command(
            to(import_, out / "checkpoint"), out / "checkpoint", check_checkpoint
        ),
        "export": Command(to(export, out / "bundle"), out / "bundle", check_bundle),
        "triton": Command(
            to(triton, out / "repository"), out / "repository", check_repository
        ),
        "verify": Command(
            inside(verify, out / "verified"), out / "verified", check_bundle
        ),
        "translate": Command(to(translate, out / "a.txt"), out / "a.txt", check_lines),
        "score": Command(to(score, out / "scores"), out / "scores", check_lines),
        "shortlist": Command(
            to(shortlist, out / "shortlist"), out / "shortlist", sha256
        ),
        "corpus": Command(to(corpus, out / "corpus"), out / "corpus", check_corpus),
        "get": Command(
            get, models / "someone--model", check_model, cache=models / ".downloads"
        ),
        "distill": Command(
            to(distill, out / "distilled"), out / "distilled", check_distilled
        ),
        "calibrate": Command(
            inside(calibrate, out / "calibrated"), out / "calibrated", check_calibration
        ),
        "parse": Command(to(parse, out / "trees"), out / "trees", check_lines),
    }  # fmt: skip


def end_group(process: subprocess.Popen[bytes], sent: signal.Signals) -> bool:
    """Signal the command, then kill the processes that it started; return True if it obeyed."""
    process.send_signal(sent)
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
    obeyed = process.wait() in (0, -sent, 128 + sent)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return obeyed


def leftovers(output: Path) -> list[str]:
    """Return names of hidden and partial files beside the output and in it."""
    inside = output.rglob("*") if output.is_dir() else []
    found = [*output.parent.glob(f"*{output.name}*"), *inside]
    return sorted(
        str(path.relative_to(output.parent)) for path in found
        if path != output and (path.name.startswith(".") or path.name.endswith(".partial"))
    )  # fmt: skip


def attempt(
    command: Command, name: str, kills: int, sent: signal.Signals, rng: random.Random, home: Path
) -> list[str]:
    """Kill a command that many times and return what was wrong."""
    saved = home / "saved"
    command.output.parent.mkdir(parents=True, exist_ok=True)
    if name in ("verify", "calibrate"):
        shutil.copytree(home / "bundle", command.output)
    call(*command.arguments("old"))
    old = command.check(command.output)
    remove(saved)
    copy = shutil.copytree if command.output.is_dir() else shutil.copy
    copy(command.output, saved)
    begin = time.perf_counter()
    call(*command.arguments("new"))
    seconds = time.perf_counter() - begin
    new = command.check(command.output)
    if old == new:
        return ["the old and the new output cannot be told apart"]
    found: Counter[str] = Counter()
    wrong = []
    for _ in range(kills):
        remove(command.output)
        copy(saved, command.output)
        if command.cache is not None:
            remove(command.cache)
        process = subprocess.Popen(
            [*PROGRAM, *command.arguments("new")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        # Most files change at the end of a command, so half of the kills are near the end.
        least = 0.0 if rng.random() < 0.5 else 0.8
        moment = rng.uniform(least, 1.02) * seconds
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        if not end_group(process, sent):
            wrong.append(f"signalled after {moment:.2f} s: exit status {process.returncode}")
        if sent != signal.SIGKILL and name not in (*BY_PARTS, *KEEP_LINES):
            # The next command completes an update of a directory (.switch, .moving).
            left_behind = [one for one in leftovers(command.output) if one.endswith("partial")]
            wrong += [f"signalled after {moment:.2f} s, left {one}" for one in left_behind]
        try:
            left = command.check(command.output)
        except Exception as error:
            wrong.append(f"killed after {moment:.2f} of {seconds:.2f} s: {error!r}")
            continue
        found["old" if left == old else "new" if left == new else "between"] += 1
        if left not in (old, new) and name not in BY_PARTS:
            wrong.append(f"killed after {moment:.2f} s: neither old nor new")
    call(*command.arguments("new"))
    if command.check(command.output) != new:
        wrong.append("the run after the kills made something else")
    if left_behind := leftovers(command.output):
        wrong.append(f"left behind: {', '.join(left_behind)}")
    remove(saved)
    print(f"{name}: {dict(found)}, {seconds:.1f} s undisturbed", *wrong, sep="\n  ", flush=True)
    return wrong


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("directory", type=Path)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--signal", choices=["KILL", "TERM", "HUP", "INT"], default="KILL")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", action="append", default=[])
    given = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    home = given.directory.resolve()
    write_text(home / "text")
    made = commands(home)
    chosen = given.only or list(made)
    # After 300 steps some words are right and others wrong, from which `calibrate` learns.
    call(*train_arguments(home / "text", seed=1, steps=300), "--output", home / "run")
    call("export", home / "run", "--output", home / "bundle")
    if {"import", "get"} & {*chosen}:
        save_foreign(home / "run" / "checkpoint-averaged", home / "foreign")
    rng, sent = random.Random(given.seed), signal.Signals[f"SIG{given.signal}"]
    if "parse" in chosen:
        make_parser(home)
    with (
        hub(home / "foreign", home / "out" / "models")
        if "get" in chosen
        else contextlib.nullcontext()
    ):
        wrong = [
            f"{name}: {one}"
            for name in chosen
            for one in attempt(made[name], name, given.kills, sent, rng, home)
        ]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
