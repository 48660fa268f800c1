"""Searchers, played against a function instead of a training, and the ends that a budget sets. No Ray cluster."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raysweep.config import Budget, Sweep
from raysweep.errors import ConfigError
from raysweep.store.journal import JournalWriter
from raysweep.tune.callback import SweepEnd
from raysweep.tune.drawing import sobol
from raysweep.tune.plan import make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.search import LEARNING, searcher

SPACE = {"optim.lr": {"loguniform": [1e-6, 1e-0]}, "model.dropout": {"uniform": [0.0, 0.8]}}


def sweep(space: dict[str, Any] = SPACE, **changes: Any) -> Sweep:
    search = {"algorithm": "random", "num_samples": 16, **changes.pop("search", {})}
    if search["algorithm"] == "grid":
        search.pop("num_samples")
    experiment = {"data": {"source": "digits", "count": 50}, "train": {"epochs": 3}}
    return Sweep.from_dict({"experiment": experiment, "space": space, "search": search, **changes})


def bowl(overrides: dict[str, Any]) -> float:
    """Least at lr 1e-3 and dropout 0.2."""
    return (math.log10(overrides["optim.lr"]) + 3) ** 2 / 9 + (overrides["model.dropout"] - 0.2) ** 2 * 4


def played(settings: Sweep, directory: Path, worth: Callable[[dict[str, Any]], float] = bowl) -> list[dict[str, Any]]:
    """The trials that a searcher asks for, one at a time, when they come out as `worth` says."""
    plan = make_plan(settings)
    asked: list[dict[str, Any]] = []
    with closing(JournalWriter(directory / "journal.jsonl")) as journal:
        recorder = SweepRecorder(plan, journal)
        search = searcher(plan, list(plan.trials), recorder.assigned, recorder.objective)
        for number in itertools.count():
            name = f"id{number}"
            given = search.suggest(name)
            if not isinstance(given, dict):
                assert given == "FINISHED"
                return asked
            asked.append(given["overrides"])
            recorder.started(name)
            recorder.row(name, {"epoch": 1, "val_loss": worth(given["overrides"]), "seconds": 1.0, "world_size": 2})
            recorder.ended(name, "completed", {})
            search.on_trial_complete(name)
    raise AssertionError


@pytest.mark.parametrize("algorithm", LEARNING)
def test_searches_that_learn_come_nearer_than_where_they_began(algorithm: str, tmp_path: Path) -> None:
    asked = played(sweep(search={"algorithm": algorithm, "num_samples": 30, "seed": 1}), tmp_path)
    assert len(asked) == 30
    assert len({repr(a) for a in asked}) == 30, "never the same trial twice"
    values = [bowl(a) for a in asked]
    assert statistics.median(values[-15:]) < statistics.median(values[:8]) / 1.5


@pytest.mark.parametrize(("algorithm", "learns"), [("tpe", True), ("cmaes", False)])
def test_cmaes_draws_listed_values_at_random(algorithm: str, learns: bool, tmp_path: Path) -> None:
    space = {"optim.lr": {"loguniform": [1e-6, 1e-0]}, "model.dropout": {"choice": [0.0, 0.2, 0.4, 0.6]}}
    asked = played(sweep(space, search={"algorithm": algorithm, "num_samples": 40, "seed": 2}), tmp_path)
    best = sum(overrides["model.dropout"] == 0.2 for overrides in asked[-24:])
    assert (best >= 12) == learns, f"by chance it would be 6 of 24, it was {best}"


@pytest.mark.parametrize("algorithm", LEARNING)
def test_searches_that_learn_give_the_same_list_for_the_same_seed(algorithm: str, tmp_path: Path) -> None:
    settings = sweep(search={"algorithm": algorithm, "num_samples": 12, "seed": 5})
    (tmp_path / "again").mkdir()
    assert played(settings, tmp_path) == played(settings, tmp_path / "again")


def test_sobol_fills_the_space_more_evenly_than_chance() -> None:
    space = {"optim.lr": {"loguniform": [1e-4, 1e-0]}, "model.dropout": {"uniform": [0.0, 0.8]}}
    settings = sweep(space, search={"algorithm": "sobol", "num_samples": 16})
    plan = make_plan(settings)
    cells = {(int(math.log10(t.overrides["optim.lr"]) + 4), int(t.overrides["model.dropout"] / 0.2)) for t in plan.trials}
    assert len(cells) == 16, "each of 4 x 4 cells once"
    longer = make_plan(sweep(space, search={"algorithm": "sobol", "num_samples": 24}))
    assert [t.key for t in longer.trials[:16]] == [t.key for t in plan.trials], "more samples go on with the sequence"
    other = list(itertools.islice(sobol(sweep(space, search={"algorithm": "sobol", "seed": 1})), 4))
    assert other != [t.overrides for t in plan.trials[:4]]


@pytest.mark.parametrize("algorithm", ["grid", "random", "sobol", *LEARNING])
def test_what_to_start_with_comes_first_and_counts(algorithm: str, tmp_path: Path) -> None:
    space = {"optim.lr": {"choice": [1e-4, 1e-3, 1e-2]}, "model.depth": {"choice": [1, 2]}}
    points = [{"optim.lr": 1e-3, "model.depth": 2}, {"optim.lr": 5e-3, "model.depth": 1}]
    settings = sweep(space, search={"algorithm": algorithm, "start_with": points, "num_samples": 5})
    asked = played(settings, tmp_path, lambda o: o["optim.lr"])
    assert asked[:2] == points
    assert len(asked) == (7 if algorithm == "grid" else 5), "a grid has one point more, which lies outside it"
    assert len({repr(a) for a in asked}) == len(asked)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"optim.lr": 1e-3}, "search.start_with.0: model.dropout is missing"),
        ({"optim.lr": 1e-3, "model.dropout": 0.1, "model.depth": 1}, "model.depth is not in the space"),
        ({"optim.lr": -1, "model.dropout": 0.1}, "search.start_with.0: optim.lr"),
    ],
)
def test_points_that_cannot_be_tried_are_refused(point: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(search={"start_with": [point]})
    assert message in str(caught.value)


def test_a_point_that_does_not_fit_the_images_is_refused_with_its_place() -> None:
    space = {"model.depth": {"choice": [1, 2]}}
    with pytest.raises(ConfigError, match=r"search\.start_with\.0: .*at most depth 3"):
        make_plan(sweep(space, search={"start_with": [{"model.depth": 9}]}))


# --- Budgets ----------------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def recorder_with(directory: Path, losses: list[float], **row: Any) -> SweepRecorder:
    plan = make_plan(sweep({"optim.lr": {"grid": [1e-3]}}, search={"algorithm": "grid"}))
    recorder = SweepRecorder(plan, JournalWriter(directory / "journal.jsonl"))
    recorder.assigned("a", plan.trials[0])
    for epoch, loss in enumerate(losses, start=1):
        recorder.row("a", {"epoch": epoch, "val_loss": loss, "seconds": 900.0, "world_size": 2, **row})
    recorder._journal.close()
    return recorder


def test_wall_time(tmp_path: Path) -> None:
    clock = Clock()
    end = SweepEnd(Budget(wall_time_s=10), recorder_with(tmp_path, []), clock)
    assert not end.stop_all()
    clock.now = 10
    assert end.stop_all()
    assert (end.reason, end._recorder.why_ended) == ("budget", "budget.wall_time_s was spent")


def test_device_hours_count_workers(tmp_path: Path) -> None:
    recorder = recorder_with(tmp_path, [0.5, 0.4])
    assert recorder.device_seconds == 2 * 900 * 2
    assert SweepEnd(Budget(device_hours=1.0), recorder).stop_all(), "900 s x 2 workers x 2 epochs"
    assert recorder.why_ended == "budget.device_hours was spent"
    assert not SweepEnd(Budget(device_hours=1.01), recorder_with(tmp_path, [0.5, 0.4])).stop_all()


def test_a_target_that_is_reached_ends_the_sweep(tmp_path: Path) -> None:
    assert not SweepEnd(Budget(target=0.3), recorder_with(tmp_path, [0.5, 0.4])).stop_all()
    recorder = recorder_with(tmp_path, [0.5, 0.3])
    assert SweepEnd(Budget(target=0.3), recorder).stop_all()
    assert recorder.why_ended == "budget.target was reached by trial 0"
    assert not SweepEnd(Budget(target=0.3), recorder_with(tmp_path, [math.nan])).stop_all()
