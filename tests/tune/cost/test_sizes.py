"""Which trials cost the same, and what is said of sizes that were not measured."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.config import Sweep
from raysweep.experiment import Experiment
from raysweep.tune.cost.sizes import Cost, Size, chosen, filled, size_name, sizes_of, unknown_trials
from raysweep.tune.plan import Plan, make_plan

BASE = Experiment.from_dict({"data": {"source": "digits", "count": 60}, "model": {"depth": 1, "base_channels": 2}})


def plan(space: dict[str, Any], search: dict[str, Any] | None = None) -> Plan:
    experiment = BASE.model_dump(mode="json", exclude_unset=True)
    return make_plan(Sweep.from_dict({"experiment": experiment, "space": space, "search": search or {}}))


@pytest.mark.parametrize(
    "overrides",
    [
        {"optim.lr": 0.1}, {"train.seed": 3}, {"train.epochs": 99}, {"model.init": "reference"}, {"train.patience": 2},
        {"optim.schedule": "cosine"}, {"train.tensorboard": True}, {"data.seed": 2}, {"optim.betas": [0.5, 0.9]},
    ],
)  # fmt: skip
def test_what_costs_nothing_is_no_size_of_its_own(overrides: dict[str, Any]) -> None:
    assert size_name(BASE.with_overrides(overrides)) == size_name(BASE)


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.depth": 2}, {"model.base_channels": 4}, {"model.norm": "group"}, {"model.dropout": 0.1}, {"data.noise": 0.1},
        {"train.batch_size": 8}, {"train.micro_batch": 4}, {"train.precision": "bf16"}, {"train.channels_last": False},
        {"train.exactness": "bitwise"}, {"optim.name": "sgd"}, {"optim.clip_norm": 1.0}, {"data.count": 50}, {"model.skip": True},
    ],
)  # fmt: skip
def test_what_a_step_costs_makes_a_size(overrides: dict[str, Any]) -> None:
    assert size_name(BASE.with_overrides(overrides)) != size_name(BASE)


def test_a_switch_counts_and_its_value_does_not() -> None:
    some, more = (size_name(BASE.with_overrides({"model.dropout": share})) for share in (0.1, 0.5))
    assert some == more


def test_of_a_users_model_every_parameter_counts() -> None:
    own = {"model": {"factory": "mine:net", "params": {"width": 4}}}
    names = {size_name(Experiment.from_dict({"model": {**own["model"], "params": {"width": w}}})) for w in (4, 8)}
    assert len(names) == 2


def test_sizes_come_with_the_least_work_first_and_each_trial_has_its_own() -> None:
    made = plan({"model.depth": {"grid": [2, 1]}, "optim.lr": {"grid": [1e-3, 1e-2]}})
    sizes, places = sizes_of(made, made.trials)
    assert [size.experiment.model.depth for size in sizes] == [1, 2]
    assert places == [1, 1, 0, 0]
    assert sizes[0].work < sizes[1].work
    assert (sizes[0].num_train, sizes[0].num_val) == (48, 12)
    # The first convolution: 8 x 8 places, 3 x 3 x 1 values, 2 channels; two more of the decoder at least.
    assert 8 * 8 * 9 * 2 < sizes[0].work < 100 * 8 * 8 * 9 * 2


def test_random_draws_stand_for_trials_that_a_search_has_yet_to_think_of() -> None:
    made = plan(
        {"optim.lr": {"loguniform": [1e-4, 1e-1]}, "model.depth": {"randint": [1, 4]}}, {"algorithm": "tpe", "num_samples": 9}
    )
    drawn = unknown_trials(made)
    assert len({trial.key for trial in drawn}) == 9
    assert {trial.overrides["model.depth"] for trial in drawn} <= {1, 2, 3}
    assert made.trials == [], "the plan stays as it is"
    assert unknown_trials(plan({"optim.lr": {"grid": [1e-3, 1e-2]}})) == []


def size(work: float, num_train: int = 100) -> Size:
    return Size(BASE, num_train, 10, 10, work)


def test_where_there_is_no_time_for_all_those_in_between_are_worked_out() -> None:
    sizes = [size(work) for work in (1, 2, 3, 4, 5)]
    assert chosen(sizes, 3) == [0, 2, 4]
    assert chosen(sizes, 99) == [0, 1, 2, 3, 4]
    costs = filled(sizes, {0: Cost(1.0, 100), 2: Cost(5.0, 300), 4: Cost(6.0, 300)})
    assert [cost.epoch_s for cost in costs] == pytest.approx([1, 3, 5, 5.5, 6])
    assert [cost.memory_bytes for cost in costs] == pytest.approx([100, 200, 300, 300, 300])
    assert [cost.measured for cost in costs] == [True, False, True, False, True]


def test_beyond_what_was_measured_seconds_grow_with_the_work() -> None:
    costs = filled([size(1), size(2), size(6)], {0: Cost(1.0, 100), 1: Cost(3.0, 200)})
    assert costs[2] == Cost(9.0, 200, measured=False)


def test_more_images_are_more_work() -> None:
    costs = filled([size(1, 100), size(1, 150), size(1, 200)], {0: Cost(1.0, 0), 2: Cost(2.0, 0)})
    assert costs[1].epoch_s == pytest.approx(1.5)
