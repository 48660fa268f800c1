"""Searchers: how Ray Tune is given a plan's trials, one after the other, and what it is told about their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from raysweep.config import Sweep
from raysweep.errors import RaysweepError
from raysweep.space import Domain
from raysweep.tune.plan import DEFAULT_SAMPLES, Plan, PlannedTrial

_WORST = 1e30  # finite, so that a searcher which ranks by value ranks it last
_MAX_REPEATS = 50

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
    """Hands out the trials of a plan that is known as a whole.

    Args:
        plan: the plan.
        assigned: told which Tune trial id got which trial.
    """

    def __init__(self, plan: Plan, assigned: Assigned) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._waiting = list(reversed(plan.trials))
        self._assigned = assigned

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        if not self._waiting:
            return str(Searcher.FINISHED)
        trial = self._waiting.pop()
        self._assigned(trial_id, trial)
        return as_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A list does not change with what comes out."""


class TpeSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """Optuna's tree-structured Parzen estimator; never the same trial twice.

    Args:
        plan: the plan, which grows by what is suggested.
        assigned: told which Tune trial id got which trial.
        objective: the best finite objective of a finished trial, by Tune trial id; None where it has none.
    """

    def __init__(self, plan: Plan, assigned: Assigned, objective: Callable[[str], float | None]) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._plan, self._assigned, self._objective = plan, assigned, objective
        self._known: dict[str, float | None] = {}
        self._asked: dict[str, tuple[str, str]] = {}
        self._optuna = _optuna(plan.sweep)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if len(self._plan.trials) >= self._plan.num_planned:
            return str(Searcher.FINISHED)
        refused = ""
        for attempt in range(_MAX_REPEATS):
            asked = f"{trial_id}#{attempt}"
            values = self._optuna.suggest(asked)
            overrides = {key: _value(domain, values[key]) for key, domain in self._plan.sweep.space.items()}
            try:
                trial = self._plan.add(overrides)
            except RaysweepError as error:
                self._tell(asked, None)  # between feasible ends of a range: never worth another try near it
                refused = str(error)
                continue
            if trial is None:
                self._tell(asked, self._known.get(repr(overrides)))
                continue
            self._asked[trial_id] = (asked, repr(overrides))
            self._assigned(trial_id, trial)
            return as_config(trial)
        # Nothing new to find: the space is used up, or what is left of it cannot be trained.
        self._plan.num_planned = len(self._plan.trials)
        self._plan.notes.append(f"{self._plan.num_planned} trials ran: the searcher found no other one {refused}".rstrip())
        return str(Searcher.FINISHED)

    def _tell(self, asked: str, value: float | None) -> None:
        self._optuna.on_trial_complete(asked, {self.metric: worst(self.mode) if value is None else value})

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if trial_id in self._asked:
            asked, shown = self._asked.pop(trial_id)
            self._known[shown] = self._objective(trial_id)
            self._tell(asked, self._known[shown])


def _optuna(sweep: Sweep) -> OptunaSearch:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def space(trial: optuna.Trial) -> None:
        for key, domain in sweep.space.items():
            _suggest(trial, key, domain)

    # Optuna starts with 10 random trials, which would leave little to learn from in a small sweep.
    num_random = min(10, max(4, (sweep.search.num_samples or DEFAULT_SAMPLES) // 3))
    sampler = optuna.samplers.TPESampler(seed=sweep.search.seed, n_startup_trials=num_random)
    return OptunaSearch(space=space, metric=sweep.objective.metric, mode=sweep.objective.mode, sampler=sampler)


def _suggest(trial: Any, key: str, domain: Domain) -> None:
    if domain.kind in ("choice", "grid"):
        # By position: Optuna takes no lists as values.
        trial.suggest_categorical(key, range(len(domain.args)))
    elif domain.kind == "randint":
        trial.suggest_int(key, domain.args[0], domain.args[1] - 1)
    elif domain.kind == "quniform":
        low, high, step = domain.args
        trial.suggest_float(key, low, high, step=step)
    else:
        trial.suggest_float(key, domain.args[0], domain.args[1], log=domain.is_log)


def _value(domain: Domain, suggested: Any) -> Any:
    return domain.args[suggested] if domain.kind in ("choice", "grid") else domain.rounded(suggested)


def searcher(plan: Plan, assigned: Assigned, objective: Callable[[str], float | None]) -> Searcher:
    """The searcher of a sweep."""
    if plan.sweep.search.algorithm == "tpe":
        return TpeSearcher(plan, assigned, objective)
    return ListedSearcher(plan, assigned)
