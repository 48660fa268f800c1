"""What cannot be a population is refused before anything starts, with the rule and the setting to change."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.config import Sweep
from raysweep.errors import ConfigError

SPACE: dict[str, Any] = {"optim.lr": {"loguniform": [1e-4, 1e-1]}}


def tree(**changes: Any) -> dict[str, Any]:
    return {
        "space": SPACE,
        "search": {"algorithm": "random", "num_samples": 8, **changes.pop("search", {})},
        "scheduler": {"name": "pbt", **changes.pop("scheduler", {})},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"algorithm": "tpe"}}, "search.algorithm tpe waits for trials that have ended"),
        ({"search": {"algorithm": "gp"}}, "use grid, random or sobol with scheduler pbt"),
        ({"search": {"algorithm": "cmaes"}}, "search.algorithm cmaes"),
        ({"search": {"num_samples": 3}}, "a population of at least 4 trials, got 3"),
        ({"space": {"optim.lr": {"choice": [1e-3, 1e-2]}}}, "at least 4 trials, got 2"),
        ({"scheduler": {"interval": 8}}, "scheduler.interval 8 of 8 epochs: no member could ever copy another; lower it"),
        ({"scheduler": {"quantile": 0.6}}, "scheduler.quantile"),
        ({"scheduler": {"quantile": 0}}, "scheduler.quantile"),
        ({"scheduler": {"resample_probability": 1.5}}, "scheduler.resample_probability"),
        ({"space": {**SPACE, "data.noise": {"uniform": [0.0, 0.5]}}}, "space.data.noise: the members of a population copy"),
        ({"space": {**SPACE, "data.seed": {"randint": [0, 9]}}}, "the same images and the same split"),
        ({"experiment": {"train": {"patience": 2}}}, "train.patience ends trials one by one"),
        ({"space": {**SPACE, "train.patience": {"choice": [2, 3]}}}, "train.patience ends trials one by one"),
    ],
)
def test_what_cannot_be_a_population_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sweep.from_dict(tree(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"search": {"algorithm": "sobol"}},
        {"search": {"num_samples": None}},
        {"space": {**SPACE, "train.seed": {"randint": [0, 9]}, "train.batch_size": {"choice": [16, 32]}}},
        {"space": {"optim.lr": {"choice": [1e-3, 1e-2]}}, "search": {"start_with": [{"optim.lr": v} for v in (2e-3, 3e-3)]}},
        {"scheduler": {"interval": 7, "quantile": 0.5, "resample_probability": 0}},
    ],
)
def test_populations_of_all_kinds_are_accepted(changes: dict[str, Any]) -> None:
    Sweep.from_dict(tree(**changes))


def test_a_grid_of_four_is_a_population_and_one_of_three_is_not() -> None:
    def grid(*values: float) -> Sweep:
        return Sweep.from_dict({"space": {"optim.lr": {"grid": list(values)}}, "scheduler": {"name": "pbt"}})

    assert grid(1e-4, 1e-3, 1e-2, 1e-1).scheduler.interval == 2
    with pytest.raises(ConfigError, match="got 3"):
        grid(1e-3, 1e-2, 1e-1)


@pytest.mark.parametrize("name", ["none", "asha", "median", "hyperband"])
@pytest.mark.parametrize("setting", [{"interval": 2}, {"quantile": 0.25}, {"resample_probability": 0.25}])
def test_settings_of_a_population_beside_another_scheduler_are_refused(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"goes with scheduler.name pbt, got {name}"):
        Sweep.from_dict({"space": SPACE, "search": {"algorithm": "random"}, "scheduler": {"name": name, **setting}})


def test_a_grace_period_says_nothing_to_a_population() -> None:
    Sweep.from_dict(tree(experiment={"train": {"epochs": 3}}, scheduler={"grace_period": 9}))
