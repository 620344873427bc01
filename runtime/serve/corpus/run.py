"""A complete run: plan shards, translate unfinished ones, and join their parts."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from translate_trt.runtime.bundle.manifest import (
    Manifest,
    TargetEntry,
    read_manifest,
    verify_files,
)
from translate_trt.runtime.errors import BackendError, OptionError
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.native.core import check_bundle
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus.cluster import Work
from translate_trt.runtime.serve.corpus.driver import translate_shards
from translate_trt.runtime.serve.corpus.job import (
    InputRecord,
    Job,
    ShardRecord,
    make_settings,
    open_job,
)
from translate_trt.runtime.serve.corpus.join import join_parts
from translate_trt.runtime.serve.corpus.plan import PARQUET, Input, Shard, find_inputs, plan
from translate_trt.runtime.serve.corpus.records import check_first_line
from translate_trt.runtime.serve.corpus.run_options import (
    JSON_LINES,
    TEXT,
    TSV,
    CorpusOptions,
    WorkerOptions,
)
from translate_trt.runtime.text.documents import splitter_of

#: Called with the number of shards and the number of those finished before.
OnPlanned = Callable[[int, int], None]
OnFinished = Callable[[ShardRecord], None]


def prepare_work(
    bundle: Path,
    target: str | None,
    shortlist: bool,
    inputs: Sequence[str],
    output: Path,
    search: SearchOptions,
    options: CorpusOptions,
    workers: WorkerOptions,
) -> tuple[Work, list[Input]]:
    """Check everything that can be checked before workers start.

    Args:
        bundle: Directory of the bundle.
        target: Name of a target; None for the bundle's default.
        shortlist: Take the shortlist variant of the default target.
        inputs: Paths of files, or patterns.
        output: Directory of the translations.
        search: Search options; more than one hypothesis implies JSON, except for TSV.
        options: Options that affect the result; alignments and words imply JSON likewise.
        workers: Options of the workers.

    Raises:
        ModuleNotFoundError: Ray or pyarrow is missing.
        TranslateTrtError: The bundle, an input or an option is unsuitable.
    """
    for package in ("ray", "pyarrow"):  # not imported yet: Ray reads its settings on import
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if search.return_attention:
        raise OptionError(
            "return_attention: the results of a corpus have no attention; translate the lines in "
            "question with `translate-trt translate --attention`."
        )
    if options.input_format == TSV and (options.json or options.words):
        raise OptionError(
            f"input_format is {TSV}, which has no place for the JSON of --json and --words; it "
            f"must be {JSON_LINES} or {TEXT}."
        )
    as_json = options.json or options.alignments or options.words or search.result_count > 1
    options = dataclasses.replace(options, json=as_json)
    manifest = read_manifest(bundle)
    entry = manifest.target(target, shortlist)
    verify_files(bundle, manifest, entry.name)
    _check_target(bundle, manifest, entry, search, options)
    sources = _checked_inputs(inputs, options)
    check_apart(output, [bundle])
    job = Job(output.resolve(), make_settings(manifest, entry.name, search, options))
    return Work(str(bundle.resolve()), entry.name, search, options, workers, job), sources


def _check_target(
    bundle: Path,
    manifest: Manifest,
    entry: TargetEntry,
    search: SearchOptions,
    options: CorpusOptions,
) -> None:
    """Refuse options that a target was not compiled for."""
    splitter = splitter_of(manifest, options.split, search)
    of_lines = LineRequest(
        (), search, alignments=options.alignments or options.markup is not None,
        terminology=options.glossary,
        split=partial(splitter.split_line, options=search) if options.split else None,
    )  # fmt: skip
    check_bundle(bundle, entry.name, of_lines)
    for name, given in (
        ("terminology", options.terminology and manifest.term_annotation is None),
        ("constraints_field", options.constraints_field),
    ):
        if given and not entry.contract.marks:
            raise OptionError(
                f"{name}: the step graph of {entry.name} cannot enforce constraints. Export the "
                "bundle again with --all-options, or for an onnx target."
            )
        if given and search.beam_size < 2:
            raise OptionError(f"beam_size is 1, and {name} needs at least 2.")


def _checked_inputs(inputs: Sequence[str], options: CorpusOptions) -> list[Input]:
    """Return the inputs, which have the format that the options say."""
    sources = find_inputs(inputs, options.column)
    for source in sources:
        if source.kind == PARQUET and options.constraints_field:
            raise OptionError(
                f"constraints_field: {source.path} is a Parquet file, whose rows have no "
                f"constraints; give them as JSON lines, with input_format {JSON_LINES}."
            )
        if source.kind != PARQUET:
            if options.document and options.input_format == TEXT:
                raise OptionError(
                    f"document: the lines of {source.path} are no documents; give each document "
                    f"as an object, with input_format {JSON_LINES}, or as a row of Parquet."
                )
            check_first_line(source, options)
    return sources


@dataclass
class _Pending:
    """An incomplete input: its shards, and the records of the finished ones."""

    shards: list[Shard]
    records: dict[int, ShardRecord] = field(default_factory=dict)


def translate_inputs(
    inputs: Sequence[Input],
    work: Work,
    on_planned: OnPlanned,
    on_finished: OnFinished,
    address: str | None = None,
    force: bool = False,
) -> dict[str, InputRecord]:
    """Translate the unfinished shards of all inputs, and join each input as soon as it is complete.

    Args:
        inputs: Inputs of `prepare_work`, in the order of translation.
        work: Description of the run of `prepare_work`.
        on_planned: Called with the number of shards of incomplete inputs, and the number of those
            that are already finished.
        on_finished: Called with the record of each finished shard.
        address: Address of a Ray cluster; None starts a cluster on this machine.
        force: Discard the results of a run with other settings.

    Returns:
        The record of each input by its name.

    Raises:
        InputError: An input cannot be read.
        OutputError: Another run is active or has used other settings, an output exists that no run
            has written, or an output cannot be written.
        BackendError: Shards or Ray failed repeatedly; finished shards are kept.
    """
    with open_job(work.job, list(inputs), force):
        return _run(inputs, work, on_planned, on_finished, address)


def _run(
    inputs: Sequence[Input],
    work: Work,
    on_planned: OnPlanned,
    on_finished: OnFinished,
    address: str | None,
) -> dict[str, InputRecord]:
    complete: dict[str, InputRecord] = {}
    pending: dict[str, _Pending] = {}
    for source in inputs:
        if (record := work.job.complete(source)) is not None:
            complete[source.name] = record
        else:
            pending[source.name] = _Pending(plan(source, work.options))
    everything = [shard for one in pending.values() for shard in one.shards]
    waiting = []
    for shard, found in zip(everything, work.job.all_finished(everything), strict=True):
        if found is None:
            waiting.append(shard)
        else:
            pending[shard.source.name].records[shard.index] = found

    def join(source: Input) -> None:
        one = pending[source.name]
        if len(one.records) == len(one.shards):
            records = [one.records[shard.index] for shard in one.shards]
            complete[source.name] = join_parts(work.job, source, one.shards, records)

    def finished(shard: Shard, record: ShardRecord) -> None:
        pending[shard.source.name].records[shard.index] = record
        on_finished(record)
        join(shard.source)

    on_planned(len(everything), len(everything) - len(waiting))
    for source in inputs:
        if source.name in pending:
            join(source)
    if waiting:
        try:
            translate_shards(waiting, work, finished, address)
        except BackendError as error:
            count = sum(len(one.records) for one in pending.values())
            raise BackendError(
                f"{error} {count} of {len(everything)} shards are finished; run the same command "
                "again to continue."
            ) from error
    return {source.name: complete[source.name] for source in inputs}
