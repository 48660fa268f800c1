"""Which trials a sweep has, worked out and checked before anything starts; no Ray in here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysweep.config import Sweep
from raysweep.data.dataset import Dataset, open_dataset
from raysweep.errors import ConfigError
from raysweep.experiment import Experiment
from raysweep.plugins import code_fingerprint
from raysweep.store.keys import infeasible_key, member_key, trial_key
from raysweep.sweep_settings import LISTED
from raysweep.train.prepare import ModelFacts, Prepared, check_model, prepare, shapes, with_absolute_paths
from raysweep.tune.drawing import check_not_empty, draws, note_infeasible, note_search, plan_draws, sobol
from raysweep.tune.own import check_own
from raysweep.tune.seeds import with_seeds

DEFAULT_SAMPLES = 16
_MAX_COUNTED = 10_000


@dataclass(frozen=True)
class PlannedTrial:
    """One trial: its number, what it changes, and what that makes of it; `infeasible`: why it cannot be trained."""

    number: int
    key: str
    overrides: dict[str, Any]
    model: ModelFacts
    infeasible: str = ""


@dataclass
class Plan:
    """A checked sweep.

    Attributes:
        sweep: its experiment has absolute data paths.
        prepared: one corner of the space, for the facts about the images.
        trials: all of them (grid, random, sobol), or those asked for so far.
        num_planned: how many there will be, as far as is known.
        num_configurations: how many different settings those are; each may be trained with several seeds.
        has_contest: whether the best configurations have still to be told apart by further seeds.
        rules: which settings a combination has, and the constraints.
        notes: what a user should know about the plan.
    """

    sweep: Sweep
    prepared: Prepared
    trials: list[PlannedTrial]
    num_planned: int
    notes: list[str] = field(default_factory=list)
    num_configurations: int = 0
    has_contest: bool = False

    def __post_init__(self) -> None:
        self._datasets: dict[str, Dataset] = {_data_id(self.prepared.experiment): self.prepared.dataset}
        self._keys = {trial.key for trial in self.trials}
        self._numbers: dict[str, int] = {}
        self._next_number = len(self.trials)
        self.rules = self.sweep.rules()
        self._checked: dict[str, tuple[ModelFacts, str]] = {}

    def goes_on(self, numbers: Mapping[str, int], following: int) -> None:
        """From now on trials get the numbers that a journal knows by their keys, new ones those from `following` upwards."""
        self._numbers, self._next_number = dict(numbers), following

    def _number(self, key: str) -> int:
        if key in self._numbers:
            return self._numbers[key]
        self._next_number += 1
        return self._next_number - 1

    def experiment(self, overrides: Mapping[str, Any]) -> Experiment:
        """The experiment of a trial."""
        return self.sweep.experiment.with_overrides(overrides)

    def dataset(self, experiment: Experiment) -> Dataset:
        """The images of a trial; read once for all trials that share them."""
        name = _data_id(experiment)
        if name not in self._datasets:
            self._datasets[name] = open_dataset(experiment.data)
        return self._datasets[name]

    def check(self, experiment: Experiment) -> tuple[ModelFacts, str]:
        """As check_model, and the fingerprint of the model's code; both stand for all trials that differ in nothing they look at.

        Building the model takes milliseconds a trial, all else that planning one takes a tenth of one.

        Raises:
            ConfigError: the model does not fit the images.
        """
        dataset = self.dataset(experiment)
        train = experiment.train
        looked_at = repr((experiment.model.model_dump_json(), shapes(dataset), train.exactness, train.tensorboard))
        if looked_at not in self._checked:
            self._checked[looked_at] = check_model(experiment, dataset), code_fingerprint(experiment.model)
        return self._checked[looked_at]

    def _trained(self, overrides: Mapping[str, Any]) -> tuple[Experiment, ModelFacts, str]:
        """What a trial trains, and its key."""
        experiment = self.experiment(overrides)
        model, code = self.check(experiment)
        key = trial_key(experiment, self.dataset(experiment).fingerprint, code)
        return experiment, model, member_key(key, self.sweep) if self.sweep.scheduler.name == "pbt" else key

    def key(self, overrides: Mapping[str, Any]) -> str:
        """The key that a trial would have; raises as add()."""
        return self._trained(overrides)[2]

    def add(self, overrides: Mapping[str, Any]) -> PlannedTrial | None:
        """Plan one more trial; None where the same one is planned already.

        Raises:
            ConfigError, DataError: the trial cannot work, or breaks a constraint.
        """
        if broken := self.rules.broken(overrides):
            raise ConfigError(broken)
        experiment, model, key = self._trained(overrides)
        if key in self._keys:
            return None
        # The values as they were understood, so that "1e-3" and 0.001 look alike in every table.
        shown = {name: as_listed(experiment.get(name)) for name in overrides}
        return self._append(PlannedTrial(self._number(key), key, shown, model))

    def add_infeasible(self, overrides: Mapping[str, Any], why: str) -> PlannedTrial | None:
        """Plan a trial that cannot be trained, so that it has its row in the results; None where it is planned already."""
        key = infeasible_key(self.sweep.experiment, overrides, self.prepared.dataset.fingerprint)
        if key in self._keys:
            return None
        return self._append(PlannedTrial(self._number(key), key, dict(overrides), ModelFacts(0, False), why))

    def make_room(self) -> None:
        """Plan for one trial more: what cannot be trained takes no place of one that can."""
        self.num_planned += 1
        self.num_configurations += 1

    def _append(self, trial: PlannedTrial) -> PlannedTrial:
        self.trials.append(trial)
        self._keys.add(trial.key)
        return trial


def as_listed(value: Any) -> Any:
    """A setting's value as overrides have it."""
    return list(value) if isinstance(value, tuple) else value


def _data_id(experiment: Experiment) -> str:
    return experiment.data.model_dump_json()


def grid(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Every different combination, the first setting slowest; settings whose condition is not met are left out."""
    values, rules, seen = {key: domain.values() or [] for key, domain in sweep.space.items()}, sweep.rules(), set[str]()
    for combination in itertools.product(*values.values()):
        overrides = rules.active(dict(zip(values, combination, strict=True)))
        if (text := repr(overrides)) not in seen:
            seen.add(text)
            yield overrides


def num_combinations(sweep: Sweep) -> float:
    """How many different trials the space has; inf where a domain is continuous.

    With conditions or constraints, and more than 10,000 combinations, those that are left out count as well.
    """
    listed = [domain.values() for domain in sweep.space.values()]
    product = math.prod(len(values) if values is not None else math.inf for values in listed)
    rules = sweep.rules()
    if not rules.are_any or product > _MAX_COUNTED:
        return product
    return sum(not rules.broken(overrides) for overrides in grid(sweep))


def make_plan(sweep: Sweep) -> Plan:
    """Read the images, check every trial that is known beforehand, and give it its key.

    Raises:
        ConfigError: some trial cannot work: every such value with its reason, in one error.
        DataError: the images cannot be used.
    """
    check_own(sweep)
    prepared = prepare_base(sweep)
    resolved = sweep.model_copy(update={"experiment": with_absolute_paths(sweep.experiment)})
    wanted = max(sweep.search.num_samples or DEFAULT_SAMPLES, len(sweep.search.start_with))
    plan = Plan(resolved, prepared, [], wanted, [*prepared.notes])
    note_search(plan)
    if sweep.search.algorithm != "grid":
        _check_corners(plan)
    for number, point in enumerate(sweep.search.start_with):
        try:
            plan.add(point)
        except ConfigError as error:
            raise ConfigError(f"search.start_with.{number}: {error}") from None
    if sweep.search.algorithm == "grid":
        _plan_grid(plan)
        return with_seeds(plan)
    distinct = num_combinations(sweep)
    if distinct < wanted:
        plan.num_planned = int(distinct)
        plan.notes.append(f"the space has only {int(distinct)} different trials, so {int(distinct)} run instead of {wanted}")
    if sweep.search.algorithm in LISTED:
        plan_draws(plan, draws(sweep) if sweep.search.algorithm == "random" else sobol(sweep), distinct)
    else:
        check_not_empty(plan, draws(sweep))
    return with_seeds(plan)


def _plan_grid(plan: Plan) -> None:
    """Plan every combination; those that cannot be trained get a row with their reason.

    Raises:
        ConfigError: none can.
    """
    first, repeats, refused = [trial.overrides for trial in plan.trials], [], []
    for overrides in grid(plan.sweep):
        try:
            is_new = plan.add(overrides) is not None
        except ConfigError as error:
            is_new = plan.add_infeasible(overrides, str(error)) is not None
            refused.append(str(error))
        if not is_new and overrides not in first:
            repeats.append(overrides)
    plan.num_planned = len(plan.trials)
    if len(refused) == len(plan.trials):
        raise ConfigError("no trial of the space can be trained:\n  " + "\n  ".join(dict.fromkeys(refused)))
    note_infeasible(plan)
    if repeats:
        what = "1 combination means" if len(repeats) == 1 else f"{len(repeats)} combinations mean"
        plan.notes.append(f"{what} the same training as another one and takes no run of its own, such as {repeats[0]}")


def prepare_base(sweep: Sweep) -> Prepared:
    """The experiment as a first trial of the space makes it: what is swept need not be feasible at its default.

    Raises:
        ConfigError, DataError: the images cannot be used, or no value of the space fits them.
    """
    errors: list[ConfigError] = []
    for overrides in itertools.chain(itertools.islice(grid_of_corners(sweep), 64), itertools.islice(draws(sweep), 64)):
        try:
            return prepare(sweep.experiment.with_overrides(overrides))
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def grid_of_corners(sweep: Sweep, fixed: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Every combination of the domains' outermost values; `fixed`: of some settings this value alone."""
    values = [[fixed[key]] if fixed and key in fixed else domain.corners() for key, domain in sweep.space.items()]
    rules = sweep.rules()
    for combination in itertools.product(*values):
        yield rules.active(dict(zip(sweep.space, combination, strict=True)))


def _check_corners(plan: Plan) -> None:
    """Refuse values that no trial could train with, one line each; those that go with some others are left to the trials."""
    mistakes = []
    for key, domain in plan.sweep.space.items():
        for value in domain.corners():
            why = ""
            for overrides in itertools.islice(grid_of_corners(plan.sweep, {key: value}), 64):
                if key not in overrides or plan.rules.broken(overrides):
                    continue
                try:
                    experiment = plan.experiment(overrides)
                    plan.check(experiment)
                except ConfigError as error:
                    why = why or str(error)
                    continue
                why = ""
                break
            mistakes += [f"space.{key}: {value!r}: {why}"] if why else []
    if mistakes:
        raise ConfigError("\n  ".join(dict.fromkeys(mistakes)))
