"""Searchers that learn, in spaces with conditions and constraints, played against a function; and going on with them. No Ray."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.store import results
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.tune.optuna_search import OptunaSearcher
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import adopt, read_past, work
from raysweep.tune.search import LEARNING, searcher

SPACE: dict[str, Any] = {
    "model.dropout": {"uniform": [0.0, 0.8], "when": "optim.lr < 0.01"},
    "optim.lr": {"loguniform": [1e-4, 1e-0]},
}


SLOW_GP = [pytest.param(name, marks=[pytest.mark.slow] if name == "gp" else []) for name in LEARNING]


def sweep(space: dict[str, Any] = SPACE, *constraints: str, **search: Any) -> Sweep:
    return Sweep.from_dict(
        {
            "name": "s",
            "experiment": {"data": {"source": "photos", "count": 50}, "train": {"epochs": 3, "batch_size": 8}},
            "space": space,
            "constraints": list(constraints),
            "search": {"num_samples": 12, **search},
        }
    )


def bowl(overrides: dict[str, Any]) -> float:
    """Least at lr 1e-3 and dropout 0.2; without dropout as good as with 0.5."""
    return (math.log10(overrides["optim.lr"]) + 3) ** 2 / 9 + (overrides.get("model.dropout", 0.5) - 0.2) ** 2 * 4


def start(journal: JournalWriter, plan: Plan) -> None:
    content = plan.sweep.model_dump(mode="json", exclude_unset=True)
    journal.event("start", sweep=content, experiment={}, data=plan.prepared.facts, planned=plan.num_planned, at_once=1)


def played(
    settings: Sweep, storage: Path, worth: Callable[[dict[str, Any]], float] = bowl, stop_after: int | None = None
) -> tuple[list[dict[str, Any]], Plan]:
    """The trials that a searcher asks for, one at a time, from where the directory's journal ends; and the plan."""
    directory = SweepDirectory(storage)
    plan = make_plan(settings)
    past = read_past(directory)
    if past is not None:
        adopt(plan, past)
    todo = work(plan, past, False)
    asked: list[dict[str, Any]] = []
    with closing(JournalWriter(directory.journal)) as journal:
        start(journal, plan)
        recorder = SweepRecorder(plan, journal, past=past, to_run=[t.key for t in todo.to_run])
        search = searcher(plan, todo.to_run, recorder.assigned, recorder.objective)
        for number in itertools.count():
            name = f"id{number}"
            given = search.suggest(name) if number != stop_after else "FINISHED"
            if not isinstance(given, dict):
                assert given == "FINISHED"
                return asked, plan
            asked.append(given["overrides"])
            recorder.started(name)
            loss = worth(given["overrides"])
            recorder.row(name, {"epoch": 1, "val_loss": loss if math.isfinite(loss) else None})
            recorder.ended(name, "stopped", {})
            search.on_trial_complete(name)
    raise AssertionError


@pytest.mark.parametrize("algorithm", SLOW_GP)
def test_a_setting_with_a_condition_is_learned_where_it_is_met(algorithm: str, tmp_path: Path) -> None:
    asked, _ = played(sweep(algorithm=algorithm, num_samples=24 if algorithm == "gp" else 40, seed=2), tmp_path)
    assert all(("model.dropout" in o) == (o["optim.lr"] < 0.01) for o in asked)
    assert len({repr(o) for o in asked}) == len(asked)
    late = [o["model.dropout"] for o in asked[-12:] if "model.dropout" in o]
    assert len(late) >= 6, "most late trials lie where it is met"
    assert statistics.median(abs(value - 0.2) for value in late) < 0.15, "random draws would be 0.2 away"
    values = [bowl(o) for o in asked]
    assert statistics.median(values[-12:]) < statistics.median(values[:10]) / 1.5


@pytest.mark.parametrize("algorithm", SLOW_GP)
def test_only_trials_that_fulfil_the_constraints_are_suggested(algorithm: str, tmp_path: Path) -> None:
    limits = ("optim.lr > 0.002", "optim.lr >= 0.01 or model.dropout + optim.lr * 10 > 0.3")
    asked, plan = played(sweep(SPACE, *limits, algorithm=algorithm, num_samples=20, seed=1), tmp_path)
    assert len(asked) == 20
    assert all(o["optim.lr"] > 0.002 for o in asked)
    assert all(o["optim.lr"] >= 0.01 or o["model.dropout"] + o["optim.lr"] * 10 > 0.3 for o in asked)
    (note,) = plan.notes
    assert " broke a constraint and w" in note
    values = [bowl(o) for o in asked]
    assert statistics.median(values[-8:]) < statistics.median(values[:6]), "near the border is where the best is"


@pytest.mark.parametrize("algorithm", SLOW_GP)
def test_a_tenth_of_the_space_is_enough(algorithm: str, tmp_path: Path) -> None:
    asked, _ = played(sweep(SPACE, "0.0005 < optim.lr < 0.00126", algorithm=algorithm), tmp_path)
    assert len(asked) == 12


@pytest.mark.parametrize("algorithm", LEARNING)
def test_a_space_that_constraints_leave_empty_is_refused_before_anything_starts(algorithm: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^constraints: 10000 draws of the space in a row broke them; the last: the constraint"
    ):
        make_plan(sweep(SPACE, "0.0005 < optim.lr < 0.00050001", algorithm=algorithm))


@pytest.mark.parametrize("algorithm", LEARNING)
def test_a_search_ends_where_nothing_more_fulfils_the_constraints(algorithm: str, tmp_path: Path) -> None:
    space = {"optim.lr": {"choice": [1e-3, 1e-2, 1e-1]}, "model.skip": {"choice": [True, False]}}
    plan = make_plan(sweep(space, "optim.lr < 0.05 and not (model.skip and optim.lr < 0.005)", algorithm=algorithm))
    assert plan.num_planned == 3
    assert "the space has only 3 different trials, so 3 run instead of 12" in plan.notes
    asked, _ = played(plan.sweep, tmp_path)
    assert len({repr(o) for o in asked}) == len(asked) == 3


DEEP: dict[str, Any] = {
    "data.patch": {"choice": [8, 16]},
    "model.depth": {"choice": [2, 4]},
    "optim.lr": {"loguniform": [1e-4, 1e-1]},
}
"""Depth 4 goes with the larger images only."""


@pytest.mark.parametrize("algorithm", SLOW_GP)
def test_what_the_model_refuses_is_listed_and_another_one_suggested(algorithm: str, tmp_path: Path) -> None:
    asked, plan = played(sweep(DEEP, algorithm=algorithm, num_samples=14), tmp_path, lambda o: o["optim.lr"])
    assert len(asked) == 14
    assert not any(o["model.depth"] == 4 and o["data.patch"] == 8 for o in asked)
    found = results.load(tmp_path).trials
    infeasible = found[found["status"] == "infeasible"]
    assert len(found) == 14 + len(infeasible) == plan.num_planned
    assert len(infeasible) >= 1
    assert infeasible["reason"].str.contains("at most depth 3, got 4").all()
    again, plan = played(sweep(DEEP, algorithm=algorithm, num_samples=14), tmp_path, lambda o: o["optim.lr"])
    assert again == [], "a second start finds all of them, and runs nothing"
    assert plan.num_planned == len(found)
    more, _ = played(sweep(DEEP, algorithm=algorithm, num_samples=16), tmp_path, lambda o: o["optim.lr"])
    assert len(more) == 2


@pytest.mark.parametrize("algorithm", SLOW_GP)
def test_a_sweep_is_gone_on_with_as_if_it_had_not_ended(algorithm: str, tmp_path: Path) -> None:
    settings = sweep(SPACE, "optim.lr < 0.5", algorithm=algorithm, num_samples=12, start_with=[{"optim.lr": 0.1}])
    first, _ = played(settings, tmp_path, stop_after=7)
    rest, plan = played(settings, tmp_path)
    assert first[0] == {"optim.lr": 0.1}
    assert len(first) + len(rest) == 12, "points to try first are found again, too"
    assert len({repr(o) for o in first + rest}) == 12
    assert [t.number for t in sorted(plan.trials, key=lambda t: t.number)] == list(range(12))


@pytest.mark.parametrize("algorithm", LEARNING)
def test_what_a_changed_space_does_not_hold_keeps_its_number_for_itself(algorithm: str, tmp_path: Path) -> None:
    """New trials once took the numbers of old ones that a changed space leaves out, and their rows were mixed."""
    plain = {"optim.lr": {"loguniform": [1e-4, 1e-0]}}
    points = [{"optim.lr": 1e-3}, {"optim.lr": 0.1}]
    first, _ = played(sweep(plain, algorithm=algorithm, num_samples=4, start_with=points), tmp_path)
    with_dropout = {**SPACE, "model.dropout": {**SPACE["model.dropout"], "uniform": [0.1, 0.8]}}
    second, _ = played(sweep(with_dropout, algorithm=algorithm, num_samples=6), tmp_path)
    found = results.load(tmp_path).trials
    high = [o for o in first if o["optim.lr"] >= 0.01]
    assert 0 < len(high) < 4
    assert len(second) == 6 - len(high), "without dropout they are trials of the new space as well"
    assert list(found["trial"]) == list(range(len(first) + len(second)))
    assert list(found["lr"]) == [o["optim.lr"] for o in first + second]


def test_a_trial_that_had_not_a_setting_is_the_new_spaces_where_it_has_the_old_value(tmp_path: Path) -> None:
    plain = {"optim.lr": {"loguniform": [1e-4, 1e-0]}}
    played(sweep(plain, algorithm="tpe", num_samples=4), tmp_path)
    second, _ = played(sweep(algorithm="tpe", num_samples=6), tmp_path)
    assert len(second) == 2, "dropout was 0, which the new space has"


def test_gp_learns_from_what_diverged_without_being_blinded(tmp_path: Path) -> None:
    """Told 1e30 for a trial without a value, it took all others for equal, and ended no better than it began."""
    space = {"optim.lr": {"loguniform": [1e-5, 1e-0]}, "model.dropout": {"uniform": [0.0, 0.8]}}
    settings = sweep(space, algorithm="gp", num_samples=18, seed=2)
    asked, _ = played(settings, tmp_path, lambda o: math.nan if o["optim.lr"] > 0.1 else bowl(o))
    assert any(o["optim.lr"] > 0.1 for o in asked[:10])
    assert statistics.median(bowl(o) for o in asked[-6:]) < 0.02


def test_optuna_is_told_only_the_settings_that_a_trial_has(tmp_path: Path) -> None:
    settings = sweep(algorithm="tpe", num_samples=8)
    plan = make_plan(settings)
    with closing(JournalWriter(tmp_path / "journal.jsonl")) as journal:
        recorder = SweepRecorder(plan, journal)
        search = OptunaSearcher(plan, [], recorder.assigned, recorder.objective)
        for number in range(8):
            given = search.suggest(f"id{number}")
            assert isinstance(given, dict)
            assert set(search._asked[f"id{number}"].params) == set(given["overrides"])
        again = OptunaSearcher(plan, [], recorder.assigned, recorder.objective)
        assert [set(t.params) for t in again._study.trials] == [set(t.overrides) for t in plan.trials], "after a restart, too"
