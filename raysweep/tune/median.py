"""The median stopping rule: Ray Tune's decisions to the last bit, at a cost that hardly grows with what trials have told.

Ray Tune's own (2.60) averages all rows of all trials anew for each row: benchmarks/median_rule.py.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler


class _Curve:
    """What one trial has told: its best value, and since the grace period each epoch and value, in their order."""

    __slots__ = ("best", "epochs", "last", "values")

    def __init__(self) -> None:
        self.best: float | None = None
        self.last = 0  # the epoch where it is
        self.epochs, self.values = array("i"), array("d")

    def mean(self, epoch: int) -> float:
        """Of the values up to an epoch; NaN where there are none."""
        values = np.array(self.values)[np.array(self.epochs) <= epoch]
        # Not a running sum: numpy adds in pairs, and a difference in the last bit decides between equal trials.
        return float(np.mean(values)) if len(values) else math.nan


class MedianRule(FIFOScheduler):  # type: ignore[misc]
    """Stops a trial whose best value is worse than the median of the other trials' means up to its epoch.

    Golovin et al., Google Vizier, KDD 2017, section 3.2.2, as Ray Tune's MedianStoppingRule has it: only trials that have come
    to the epoch count, only epochs from the grace period on are in a mean, and a trial's end tells its last value again.

    Args:
        metric: of the rows.
        mode: `min` or `max`.
        grace_period: epochs that every trial gets.
        min_samples: other trials that must have a finite mean at an epoch before one is stopped there.
    """

    def __init__(self, metric: str, mode: str, grace_period: int, min_samples: int) -> None:
        super().__init__()
        self._metric, self._better = metric, max if mode == "max" else min
        self._grace_period, self._min_samples = grace_period, min_samples
        self._curves: dict[str, _Curve] = defaultdict(_Curve)
        # By epoch, of the trials that have come so far, ascending.
        self._means: dict[int, array[float]] = defaultdict(lambda: array("d"))
        self._stops = False

    def ask(self, key: str, epoch: int, value: float) -> dict[str, Any]:
        """Take a trial's row, once; on_trial_result() then has the answer. The best value and the cutoff that it compares."""
        curve = self._back_before(key, epoch)
        means = self._means[epoch]
        num = len(means)
        cutoff = (means[(num - 1) // 2] + means[num // 2]) / 2 if num else None
        best = self._add(curve, epoch, value)
        # Neither "worse" nor "not better": Ray Tune's words, which count where a value is NaN.
        self._stops = cutoff is not None and num >= self._min_samples and self._better(cutoff, best) != best
        return {"value": best, "cutoff": cutoff}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(self.STOP if self._stops else self.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        epoch = result["epoch"]
        self._add(self._back_before(trial.trial_id, epoch), epoch, result[self._metric])

    def _back_before(self, key: str, epoch: int) -> _Curve:
        """A trial's curve, as if it had not come to an epoch yet: one that is told again changes the means from there on."""
        curve = self._curves[key]
        for reached in range(epoch, curve.last + 1):
            mean, means = curve.mean(reached), self._means[reached]
            if math.isfinite(mean):
                means.pop(bisect_left(means, mean))
        curve.last = min(curve.last, epoch - 1)
        return curve

    def _add(self, curve: _Curve, epoch: int, value: float) -> float:
        """Take a value; the curve's best one."""
        curve.best = value if curve.best is None else self._better(curve.best, value)
        if epoch >= self._grace_period:
            curve.epochs.append(epoch)
            curve.values.append(value)
        for reached in range(curve.last + 1, epoch + 1):
            mean = curve.mean(reached)
            if math.isfinite(mean):
                insort(self._means[reached], mean)
        curve.last = epoch
        return float(curve.best)
