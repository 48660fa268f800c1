"""The promise under fire: workers killed, machines removed, added and drained in the middle of elastic runs.

What happens and what is checked is chaos.py's, run as a program: the cluster is its own. This file comes first of the tests
here, before they start the cluster that they share: two Rays on one machine end each other's trials.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos as chaos_module
import pytest
import ray
from chaos_cluster import MAX_NODES, ChaosCluster, Schedule

from raysweep.store.journal import read_events

HARNESS = Path(__file__).with_name("chaos.py")


def chaos(runs: int, timeout_s: float, **output: int) -> subprocess.CompletedProcess[str]:
    assert not ray.is_initialized(), "these tests need the machine's only Ray; run them before the others in here"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HARNESS.parents[2]), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HARNESS), "--runs", str(runs), "--seed", "0", "--faults", "3"]
    return subprocess.run(command, env=environment, text=True, timeout=timeout_s, check=False, **output)


def test_a_schedule_is_a_function_of_its_seed_and_never_leaves_less_than_one_machine() -> None:
    assert Schedule.random(5, 4) == Schedule.random(5, 4)
    schedules = [Schedule.random(seed, 8) for seed in range(200)]
    assert len(set(schedules)) == 200
    for schedule in schedules:
        nodes = 2
        for fault in schedule.faults:
            nodes += {"add": 1, "kill": 0}.get(fault.kind, -1)
            assert 1 <= nodes <= MAX_NODES
    assert {fault.kind for schedule in schedules for fault in schedule.faults} == {"kill", "remove", "drain", "add"}


def journal(directory: Path) -> list[dict[str, Any]]:
    path = directory / "journal.jsonl"
    return list(read_events(path)) if path.exists() else []


def wait_for(what: Callable[[], Any], process: subprocess.Popen[bytes], log: Path, limit_s: float = 250) -> Any:
    until = time.monotonic() + limit_s
    while not (found := what()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, f"waited for {limit_s:g} s: {log.read_text()}"
        time.sleep(0.1)
    return found


@pytest.mark.timeout(1200)
def test_a_run_grows_when_a_machine_joins_and_survives_one_that_is_drained(tmp_path: Path) -> None:
    whole = chaos_module.uninterrupted(tmp_path, "bitwise")
    (tmp_path / "hurry").unlink()
    run, log = tmp_path / "results" / "grows", tmp_path / "grows.log"

    def saved() -> int:
        """The step of the newest whole checkpoint."""
        return max((int(path.stem.removeprefix("ckpt-")) for path in run.glob("trials/*/ckpt-*.json")), default=0)

    def told_in(attempt: int) -> list[dict[str, Any]]:
        return [e for e in journal(run) if e["event"] == "row" and e["attempt"] == attempt]

    with ChaosCluster() as cluster:
        cluster.reset(nodes=1)
        # Whatever saves, it is neither the time nor an epoch's end.
        options = ["--workers", "1:2", "--set", "train.checkpoint_every_s=null", "--set", "train.checkpoint_every_epochs=1000"]
        process = chaos_module.start(tmp_path, "grows", "bitwise", *options, address=cluster.address)
        try:
            wait_for(lambda: told_in(1), process, log)
            cluster.add()
            grown = wait_for(lambda: [e for e in journal(run) if e["event"] == "resize"], process, log)[0]
            assert (grown["from"], grown["to"], grown["redone_steps"]) == (1, 2, 0)
            assert grown["why"] == "room for 2 workers"
            assert grown["pause_s"] > 0
            assert saved() == grown["step"], "it has not saved since it grew"
            cluster.drain(0.99, notice_s=6)
            wait_for(lambda: "is about to go: saving" in log.read_text(), process, log)
            first = wait_for(lambda: saved() > grown["step"] and saved(), process, log)
            again = wait_for(lambda: saved() > first and saved(), process, log)
            wait_for(lambda: told_in(2), process, log)
            assert not [e for e in journal(run) if e["event"] == "preemption"], "it goes on until the machine is gone"
            cluster.take_away(now=float("inf"))
            taken = wait_for(lambda: [e for e in journal(run) if e["event"] == "preemption"], process, log)[0]
            assert (taken["from"], taken["to"], taken["kind"]) == (2, 1, "preemption")
            assert taken["step"] - taken["redone_steps"] >= again, "it saved every few seconds since it was told"
            (tmp_path / "hurry").touch()
            assert process.wait(300) == 0, log.read_text()
        finally:
            chaos_module.end(process)
        assert cluster.cpus_return()
    result = chaos_module.Result()
    chaos_module.compare(run, whole, "bitwise", result)
    assert result.broken == []
    assert result.sizes == [1, 2, 1]
    rows = {e["epoch"]: e for e in journal(run) if e["event"] == "row"}.values()  # one told twice counts once
    breaks = [e for e in journal(run) if e["event"] in ("resize", "failure", "preemption")]
    assert sum(row["pause_s"] for row in rows) == pytest.approx(sum(e["pause_s"] for e in breaks), rel=0.01)
    assert {row["attempt"] for row in rows} == {1, 2, 3}


@pytest.mark.timeout(1500)
def test_two_runs_survive_three_faults_each() -> None:
    done = chaos(2, 1400, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    ddp, bitwise, summary = done.stdout.splitlines()[-3:]
    assert "ddp" in ddp
    assert "bitwise" in bitwise
    assert "2 runs, 6 faults" in summary
    assert "lost 0, repeated 0" in summary
    assert "0 runs broke a promise" in summary


@pytest.mark.chaos
@pytest.mark.timeout(0)
def test_many_runs_survive() -> None:
    """`make chaos RUNS=30`: about two minutes a run, told line by line."""
    runs = int(os.environ.get("RUNS", "30"))
    assert chaos(runs, 650.0 * runs + 120).returncode == 0
