"""One run on Ray Train's workers: the same result as in this process, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import raysweep
from raysweep.cluster.join import Cluster
from raysweep.errors import TrialError
from raysweep.store.journal import read_events
from raysweep.train import ledger

TINY = {
    "data": {"source": "digits", "count": 200},
    "model": {"depth": 1, "base_channels": 4},
    "train": {"epochs": 3, "batch_size": 16},
}

MODULE = """
import os, pathlib, signal, time, torch

HERE = pathlib.Path(__file__).parent

def build(fail=False, kill_at=0, wait_at=()):
    return Net(fail, kill_at, wait_at)

class Net(torch.nn.Module):
    def __init__(self, fail, kill_at, wait_at):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 1, 3, padding=1)
        self.fail, self.kill_at, self.wait_at, self.steps = fail, kill_at, wait_at, 0
        (HERE / f"pid-{os.getpid()}").touch()

    def forward(self, x):
        if self.training:
            self.steps += 1
            if self.fail:
                raise ValueError("a mistake in the user's own code")
            if self.steps == self.kill_at and not (HERE / "killed").exists():
                try:  # one of the workers, once
                    os.close(os.open(HERE / "killed", os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
                except FileExistsError:
                    pass
            while self.steps in self.wait_at and not (HERE / f"beyond-{self.steps}").exists():
                time.sleep(0.01)
        return self.conv(x)
"""


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the directory that they work in; a name of its own for each test."""
    name = f"ownnet_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:build"


def with_scale(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


@pytest.mark.usefixtures("resources_return")
def test_two_workers_end_where_one_process_ends(tmp_path: Path) -> None:
    two = raysweep.train(with_scale(scale={"workers": 2}), storage=tmp_path, name="two")
    one = raysweep.train(TINY, storage=tmp_path, name="one", local=True)
    assert list(two.rows["world_size"]) == [2, 2, 2]
    assert list(two.rows["val_loss"]) == pytest.approx(list(one.rows["val_loss"]), rel=1e-5)
    assert two.trials.loc[0, "key"] == one.trials.loc[0, "key"], "the number of workers is no part of the key"
    assert two.trials.loc[0, "status"] == "completed"
    path = next((tmp_path / "two" / "trials").glob("*/best.pt"))
    one.load_model().load_state_dict(torch.load(path, weights_only=True)["model"], strict=True)
    names = {p.name for p in path.parent.iterdir()}
    numbered = {name for name in names if name.startswith("ckpt-")}
    assert {"ckpt-000000030.pt", "ckpt-000000030.json"} <= numbered
    assert names - numbered == {"best.pt", "samples.npz"}, "no mail and no Ray files stay behind"


@pytest.mark.usefixtures("resources_return")
def test_an_error_of_the_users_ends_the_run_once_with_its_traceback(tmp_path: Path, own_model: str) -> None:
    experiment = with_scale(model={"factory": own_model, "params": {"fail": True}}, scale={"workers": 2, "max_failures": 3})
    with pytest.raises(TrialError, match="a mistake in the user's own code") as caught:
        raysweep.train(experiment, storage=tmp_path, name="fails")
    assert "in forward" in caught.value.traceback_text
    processes = len(list(tmp_path.glob("pid-*")))
    assert processes == 3, "the driver's check and two workers: the same error is not tried again"
    left = raysweep.open(tmp_path / "fails")
    assert left.trials.loc[0, "status"] == "failed"
    assert "a mistake in the user's own code" in left.trials.loc[0, "error"]


@pytest.mark.usefixtures("resources_return")
def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path: Path, own_model: str) -> None:
    experiment = with_scale(
        model={"factory": own_model, "params": {"kill_at": 35}},  # of 10 steps an epoch
        scale={"workers": 2},
        train={"epochs": 6, "batch_size": 16, "checkpoint_every_epochs": 1},
    )
    cut = raysweep.train(experiment, storage=tmp_path, name="cut")
    assert (tmp_path / "killed").exists(), "no worker was killed, so the test shows nothing"
    kinds = [event["kind"] for event in read_events(tmp_path / "cut" / "journal.jsonl") if event["event"] == "failure"]
    assert kinds == ["lost_worker"]
    whole = raysweep.train({**experiment, "scale": {"workers": 1}}, storage=tmp_path, name="whole", local=True)
    assert list(cut.rows["epoch"]) == [1, 2, 3, 4, 5, 6]
    assert list(cut.rows["val_loss"]) == pytest.approx(list(whole.rows["val_loss"]), rel=1e-5)


@pytest.mark.usefixtures("resources_return")
def test_a_run_whose_driver_is_killed_is_gone_on_with(cluster: Cluster, tmp_path: Path, own_model: str) -> None:
    """Its workers train on for some epochs, whose rows are in their mail only: before it is killed it takes no more of them."""
    epochs = {"epochs": 40, "batch_size": 16, "checkpoint_every_epochs": 1, "ledger": True}
    # Of 10 steps an epoch: they wait in the 11th epoch until their driver stands still, and in the 31st until it is dead.
    waiting = {"factory": own_model, "params": {"wait_at": [105, 305]}}
    experiment = with_scale(scale={"workers": 2}, train=epochs, model=waiting)
    code = f"import raysweep; raysweep.train({experiment!r}, storage={str(tmp_path)!r}, name='cut')"
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    driver = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path)
    journal, until = tmp_path / "cut" / "journal.jsonl", time.monotonic() + 250
    while not journal.exists() or journal.read_bytes().count(b'{"row"') < 3:
        assert time.monotonic() < until, "no rows"
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGSTOP)
    (tmp_path / "beyond-105").touch()
    taken, mail = journal.read_bytes().count(b'{"row"'), tmp_path / "cut" / "trials"
    while sum(path.read_bytes().count(b"\n") for path in mail.glob("*/mail/*/rows.jsonl")) < taken + 5:
        assert time.monotonic() < until, "the workers wait for their driver"
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    (tmp_path / "beyond-305").touch()
    cut = raysweep.train(experiment, storage=tmp_path, name="cut", resume=True)
    told = [event["epoch"] for event in read_events(journal) if event["event"] == "row"]
    assert told == list(range(1, 41)), "each epoch once"
    whole = raysweep.train({**experiment, "scale": {"workers": 1}}, storage=tmp_path, name="whole", local=True)
    assert list(cut.rows["val_loss"]) == pytest.approx(list(whole.rows["val_loss"]), rel=1e-5)
    (trial,) = (tmp_path / "cut" / "trials").iterdir()
    report = ledger.check(ledger.committed(trial), range(1, 41))
    assert (report.lost, report.repeated) == (0, 0)
