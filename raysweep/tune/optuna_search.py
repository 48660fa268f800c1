"""Searches that learn from what comes out, through Optuna's samplers: tpe, gp, cmaes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.search import Searcher

from raysweep.config import Sweep
from raysweep.errors import RaysweepError
from raysweep.space import Domain
from raysweep.tune.plan import DEFAULT_SAMPLES, Plan, PlannedTrial
from raysweep.tune.search import Assigned, NotSaved, as_config, worst

_MAX_REPEATS = 50


class OptunaSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """Optuna's samplers that learn from what comes out (tpe, gp, cmaes); never the same trial twice.

    Args:
        plan: the plan, which grows by what is suggested; what it holds already is from before a restart.
        to_run: those of them that run again, first of all.
        assigned: told which Tune trial id got which trial.
        objective: the best finite objective of a trial, by its number; None where it has none.
    """

    def __init__(
        self, plan: Plan, to_run: Sequence[PlannedTrial], assigned: Assigned, objective: Callable[[int], float | None]
    ) -> None:
        super().__init__(metric=plan.sweep.objective.metric, mode=plan.sweep.objective.mode)
        self._plan, self._assigned, self._objective = plan, assigned, objective
        self._waiting = list(reversed(to_run))
        self._given: dict[str, PlannedTrial] = {}
        self._asked: dict[str, Any] = {}
        self._values: dict[str, float] = {}
        self._distributions = {key: _distribution(domain) for key, domain in plan.sweep.space.items()}
        self._study = _study(plan.sweep, len(plan.trials))
        running = {trial.key for trial in to_run}
        for trial in plan.trials:
            if trial.key not in running:
                self._learn(trial)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._waiting:
            return self._assign(trial_id, self._waiting.pop())
        if len(self._plan.trials) >= self._plan.num_planned:
            return str(Searcher.FINISHED)
        refused = ""
        for _ in range(_MAX_REPEATS):
            asked = self._study.ask(self._distributions)
            overrides = {key: _value(domain, asked.params[key]) for key, domain in self._plan.sweep.space.items()}
            try:
                trial = self._plan.add(overrides)
            except RaysweepError as error:
                self._study.tell(asked, worst(self.mode))  # between feasible ends of a range: never worth another try near it
                refused = str(error)
                continue
            if trial is None:
                self._study.tell(asked, self._values.get(repr(overrides), worst(self.mode)))
                continue
            self._asked[trial_id] = asked
            return self._assign(trial_id, trial)
        # Nothing new to find: the space is used up, or what is left of it cannot be trained.
        self._plan.num_planned = len(self._plan.trials)
        self._plan.notes.append(f"{self._plan.num_planned} trials ran: the searcher found no other one {refused}".rstrip())
        return str(Searcher.FINISHED)

    def _assign(self, trial_id: str, trial: PlannedTrial) -> dict[str, Any]:
        self._given[trial_id] = trial
        self._assigned(trial_id, trial)
        return as_config(trial)

    def _worth(self, number: int) -> float:
        value = self._objective(number)
        return worst(self.mode) if value is None else value

    def _learn(self, trial: PlannedTrial) -> None:
        """Tell Optuna of a trial that it did not suggest in this process, where the space still holds it."""
        import optuna

        value = self._values[repr(trial.overrides)] = self._worth(trial.number)
        try:
            params = {key: _position(domain, trial.overrides[key]) for key, domain in self._plan.sweep.space.items()}
            self._study.add_trial(optuna.trial.create_trial(params=params, distributions=self._distributions, value=value))
        except (KeyError, ValueError):
            return  # it lies outside a space that was narrowed since

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._given.pop(trial_id, None)
        if trial is None:
            return
        asked = self._asked.pop(trial_id, None)
        if asked is None:
            self._learn(trial)
        else:
            self._values[repr(trial.overrides)] = self._worth(trial.number)
            self._study.tell(asked, self._worth(trial.number))


def _study(sweep: Sweep, known: int) -> Any:
    """An Optuna study for a sweep of which `known` trials have been before."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Optuna starts with 10 random trials, which would leave little to learn from in a small sweep.
    num_random = min(10, max(4, (sweep.search.num_samples or DEFAULT_SAMPLES) // 3))
    # After a restart other draws: the same ones again would be trials that are there.
    seed = sweep.search.seed + known
    samplers = optuna.samplers
    sampler: Any
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if sweep.search.algorithm == "gp":
            sampler = samplers.GPSampler(seed=seed, n_startup_trials=num_random)
        elif sweep.search.algorithm == "cmaes":
            sampler = samplers.CmaEsSampler(seed=seed, n_startup_trials=num_random, warn_independent_sampling=False)
        else:
            sampler = samplers.TPESampler(seed=seed, n_startup_trials=num_random)
    return optuna.create_study(direction="minimize" if sweep.objective.mode == "min" else "maximize", sampler=sampler)


def _distribution(domain: Domain) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if domain.kind in ("choice", "grid"):
        # By position: Optuna takes no lists as values.
        return CategoricalDistribution(range(len(domain.args)))
    if domain.kind == "randint":
        return IntDistribution(domain.args[0], domain.args[1] - 1)
    if domain.kind == "quniform":
        low, high, step = domain.args
        return FloatDistribution(low, high, step=step)
    return FloatDistribution(domain.args[0], domain.args[1], log=domain.is_log)


def _position(domain: Domain, value: Any) -> Any:
    """A trial's value as Optuna has it.

    Raises:
        ValueError: the domain does not hold it.
    """
    return domain.args.index(value) if domain.kind in ("choice", "grid") else value


def _value(domain: Domain, suggested: Any) -> Any:
    return domain.args[suggested] if domain.kind in ("choice", "grid") else domain.rounded(suggested)
