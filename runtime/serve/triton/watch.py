"""Watchdog process that stops an instance with its server, and the server with a failed instance.

After the server is killed, the Python backend waits for its next message forever and keeps the
weights in memory. It may hold the GIL while waiting, so no thread of the instance could act. After
an instance is killed, the server reports that it is healthy but answers every request with an
error.
"""

from __future__ import annotations

import os
import subprocess

# Waits until process $2, the instance, has exited or its parent is no longer $1, the server. If the
# instance has exited and $3 is "both", the server is killed, which its exit code shows; the first
# process of a container only accepts SIGTERM. $4 is the start time of the server.
_WATCH = r"""
began() { sed -n 's/.*) //p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }
state() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null; }
while grep -qs "^PPid:[[:space:]]*$1\$" "/proc/$2/status" && [ "$(state "$2")" != Z ]; do
    sleep 1
done
if [ "$(began "$1")" != "$4" ] || [ "$(state "$1")" = Z ]; then
    kill -9 "$2"
elif [ "$3" = both ]; then
    kill -9 "$1"
    sleep 1
    [ "$(began "$1")" = "$4" ] && kill "$1"
fi
"""


class Watch:
    """Watchdog of this process: exits with the server, and while armed, the server with it."""

    def __init__(self) -> None:
        self._server = os.getppid()
        with open(f"/proc/{self._server}/stat", encoding="ascii", errors="replace") as stat:
            self._began = stat.read().rpartition(") ")[2].split()[19]
        self._process = self._start("instance")

    def arm(self) -> None:
        """Treat the exit of this process as a failure, which stops the server."""
        self._replace("both")

    def disarm(self) -> None:
        """Allow this process to exit, as the server has requested."""
        self._replace("instance")

    def stop(self) -> None:
        """Stop the watchdog."""
        self._process.kill()
        self._process.wait()

    def _replace(self, which: str) -> None:
        before, self._process = self._process, self._start(which)
        before.kill()
        before.wait()

    def _start(self, which: str) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watch-server", str(self._server), str(os.getpid()), which,
             self._began],
            stdin=nowhere, stdout=nowhere, stderr=nowhere,
            start_new_session=True,  # Ctrl-C must only reach the server, which stops its instances
        )  # fmt: skip
