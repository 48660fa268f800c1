"""From a plan to its cost: which sizes its trials have, what each costs here, and what that makes of the sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysweep.cluster.resources import Allocation, Available
from raysweep.report.tables import duration, number
from raysweep.space import significant
from raysweep.tune.cost.calibrate import Calibration, calibrate
from raysweep.tune.cost.left import last_epoch
from raysweep.tune.cost.predict import START_S, TRIAL_S, WORKERS_TRIAL_S, Interval, Prediction, Rehearse, Rule, predict
from raysweep.tune.cost.rehearse import Known, Rehearsal
from raysweep.tune.cost.simulate import Load
from raysweep.tune.cost.sizes import Cost, Size, sizes_of, unknown_trials
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.resume import Past, Work

AROUND_S = 13.7
"""Beside starting Ray: Python's imports, the images read, and the report at the end. Measured in the default sweep on 2 cores."""

_LEAST_HOURS = 0.1

Calibrate = Callable[[Sequence[Size], Allocation, Available, int], Calibration]


@dataclass(frozen=True)
class Estimate:
    """What is left of a sweep will cost so much.

    Attributes:
        prediction: None where nothing could be measured.
        costs: of the trials that run, by key.
        calibration: what it follows from.
        guessed: trials that the search has yet to think of; random draws stood in for them.
        is_stopping: whether a scheduler may end trials early.
    """

    prediction: Prediction | None
    costs: Mapping[str, Cost]
    calibration: Calibration
    guessed: int
    is_stopping: bool

    def describe(self, around_s: float) -> str:
        """The prediction for people; `around_s`: seconds before the trials and after them."""
        if self.prediction is None:
            return f"No estimate: {self.calibration.describe()}."
        wall = _span(self.prediction.wall_s)
        until = ", the upper end if no trial is stopped early" if self.is_stopping else ""
        drawn = f"; random draws stand for the {self.guessed} trials to think of" if self.guessed else ""
        return (
            f"Wall time {wall}, and {duration(around_s)} to start and to write the report; "
            f"{_device_time(self.prediction.device_s)}{until}. "
            f"{self.calibration.describe().capitalize()}{drawn}."
        )


def _span(seconds: Interval) -> str:
    return f"{duration(seconds.low)} to {duration(seconds.high)} (about {duration(seconds.expected)})"


def _device_time(seconds: Interval) -> str:
    """In hours, as budget.device_hours is given; where they are too few to tell anybody something, in seconds and minutes."""
    if seconds.high < _LEAST_HOURS * 3600:
        return f"device time {_span(seconds)}"
    low, expected, high = (number(significant(s / 3600, 2)) for s in (seconds.low, seconds.expected, seconds.high))
    return f"{low} to {high} device-hours (about {expected})"


def estimate(
    plan: Plan,
    past: Past | None,
    todo: Work,
    allocation: Allocation,
    available: Available,
    at_once: int,
    own_processes: bool,
    measured: Calibrate = calibrate,
) -> Estimate:
    """Measure and predict; on the cluster that this process is connected to.

    Args:
        plan: the sweep's trials.
        past: what the journal knows; None for a new sweep.
        todo: which of them run.
        allocation: what a trial holds.
        available: what the cluster has.
        at_once: trials that run at a time.
        own_processes: whether each trial starts processes of its own, as an elastic one does, even with a share of one worker.
        measured: does the measuring.

    Raises:
        ClusterError: there is no room to measure in.
    """
    guessed = unknown_trials(plan)
    trials = [*todo.to_run, *guessed]
    sizes, places = sizes_of(plan, trials)
    calibration = measured(sizes, allocation, available, min(at_once, len(trials)))
    is_stopping = plan.sweep.scheduler.name != "none"
    if not calibration.costs:
        return Estimate(None, {}, calibration, len(guessed), is_stopping)
    costs = [calibration.costs[place] for place in places]
    before_s = WORKERS_TRIAL_S if own_processes else TRIAL_S
    loads = [_load(plan, past, trial, cost, before_s, allocation) for trial, cost in zip(trials, costs, strict=True)]
    prediction = predict(
        loads,
        at_once,
        calibration.spread,
        _rehearse(plan, past, trials) if is_stopping else None,
        plan.sweep.budget,
        past.device_seconds if past else 0.0,
        max(START_S, calibration.ready_s),
        plan.sweep.search.seed,
    )
    by_key = {trial.key: cost for trial, cost in zip(trials, costs, strict=True)}
    return Estimate(prediction, by_key, calibration, len(guessed), is_stopping)


def _load(plan: Plan, past: Past | None, trial: PlannedTrial, cost: Cost, before_s: float, allocation: Allocation) -> Load:
    epochs = plan.sweep.experiment.train.epochs
    return Load(cost.epoch_s, epochs, min(last_epoch(past, trial) + 1, epochs), before_s, allocation.max_workers)


def _rehearse(plan: Plan, past: Past | None, trials: Sequence[PlannedTrial]) -> Rehearse:
    keys = [trial.key for trial in trials]
    known = Known.of(past, set(keys))

    def rehearse(chosen: Sequence[int], crossing: bool, rng: np.random.Generator) -> Rule:
        return Rehearsal(plan.sweep, [keys[i] for i in chosen], known, crossing, rng).stops

    return rehearse
