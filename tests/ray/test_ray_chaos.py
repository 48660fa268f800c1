"""The promise under fire: workers killed, machines removed, added and drained in the middle of elastic runs.

What happens and what is checked is chaos.py's, run as a program: the cluster is its own. This file comes first of the tests
here, before they start the cluster that they share: two Rays on one machine end each other's trials.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from chaos_cluster import MAX_NODES, Schedule

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


@pytest.mark.timeout(700)
def test_two_runs_survive_three_faults_each() -> None:
    done = chaos(2, 650, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
    assert chaos(runs, 330.0 * runs + 120).returncode == 0
