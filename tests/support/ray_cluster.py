"""Ray cluster of several node processes on this machine, run by a separate process.

As a program: starts a head without cores and as many nodes as its argument says, each of one core,
prints the address, then obeys lines of standard input: "kill" ends a node with SIGKILL and prints
its id, "add" starts one. It ends everything at the end of its input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time

ENVIRONMENT = {
    # Loopback only; see runtime/serve/corpus/cluster.py.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A killed node is dead after the fourth failed check: after 4 s, not 15 as by default. Answers
    # may take as long as by default, 10 s: on a busy machine living nodes answer late.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}


#: Seconds that the cluster has to start, or to obey.
WAIT = 300.0


class RayCluster:
    """Client of the process that runs the cluster."""

    def __init__(self, nodes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(nodes)],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()  # the last one is empty
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.address = self._answer("address")
        except RuntimeError:
            self.stop()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, to: str) -> str:
        """Read lines until one begins with a word; return its rest. Ray may print others."""
        end = time.monotonic() + WAIT
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"the cluster has no answer to {to} in {WAIT:g} s") from None
            if not line:
                raise RuntimeError("the cluster has ended")
            word, _, rest = line.strip().partition(" ")
            if word == to:
                return rest

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer(command)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._process.kill()


def serve(nodes: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    alive = [cluster.add_node(num_cpus=1) for _ in range(nodes)]
    print("address", cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            node = alive.pop()
            cluster.remove_node(node, allow_graceful=False)
            print("kill", node.unique_id, flush=True)
        elif line.strip() == "add":
            alive.append(cluster.add_node(num_cpus=1))
            print("add", alive[-1].unique_id, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    serve(int(sys.argv[1]))
