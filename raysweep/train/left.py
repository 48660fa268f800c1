"""Rows that no driver has taken: workers train on for a while when theirs is killed, and only the last row is in a checkpoint."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from raysweep.train.runtime import Row

_FILE = "rows-left.jsonl"


class LeftRows:
    """Takes a run's rows, and tells those that an earlier driver has left in the mail before the first of them.

    Only epochs that are not trained again are told so: those before the checkpoint's own row, which comes first. Making it
    gives the earlier attempts up: their workers end when they next look into their mail.

    Args:
        trial_directory: of the trial.
        on_row: takes the rows; of the earlier driver's, those that it had told are among them.
    """

    def __init__(self, trial_directory: Path, on_row: Callable[[Row], None]) -> None:
        keep_rows(trial_directory)
        self._file, self._on_row = trial_directory / _FILE, on_row
        self._is_told = not self._file.exists()

    def __call__(self, row: Row) -> None:
        if not self._is_told:
            for left in self._read():
                if left["epoch"] < row["epoch"]:
                    self._on_row({**left, "pause_s": 0.0, "redone_steps": 0})
            self._file.unlink()
            self._is_told = True
        self._on_row(row)

    def _read(self) -> list[Row]:
        by_epoch: dict[int, Row] = {}
        for line in filter(None, _whole_lines(self._file)):
            try:
                row = json.loads(line)
            except ValueError:  # torn by a full disk or a kill: its mailbox was still there, and is written behind it
                continue
            by_epoch[row["epoch"]] = row
        return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def keep_rows(trial_directory: Path) -> None:
    """Give up a trial's mail, its rows in a file of their own until they are told: who does that may be killed before.

    Raises:
        OSError: the disk does not take the rows; then they stay where they are.
    """
    mail = trial_directory / "mail"
    for directory in mail.glob("left-*"):  # by a driver that was killed in here
        _keep(directory, trial_directory / _FILE)
    for directory in mail.glob("[0-9]*"):
        _keep(directory.rename(mail / f"left-{directory.name}"), trial_directory / _FILE)
    with contextlib.suppress(OSError):
        mail.rmdir()


def _keep(mailbox: Path, kept: Path) -> None:
    rows = _whole_lines(mailbox / "rows.jsonl")
    if rows:
        with kept.open("ab") as file:
            file.write(b"\n" + b"\n".join(rows) + b"\n")  # what was torn before stays a line of its own
    shutil.rmtree(mailbox, ignore_errors=True)


def _whole_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        return []
