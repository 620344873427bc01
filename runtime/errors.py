"""Every error that a user can cause, under one base class.

A message says what was wrong, where (file, line or option) and what to do about it.
"""

from __future__ import annotations


class TranslateTrtError(Exception):
    """Base of all errors raised on purpose by translate-trt."""


class InputError(TranslateTrtError):
    """Text or a file that cannot be read or used as it is."""


class OptionError(TranslateTrtError):
    """An option with a value that is out of range, or that this bundle was not compiled for."""


class BundleError(TranslateTrtError):
    """A bundle that is missing, incomplete, changed, or of a format this version does not read."""


class CheckpointError(TranslateTrtError):
    """A checkpoint that is missing, incomplete, changed, or does not fit what is asked of it."""


class DownloadError(TranslateTrtError):
    """A file that a server does not have, does not send whole, or that is not the right one."""


class OutputError(TranslateTrtError):
    """A result that cannot be written where it was asked to go."""


class BackendError(TranslateTrtError):
    """A backend that fails while it translates: memory that runs out, a device that is lost."""
