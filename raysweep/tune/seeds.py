"""Configurations that are trained with several seeds: their trials, and searches that learn their means.

A configuration is known by its first trial, which has the experiment's own train.seed and the key that it has without
further seeds. The seeds of a contest are contest.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raysweep.sweep_settings import SEED

if TYPE_CHECKING:
    from raysweep.config import Sweep
    from raysweep.tune.plan import Plan, PlannedTrial


def is_further(sweep: Sweep, overrides: Mapping[str, Any]) -> bool:
    """Whether a trial trains a configuration with another seed than its first one."""
    return SEED in overrides and SEED not in sweep.space


def is_unseen(sweep: Sweep, overrides: Mapping[str, Any]) -> bool:
    """Whether a trial is a contest's, which runs to its last epoch unseen by the scheduler."""
    return sweep.search.contenders is not None and is_further(sweep, overrides)


def configuration(overrides: Mapping[str, Any]) -> str:
    """A text that the trials of one configuration share."""
    return json.dumps({key: value for key, value in overrides.items() if key != SEED}, sort_keys=True, default=repr)


class Configurations:
    """A plan as a searcher sees it that knows nothing of seeds: one trial for each configuration.

    Args:
        plan: whatever is added here is added there.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._trials: list[PlannedTrial] = []
        self._by_id: dict[str, PlannedTrial] = {}
        self._further: dict[tuple[str, int], PlannedTrial] = {}
        self._num_seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def _look(self) -> None:
        first = self._plan.sweep.experiment.train.seed
        for trial in self._plan.trials[self._num_seen :]:
            which = configuration(trial.overrides)
            if is_further(self._plan.sweep, trial.overrides):
                self._further[which, int(trial.overrides[SEED]) - first] = trial
            else:
                self._trials.append(trial)
                self._by_id[which] = trial
        self._num_seen = len(self._plan.trials)

    @property
    def trials(self) -> list[PlannedTrial]:
        """The first trial of each configuration."""
        self._look()
        return self._trials

    @property
    def num_planned(self) -> int:
        return self._plan.num_configurations

    @num_planned.setter
    def num_planned(self, number: int) -> None:
        each = 1 if self._plan.sweep.search.contenders else self._plan.sweep.search.seeds
        self._plan.num_planned += each * (number - self._plan.num_configurations)
        self._plan.num_configurations = number

    def first(self, trial: PlannedTrial) -> PlannedTrial:
        """The first trial of a trial's configuration."""
        self._look()
        return self._by_id[configuration(trial.overrides)]

    def further(self, first: PlannedTrial, number: int, add: bool = True) -> PlannedTrial | None:
        """The trial of a configuration with its seed of a number, counted from 1.

        Args:
            first: the configuration's first trial.
            number: how far from the first one's seed.
            add: plan it where it is not planned yet; else None is returned.
        """
        self._look()
        known = self._further.get((configuration(first.overrides), number))
        if known is not None or not add:
            return known
        return self._plan.add({**first.overrides, SEED: self._plan.sweep.experiment.train.seed + number})

    def add_all(self, first: PlannedTrial) -> list[PlannedTrial]:
        """Every trial of a configuration, the first one included; none beside it where it cannot be trained."""
        seeds = 1 if first.infeasible else self._plan.sweep.search.seeds
        return [first, *(trial for number in range(1, seeds) if (trial := self.further(first, number)))]


def with_seeds(plan: Plan) -> Plan:
    """Plan the further seeds of what a plan holds: all first seeds, then all second ones, so that much is known early."""
    search = plan.sweep.search
    plan.num_configurations = plan.num_planned
    is_whole = len(plan.trials) == plan.num_planned  # else a search thinks of the others
    if search.contenders:
        num = min(search.contenders, sum(not t.infeasible for t in plan.trials) if is_whole else plan.num_planned)
        if num > 1:
            plan.has_contest = True
            plan.num_planned += 2 * num
            most = search.seeds - 1
            plan.notes.append(f"the best {num} configurations get {'2' if most == 2 else f'2 to {most}'} further seeds")
    elif search.seeds > 1:
        if is_whole:
            add_seeds(plan)
        plan.num_planned = len(plan.trials) if is_whole else plan.num_planned * search.seeds
    return plan


def add_seeds(plan: Plan) -> None:
    """Plan every seed of every configuration that is planned; seeds of a contest are not planned beforehand."""
    search, view = plan.sweep.search, Configurations(plan)
    for number in range(1, search.seeds if search.contenders is None else 1):
        for first in list(view.trials):
            if not first.infeasible:
                view.further(first, number)
