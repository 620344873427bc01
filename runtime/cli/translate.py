"""`translate-trt translate`: line-by-line translation of files and pipes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.format_flags import FormatFlags, format_flags
from translate_trt.runtime.cli.input_chunks import Chunk, read_inputs
from translate_trt.runtime.cli.loading import load_translator, loading_flags
from translate_trt.runtime.cli.names import lines_output_options
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.partial_files import START_OVER, Position
from translate_trt.runtime.cli.search_flags import (
    alignment_flags,
    attention_flag,
    n_best_flag,
    read_glossary,
    replace_options,
    search_flags,
    split_choice,
    split_flags,
    terminology_flags,
    translate_all_flag,
)
from translate_trt.runtime.cli.structured_files import check_suffixes
from translate_trt.runtime.cli.verbosity import is_quiet
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.lines import (
    STDIN,
    check_input,
    count_lines,
    display_name,
    open_input,
    read_lines,
    read_text,
)
from translate_trt.runtime.line_request import MARKUP
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
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
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
@click.option(
    "--unwrap",
    is_flag=True,
    help="With --document: join the lines of each paragraph first, where they were broken at a "
    "fixed width.",
)
@click.option(
    "--markup",
    type=click.Choice(MARKUP),
    help="Keep the tags and placeholders of html or xml, or the placeholders of text, such as "
    "{name} and %s, at the words they belong to. Needs a bundle exported with --attention.",
)
@terminology_flags
@attention_flag
@alignment_flags
@click.option(
    "--target-prefix",
    type=click.Path(path_type=Path),
    help="File with the text that each translation must begin with, one line per input line.",
)
@click.option(
    "--constraints",
    type=click.Path(path_type=Path),
    help="File with the phrases that each translation must have, separated by tabs, one line per "
    "input line.",
)
@click.option("--scores", is_flag=True, help="Write the score and a tab before each translation.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@click.option(
    "--words",
    is_flag=True,
    help="Add the words of each translation with their confidence; implies --json. See "
    "translate-trt calibrate.",
)
@loading_flags
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
def translate(
    bundle: Path,
    target: str | None,
    shortlist: bool,
    inputs: tuple[str, ...],
    out: Path | None,
    force: bool,
    resume: bool,
    input_format: str,
    field: str | None,
    column: str | None,
    header: bool,
    constraints_field: str | None,
    output_field: str | None,
    replace_field: bool,
    translate_all: bool,
    split_sentences: bool,
    split_language: str | None,
    document: bool,
    unwrap: bool,
    markup: str | None,
    terminology: Path | None,
    terminology_ignore_case: bool,
    alignments: bool,
    alignment_threshold: float | None,
    target_prefix: Path | None,
    constraints: Path | None,
    scores: bool,
    as_json: bool,
    words: bool,
    batch_tokens: int | None,
    threads: int | None,
    workers: int | None,
    device: str | None,
    trust_code: bool,
    chunk_lines: int,
    no_progress: bool,
    **search: Any,
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
    formats = FormatFlags(
        input_format=input_format,
        field=field,
        column=column,
        header=header,
        output_field=output_field,
        replace_field=replace_field,
        scores=scores,
        constraints_field=constraints_field,
        as_json=as_json or words or bool(search["return_attention"]),
        alignments=alignments or alignment_threshold is not None,
        alignment_threshold=alignment_threshold,
    )
    inputs = inputs or (STDIN,)
    others = {
        "--target-prefix": target_prefix,
        "--constraints": constraints,
        "--terminology": terminology,
    }
    for path in (*inputs, *(str(path) for path in others.values() if path)):
        check_input(path)
    check_suffixes(inputs, {"input_format": input_format, "document": document, "markup": markup})
    _check_flags(
        {
            **others, "--output": out, "--resume": resume, "--document": document,
            "--unwrap": unwrap, "--markup": markup, "--words": words,
            "--split-sentences": split_sentences or split_language,
            "--alignments": formats.alignments, "--constraints-field": constraints_field,
            "--translate-all": translate_all, "--input-format tsv": input_format == "tsv",
            "--scores of text": scores and input_format == "text",
        }
    )  # fmt: skip
    for flag, file in others.items():
        if str(file) in inputs:
            raise OptionError(f"{flag} and an input are both {file}; use different files.")
    glossary = read_glossary(terminology, terminology_ignore_case)
    sentences = split_choice(split_sentences or document, split_language)
    how = _How(sentences, document, unwrap, formats.alignments, markup, glossary, translate_all)
    manifest = read_manifest(bundle)
    entry = manifest.target(target, shortlist)
    options = replace_options(manifest.search_options(), search)
    settings = {
        "version": version(),
        "bundle": manifest.settings_of(entry),
        "words": words and (entry.calibration or True),
        **dataclasses.asdict(options), **dataclasses.asdict(formats), **how.settings(),
    }  # fmt: skip
    with ExitStack() as stack:
        # Opened before the model is loaded, to fail early if the output is not writable.
        read = (bundle, *inputs, *others.values())
        results = stack.enter_context(open_output(out, force, read, settings, resume))
        translator = load_translator(
            bundle, target, shortlist, inputs, threads=threads, workers=workers,
            batch_tokens=batch_tokens, device=device, trust_code=trust_code,
        )  # fmt: skip
        summary = _Summary(options)
        if words and translator.calibration is None:
            log.warning(
                "%s is not calibrated: confidences are the model's own probabilities; run "
                "translate-trt calibrate",
                translator.target.name,
            )
        record_format = formats.make_format(
            options.result_count, translator.words if words else None
        )
        is_text = document and input_format == "text"
        chunks = (
            _read_documents(inputs, record_format, markup)
            if is_text
            else read_inputs(inputs, chunk_lines, record_format)
        )
        # A document ends as its input does; JSON lines have line ends.
        end = "" if is_text and not (formats.as_json or options.result_count > 1) else "\n"
        prefixes = stack.enter_context(_LineFile(target_prefix))
        phrases = stack.enter_context(_LineFile(constraints))
        bar = stack.enter_context(
            _progress(inputs, no_progress or is_text, out is not None, results.done.records)
        )
        for task in _tasks(chunks, prefixes, phrases, results.done):
            chunk = task.chunk
            required = task.constraints if constraints_field is None else chunk.constraints
            translations = _translate(chunk, translator, options, task.prefixes, required, how)
            _warn_of_segments(chunk, translations, translator)
            results.write(chunk.render(translations), end)
            results.note(task.records, task.digest)
            bar.update(len(chunk.records))
            summary.add(translations)
        prefixes.check_used_up()
        phrases.check_used_up()
    summary.report(with_terms=bool(glossary))


def _read_documents(
    inputs: Sequence[str], record_format: RecordFormat, markup: str | None
) -> Iterator[Chunk]:
    for path in inputs:
        name, text = display_name(path), read_text(path)
        if markup is not None:
            check_encoding(text, markup, name)
        yield Chunk(name, None, list(record_format.read([text], name)), [text])


#: Flags that exclude others, and why.
_APART = (
    ("--document", ("--target-prefix", "--input-format tsv", "--alignments", "--scores of text"),
     "they are of lines"),
    ("--markup", ("--target-prefix", "--alignments", "--unwrap", "--words"),
     "tags leave the text before it is translated"),
    ("--constraints", ("--constraints-field",), "both give the phrases of each line"),
    *((flag, ("--markup", "--document", "--split-sentences"), "constraints are of whole texts")
      for flag in ("--constraints", "--constraints-field")),
    ("--translate-all", ("--document", "--markup"), "those keep text without letters"),
)  # fmt: skip

#: Flags that need another, and why.
_NEEDS = (
    ("--unwrap", "--document", "lines of the input are translated alone"),
    ("--resume", "--output", "it continues a file"),
)


def _check_flags(given: Mapping[str, object]) -> None:
    """Refuse flags that exclude each other or lack another.

    Args:
        given: Value of each flag; a false one is not given.

    Raises:
        OptionError: A flag excludes or needs another.
    """
    for flag, others, why in _APART:
        for other in others:
            if given[flag] and given[other]:
                raise OptionError(
                    f"{flag} and {other} do not go together: {why}. Leave one of them out."
                )
    for flag, other, why in _NEEDS:
        if given[flag] and not given[other]:
            raise OptionError(f"{flag} needs {other}: {why}.")


class _Summary:
    """Counts of a run that are reported at its end."""

    def __init__(self, options: SearchOptions) -> None:
        self._options = options
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

    def report(self, with_terms: bool) -> None:
        """Log speed, recall of terms, and translations that were cut."""
        seconds, maximum = time.perf_counter() - self._begin, self._options.max_length
        log.info("%d lines in %.2f s, %.1f lines/s", self._count, seconds, self._count / seconds)
        if with_terms and not is_quiet(click.get_current_context()):
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


class _How(NamedTuple):
    """Arguments of `Translator`, and which of its methods takes them."""

    split_sentences: bool | str
    document: bool
    unwrap: bool
    alignments: bool
    markup: str | None
    terminology: Glossary | None
    translate_all: bool

    def settings(self) -> dict[str, Any]:
        """Return the arguments as JSON, with a hash of the glossary."""
        given = self._asdict()
        if self.terminology is not None:
            entries = repr((self.terminology.ignore_case, self.terminology.entries))
            given["terminology"] = hashlib.sha256(entries.encode()).hexdigest()
        return given


class _Task(NamedTuple):
    """A chunk, what the other files have for its lines, and where the inputs are after it."""

    chunk: Chunk
    prefixes: list[str] | None
    constraints: list[list[str]] | None
    records: int
    digest: str


def _tasks(
    chunks: Iterable[Chunk], prefixes: _LineFile, constraints: _LineFile, done: Position
) -> Iterator[_Task]:
    """Read the chunks, and skip the records that an interrupted run has written.

    Raises:
        InputError: The run has read something else for these records.
    """
    digest, records = hashlib.sha256(), 0
    for whole in chunks:
        for chunk in whole.split(done.records - records):
            own, phrases = prefixes.take(chunk), constraints.take(chunk)
            for row in zip(chunk.lines, *filter(None, (own, phrases)), strict=True):
                digest.update(json.dumps(row).encode())
            records += len(chunk.records)
            if records > done.records:
                required = None
                if phrases is not None:
                    required = chunk.per_text(map(_phrases, phrases))
                yield _Task(chunk, own, required, records, digest.hexdigest())
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


def _translate(
    chunk: Chunk,
    translator: Translator,
    options: SearchOptions,
    prefixes: list[str] | None,
    constraints: Sequence[Sequence[str]] | None,
    how: _How,
) -> list[Translation]:
    texts, sentences = chunk.texts, how.split_sentences
    if not texts:
        return []
    names = chunk.names
    if how.document:
        return translator.translate_document(
            texts, options, split_sentences=sentences, unwrap=how.unwrap, markup=how.markup,
            terminology=how.terminology, names=names,
        )  # fmt: skip
    own = prefixes and chunk.per_text(prefixes)
    return translator.translate(
        texts, options, own, split_sentences=sentences, alignments=how.alignments,
        markup=how.markup, terminology=how.terminology, constraints=constraints,
        translate_all=how.translate_all, names=names,
    )  # fmt: skip


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
        """Read one line per line of the chunk; None without a file.

        Raises:
            InputError: The file has fewer lines than the input.
        """
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


def _progress(inputs: Sequence[str], hidden: bool, to_file: bool, done: int) -> tqdm[Any]:
    """Create a progress bar, hidden unless stderr is a terminal without the translations."""
    from tqdm import tqdm

    hidden = hidden or not sys.stderr.isatty() or not (to_file or not sys.stdout.isatty())
    counts = [] if hidden else [count_lines(path) for path in inputs]
    total = None if None in counts else sum(filter(None, counts))
    return tqdm(total=total, initial=done, unit=" lines", disable=hidden, file=sys.stderr)
