"""The searchers and schedulers that raysweep brings pass the suites that one's own must pass."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest

from raysweep.config import Sweep
from raysweep.space import Domain
from raysweep.testing.scheduler_contract import SchedulerContract
from raysweep.testing.search_contract import SearcherContract
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.protocols import KnownTrial
from raysweep.tune.schedulers import RecordingScheduler
from raysweep.tune.search import is_open, searcher


@functools.lru_cache
def planned(sweep_json: str) -> Plan:
    return make_plan(Sweep.from_dict(json.loads(sweep_json)))


class BuiltInSearch:
    """A searcher of raysweep's behind the protocol: made anew for each point, as after a restart of the sweep."""

    def __init__(self, algorithm: str, space: Mapping[str, Domain], mode: str, seed: int) -> None:
        search: dict[str, Any] = {"algorithm": algorithm, "seed": seed}
        if algorithm != "grid":
            search["num_samples"] = 12
        experiment = {"data": {"source": "digits", "count": 50}, "train": {"epochs": 3}}
        objective = {"metric": "val_loss" if mode == "min" else "psnr"}
        domains = {key: domain.as_dict() for key, domain in space.items()}
        self._plan = planned(json.dumps({"experiment": experiment, "space": domains, "search": search, "objective": objective}))

    def suggest(self, known: Sequence[KnownTrial]) -> Mapping[str, Any]:
        plan = Plan(self._plan.sweep, self._plan.prepared, list(self._plan.trials), self._plan.num_planned)
        if is_open(plan.sweep):
            for trial in known:
                plan.add(trial.overrides)
        values = {repr(sorted(trial.overrides.items())): trial.value for trial in known}
        numbers = {t.number: values.get(repr(sorted(t.overrides.items()))) for t in plan.trials}
        left = [] if is_open(plan.sweep) else [t for t in plan.trials if repr(sorted(t.overrides.items())) not in values]
        given = searcher(plan, left, lambda _id, _trial: None, numbers.get).suggest("next")
        if not isinstance(given, dict):
            raise StopIteration
        return dict(given["overrides"])


class _BuiltInSearch(SearcherContract):
    algorithm: ClassVar[str]

    def make(self, space: Mapping[str, Domain], mode: Literal["min", "max"], seed: int) -> BuiltInSearch:
        return BuiltInSearch(self.algorithm, space, mode, seed)


class TestGrid(_BuiltInSearch):
    algorithm = "grid"
    space: ClassVar[Any] = {"optim.lr": {"grid": [1e-4, 1e-3, 1e-2, 1e-1]}, "model.depth": {"grid": [1, 2, 3]}}


class TestRandom(_BuiltInSearch):
    algorithm = "random"


class TestSobol(_BuiltInSearch):
    algorithm = "sobol"


class TestTpe(_BuiltInSearch):
    algorithm = "tpe"


@pytest.mark.slow
class TestGp(_BuiltInSearch):
    algorithm = "gp"


class TestCmaes(_BuiltInSearch):
    algorithm = "cmaes"
    space: ClassVar[Any] = {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "model.dropout": {"uniform": [0.0, 0.8]}}
    small_space = None


class _Told:
    """A recorder that keeps the last decision."""

    def __init__(self) -> None:
        self.decided: dict[str, Any] | None = None

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        raise AssertionError

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        self.decided = decision

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        pass


class _Live:
    status = "RUNNING"

    def __init__(self, key: str, number: int) -> None:
        self.trial_id, self.config = f"id{number}", {"key": key, "number": number}


class BuiltInRule:
    """A rule of raysweep's behind the protocol, with all that stands around it."""

    def __init__(self, scheduler: dict[str, Any], mode: str, epochs: int) -> None:
        self._metric = "val_loss" if mode == "min" else "psnr"
        sweep = {
            "experiment": {"train": {"epochs": epochs}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2]}},
            "scheduler": scheduler,
            "objective": {"metric": self._metric},
        }
        self._told = _Told()
        self._scheduler = RecordingScheduler(Sweep.from_dict(sweep), self._told)
        self._live: dict[str, _Live] = {}
        self._numbers = itertools.count()

    def decide(self, key: str, epoch: int, value: float | None) -> dict[str, Any] | None:
        if key not in self._live:
            self._live[key] = _Live(key, next(self._numbers))
            self._scheduler.on_trial_add(None, self._live[key])
        self._told.decided = None
        row = {"epoch": epoch, self._metric: value}
        self._scheduler.on_trial_result(None, self._live[key], {"row": json.dumps(row), **row})
        reason = self._told.decided
        return None if reason is None else {name: reason[name] for name in ("epoch", "rung") if name in reason}


class _BuiltInRule(SchedulerContract):
    scheduler: ClassVar[dict[str, Any]]

    def make(self, mode: Literal["min", "max"], epochs: int) -> BuiltInRule:
        return BuiltInRule(self.scheduler, mode, epochs)


class TestNone(_BuiltInRule):
    scheduler: ClassVar[dict[str, Any]] = {"name": "none"}
    stops_something = False


class TestAsha(_BuiltInRule):
    scheduler: ClassVar[dict[str, Any]] = {"name": "asha", "reduction_factor": 2}


class TestMedian(_BuiltInRule):
    scheduler: ClassVar[dict[str, Any]] = {"name": "median"}


class TestHyperband(_BuiltInRule):
    scheduler: ClassVar[dict[str, Any]] = {"name": "hyperband", "reduction_factor": 2}
