"""The journal: an append-only file of JSON lines, the truth about a sweep. Written by one process, read by any.

Events are mappings with an "event" name; a trial's row is `{"row": [trial, value, ...]}`, its names are in the
"columns" event before it. What the events mean is written down in docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import IO, Any

from raysweep.errors import StoreError
from raysweep.store.disk import disk_error

_MOST_NAMED = 12  # directories in a message

# Losses and rates are kept whole; the others are for people, or, as psnr, decide by so many digits.
_ROUNDED_DIGITS = {
    "psnr": 7, "grad_norm": 6, "samples_per_second": 5, "data_wait": 3, "seconds": 5, "peak_memory_bytes": 4,
    "pause_s": 4,
}  # fmt: skip


def plain(value: Any) -> Any:
    """`value` as JSON has it: numpy and torch values made plain numbers or lists, non-finite floats None, paths text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        if isinstance(value, list):
            return plain(value)
    elif hasattr(value, "item"):
        value = value.item()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _rounded(name: str, value: Any) -> Any:
    digits = _ROUNDED_DIGITS.get(name)
    if digits is None or not isinstance(value, float):
        return value
    value = float(f"{value:.{digits}g}")
    return int(value) if value.is_integer() else value


def kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the journal keeps it: who decides by this one decides the same after a restart."""
    return {name: _rounded(name, value) for name, value in plain(row).items()}


class JournalWriter:
    """Appends events. A torn last line, left by a killed writer, is cut off when the file is opened.

    Attributes:
        broken: the error of the last event that could not be written, for whoever calls through code of others that
            wraps it in an error of its own.

    Raises:
        StoreError: the file cannot be written (DiskError: a full disk; permission); what was written before stays readable.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._columns: list[str] = []
        self.broken: StoreError | None = None
        try:
            self._file = path.open("ab")
            self._cut_torn_line()
        except OSError as error:
            raise self._error(error) from error

    def _cut_torn_line(self) -> None:
        with self.path.open("rb") as file:
            whole = sum(len(line) for _, line in _lines(file))
            size = file.seek(0, os.SEEK_END)
        if whole != size:
            self._file.truncate(whole)
        # Rows, nearly all of a journal, name no columns; who goes on with a journal has read them before.
        for _, event in _events(self.path, but=b'{"row":['):
            if event.get("event") == "columns":
                self._columns = event["columns"]

    def _error(self, error: OSError) -> StoreError:
        why = error.strerror or str(error)
        return disk_error(error, self.path) or StoreError(f"cannot write {self.path}: {why}; set `storage` elsewhere")

    def _append(self, content: Mapping[str, Any], durable: bool) -> None:
        if self.broken is not None and self._file.closed:
            raise self.broken  # a half line stands at the end, and nothing may be written behind it
        line = json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line)
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._drop_half_line(start)
            self.broken = self._error(error)
            raise self.broken from error

    def _drop_half_line(self, start: int) -> None:
        # The buffer still holds the line, and closing tries to write it again: so close first, then cut.
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):  # of a disk that has become read-only the next writer cuts it
            os.truncate(self.path, start)
            self._file = self.path.open("ab")

    def event(self, name: str, *, durable: bool = True, **fields: Any) -> None:
        """Append one event with the time; durable: not before it is on the disk does this return."""
        self._append({"event": name, "time": round(self._clock(), 3), **plain(fields)}, durable)

    def row(self, trial: int, row: Mapping[str, Any]) -> None:
        """Append one epoch's row of a trial. A row with other names than the last one's names them first."""
        columns = [*row, "time"]
        if columns != self._columns:
            self._append({"event": "columns", "columns": columns}, durable=False)
            self._columns = columns
        self._append({"row": [trial, *kept(row).values(), round(self._clock(), 3)]}, durable=False)

    def close(self) -> None:
        """Close the file; the journal can be opened again."""
        self._file.close()


def _damaged(path: Path, line: int, why: object) -> StoreError:
    return StoreError(
        f"{path} is damaged at line {line} ({why}); move the file aside, or cut it there to keep what stands before"
    )


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Line numbers and lines, one at a time: a journal of a million rows is never whole in memory."""
    for number, line in enumerate(file, start=1):
        # What follows the last line's end was torn by a killed writer: that event never happened.
        if line.endswith(b"\n"):
            yield number, line


def _parsed(lines: list[tuple[int, bytes]]) -> list[Any] | None:
    """What stands in some lines, parsed at once, which takes half the time; None where a line is not one event."""
    if all(line.startswith(b"{") and line.endswith(b"}\n") for _, line in lines):
        with contextlib.suppress(ValueError):
            events = json.loads(b"[" + b",".join(line for _, line in lines) + b"]")
            return events if len(events) == len(lines) else None
    return None


def _events(path: Path, but: bytes = b"\n") -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and what stands there; lines that start with `but` are left out, as empty ones are."""
    with path.open("rb") as file:
        lines = ((number, line) for number, line in _lines(file) if not line.startswith((b"\n", but)))
        while some := list(itertools.islice(lines, 256)):
            events = _parsed(some)
            for place, (number, line) in enumerate(some):
                try:
                    event = json.loads(line) if events is None else events[place]
                except ValueError as error:
                    raise _damaged(path, number, error) from None
                if not isinstance(event, dict) or not ("event" in event or "row" in event):
                    raise _damaged(path, number, "neither an event nor a row")
                yield number, event


def read_entries(path: Path) -> Iterator[tuple[list[str], Any]]:
    """As read_events, but rows as they stand: the names of a row's values, and [trial, value, ...]; no names: an event.

    Raises:
        StoreError: as read_events.
    """
    columns: list[str] = []
    try:
        for line, event in _events(path):
            if event.get("event") == "columns":
                columns = event["columns"]
            elif "row" in event:
                row = event["row"]
                if not isinstance(row, list) or not columns or len(row) != len(columns) + 1:
                    values = len(row) - 1 if isinstance(row, list) else 0
                    raise _damaged(path, line, f"a row of {values} values for {len(columns)} columns")
                yield columns, row
                continue
            yield [], event
    except OSError as error:
        why = error.strerror or error
        raise StoreError(
            f"cannot read {path}: {why}; give a sweep's directory, the one with journal.jsonl{_below(path)}"
        ) from None


def _below(path: Path) -> str:
    """Names the sweeps below a directory that is none itself."""
    names = sorted(found.parent.name for found in path.parent.glob(f"*/{path.name}"))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; below this one are {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def read_events(path: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """Every event in order, rows as `{"event": "row", "trial": n, "epoch": ..., ...}`; a torn last line is left out.

    Args:
        path: the journal file.
        start: number of leading events to leave out (columns are still followed).

    Raises:
        StoreError: the file is missing, unreadable, or damaged before its last line.
    """
    for number, (columns, event) in enumerate(read_entries(path)):
        if number >= start:
            yield {"event": "row", "trial": event[0], **dict(zip(columns, event[1:], strict=True))} if columns else event
