"""Hosts of a Ray cluster in network namespaces of this machine, with links that can be cut.

Every host is a namespace with the loopback interface and one address, joined by a bridge that is in
a namespace of its own. None has a route to anywhere else, and the machine's own interfaces are not
touched. It takes root and `ip` (Debian's iproute2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

HEAD = "10.77.0.1:6379"
_SECONDS = 120.0  # for anything that should take moments
_STARTS = 4  # of a node; on a busy machine one may take longer than Ray waits
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A host that answers nothing is dead after 24 s, not after 65 as by default. Not much less: on
    # a busy machine living ones answer late.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}


def missing() -> str | None:
    """Return why this machine cannot have such hosts; None if it can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces take root on Linux"
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian's iproute2)"
    probe = f"tt{os.getpid()}probe"
    for command in (
        ["netns", "add", probe],
        ["-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "other"],
        ["-n", probe, "link", "add", "switch", "type", "bridge"],
    ):
        done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            break
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True, check=False)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


class Host:
    """Network namespace with a Ray node."""

    def __init__(self, number: int, names: str, switch: str, home: Path) -> None:
        self.number, self.namespace = number, f"{names}h{number}"
        self._switch, self._home = switch, home / f"h{number}"
        self._home.mkdir()
        self._ray: subprocess.Popen[bytes] | None = None
        self._before: set[int] = set()

    def make(self) -> None:
        """Create the link and set the address."""
        name, port = self.namespace, f"port{self.number}"
        _ip("-n", self._switch, "link", "add", port, "type", "veth",
            "peer", "name", "eth0", "netns", name)  # fmt: skip
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"10.77.0.{self.number}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")

    @property
    def prefix(self) -> list[str]:
        """Prefix of commands that run on this host."""
        return ["ip", "netns", "exec", self.namespace]

    def processes(self) -> set[int]:
        """Return the ids of all processes on this host."""
        return set(map(int, _ip("netns", "pids", self.namespace).split()))

    def plug(self, plugged: bool) -> None:
        """Connect or cut the link at the switch, which the host is not told."""
        _ip("-n", self._switch, "link", "set", f"port{self.number}", "up" if plugged else "down")

    def start_ray(self) -> None:
        """Start the node without waiting; the head is number 1 and translates nothing."""
        self._before = self.processes()
        # With it, Ray takes raylets of the other hosts, which `ps` shows, for a running head.
        (self._home / "ray_current_cluster").unlink(missing_ok=True)
        where = ["--head", "--port", "6379", "--include-dashboard", "false", "--num-cpus", "0"]
        if self.number > 1:
            where = ["--address", HEAD, "--num-cpus", "1"]
        with (self._home / "start.log").open("ab") as log:
            self._ray = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "ray.scripts.scripts", "start", *where,
                 "--node-ip-address", f"10.77.0.{self.number}", "--temp-dir", str(self._home),
                 "--object-store-memory", str(100 << 20), "--disable-usage-stats"],
                env={**os.environ, **_ENVIRONMENT},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def wait_for_ray(self) -> None:
        """Wait until the node has joined the cluster, for which Ray waits 30 s."""
        for _ in range(_STARTS - 1):
            assert self._ray is not None
            if self._ray.wait(_SECONDS) == 0:
                return
            self.kill(self._before)
            self.start_ray()
        assert self._ray is not None
        assert self._ray.wait(_SECONDS) == 0, (self._home / "start.log").read_text()

    def kill(self, spared: Iterable[int] = ()) -> None:
        """End all processes on this host except some."""
        deadline = time.monotonic() + _SECONDS
        while found := self.processes().difference(spared):
            assert time.monotonic() < deadline, found
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if self._ray is not None:
            self._ray.wait(_SECONDS)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Create hosts without Ray; the end of the block ends all their processes."""
    names = f"tt{os.getpid()}"
    switch, home = f"{names}switch", Path(tempfile.mkdtemp(prefix="tt"))  # short: for sockets
    made = [Host(number, names, switch, home) for number in range(1, count + 1)]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        _ip("netns", "add", switch)
        stack.callback(_ip, "netns", "delete", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in made:
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "delete", host.namespace)
            stack.callback(host.kill)
            host.make()
        yield made


def start_cluster(made: list[Host]) -> None:
    """Start Ray on all hosts: the head first, the others together."""
    for group in (made[:1], made[1:]):
        for host in group:
            host.start_ray()
        for host in group:
            host.wait_for_ray()
