"""A scheduler of the user's own, as Ray Tune calls it. What it may be is protocols.py's; who records it is schedulers.py."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import FIFOScheduler

from raysweep.config import Sweep
from raysweep.tune.own import OwnCodeError, decided, make_scheduler
from raysweep.tune.search import worst

_OURS = ("rule", "epoch", "metric", "value", "action", "trial", "event", "time")


class OwnRule(FIFOScheduler):  # type: ignore[misc]
    """Stops a trial when the user's rule says so.

    Attributes:
        fault: the error of the user's code. From then on no trial is stopped, and the engine ends the sweep.

    Raises:
        ConfigError: the factory cannot be used.
    """

    def __init__(self, sweep: Sweep) -> None:
        super().__init__()
        self._own, self._name = make_scheduler(sweep), sweep.scheduler.name
        self._worst = worst(sweep.objective.mode)
        self._stops = False
        self.fault: OwnCodeError | None = None

    def ask(self, key: str, epoch: int, value: float) -> dict[str, Any]:
        """Ask the rule, once for each row; on_trial_result() then has its answer. The fields of its reason."""
        self._stops, reason = False, None
        if self.fault is None:
            try:
                reason = decided(self._own, self._name, key, epoch, None if value == self._worst else value)
            except OwnCodeError as error:
                self.fault = error
        self._stops = reason is not None
        return {name: field for name, field in (reason or {}).items() if name not in _OURS}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(self.STOP if self._stops else self.CONTINUE)
