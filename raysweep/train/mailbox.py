"""How a run's workers and its driver talk: small files in the trial's directory, which all of them share anyway.

Rank 0 appends rows and keeps its pulse, the driver says what it wants, and whoever fails leaves its traceback.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import TrialError
from raysweep.store.directory import write_atomically
from raysweep.store.journal import plain
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row, Wishes

_PULSE = struct.Struct("<qqqdd")


@dataclass(frozen=True)
class Pulse:
    """How far an attempt has come.

    Attributes:
        first_step: global step that it went on from.
        step: global step done last.
        total_steps: of the whole run.
        first_step_at, step_at: when the attempt's first step and the last one were done, seconds since 1970; 0: not yet.
    """

    first_step: int
    step: int
    total_steps: int
    first_step_at: float
    step_at: float

    @property
    def seconds_per_step(self) -> float | None:
        """The pace since the attempt's first step; None before there are two."""
        steps = self.step - self.first_step - 1
        return (self.step_at - self.first_step_at) / steps if steps > 0 else None


@dataclass(frozen=True)
class WorkerError:
    """An error in a worker: the exception's type and text, its traceback."""

    type: str
    message: str
    traceback: str


def mail_directory(trial_directory: Path, attempt: int) -> Path:
    """Where the messages of an attempt lie."""
    return trial_directory / "mail" / str(attempt)


def end_attempts(trial_directory: Path) -> None:
    """Ask the workers of a trial to save and end, and give up what still stands at the gate; for who is not its driver.

    A full disk takes no mail: then the mailbox is set aside, which ends them too, without a checkpoint.
    """
    for directory in trial_directory.glob("mail/[0-9]*"):
        try:
            if (directory / "open").exists():
                write_atomically(directory / "end", b"interrupted")
            else:
                shutil.rmtree(directory, ignore_errors=True)
        except FileNotFoundError:
            continue  # its driver has closed it in the meantime
        except OSError:
            _set_aside(directory)


def _set_aside(directory: Path) -> None:
    with contextlib.suppress(OSError):  # where nothing can be renamed, the workers cannot write and end by that
        directory.rename(directory.with_name(f"left-{directory.name}"))


class Mailbox:
    """The messages of one attempt. Every file is written whole, or line by line and read up to the last whole line.

    Each attempt has a mailbox of its own, so that a worker that was taken for dead cannot speak into the next attempt.
    """

    def __init__(self, trial_directory: Path, attempt: int) -> None:
        self._directory = mail_directory(trial_directory, attempt)
        self._offset = 0
        self._saves_wished = self._saves_seen = 0
        self._pulse: io.FileIO | None = None
        self._first_step = self._total_steps = 0
        self._first_step_at = 0.0

    def open(self) -> None:
        """Make the mailbox, empty. Called by the driver before the workers start."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self._offset = 0

    def give_up(self) -> None:
        """Delete the mailbox: who still looks into it ends."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def set_aside(self) -> None:
        """Driver: as give_up(), but its rows stay for the next driver (left.py)."""
        _set_aside(self._directory)

    def close(self) -> None:
        """Delete the mailbox with all messages, and those of the other attempts."""
        shutil.rmtree(self._directory.parent, ignore_errors=True)

    def put_row(self, row: Row) -> None:
        """Rank 0: hand over a row."""
        with (self._directory / "rows.jsonl").open("ab") as file:
            file.write(json.dumps(plain(row)).encode() + b"\n")

    def new_rows(self) -> list[Row]:
        """Driver: the rows that came since the last call."""
        try:
            with (self._directory / "rows.jsonl").open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]

    def let_in(self) -> None:
        """Driver: open the gate (gate.py): the workers may start."""
        (self._directory / "open").touch()

    def is_ready(self) -> bool:
        """Driver: whether a trainer stands at the gate."""
        return (self._directory / "ready").exists()

    def request_end(self, end: str) -> None:
        """Driver: ask the workers to save and end at the next step boundary, as `interrupted` or `resized`."""
        write_atomically(self._directory / "end", end.encode())

    def request_save(self) -> None:
        """Driver: ask the workers to save a checkpoint and go on."""
        self._saves_wished += 1
        write_atomically(self._directory / "save", str(self._saves_wished).encode())

    def wishes(self) -> Wishes:
        """Rank 0: what the driver asks for; each wish to save is told once.

        Raises:
            TrialError: the mailbox is gone: the driver has given this attempt up.
        """
        if not self._directory.exists():
            raise TrialError("the driver of this run has gone on without these workers", "")
        saves = int(self._read("save") or 0)
        is_new = saves > self._saves_seen
        self._saves_seen = saves
        return Wishes(self._read("end"), is_new)

    def _read(self, name: str) -> str:
        try:
            return (self._directory / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def put_began(self, first_step: int, total_steps: int) -> None:
        """Rank 0: training starts."""
        self._first_step, self._total_steps = first_step, total_steps
        self._pulse = io.FileIO(self._directory / "pulse", "w")
        os.pwrite(self._pulse.fileno(), _PULSE.pack(first_step, first_step, total_steps, 0.0, 0.0), 0)

    def put_step(self, step: int) -> None:
        """Rank 0: a step is done. One write of 40 bytes into an open file, some microseconds."""
        now = time.time()
        self._first_step_at = self._first_step_at or now
        assert self._pulse is not None, "put_began comes first"
        os.pwrite(self._pulse.fileno(), _PULSE.pack(self._first_step, step, self._total_steps, self._first_step_at, now), 0)

    def pulse(self) -> Pulse | None:
        """Driver: how far the attempt has come; None before training has started."""
        try:
            content = (self._directory / "pulse").read_bytes()
        except FileNotFoundError:
            return None
        return Pulse(*_PULSE.unpack(content)) if len(content) == _PULSE.size else None

    def put_place(self, rank: int, node: str) -> None:
        """Any worker: say on which machine and in which process it runs."""
        write_atomically(self._directory / f"worker-{rank}.json", json.dumps({"node": node, "pid": os.getpid()}).encode())

    def places(self) -> dict[int, dict[str, Any]]:
        """Driver: the machine (Ray's node id) and the process of each rank that has come up."""
        found = sorted(self._directory.glob("worker-*.json"))
        return {int(path.stem.removeprefix("worker-")): json.loads(path.read_text(encoding="utf-8")) for path in found}

    def put_outcome(self, outcome: Outcome) -> None:
        """Rank 0: say how the attempt ended."""
        write_atomically(self._directory / "outcome.json", json.dumps(asdict(outcome)).encode())

    def outcome(self) -> Outcome | None:
        text = self._read("outcome.json")
        return Outcome(**json.loads(text)) if text else None

    def put_failure(self, rank: int, error: BaseException, traceback_text: str) -> None:
        """Any worker: leave the error that ends the attempt."""
        fields = asdict(WorkerError(type(error).__name__, str(error), traceback_text))
        write_atomically(self._directory / f"failure-{rank}.json", json.dumps({"time": time.time(), **fields}).encode())

    def failure(self) -> WorkerError | None:
        """The error of the worker that failed first."""
        found = [json.loads(path.read_text(encoding="utf-8")) for path in self._directory.glob("failure-*.json")]
        first = min(found, key=lambda failure: failure["time"], default=None)
        return WorkerError(first["type"], first["message"], first["traceback"]) if first else None
