"""Ray Tune's events, passed on to the recorder; rows and decisions come through schedulers.py."""

from __future__ import annotations

import time
from typing import Any

from ray.tune import Callback

from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.search import NotSaved


class JournalCallback(NotSaved, Callback):  # type: ignore[misc]
    """Tells the recorder which trials start and which lose their actor for good."""

    def __init__(self, recorder: SweepRecorder) -> None:
        self._recorder = recorder
        self._began = time.monotonic()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._recorder.started(trial.trial_id)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        error = trial.get_error()
        text = str(error).strip().splitlines() if error else ["Ray lost the trial's process"]
        self._recorder.ended(trial.trial_id, "failed", {"text": text[-1], "traceback": str(error or "")})

    def unfinished_because(self, wall_time_s: float | None) -> str:
        """Why a sweep ended before its trials did: its budget, or an interruption."""
        spent = wall_time_s is not None and time.monotonic() - self._began >= wall_time_s
        return "budget" if spent else "interrupted"
