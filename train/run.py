"""From files on disk to a trained run: what `translate-trt train` does."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.runtime.files import write_json
from translate_trt.runtime.text import read_parallel
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.checkpoint import (
    AVERAGED,
    TOKENIZER,
    Usage,
    numbered_checkpoints,
    read_json,
    remove_leftovers,
    write_tokenizers,
)
from translate_trt.train.config import ModelConfig, TrainConfig, apply, config_from_json, preset
from translate_trt.train.data import ParallelData, encode_parallel
from translate_trt.train.distributed import Group
from translate_trt.train.metrics import DAMAGED, METRICS, TENSORBOARD
from translate_trt.train.prepared import open_prepared
from translate_trt.train.tokenizer import sample_rows, train_tokenizer
from translate_trt.train.trainer import Job, Trainer, Validation

log = logging.getLogger("translate_trt")

SETTINGS = "run.json"

# A vocabulary is trained on so many at most, sampled by the seed.
VOCABULARY_SENTENCES = 2_000_000
# Lines tokenized in one call: a fraction of a second, and enough that a call costs nothing.
CHUNK_LINES = 10_000


@dataclass(frozen=True)
class TextPair:
    """A source file and its translation, line by line."""

    source: Path
    target: Path

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Language codes read from the file names' endings, where they look like ones."""
        first, second = (path.suffix[1:] for path in (self.source, self.target))
        known = [
            code if code.isalpha() and 2 <= len(code) <= 3 else None for code in (first, second)
        ]
        return known[0], known[1]


def use_threads(count: int | None) -> None:
    """Let torch use that many CPU threads; None leaves it all cores."""
    if count is not None:
        torch.set_num_threads(count)


def _check_run_directory(out: Path, resume: bool, force: bool) -> bool:
    """True if `out` holds a run to resume.

    Raises:
        OutputError: it holds something that may not be replaced.
    """
    begun = (out / SETTINGS).is_file()
    if resume:
        if not begun:
            log.warning("%s holds no run to resume; starting a new one", out)
        return begun
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not force:
            raise OutputError(
                f"{out} exists; choose another --out, continue the run in it with --resume, "
                "or start over with --force."
            )
        if not begun:
            raise OutputError(f"{out} holds no run of translate-trt; --force will not delete it.")
    return False


def _clear_run_directory(out: Path) -> None:
    """Make `out`; if a run is in it, delete what the run wrote."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out} cannot be made: {error.strerror}.") from error
    for path in (*numbered_checkpoints(out), out / AVERAGED, out / TENSORBOARD):
        shutil.rmtree(path, ignore_errors=not path.exists())
    remove_leftovers(out)
    for path in (out / SETTINGS, out / METRICS, out / DAMAGED, out / TOKENIZER):
        path.unlink(missing_ok=True)


def _settings(
    out: Path, begun: bool, preset_name: str, corpus: str | None, overrides: dict[str, Any]
) -> tuple[ModelConfig, TrainConfig]:
    """Configurations of a new run, or those the run began with (only `steps` may then change)."""
    if not begun:
        chosen = preset(preset_name, corpus)
        return apply(chosen.model, overrides), apply(chosen.train, overrides)
    values = read_json(out / SETTINGS)
    model = config_from_json(ModelConfig, values.get("model"), out / SETTINGS)
    train = config_from_json(TrainConfig, values.get("train"), out / SETTINGS)
    before = {**dataclasses.asdict(model), **dataclasses.asdict(train)}
    changed = [
        name for name, value in overrides.items() if name != "steps" and value != before[name]
    ]
    # The vocabulary may have come out smaller than it was asked for.
    changed = [name for name in changed if name != "vocabulary_size"]
    if changed:
        raise OptionError(
            f"a resumed run keeps its settings; {', '.join(sorted(changed))} would change. "
            "Leave these options out, or start a new run."
        )
    return model, apply(train, {k: v for k, v in overrides.items() if k == "steps"})


@dataclass(frozen=True)
class _Material:
    """What a job is made of beside its settings; `model` has the vocabulary's true size."""

    model: ModelConfig
    data: ParallelData
    validation: Validation
    tokenizers: tuple[Path, Path]
    languages: tuple[str | None, str | None]


def prepare_job(
    train: TextPair,
    valid: TextPair,
    out: Path,
    preset_name: str,
    overrides: dict[str, Any],
    resume: bool = False,
    force: bool = False,
) -> Job:
    """Read the text, train or reopen the vocabulary, tokenize, and write down the settings.

    Args:
        train: training text.
        valid: validation text.
        out: directory of the run.
        preset_name: one of `PRESETS`, or a variation of one.
        overrides: fields of ModelConfig and TrainConfig by name.
        resume: continue the run in `out`, if there is one.
        force: delete the run in `out`.

    Raises:
        InputError: files of unequal line count, or without usable text.
        OptionError: a setting out of range, or changed on resuming; resume and force together.
        OutputError: `out` exists.
    """

    def read(begun: bool, model: ModelConfig, settings: TrainConfig, scratch: Path) -> _Material:
        source, target = _read(train)
        valid_source, valid_target = _read(valid)
        if not source:
            raise InputError(f"{train.source} is empty; there is nothing to train on.")
        if not valid_source:
            raise InputError(f"{valid.source} is empty; validation needs at least one pair.")
        path = out / TOKENIZER
        if not begun:
            path = scratch / TOKENIZER
            pieces = model.vocabulary_size
            rows = sample_rows(len(source), VOCABULARY_SENTENCES, settings.seed)
            log.info("training a vocabulary of %d pieces on %d pairs", pieces, len(rows))
            lines = (side[row] for side in (source, target) for row in rows)
            size = train_tokenizer(lines, pieces, path)
            if size < pieces:
                log.info("the text gave %d of %d pieces", size, pieces)
            model = dataclasses.replace(model, vocabulary_size=size)
        tokenizer = Tokenizer(path, path)
        data = encode_parallel(
            _encode(tokenizer.encode_source_batch, source),
            _encode(tokenizer.encode_target_batch, target),
            min(settings.max_length, model.longest or settings.max_length),
        )
        valid_data = encode_parallel(
            _encode(tokenizer.encode_source_batch, valid_source),
            _encode(tokenizer.encode_target_batch, valid_target),
            model.longest,
        )
        validation = Validation(valid_data, valid_source, valid_target)
        return _Material(model, data, validation, (path, path), train.languages)

    return _make_job(read, out, (preset_name, None), overrides, resume, force)


def prepare_job_from_data(
    directory: Path,
    out: Path,
    preset_name: str,
    overrides: dict[str, Any],
    resume: bool = False,
    force: bool = False,
) -> Job:
    """`prepare_job` of a directory that `translate-trt data prepare` made.

    Its vocabulary becomes the model's. The other arguments and the errors are as there, except:

    Raises:
        InputError: the data is missing, damaged, or without validation text.
        OptionError: also a setting that the data was not prepared for.
    """
    prepared = open_prepared(directory)

    def read(begun: bool, model: ModelConfig, settings: TrainConfig, scratch: Path) -> _Material:
        size = prepared.vocabulary_size
        if overrides.get("vocabulary_size", size) != size:
            raise OptionError(
                f"{directory} was prepared with a vocabulary of {size} pieces; leave "
                "--vocabulary-size out, or prepare it with another."
            )
        model = dataclasses.replace(model, vocabulary_size=size)
        split = prepared.splits["train"]
        longest = max(split["longest_source"], split["longest_target"])
        limit = min(settings.max_length, model.longest or settings.max_length)
        if longest > limit:
            raise OptionError(
                f"{directory} has pairs of up to {longest} tokens, more than --max-length or the "
                f"model's positions allow; prepare it with --max-length {limit}."
            )
        source, target = prepared.text("valid")
        validation = Validation(prepared.split("valid"), source, target)
        tokenizers = (prepared.tokenizer, prepared.tokenizer)
        languages = (prepared.source_language, prepared.target_language)
        return _Material(model, prepared.split("train"), validation, tokenizers, languages)

    return _make_job(read, out, (preset_name, prepared.name), overrides, resume, force)


def _read(pair: TextPair) -> tuple[list[str], list[str]]:
    lines = list(read_parallel(pair.source, pair.target))
    return [source for source, _ in lines], [target for _, target in lines]


def _encode(
    encode: Callable[[Sequence[str]], list[list[int]]], lines: Sequence[str]
) -> list[list[int]]:
    """The tokens of all lines, some at a time: no signal is heard within a call of C++."""
    chunks = (lines[begin : begin + CHUNK_LINES] for begin in range(0, len(lines), CHUNK_LINES))
    return list(itertools.chain.from_iterable(map(encode, chunks)))


def _make_job(
    read: Callable[[bool, ModelConfig, TrainConfig, Path], _Material],
    out: Path,
    recipe: tuple[str, str | None],  # preset and corpus
    overrides: dict[str, Any],
    resume: bool,
    force: bool,
) -> Job:
    """Check everything, then clear or reopen `out` and write down the settings."""
    if resume and force:
        raise OptionError("--resume continues the run in --out and --force deletes it; give one.")
    begun = _check_run_directory(out, resume, force)
    model, settings = _settings(out, begun, *recipe, overrides)
    # What can be wrong with text and settings shows in `read`, which writes into a place of its
    # own: none of it may cost the run that is in `out`.
    with tempfile.TemporaryDirectory() as scratch:
        material = read(begun, model, settings, Path(scratch))
        if not begun:
            _clear_run_directory(out)
            models = tuple(path.read_bytes() for path in material.tokenizers)
            write_tokenizers(out, (models[0], models[1]))
    configurations = {
        "model": dataclasses.asdict(material.model),
        "train": dataclasses.asdict(settings),
    }
    write_json(out / SETTINGS, configurations)
    data = material.data
    log.info("%d training pairs, %d target tokens", len(data), len(data.target.tokens))
    return Job(
        out,
        material.model,
        settings,
        data,
        material.validation,
        (out / TOKENIZER, out / TOKENIZER),
        data.fingerprint(),
        Usage(*material.languages),
    )


def in_turn(group: Group, prepare: Callable[[bool], Job]) -> Job:
    """The job, made by the group's leading process and then reopened by the others.

    Args:
        group: the processes.
        prepare: makes it; called with True where it only reopens what has been made.
    """
    if group.leads:
        job = prepare(False)
        group.wait()
        return job
    group.wait()
    return prepare(True)


def train_model(job: Job, group: Group, resume: bool = False) -> Path | None:
    """Run the training.

    Returns:
        The averaged checkpoint; None if SIGTERM ended the run before, after saving.
    """
    return Trainer(job, group, resume).run()
