"""Which trials a sweep has: distinct, checked, the same for the same seed; no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.tune.plan import make_plan


def sweep(space: dict[str, Any], experiment: dict[str, Any] | None = None, **search: Any) -> Sweep:
    base = {"data": {"source": "digits", "count": 50}, "train": {"batch_size": 8}, **(experiment or {})}
    return Sweep.from_dict({"experiment": base, "space": space, "search": search})


def test_a_grid_is_every_combination_in_the_order_of_the_file() -> None:
    plan = make_plan(sweep({"optim.lr": {"grid": [0.1, 1e-3]}, "model.depth": {"grid": [2, 1]}}))
    assert [t.overrides for t in plan.trials] == [
        {"optim.lr": lr, "model.depth": depth} for lr, depth in [(0.1, 2), (0.1, 1), (1e-3, 2), (1e-3, 1)]
    ]
    assert [t.number for t in plan.trials] == [0, 1, 2, 3]
    assert plan.num_planned == 4
    assert plan.trials[0].model.parameters > plan.trials[1].model.parameters


def test_values_that_mean_the_same_are_one_trial() -> None:
    plan = make_plan(sweep({"optim.lr": {"choice": [1e-3, "1e-3", 2e-3]}}))
    assert [t.overrides["optim.lr"] for t in plan.trials] == [1e-3, 2e-3]
    said = "1 combination means the same training as another one and takes no run of its own, such as {'optim.lr': '1e-3'}"
    assert plan.notes == [said]


def test_random_draws_are_distinct_and_follow_the_seed() -> None:
    space = {"optim.lr": {"loguniform": [1e-4, 1e-1]}, "model.depth": {"randint": [1, 4]}}
    first, again, other = (make_plan(sweep(space, algorithm="random", num_samples=20, seed=s)) for s in (5, 5, 6))
    assert [t.key for t in first.trials] == [t.key for t in again.trials]
    assert [t.key for t in first.trials] != [t.key for t in other.trials]
    assert len({t.key for t in first.trials}) == 20


def test_a_space_smaller_than_asked_runs_whole_and_says_so() -> None:
    plan = make_plan(sweep({"model.depth": {"choice": [1, 2, 3]}}, algorithm="random", num_samples=10))
    assert sorted(t.overrides["model.depth"] for t in plan.trials) == [1, 2, 3]
    assert plan.num_planned == 3
    assert plan.notes == ["the space has only 3 different trials, so 3 run instead of 10"]


def test_tpe_plans_nothing_beforehand() -> None:
    plan = make_plan(sweep({"optim.lr": {"loguniform": [1e-4, 1e-1]}}, algorithm="tpe", num_samples=7))
    assert plan.trials == []
    assert plan.num_planned == 7


def test_a_grid_keeps_what_cannot_be_trained_with_its_reason() -> None:
    plan = make_plan(sweep({"model.depth": {"grid": [1, 5]}, "optim.lr": {"grid": [1e-3, 1e-2]}}))
    assert [bool(t.infeasible) for t in plan.trials] == [False, False, True, True]
    assert "at most depth 3, got 5" in plan.trials[2].infeasible
    assert plan.num_planned == 4
    assert plan.notes == ["2 of 4 trials cannot be trained and are in the results as infeasible"]
    again = make_plan(sweep({"model.depth": {"grid": [1, 5]}, "optim.lr": {"grid": [1e-3, 1e-2]}}))
    assert [t.key for t in again.trials] == [t.key for t in plan.trials]


def test_settings_that_exclude_each_other_are_infeasible_together() -> None:
    space = {"model.base_channels": {"grid": [16, 64]}, "model.max_channels": {"grid": [32, 128]}}
    plan = make_plan(sweep(space))
    assert [t.overrides for t in plan.trials if t.infeasible] == [{"model.base_channels": 64, "model.max_channels": 32}]


def test_a_grid_of_which_nothing_can_be_trained_is_refused_with_every_reason() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(sweep({"model.depth": {"grid": [5, 6]}}))
    assert str(caught.value).count("at most depth 3") >= 1


def test_all_infeasible_values_of_a_search_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(sweep({"model.depth": {"choice": [1, 5, 6]}}, algorithm="random", num_samples=2))
    text = str(caught.value)
    assert "space.model.depth: 5" in text
    assert "space.model.depth: 6" in text
    assert text.count("at most depth 3") == 2


def test_an_infeasible_default_does_not_matter_where_the_space_sets_it() -> None:
    plan = make_plan(sweep({"model.depth": {"grid": [1, 2]}}, experiment={"model": {"depth": 9}}))
    assert len(plan.trials) == 2


def test_the_budget_is_no_part_of_a_trials_key_and_the_seed_is() -> None:
    space = {"model.depth": {"grid": [1]}}
    keys = [make_plan(sweep(space, {"train": train})).trials[0].key for train in ({"epochs": 1}, {"epochs": 9}, {"seed": 1})]
    assert keys[0] == keys[1] != keys[2]


def test_moved_images_keep_the_keys_and_changed_ones_change_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    changed = images.copy()
    changed[3, 2, 2, 0] ^= 1
    keys = []
    for name, content in (("a", images), ("b", images), ("c", changed)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", content)
        data = {"data": {"source": "arrays", "path": str(tmp_path / name / "x.npy")}}
        keys.append(make_plan(sweep({"model.depth": {"grid": [1]}}, data)).trials[0].key)
    assert keys[0] == keys[1] != keys[2]


MOMENTUM = {"optim.momentum": {"grid": [0.1, 0.9]}}


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (
            {"optim.name": {"grid": ["adam", "sgd"]}, **MOMENTUM},
            "optim.momentum has no effect with optim.name adam, where the same would be trained again; "
            "give it `when: \"optim.name == 'sgd'\"`",
        ),
        (MOMENTUM, "optim.momentum has no effect with optim.name adam, where the same would be trained again; leave it out"),
        (
            {"optim.schedule": {"grid": ["constant", "cosine"]}, "optim.min_lr": {"grid": [1e-5, 1e-6]}},
            "optim.min_lr has no effect with optim.schedule constant, where the same would be trained again; "
            "give it `when: \"optim.schedule == 'cosine'\"`",
        ),
        (
            {"optim.name": {"grid": ["adam", "sgd"]}, "optim.eps": {"grid": [1e-8, 1e-7]}},
            "optim.eps has no effect with optim.name sgd, where the same would be trained again; "
            "give it `when: \"optim.name == 'adam' or optim.name == 'adamw'\"`",
        ),
        ({"optim.name": {"grid": ["adamw", "adam"]}, "optim.eps": {"grid": [1e-8, 1e-7]}}, None),
        (
            {
                "optim.name": {"grid": ["adam", "sgd"]},
                "optim.momentum": {"grid": [0.1, 0.9], "when": "optim.name == 'sgd'"},
            },
            None,
        ),
    ],
)
def test_a_setting_without_an_effect_beside_another_is_said(space: dict[str, Any], told: str | None) -> None:
    assert make_plan(sweep(space)).notes == ([told] if told else [])


def test_swept_data_is_read_as_swept() -> None:
    plan = make_plan(sweep({"data.noise": {"grid": [0.0, 0.5]}}))
    assert [plan.experiment(t.overrides).data.noise for t in plan.trials] == [0.0, 0.5]
    assert len({t.key for t in plan.trials}) == 2
    assert plan.notes == ["data.noise makes other images: losses compare only between trials that have the same"]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("sweeps/*.yaml")), ids=lambda path: path.stem)
def test_the_ready_sweeps_can_be_planned(path: Path) -> None:
    assert make_plan(Sweep.from_file(path)).num_planned >= 16


def test_a_range_of_fractions_for_a_whole_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"use \{randint"):
        sweep({"model.depth": {"uniform": [1, 3]}}, algorithm="tpe", num_samples=3)


def test_early_stopping_that_could_never_stop_is_refused() -> None:
    content = {"experiment": {"train": {"epochs": 2}}, "space": {"optim.lr": {"grid": [1e-3]}}}
    with pytest.raises(ConfigError, match="grace_period 2 of 2 epochs"):
        Sweep.from_dict({**content, "scheduler": {"name": "asha", "grace_period": 2}})


def test_settings_that_are_seldom_meant_are_noted() -> None:
    experiment = {"train": {"batch_size": 500, "epochs": 1}, "optim": {"warmup_steps": 10}}
    notes = make_plan(sweep({"model.depth": {"grid": [1]}}, experiment)).notes
    assert len(notes) == 2
    assert "more than the 40 training samples" in notes[0]
    assert "never reached" in notes[1]


def test_a_file_of_the_other_kind_is_told_apart(tmp_path: Path) -> None:
    from raysweep.config import Experiment

    (tmp_path / "e.yaml").write_text("train: {epochs: 1}")
    (tmp_path / "s.yaml").write_text("space: {optim.lr: {grid: [1e-3]}}")
    with pytest.raises(ConfigError, match="holds an experiment, not a sweep"):
        Sweep.from_file(tmp_path / "e.yaml")
    with pytest.raises(ConfigError, match="holds a sweep, not an experiment"):
        Experiment.from_file(tmp_path / "s.yaml")


def test_a_population_has_keys_of_its_own() -> None:
    content = sweep({"optim.lr": {"loguniform": [1e-4, 1e-1]}}, algorithm="random", num_samples=4).model_dump(exclude_unset=True)
    alone, members = make_plan(Sweep.from_dict(content)), make_plan(Sweep.from_dict({**content, "scheduler": {"name": "pbt"}}))
    assert [t.overrides for t in alone.trials] == [t.overrides for t in members.trials]
    assert not {t.key for t in alone.trials} & {t.key for t in members.trials}


def test_cmaes_says_which_settings_it_draws_at_random() -> None:
    space = {
        "optim.lr": {"loguniform": [1e-4, 1e-1]},
        "model.depth": {"randint": [1, 3]},
        "model.norm": {"choice": ["none", "group"]},
    }
    note = "search.algorithm cmaes learns of ranges, and draws model.norm at random; tpe and gp learn of lists, too"
    assert note in make_plan(sweep(space, algorithm="cmaes")).notes
    for algorithm in ("tpe", "gp", "random"):
        assert note not in make_plan(sweep(space, algorithm=algorithm)).notes
    del space["model.norm"]
    assert not any("cmaes" in text for text in make_plan(sweep(space, algorithm="cmaes")).notes)


@pytest.mark.parametrize(("algorithm", "learns"), [("tpe", ", and tpe learns nothing from it"), ("random", "")])
def test_a_point_outside_the_space_is_tried_and_said(algorithm: str, learns: str) -> None:
    points = [{"optim.lr": 1.0, "model.depth": 2}, {"optim.lr": "5e-2", "model.depth": 1}]
    space = {"optim.lr": {"loguniform": [1e-3, 0.1]}, "model.depth": {"choice": [1, 2]}}
    plan = make_plan(sweep(space, algorithm=algorithm, num_samples=1, start_with=points))
    assert [trial.overrides for trial in plan.trials] == [points[0], {"optim.lr": 0.05, "model.depth": 1}]
    assert plan.num_planned == 2, "more points than samples: as many trials as points"
    assert plan.notes == [f"search.start_with.0: optim.lr 1.0 lies outside the space; the point is tried all the same{learns}"]
