"""Log records as JSON, one object a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

#: Logger of one record per request, with its fields in the attribute `fields`.
requests = logging.getLogger("translate_trt.requests")


class JsonFormatter(logging.Formatter):
    """Formatter of records as JSON objects with time, level, message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True, default=str)


@contextmanager
def log_as(kind: str) -> Iterator[None]:
    """Write log records to stderr during the block: those of requests, and warnings of others.

    Args:
        kind: "json", or "text" for requests as text and the other records as before.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else _TextFormatter())
    package = logging.getLogger("translate_trt")
    others = list(package.handlers) if kind == "json" else []
    loggers = [requests, logging.getLogger("uvicorn.error")]
    levels = [one.level for one in loggers]
    for other in others:
        package.removeHandler(other)
    if kind == "json":
        package.addHandler(handler)
    for one, level in zip(loggers, (logging.INFO, logging.WARNING), strict=True):
        one.addHandler(handler)
        one.setLevel(level)
        one.propagate = False
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)
            one.propagate = True
        package.removeHandler(handler)
        for other in others:
            package.addHandler(other)


class _TextFormatter(logging.Formatter):
    """Formatter of requests as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the fields as `name=value`."""
        fields = getattr(record, "fields", None)
        if fields is None:
            return f"translate-trt: {record.levelname.lower()}: {super().format(record)}"
        return " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
