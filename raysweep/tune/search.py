"""Searchers: how Ray Tune is given a plan's trials, one after the other, and what it is told about their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from raysweep.config import Sweep
from raysweep.sweep_settings import LISTED
from raysweep.tune.own import is_own
from raysweep.tune.plan import Plan, PlannedTrial

if TYPE_CHECKING:
    from raysweep.tune.recorder import SweepRecorder

_WORST = 1e30  # finite, so that a searcher which ranks by value ranks it last
LEARNING = ("tpe", "gp", "cmaes")
"""Searches whose next trial follows from what came out of the others."""


def is_open(sweep: Sweep) -> bool:
    """Whether the searcher of a sweep thinks of trials while others run: the plan does not list them all."""
    return sweep.search.algorithm not in LISTED


Assigned = Callable[[str, PlannedTrial], None]


def worst(mode: str) -> float:
    """The value that stands for "no finite objective", for schedulers and searchers that cannot take NaN."""
    return _WORST if mode == "min" else -_WORST


def as_config(trial: PlannedTrial) -> dict[str, Any]:
    """What a trial's actor is given."""
    return {"number": trial.number, "key": trial.key, "overrides": trial.overrides}


class NotSaved:
    """Ray Tune pickles what it is given, to restore a sweep by; raysweep's journal does that, so copies are empty."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> NotSaved:
        return self

    def save(self, checkpoint_path: str) -> None:
        """Write nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing."""


class ListedSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """Hands out trials of a plan that is known as a whole.

    Args:
        plan: the plan.
        to_run: its trials that run.
        assigned: told which Tune trial id got which trial.
    """

    def __init__(self, plan: Plan, to_run: Sequence[PlannedTrial], assigned: Assigned) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._waiting = list(reversed(to_run))
        self._assigned = assigned

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        if not self._waiting:
            return str(Searcher.FINISHED)
        trial = self._waiting.pop()
        self._assigned(trial_id, trial)
        return as_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A list does not change with what comes out."""


def searcher(
    plan: Plan,
    to_run: Sequence[PlannedTrial],
    assigned: Assigned,
    objective: Callable[[int], float | None],
    recorder: SweepRecorder | None = None,
) -> Searcher:
    """The searcher of a sweep; `objective` as OptunaSearcher has it, `recorder` knows what a contest asks."""
    from raysweep.tune.seed_search import ContestSearcher, MeanSearcher

    search = plan.sweep.search
    if plan.has_contest and recorder is not None:
        return ContestSearcher(plan, to_run, recorder, _one_seed)
    if search.seeds > 1 and search.contenders is None and is_open(plan.sweep):
        return MeanSearcher(plan, to_run, assigned, objective, _one_seed)
    return _one_seed(plan, to_run, assigned, objective)


def _one_seed(
    plan: Plan, to_run: Sequence[PlannedTrial], assigned: Assigned, objective: Callable[[int], float | None]
) -> Searcher:
    if is_own(plan.sweep.search.algorithm):
        from raysweep.tune.own_search import OwnSearch

        return OwnSearch(plan, to_run, assigned, objective)
    if plan.sweep.search.algorithm in LEARNING:
        from raysweep.tune.optuna_search import OptunaSearcher

        return OptunaSearcher(plan, to_run, assigned, objective)
    return ListedSearcher(plan, to_run, assigned)
