"""Searches that learn from what comes out, through Optuna's samplers: tpe, gp, cmaes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray.tune.search import Searcher

from raysweep.config import Sweep
from raysweep.errors import ConfigError, RaysweepError
from raysweep.space import Domain
from raysweep.tune.drawing import Draws, draws, max_infeasible, note_refused
from raysweep.tune.own import place_of
from raysweep.tune.plan import DEFAULT_SAMPLES, Plan, PlannedTrial
from raysweep.tune.search import Assigned, NotSaved, as_config, worst

_MAX_REPEATS = 50
_MAX_USELESS = 10
"""Suggestions in a row that break a constraint, or that were made before, after which one is drawn at random instead."""


class OptunaSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """Optuna's samplers that learn from what comes out (tpe, gp, cmaes); never the same trial twice.

    tpe looks at each setting alone, so it is asked for those of a trial only. gp and cmaes would draw a setting that some
    trials lack at random for ever; they are always asked for all, and where a condition is not met the value does not matter.

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
        known = plan.sweep.search.model_copy(update={"seed": plan.sweep.search.seed + len(plan.trials)})
        self._draws = Draws(draws(plan.sweep.model_copy(update={"search": known})), plan.rules)
        self._refused, self._note = 0, -1
        self._infeasible = sum(bool(trial.infeasible) for trial in plan.trials)
        running = {trial.key for trial in to_run}
        done = [trial for trial in plan.trials if trial.key not in running]
        self._finite = [value for trial in done if (value := self._worth(trial)) is not None]
        for trial in done:
            self._learn(trial)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._waiting:
            return self._assign(trial_id, self._waiting.pop())
        if len(self._plan.trials) >= self._plan.num_planned:
            return str(Searcher.FINISHED)
        why, useless = "", 0
        for _ in range(_MAX_REPEATS):
            if useless < _MAX_USELESS:
                asked, overrides, broken = self._ask()
                if broken:
                    self._tell(asked, None, is_tried=False)
                    self._count_refused(1, broken)
                    useless += 1
                    continue
            else:
                before, drawn = self._draws.refused, self._draws.next()
                self._count_refused(self._draws.refused - before, self._draws.why)
                if drawn is None:
                    why = self._draws.why
                    break
                asked, overrides = None, drawn
            try:
                trial = self._plan.add(overrides)
            except RaysweepError as error:
                self._tell(asked, None)
                if not self._list_infeasible(overrides, str(error)):
                    why = str(error)
                    break
                continue
            if trial is None:
                self._tell(asked, self._values.get(repr(overrides)))
                useless += 1
                continue
            if asked is not None:
                self._asked[trial_id] = asked
            return self._assign(trial_id, trial)
        # Nothing new to find: the space is used up, or what is left of it cannot be trained.
        self._plan.num_planned = len(self._plan.trials)
        self._plan.notes.append(f"{self._plan.num_planned} trials ran: the searcher found no other one {why}".rstrip())
        return str(Searcher.FINISHED)

    def _ask(self) -> tuple[Any, dict[str, Any], str]:
        """Optuna's trial, its settings, and why they are refused; "" where they are not."""
        space, rules = self._plan.sweep.space, self._plan.rules
        try:
            if self._plan.sweep.search.algorithm == "tpe":
                asked = self._study.ask()
                overrides = rules.choose(lambda key: _value(space[key], _suggested(asked, key, self._distributions[key])))
            else:
                asked = self._study.ask(self._distributions)
                overrides = rules.active({key: _value(domain, asked.params[key]) for key, domain in space.items()})
        except ConfigError as error:
            return asked, {}, str(error)
        return asked, overrides, rules.broken(overrides)

    def _count_refused(self, number: int, why: str) -> None:
        if number:
            self._refused += number
            if self._note < 0:
                self._note = len(self._plan.notes)
                self._plan.notes.append("")
            self._plan.notes[self._note] = note_refused(self._refused, why)

    def _list_infeasible(self, overrides: dict[str, Any], why: str) -> bool:
        """Put a trial that cannot be trained into the results, and make room for another one; False: they are too many."""
        wanted = self._plan.num_planned - self._infeasible
        trial = self._plan.add_infeasible(overrides, why)
        if trial is not None:
            self._infeasible += 1
            self._plan.make_room()
            self._assigned(trial.key, trial)  # no actor ever has it
        return self._infeasible <= max_infeasible(wanted)

    def _assign(self, trial_id: str, trial: PlannedTrial) -> dict[str, Any]:
        self._given[trial_id] = trial
        self._assigned(trial_id, trial)
        return as_config(trial)

    def _worth(self, trial: PlannedTrial) -> float | None:
        return None if trial.infeasible else self._objective(trial.number)

    def _last(self) -> float | None:
        """A value that ranks last, for a trial without one; None: there is none to rank it after.

        gp fits the values themselves, and a huge one would make all others look the same.
        """
        if self._plan.sweep.search.algorithm != "gp":
            return worst(self.mode)
        if not self._finite:
            return None
        low, high = min(self._finite), max(self._finite)
        room = (high - low) or abs(high) or 1.0
        return high + room if self.mode == "min" else low - room

    def _tell(self, asked: Any, value: float | None, is_tried: bool = True) -> None:
        """Tell Optuna what came of a suggestion; None: nothing.

        One that was not tried is drawn again by cmaes, as its authors do where a range ends. tpe and gp would suggest the
        same again, and are told that it ranks last.
        """
        import optuna

        if asked is None:
            return
        if value is None and (is_tried or self._plan.sweep.search.algorithm != "cmaes"):
            value = self._last()
        if value is None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(asked, value)

    def _learn(self, trial: PlannedTrial) -> None:
        """Tell Optuna of a trial that it did not suggest in this process, where the space still holds it."""
        import optuna

        value = self._worth(trial)
        if value is None:
            value = self._last()
        else:
            self._values[repr(trial.overrides)] = value
        if value is None or not self._plan.rules.holds(trial.overrides):
            return
        is_whole = self._plan.sweep.search.algorithm != "tpe"
        names = [key for key in self._plan.sweep.space if is_whole or key in trial.overrides]
        try:
            params = {
                key: self._position(key, trial.overrides[key] if key in trial.overrides else domain.at(0.5))
                for key, domain in self._plan.sweep.space.items()
                if key in names
            }
            distributions = {key: self._distributions[key] for key in names}
            self._study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
        except ValueError:
            return  # it lies outside the space: a point to start with may

    def _position(self, key: str, value: Any) -> Any:
        """A trial's value as Optuna has it.

        Raises:
            ValueError: it is none of a list's.
        """
        domain = self._plan.sweep.space[key]
        if domain.kind not in ("choice", "grid"):
            return value
        place = place_of(domain, value, partial(self._plan.rules.read, key))
        if place is None:
            raise ValueError(f"{value!r} is not in the list of {key}")
        return place

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._given.pop(trial_id, None)
        if trial is None:
            return
        asked, value = self._asked.pop(trial_id, None), self._worth(trial)
        if value is not None:
            self._finite.append(value)
        if asked is None:
            self._learn(trial)
            return
        if value is not None:
            self._values[repr(trial.overrides)] = value
        self._tell(asked, value)


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


def _suggested(asked: Any, key: str, distribution: Any) -> Any:
    """One setting of an Optuna trial."""
    if hasattr(distribution, "choices"):
        return asked.suggest_categorical(key, distribution.choices)
    suggest = asked.suggest_int if isinstance(distribution.low, int) else asked.suggest_float
    return suggest(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _value(domain: Domain, suggested: Any) -> Any:
    return domain.args[suggested] if domain.kind in ("choice", "grid") else domain.rounded(suggested)
