"""`translate-trt translate`: line-by-line translation of files and pipes."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.format_flags import FormatFlags, format_flags, take_format
from translate_trt.runtime.cli.input_chunks import Chunk, read_inputs
from translate_trt.runtime.cli.line_flags import LineFlags, markup_flag, unwrap_flag, words_flag
from translate_trt.runtime.cli.loading import Loading, load_translator, loading_flags
from translate_trt.runtime.cli.names import PATH, inputs_argument, lines_output_options
from translate_trt.runtime.cli.output import LineOutput, open_output
from translate_trt.runtime.cli.partial_files import START_OVER, Position
from translate_trt.runtime.cli.search_flags import (
    alignment_flags,
    attention_flag,
    n_best_flag,
    replace_options,
    search_flags,
    split_flags,
    terminology_flags,
    translate_all_flag,
)
from translate_trt.runtime.cli.verbosity import is_quiet, progress_bar
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.lines import (
    count_lines,
    display_name,
    open_input,
    read_lines,
    read_text,
)
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.record_formats import RecordFormat
from translate_trt.runtime.results import Translation
from translate_trt.runtime.text.encodings import check_encoding
from translate_trt.runtime.text.glossary import Glossary, Recall
from translate_trt.runtime.version import version

if TYPE_CHECKING:
    from tqdm import tqdm

    from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@bundle_flag
@target_flags
@inputs_argument
@lines_output_options
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the output of an interrupted run, if its inputs, bundle and options were the "
    "same.",
)
@format_flags
@search_flags
@n_best_flag
@translate_all_flag
@split_flags
@click.option(
    "--document",
    is_flag=True,
    help="Translate each input, or each text of JSON lines, as a whole, and keep its structure: "
    "paragraphs, indentation, list markers, line ends. Implies --split-sentences.",
)
@unwrap_flag
@markup_flag
@terminology_flags
@attention_flag
@alignment_flags
@click.option(
    "--target-prefix",
    type=PATH,
    help="File with the text that each translation must begin with, one line per input line.",
)
@click.option(
    "--constraints",
    type=PATH,
    help="File with the phrases that each translation must have, separated by tabs, one line per "
    "input line.",
)
@click.option("--scores", is_flag=True, help="Write the score and a tab before each translation.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@words_flag
@loading_flags
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
def translate(
    inputs: tuple[str, ...],
    out: Path | None,
    force: bool,
    resume: bool,
    chunk_lines: int,
    no_progress: bool,
    **flags: Any,
) -> None:
    """Translate lines of text; every input line gives exactly one output line.

    The command reads the INPUT files in order, or standard input by default and for "-". Text
    from a pipe is translated as it arrives. Inputs in gzip or zstd are decompressed; an output
    whose name ends in .gz or .zst is compressed.

    With --input-format jsonl or tsv, a line keeps its other fields or columns, and translation is
    added; with --scores also translation_score; with --alignments translation_alignments; with
    --n-best, --json or --attention, JSON lines also get translation_hypotheses, and TSV
    translation_2 and so on. Lines of text have score, translation and alignments, separated by
    tabs.

    Search options default to those of the bundle. A JSON object has the source and its hypotheses,
    best first, each with text, score, token_log_probs, truncated and looped. With --attention it
    also has attention: one matrix per segment of the line (usually one), with a row per generated
    token and a column per source token. With --alignments it has alignments, as in "0-0 1-2", and
    with --words it has words, each with text and confidence. With --terminology it has terms, each
    with its source phrase, the target phrases of the glossary, and found.
    """
    loading, formats = take(flags, Loading), take_format(flags, FormatFlags)
    line_flags = take(flags, LineFlags)
    line_flags.check(inputs, formats)
    if resume and out is None:
        raise OptionError("--resume needs --output: it continues a file.")
    manifest = read_manifest(loading.bundle)
    entry = manifest.target(loading.target, loading.shortlist)
    options = replace_options(manifest.search_options(), flags)
    job = _Job(inputs, chunk_lines, options, formats, line_flags, line_flags.glossary())
    settings = {
        "version": version(),
        "bundle": manifest.settings_of(entry),
        "calibration": line_flags.words and entry.calibration,
        **job.settings(),
    }
    read: list[str | Path] = [loading.bundle, *inputs, *line_flags.files.values()]
    # Opened before the model is loaded, to fail early if the output is not writable.
    with open_output(out, force, read, settings, resume) as results:
        translator = load_translator(loading, inputs)
        hidden = no_progress or job.is_text_document or not (out or not sys.stdout.isatty())
        with _progress(inputs, hidden, results.done.records) as bar:
            summary = job.run(translator, results, bar)
    summary.report()


@dataclass(frozen=True)
class _Job:
    """Inputs of the command, and what is done with them."""

    inputs: Sequence[str]
    chunk_lines: int
    options: SearchOptions
    formats: FormatFlags
    flags: LineFlags
    glossary: Glossary | None

    @property
    def is_text_document(self) -> bool:
        """Whether each input is a document as a whole."""
        return self.flags.document and self.formats.input_format == "text"

    def settings(self) -> dict[str, Any]:
        """Return all that the translations depend on beside inputs and bundle, as JSON."""
        settings = asdict(self.flags) | asdict(self.options) | asdict(self.formats)
        for of_lines in ("target_prefix", "constraints"):  # read and compared like the inputs
            del settings[of_lines]
        if self.glossary is not None:
            entries = repr((self.glossary.ignore_case, self.glossary.entries))
            settings["terminology"] = hashlib.sha256(entries.encode()).hexdigest()
        return settings

    def run(self, translator: Translator, results: LineOutput, bar: tqdm[Any]) -> _Summary:
        """Translate the inputs from the position of the results on."""
        if self.flags.words and translator.calibration is None:
            log.warning(
                "%s is not calibrated: confidences are the model's own probabilities; run "
                "translate-trt calibrate",
                translator.target.name,
            )
        summary = _Summary(self.options, self.glossary)
        words = translator.words if self.flags.words else None
        record_format = self.formats.make_format(self.options.result_count, words)
        # A document ends as its input does; JSON lines have line ends.
        as_json = self.formats.as_json or self.options.result_count > 1
        end = "" if self.is_text_document and not as_json else "\n"
        with (
            _LineFile(self.flags.target_prefix) as prefixes,
            _LineFile(self.flags.constraints) as phrases,
        ):
            for task in _tasks(self._chunks(record_format), prefixes, phrases, results.done):
                translations = self._translate(translator, task)
                _warn_of_segments(task.chunk, translations, translator)
                results.write(task.chunk.render(translations), end)
                results.note(task.records, task.digest)
                bar.update(len(task.chunk.records))
                summary.add(translations)
            prefixes.check_used_up()
            phrases.check_used_up()
        return summary

    def _chunks(self, record_format: RecordFormat) -> Iterator[Chunk]:
        if not self.is_text_document:
            yield from read_inputs(self.inputs, self.chunk_lines, record_format)
            return
        for path in self.inputs:
            name, text = display_name(path), read_text(path)
            if self.flags.markup is not None:
                check_encoding(text, self.flags.markup, name)
            yield Chunk(name, None, list(record_format.read([text], name)), [text])

    def _translate(self, translator: Translator, task: _Task) -> list[Translation]:
        chunk, flags = task.chunk, self.flags
        if not chunk.texts:
            return []
        if flags.document:
            return translator.translate_document(
                chunk.texts, self.options, split_sentences=flags.sentences, unwrap=flags.unwrap,
                markup=flags.markup, terminology=self.glossary, names=chunk.names,
            )  # fmt: skip
        constraints = chunk.constraints if self.formats.constraints_field else task.constraints
        return translator.translate(
            chunk.texts, self.options, task.prefixes, split_sentences=flags.sentences,
            alignments=self.formats.alignments, markup=flags.markup, terminology=self.glossary,
            constraints=constraints, translate_all=flags.translate_all, names=chunk.names,
        )  # fmt: skip


class _Summary:
    """Counts of a run that are reported at its end."""

    def __init__(self, options: SearchOptions, glossary: Glossary | None) -> None:
        self._options = options
        self._has_terms = bool(glossary)
        self._begin = time.perf_counter()
        self._recall = Recall()
        self._count = self._cut = self._looped = 0

    def add(self, translations: Sequence[Translation]) -> None:
        """Count translations."""
        best = [translation.hypotheses[0] for translation in translations]
        self._count += len(best)
        self._recall.add(term for one in best for term in one.terms or ())
        self._looped += sum(one.looped for one in best)
        self._cut += sum(one.truncated and not one.looped for one in best)

    def report(self) -> None:
        """Log speed, recall of terms, and translations that were cut."""
        seconds, maximum = time.perf_counter() - self._begin, self._options.max_length
        log.info("%d lines in %.2f s, %.1f lines/s", self._count, seconds, self._count / seconds)
        if self._has_terms and not is_quiet(click.get_current_context()):
            click.echo(f"terminology: {self._recall}", err=True)
        if self._looped:
            log.warning(
                "%d of %d translations repeated one phrase without end and were cut; --json marks "
                "them",
                self._looped,
                self._count,
            )
        if self._cut:
            log.warning(
                "%d of %d translations were cut off at the maximum length (%s); --json marks them",
                self._cut,
                self._count,
                f"source + {self._options.max_extra_length} tokens"
                if maximum is None
                else f"{maximum} tokens",
            )


class _Task(NamedTuple):
    """A chunk, what the other files have for its texts, and where the inputs are after it."""

    chunk: Chunk
    prefixes: list[str] | None
    constraints: list[list[str]] | None
    records: int
    digest: str


def _tasks(
    chunks: Iterable[Chunk], prefixes: _LineFile, constraints: _LineFile, done: Position
) -> Iterator[_Task]:
    """Read the chunks, and skip the records that an interrupted run has written."""
    digest, records = hashlib.sha256(), 0
    for whole in chunks:
        for chunk in whole.split(done.records - records):
            own, phrases = prefixes.take(chunk), constraints.take(chunk)
            for row in zip(chunk.lines, *filter(None, (own, phrases)), strict=True):
                digest.update(json.dumps(row).encode())
            records += len(chunk.records)
            if records > done.records:
                forced = own and chunk.per_text(own)
                required = None if phrases is None else chunk.per_text(map(_phrases, phrases))
                yield _Task(chunk, forced, required, records, digest.hexdigest())
            elif records == done.records and digest.hexdigest() != done.digest:
                raise InputError(
                    f"the first {records} lines of the input differ from those of the interrupted "
                    f"run; give the same inputs, or {START_OVER}."
                )
    if records < done.records:
        raise InputError(
            f"the input has {records} lines, but the interrupted run has written {done.records}; "
            f"give the same inputs, or {START_OVER}."
        )


def _phrases(line: str) -> list[str]:
    """Return the phrases of a line of the --constraints file."""
    return [phrase for phrase in line.split("\t") if phrase.strip()]


class _LineFile:
    """Reader of a file with a line for each input line, in step with the input."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._taken = 0

    def __enter__(self) -> Self:
        if self._path is not None:
            self._stream = open_input(str(self._path))
            self._lines = read_lines(self._stream, str(self._path))
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._stream.close()

    def take(self, chunk: Chunk) -> list[str] | None:
        """Read one line per line of the chunk; None without a file."""
        if self._path is None:
            return None
        lines = list(itertools.islice(self._lines, len(chunk.records)))
        self._taken += len(lines)
        if len(lines) < len(chunk.records):
            number = (chunk.first_number or 1) + len(lines)
            raise InputError(
                f"{self._path} has only {self._taken} lines, none for {chunk.name}, line {number}; "
                "it must have one line, which may be empty, for each input line."
            )
        return lines

    def check_used_up(self) -> None:
        """Raise InputError if the file has more lines than the input had."""
        if self._path is not None and (rest := sum(1 for _ in self._lines)):
            raise InputError(
                f"{self._path} has {self._taken + rest} lines, but the input {self._taken}; "
                "it must have one line for each input line."
            )


def _warn_of_segments(
    chunk: Chunk, translations: Sequence[Translation], translator: Translator
) -> None:
    for name, translation in zip(chunk.names, translations, strict=True):
        if translation.segment_count > max(1, translation.sentence_count):
            log.warning(
                "%s: longer than the model's %d tokens; translated in %d segments",
                name,
                translator.manifest.limits.max_source_length,
                translation.segment_count,
            )


def _progress(inputs: Sequence[str], hidden: bool, done: int) -> tqdm[Any]:
    """Create a progress bar over the lines of the inputs, whose number a pipe does not tell."""
    hidden = hidden or not sys.stderr.isatty()  # counting lines takes time
    counts = [] if hidden else [count_lines(path) for path in inputs]
    total = None if None in counts else sum(filter(None, counts))
    return progress_bar(total, " lines", done, hidden)
