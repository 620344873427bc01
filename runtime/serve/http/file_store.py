"""Memory and processes for files: uploads, and translations until they are downloaded."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from translate_trt.runtime.files.segments import ReadOptions
from translate_trt.runtime.files.worker import ReadTask
from translate_trt.runtime.serve.http.file_process import FileProcess
from translate_trt.runtime.serve.http.http_error import HttpError, busy

# Files of the largest size that there is memory for: uploads, and translations.
_MOST_UPLOADS, _MOST_KEPT = 16, 16
# Half an hour, as in LibreTranslate.
_SECONDS = 1800.0
_TOKEN_BYTES = 16
# Files with a process, and of them those that are read or rendered.
_MOST_PROCESSES, _THREADS = 16, 2
# Memory of a process: XML of 20 MB takes 480 MB.
_MEMORY, _MEMORY_PER_BYTE = 1 << 29, 64

_Result = TypeVar("_Result")


class StoredFile(NamedTuple):
    """A translated file.

    Attributes:
        name: Name without a path.
        content: Content.
        media_type: Media type.
    """

    name: str
    content: bytes
    media_type: str


class FileStore:
    """Translated files, which are forgotten after half an hour. Belongs to one event loop.

    Args:
        max_file_bytes: Size of the largest upload.
        seconds: Time to read or render a file in.
    """

    def __init__(self, max_file_bytes: int, seconds: float) -> None:
        self._seconds = seconds
        self._processes = 0
        self._memory = _MEMORY + _MEMORY_PER_BYTE * max_file_bytes
        self._most_uploads = _MOST_UPLOADS * max_file_bytes
        self._most_kept = _MOST_KEPT * max_file_bytes
        self._uploads = 0
        self._files: dict[str, tuple[StoredFile, asyncio.TimerHandle]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")

    @contextmanager
    def receiving(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of an upload during the block.

        Yields:
            Function that is called with numbers of bytes before they are kept; it raises HttpError
            if there is no memory for them.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._uploads + size > self._most_uploads:
                raise busy("this server is busy with other files; send the file again later")
            self._uploads += size
            taken += size

        try:
            yield take
        finally:
            self._uploads -= taken

    @asynccontextmanager
    async def process(
        self, name: str, suffix: str, options: ReadOptions
    ) -> AsyncIterator[FileProcess]:
        """Start the process of a file, which does not outlive the block.

        Args:
            name: Name of the file in messages.
            suffix: Suffix of its format.
            options: Options of the format.

        Raises:
            HttpError: There are too many processes.
        """
        if self._processes == _MOST_PROCESSES:
            raise busy("this server is busy with other files; send the file again later")
        seconds = math.ceil(2 * self._seconds)  # reading, then rendering
        self._processes += 1
        try:
            process = FileProcess(ReadTask(name, suffix, options, self._memory, seconds))
            try:
                yield process
            finally:
                process.kill()
                await asyncio.to_thread(process.close)
        finally:
            self._processes -= 1

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run a call of a file's process, which waits, in another thread.

        Raises:
            HttpError: The time is up.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError as error:
            raise HttpError(504, f"the file took longer than {self._seconds:g} s") from error

    def add(self, file: StoredFile) -> str:
        """Keep a file, and forget the oldest ones if there are too many.

        Returns:
            Name of the file, which cannot be guessed.
        """
        key = f"{secrets.token_urlsafe(_TOKEN_BYTES)}.{file.name}"
        timer = asyncio.get_running_loop().call_later(_SECONDS, self.remove, key)
        self._files[key] = file, timer
        while sum(len(one.content) for one, _ in self._files.values()) > self._most_kept:
            self.remove(next(iter(self._files)))
        return key

    def find(self, key: str) -> StoredFile | None:
        """Return a file by the name of `add`; None if it is unknown or forgotten."""
        found = self._files.get(key)
        return None if found is None else found[0]

    def remove(self, key: str) -> None:
        """Forget a file."""
        _, timer = self._files.pop(key)
        timer.cancel()

    def close(self) -> None:
        """Forget all files and stop the threads."""
        for key in [*self._files]:
            self.remove(key)
        self._threads.shutdown(wait=False, cancel_futures=True)


def file_answer(file: StoredFile) -> Response:
    """Return a file as an attachment; nothing of it runs in the server's origin."""
    name = f"filename*=UTF-8''{quote(file.name)}"
    if file.name.isascii():
        name = f'filename="{file.name}"'
    headers = {
        "Content-Type": file.media_type,
        "Content-Disposition": f"attachment; {name}",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "no-store",
    }
    return Response(file.content, headers=headers)
