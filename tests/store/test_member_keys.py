"""The key of a population's member: what it copies follows from the others, so they are in it; the budget is not."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.config import Sweep
from raysweep.store.keys import KEY_LENGTH, member_key

BASE: dict[str, Any] = {
    "space": {"optim.lr": {"loguniform": [1e-4, 1e-1]}, "model.depth": {"choice": [1, 2]}},
    "search": {"algorithm": "random", "num_samples": 8},
    "scheduler": {"name": "pbt"},
}


def key(**changes: Any) -> str:
    return member_key("0" * KEY_LENGTH, Sweep.from_dict({**BASE, **changes}))


def test_the_key_is_the_same_in_every_release() -> None:
    """Changing it makes every finished population train again."""
    assert key() == "9f8ff59df2db"
    assert key() != "0" * KEY_LENGTH


@pytest.mark.parametrize(
    "changes",
    [
        {"space": {**BASE["space"], "optim.lr": {"loguniform": [1e-5, 1e-1]}}},
        {"space": dict(reversed(BASE["space"].items()))},
        {"search": {**BASE["search"], "num_samples": 9}},
        {"search": {**BASE["search"], "seed": 1}},
        {"search": {**BASE["search"], "algorithm": "sobol"}},
        {"search": {**BASE["search"], "start_with": [{"optim.lr": 1e-3, "model.depth": 1}]}},
        {"scheduler": {"name": "pbt", "interval": 3}},
        {"scheduler": {"name": "pbt", "quantile": 0.5}},
        {"scheduler": {"name": "pbt", "resample_probability": 0.0}},
        {"objective": {"metric": "train_loss"}},
    ],
)
def test_what_decides_whom_a_member_copies_is_inside(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"experiment": {"train": {"epochs": 99}}},
        {"search": {**BASE["search"], "max_concurrent": 2}},
        {"scheduler": {"name": "pbt", "interval": 2, "quantile": 0.25}},
        {"budget": {"wall_time_s": 5}},
        {"name": "other"},
    ],
)
def test_budget_and_resources_are_outside(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()
