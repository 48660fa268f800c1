"""What a sweep will cost: wall time and device-hours as intervals, from what its epochs cost; no Ray in here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysweep.config import Budget
from raysweep.tune.cost.simulate import Load, Played, play

START_S = 4.0
"""From the journal's `start` to the first trial: the import of Ray Tune, and of torch in the actors. Measured, like the rest, in
the default sweep on 2 cores: 4.2 s."""
FIRST_TRIAL_S = 1.0
"""More for each actor's first trial: the first convolutions. Measured: 1.0 s."""
TRIAL_S = 0.2
"""What a trial takes beside its epochs: handed out, model built, last checkpoint. Measured there: 0.1 to 0.4 s."""
WORKERS_TRIAL_S = 12.0
"""The same for a trial with several workers, whose processes start anew: 12.0 s for 2 workers on 2 cores, where imports take
most of it (benchmarks/train_overhead.py)."""
END_S = 0.2
"""From the last trial's end to the journal's `finish`. Measured: 0.1 s."""

_MOST_PLAYS, _LEAST_PLAYS = 200, 20
_PLAYING_S = 2.0
"""No play begins after so long, beyond the least."""
_MOST_TRIALS = 2000
"""Of longer lists so many trials are drawn and count for all. ASHA lets the first trials on for want of others to compare them
with, so that comes out high: by a tenth for twice as many trials (simulated)."""

Rule = Callable[[int, int], bool]
Rehearse = Callable[[Sequence[int], bool, np.random.Generator], Rule]
"""Makes a rule for one play from the places of the trials that are played, whether their curves cross, and random numbers."""


@dataclass(frozen=True)
class Interval:
    """Where a figure will lie: with early stopping from the 5th percentile of the plays to "no trial is stopped"."""

    low: float
    expected: float
    high: float

    def divided(self, by: float) -> Interval:
        """All three, such as seconds made hours."""
        return Interval(self.low / by, self.expected / by, self.high / by)


@dataclass(frozen=True)
class Prediction:
    """What a sweep's trials will cost from the journal's `start` to its `finish`.

    Attributes:
        wall_s: seconds.
        device_s: seconds of all epochs, each times its workers; what budget.device_hours counts.
    """

    wall_s: Interval
    device_s: Interval

    def event(self) -> dict[str, Any]:
        """As the journal's `start` has it: low, expected, high."""
        wall, hours = self.wall_s, self.device_s.divided(3600)
        return {
            "wall_s": [round(s, 1) for s in (wall.low, wall.expected, wall.high)],
            "device_hours": [float(f"{h:.4g}") for h in (hours.low, hours.expected, hours.high)],
        }


def predict(
    loads: Sequence[Load],
    at_once: int,
    spread: tuple[float, float] = (1.0, 1.0),
    rehearse: Rehearse | None = None,
    budget: Budget | None = None,
    used_device_s: float = 0.0,
    start_s: float = START_S,
    seed: int = 0,
) -> Prediction:
    """Play the trials in their order.

    Args:
        loads: what is left of each trial.
        at_once: trials that run at a time.
        spread: the shortest and the longest that an epoch may take, as parts of what was measured.
        rehearse: makes the early stopping's rule for a play; None: no trial is stopped.
        budget: ends the sweep.
        used_device_s: what earlier starts of the sweep have used of its device-hours.
        start_s: until the first trial begins.
        seed: of the plays.
    """
    if not loads:
        return Prediction(Interval(0, 0, 0), Interval(0, 0, 0))
    budget = budget or Budget()
    ends_at = math.inf if budget.wall_time_s is None else budget.wall_time_s
    may_use = math.inf if budget.device_hours is None else max(0.0, budget.device_hours * 3600 - used_device_s)

    def played(chosen: Sequence[int], factor: float, rule: Rule | None) -> Played:
        weight = len(loads) / len(chosen)
        part = [loads[i].scaled(factor) for i in chosen]
        free_at = [start_s + FIRST_TRIAL_S] * at_once
        stops = rule or (lambda _trial, _epoch: False)
        limit = start_s + (ends_at - start_s) / weight
        result = play(part, free_at, stops, wall_s=limit, device_s=may_use / weight)
        wall = start_s + (result.wall_s - start_s) * weight + END_S
        return Played(wall, result.device_s * weight, result.last_epochs)

    everything = range(len(loads))
    whole = [played(everything, factor, None) for factor in (spread[0], 1.0, spread[1])]
    if rehearse is None:
        return Prediction(_interval([p.wall_s for p in whole]), _interval([p.device_s for p in whole]))
    rng = np.random.default_rng(seed)
    most = max(_MOST_TRIALS, 4 * at_once)
    plays: list[Played] = []
    until = time.monotonic() + _PLAYING_S
    least = max(_LEAST_PLAYS // 3, min(_LEAST_PLAYS, 6000 // len(loads)))  # long lists spread less
    while len(plays) < least or (len(plays) < _MOST_PLAYS and time.monotonic() < until):
        chosen = everything if len(loads) <= most else sorted(rng.choice(len(loads), most, replace=False).tolist())
        rule = rehearse(chosen, len(plays) % 2 == 1, rng)
        plays.append(played(chosen, float(rng.uniform(*spread)), rule))
    return Prediction(
        _stopped([p.wall_s for p in plays], whole[2].wall_s), _stopped([p.device_s for p in plays], whole[2].device_s)
    )


def _interval(values: Sequence[float]) -> Interval:
    return Interval(min(values), values[1], max(values))


def _stopped(values: Sequence[float], unstopped: float) -> Interval:
    low, expected = (float(v) for v in np.percentile(values, (5, 50)))
    return Interval(low, expected, max(unstopped, expected))
