"""From files on disk to a trained run: what `translate-trt train` does."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from translate_trt.runtime.bundle.contract import forced_token
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cores import within_cores
from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.runtime.io.atomic_files import clear_leftovers_in, finish_switch, new_contents
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.io.locks import PASSING
from translate_trt.runtime.io.outputs import check_apart, stranger
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import (
    AVERAGED,
    TOKENIZER,
    TOKENIZERS,
    Checkpoint,
    DecodingDefaults,
    checkpoint_files,
    numbered_checkpoints,
    open_checkpoint,
    write_tokenizers,
)
from translate_trt.train.data.batches import ParallelData, encode_parallel
from translate_trt.train.data.text_sources import language_of
from translate_trt.train.data.token_files import PreparedData, open_prepared
from translate_trt.train.data.vocabulary import sample_rows, train_tokenizer
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.loop import Job, Trainer, Validation, save_beginning
from translate_trt.train.trainer.metrics import DAMAGED, METRICS, TENSORBOARD
from translate_trt.train.trainer.settings import (
    SETTINGS,
    Settings,
    fine_tuning_settings,
    new_settings,
    resumed_settings,
)

log = logging.getLogger("translate_trt")

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
        return language_of(self.source), language_of(self.target)


def use_threads(count: int | None) -> None:
    """Let torch use that many CPU threads; None leaves it all cores."""
    if count is not None:
        torch.set_num_threads(within_cores("threads", count))


def _check_run_directory(out: Path, resume: bool, force: bool) -> bool:
    """True if `out` holds a run to resume.

    Raises:
        OutputError: it holds something that may not be replaced.
    """
    if out.is_dir():
        finish_switch(out, _obsolete, SETTINGS)
    begun = (out / SETTINGS).is_file()
    if resume:
        if not begun:
            log.warning("%s holds no run to resume; starting a new one", out)
        elif (averaged := out / AVERAGED).is_dir():  # known before days of training
            _check_is_ours(averaged)
        return begun
    if out.exists() and (not out.is_dir() or not _is_empty(out)):
        if not force:
            raise OutputError(
                f"{out} exists; choose another --output, continue the run in it with --resume, "
                "or start over with --force."
            )
        if not begun or not _is_run(out):
            raise OutputError(f"{out} holds no run of translate-trt; --force will not delete it.")
        # Files beside the run's own are left alone anyway.
        for path in filter(Path.is_dir, _obsolete(out)):
            _check_is_ours(path)
    return False


def _is_empty(out: Path) -> bool:
    """Whether there is nothing but the lock, and what killed processes have left."""
    return all(PASSING.fullmatch(path.name) for path in out.iterdir())


def _is_run(out: Path) -> bool:
    """By what is in it, and not by the name of a file."""
    try:
        values = json.loads((out / SETTINGS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and {"model", "train"} <= values.keys()


def _check_is_ours(directory: Path) -> None:
    """Raise OutputError if a directory that is to be replaced has files that no run has written."""
    if directory.name == TENSORBOARD:
        made = {one.name for one in directory.glob("events.out.tfevents.*")}
    else:
        made = checkpoint_files(directory) or set()
    if (other := stranger(directory, made)) is not None:
        raise OutputError(
            f"{directory / other} was not written by translate-trt train, and would be deleted; "
            "move it away, or choose another --output."
        )


def _obsolete(out: Path) -> Iterator[Path]:
    """Files of the run in a directory; the settings, which make it a run, come first."""
    names = (SETTINGS, METRICS, DAMAGED, TOKENIZER, *TOKENIZERS, AVERAGED, TENSORBOARD)
    for path in (*(out / name for name in names), *numbered_checkpoints(out)):
        if path.exists():
            yield path


@dataclass(frozen=True)
class LoadedData:
    """What a job is made of beside its settings."""

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
    start: Path | None = None,
) -> Job:
    """Read the text, train or reopen the vocabulary, tokenize, and write down the settings.

    Args:
        train: training text.
        valid: validation text.
        out: directory of the run.
        preset_name: one of `PRESETS`, or a variation of one; with `start` also "fine-tune".
        overrides: fields of ModelConfig and TrainConfig by name.
        resume: continue the run in `out`, if there is one.
        force: delete the run in `out`.
        start: fine-tune this checkpoint, or the best one of this run, with its tokenizers.

    Raises:
        CheckpointError: there is none, or it is damaged.
        InputError: files of unequal line count, or without usable text.
        OptionError: a setting out of range, or changed on resuming, or that would change the shape
            of the checkpoint's model; resume and force together.
        OutputError: `out` exists.
    """

    def read(settings: Settings, scratch: Path) -> LoadedData:
        source, target = _read(train)
        valid_source, valid_target = _read(valid)
        if not source:
            raise InputError(f"{train.source} is empty; there is nothing to train on.")
        if not valid_source:
            raise InputError(f"{valid.source} is empty; validation needs at least one pair.")
        tokenizers = settings.tokenizers
        if tokenizers is None:
            tokenizers = _train_vocabulary(source, target, settings, scratch / TOKENIZER)
        tokenizer, longest = Tokenizer(*tokenizers), settings.model.longest
        limit = min(settings.train.max_length, longest or settings.train.max_length)
        data = _tokenize(tokenizer, settings.decoding, source, target, limit)
        valid_data = _tokenize(tokenizer, settings.decoding, valid_source, valid_target, longest)
        validation = Validation(valid_data, valid_source, valid_target)
        return LoadedData(data, validation, tokenizers, train.languages)

    inputs = (*vars(train).values(), *vars(valid).values())
    return _make_job(read, out, (preset_name, None), overrides, resume, force, start, inputs)


def prepare_job_from_data(
    directory: Path,
    out: Path,
    preset_name: str,
    overrides: dict[str, Any],
    resume: bool = False,
    force: bool = False,
    start: Path | None = None,
) -> Job:
    """`prepare_job` of a directory that `translate-trt data prepare` made.

    Its vocabulary becomes the model's; a checkpoint's must be the same. The other arguments and the
    errors are as there, except:

    Raises:
        InputError: the data is missing, damaged, or without validation text.
        OptionError: also a setting, or a checkpoint, that the data was not prepared for.
    """
    prepared = open_prepared(directory)

    def read(settings: Settings, scratch: Path) -> LoadedData:
        _check_vocabulary(prepared, settings)
        size = prepared.vocabulary_size
        if overrides.get("vocabulary_size", size) != size:
            raise OptionError(
                f"{directory} was prepared with a vocabulary of {size} pieces; leave "
                "--vocabulary-size out, or prepare it with another."
            )
        split = prepared.splits["train"]
        longest = max(split["longest_source"], split["longest_target"])
        limit = settings.train.max_length
        limit = min(limit, settings.model.longest or limit)
        if longest > limit:
            raise OptionError(
                f"{directory} has pairs of up to {longest} tokens, more than --max-pair-length or "
                f"the model's positions allow; prepare it with --max-pair-length {limit}."
            )
        source, target = prepared.text("valid")
        validation = Validation(prepared.split("valid"), source, target)
        tokenizers = (prepared.tokenizer, prepared.tokenizer)
        languages = (prepared.source_language, prepared.target_language)
        return LoadedData(prepared.split("train"), validation, tokenizers, languages)

    recipe = preset_name, prepared.name
    return _make_job(read, out, recipe, overrides, resume, force, start, (directory,))


def _check_vocabulary(prepared: PreparedData, settings: Settings) -> None:
    """That the data's vocabulary is the model's, if that has one, and its text needs no prompt."""
    if settings.decoding.prompt != Prompt():
        raise OptionError(
            f"{prepared.path} lacks the tokens that this model reads before its texts. Give the "
            "text itself, with --train and --valid."
        )
    content = prepared.tokenizer.read_bytes()
    for path in settings.tokenizers or ():
        if path.read_bytes() != content:
            raise OptionError(
                f"{prepared.path} was prepared with another vocabulary than the model's, which is "
                f"{path}. Give the text itself, with --train and --valid."
            )


def _train_vocabulary(
    source: Sequence[str], target: Sequence[str], settings: Settings, path: Path
) -> tuple[Path, Path]:
    """One for both sides."""
    pieces = settings.model.vocabulary_size
    rows = sample_rows(len(source), VOCABULARY_SENTENCES, settings.train.seed)
    log.info("training a vocabulary of %d pieces on %d pairs", pieces, len(rows))
    size = train_tokenizer((side[row] for side in (source, target) for row in rows), pieces, path)
    if size < pieces:
        log.info("the text gave %d of %d pieces", size, pieces)
    return path, path


def _read(pair: TextPair) -> tuple[list[str], list[str]]:
    lines = list(read_parallel(pair.source, pair.target))
    return [source for source, _ in lines], [target for _, target in lines]


def _tokenize(
    tokenizer: Tokenizer,
    decoding: DecodingDefaults,
    source: Sequence[str],
    target: Sequence[str],
    max_length: int | None,
) -> ParallelData:
    """Lines as data, with the tokens of the prompt before them, as in `translate_reference`.

    What other special tokens a model reads is a matter of `ParallelData.batch`.
    """
    prompt, greedy = decoding.prompt, decoding.greedy
    asked = [prompt.of_line(line, greedy) for line in source]
    sources = _encode(tokenizer.encode_source_batch, [line for line, _ in asked])
    targets = _encode(tokenizer.encode_target_batch, target)
    if prompt != Prompt():
        for place, (_, options) in enumerate(asked):
            before = [forced_token(token) for token in prompt.of_target(options)]
            # What is empty stays so, and is left out.
            sources[place] = sources[place] and [*prompt.of_source(options), *sources[place]]
            targets[place] = targets[place] and [*before, *targets[place]]
    return encode_parallel(sources, targets, max_length)


def _encode(
    encode: Callable[[Sequence[str]], list[list[int]]], lines: Sequence[str]
) -> list[list[int]]:
    """The tokens of all lines, some at a time: no signal is heard within a call of C++."""
    chunks = (lines[begin : begin + CHUNK_LINES] for begin in range(0, len(lines), CHUNK_LINES))
    return list(itertools.chain.from_iterable(map(encode, chunks)))


def _make_job(
    read: Callable[[Settings, Path], LoadedData],
    out: Path,
    recipe: tuple[str, str | None],  # preset and corpus
    overrides: dict[str, Any],
    resume: bool,
    force: bool,
    start: Path | None,
    inputs: Sequence[Path],
) -> Job:
    """Check everything, then clear or reopen `out` and write down the settings."""
    if resume and force:
        raise OptionError(
            "--resume continues the run in --output and --force deletes it; give one."
        )
    begun = _check_run_directory(out, resume, force)
    beginning: Transformer | None = None
    if begun:
        settings = resumed_settings(out, overrides, start)
    elif start is None:
        settings = new_settings(*recipe, overrides)
    else:
        checkpoint = _open_start(start, out)
        beginning = checkpoint.load_model()
        settings = fine_tuning_settings(checkpoint, *recipe, overrides)
    if not begun:
        check_apart(out, inputs)
    # What can be wrong with text and settings shows in `read`, which writes into a directory of
    # its own: none of it may cost the run that is in `out`.
    with tempfile.TemporaryDirectory() as scratch:
        loaded = read(settings, Path(scratch))
        settings = _completed(settings, loaded)
        if begun:
            settings.write(out)
        else:
            settings = _begin(out, settings, loaded, beginning)
    data = loaded.data
    log.info("%d training pairs, %d target tokens", len(data), len(data.target.tokens))
    return _job(out, settings, loaded)


def _begin(
    out: Path, settings: Settings, loaded: LoadedData, beginning: Transformer | None
) -> Settings:
    """Replace the run in `out`, if there is one, by what a new one begins with."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out} cannot be made: {error.strerror}.") from error
    clear_leftovers_in(out)
    models = loaded.tokenizers[0].read_bytes(), loaded.tokenizers[1].read_bytes()
    with new_contents(out, _obsolete, SETTINGS) as new:
        settings = dataclasses.replace(settings, tokenizers=write_tokenizers(new, models))
        settings.write(new)
        if beginning is not None:
            save_beginning(_job(new, settings, loaded), beginning)
        source, target = (path.name for path in settings.tokenizers or ())
    return dataclasses.replace(settings, tokenizers=(out / source, out / target))


def _job(out: Path, settings: Settings, loaded: LoadedData) -> Job:
    return Job(
        out,
        settings.model,
        settings.train,
        loaded.data,
        loaded.validation,
        settings.tokenizers or loaded.tokenizers,
        loaded.data.fingerprint(),
        settings.decoding,
        settings.origin,
    )


def _open_start(start: Path, out: Path) -> Checkpoint:
    """The checkpoint of --from, which is to outlive what clears `out`."""
    checkpoint = open_checkpoint(start)
    if out.resolve() in (checkpoint.path.resolve(), *checkpoint.path.resolve().parents):
        raise OptionError(
            f"{checkpoint.path} is in --output, where a new run would replace it; choose another."
        )
    check_apart(out, [start, checkpoint.path])
    return checkpoint


def _completed(settings: Settings, loaded: LoadedData) -> Settings:
    """With what only the text tells: the vocabulary's size, and languages nobody has named."""
    model, decoding = settings.model, settings.decoding
    if settings.tokenizers is None:
        size = Tokenizer(*loaded.tokenizers).vocabulary_size
        model = dataclasses.replace(model, vocabulary_size=size)
    decoding = dataclasses.replace(
        decoding,
        source_language=decoding.source_language or loaded.languages[0],
        target_language=decoding.target_language or loaded.languages[1],
    )
    return dataclasses.replace(settings, model=model, decoding=decoding)


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
