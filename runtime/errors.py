"""Exceptions for errors that users can cause, under one base class.

Every message says what was wrong, where (file, line or option) and what to do about it.
"""

from __future__ import annotations


class TranslateTrtError(Exception):
    """Base class of all exceptions raised by translate-trt itself."""


class InputError(TranslateTrtError):
    """Invalid or unreadable input: text, tokens or files."""


class OptionError(TranslateTrtError):
    """Invalid option value, or an option that the bundle was not compiled for."""


class BundleError(TranslateTrtError):
    """Missing, incomplete, changed or incompatible bundle."""


class CheckpointError(TranslateTrtError):
    """Missing, incomplete, changed or unsuitable checkpoint."""


class DownloadError(TranslateTrtError):
    """Failed download: file not found, transfer incomplete, or wrong content."""


class OutputError(TranslateTrtError):
    """Output that cannot be written to the requested path."""


class CapacityError(TranslateTrtError):
    """Lines refused because those pending and running exhaust a capacity."""


class BackendError(TranslateTrtError):
    """Failure of a backend while translating, such as exhausted memory or a lost device."""
