"""Preparation of a training run: settings, data and run directory."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from translate_trt.runtime.bundle.contract import max_beams
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import (
    PREFIX,
    Checkpoint,
    open_checkpoint,
    write_tokenizers,
)
from translate_trt.train.config import default_recipe, guided_head
from translate_trt.train.data.token_files import PreparedData
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.job import Job
from translate_trt.train.trainer.load_data import LoadedData, TextFiles, load_data
from translate_trt.train.trainer.run_directory import RunDirectory
from translate_trt.train.trainer.settings import (
    Settings,
    fine_tuning_settings,
    new_settings,
    resumed_settings,
)
from translate_trt.train.training_state import TrainingState

log = logging.getLogger("translate_trt")

#: Search of parsers (section 6.3).
PARSING_SEARCH: dict[str, Any] = {"beam_size": 21, "length_penalty": 0.3, "max_extra_length": 300}


def prepare_job(
    source: TextFiles | PreparedData,
    out: Path,
    preset_name: str | None,
    overrides: dict[str, Any],
    resume: bool = False,
    force: bool = False,
    start: Path | None = None,
    session: str | None = None,
) -> Job:
    """Check settings and data, then create or reopen the directory of a run.

    An error leaves the run that is in `out` untouched.

    Args:
        source: Text files, or prepared data, whose vocabulary becomes the model's.
        out: Directory of the run.
        preset_name: One of `PRESETS`, or a variation of one; with `start` also "fine-tune". None:
            `default_recipe`.
        overrides: Fields of ModelConfig and TrainConfig by name.
        resume: Continue the run in `out`, if there is one.
        force: Replace the run in `out`.
        start: Fine-tune this checkpoint, or the best one of this run, with its tokenizers.
        session: The torchrun that begins or resumes the run (`torchrun_session`).

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
        InputError: Files of unequal line count, without usable text, or damaged.
        OptionError: A setting out of range, changed on resuming, or in conflict with the
            checkpoint or the data; resume and force together.
        OutputError: `out` exists.
    """
    directory = RunDirectory(out)
    begun = directory.check(resume, force)
    corpus = source.name if isinstance(source, PreparedData) else None
    model: Transformer | None = None
    if begun:
        settings = resumed_settings(out, overrides, start, preset_name, corpus)
    elif start is None:
        settings = new_settings(preset_name or default_recipe(), corpus, overrides)
    else:
        checkpoint = _open_start(start, out)
        model = checkpoint.load_model()
        name = preset_name or default_recipe(fine_tunes=True)
        settings = fine_tuning_settings(checkpoint, name, corpus, overrides)
    if not begun:
        check_apart(out, _inputs(source))
    with tempfile.TemporaryDirectory() as scratch:
        data = load_data(source, settings, Path(scratch), overrides)
        settings = dataclasses.replace(_completed(settings, data), session=session)
        if begun:
            settings.write(out)
        else:
            tokenizers = _begin(directory, settings, data, model)
            settings = dataclasses.replace(settings, tokenizers=tokenizers)
            data = dataclasses.replace(data, tokenizers=tokenizers)
    log.info("%d training pairs, %d target tokens", len(data.train), len(data.train.target.tokens))
    return Job(out, settings, data)


def _inputs(source: TextFiles | PreparedData) -> list[Path]:
    if isinstance(source, PreparedData):
        return [source.path]
    return [path for pair in source for path in (pair.source, pair.target)]


def _open_start(start: Path, out: Path) -> Checkpoint:
    """Open the checkpoint of --from, which must lie outside `out`."""
    checkpoint = open_checkpoint(start)
    if out.resolve() in (checkpoint.path.resolve(), *checkpoint.path.resolve().parents):
        raise OptionError(
            f"{checkpoint.path} is in --output, where a new run would replace it; choose another."
        )
    check_apart(out, [start, checkpoint.path])
    return checkpoint


def _completed(settings: Settings, data: LoadedData) -> Settings:
    """Add what the data determines: sizes of new vocabularies, search of trees, languages."""
    model, decoding = settings.model, settings.decoding
    if settings.tokenizers is None:
        tokenizer, (source, target) = Tokenizer(*data.tokenizers), data.tokenizers
        if data.has_trees:
            beams = min(PARSING_SEARCH["beam_size"], max_beams(tokenizer.vocabulary_size))
            search = PARSING_SEARCH | {"beam_size": beams} | decoding.search
            decoding = dataclasses.replace(decoding, search=search)
        model = model.with_vocabularies(
            tokenizer.vocabulary_size, tokenizer.source_vocabulary_size if source != target else 0
        )
    decoding = dataclasses.replace(
        decoding,
        source_language=decoding.source_language or data.languages[0],
        target_language=decoding.target_language or data.languages[1],
        prompt=data.prompt if decoding.prompt == Prompt() else decoding.prompt,
        term_annotation=decoding.term_annotation or data.term_annotation,
        alignment_heads=guided_head(model, settings.train) or decoding.alignment_heads,
    )
    return dataclasses.replace(settings, model=model, decoding=decoding)


def _begin(
    directory: RunDirectory, settings: Settings, data: LoadedData, model: Transformer | None
) -> tuple[Path, Path]:
    """Write the initial files of a run, with `model` as its checkpoint of step 0.

    Returns:
        Its tokenizers of source and target.
    """
    contents = data.tokenizers[0].read_bytes(), data.tokenizers[1].read_bytes()
    with directory.replaced() as new:
        source, target = write_tokenizers(new, contents)
        settings = dataclasses.replace(settings, tokenizers=(source, target))
        settings.write(new)
        if model is not None:
            job = Job(new, settings, data)
            state = TrainingState(0, 0, 0, job.fingerprint, 0, {}, {})
            job.save_checkpoint(new / f"{PREFIX}{0:08d}", model.state_dict(), state)
    return directory.path / source.name, directory.path / target.name


def in_turn(group: Group, prepare: Callable[[bool], Job]) -> Job:
    """Prepare a job in the leading process, then reopen it in the others.

    Args:
        group: Processes that train together.
        prepare: Prepares the job; called with True to only reopen a prepared one.
    """
    if group.leads:
        job = prepare(False)
        group.wait()
        return job
    group.wait()
    return prepare(True)
