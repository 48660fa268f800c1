"""Random histories of sweeps: killed at any byte, interrupted, changed in between; nothing is done twice and nothing is lost.

What a history may do: life() in lives.py plays one start of the driver, without Ray. Here is what is drawn, and what must hold.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from lives import World, events, life

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.store import results
from raysweep.tune.resume import FINAL, found
from raysweep.tune.seeds import configuration

Tree = dict[str, Any]


# --- What is drawn ----------------------------------------------------------------------------------------------------


def drawn_sweep(draw: random.Random) -> Tree:
    algorithm = draw.choice(["grid", "grid", "random", "sobol", "tpe"])
    tree: Tree = {
        "name": "s",
        "experiment": {
            "data": {"source": "digits", "count": 50},
            "model": {"base_channels": 2},
            "train": {"epochs": draw.randint(2, 6)},
        },
        "space": drawn_space(draw, algorithm),
        "search": {"algorithm": algorithm},
    }
    if algorithm != "grid":
        tree["search"]["num_samples"] = draw.randint(2, 6)
    return with_seeds(draw, with_scheduler(draw, tree))


def drawn_space(draw: random.Random, algorithm: str) -> Tree:
    listed = "grid" if algorithm == "grid" else "choice"
    depths = draw.choice([[1, 2], [1], [1, 2, 9] if algorithm == "grid" else [1, 2, 3]])  # 9 is too deep for the images
    space: Tree = {"model.depth": {listed: depths}}
    if algorithm == "grid" or draw.random() < 0.6:
        space["optim.lr"] = {listed: sorted(draw.sample([1e-4, 1e-3, 3e-3, 1e-2, 1e-1], draw.randint(2, 4)))}
    else:
        space["optim.lr"] = {"loguniform": [1e-4, 1e-1]}
    if draw.random() < 0.4:
        space["model.dropout"] = {listed: draw.choice([[0.0, 0.1], [0.1, 0.2]])}
        if len(depths) > 1 and draw.random() < 0.5:
            space["model.dropout"]["when"] = "model.depth > 1"
    return space


def with_scheduler(draw: random.Random, tree: Tree) -> Tree:
    name = draw.choice(["none", "asha", "asha", "hyperband", "median"])
    scheduler: Tree = {"name": name, "reduction_factor": draw.choice([1.5, 2, 3]), "min_samples": draw.randint(1, 2)}
    if tree["experiment"]["train"]["epochs"] > 2:
        scheduler["grace_period"] = draw.randint(1, 2)
    if name != "none" and draw.random() < 0.4:
        scheduler["audit"] = draw.choice([0.3, 0.6, 1.0])
    return {**tree, "scheduler": scheduler}


def with_seeds(draw: random.Random, tree: Tree) -> Tree:
    search = {name: value for name, value in tree["search"].items() if name not in ("seeds", "contenders")}
    seeds = draw.choice([{}, {}, {"seeds": draw.randint(2, 3)}, {"seeds": draw.randint(3, 5), "contenders": draw.randint(2, 3)}])
    return {**tree, "search": {**search, **seeds}}


def changed(draw: random.Random, tree: Tree) -> Tree:
    """The sweep after its user has changed something."""
    tree = json.loads(json.dumps(tree))
    algorithm, train = tree["search"]["algorithm"], tree["experiment"]["train"]
    what = draw.choice(["epochs", "samples", "scheduler", "seeds", "constraint", "space", "start", "budget", "algorithm"])
    if what == "epochs":
        train["epochs"] = draw.randint(3, 7)
    elif what == "samples" and algorithm != "grid":
        tree["search"]["num_samples"] = draw.randint(1, 8)
    elif what == "scheduler":
        return with_scheduler(draw, tree)
    elif what == "seeds":
        return with_seeds(draw, tree)
    elif what == "constraint":
        tree["constraints"] = draw.choice([[], ["model.depth * optim.lr < 0.05"], ["optim.lr >= 0.001"]])
    elif what == "space":
        tree["space"] = drawn_space(draw, algorithm)
    elif what == "start":
        point = {"optim.lr": draw.choice([1e-3, 2e-3]), "model.depth": 1}
        dropout = tree["space"].get("model.dropout", {"when": ""})
        tree["search"]["start_with"] = [point if "when" in dropout else {**point, "model.dropout": 0.1}]
    elif what == "budget":
        hours = draw.randint(1, 30) / 3600
        tree["budget"] = draw.choice([{}, {"device_hours": hours}, {"target": 0.4}, {"wall_time_s": draw.randint(1, 30)}])
    elif what == "algorithm" and algorithm != "grid" and "loguniform" not in tree["space"]["optim.lr"]:
        tree["search"] = {"algorithm": "grid"}
    elif what == "algorithm":
        tree["search"] = {"algorithm": draw.choice(["random", "tpe"]), "num_samples": draw.randint(2, 6)}
    return tree


# --- What must hold ---------------------------------------------------------------------------------------------------


def check_journal(storage: Path, retried: list[bool]) -> None:
    """No row, decision or end is there twice, and no trial runs again whose end stands; `retried`: of each start."""
    start, keys, rows, decided = -1, dict[int, str](), set[tuple[int, int]](), set[tuple[int, str]]()
    status, last, overrides, whys = dict[int, str](), dict[int, int](), dict[int, Any](), dict[int, Any]()
    epochs = 0
    for event in events(storage):
        name, trial = event["event"], event.get("trial", -1)
        is_longer = status.get(trial) == "completed" and last.get(trial, 0) < epochs
        if name == "start":
            start, epochs = start + 1, event["experiment"]["train"]["epochs"]
        elif name == "trial":
            if keys.get(trial, event["key"]) != event["key"]:
                assert status.pop(trial) == "infeasible", "a number was used again, and not by what can be trained now"
                assert overrides[trial] == event["overrides"]
            keys[trial], overrides[trial] = event["key"], event["overrides"]
        elif name == "run":
            may_run = status.get(trial) not in FINAL or is_longer or (status[trial] == "failed" and retried[start])
            assert may_run, f"trial {trial} is {status[trial]} and runs again"
            status[trial] = "running"
        elif name == "row":
            assert status[trial] == "running"
            assert (trial, event["epoch"]) not in rows, "a row is there twice"
            rows.add((trial, event["epoch"]))
            last[trial] = max(last.get(trial, 0), event["epoch"])
        elif name == "decision" and event["action"] in ("stop", "audit"):
            assert (trial, event["action"]) not in decided, "a decision is there twice"
            decided.add((trial, event["action"]))
        elif name == "end":
            # Who was to run again, and did not come to it, waits for the next start. What cannot be trained may not be for
            # another constraint than before.
            is_news = status.get(trial) == event["status"] == "infeasible" and whys[trial] != event["reason"]
            assert status.get(trial) not in FINAL or is_longer or is_news or event["status"] in ("interrupted", "budget")
            status[trial], whys[trial] = event["status"], event["reason"]
    assert len(set(keys.values())) == len(keys), "a trial has two numbers"


def check_results(storage: Path, tree: Tree, world: World) -> None:
    """Every planned trial has its row and its end, every epoch of a completed one is there, and the values are right."""
    plan, _, todo = found(Sweep.from_dict(tree), storage, False, False, lambda _text: None)
    assert todo.to_run == []
    shown = results.load(storage / "s")
    trials = shown.trials.set_index("trial")
    for trial in plan.trials:
        status = trials.loc[trial.number, "status"]
        assert status == "infeasible" if trial.infeasible else status in FINAL
        epochs = sorted(shown.rows[shown.rows["trial"] == trial.number]["epoch"])
        assert epochs == list(range(1, len(epochs) + 1))
        assert status != "completed" or len(epochs) >= plan.sweep.experiment.train.epochs
    for _, row in shown.rows.iterrows():
        assert row["train_loss"] == world.loss(trials.loc[row["trial"], "key"], row["epoch"], {})
    first = shown.groups.first
    assert len({configuration(t.overrides) for t in plan.trials}) == len({first[t.number] for t in plan.trials})
    assert len(shown.leaderboard) == len(trials)


def play_history(seed: int, storage: Path) -> None:
    draw = random.Random(seed)
    world = World(seed, saves=draw.choice([1.0, 0.5, 0.0]), fates=(0.1, 0.15, 0.05))
    tree, retried = drawn_sweep(draw), list[bool]()

    def live(**how: Any) -> str:
        became = life(tree, storage, world, at_once=draw.randint(1, 4), seed=draw.randint(0, 999), **how)
        retried.extend([how.get("retry_failed", False)] * (len(events(storage, "start")) - len(retried)))
        check_journal(storage, retried)
        return became

    for number in range(draw.randint(1, 5)):
        if number and draw.random() < 0.6:
            other = changed(draw, tree)
            try:
                found(Sweep.from_dict(other), storage, False, False, lambda _text: None)
                tree = other
            except ConfigError:
                pass  # refused before anything starts
        live(
            dies_after=draw.choice([None, draw.randint(0 if number else 2000, 10000)]),
            interrupted_after=draw.choice([None, None, draw.randint(0, 40)]),
            retry_failed=draw.random() < 0.2,
        )
    tree.pop("budget", None)
    live()
    for _ in range(2):
        trained, told = len(world.trained), [len(events(storage, name)) for name in ("run", "row", "decision")]
        became = live()
        assert len(world.trained) == trained
        assert [len(events(storage, name)) for name in ("run", "row", "decision")] == told
    assert became == "over" or tree["search"]["algorithm"] == "tpe", "a searcher is asked once more"
    check_results(storage, tree, world)
    assert len(list(storage.iterdir())) == 1


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_done_twice_and_nothing_is_lost(seed: int, tmp_path: Path) -> None:
    play_history(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_nothing_is_done_twice_and_nothing_is_lost_in_many_histories(block: int, tmp_path: Path) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        play_history(seed, tmp_path / str(seed))
