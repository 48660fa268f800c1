"""The Python API without Ray: train in this process, open what was left, load the model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import raysweep
from raysweep.errors import StoreError, TrialError

TINY = {"data": {"source": "digits", "count": 60}, "model": {"depth": 1, "base_channels": 4}, "train": {"epochs": 2}}


def test_a_run_leaves_all_of_itself_in_its_directory(tmp_path: Path) -> None:
    result = raysweep.train(TINY, storage=tmp_path, local=True)
    assert result.directory == tmp_path / "train"
    assert len(result.trials) == 1
    assert list(result.rows["epoch"]) == [1, 2]
    assert result.best is not None
    assert result.best["status"] == "completed"
    moved = tmp_path / "elsewhere"
    shutil.move(result.directory, moved)
    again = raysweep.open(moved)
    assert again.rows.equals(result.rows)
    images = np.load(again.results.directory.trial(str(result.best["key"])) / "samples.npz")
    with torch.no_grad():
        output = again.load_model()(torch.from_numpy(images["x"]).permute(0, 3, 1, 2))
    assert np.allclose(output.permute(0, 2, 3, 1).numpy(), images["output"], atol=1e-5)


def test_a_second_run_writes_over_nothing(tmp_path: Path) -> None:
    first, second = (raysweep.train(TINY, storage=tmp_path, local=True) for _ in range(2))
    assert (first.directory.name, second.directory.name) == ("train", "train-2")
    drop = ["seconds", "samples_per_second", "data_wait", "peak_memory_bytes", "time"]
    assert first.rows.drop(columns=drop).equals(second.rows.drop(columns=drop)), "the same seed gives the same run"


def test_baselines_are_what_a_model_that_learns_nothing_gets(tmp_path: Path) -> None:
    data = raysweep.train({**TINY, "data": {"source": "photos", "count": 200}}, storage=tmp_path, local=True).results.data
    assert data["baseline_input"] == pytest.approx(0.1**2, rel=0.05)
    assert data["baseline_mean_image"] > data["baseline_input"]
    assert data["num_train"] + data["num_val"] == 200


def test_a_model_that_raises_is_a_trial_error_and_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def __init__(self):\n"
        "        super().__init__(1, 1, 1)\n"
        "    def forward(self, x):\n"
        "        assert not self.training, 'never in training'\n"
        "        return super().forward(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrialError, match="never in training") as caught:
        raysweep.train({**TINY, "model": {"factory": "raising_net:Net"}}, storage=tmp_path, local=True)
    assert "in forward" in caught.value.traceback_text
    left = raysweep.open(tmp_path / "train")
    assert left.trials.loc[0, "status"] == "failed"
    assert left.best is None
    with pytest.raises(StoreError, match="no trial"):
        left.load_model()
    why = r"trial 0 has no model, because it has no finite epoch; it is failed: .*never in training"
    with pytest.raises(StoreError, match=why):
        left.load_model(trial=0)


def test_a_trial_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = raysweep.train(TINY, storage=tmp_path, local=True)
    with pytest.raises(StoreError, match="has the trials 0 to 0, not 3"):
        result.load_model(trial=3)


def test_ctrl_c_in_a_local_run_keeps_what_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysweep.train import run

    def interrupted(row: object) -> None:
        raise KeyboardInterrupt

    directory, outcome, _ = run.run(raysweep.Experiment.from_dict(TINY), storage=tmp_path, local=True, on_row=interrupted)
    assert outcome.status == "interrupted"
    left = raysweep.open(directory.path)
    assert left.trials.loc[0, "status"] == "interrupted"
    assert left.best is not None
    left.load_model()


def test_the_package_names_its_api_and_imports_it_late() -> None:
    code = (
        "import sys, raysweep\n"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules\n"
        "missing = [name for name in raysweep.__all__ if getattr(raysweep, name, None) is None]\n"
        "assert not missing, missing\n"
        "import raysweep.train.loop\n"
        "assert callable(raysweep.train)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False
    )
    assert done.returncode == 0, done.stderr
