"""The command line on a running cluster: what it prints, its exit code, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import raysweep
from raysweep.cluster.join import Cluster

SWEEP = """
name: cli
experiment:
  data: {source: digits, count: 200}
  model: {base_channels: 4}
  train: {epochs: EPOCHS, batch_size: 16}
space:
  optim.lr: {grid: [1e-3, 1e-2]}
  model.depth: {grid: [1, 2]}
"""


def command(tmp_path: Path, *arguments: str, address: str | None) -> subprocess.Popen[str]:
    """`python -m raysweep...` in a session of its own, as a terminal would start it."""
    # RAY_AUTH_... stays: a cluster that a program starts for itself asks for that program's token.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    if address:
        environment["RAY_ADDRESS"] = address
    root = str(Path(raysweep.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "cli.yaml"
    path.write_text(SWEEP.replace("EPOCHS", "2"))
    return path


@pytest.mark.usefixtures("resources_return")
def test_a_sweep_joins_the_cluster_and_ends_with_the_reports_path(cluster: Cluster, tmp_path: Path, sweep_file: Path) -> None:
    process = command(tmp_path, "raysweep.tune", sweep_file.name, address=cluster.address)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    lines = output.splitlines()
    assert lines[0].startswith(f"joined the Ray cluster at {cluster.address}: 1 machine")
    assert "4 trials x 2 epochs" in lines[1]
    assert sum("completed after 2 epochs" in line for line in lines) == 4
    assert lines[-1] == "results/cli/report.html"
    assert (tmp_path / lines[-1]).exists()
    assert errors == "", "Ray's own noise is silenced"


@pytest.mark.usefixtures("resources_return")
def test_ctrl_c_ends_a_sweep_cleanly_and_keeps_what_was_trained(cluster: Cluster, tmp_path: Path, sweep_file: Path) -> None:
    sweep_file.write_text(SWEEP.replace("EPOCHS", "100000"))
    process = command(tmp_path, "raysweep.tune", sweep_file.name, address=cluster.address)
    journal = tmp_path / "results" / "cli" / "journal.jsonl"
    until = time.monotonic() + 250
    while not (journal.exists() and '"row"' in journal.read_text()):
        assert time.monotonic() < until, "no row came"
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "Ctrl-C: ending the sweep" in output
    assert "interrupted; what was trained is kept in results/cli" in output
    found = raysweep.open(tmp_path / "results" / "cli")
    assert set(found.trials["status"]) == {"interrupted"}
    assert len(found.trials) == 4
    assert found.best is not None
    assert output.splitlines()[-1] == "results/cli/report.html"


@pytest.mark.usefixtures("resources_return")
def test_a_sweep_in_which_every_trial_fails_exits_with_1_and_one_traceback(
    cluster: Cluster, tmp_path: Path, sweep_file: Path
) -> None:
    (tmp_path / "wrong.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def __init__(self, depth):\n"
        "        super().__init__(1, 1, 3, padding=1)\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            raise ValueError('wrong in every trial')\n"
        "        return super().forward(x)\n"
    )
    text = sweep_file.read_text().replace("{base_channels: 4}", "{factory: 'wrong:Net', params: {depth: 1}}")
    sweep_file.write_text(text.replace("model.depth", "model.params.depth"))
    process = command(tmp_path, "raysweep.tune", sweep_file.name, address=cluster.address)
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 1, errors
    report = (tmp_path / "results" / "cli" / "report.md").read_text()
    assert report.count("Traceback (most recent call last)") == 1
    assert "wrong in every trial" in report


def test_a_second_program_does_not_start_a_second_ray(cluster: Cluster, tmp_path: Path, sweep_file: Path) -> None:
    process = command(tmp_path, "raysweep.tune", sweep_file.name, address=None)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert errors.startswith("error: another program runs its own Ray on this machine")
    assert not (tmp_path / "results").exists()
