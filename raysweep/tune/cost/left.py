"""What is left of a sweep, as a name: a prediction is for just these settings, trials and epochs."""

from __future__ import annotations

from raysweep.cluster.resources import Allocation
from raysweep.store.prediction import fingerprint
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.resume import Past, Work


def last_epoch(past: Past | None, trial: PlannedTrial) -> int:
    """The newest epoch that the journal knows of a trial; 0 for none."""
    known = past.trials.get(trial.key) if past else None
    return known.last_epoch if known else 0


def what_for(plan: Plan, past: Past | None, todo: Work, allocation: Allocation, at_once: int) -> str:
    """What a prediction is for: these settings, so much left of these trials, so many workers and trials at once."""
    return fingerprint(
        {
            "sweep": plan.sweep.model_dump(mode="json", exclude={"storage", "working_directory"}),
            "left": {trial.key: last_epoch(past, trial) for trial in todo.to_run},
            "to_think_of": plan.num_planned - len(plan.trials),
            "workers": allocation.max_workers,
            "at_once": at_once,
        }
    )
