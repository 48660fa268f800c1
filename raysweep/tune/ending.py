"""The end of trials with several workers, seen to by the sweep's driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raysweep.cluster.capacity import free_leftovers
from raysweep.train.mailbox import end_attempts
from raysweep.tune.search import NotSaved

_SETTLE_S = 3.0  # what Ray may take to give the CPUs back by itself
_QUIET_S = 20.0  # workers that have left no sign for so long have ended, or died with their trainer
_GRACE_S = 120.0  # what they may take in all to a step's end and a checkpoint
_LOOK_S = 1.0


@dataclass
class _Ended:
    """A trial that has ended, and until when its workers have time."""

    free_at: float
    latest: float
    signs: float = 0.0

    def look(self, mail: Path, now: float) -> None:
        signs = 0.0
        for path in mail.glob("*/pulse"):
            with suppress(OSError):  # its driver closes the mail at any moment
                signs = max(signs, path.stat().st_mtime)
        if not mail.exists():
            self.free_at = min(self.free_at, now + _SETTLE_S)
        elif signs != self.signs:
            self.signs, self.free_at = signs, min(now + _QUIET_S, self.latest)


class EndWorkers(NotSaved, Callback):  # type: ignore[misc]
    """Sees to it that the CPUs of a trial that has ended come back while others run.

    Ray Tune ends the actor of a stopped trial at once. Its process then waits for its trainer without a chance to ask the
    workers for their end, or takes the trainer along, and Ray keeps the CPUs until its job ends (seen with Ray 2.60). So the
    driver asks the workers too, and frees what is left when they have ended.

    Args:
        trials: the directory of all trials' directories.
        clock: seconds.
    """

    def __init__(self, trials: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._trials, self._clock = trials, clock
        self._open: dict[str, _Ended] = {}
        self._next_look = 0.0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._open.pop(trial.config["key"], None)  # a member of a population, in its next segment

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        key, now = trial.config["key"], self._clock()
        end_attempts(self._trials / key)
        self._open[key] = _Ended(now + _QUIET_S, now + _GRACE_S)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = self._clock()
        if not self._open or now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for key, ended in self._open.items():
            ended.look(self._trials / key / "mail", now)
        due = [key for key, ended in self._open.items() if ended.free_at <= now]
        if due:
            free_leftovers(due)
        for key in due:
            del self._open[key]
