"""Failures of the disk under a sweep's directory, told from those of a trial. What they end is decided elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from raysweep.errors import DiskError, RaysweepError

_FAILURES = {
    errno.ENOSPC: "free some room",
    errno.EDQUOT: "delete something, or have the quota raised",
    errno.EROFS: "make it writable",
    errno.EIO: "look after the disk",
}
_NOT_THEIRS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")


def disk_error(error: BaseException, path: Path) -> DiskError | None:
    """The failure of the disk that is behind an error; None where there is none: then it is the trial's own.

    Args:
        error: what was raised. Ray and torch wrap what they meet, so its causes are looked at, too; an error of raysweep's own
            is what it says.
        path: what could not be written, unless the error itself names something else; a directory: somewhere in it, unless the
            user's own code raised the error.
    """
    for cause in _causes(error):
        if isinstance(cause, DiskError):
            return cause
        if isinstance(cause, RaysweepError):
            return None
        if isinstance(cause, OSError) and cause.errno in _FAILURES:
            cannot = "cannot read or write" if cause.errno == errno.EIO else "cannot write"
            # Not Path.is_dir(), which raises on a broken disk.
            if cause.filename is None and os.path.isdir(path) and (place := _users(cause)):  # noqa: PTH112
                return DiskError(f"{place}, {cannot} a file: {_what(cause)}; {_FAILURES[cause.errno]}")
            named = _named(cause, path)
            return DiskError(f"{cannot} {named}: {_why(cause, named)}; {_FAILURES[cause.errno]}")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        told = getattr(error, "cause", None)  # as Ray keeps what it has brought from another process
        hidden = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or (told if isinstance(told, BaseException) else None) or hidden


def _named(error: OSError, path: Path) -> Path:
    """The file of an error; of one that is written under a temporary name, its own name."""
    named = Path(error.filename) if isinstance(error.filename, str) else path
    return path if named.name.startswith(f".{path.name}.") else named


def _users(error: OSError) -> str:
    """The place in the user's own code that raised an error, which may write on any disk; "" where it was not theirs."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THEIRS)]
    return f"{Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""


def _what(error: OSError) -> str:
    told = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
    return told.get(error.errno or 0) or error.strerror or str(error)


def _why(error: OSError, path: Path) -> str:
    free = f" ({_free(path)} of the disk are free)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{_what(error)}{free}"


def _free(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    free = float(shutil.disk_usage(path).free)
    for unit in ("bytes", "KB", "MB"):
        if free < 1000:
            return f"{free:.3g} {unit}"
        free /= 1000
    return f"{free:.3g} GB"
