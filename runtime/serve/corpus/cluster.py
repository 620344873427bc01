"""Distribution of shards to workers on a Ray cluster with Ray Data.

This runs in the driver process (`driver`), which Ray may terminate at any time.

Ray Data runs a pool of actors, each with one Translator, and assigns shards to idle actors. It
restarts an actor that dies, together with its shard. The records on disk decide which shards are
finished: a shard that Ray assigns twice is translated once, and a shard that Ray loses is assigned
again in another round. Attempts are recorded before they start, so a shard that kills its worker
every time is given up.
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

from translate_trt.runtime.backends import needs_gpu
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import BackendError, BundleError, OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus.job import Job, ShardRecord, make_settings
from translate_trt.runtime.serve.corpus.plan import Shard
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions
from translate_trt.runtime.serve.corpus.shard import translate_shard

log = logging.getLogger("translate_trt")

_OBJECT_STORE_BYTES = 100 << 20  # it only holds descriptions of shards and their records
_ERRORS_SHOWN = 3
_CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.", "localhost:", "[::1]:")
_GCS_SECONDS = 5  # timeout for the GCS of a cluster on this machine, which is not restarted
_STARTS = 3  # attempts to start Ray on this machine
_LOST = "its worker was lost; it may have run out of memory"

OnFinished = Callable[[Shard, ShardRecord], None]


@dataclass(frozen=True)
class Work:
    """Description of a run for the workers.

    Attributes:
        bundle: Directory of the bundle, the same on every machine.
        target: Name of the target.
        search: Search options.
        options: Options that affect how inputs are read and split.
        workers: Options of the workers.
        job: State and results on disk.
        run: Name of this run, under which its attempts are counted.
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
        entry = read_manifest(Path(self.bundle)).target(self.target)
        return needs_gpu(entry, self.workers.device)

    def to_json(self) -> dict[str, Any]:
        """Convert the description to a JSON object."""
        output = str(self.job.output)
        return {
            **dataclasses.asdict(self),
            "job": {"output": output, "settings": self.job.settings},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Work:
        """Read a description that `to_json` wrote."""
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
    """Ray actor with one Translator, which translates one shard at a time."""

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
            # On a GPU, batches share its memory: their number does not follow the cores.
            workers=None if work.needs_gpu else workers.cores,
            batch_tokens=workers.batch_tokens,
            device=workers.device,
            trust_code=workers.trust_code,
        )
        found = make_settings(self._translator.manifest, work.target, work.search, work.options)
        if found != work.job.settings:
            raise BundleError(
                f"{work.bundle} on this machine differs from that on the machine that started the "
                "run; put the bundle on a shared file system, or copy it again."
            )

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Translate a batch of Ray Data, one shard per row, to a row with its record or error."""
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
                    return "", _LOST  # the shard has killed its worker too often
                record = translate_shard(
                    shard, work.job, self._translator, work.search, work.options
                )
        except TranslateTrtError as error:
            return "", str(error)
        except Exception as error:  # reported as well, so that a shard cannot end the run
            return "", f"{type(error).__name__}: {error}"
        return json.dumps(dataclasses.asdict(record)), ""


def translate_shards(
    shards: Sequence[Shard], work: Work, on_finished: OnFinished, address: str | None = None
) -> None:
    """Translate shards on a cluster until each is finished or given up.

    Args:
        shards: Unfinished shards, in the order of their assignment.
        work: Description of the run for the workers.
        on_finished: Called in this thread once for each finished shard.
        address: Address of a Ray cluster, "host:port"; None starts a cluster on this machine that
            other machines cannot reach.

    Raises:
        BackendError: Shards were given up (the others are finished), or no worker could start.
        OptionError: The cluster lacks the resources for a worker.
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
            except Exception as raised:  # from Ray, its libraries, or Python
                traceback.print_exc()  # to ray.log
                error = raised
            unfinished = {Shard.from_json(text): reason for text, reason in left.items()}
            for shard in list(unfinished):  # finished, although their worker was lost afterwards
                if (found := work.job.finished(shard)) is not None:
                    del unfinished[shard]
                    on_finished(shard, found)
            waiting = failures.after_round(unfinished, len(left) < len(waiting), error)
        failures.raise_for_given_up(len(shards))


class _Failures:
    """Retry policy: counts the attempts of failed shards."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._given_up: dict[Shard, str] = {}
        self._begun = 0

    def after_round(
        self, unfinished: dict[Shard, str | None], progress: bool, error: Exception | None
    ) -> list[Shard]:
        """Return the shards of the next round.

        Args:
            unfinished: Unfinished shards of the last round with their errors; None if the worker
                was lost.
            progress: True if the round finished any shard.
            error: Exception that ended the round early, if any.

        Raises:
            BackendError: No worker could start a shard.
        """
        again = []
        begun = retried = 0  # attempts of all shards, and of those that get another one
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
                retried += attempts
            else:
                self._given_up[shard] = reason or _LOST
        if unfinished and not progress and begun <= self._begun:
            raise BackendError(f"no worker could start a shard: {_last_line(error)}.") from error
        if error is not None:
            log.error("the cluster failed, unfinished shards are retried: %s", _last_line(error))
        self._begun = retried
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
    """Return the last line of a Ray error, which is the worker's own error."""
    if error is None:
        return "no worker has started"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


def _round(shards: list[str], work: Work, workers: int) -> Iterator[dict[str, Any]]:
    """Assign every shard once and yield result rows as they arrive; lost workers yield no row."""
    import ray.data

    dataset = ray.data.from_items(
        [{"shard": shard} for shard in shards], override_num_blocks=len(shards)
    ).map_batches(
        ShardWorker,
        batch_size=1,
        batch_format="numpy",
        # A second task queued at a slow worker would delay the end of the run.
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
    """Connect to a cluster and yield the number of workers."""
    if address not in (None, "auto"):
        _check_address(address)
    _set_environment(address)
    import ray

    try:
        try:
            _start(ray, _settings(address, work))
            resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise BackendError(
                f"no Ray cluster at {address or 'this machine'}: {_last_line(error)}. Check the "
                "address, and that Ray has the same version everywhere."
            ) from error
        _set_up_ray_data()
        yield _worker_count(work, resources)
    finally:
        ray.shutdown()


def _start(ray: Any, settings: dict[str, Any]) -> None:
    """Connect to a cluster, or start one; on a busy machine Ray's 30 s for that may not suffice."""
    for attempt in range(1, _STARTS + 1):
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING, **settings)
            return
        except Exception as error:
            own = settings["address"] == "local" and "timed out" in str(error)
            if not own or attempt == _STARTS:
                raise
            log.warning("Ray did not start in time on this machine; starting it again")
            ray.shutdown()


def _check_address(address: str) -> None:
    """Check early that a cluster can be reached; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise OptionError(
            f"the address {address} is not of the form host:port; write that, or write auto and "
            "run the command on a machine of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise BackendError(
            f"no Ray cluster at {address}: {error.strerror or error}. Check the address, and that "
            "`ray start --head` has run there."
        ) from error


def _settings(address: str | None, work: Work) -> dict[str, Any]:
    """Return arguments of ray.init: the address of a cluster, or the size of a new one."""
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
    """Set the environment variables that Ray reads on import."""
    if address is None:
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_GCS_SECONDS))
        # Other users of this machine can reach its loopback interface, too.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if address is None or address.startswith(_LOOPBACK):
        _stay_on_this_machine()


def _stay_on_this_machine() -> None:
    """Make Ray listen only on the loopback interface, and disable its usage reports.

    Ray has no public setting for the interface. It replaces a loopback address by another address
    of the machine unless clusters are unsupported, which the first variable simulates.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray._private import ray_constants

    if ray_constants.ENABLE_RAY_CLUSTER:
        raise BackendError(
            "Ray is already imported and would listen to other machines; start the run in a new "
            "process."
        )


def _set_up_ray_data() -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1  # lost shards are assigned again
    context.execution_no_progress_timeout_s = -1  # a shard may take long
    context.max_consecutive_actor_init_deaths = 3  # for a faulty machine


def _worker_count(work: Work, resources: dict[str, float]) -> int:
    """Return the number of workers, limited by the resources of the cluster."""
    cores = work.workers.cores
    most = int(resources.get("CPU", 0)) // cores
    needs = f"{cores} cores"
    if work.needs_gpu:
        most, needs = min(most, int(resources.get("GPU", 0))), f"a GPU and {cores} cores"
    wanted = work.workers.workers or most
    if most < 1:
        raise OptionError(
            f"the cluster is too small for a worker, which needs {needs}: it has "
            f"{int(resources.get('CPU', 0))} cores and {int(resources.get('GPU', 0))} GPUs."
        )
    if wanted > most:
        log.warning("the cluster has resources for %d of %d workers of %s", most, wanted, needs)
    return wanted
