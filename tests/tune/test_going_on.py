"""What a sweep's next start finds where a driver died at an unlucky moment, or where the sweep was changed. No Ray."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lives import World, cut, drawn, events, life

from raysweep.cluster.join import Cluster
from raysweep.cluster.resources import Allocation, Available
from raysweep.config import Sweep
from raysweep.errors import StoreError
from raysweep.store import results
from raysweep.store.journal import JournalWriter
from raysweep.store.remote import Place
from raysweep.store.tail import Tail
from raysweep.sweep_settings import SEED
from raysweep.tune import tuning
from raysweep.tune.describe import describe
from raysweep.tune.engine import Watcher, _run
from raysweep.tune.job import Job
from raysweep.tune.own import OwnCodeError
from raysweep.tune.plan import make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import found
from raysweep.tune.search import LEARNING, searcher

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


CONSTRAINED = tree(space={"optim.lr": {"choice": ["1e-3", 1e-2, 1e-1]}, "model.depth": {"choice": [1, 2]}})


@pytest.mark.parametrize("algorithm", ["grid", "own"])
def test_what_can_be_trained_now_has_the_row_that_said_it_could_not(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
class Search:
    def suggest(self, known):
        for lr in ("1e-3", 1e-2, 1e-1):
            for depth in (1, 2):
                if not any(float(t.overrides["optim.lr"]) == float(lr) and t.overrides["model.depth"] == depth for t in known):
                    return {"optim.lr": lr, "model.depth": depth}
        raise StopIteration

def make(space, mode, seed):
    return Search()
"""
    (tmp_path / "listed_search.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"algorithm": "listed_search:make", "num_samples": 9}
    settings, world, storage = {**CONSTRAINED, **({"search": own} if algorithm == "own" else {})}, World(), tmp_path / "results"
    life({**settings, "constraints": ["model.depth < 2 or optim.lr > 0.05"]}, storage, world)
    before = results.load(storage / "s").trials
    assert sorted(before["status"]) == ["completed"] * 4 + ["infeasible"] * 2
    assert life({**settings, "constraints": ["model.depth < 2 or optim.lr > 0.005"]}, storage, world) == "completed"
    after = results.load(storage / "s").trials
    assert sorted(after["status"]) == ["completed"] * 5 + ["infeasible"], "six combinations have six rows"
    assert list(after["trial"]) == list(before["trial"]) == list(range(6))
    assert after[["lr", "depth"]].astype("float64").equals(before[["lr", "depth"]].astype("float64"))
    assert "0.005 is not met" in after[after["status"] == "infeasible"]["reason"].iloc[0], "the reason is that of now"
    assert life(settings, storage, world) == "completed"
    assert statuses(storage) == ["completed"] * 6
    assert life(settings, storage, world) == "over"
    assert len(world.trained) == len(set(world.trained)) == 6 * 3
    tail = Tail(storage / "s" / "journal.jsonl")
    tail.read()
    assert set(results.load(storage / "s").trials["key"]) <= tail.just_ended, "and what is sent to a store is theirs"


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


SEARCHED = {"optim.lr": {"choice": [1e-3, 1e-2, 1e-1]}}


DROPOUT = {"model.dropout": {"choice": [0.0, 0.1]}}


@pytest.mark.parametrize(
    ("before", "after", "num_trained"),
    [
        pytest.param(SEARCHED, {**SEARCHED, **DROPOUT}, 6, id="a setting more"),
        pytest.param({**SEARCHED, **DROPOUT}, SEARCHED, 6, id="a setting less"),
        pytest.param(
            {**SEARCHED, **DROPOUT},
            {**SEARCHED, "model.dropout": {"choice": [0.0, 0.1], "when": "optim.lr < 0.05"}},
            6,
            id="a condition more",
        ),
        pytest.param(
            SEARCHED, {**SEARCHED, "model.dropout": {"choice": [0.1, 0.2]}}, 9, id="a setting more, without its old value"
        ),
    ],
)
def test_a_search_that_learns_never_thinks_of_a_trial_again(
    before: dict[str, Any], after: dict[str, Any], num_trained: int, tmp_path: Path
) -> None:
    world = World()
    life(tree(space=before, search={"algorithm": "tpe", "num_samples": 6}), tmp_path, world)
    life(tree(space=after, search={"algorithm": "tpe", "num_samples": 20}), tmp_path, world)
    runs = [e["trial"] for e in events(tmp_path, "run")]
    assert sorted(runs) == list(range(num_trained)), "each trial ran once"


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("algorithm", LEARNING)
def test_of_a_space_that_was_narrowed_so_many_trials_run_as_there_are_samples(algorithm: str, seeds: int, tmp_path: Path) -> None:
    world, wide = World(), {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "model.depth": {"choice": [1, 2]}}
    narrow = {"optim.lr": {"loguniform": [1e-3, 1e-1]}, "model.depth": {"choice": [2]}}
    search = {"algorithm": algorithm, "num_samples": 6, "seeds": seeds}
    life(tree(space=wide, search=search), tmp_path, world)
    assert life(tree(space=narrow, search=search), tmp_path, world) == "completed"
    found = results.load(tmp_path / "s")
    inside = found.trials[(found.trials["lr"] >= 1e-3) & (found.trials["depth"] == 2)]
    assert len(inside) == 6 * seeds
    assert len(found.trials) > len(inside), "the others stay as rows"
    assert set(found.trials["status"]) == {"completed"}
    assert len(world.trained) == len(found.trials) * 3
    assert life(tree(space=narrow, search=search), tmp_path, world) == "over"
    assert life(tree(space=wide, search=search), tmp_path, world) == "over", "they all count again"


def test_a_list_that_is_written_as_text_is_what_its_trials_have(tmp_path: Path) -> None:
    listed = {"optim.lr": {"choice": ["1e-3", "1e-2"]}, "model.depth": {"choice": [1, 2]}}
    settings = tree(space=listed, search={"algorithm": "tpe", "num_samples": 4})
    life(settings, tmp_path, World())
    plan, past, _ = found(Sweep.from_dict(settings), tmp_path, False, False, lambda _text: None)
    assert past is not None
    assert len(plan.trials) == 4
    with closing(JournalWriter(past.directory.journal)) as journal:
        recorder = SweepRecorder(plan, journal, past=past)
        told = searcher(plan, [], recorder.assigned, recorder.objective)._study.trials
    assert [(trial.params["optim.lr"], trial.params["model.depth"]) for trial in told] == [
        ([1e-3, 1e-2].index(trial.overrides["optim.lr"]), trial.overrides["model.depth"] - 1) for trial in plan.trials
    ]


def test_settings_of_the_images_that_are_swept_are_no_other_images(tmp_path: Path) -> None:
    world = World()
    life(tree(space={"data.count": {"grid": [50, 100]}}), tmp_path, world)
    life(tree(space={"data.count": {"grid": [30, 50, 100]}}), tmp_path, world)
    assert [e["trial"] for e in events(tmp_path, "run")] == [0, 1, 2]
    life(tree(space={"data.count": {"grid": [30, 50, 100]}}, experiment__data__source="photos"), tmp_path, world)
    assert len(events(tmp_path, "run", sweep="s-2")) == 3, "these are others"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"num_samples": 4}, {"num_samples": 7}, "4 completed; 3 that the search will think of"),
        ({"num_samples": 4}, {"num_samples": 3}, "4 completed; nothing is left to train"),
        (
            {"num_samples": 4},
            {"num_samples": 5, "seeds": 2},
            "4 completed; 4 are new, 2 that the search will think of",
        ),
        (
            {"num_samples": 4},
            {"num_samples": 6, "seeds": 4, "contenders": 2},
            "4 completed; 2 that the search will think of, 4 further seeds of the best",
        ),
        (
            {"num_samples": 4, "seeds": 4, "contenders": 2},
            {"num_samples": 4, "seeds": 4, "contenders": 2},
            "; nothing is left to train",
        ),
    ],
)
def test_what_a_search_has_yet_to_think_of_is_told(
    before: dict[str, Any], after: dict[str, Any], text: str, tmp_path: Path
) -> None:
    space = {"optim.lr": {"loguniform": [1e-5, 1e-1]}}
    life(tree(space=space, search={"algorithm": "tpe", **before}), tmp_path, Noisy())
    settings = tree(space=space, search={"algorithm": "tpe", **after})
    plan, past, todo = found(Sweep.from_dict(settings), tmp_path, False, False, lambda _text: None)
    assert past is not None
    told = describe(plan, past, todo, False)
    assert told.startswith("found s/: ")
    assert told.endswith(text)


# --- Which directory --------------------------------------------------------------------------------------------------

OTHER = tree(experiment__train__batch_size=16)


def names(storage: Path) -> list[str]:
    return sorted(path.name for path in storage.iterdir())


def test_a_setting_that_is_changed_and_changed_back_finds_what_was_trained(tmp_path: Path) -> None:
    world = World()
    for settings in (tree(), OTHER):
        assert life(settings, tmp_path, world) == "completed"
    assert names(tmp_path) == ["s", "s-2"]
    for settings in (tree(), OTHER):
        assert life(settings, tmp_path, world) == "over"
    assert life(tree(experiment__train__batch_size=8), tmp_path, world) == "completed"
    assert names(tmp_path) == ["s", "s-2", "s-3"]


def test_a_sweep_that_is_called_like_another_ones_second_directory_is_not_mixed_with_it(tmp_path: Path) -> None:
    world, second = World(), tree(name="s-2", space={"optim.lr": {"grid": [0.5]}})
    for settings in (tree(), second):
        assert life(settings, tmp_path, world) == "completed"
    for settings in (tree(), second):
        assert life(settings, tmp_path, world) == "over"
    assert life(OTHER, tmp_path, world) == "completed"
    assert names(tmp_path) == ["s", "s-2", "s-3"]
    assert life(OTHER, tmp_path, world) == life(tree(), tmp_path, world) == life(second, tmp_path, world) == "over"


def test_a_directory_that_was_deleted_hides_no_other(tmp_path: Path) -> None:
    world = World()
    for settings in (tree(), OTHER, tree(experiment__train__batch_size=8)):
        life(settings, tmp_path, world)
    shutil.rmtree(tmp_path / "s")
    shutil.rmtree(tmp_path / "s-2")
    assert life(tree(experiment__train__batch_size=8), tmp_path, world) == "over"
    life(tree(), tmp_path, world)
    assert names(tmp_path) == ["s-3", "s-4"], "the newer one has the higher number"


def test_a_directory_that_was_renamed_with_its_sweep_is_gone_on_with(tmp_path: Path) -> None:
    life(tree(), tmp_path, World())
    (tmp_path / "s").rename(tmp_path / "t")
    assert life(tree(name="t"), tmp_path, World()) == "over"


# --- The objective, the budget, the user's own code ---------------------------------------------------------------------


class Noisy(World):
    """Losses that fall with lr, and change a little with the seed."""

    def loss(self, key: str, epoch: int, overrides: dict[str, Any]) -> float:
        return 0.1 * (1 + drawn(key) / 50 - math.log10(overrides["optim.lr"])) / epoch


class Failing(Noisy):
    """Some trainings fail in their first epoch, once."""

    keys: frozenset[str] = frozenset()

    def fate(self, key: str) -> tuple[str, int]:
        return ("failed", 1) if key in self.keys else ("", 0)


@pytest.mark.parametrize("failing", [[(1e-2, 1), (1e-3, 2)], [(1e-4, 0), (1e-2, 1), (1e-3, 2)]], ids=["further", "first"])
def test_one_command_retries_all_that_failed_also_in_later_rounds_of_a_contest(
    failing: list[tuple[float, int]], tmp_path: Path
) -> None:
    contest = tree(space=HALVING["space"], search={"seeds": 5, "contenders": 3})
    plan, world = make_plan(Sweep.from_dict(contest)), Failing()
    seeds = [{"optim.lr": lr, **({SEED: number} if number else {})} for lr, number in failing]
    world.keys = frozenset(plan.key(overrides) for overrides in seeds)
    life(contest, tmp_path, world)
    assert statuses(tmp_path).count("failed") == len(failing)
    assert life(contest, tmp_path, world, retry_failed=True) == "completed"
    assert "failed" not in statuses(tmp_path)
    assert life(contest, tmp_path, world, retry_failed=True) == "over"
    assert len(world.trained) == len(set(world.trained))


def test_a_contest_for_the_highest_psnr_is_told_once(tmp_path: Path) -> None:
    world, search = Noisy(), {"seeds": 9, "contenders": 3}
    contest = tree(space=HALVING["space"], objective={"metric": "psnr"}, search=search)
    assert life(contest, tmp_path, world) == "completed"
    assert [e["action"] for e in events(tmp_path, "decision")][:2] == ["contend", "drop"]
    assert life(contest, tmp_path, world) == "over", "the journal's psnr gave another p, and all was decided again"


def test_a_budget_that_was_spent_before_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tree(budget={"device_hours": 4 / 3600})
    assert life(settings, tmp_path, World()) == "budget"
    plan, past, todo = found(Sweep.from_dict(settings), tmp_path, False, False, lambda _text: None)
    assert past is not None
    monkeypatch.setattr(tuning.tune, "Tuner", None)  # Ray Tune is not even asked
    with closing(JournalWriter(past.directory.journal)) as journal:
        recorder = SweepRecorder(plan, journal, past=past, to_run=[trial.key for trial in todo.to_run])
        job, allocation = Job(plan, past.directory, past, todo, Place(tmp_path)), Allocation(1, 1, 0)
        assert tuning.run_trials(job, recorder, allocation, 1, False, lambda _text: None) == "budget"
    assert recorder.why_ended == "budget.device_hours was spent"


def test_what_a_killed_driver_left_in_a_trials_directory_is_gone_before_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life(tree(), tmp_path, World(), interrupted_after=4)
    plan, past, todo = found(Sweep.from_dict(tree()), tmp_path, False, False, lambda _text: None)
    assert past is not None
    trial = past.directory.trial(todo.to_run[0].key)
    for name in (".ray/worker", ".ckpt-00000012.pt.q1w2e3r4", "ckpt-00000008.pt"):
        (trial / name).parent.mkdir(parents=True, exist_ok=True)
        (trial / name).touch()
    seen: list[str] = []
    monkeypatch.setattr(tuning, "run_trials", lambda *_: seen.extend(path.name for path in trial.iterdir()) or "interrupted")
    cluster, job = Cluster(False, "here", Available(4, 0), 1), Job(plan, past.directory, past, todo, Place(tmp_path))
    _run(job, cluster, Allocation(1, 1, 0), False, lambda _text: None, Watcher())
    assert seen == ["ckpt-00000008.pt"]


def test_a_searcher_that_fails_begins_no_contest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
class Search:
    def suggest(self, known):
        if len(known) == 3:
            raise ValueError("a mistake")
        return {"optim.lr": 10.0 ** -(1 + len(known))}

def make(space, mode, seed):
    return Search()
"""
    (tmp_path / "failing_search.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    space = {"optim.lr": {"loguniform": [1e-5, 1e-1]}}
    search = {"algorithm": "failing_search:make", "num_samples": 4, "seeds": 3, "contenders": 2}
    with pytest.raises(OwnCodeError, match="a mistake"):
        life(tree(space=space, search=search), tmp_path, World())
    assert len(events(tmp_path, "end")) == 3
    assert events(tmp_path, "decision") == []


def test_a_searcher_is_shown_again_what_broke_a_constraint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
SEEN = []

class Search:
    def suggest(self, known):
        SEEN.append([trial.status for trial in known])
        return {"optim.lr": 10.0 ** -(1 + len(known))}

def make(space, mode, seed):
    return Search()
"""
    (tmp_path / "listing_search.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    space, storage = {"optim.lr": {"loguniform": [1e-6, 1e-1]}}, tmp_path / "results"
    for number, shown in ((1, [[], ["infeasible"]]), (2, [["infeasible", "ended"]])):
        search = {"algorithm": "listing_search:make", "num_samples": number}
        life({**tree(space=space, search=search), "constraints": ["optim.lr < 0.1"]}, storage, World())
        import listing_search  # type: ignore[import-not-found]

        seen, listing_search.SEEN = listing_search.SEEN, []
        assert seen == shown
    assert [e["status"] for e in events(storage, "end")] == ["infeasible", "completed", "completed"]


# --- Journals that are not whole ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [{"event": "run", "trial": 9}, {"event": "end", "trial": 0}, {"event": "trial"}, {"row": 9}])
def test_an_event_that_makes_no_sense_is_damage(line: dict[str, Any], tmp_path: Path) -> None:
    life(tree(), tmp_path, World())
    if "row" in line:  # of a trial that there is not
        names = events(tmp_path, "columns")[-1]["columns"]
        line = {"row": [line["row"], *(1 for _ in names)]}
    with (tmp_path / "s" / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps(line) + "\n")
    with pytest.raises(StoreError, match=r"journal\.jsonl is damaged: event \d+ makes no sense"):
        life(tree(), tmp_path, World())


# --- Rules that change ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "epochs"),
    [
        ({"name": "none"}, {"name": "median", "min_samples": 1}, 6),
        ({"name": "none"}, {"name": "median", "min_samples": 1}, 3),
        ({"name": "median", "min_samples": 3}, {"name": "median", "min_samples": 1}, 6),
        ({"name": "asha", "audit": 1.0, "grace_period": 2}, {"name": "asha", "reduction_factor": 1.5}, 6),
        ({"name": "asha", "audit": 1.0, "grace_period": 3}, {"name": "hyperband", "audit": 1.0}, 6),
        ({"name": "median", "audit": 1.0, "grace_period": 3}, {"name": "median", "min_samples": 1}, 6),
    ],
)
def test_a_sweep_goes_on_with_another_rule_which_finds_rows_after_its_stops(
    before: dict[str, Any], after: dict[str, Any], epochs: int, tmp_path: Path
) -> None:
    world, lrs = World(seed=3), {"optim.lr": {"grid": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]}}
    wider = {"optim.lr": {"grid": [*lrs["optim.lr"]["grid"], 3e-1]}}
    life(tree(space=lrs, scheduler=before, experiment__train__epochs=6), tmp_path, world, at_once=5)
    ends, audits = events(tmp_path, "end"), [e["trial"] for e in events(tmp_path, "decision") if e["action"] == "audit"]
    changed = tree(space=wider, scheduler=after, experiment__train__epochs=epochs)
    assert life(changed, tmp_path, world) == "completed"
    assert events(tmp_path, "end")[: len(ends)] == ends
    assert len(events(tmp_path, "end")) == len(ends) + 1, "what has ended stands"
    assert [e["trial"] for e in events(tmp_path, "decision") if e["action"] == "audit"][: len(audits)] == audits
    assert life(changed, tmp_path, world) == "over"
