"""The end of trials with several workers, seen to by the sweep's driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raysweep.cluster.capacity import free_leftovers
from raysweep.train.mailbox import end_attempts
from raysweep.tune.search import NotSaved

_SETTLE_S = 3.0  # what Ray may take to give the CPUs back by itself
_GRACE_S = 60.0  # what the workers may take to a step's end and a checkpoint
_LOOK_S = 1.0


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
        self._free_at: dict[str, float] = {}
        self._next_look = 0.0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._free_at.pop(trial.config["key"], None)  # a member of a population, in its next segment

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        key = trial.config["key"]
        end_attempts(self._trials / key)
        self._free_at[key] = self._clock() + _GRACE_S

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = self._clock()
        if not self._free_at or now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for key, at in self._free_at.items():
            if not (self._trials / key / "mail").exists():
                self._free_at[key] = min(at, now + _SETTLE_S)
        due = [key for key, at in self._free_at.items() if at <= now]
        if due:
            free_leftovers(due)
        for key in due:
            del self._free_at[key]
