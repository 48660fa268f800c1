"""How a run's workers and its driver talk: small files in the trial's directory, which all of them share anyway.

Rank 0 appends rows, the driver asks to stop, and whoever fails leaves its traceback.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from raysweep.store.directory import write_atomically
from raysweep.store.journal import plain
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row


class Mailbox:
    """The messages of one run. Every file is written whole, or line by line and read up to the last whole line."""

    def __init__(self, trial_directory: Path) -> None:
        self._directory = trial_directory / "mail"
        self._offset = 0

    def open(self) -> None:
        """Make the mailbox, empty. Called by the driver before the workers start."""
        self.close()
        self._directory.mkdir(parents=True)
        self._offset = 0

    def close(self) -> None:
        """Delete the mailbox with all messages."""
        shutil.rmtree(self._directory, ignore_errors=True)

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

    def request_stop(self) -> None:
        """Driver: ask the workers to save and end at the next step boundary."""
        (self._directory / "stop").touch()

    def stop_requested(self) -> bool:
        return (self._directory / "stop").exists()

    def put_outcome(self, outcome: Outcome) -> None:
        """Rank 0: say how the run ended."""
        write_atomically(self._directory / "outcome.json", json.dumps(asdict(outcome)).encode())

    def outcome(self) -> Outcome | None:
        try:
            return Outcome(**json.loads((self._directory / "outcome.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def put_failure(self, rank: int, message: str, traceback_text: str) -> None:
        """Any worker: leave the error that ends the run."""
        content = {"time": time.time(), "rank": rank, "message": message, "traceback": traceback_text}
        write_atomically(self._directory / f"failure-{rank}.json", json.dumps(content).encode())

    def failure(self) -> tuple[str, str] | None:
        """The message and the traceback of the worker that failed first."""
        found = [json.loads(path.read_text(encoding="utf-8")) for path in self._directory.glob("failure-*.json")]
        first = min(found, key=lambda failure: failure["time"], default=None)
        return (first["message"], first["traceback"]) if first else None
