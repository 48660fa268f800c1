"""Failures of the disk under a sweep's directory, told from those of a trial. What they end is decided elsewhere."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from raysweep.errors import DiskError, RaysweepError

_FAILURES = {
    errno.ENOSPC: "free some room",
    errno.EDQUOT: "delete something, or have the quota raised",
    errno.EROFS: "make it writable",
    errno.EIO: "look after the disk",
}


def disk_error(error: BaseException, path: Path) -> DiskError | None:
    """The failure of the disk that is behind an error; None where there is none: then it is the trial's own.

    Args:
        error: what was raised. Ray and torch wrap what they meet, so its causes are looked at, too; an error of raysweep's own
            is what it says.
        path: what could not be written, unless the error itself names something else.
    """
    for cause in _causes(error):
        if isinstance(cause, DiskError):
            return cause
        if isinstance(cause, RaysweepError):
            return None
        if isinstance(cause, OSError) and cause.errno in _FAILURES:
            named = _named(cause, path)
            return DiskError(f"cannot write {named}: {_why(cause, named)}; {_FAILURES[cause.errno]}")
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


def _why(error: OSError, path: Path) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error.strerror or str(error)
    what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
    return f"{what} ({_free(path)} of the disk are free)"


def _free(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    free = float(shutil.disk_usage(path).free)
    for unit in ("bytes", "KB", "MB"):
        if free < 1000:
            return f"{free:.3g} {unit}"
        free /= 1000
    return f"{free:.3g} GB"
