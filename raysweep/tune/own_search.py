"""A searcher of the user's own, as Ray Tune calls it. What it may be is protocols.py's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.search import Searcher

from raysweep.errors import ConfigError
from raysweep.tune.own import OwnCodeError, make_searcher, suggested
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.protocols import KnownTrial
from raysweep.tune.search import Assigned, NotSaved, as_config

_MAX_REPEATS = 50


class OwnSearch(NotSaved, Searcher):  # type: ignore[misc]
    """Runs the trials that the user's searcher thinks of; never the same one twice.

    Attributes:
        fault: the error of the user's code. From then on it is asked no more, and the engine ends the sweep.

    Args:
        plan, to_run, assigned, objective: as OptunaSearcher.

    Raises:
        ConfigError: the factory cannot be used.
    """

    def __init__(
        self, plan: Plan, to_run: Sequence[PlannedTrial], assigned: Assigned, objective: Callable[[int], float | None]
    ) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._own, self._name = make_searcher(plan.sweep), plan.sweep.search.algorithm
        self._plan, self._assigned, self._objective = plan, assigned, objective
        self._waiting = list(reversed(to_run))
        self._running: dict[str, int] = {}
        self.fault: OwnCodeError | None = None

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._waiting:
            return self._assign(trial_id, self._waiting.pop())
        if self.fault is not None or len(self._plan.trials) >= self._plan.num_planned:
            return str(Searcher.FINISHED)
        try:
            for _ in range(_MAX_REPEATS):
                point = suggested(self._own, self._name, self._plan.sweep.space, self._plan.rules, self._known())
                if point is None and self._running:
                    return None
                if point is None:
                    return self._finished("it waits, and no trial runs that it could wait for")
                trial = self._planned(point)
                if trial is not None and not trial.infeasible:
                    return self._assign(trial_id, trial)
        except StopIteration:
            return self._finished("it has no other point")
        except OwnCodeError as error:
            self.fault = error
            return str(Searcher.FINISHED)
        return self._finished(f"its last {_MAX_REPEATS} points were known already, or cannot be trained")

    def _planned(self, point: dict[str, Any]) -> PlannedTrial | None:
        """One more trial; None where it is planned already. One that cannot be trained has its row in the results."""
        try:
            return self._plan.add(point)
        except ConfigError as error:
            trial = self._plan.add_infeasible(point, str(error))
            if trial is not None:
                self._plan.make_room()
                self._assigned(f"infeasible-{trial.number}", trial)
            return trial

    def _known(self) -> list[KnownTrial]:
        running, waiting = set(self._running.values()), {trial.number for trial in self._waiting}
        return [
            KnownTrial(
                dict(trial.overrides),
                None if trial.infeasible else self._objective(trial.number),
                "infeasible" if trial.infeasible else "running" if trial.number in running
                else "waiting" if trial.number in waiting else "ended",
            )
            for trial in sorted(self._plan.trials, key=lambda trial: trial.number)
        ]  # fmt: skip

    def _finished(self, why: str) -> str:
        self._plan.num_planned = len(self._plan.trials)
        self._plan.notes.append(f"{self._plan.num_planned} trials ran, search.algorithm {self._name} ended the search: {why}")
        return str(Searcher.FINISHED)

    def _assign(self, trial_id: str, trial: PlannedTrial) -> dict[str, Any]:
        self._running[trial_id] = trial.number
        self._assigned(trial_id, trial)
        return as_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._running.pop(trial_id, None)
