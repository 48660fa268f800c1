"""Every error that raysweep raises on purpose; the text says the rule, the value that broke it, the setting to change.

Nothing else lives here, so that every other module may import it.
"""

from __future__ import annotations


class RaysweepError(Exception):
    """Base of all errors meant to be read by the user; printed without a traceback by the command line."""


class ConfigError(RaysweepError, ValueError):
    """The configuration cannot work; nothing was started and nothing was written."""


class DataError(RaysweepError):
    """The images cannot be read, do not fit each other, or there are none."""


class CheckpointError(RaysweepError):
    """A checkpoint is damaged, incomplete, or belongs to another model."""


class TrialError(RaysweepError):
    """Training failed; `traceback_text` holds the traceback of the worker that failed first."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.traceback_text = traceback_text

    def __reduce__(self) -> tuple[type[TrialError], tuple[str, str]]:
        return (type(self), (self.message, self.traceback_text))


class ClusterError(RaysweepError):
    """The Ray cluster cannot be joined, or cannot carry what was asked of it."""


class StoreError(RaysweepError):
    """The sweep's directory cannot be read or written."""


class DiskError(StoreError):
    """The disk is full, over its quota, read-only or broken: no trial's fault. It ends a sweep, which goes on afterwards."""
