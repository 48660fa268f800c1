"""Searchers around a searcher, for configurations that are trained with several seeds: all of them, or a contest's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from ray.tune.search import Searcher

from raysweep.tune.contest import Contest
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.search import Assigned, NotSaved, as_config
from raysweep.tune.seeds import Configurations, is_further

Objective = Callable[[int], float | None]
Make = Callable[[Plan, Sequence[PlannedTrial], Assigned, Objective], Searcher]
"""Makes the searcher of a plan's configurations."""


class MeanSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """A search that learns, each of whose configurations is trained with all its seeds before it is told their mean.

    The seeds of a configuration follow each other: a search that learns would know nothing until all first seeds were
    through, and would have learned from one of them alone.

    Args:
        plan: what it holds already is from before a restart.
        to_run: its trials that run, first of all.
        assigned: told which Tune trial id got which trial.
        objective: the best finite objective of a trial, by its number; None where it has none.
        make: makes the search.
    """

    def __init__(self, plan: Plan, to_run: Sequence[PlannedTrial], assigned: Assigned, objective: Objective, make: Make) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._assigned, self._objective = assigned, objective
        self._view = Configurations(plan)
        self._running: dict[str, PlannedTrial] = {}
        self._left: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._given: PlannedTrial | None = None
        self._waiting = deque(to_run)
        for trial in to_run:
            first = self._view.first(trial).key
            self._left[first] = self._left.get(first, 0) + 1
        begun = [trial for trial in self._view.trials if trial.key in self._left]
        self._inner = make(cast(Plan, self._view), begun, self._take, self._mean)
        for trial in begun:
            self._inner.suggest(trial.key)

    def _take(self, name: str, trial: PlannedTrial) -> None:
        if trial.infeasible:  # it is only listed
            self._assigned(name, trial)
            return
        self._names[trial.key], self._given = name, trial

    @property
    def fault(self) -> Any:
        """The error of a searcher of the user's own; None where there is none."""
        return getattr(self._inner, "fault", None)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if not self._waiting:
            given: dict[str, Any] | str | None = self._inner.suggest(trial_id)
            if not isinstance(given, dict) or self._given is None:
                return given
            trials = self._view.add_all(self._given)
            self._left[self._given.key] = len(trials)
            self._waiting.extend(trials)
        trial = self._running[trial_id] = self._waiting.popleft()
        self._assigned(trial_id, trial)
        return as_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._running.pop(trial_id, None)
        if trial is None:
            return
        first = self._view.first(trial).key
        self._left[first] -= 1
        if not self._left[first]:
            self._inner.on_trial_complete(self._names.pop(first))

    def _mean(self, number: int) -> float | None:
        """The mean over a configuration's seeds, by its first trial's number; None where one of them has no finite value."""
        first = next(trial for trial in self._view.trials if trial.number == number)
        values = [self._objective(trial.number) for trial in self._view.add_all(first)]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None


class ContestSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """Any search for the first seeds; when they have all ended, the rounds of a contest, each when the one before has ended.

    Args:
        plan, to_run: as above.
        recorder: knows what became of the trials, and is told what the contest decides.
        make: makes the search.
    """

    def __init__(self, plan: Plan, to_run: Sequence[PlannedTrial], recorder: SweepRecorder, make: Make) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._recorder = recorder
        first = [trial for trial in to_run if not is_further(plan.sweep, trial.overrides)]
        self._inner = make(cast(Plan, Configurations(plan)), first, recorder.assigned, recorder.objective)
        self._searches = True
        self._contest = Contest(plan, self._outcome)
        self._round: deque[PlannedTrial] = deque()
        self._running: dict[str, bool] = {}
        self._trained: set[str] = set()

    @property
    def fault(self) -> Any:
        """The error of a searcher of the user's own; None where there is none."""
        return getattr(self._inner, "fault", None)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._searches:
            given: dict[str, Any] | str | None = self._inner.suggest(trial_id)
            if given != Searcher.FINISHED:
                if isinstance(given, dict):
                    self._running[trial_id] = True
                return given
            if self.fault is not None:
                return given  # the sweep ends, with first seeds that are missing
            self._searches = False
        if not self._round:
            if self._running:
                return None  # the round has not ended
            self._round.extend(self._contest.advance())
            for decision in self._contest.untold(self._recorder.contest):
                self._recorder.decided(decision.pop("trial"), decision)
            if not self._round:
                return str(Searcher.FINISHED)
        trial = self._round.popleft()
        self._running[trial_id] = False
        self._trained.add(trial.key)
        self._recorder.assigned(trial_id, trial)
        return as_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if self._running.pop(trial_id, False):
            self._inner.on_trial_complete(trial_id, result, error)

    def _outcome(self, trial: PlannedTrial) -> tuple[str, float | None, dict[str, Any]] | None:
        state = self._recorder.known(trial)
        if state is not None and state.has_ended:
            return state.status, state.best, state.reason
        # Ray Tune has ended it without saying why: not again and again.
        return ("failed", None, {}) if trial.key in self._trained else None
