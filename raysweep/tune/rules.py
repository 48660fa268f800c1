"""The rules that stop trials early, Ray Tune's own where they are fast enough, and what they are about to compare."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from raysweep.config import Sweep
from raysweep.tune.hyperband import Hyperband
from raysweep.tune.median import MedianRule
from raysweep.tune.own import is_own
from raysweep.tune.own_rule import OwnRule


def build(sweep: Sweep) -> TrialScheduler:
    """Ray Tune's scheduler for a sweep, which counts in epochs."""
    scheduler, objective = sweep.scheduler, sweep.objective
    common = {"time_attr": "epoch", "metric": objective.metric, "mode": objective.mode, "grace_period": scheduler.grace_period}
    epochs = max(sweep.experiment.train.epochs, scheduler.grace_period)
    halving = {"max_t": epochs, "reduction_factor": scheduler.reduction_factor}
    if scheduler.name == "asha":
        return AsyncHyperBandScheduler(**common, **halving)
    if scheduler.name == "hyperband":
        return Hyperband(sweep.search.seed, **common, **halving)
    if scheduler.name == "median":
        return MedianRule(objective.metric, objective.mode, scheduler.grace_period, scheduler.min_samples)
    if is_own(scheduler.name):
        return OwnRule(sweep)
    return FIFOScheduler()


def why_stopped(scheduler: TrialScheduler, trial: Any, epoch: int, value: float) -> dict[str, Any]:
    """The rung and the cutoff that a scheduler is about to compare a trial's result with; asked before it decides."""
    if isinstance(scheduler, AsyncHyperBandScheduler):
        bracket = scheduler._trial_info[trial.trial_id]
        which = {"bracket": scheduler.bracket(trial.trial_id)} if isinstance(scheduler, Hyperband) else {}
        for milestone, recorded in bracket._rungs:
            if epoch >= milestone and trial.trial_id not in recorded:
                cutoff = bracket.cutoff(recorded)
                shown = None if cutoff is None else float(cutoff * scheduler._metric_op)
                return {**which, "rung": int(milestone), "cutoff": shown}
        return which
    if isinstance(scheduler, MedianRule | OwnRule):
        return scheduler.ask(trial.trial_id, epoch, value)
    return {}
