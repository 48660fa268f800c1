"""What a sweep's next start finds where a driver died at an unlucky moment, or where the sweep was changed. No Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lives import World, cut, events, life

from raysweep.store import results

BASE: dict[str, Any] = {
    "name": "s",
    "experiment": {"data": {"source": "digits", "count": 50}, "model": {"base_channels": 2}, "train": {"epochs": 3}},
    "space": {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2]}},
}


def tree(**changes: Any) -> dict[str, Any]:
    """The sweep with settings changed: `experiment__train__epochs=6`."""
    made: dict[str, Any] = json.loads(json.dumps(BASE))
    for key, value in changes.items():
        place = made
        *parents, last = key.split("__")
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return made


def statuses(storage: Path) -> list[str]:
    return list(results.load(storage / "s").trials["status"])


# --- What cannot be trained -------------------------------------------------------------------------------------------


def test_a_grid_that_grows_only_by_what_cannot_be_trained_has_its_rows(tmp_path: Path) -> None:
    world = World()
    assert life(tree(), tmp_path, world) == "completed"
    deeper = tree(space={**BASE["space"], "model.depth": {"grid": [1, 2, 9]}})
    assert life(deeper, tmp_path, world) == "completed"
    assert statuses(tmp_path) == ["completed"] * 4 + ["infeasible"] * 2
    assert len(world.trained) == 4 * 3
    assert life(deeper, tmp_path, world) == "over"


def test_what_cannot_be_trained_is_told_so_where_the_driver_died_before_its_end_was_written(tmp_path: Path) -> None:
    deeper, world = tree(space={"optim.lr": {"grid": [1e-3]}, "model.depth": {"grid": [1, 9]}}), World()
    life(deeper, tmp_path, world)
    cut(tmp_path, '{"event":"end"')
    cut(tmp_path, '{"event":"end"')
    assert statuses(tmp_path) == ["unfinished", "unfinished"]
    assert life(deeper, tmp_path, world) == "completed"
    assert statuses(tmp_path) == ["completed", "infeasible"]
    assert [e["trial"] for e in events(tmp_path, "trial")] == [0, 1]
    assert life(deeper, tmp_path, world) == "over"


# --- Decisions --------------------------------------------------------------------------------------------------------

HALVING = tree(space={"optim.lr": {"grid": [1e-4, 1e-3, 1e-2, 1e-1]}}, scheduler={"name": "asha", "reduction_factor": 2})


def test_a_stop_is_told_once_where_the_driver_died_between_the_decision_and_the_end(tmp_path: Path) -> None:
    world = World()
    life(HALVING, tmp_path, world)
    decisions, trained = events(tmp_path, "decision"), len(world.trained)
    cut(tmp_path, '{"event":"decision"', after=True)
    assert life(HALVING, tmp_path, world) == "completed"
    assert events(tmp_path, "decision") == decisions
    assert statuses(tmp_path).count("stopped") == len(decisions) >= 2
    assert len(world.trained) == trained


# --- A space that changes ---------------------------------------------------------------------------------------------


def test_a_setting_that_is_added_and_seeds_make_one_configuration_of_what_is_the_same_training(tmp_path: Path) -> None:
    world, lr = World(), {"optim.lr": {"grid": [1e-3, 1e-2]}}
    life(tree(space=lr), tmp_path, world)
    wider = tree(space={**lr, "model.dropout": {"grid": [0.0, 0.1]}}, search={"seeds": 2})
    life(wider, tmp_path, world)
    found = results.load(tmp_path / "s")
    assert sorted(found.configurations["seeds"]) == [2, 2, 2, 2]
    assert sorted(found.trials["dropout"]) == [0.0] * 4 + [0.1] * 4, "the first trials had none, as they were planned"
    planned = len(events(tmp_path, "trial"))
    assert life(wider, tmp_path, world) == "over"
    life({**wider, "search": {"seeds": 3}}, tmp_path, world)
    assert len(events(tmp_path, "trial")) == planned + 4, "only what is new"
