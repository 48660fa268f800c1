"""A sweep never does the same work twice: again, wider, longer, and after its driver was killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import raysweep
from raysweep.cluster.join import Cluster
from raysweep.config import Sweep
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import read_events
from raysweep.tune import engine
from raysweep.tune.engine import run_sweep
from raysweep.tune.resume import read_past
from raysweep.tune.schedulers import RecordingScheduler

TINY: dict[str, Any] = {
    "data": {"source": "digits", "count": 200},
    "model": {"depth": 1, "base_channels": 4},
    "train": {"epochs": 3, "batch_size": 16},
}


def sweep(lrs: list[float], epochs: int = 3) -> Sweep:
    experiment = {**TINY, "train": {**TINY["train"], "epochs": epochs}}
    return Sweep.from_dict(
        {
            "name": "s",
            "experiment": experiment,
            "space": {"optim.lr": {"grid": lrs}, "model.base_channels": {"grid": [2, 3, 4, 5]}},
        }
    )


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(directory / "journal.jsonl") if event["event"] == name]


@pytest.mark.usefixtures("resources_return")
def test_again_wider_and_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "s"
    run_sweep(sweep([1e-4, 1e-3, 1e-2, 1e-1]), storage=tmp_path)
    before = (directory / "journal.jsonl").read_bytes()

    said: list[str] = []
    with monkeypatch.context() as without:
        without.setattr(engine, "connected", lambda **_given: pytest.fail("Ray is not needed for this"))
        again = run_sweep(sweep([1e-4, 1e-3, 1e-2, 1e-1]), storage=tmp_path, say=said.append)
    assert again.exit_code == 0
    assert said == ["found s/: 16 completed; nothing is left to train"]
    assert (directory / "journal.jsonl").read_bytes() == before, "no step was trained"

    said.clear()
    run_sweep(sweep([1e-4, 1e-3, 3e-3, 1e-2, 1e-1]), storage=tmp_path, say=said.append)
    assert "16 completed; 4 are new" in said[0]
    assert len(events(directory, "run")) == 16 + 4

    run_sweep(sweep([1e-4, 1e-3, 3e-3, 1e-2, 1e-1], epochs=6), storage=tmp_path)
    found = raysweep.open(directory)
    assert list(found.trials["epochs"]) == [6] * 20
    assert list(found.trials["status"]) == ["completed"] * 20
    rows = events(directory, "row")
    assert len(rows) == 20 * 6, "the first three epochs were not trained again"
    assert len({(row["trial"], row["epoch"]) for row in rows}) == 120

    run_sweep(sweep([1e-3], epochs=6), storage=tmp_path, fresh=True)
    assert len(events(tmp_path / "s-2", "run")) == 4
    assert len(events(directory, "start")) == 3


ASHA = """
name: cut
experiment:
  data: {source: digits, count: 200}
  model: {depth: 1, base_channels: 4}
  train: {epochs: 8, batch_size: 16, checkpoint_every_epochs: 1}
space:
  optim.lr: {loguniform: [1e-5, 1e-1]}
search: {algorithm: random, num_samples: 24, max_concurrent: AT_ONCE}
scheduler: {name: asha, reduction_factor: 2}
"""


def killed_until_it_ends(
    directory: Path, address: str, at_once: int, kills: int, seed: int, text: str = ASHA, marks: tuple[bytes, ...] = (b"\n",)
) -> int:
    """Run a sweep whose driver is killed so often at random moments, some just after one of `marks`; how often it really was."""
    (directory / "cut.yaml").write_text(text.replace("AT_ONCE", str(at_once)))
    environment = {**os.environ, "RAY_ADDRESS": address}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(raysweep.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    journal, draw, killed = directory / "results" / "cut" / "journal.jsonl", random.Random(seed), 0
    committed: list[bytes] = []  # what the journal held at each kill

    def content() -> bytes:
        return journal.read_bytes() if journal.exists() else b""

    while True:
        starts = content().count(b'"event":"start"')
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "raysweep.tune", "cut.yaml"], cwd=directory, env=environment, stdout=log, stderr=log
            )
        if killed < kills:
            until = time.monotonic() + 100
            while process.poll() is None and content().count(b'"event":"start"') == starts:
                assert time.monotonic() < until, (directory / "log").read_text()
                time.sleep(0.05)
            # Half of the kills by the clock, half a few lines later, so that all kinds of events come before one.
            lines, mark = draw.choice([0, draw.randrange(1, 2 + 12 // at_once)]), draw.choice(marks)
            lines = lines if mark == b"\n" else min(lines, 1)
            begun = content().count(mark)
            while process.poll() is None and content().count(mark) < begun + lines:
                time.sleep(0.005)
            time.sleep(draw.uniform(0.0, 0.1 if lines else 1.5 / at_once))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
                process.wait()
                committed.append(content())
                continue
        assert process.wait(200) == 0, (directory / "log").read_text()
        for before in committed:
            whole = before[: before.rfind(b"\n") + 1]
            assert content().startswith(whole), "what was committed before a kill has changed"
        return killed


def decided_anew(path: Path) -> list[tuple[Any, ...]]:
    """The stops that a scheduler decides on which sees the journal's rows, in their order, in one go."""
    past = read_past(SweepDirectory(path))
    assert past is not None
    scheduler, stops = RecordingScheduler(past.sweep, Mock()), []
    for key, row in past.told:
        told, number = [(key, row)], past.trials[key].number
        for reason in scheduler.replay(told, {}).values():
            stops.append((number, reason["epoch"], reason["rung"], reason["value"], reason["cutoff"]))
    return stops


def told(directory: Path) -> dict[str, Any]:
    """What a sweep committed: rows, decisions, ends, and the order of its trials."""
    path = directory / "results" / "cut"
    rows = {(e["trial"], e["epoch"]): e["val_loss"] for e in events(path, "row")}
    assert len(rows) == len(events(path, "row")), "a row was told twice"
    decided = [(e["trial"], e["epoch"], e["rung"], e["value"], e["cutoff"]) for e in events(path, "decision")]
    assert len({d[0] for d in decided}) == len(decided), "a decision was made twice"
    assert decided == decided_anew(path), "a decision was made by rungs that did not hold every committed value"
    found = raysweep.open(path)
    return {
        "rows": rows,
        "decisions": decided,
        "ends": list(found.trials["status"]),
        "board": list(found.results.leaderboard["trial"]),
    }


def runs_after_the_end(directory: Path) -> int:
    ended, again = set(), 0
    for event in read_events(directory / "results" / "cut" / "journal.jsonl"):
        if event["event"] == "end" and event["status"] in ("completed", "stopped"):
            ended.add(event["trial"])
        again += event["event"] == "run" and event["trial"] in ended
    return again


def check_kills(tmp_path: Path, cluster: Cluster, kills: int) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for directory in (whole, cut):
        directory.mkdir()
    killed_until_it_ends(whole, cluster.address, 1, 0, seed=0)
    assert killed_until_it_ends(cut, cluster.address, 1, kills, seed=1) == kills
    assert told(cut) == told(whole)
    assert runs_after_the_end(cut) == 0


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("resources_return")
def test_a_killed_driver_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    check_kills(tmp_path, cluster, kills=3)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("resources_return")
def test_a_driver_killed_twenty_times_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    check_kills(tmp_path, cluster, kills=20)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("resources_return")
def test_with_two_at_a_time_nothing_committed_changes(cluster: Cluster, tmp_path: Path) -> None:
    """The order of two trials is the machine's; told() checks that no row or decision came twice, and the rungs."""
    assert killed_until_it_ends(tmp_path, cluster.address, 2, 20, seed=2) == 20
    found = told(tmp_path)
    assert len(found["ends"]) == 24
    assert set(found["ends"]) <= {"completed", "stopped"}
    assert runs_after_the_end(tmp_path) == 0
