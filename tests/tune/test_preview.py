"""`--plan` says what would run and touches nothing."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from raysweep.cluster.resources import Available
from raysweep.config import Sweep
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.tune import preview
from raysweep.tune.plan import make_plan
from raysweep.tune.recorder import SweepRecorder

SWEEP = {
    "name": "s",
    "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 3}},
    "space": {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2, 9]}},
}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "running_cluster", lambda: None)
    monkeypatch.setattr(preview, "available_here", lambda: Available(4, 0))


def shown(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    return text.getvalue()


def test_a_new_sweep(tmp_path: Path) -> None:
    text, table = preview.preview_sweep(Sweep.from_dict(SWEEP), storage=tmp_path)
    assert text == "6 trials x 3 epochs: 4 to run, 2 not; 4 at a time (4 CPUs / 1 per trial). Nothing was trained."
    assert shown(table).count("infeasible: model.depth") == 2
    assert shown(table).count("new") == 4
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_was_begun(tmp_path: Path) -> None:
    settings = Sweep.from_dict(SWEEP)
    plan, directory = make_plan(settings), SweepDirectory.create(tmp_path, "s")
    with closing(JournalWriter(directory.journal)) as journal:
        content = settings.model_dump(mode="json", exclude_unset=True)
        journal.event("start", sweep=content, experiment={}, data=plan.prepared.facts)
        recorder = SweepRecorder(plan, journal)
        for number, epochs in ((0, 3), (1, 2)):
            recorder.assigned(f"id{number}", plan.trials[number])
            recorder.started(f"id{number}")
            for epoch in range(1, epochs + 1):
                recorder.row(f"id{number}", {"epoch": epoch, "val_loss": 0.5})
        recorder.ended("id0", "completed", {})
    before = directory.journal.read_bytes()
    text, table = preview.preview_sweep(settings, storage=tmp_path)
    assert text.startswith("6 trials x 3 epochs: 3 to run, 3 not")
    page = shown(table)
    assert "completed after epoch 3" in page
    assert "goes on after epoch 2" in page
    assert page.count("new") == 2
    assert directory.journal.read_bytes() == before


def test_a_search_that_learns_has_trials_to_think_of(tmp_path: Path) -> None:
    space = {"optim.lr": {"loguniform": [1e-4, 1e-1]}}
    settings = Sweep.from_dict({**SWEEP, "space": space, "search": {"algorithm": "tpe", "num_samples": 7}})
    text, _ = preview.preview_sweep(settings, storage=tmp_path)
    assert "7 trials x 3 epochs: 0 to run, 7 that the search will think of" in text
