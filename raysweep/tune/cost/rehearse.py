"""Early stopping, rehearsed: the sweep's own rule on learning curves that are made up.

Nobody knows the curves of trials that have not run. Their ranks are drawn at random; in half of the plays every trial
keeps its rank, in the other half good and bad starts say less, and curves cross.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from raysweep.config import Sweep
from raysweep.tune.resume import Past
from raysweep.tune.schedulers import RecordingScheduler

_FALL = 0.5
"""Losses fall as epoch ** -0.5, from the first epoch to the eighth to about a third."""
_SPREAD = 0.8
"""Standard deviation of the logarithm of the trials' losses, where none is known."""


@dataclass(frozen=True)
class Known:
    """What a journal has told a scheduler before; arguments of RecordingScheduler.replay."""

    told: Sequence[tuple[str, dict[str, Any] | None]] = ()
    statuses: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, past: Past | None, to_run: Collection[str]) -> Known:
        """What is known of a sweep before the trials with the keys `to_run` go on."""
        if past is None:
            return cls()
        return cls(past.told, {key: "" if key in to_run else trial.status for key, trial in past.trials.items()})


class _NoRecorder:
    """Takes what a scheduler tells, and keeps nothing."""

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        pass

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        pass

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        pass

    def disk_failed(self, text: str) -> None:
        pass


class Rehearsal:
    """One play of the rule; `stops` is what simulate.play asks.

    Args:
        sweep: its scheduler and objective.
        keys: of the trials, in the order in which they start.
        known: what the scheduler knows before.
        crossing: whether curves cross.
        rng: draws the ranks.
    """

    def __init__(self, sweep: Sweep, keys: Sequence[str], known: Known, crossing: bool, rng: np.random.Generator) -> None:
        self._metric, self._mode = sweep.objective.metric, sweep.objective.mode
        self._scheduler = RecordingScheduler(sweep, _NoRecorder())
        self._scheduler.replay(known.told, known.statuses)
        self._trials = [SimpleNamespace(trial_id=key, config={"key": key}, status="RUNNING") for key in keys]
        self._added: set[int] = set()
        # A curve is level - fall * log(epoch), the logarithm of the loss. Of a trial that has rows it goes through the newest.
        levels = self._levels(known)
        drawn = rng.choice(list(levels.values()), len(keys)) if len(levels) > 2 else rng.normal(0, _SPREAD, len(keys))
        # Two trials never tie: a rule may treat equals in a way of its own.
        drawn += rng.normal(0, 1e-3, len(keys))
        falls = rng.uniform(0, 2 * _FALL, len(keys)) if crossing else np.full(len(keys), _FALL)
        self._curves = [
            (levels[key], _FALL) if key in levels else (float(level), float(fall))
            for key, level, fall in zip(keys, drawn, falls, strict=True)
        ]

    def _levels(self, known: Known) -> dict[str, float]:
        """By key the level of each trial that has a finite objective, from its newest row."""
        newest: dict[str, float] = {}
        for key, row in known.told:
            value = None if row is None else row.get(self._metric)
            if row is not None and value is not None:
                loss = 10 ** (-value / 10) if self._metric == "psnr" else value
                newest[key] = math.log(max(loss, 1e-12)) + _FALL * math.log(row["epoch"])
        return newest

    def loss(self, trial: int, epoch: int) -> float:
        """The made-up loss of a trial after an epoch."""
        level, fall = self._curves[trial]
        return math.exp(level - fall * math.log(epoch))

    def stops(self, trial: int, epoch: int) -> bool:
        """Whether the rule ends a trial at an epoch."""
        known = self._trials[trial]
        if trial not in self._added:
            self._added.add(trial)
            self._scheduler.on_trial_add(None, known)
        loss = self.loss(trial, epoch)
        value = -10 * math.log10(loss) if self._metric == "psnr" else loss
        row = {"epoch": epoch, self._metric: value}
        return self._scheduler.on_trial_result(None, known, {**row, "row": json.dumps(row)}) == "STOP"
