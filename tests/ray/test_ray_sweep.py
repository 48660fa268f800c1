"""Sweeps on a real cluster: every planned trial is in the results with its reason, and the resources come back."""

from __future__ import annotations

import gc
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.tune.experiment import Trial

import raysweep
from raysweep.config import Sweep
from raysweep.store.journal import read_events
from raysweep.tune import tuning
from raysweep.tune.engine import Watcher, run_sweep
from raysweep.tune.recorder import TrialState

TINY = {
    "data": {"source": "digits", "count": 200},
    "model": {"depth": 1, "base_channels": 4},
    "train": {"epochs": 3, "batch_size": 16},
}


def sweep(**changes: Any) -> Sweep:
    content: dict[str, Any] = {
        "name": "s",
        "experiment": TINY,
        "space": {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2]}},
    }
    return Sweep.from_dict({**content, **changes})


@pytest.mark.usefixtures("resources_return")
def test_a_grid_runs_every_combination_once(tmp_path: Path) -> None:
    result = raysweep.sweep(sweep(), storage=tmp_path)
    assert list(zip(result.trials["lr"], result.trials["depth"], strict=True)) == [(1e-3, 1), (1e-3, 2), (1e-2, 1), (1e-2, 2)]
    assert list(result.trials["status"]) == ["completed"] * 4
    assert len(result.rows) == 12
    assert result.best is not None
    assert result.best["val_loss"] == result.rows["val_loss"].min()
    with torch.no_grad():
        assert result.load_model()(torch.zeros(1, 1, 8, 8)).shape == (1, 1, 8, 8)
    events = [event["event"] for event in read_events(result.directory / "journal.jsonl")]
    assert events[0] == "start"
    assert events[-1] == "finish"
    assert events.count("end") == events.count("run") == 4
    assert not (result.directory / ".ray").exists()
    text = (result.directory / "journal.jsonl").read_text()
    assert str(tmp_path) not in text, "a moved directory must stay readable"


def trials_in_memory() -> list[Trial]:
    return [thing for thing in gc.get_objects() if type(thing) is Trial]


class Ended(Watcher):
    """Counts the trials that Ray Tune still has in its memory although they have ended."""

    def __init__(self) -> None:
        gc.collect()
        self.most, self.earlier = 0, {trial.trial_id for trial in trials_in_memory()}  # of other tests

    def changed(self, state: TrialState) -> None:
        trials = [trial for trial in trials_in_memory() if trial.trial_id not in self.earlier]
        self.most = max(self.most, sum(trial.is_finished() for trial in trials))


@pytest.mark.usefixtures("resources_return")
def test_ray_tune_forgets_trials_that_have_ended(tmp_path: Path) -> None:
    ended = Ended()
    lrs = {"optim.lr": {"loguniform": [1e-4, 1e-2]}}
    search = {"algorithm": "random", "num_samples": 8}
    short = {**TINY, "train": {"epochs": 1}}
    done = run_sweep(sweep(experiment=short, space=lrs, search=search), storage=tmp_path, watcher=ended)
    assert done.trial_statuses == ["completed"] * 8
    assert ended.most <= 2, "10,000 of them would be 240 MB"


@pytest.mark.usefixtures("resources_return")
def test_one_diverges_one_fails_one_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "threenets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def __init__(self, kind):\n"
        "        super().__init__(1, 1, 3, padding=1)\n"
        "        self.kind = kind\n"
        "    def forward(self, x):\n"
        "        if self.kind == 'raises' and self.training:\n"
        "            raise ValueError('what the user did wrong')\n"
        "        return super().forward(x) * (1e30 if self.kind == 'explodes' else 1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = {**TINY, "model": {"factory": "threenets:Net", "params": {"kind": "good"}}}
    space = {"model.params.kind": {"grid": ["explodes", "raises", "good"]}}
    finished = run_sweep(sweep(experiment=experiment, space=space), storage=tmp_path)
    result = raysweep.open(finished.directory.path)
    assert list(result.trials["status"]) == ["diverged", "failed", "completed"]
    assert "what the user did wrong" in result.trials.loc[1, "error"]
    assert "in forward" in result.trials.loc[1, "error"]
    assert "not finite at step 1" in result.trials.loc[0, "reason"]
    assert result.best is not None
    assert result.best["trial"] == 2
    assert finished.exit_code == 0


@pytest.mark.usefixtures("resources_return")
def test_several_workers_per_trial_with_early_stopping_give_their_cpus_back(tmp_path: Path) -> None:
    content = sweep(
        experiment={**TINY, "scale": {"workers": 2}},
        space={"optim.lr": {"grid": [1e-2, 1e-6, 1e-3]}},
        scheduler={"name": "asha", "reduction_factor": 2},
    )
    result = raysweep.sweep(content, storage=tmp_path)
    assert list(result.trials["status"]) == ["completed", "stopped", "stopped"]
    assert list(result.trials["world_size"]) == [2, 2, 2]
    decisions = [e for e in read_events(result.directory / "journal.jsonl") if e["event"] == "decision"]
    assert [(d["trial"], d["rule"], d["rung"]) for d in decisions] == [(1, "asha", 1), (2, "asha", 1)]
    assert all(d["value"] > d["cutoff"] for d in decisions)
    assert "past the cutoff" in result.trials.loc[1, "reason"]


@pytest.mark.parametrize("algorithm", ["random", "sobol", "tpe", "gp", "cmaes"])
@pytest.mark.usefixtures("resources_return")
def test_sampled_searches_run_distinct_trials(tmp_path: Path, algorithm: str) -> None:
    space = {"optim.lr": {"loguniform": [1e-4, 1e-1]}, "model.depth": {"randint": [1, 4]}}
    content = sweep(
        search={"algorithm": algorithm, "num_samples": 6, "seed": 1}, space=space, experiment={**TINY, "train": {"epochs": 1}}
    )
    result = raysweep.sweep(content, storage=tmp_path)
    assert len(result.trials) == 6
    assert result.trials["key"].is_unique
    assert set(result.trials["status"]) == {"completed"}
    assert result.trials["lr"].between(1e-4, 1e-1).all()
    assert set(result.trials["depth"]) <= {1, 2, 3}


@pytest.mark.usefixtures("resources_return")
def test_tpe_ends_when_a_small_space_is_used_up(tmp_path: Path) -> None:
    content = sweep(search={"algorithm": "tpe", "num_samples": 20}, experiment={**TINY, "train": {"epochs": 1}})
    result = raysweep.sweep(content, storage=tmp_path)
    assert len(result.trials) == 4
    assert result.trials["key"].is_unique


@pytest.mark.usefixtures("resources_return")
def test_the_median_rule_stops_the_worst_and_says_why(tmp_path: Path) -> None:
    content = sweep(
        space={"optim.lr": {"grid": [1e-2, 2e-2, 3e-2, 1e-7]}},
        scheduler={"name": "median", "min_samples": 2},
        search={"max_concurrent": 1},
    )
    result = raysweep.sweep(content, storage=tmp_path)
    assert result.trials.loc[3, "status"] == "stopped"
    assert "median: at epoch 1 val_loss" in result.trials.loc[3, "reason"]


class AfterARow(Watcher):
    """A clock that is an hour on as soon as an epoch has ended, however long trials take to start."""

    later_s = 0.0

    def changed(self, state: TrialState) -> None:
        self.later_s = 3600.0 if state.epoch else self.later_s

    def clock(self) -> float:
        return time.monotonic() + self.later_s


@pytest.mark.usefixtures("resources_return")
def test_a_spent_budget_ends_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = AfterARow()
    monkeypatch.setattr(tuning, "SweepEnd", partial(tuning.SweepEnd, clock=passed.clock))
    content = sweep(experiment={**TINY, "train": {"epochs": 10_000}}, budget={"wall_time_s": 3600})
    finished = run_sweep(content, storage=tmp_path, watcher=passed)
    result = raysweep.open(finished.directory.path)
    assert finished.status == "budget"
    assert list(result.trials["status"]) == ["budget"] * 4
    assert (result.trials["reason"].str.contains("budget.wall_time_s was spent")).all()
    assert result.best is not None, "what was trained until then counts"


@pytest.mark.usefixtures("resources_return")
def test_an_elastic_trial_takes_its_share_of_the_cluster(tmp_path: Path) -> None:
    experiment = {**TINY, "scale": {"workers": [1, 8]}}
    one = sweep(name="one", experiment=experiment, space={"optim.lr": {"grid": [1e-2]}})
    assert list(raysweep.sweep(one, storage=tmp_path).trials["world_size"]) == [2], "alone it has both CPUs"
    two = sweep(name="two", experiment=experiment, space={"optim.lr": {"grid": [1e-2, 1e-3]}})
    assert list(raysweep.sweep(two, storage=tmp_path).trials["world_size"]) == [1, 1], "two at once have one each"
