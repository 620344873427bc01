"""A process beside an instance, which lets neither instance nor server outlive the other.

Where the server was killed, the backend waits for its next message forever, weights and all. While
it waits for an answer to be taken it holds Python's lock, too: no thread could see it. And where an
instance was killed, the server says that it is well and answers every request with an error.
"""

from __future__ import annotations

import os
import subprocess

# Until process $2, the instance, has another parent than $1, the server, or has ended. If it has
# ended and $3 says so, the server has to end, too, by a signal that its exit code shows; the first
# process of a container takes no other than SIGTERM. $4 is when the server began.
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
    """Ends this process soon after the server has; while it is armed, the server after this."""

    def __init__(self) -> None:
        self._server = os.getppid()
        with open(f"/proc/{self._server}/stat", encoding="ascii", errors="replace") as stat:
            self._began = stat.read().rpartition(") ")[2].split()[19]
        self._process = self._start("instance")

    def arm(self) -> None:
        """From now on the end of this process is a failure, and the end of the server."""
        self._replace("both")

    def disarm(self) -> None:
        """The server has asked this process to end."""
        self._replace("instance")

    def stop(self) -> None:
        """Watch no more."""
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
            start_new_session=True,  # Ctrl-C is for the server, which lets instances finish
        )  # fmt: skip
