"""The end of trials with several workers, seen to by the sweep's driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune import Callback

from raysweep.train.mailbox import end_attempts
from raysweep.tune.search import NotSaved


class EndWorkers(NotSaved, Callback):  # type: ignore[misc]
    """Asks the workers of a trial that has been stopped to save and end, beside what its actor does.

    Ray Tune ends a stopped trial's actor at once, and the process then waits for its trainer without a chance to ask the
    workers for their end: they held their CPUs until the sweep ended (seen with Ray 2.60, one stop in two).

    Args:
        trials: the directory of all trials' directories.
    """

    def __init__(self, trials: Path) -> None:
        self._trials = trials

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        end_attempts(self._trials / trial.config["key"])
