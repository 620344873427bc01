"""`translate-trt translate-file`: documents, subtitles and localization files."""

from __future__ import annotations

import glob
import itertools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command, section, take, together
from translate_trt.runtime.cli.loading import Loading, load_translator, loading_flags
from translate_trt.runtime.cli.names import PATH, field_option, output_option
from translate_trt.runtime.cli.search_flags import (
    read_glossary,
    replace_options,
    search_flags,
    split_choice,
    terminology_flags,
)
from translate_trt.runtime.cli.verbosity import progress_bar
from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.runtime.files.formats import FORMATS, FileFormat, format_of
from translate_trt.runtime.files.memory import TranslationMemory
from translate_trt.runtime.files.segments import ReadOptions
from translate_trt.runtime.files.translation import (
    FileOutcome,
    FileTask,
    FileTranslator,
    SegmentTranslator,
)
from translate_trt.runtime.io.atomic_files import (
    clear_leftovers,
    new_file,
    output_errors,
    write_bytes_atomically,
)
from translate_trt.runtime.io.outputs import check_file, is_text

log = logging.getLogger("translate_trt")

_option = partial(field_option, ReadOptions)
_format_flags = section("Formats")(
    together(
        click.option(
            "--format",
            "suffix",
            metavar="SUFFIX",
            help="Format of all inputs, by a suffix, such as docx. [that of each file]",
        ),
        _option("encoding", "Encoding of text files without a byte order mark. [UTF-8]",
                show_default=False),
        _option("overwrite", "Translate also what has a translation, in PO, XLIFF and TMX."),
        click.option(
            "--key",
            "keys",
            multiple=True,
            metavar="PATTERN",
            help="Translate only the values of keys that match, such as '*.title', in JSON, YAML, "
            "properties and other resources; may be given several times. [all]",
        ),
        _option("line_length", "Characters in a line of a subtitle."),
        _option("reading_speed", "Characters per second that viewers of subtitles read."),
        click.option(
            "--unwrap",
            is_flag=True,
            help="Join the lines of each paragraph of plain text first, where they were broken at "
            "a fixed width.",
        ),
        click.option(
            "--max-file-mib",
            type=click.IntRange(min=1),
            default=256,
            show_default=True,
            help="Maximum size of a file, unpacked.",
        ),
    )
)  # fmt: skip


@click.command("translate-file", cls=Command)
@bundle_flag
@target_flags
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@output_option("File to write; a directory for several inputs or a directory.")
@click.option("--force", is_flag=True, help="Replace existing outputs.")
@click.option(
    "--resume", is_flag=True, help="Leave out files whose outputs exist, to continue a run."
)
@click.option(
    "--memory",
    "memory_path",
    type=PATH,
    help="Translations that are used before the model: a TMX file, or a SQLite database of the "
    "Translate Toolkit's build_tmdb.",
)
@click.option(
    "--memory-similarity",
    type=float,
    default=1.0,
    show_default=True,
    help="Least similarity of a text to one of the memory; 1 allows only other numbers and "
    "placeholders.",
)
@click.option(
    "--report",
    type=PATH,
    help="File to write with a JSON object per segment: its source, its translation, and whether "
    "that is of the model, of an equal segment, or of the memory and how similar.",
)
@_format_flags
@search_flags
@click.option(
    "--split-language",
    metavar="CODE",
    help="Language whose rules find the sentences, such as de. [the source language]",
)
@terminology_flags
@loading_flags
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
def translate_file(
    inputs: tuple[str, ...],
    out: Path,
    force: bool,
    resume: bool,
    memory_path: Path | None,
    memory_similarity: float,
    report: Path | None,
    suffix: str | None,
    split_language: str | None,
    max_file_mib: int,
    unwrap: bool,
    chunk_lines: int,
    no_progress: bool,
    **flags: Any,
) -> None:
    """Translate files and keep their formats.

    INPUT is a file, a directory, whose files of known formats are translated, or a pattern such as
    'docs/**/*.md'. Each output appears when it is complete; a file that cannot be read is reported,
    and the others are translated.
    """
    if force and resume:
        raise OptionError("--force and --resume do not go together; leave one of them out.")
    read = [path for path in (memory_path, flags["terminology"]) if path is not None]
    glossary = read_glossary(flags.pop("terminology"), flags.pop("terminology_ignore_case"))
    loading = take(flags, Loading)
    manifest = read_manifest(loading.bundle)
    reading = {name: flags.pop(name) for name in ("encoding", "overwrite", "line_length", "keys",
                                                  "reading_speed")}  # fmt: skip
    options = replace_options(manifest.search_options(), flags)
    read_options = ReadOptions(
        options.source_language or manifest.source_language,
        options.target_language or manifest.target_language,
        max_bytes=max_file_mib << 20,
        **reading,
    )
    memory = None
    if memory_path is not None:
        languages = read_options.source_language, read_options.target_language
        memory = TranslationMemory.read(memory_path, *languages, similarity=memory_similarity)
    elif memory_similarity != 1:
        raise OptionError("--memory-similarity needs --memory.")
    files = _find_files(inputs, out, suffix)
    _check_outputs(files, inputs, read, force or resume)
    if report is not None:
        _check_report(report, files, read, force)
    if resume:
        files = [file for file in files if not file.output.exists()]
    with ExitStack() as stack:
        stream = None
        if report is not None:
            stack.enter_context(output_errors(report))
            stream = stack.enter_context(new_file(report))
        translator = stack.enter_context(load_translator(loading, [str(one.path) for one in files]))
        segments = SegmentTranslator(
            translator, options, split_sentences=split_choice(True, split_language),
            unwrap=unwrap, terminology=glossary, memory=memory,
        )  # fmt: skip
        bar = stack.enter_context(progress_bar(len(files), " files", hidden=no_progress))
        summary = _Summary()
        file_translator = FileTranslator(segments.translate, read_options, chunk_lines)
        for outcome in file_translator.translate_files(map(_File.task, files)):
            summary.add(outcome)
            if stream is not None:
                stream.write("".join(_report_lines(outcome)).encode())
            bar.update()
    summary.end()


class _File(NamedTuple):
    """A file, its format, and the path of its translation."""

    path: Path
    format: FileFormat
    output: Path

    def task(self) -> FileTask:
        """Return the task of translating it."""
        return FileTask(str(self.path), self._read, self.format, self._write)

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                return file.read()
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}.") from error

    def _write(self, content: bytes) -> None:
        with output_errors(self.output):
            self.output.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(self.output)
        write_bytes_atomically(self.output, content)


def _find_files(inputs: Sequence[str], out: Path, suffix: str | None) -> list[_File]:
    """Return the files of the inputs with the paths of their translations.

    Raises:
        InputError: An input does not exist, or has no files of known formats.
        OptionError: Two files would have the same output.
    """
    found = [pair for one in inputs for pair in _paths(one, suffix)]
    to_file = len(inputs) == len(found) == 1 and Path(inputs[0]).is_file() and not out.is_dir()
    files: dict[Path, _File] = {}
    for path, name in found:
        file_format = format_of(path, suffix)
        output, new_suffix = out if to_file else out / name, file_format.output_suffix
        if new_suffix is not None:
            if to_file and output.suffix.lower() != new_suffix:
                raise OptionError(
                    f"the translation of {path} is {file_format.name} in, {new_suffix} out; name "
                    f"the output {output.with_suffix(new_suffix)}."
                )
            output = output.with_suffix(new_suffix)
        if (other := files.get(output)) is not None:
            raise OptionError(
                f"{other.path} and {path} would both be {output}; translate them into different "
                "directories."
            )
        files[output] = _File(path, file_format, output)
    return [*files.values()]


def _paths(given: str, suffix: str | None) -> Iterator[tuple[Path, Path]]:
    """Iterate over the files of an input, with their paths below the output directory."""
    path = Path(given)
    if path.is_file():
        yield path, Path(path.name)
        return
    if path.is_dir():
        root, files = path, sorted(one for one in path.rglob("*") if one.is_file())
        files = [one for one in files if suffix or one.suffix.lower() in FORMATS]
        nothing = f"{path} has no file of a known format: {' '.join(sorted(FORMATS))}."
    else:
        root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
        files = [Path(one) for one in sorted(glob.glob(given, recursive=True))]
        files = [one for one in files if one.is_file()]
        nothing = f"{path} does not exist."
    if not files:
        raise InputError(nothing)
    for file in files:
        yield file, file.relative_to(root)


def _check_outputs(
    files: Sequence[_File], inputs: Sequence[str], read: Sequence[Path], may_exist: bool
) -> None:
    """Refuse outputs that exist or are inputs, before any work.

    Args:
        files: The files.
        inputs: The inputs as the caller wrote them.
        read: Other files that the command reads.
        may_exist: Whether outputs may exist.

    Raises:
        OutputError: An output exists, is an input, or lies in one.
    """
    sources = {os.path.realpath(path) for path in (*(file.path for file in files), *read)}
    for file in files:
        if os.path.realpath(file.output) in sources:
            raise OutputError(f"the output {file.output} is an input; choose another path.")
        if file.output.exists() and not file.output.is_file():
            raise OutputError(f"{file.output} is not a regular file; choose another path.")
        if file.output.exists() and not may_exist:
            raise OutputError(
                f"{file.output} exists; choose another path, or add --force, or --resume to leave "
                "it as it is."
            )
    for directory in filter(os.path.isdir, inputs):
        if files and Path(directory).resolve() in (files[0].output.resolve()).parents:
            raise OutputError(f"the output {files[0].output} lies in the input {directory}.")


def _check_report(report: Path, files: Sequence[_File], read: Sequence[Path], force: bool) -> None:
    """Refuse a report that exists, or would replace a file that the command reads or writes.

    Raises:
        OutputError: It does.
    """
    used = (*read, *(path for file in files for path in (file.path, file.output)))
    if os.path.realpath(report) in map(os.path.realpath, used):
        raise OutputError(f"the report {report} is an input or output; choose another path.")
    check_file(report, force, is_text, "a text")


class _Summary:
    """Counts of a run."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._origins: Counter[str] = Counter()
        self._files = self._failed = self._characters = self._long = 0

    def add(self, outcome: FileOutcome) -> None:
        """Count a file, and report why it failed."""
        self._files += 1
        if outcome.error is not None:
            self._failed += 1
            log.error("%s", outcome.error)
        self._origins.update(one.origin.name for one in outcome.translated)
        self._characters += sum(len(segment.text) for segment in outcome.segments)
        self._long += sum(
            segment.length is not None and len(translated.text) > segment.length
            for segment, translated in zip(outcome.segments, outcome.translated, strict=False)
        )

    def end(self) -> None:
        """Log the counts.

        Raises:
            InputError: Files failed.
        """
        seconds = time.perf_counter() - self._begin
        log.info(
            "%d files in %.2f s, %.0f characters/s; segments: %s", self._files - self._failed,
            seconds, self._characters / seconds,
            ", ".join(f"{count} {name}" for name, count in sorted(self._origins.items())) or "0",
        )  # fmt: skip
        if self._long:
            log.warning("%d translations are longer than their file allows (maxwidth)", self._long)
        if self._failed:
            raise InputError(
                f"{self._failed} of {self._files} files were not translated; see the errors above."
            )


def _report_lines(outcome: FileOutcome) -> Iterator[str]:
    """Iterate over the lines of the report of a file."""
    for segment, translated in zip(outcome.segments, outcome.translated, strict=False):
        row: dict[str, Any] = {
            "file": outcome.name, "place": segment.place, "source": segment.text,
            "translation": translated.text, "origin": translated.origin.name,
        }  # fmt: skip
        if translated.origin.similarity < 1:
            row["similarity"] = round(translated.origin.similarity, 4)
        yield json.dumps(row, ensure_ascii=False) + "\n"
    if outcome.error is not None:
        yield json.dumps({"file": outcome.name, "error": str(outcome.error)}) + "\n"
