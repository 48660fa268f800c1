"""Going on with a single run: what the newest one of its name has left, and whether it is the same run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError, StoreError
from raysweep.experiment import Experiment, difference
from raysweep.store.directory import SweepDirectory, numbered_directories
from raysweep.store.journal import read_events
from raysweep.train.prepare import Prepared


@dataclass
class Earlier:
    """A run's journal, read for going on.

    Attributes:
        directory: where it lies.
        size: of the journal when it was read, bytes.
        experiment: its settings, with its newest number of epochs.
        data: the facts about its images.
        key: the trial's.
        last_epoch: the newest that has a row, 0 where none has.
        status: how it ended; "" where it has not: it runs, or was killed.
        reason: of the end.
    """

    directory: SweepDirectory
    size: int
    experiment: Experiment
    data: dict[str, Any]
    key: str
    last_epoch: int = 0
    status: str = ""
    reason: dict[str, Any] | None = None

    def is_over(self, epochs: int) -> bool:
        """Whether there is nothing left to train of so many epochs."""
        return self.status == "diverged" or (self.status == "completed" and self.last_epoch >= epochs)

    def is_in_use(self) -> bool:
        """Whether a process trains it now."""
        try:
            self.directory.check_free()
        except StoreError:
            return True
        return False

    def describe(self) -> str:
        """How it stands, for people."""
        how = {"": "was killed", "interrupted": "was interrupted"}.get(self.status, self.status)
        return f"{self.directory.path.name}/ {how} after epoch {self.last_epoch} of {self.experiment.train.epochs}"


def read_run(directory: SweepDirectory) -> Earlier | None:
    """What a run's directory knows; None where it holds no run, or one that ended before it began.

    Raises:
        StoreError: the journal is damaged.
    """
    if not directory.journal.exists():
        return None
    size = directory.journal.stat().st_size
    start: dict[str, Any] = {}
    found: Earlier | None = None
    for event in read_events(directory.journal):
        name = event["event"]
        if name == "start":
            if event.get("sweep"):
                return None
            start = event
        elif name == "trial":
            found = found or Earlier(directory, size, Experiment(), start.get("data") or {}, event["key"])
            found.experiment = Experiment.from_dict(start["experiment"], str(directory.journal))
        elif found is not None and name == "row":
            found.last_epoch = max(found.last_epoch, event["epoch"])
        elif found is not None and name == "run":
            found.status, found.reason = "", None
        elif found is not None and name == "end":
            found.status, found.reason = event["status"], event["reason"]
    return found


def runs(storage: Path, name: str) -> Iterator[Earlier]:
    """The runs of a name, newest first.

    Raises:
        StoreError: the journal of one is damaged.
    """
    return filter(None, map(read_run, numbered_directories(storage, name)))


def run_to_resume(storage: Path, name: str, prepared: Prepared) -> Earlier:
    """The newest run of a name, with these images and settings, to go on with; epochs and workers may differ.

    Raises:
        StoreError: there is no run of that name, or its journal is damaged.
        ConfigError: each trains other images or settings.
    """
    newest: Earlier | None = None
    for earlier in runs(storage, name):
        if earlier.key == prepared.key:
            return earlier
        newest = newest or earlier
    if newest is None:
        raise StoreError(f"there is no run to go on with in {storage / name}; leave out --resume, or set --storage and --name")
    raise ConfigError(
        f"{newest.directory.path.name}/ is another run: {_why_other(newest, prepared)}; "
        "leave out --resume to start a new one, or set --name"
    )


def _why_other(earlier: Earlier, prepared: Prepared) -> str:
    fingerprint = prepared.facts["fingerprint"]
    if earlier.data.get("fingerprint") != fingerprint:
        return f"the images differ ({earlier.data.get('fingerprint')}, now {fingerprint})"
    changed = "the code of its model, or the meaning of raysweep's training, has changed"
    return difference(earlier.experiment, prepared.experiment) or changed
