"""Errors of the HTTP API, in the form of LibreTranslate's: {"error": message}."""

from __future__ import annotations

import re
from collections.abc import Mapping

from translate_trt.runtime.errors import BackendError, InputError, OptionError, TranslateTrtError
from translate_trt.runtime.serve.admission import BusyError

#: Status in logs and metrics of a request whose client has closed the connection.
CLIENT_CLOSED = 499

# Text in quotation marks, as repr writes it, or to the end, which keeps the time linear; and the
# largest number of logged characters.
_QUOTED = re.compile(
    r"""(?<!\w)(?:'(?:[^'\\]|\\.?)*(?:'|\Z)|"(?:[^"\\]|\\.?)*(?:"|\Z))""", re.DOTALL
)
_MOST_LOGGED = 300


class HttpError(Exception):
    """An answer other than success.

    Attributes:
        status: HTTP status code.
        message: Reason, and what to do.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    @property
    def logged(self) -> str:
        """Message for the log, without quoted text, which may be the client's."""
        return _QUOTED.sub("'...'", self.message)[:_MOST_LOGGED]


class ApiKeyError(HttpError):
    """The key of a request is missing or unknown, which each API says with another status."""


def busy(message: str, seconds: int = 1, status: int = 429) -> HttpError:
    """Return the answer to a request that may be sent again after some seconds."""
    return HttpError(status, message, {"Retry-After": str(seconds)})


def as_http_error(error: TranslateTrtError) -> HttpError:
    """Return the answer for an error of the runtime."""
    if isinstance(error, (InputError, OptionError)):
        return HttpError(400, str(error))
    if isinstance(error, BusyError):
        return busy(str(error))
    if isinstance(error, BackendError):
        return HttpError(500, str(error))
    return busy(str(error), status=503)  # such as a closed service
