"""The sample ledger: which worker trained on which samples in which step, and the proof that none was lost or repeated.

`python -m raysweep.train.ledger DIR` checks the ledger of a trial's directory. Written with train.ledger.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from raysweep.data.dataset import Dataset
from raysweep.data.order import num_steps
from raysweep.errors import StoreError
from raysweep.store.disk import disk_error
from raysweep.train.progress import Progress
from raysweep.train.runtime import Runtime
from raysweep.train.step import Part

_FILE = re.compile(r"(\d+)-(\d+)\.jsonl")


def next_attempt(directory: Path) -> int:
    """The first number that no attempt of this trial has, from 1."""
    return max((attempt for attempt, _, _ in _files(directory)), default=0) + 1


class Ledger:
    """One worker's lines of one attempt, in `ledger/ATTEMPT-RANK.jsonl` of the trial's directory. Made by all ranks alike.

    A step is one write to the operating system: what a killed process had noted is there.

    Args:
        runtime: rank, and the trial's directory.
        dataset: the training samples.
        batch_size: the global batch.
        progress: where the attempt starts.

    Raises:
        StoreError: it cannot be written; also from `note`.
    """

    def __init__(self, runtime: Runtime, dataset: Dataset, batch_size: int, progress: Progress) -> None:
        attempt = runtime.broadcast(next_attempt(runtime.directory) if runtime.rank == 0 else 0)
        self._path = runtime.directory / "ledger" / f"{attempt:05d}-{runtime.rank}.jsonl"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o644)
        except OSError as error:
            raise self._error(error) from error
        start: dict[str, Any] = {"start": progress.global_step, "world_size": runtime.world_size}
        if runtime.rank == 0:
            start |= {"batch_size": batch_size, "train": dataset.train.tolist()}
        self._append(start)

    def note(self, progress: Progress, plan: Part) -> None:
        """Write down a step that was just taken.

        Args:
            progress: the position before the step: steps count from 0.
            plan: what this worker did of it. A stand-in for an empty share counts nothing and is not noted.
        """
        samples = [int(i) for request in plan.requests for i in request.samples] if plan.num_samples else []
        self._append({"epoch": progress.epoch, "step": progress.step, "global_step": progress.global_step, "samples": samples})

    def _append(self, line: dict[str, Any]) -> None:
        raw = json.dumps(line).encode() + b"\n"
        try:
            while raw:
                raw = raw[os.write(self._file, raw) :]
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StoreError:
        told = f"cannot write the ledger {self._path}: {error}; set train.ledger to false"
        return disk_error(error, self._path) or StoreError(told)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class Taken:
    """One worker's part of one step that counts: the samples it trained on. Steps count from 0."""

    attempt: int
    rank: int
    epoch: int
    step: int
    global_step: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class History:
    """What a trial's ledger says.

    Attributes:
        train: the training samples.
        batch_size: the global batch.
        taken: the committed steps, in the order of attempts, ranks and steps.
        num_attempts: how often training was started.
        redone_steps: steps that an attempt took and a later one took again, because no checkpoint had them.
    """

    train: tuple[int, ...]
    batch_size: int
    taken: list[Taken]
    num_attempts: int
    redone_steps: int


@dataclass(frozen=True)
class Epoch:
    """One epoch of the committed history.

    Attributes:
        epoch: from 1.
        samples: how many were trained on, each time counted.
        lost, repeated: samples that are missing, and that are there more than once; strangers count as repeated.
        attempts: the attempts that took part in it.
        is_whole: whether its last step was taken.
    """

    epoch: int
    samples: int
    lost: tuple[int, ...]
    repeated: tuple[int, ...]
    attempts: tuple[int, ...]
    is_whole: bool


@dataclass(frozen=True)
class Report:
    """The epochs, and how many samples were lost and repeated in all of them."""

    epochs: list[Epoch]
    lost: int
    repeated: int


def committed(directory: Path) -> History:
    """The history that the weights follow from: each attempt counts up to the step that a later one started from.

    Args:
        directory: the trial's.

    Raises:
        StoreError: there is no ledger, or a line other than a killed worker's last cannot be read.
    """
    starts: dict[int, int] = {}
    facts: dict[str, Any] = {}
    lines: list[Taken] = []
    for attempt, rank, path in _files(directory):
        found = _lines(path)
        if not found:  # killed before it had begun
            continue
        first, *steps = found
        starts[attempt] = first["start"]
        facts = first if "train" in first else facts
        lines += [Taken(attempt, rank, s["epoch"], s["step"], s["global_step"], tuple(s["samples"])) for s in steps]
    if not facts:
        raise StoreError(f"there is no ledger in {directory}; it is written with train.ledger: true")
    ends = {a: min((start for later, start in starts.items() if later > a), default=None) for a in starts}
    taken = [line for line in lines if (end := ends[line.attempt]) is None or line.global_step < end]
    kept = {(line.attempt, line.global_step) for line in taken}
    redone = {(line.attempt, line.global_step) for line in lines} - kept
    return History(tuple(facts["train"]), facts["batch_size"], taken, len(starts), len(redone))


def check(history: History, epochs: Iterable[int] | None = None) -> Report:
    """Whether each training sample is there once in each epoch.

    Args:
        history: from committed().
        epochs: those that must be whole. None: all that there are, the last one as far as it went.
    """
    by_epoch: dict[int, list[Taken]] = defaultdict(list)
    for line in history.taken:
        by_epoch[line.epoch].append(line)
    last_step = num_steps(len(history.train), history.batch_size) - 1
    wanted = sorted(by_epoch) if epochs is None else list(epochs)
    found = []
    for number in wanted:
        lines = by_epoch[number]
        counts = Counter(sample for line in lines for sample in line.samples)
        expected = set(history.train)
        is_whole = max((line.step for line in lines), default=-1) == last_step
        is_cut = epochs is None and number == wanted[-1] and not is_whole
        lost = () if is_cut else tuple(sorted(expected - counts.keys()))
        repeated = tuple(sorted(sample for sample, n in counts.items() if n > 1 or sample not in expected))
        attempts = tuple(sorted({line.attempt for line in lines}))
        found.append(Epoch(number, counts.total(), lost, repeated, attempts, is_whole))
    return Report(found, sum(len(e.lost) for e in found), sum(len(e.repeated) for e in found))


def _files(directory: Path) -> list[tuple[int, int, Path]]:
    """Attempt, rank and path of each file of a ledger, in order."""
    matches = ((_FILE.fullmatch(path.name), path) for path in (directory / "ledger").glob("*.jsonl"))
    return sorted((int(match[1]), int(match[2]), path) for match, path in matches if match)


def _lines(path: Path) -> list[dict[str, Any]]:
    whole, _, _ = path.read_bytes().rpartition(b"\n")  # what has no newline never happened
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise StoreError(f"the ledger {path} is damaged: {error}") from error


def command(directory: Path) -> int:
    """Check that each sample was trained on once in each epoch, whatever happened to the workers.

    DIRECTORY is a trial's, trials/KEY.
    """
    from raysweep import console  # imports what a worker does not need

    history = committed(directory)
    report = check(history)
    out = console.console()
    for e in report.epochs:
        cut = "" if e.is_whole else "  (not finished)"
        tries = ", ".join(map(str, e.attempts))
        out.print(f"epoch {e.epoch}: samples {e.samples}, lost {len(e.lost)}, repeated {len(e.repeated)}, attempts {tries}{cut}")
    out.print(
        f"lost {report.lost}, repeated {report.repeated} in {len(report.epochs)} epochs of {len(history.train)} samples; "
        f"{history.num_attempts} attempts, {history.redone_steps} steps redone"
    )
    return 1 if report.lost or report.repeated else 0


if __name__ == "__main__":
    from raysweep.console import commandline, run

    run(commandline(command))
