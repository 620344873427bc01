"""Shards handed to workers on a Ray cluster, by Ray Data, until all are finished.

This runs in the driver's process (`driver`), which Ray may end at any time.

Ray Data runs a pool of actors, each with one Translator, and gives a shard to whichever is free. An
actor that dies is started again wherever there is room and its shard with it. What is finished is
told by the disk: a shard that Ray hands out twice is not translated twice, one that Ray loses is
handed out in another round, and one that ends its worker every time is given up, since each attempt
is noted before it begins.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import BackendError, BundleError, OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus.job import Job, ShardRecord, make_settings
from translate_trt.runtime.serve.corpus.plan import Shard
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions
from translate_trt.runtime.serve.corpus.shard import translate_shard

log = logging.getLogger("translate_trt")

_OBJECT_STORE_BYTES = 100 << 20  # what goes through it are shards' places and records
_ERRORS_SHOWN = 3
_CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.", "localhost:", "[::1]:")
_GCS_SECONDS = 5  # to wait for the GCS of this machine's own cluster, which nobody restarts
_LOST = "its worker was lost; it may have run out of memory"

OnFinished = Callable[[Shard, ShardRecord], None]


@dataclass(frozen=True)
class Work:
    """What every worker is told.

    Attributes:
        bundle: directory, the same on every machine.
        target: of the bundle.
        search: how to search.
        options: how inputs are read.
        workers: who translates.
        job: where results go.
        run: a name for this run, to count its attempts.
    """

    bundle: str
    target: str
    search: SearchOptions
    options: CorpusOptions
    workers: WorkerOptions
    job: Job
    run: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

    @property
    def needs_gpu(self) -> bool:
        """True if each worker needs a GPU of its own."""
        engine = read_manifest(Path(self.bundle)).target(self.target).engine
        return engine is not None or (self.workers.device or "").startswith("cuda")

    def to_json(self) -> dict[str, Any]:
        """A JSON object of all of it."""
        output = str(self.job.output)
        return {
            **dataclasses.asdict(self),
            "job": {"output": output, "settings": self.job.settings},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Work:
        """Restore from the output of `to_json`."""
        job = Job(Path(value["job"]["output"]), value["job"]["settings"])
        return cls(
            **{
                **value,
                "search": SearchOptions(**value["search"]),
                "options": CorpusOptions(**value["options"]),
                "workers": WorkerOptions(**value["workers"]),
                "job": job,
            }
        )


class ShardWorker:
    """The actor: one Translator, loaded once, and a shard at a time."""

    def __init__(self, work: Work) -> None:
        from translate_trt.runtime.process import return_large_blocks
        from translate_trt.runtime.translator import Translator

        return_large_blocks()
        work.job.check_visible()
        self._work = work
        workers = work.workers
        self._translator = Translator(
            work.bundle,
            work.target,
            threads=1,
            workers=workers.cores,
            batch_tokens=workers.batch_tokens,
            device=workers.device,
            trust_code=workers.trust_code,
        )
        found = make_settings(self._translator.manifest, work.target, work.search, work.options)
        if found != work.job.settings:
            raise BundleError(
                f"{work.bundle} is another bundle on this machine than where the run was started; "
                "put it on a file system that every machine mounts, or copy it again."
            )

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Ray Data's batch, a row for each shard, to a row with its record or its error."""
        done = [self._translate(Shard.from_json(str(text))) for text in batch["shard"]]
        return {
            "shard": [str(text) for text in batch["shard"]],
            "record": [record for record, _ in done],
            "error": [error for _, error in done],
        }

    def _translate(self, shard: Shard) -> tuple[str, str]:
        work = self._work
        try:
            if (record := work.job.finished(shard)) is None:
                if work.job.begin(shard, work.run) > work.workers.attempts:
                    return "", _LOST  # it ended its worker so often that Ray is still trying
                record = translate_shard(
                    shard, work.job, self._translator, work.search, work.options
                )
        except TranslateTrtError as error:
            return "", str(error)
        except Exception as error:  # told like the others, so that no shard ends a run
            return "", f"{type(error).__name__}: {error}"
        return json.dumps(dataclasses.asdict(record)), ""


def translate_shards(
    shards: Sequence[Shard], work: Work, on_finished: OnFinished, address: str | None = None
) -> None:
    """Translate shards on a cluster, each until it is finished or given up.

    Args:
        shards: those that are not finished, in the order in which they are handed out.
        work: what the workers are told.
        on_finished: called in this thread with each shard as it is finished, once.
        address: of a Ray cluster, "host:port"; None starts one on this machine, which no other
            machine can reach.

    Raises:
        BackendError: shards were given up (the others are finished), or no worker could start.
        OptionError: the cluster has no room for a worker.
    """
    with _connected(address, work) as workers:
        failures = _Failures(work)
        waiting = list(shards)
        while waiting:
            error: Exception | None = None
            left = dict.fromkeys(shard.to_json() for shard in waiting)
            try:
                for row in _round(list(left), work, workers):
                    if row["record"]:
                        del left[row["shard"]]
                        record = ShardRecord(**json.loads(row["record"]))
                        on_finished(Shard.from_json(row["shard"]), record)
                    else:
                        left[row["shard"]] = row["error"]
            except TranslateTrtError:
                raise
            except Exception as raised:  # Ray's own, its libraries', and plain Python's
                traceback.print_exc()  # to the log
                error = raised
            unfinished = {Shard.from_json(text): reason for text, reason in left.items()}
            for shard in list(unfinished):  # whose worker was lost after it had finished
                if (found := work.job.finished(shard)) is not None:
                    del unfinished[shard]
                    on_finished(shard, found)
            waiting = failures.after_round(unfinished, len(left) < len(waiting), error)
        failures.raise_for_given_up(len(shards))


class _Failures:
    """Which shards failed, how often, and which of them are tried again."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._given_up: dict[Shard, str] = {}
        self._begun = 0

    def after_round(
        self, unfinished: dict[Shard, str | None], progress: bool, error: Exception | None
    ) -> list[Shard]:
        """The shards of the next round.

        Args:
            unfinished: shards of the last one, each with its error; None: its worker was lost.
            progress: a shard was finished.
            error: what ended the round early.

        Raises:
            BackendError: no shard was so much as begun.
        """
        again, begun = [], 0
        most = self._work.workers.attempts
        for shard, reason in unfinished.items():
            attempts = min(most, self._work.job.attempts(shard, self._work.run))
            begun += attempts
            if reason is not None or attempts:
                log.error(
                    "%s: failed in attempt %d of %d: %s",
                    shard.name, attempts, most, reason or _LOST,
                )  # fmt: skip
            if attempts < most:
                again.append(shard)
            else:
                self._given_up[shard] = reason or _LOST
        if unfinished and not progress and begun <= self._begun:
            raise BackendError(f"no worker could begin a shard: {_last_line(error)}.") from error
        if error is not None:
            log.error("the cluster failed, what is left is tried again: %s", _last_line(error))
        self._begun = begun
        return again

    def raise_for_given_up(self, total: int) -> None:
        """Raise BackendError if any shard was given up."""
        if not self._given_up:
            return
        shown = [f"{shard.name}: {why}" for shard, why in self._given_up.items()][:_ERRORS_SHOWN]
        raise BackendError(
            f"{len(self._given_up)} of {total} shards failed {self._work.workers.attempts} times: "
            f"{'; '.join(shown)}."
        )


def _last_line(error: BaseException | None) -> str:
    """What a user needs of Ray's errors, which end with those of the worker."""
    if error is None:
        return "none has come up"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


def _round(shards: list[str], work: Work, workers: int) -> Iterator[dict[str, Any]]:
    """Every shard given out once; the rows of those whose worker was not lost, as they come."""
    import ray.data

    dataset = ray.data.from_items(
        [{"shard": shard} for shard in shards], override_num_blocks=len(shards)
    ).map_batches(
        ShardWorker,
        batch_size=1,
        batch_format="numpy",
        # One at a time: with a second one waiting at it, a slow worker would hold up the end.
        compute=ray.data.ActorPoolStrategy(
            size=min(workers, len(shards)), max_tasks_in_flight_per_actor=1
        ),
        fn_constructor_kwargs={"work": work},
        num_cpus=work.workers.cores,
        num_gpus=1 if work.needs_gpu else None,
    )
    yield from dataset.iter_rows()


@contextmanager
def _connected(address: str | None, work: Work) -> Iterator[int]:
    """A connection to a cluster; gives the number of workers.

    Raises:
        BackendError: there is no cluster at the address, or none can be started.
        OptionError: the cluster has no room for a worker, or the address is of a kind that no run
            can be started from.
    """
    if address not in (None, "auto"):
        _check_address(address)
    _set_environment(address)
    import ray

    try:
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING, **_settings(address, work))
            resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise BackendError(
                f"no Ray cluster at {address or 'this machine'}: {_last_line(error)}. Check the "
                "address, and that Ray has the same version everywhere."
            ) from error
        _set_up_ray_data()
        yield _room(work, resources)
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Find out early that there is no cluster: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise OptionError(
            f"the address {address} is not of the form host:port; write that, or auto, and run the "
            "command on a machine of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise BackendError(
            f"no Ray cluster at {address}: {error.strerror or error}. Check the address, and that "
            "`ray start --head` has run there."
        ) from error


def _settings(address: str | None, work: Work) -> dict[str, Any]:
    """For ray.init: where the cluster is, or of what size it is to be."""
    if address is not None:
        return {"address": address}
    from translate_trt.runtime.cores import available_cores

    cores = work.workers.cores
    workers = work.workers.workers or max(1, available_cores() // cores)
    return {
        "address": "local",
        "num_cpus": workers * cores,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }


def _set_environment(address: str | None) -> None:
    """What Ray looks at once, when it is imported."""
    if address is None:
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_GCS_SECONDS))
        # Other users of this machine reach its loopback interface too.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if address is None or address.startswith(_LOOPBACK):
        _stay_on_this_machine()


def _stay_on_this_machine() -> None:
    """Have Ray listen on the loopback interface alone, and report to nobody.

    Ray has no public setting for the first; an address of the loopback interface is replaced by
    another of the machine, except where Ray takes clusters for unsupported, as this variable says.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray._private import ray_constants

    if ray_constants.ENABLE_RAY_CLUSTER:
        raise BackendError(
            "Ray was imported before, and would listen to other machines; start the run in a "
            "process of its own."
        )


def _set_up_ray_data() -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1  # lost shards are given out again
    context.execution_no_progress_timeout_s = -1  # a shard may take long
    context.max_consecutive_actor_init_deaths = 3  # a machine that is out of order


def _room(work: Work, resources: dict[str, float]) -> int:
    """How many workers there will be."""
    cores = work.workers.cores
    most = int(resources.get("CPU", 0)) // cores
    needs = f"{cores} cores"
    if work.needs_gpu:
        most, needs = min(most, int(resources.get("GPU", 0))), f"a GPU and {cores} cores"
    wanted = work.workers.workers or most
    if most < 1:
        raise OptionError(
            f"the cluster has no room for a worker of {needs}: it has "
            f"{int(resources.get('CPU', 0))} cores and {int(resources.get('GPU', 0))} GPUs."
        )
    if wanted > most:
        log.warning("the cluster has room for %d of %d workers of %s", most, wanted, needs)
    return wanted
