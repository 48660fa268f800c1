"""Grids and draws with conditions and constraints: which trials there are, which are listed as infeasible, and when it ends."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.store import results
from raysweep.store.journal import JournalWriter
from raysweep.tune import drawing
from raysweep.tune.drawing import draws, sobol
from raysweep.tune.plan import Plan, make_plan, num_combinations
from raysweep.tune.recorder import SweepRecorder

SPACE: dict[str, Any] = {
    "model.dropout": {"choice": [0.1, 0.2, 0.3], "when": "model.depth > 2"},
    "model.depth": {"choice": [1, 2, 3]},
}
RANGES: dict[str, Any] = {
    "optim.lr": {"loguniform": [1e-4, 1e-1]},
    "model.depth": {"randint": [1, 4]},
    "model.dropout": {"uniform": [0, 0.5], "when": "model.depth > 2"},
}


def sweep(space: dict[str, Any], *constraints: str, experiment: dict[str, Any] | None = None, **search: Any) -> Sweep:
    base = {"data": {"source": "digits", "count": 50}, "train": {"batch_size": 8}, **(experiment or {})}
    return Sweep.from_dict({"experiment": base, "space": space, "search": search, "constraints": list(constraints)})


def overrides(plan: Plan) -> list[dict[str, Any]]:
    return [trial.overrides for trial in plan.trials]


# --- Grids ------------------------------------------------------------------------------------------------------------


def test_combinations_that_become_the_same_are_one_trial() -> None:
    plan = make_plan(sweep(SPACE))
    assert overrides(plan) == [
        {"model.depth": 1},
        {"model.depth": 2},
        {"model.dropout": 0.1, "model.depth": 3},
        {"model.dropout": 0.2, "model.depth": 3},
        {"model.dropout": 0.3, "model.depth": 3},
    ]
    assert plan.notes == [], "nothing was repeated that a user has written"
    assert num_combinations(sweep(SPACE)) == 5


def test_the_experiments_own_value_holds_where_a_condition_is_not_met() -> None:
    plan = make_plan(sweep(SPACE, experiment={"model": {"dropout": 0.4}}))
    assert [plan.experiment(trial.overrides).model.dropout for trial in plan.trials] == [0.4, 0.4, 0.1, 0.2, 0.3]


def test_a_condition_changes_no_key() -> None:
    without = {trial.key for trial in make_plan(sweep({key: {"choice": d["choice"]} for key, d in SPACE.items()})).trials}
    assert {trial.key for trial in make_plan(sweep(SPACE)).trials if "model.dropout" in trial.overrides} < without


def test_what_breaks_a_constraint_is_listed_with_the_reason() -> None:
    plan = make_plan(sweep(SPACE, "model.depth < 3 or model.dropout < 0.25", "model.depth * model.base_channels <= 48"))
    assert [bool(trial.infeasible) for trial in plan.trials] == [False, False, False, False, True]
    why = "the constraint model.depth < 3 or model.dropout < 0.25 is not met: model.depth 3, model.dropout 0.3"
    assert plan.trials[-1].infeasible == why
    assert plan.notes == ["1 of 5 trials cannot be trained and are in the results as infeasible"]
    assert num_combinations(plan.sweep) == 4


def test_a_grid_of_which_constraints_leave_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no trial of the space can be trained:\n  the constraint model\.depth == 9 or optim"):
        make_plan(sweep({"model.depth": {"grid": [1, 9]}}, "model.depth == 9 or optim.lr > 1"))


def test_old_keys_of_infeasible_trials_do_not_change() -> None:
    """A sweep that is gone on with finds its infeasible trials again, so a reason is not in the key."""
    space = {"model.depth": {"grid": [1, 9]}}
    before, now = make_plan(sweep(space)), make_plan(sweep(space, "model.depth < 5"))
    assert [trial.key for trial in before.trials] == [trial.key for trial in now.trials]
    assert before.trials[1].infeasible != now.trials[1].infeasible


# --- Draws ------------------------------------------------------------------------------------------------------------


def test_draws_of_spaces_without_conditions_are_those_of_earlier_releases() -> None:
    space = {key: {name: args for name, args in domain.items() if name != "when"} for key, domain in RANGES.items()}
    first = next(draws(sweep(space, algorithm="random", seed=5)))
    assert first == {"optim.lr": 0.02600212, "model.depth": 3, "model.dropout": 0.257663}


@pytest.mark.parametrize("source", [draws, sobol])
def test_a_condition_changes_no_other_value(source: Any) -> None:
    free = {key: {name: args for name, args in domain.items() if name != "when"} for key, domain in RANGES.items()}
    drawn = zip(source(sweep(RANGES, algorithm="random")), source(sweep(free, algorithm="random")), strict=False)
    kinds = set()
    for conditional, plain in itertools.islice(drawn, 50):
        expected = {key: value for key, value in plain.items() if key != "model.dropout" or plain["model.depth"] > 2}
        assert conditional == expected
        kinds.add(len(conditional))
    assert kinds == {2, 3}


@pytest.mark.parametrize("algorithm", ["random", "sobol"])
def test_draws_that_break_a_constraint_are_drawn_anew_and_counted(algorithm: str) -> None:
    plan = make_plan(sweep(RANGES, "model.depth * optim.lr < 0.01", algorithm=algorithm, num_samples=20))
    assert len(plan.trials) == plan.num_planned == 20
    assert all(o["model.depth"] * o["optim.lr"] < 0.01 for o in overrides(plan))
    (note,) = plan.notes
    number = int(note.split()[0])
    assert 5 < number < 40, "about half of the draws"
    assert note.startswith(
        f"{number} draws broke a constraint and were drawn anew; the last: the constraint model.depth * optim.lr"
    )
    longer = make_plan(sweep(RANGES, "model.depth * optim.lr < 0.01", algorithm=algorithm, num_samples=30))
    assert [t.key for t in longer.trials[:20]] == [t.key for t in plan.trials], "more samples go on with the same list"


def test_a_small_space_that_constraints_make_smaller_runs_whole() -> None:
    plan = make_plan(sweep(SPACE, "model.depth != 2", algorithm="random", num_samples=10))
    assert sorted(repr(o) for o in overrides(plan)) == sorted(
        repr(o) for o in [{"model.depth": 1}, *({"model.dropout": d, "model.depth": 3} for d in (0.1, 0.2, 0.3))]
    )
    assert plan.notes[0] == "the space has only 4 different trials, so 4 run instead of 10"


@pytest.mark.parametrize("algorithm", ["random", "sobol"])
def test_a_space_that_constraints_leave_empty_ends_with_a_message(algorithm: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^constraints: 10000 draws of the space in a row broke them; the last: the constraint"
    ):
        make_plan(sweep(RANGES, "0.05 < optim.lr < 0.0500001", algorithm=algorithm, num_samples=4))


def test_a_space_that_is_nearly_empty_runs_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MAX_REFUSED", 300)
    plan = make_plan(sweep(RANGES, "optim.lr < 0.00011", algorithm="random", num_samples=200))
    assert 0 < len(plan.trials) == plan.num_planned < 200
    assert plan.notes[0].startswith(f"only {len(plan.trials)} different trials were found in ")


PHOTOS = {"data": {"source": "photos", "count": 50}}
DEEP: dict[str, Any] = {"data.patch": {"choice": [8, 16]}, "model.depth": {"choice": [1, 2, 4]}}
"""Depth 4 goes with the larger images only."""


@pytest.mark.parametrize("algorithm", ["random", "sobol"])
def test_a_draw_that_the_model_refuses_is_listed_and_another_one_drawn(algorithm: str) -> None:
    space = {**DEEP, "optim.lr": {"loguniform": [1e-4, 1e-1]}}
    plan = make_plan(sweep(space, experiment=PHOTOS, algorithm=algorithm, num_samples=12))
    infeasible = [trial for trial in plan.trials if trial.infeasible]
    assert 0 < len(infeasible) < 12
    assert all(t.overrides["model.depth"] == 4 and t.overrides["data.patch"] == 8 for t in infeasible)
    assert "at most depth 3, got 4" in infeasible[0].infeasible
    assert len(plan.trials) - len(infeasible) == 12
    assert [trial.number for trial in plan.trials] == list(range(plan.num_planned))
    assert plan.notes[1:] == [
        f"{len(infeasible)} of {plan.num_planned} trials cannot be trained and are in the results as infeasible"
    ]


def test_a_finite_space_ends_when_all_of_it_is_listed() -> None:
    plan = make_plan(sweep(DEEP, experiment=PHOTOS, algorithm="random", num_samples=30))
    assert len(plan.trials) == 6
    assert sum(bool(trial.infeasible) for trial in plan.trials) == 1
    assert "the space has only 6 different trials, so 6 run instead of 30" in plan.notes


def test_a_space_of_which_hardly_anything_can_be_trained_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "max_infeasible", lambda _wanted: 3)
    space = {"model.base_channels": {"randint": [16, 3000]}, "model.max_channels": {"randint": [17, 3001]}}
    settings: dict[str, Any] = {"experiment": {"model": {"max_channels": 3000}}, "algorithm": "random", "num_samples": 16}
    with pytest.raises(ConfigError, match=r"^only \d+ of \d+ draws of the space can be trained; narrow it, or say with"):
        make_plan(sweep(space, **settings))
    plan = make_plan(sweep(space, "model.base_channels <= model.max_channels", **settings))
    assert [bool(trial.infeasible) for trial in plan.trials] == [False] * 16, "the constraint says what can be trained"


# --- In the journal and the results -----------------------------------------------------------------------------------


def test_the_results_have_no_value_where_a_condition_is_not_met(tmp_path: Path) -> None:
    plan = make_plan(sweep(SPACE, "model.depth < 3 or model.dropout < 0.25"))
    journal = JournalWriter(tmp_path / "journal.jsonl")
    content = plan.sweep.model_dump(mode="json", exclude_unset=True)
    journal.event("start", sweep=content, experiment={}, data=plan.prepared.facts, planned=plan.num_planned, at_once=1)
    SweepRecorder(plan, journal)
    journal.close()
    trials = results.load(tmp_path).trials
    assert list(trials["depth"]) == [1, 2, 3, 3, 3]
    assert list(trials["dropout"].isna()) == [True, True, False, False, False]
    assert trials["dropout"].dtype == "float64"
    assert list(trials["status"]) == ["unfinished"] * 4 + ["infeasible"]
    assert "model.dropout < 0.25 is not met: model.depth 3, model.dropout 0.3" in trials["reason"].iloc[4]
