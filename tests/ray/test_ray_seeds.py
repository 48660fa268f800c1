"""A sweep with early stopping, an audit of all stops, and a contest of the two best configurations; then again: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysweep
from raysweep.config import Sweep
from raysweep.report.build import build_report
from raysweep.store.journal import read_events
from raysweep.tune.engine import run_sweep

SWEEP = {
    "name": "s",
    "experiment": {
        "data": {"source": "digits", "count": 200},
        "model": {"depth": 1, "base_channels": 4},
        "train": {"epochs": 4, "batch_size": 16},
    },
    "space": {"optim.lr": {"grid": [1e-5, 1e-4, 1e-3, 1e-2]}},
    "search": {"seeds": 3, "contenders": 2},
    "scheduler": {"name": "asha", "reduction_factor": 2, "audit": 1.0},
}


@pytest.mark.slow
@pytest.mark.usefixtures("resources_return")
def test_audit_and_contest(tmp_path: Path) -> None:
    finished = run_sweep(Sweep.from_dict(SWEEP), storage=tmp_path)
    assert (finished.status, finished.exit_code) == ("completed", 0)
    found = raysweep.open(finished.directory.path)
    results = found.results
    assert list(found.trials["status"]) == ["completed"] * 8, "an audit of all stops stops nothing"
    assert list(found.trials["epochs"]) == [4] * 8
    actions = [decision["action"] for decision in results.decisions]
    assert set(actions) <= {"audit", "contend", "drop"}
    assert actions.count("contend") == 1
    audited = {d["trial"] for d in results.decisions if d["action"] == "audit"}
    assert audited <= {0, 1, 2, 3}, "further seeds are not shown to asha"
    assert results.audited["ended"].all()
    board = results.configurations
    assert list(board["contest"].str.slice(0, 4))[:1] == ["left"]
    assert sorted(len(trials) for trials in board["trials"]) == [1, 1, 3, 3]
    assert found.best is not None
    assert found.best["trial"] in board.loc[0, "trials"]
    assert found.load_model() is not None
    build_report(finished.directory.path)
    page = (finished.directory.path / "report.md").read_text()
    for text in ("Contest of the 2 best", "## Configurations", "mean and standard deviation of 2 further seeds"):
        assert text in page
    assert "images.png" in page, "the examples are those of the best configuration's best trial"

    said: list[str] = []
    before = finished.directory.journal.read_bytes()
    run_sweep(Sweep.from_dict(SWEEP), storage=tmp_path, say=said.append)
    assert said == ["found s/: 8 completed; nothing is left to train"]
    assert finished.directory.journal.read_bytes() == before
    assert sum(e["event"] == "run" for e in read_events(finished.directory.journal)) == 8
