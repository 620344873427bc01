"""A complete run: plan shards, translate unfinished ones, and join their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.serve.corpus.cluster import Work
from translate_trt.runtime.serve.corpus.driver import translate_shards
from translate_trt.runtime.serve.corpus.job import InputRecord, ShardRecord
from translate_trt.runtime.serve.corpus.join import join_parts
from translate_trt.runtime.serve.corpus.plan import Input, Shard, plan

#: Called with the number of shards and the number of those finished before.
OnPlanned = Callable[[int, int], None]
OnFinished = Callable[[ShardRecord], None]


@dataclass
class _Pending:
    """An incomplete input: its shards, and the records of the finished ones."""

    shards: list[Shard]
    records: dict[int, ShardRecord] = field(default_factory=dict)


def run(
    inputs: Sequence[Input],
    work: Work,
    on_planned: OnPlanned,
    on_finished: OnFinished,
    address: str | None = None,
) -> dict[str, InputRecord]:
    """Translate the unfinished shards of all inputs, and join each input as soon as it is complete.

    The output directory must be opened by `job.open_job`.

    Args:
        inputs: Inputs in the order of translation.
        work: Description of the run for the workers.
        on_planned: Called with the number of shards of incomplete inputs, and the number of those
            that are already finished.
        on_finished: Called with the record of each finished shard.
        address: Address of a Ray cluster; None starts a cluster on this machine.

    Returns:
        The record of each input by its name.

    Raises:
        InputError: An input cannot be read.
        OutputError: An output cannot be written.
        BackendError: Shards or Ray failed repeatedly; finished shards are kept.
    """
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
            # Workers may have finished shards that the driver could not report.
            unreported = [
                shard
                for one in pending.values()
                for shard in one.shards
                if shard.index not in one.records
            ]
            count = len(everything) - work.job.all_finished(unreported).count(None)
            raise BackendError(
                f"{error} {count} of {len(everything)} shards are finished; run the same command "
                "again to continue."
            ) from error
    return {source.name: complete[source.name] for source in inputs}
