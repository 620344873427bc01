"""A whole run: plan, translate what is not finished, join what is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.serve.corpus.cluster import Work
from translate_trt.runtime.serve.corpus.driver import translate_shards
from translate_trt.runtime.serve.corpus.job import InputRecord, ShardRecord
from translate_trt.runtime.serve.corpus.join import join_parts
from translate_trt.runtime.serve.corpus.plan import Input, Shard, plan

#: (shards, finished before) once that is known.
OnPlanned = Callable[[int, int], None]
OnFinished = Callable[[ShardRecord], None]


@dataclass
class _Pending:
    """An input that is not complete: its shards, and the records of those that are finished."""

    shards: list[Shard]
    records: dict[int, ShardRecord] = field(default_factory=dict)


def run(
    inputs: Sequence[Input],
    work: Work,
    on_planned: OnPlanned,
    on_finished: OnFinished,
    address: str | None = None,
) -> dict[str, InputRecord]:
    """Translate the inputs, but for what is finished, and join each as soon as it can be.

    The output directory must be opened by `job.open_job`.

    Args:
        inputs: in the order in which they are translated.
        work: what workers are told.
        on_planned: called with the shards of inputs that are not complete, and how many of them
            were finished before.
        on_finished: called with the record of each shard as it is finished.
        address: of a Ray cluster; None starts one on this machine.

    Returns:
        By the input's name, the record of the complete input.

    Raises:
        InputError: an input cannot be read.
        OutputError: an output cannot be written.
        BackendError: shards failed again and again, or Ray did; the message ends with how many
            shards are finished, which they stay.
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
            # A worker may have finished some of which the driver did not hear any more.
            unheard = [
                shard
                for one in pending.values()
                for shard in one.shards
                if shard.index not in one.records
            ]
            count = len(everything) - work.job.all_finished(unheard).count(None)
            raise BackendError(
                f"{error} {count} of {len(everything)} shards are finished; run the same command "
                "again for the others."
            ) from error
    return {source.name: complete[source.name] for source in inputs}
