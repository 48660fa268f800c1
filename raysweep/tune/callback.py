"""Ray Tune's events, passed on to the recorder, and the sweep's own ends; rows and decisions come through schedulers.py."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray.tune import Callback, Stopper
from ray.tune.progress_reporter import TrialProgressCallback

from raysweep.cluster.capacity import free_leftovers
from raysweep.config import Budget
from raysweep.train.failures import classify
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.search import NotSaved


class JournalCallback(NotSaved, Callback):  # type: ignore[misc]
    """Tells the recorder which trials start and which lose their actor for good."""

    def __init__(self, recorder: SweepRecorder) -> None:
        self._recorder = recorder

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._recorder.started(trial.trial_id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # Ray Tune keeps averages of every number that a trial has told, some 20 KB a trial, and writes them all at the end.
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        free_leftovers([trial.config["key"]])
        text = _why(trial)
        last = text.splitlines()[-1] if text else "Ray lost the trial's process"
        if classify("", text, draining=False) == "disk":
            self._recorder.disk_failed(f"a trial's process ended: {last}; mend that disk")
        else:
            self._recorder.ended(trial.trial_id, "failed", {"text": last, "traceback": text})


def _why(trial: Any) -> str:
    """The last error of a trial's actor as Ray Tune has just written it; its get_error() looks where that is copied to later."""
    try:
        return Path(trial.error_file or "").read_text(encoding="utf-8", errors="replace").rpartition("Failure # ")[2].strip()
    except OSError:
        return ""


class TuneLines(NotSaved, TrialProgressCallback):  # type: ignore[misc]
    """Ray Tune's own lines about trials, which it adds by itself where it is given none, and then remembers every trial."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        super().on_trial_complete(iteration, trials, trial, **info)
        for kept in vars(self).values():
            if isinstance(kept, dict):
                kept.pop(trial, None)
            elif isinstance(kept, set):
                kept.discard(trial)


class SweepEnd(NotSaved, Stopper):  # type: ignore[misc]
    """Ends a sweep before its trials do: on Ctrl-C, for a fault, or when its budget is spent.

    Attributes:
        reason: `interrupted`, `budget`, or None while neither has happened.

    Args:
        budget: of the sweep.
        recorder: knows what was spent and reached, and is told why the sweep ends.
        clock: seconds.
        fault: the error of the user's own searcher or scheduler, or of the disk; None where there is none.
    """

    def __init__(
        self,
        budget: Budget,
        recorder: SweepRecorder,
        clock: Callable[[], float] = time.monotonic,
        fault: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        self.reason: str | None = None
        self._fault = fault
        self._budget, self._recorder, self._clock = budget, recorder, clock
        self._until = None if budget.wall_time_s is None else clock() + budget.wall_time_s

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self._fault() is not None:
            self.reason = self._recorder.why_ended = "interrupted"
        if self.reason is None:
            self._recorder.why_ended = self._spent()
            self.reason = "budget" if self._recorder.why_ended else None
        return self.reason is not None

    def _spent(self) -> str:
        if self._until is not None and self._clock() >= self._until:
            return "budget.wall_time_s was spent"
        hours, target = self._budget.device_hours, self._budget.target
        if hours is not None and self._recorder.device_seconds >= hours * 3600:
            return "budget.device_hours was spent"
        best = self._recorder.best()
        if target is not None and best is not None and best.best is not None:
            is_reached = best.best <= target if self._recorder.plan.sweep.objective.mode == "min" else best.best >= target
            return f"budget.target was reached by trial {best.trial.number}" if is_reached else ""
        return ""

    @contextlib.contextmanager
    def on_interrupt(self, say: Callable[[str], None]) -> Iterator[None]:
        """For the time of a block: the first Ctrl-C ends the sweep cleanly, a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def interrupted(_number: int, _frame: Any) -> None:
            self.reason = self._recorder.why_ended = "interrupted"
            signal.signal(signal.SIGINT, before)
            say("Ctrl-C: ending the sweep; once more ends it at once")

        signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
