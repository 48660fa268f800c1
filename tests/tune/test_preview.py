"""`--plan` says what would run and cost; it writes its prediction and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from raysweep.cluster.join import Cluster
from raysweep.cluster.resources import Allocation, Available
from raysweep.config import Sweep
from raysweep.errors import ConfigError, StoreError
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.store.prediction import read_prediction
from raysweep.tune import preview
from raysweep.tune.cost import estimate
from raysweep.tune.cost.calibrate import Calibration
from raysweep.tune.cost.left import what_for
from raysweep.tune.cost.predict import TRIAL_S, WORKERS_TRIAL_S, Interval, Prediction
from raysweep.tune.cost.sizes import Cost, Size
from raysweep.tune.plan import make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import read_past, work

SWEEP: dict[str, Any] = {
    "name": "s",
    "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 3}},
    "space": {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2, 9]}},
}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "running_cluster", lambda: None)
    monkeypatch.setattr(preview, "available_here", lambda: Available(4, 0))

    @contextmanager
    def connected(**_given: float) -> Iterator[Cluster]:
        yield Cluster(False, "here", Available(4, 0), 1)

    monkeypatch.setattr(preview, "connected", connected)


def played(sizes: Sequence[Size], *_given: object) -> Calibration:
    """An epoch of 100 s for the first size, 200 s for the second, and so on."""
    costs = [Cost(100.0 * n, 2**29, measured=n == 1) for n in range(1, len(sizes) + 1)]
    return Calibration(costs, 1, (0.9, 1.1), 2, 3.0, 20.0, ["one of two was measured"])


def refused(*_given: object) -> Calibration:
    raise AssertionError("measured although nothing is left")


def shown(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    return text.getvalue()


def test_a_new_sweep(tmp_path: Path) -> None:
    said: list[str] = []
    text, table = preview.preview_sweep(Sweep.from_dict(SWEEP), storage=tmp_path, measured=played, say=said.append)
    first, infeasible, second, last = text.splitlines()
    assert first == "6 trials x 3 epochs: 4 to run, 2 infeasible; 4 at a time (4 CPUs / 1 per trial). No trial was trained."
    assert infeasible == f"Infeasible (trials 2, 5): {make_plan(Sweep.from_dict(SWEEP)).trials[2].infeasible}.", "whole, and once"
    assert last == f"The report sets this beside what the sweep takes; until then it is in {tmp_path / 's.plan.json'}."
    # All four at once: the wall time is that of the larger size, 3 x 200 s and the start.
    assert second.startswith("Wall time 9 min 5 s to 11 min 5 s (about 10 min 5 s), and 14 s to start and to write the report;")
    assert "0.45 to 0.55 device-hours (about 0.5). Calibrated in 20 s: 1 of 2 model sizes, 2 at a time." in second
    page = shown(table)
    assert page.count("infeasible") == 2
    assert "model.depth" not in page
    assert page.count("new") == 4
    assert page.count(" 512 MiB ") == 4
    assert page.count("about 512 MiB") == page.count("about 200") == 2, "what was not measured is marked"
    assert "note: one of two was measured" in said
    assert [path.name for path in tmp_path.iterdir()] == ["s.plan.json"]


def test_the_prediction_is_for_these_settings_and_what_is_left_of_them(tmp_path: Path) -> None:
    settings = Sweep.from_dict(SWEEP)
    preview.preview_sweep(settings, storage=tmp_path, measured=played)
    allocation = Allocation(1, 1, 0)

    def found(sweep: Sweep, at_once: int = 4) -> dict[str, Any] | None:
        plan = make_plan(sweep)
        return read_prediction(tmp_path, "s", what_for(plan, None, work(plan, None, False), allocation, at_once))

    prediction = found(settings)
    assert prediction is not None
    assert prediction["wall_s"] == pytest.approx([545.4, 605.4, 665.4])
    assert prediction["device_hours"] == pytest.approx([0.45, 0.5, 0.55])
    assert found(settings, at_once=2) is None
    assert found(Sweep.from_dict({**SWEEP, "space": {"optim.lr": {"grid": [1e-3]}}})) is None
    changed = {**SWEEP["experiment"], "train": {"epochs": 4}}
    assert found(Sweep.from_dict({**SWEEP, "experiment": changed})) is None


def test_where_nothing_could_be_measured_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    def failing(*_given: object) -> Calibration:
        return Calibration([], 0, (1, 1), 2, 3.0, 40.0, ["a trial with 3 parameters fails: ValueError: no"])

    said: list[str] = []
    text, table = preview.preview_sweep(Sweep.from_dict(SWEEP), storage=tmp_path, measured=failing, say=said.append)
    assert "No estimate: calibrated in 40 s: no model size" in text
    assert "note: a trial with 3 parameters fails: ValueError: no" in said
    assert "memory" not in shown(table)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(*_given: object) -> Calibration:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        preview.preview_sweep(Sweep.from_dict(SWEEP), storage=tmp_path / "new", measured=interrupted)
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match="is a file"):
        preview.preview_sweep(Sweep.from_dict(SWEEP), storage=file, measured=refused)
    experiment = {**SWEEP["experiment"], "model": {"norm": "batch"}, "scale": {"workers": 2}}
    with pytest.raises(ConfigError, match="batch normalisation on 2 CPU workers"):
        preview.preview_sweep(Sweep.from_dict({**SWEEP, "experiment": experiment}), storage=tmp_path, measured=refused)


def test_early_stopping_makes_the_upper_end_the_time_without(tmp_path: Path) -> None:
    settings = Sweep.from_dict({**SWEEP, "scheduler": {"name": "asha"}})
    text, _ = preview.preview_sweep(settings, storage=tmp_path, measured=played)
    assert ", the upper end if no trial is stopped early." in text
    assert " to 11 min 5 s (about " in text


def test_an_elastic_trial_starts_processes_of_its_own_whatever_its_share(tmp_path: Path) -> None:
    walls = []
    for name, workers in (("one", 1), ("elastic", [1, 4])):
        experiment = {**SWEEP["experiment"], "scale": {"workers": workers}}
        preview.preview_sweep(
            Sweep.from_dict({**SWEEP, "name": name, "experiment": experiment}), storage=tmp_path, measured=played
        )
        walls.append(json.loads((tmp_path / f"{name}.plan.json").read_text())["predicted"]["wall_s"][1])
    assert walls[1] - walls[0] == pytest.approx(WORKERS_TRIAL_S - TRIAL_S, abs=0.2), "four trials on four CPUs: a worker each"


def begun(tmp_path: Path, finished: bool = False) -> tuple[Sweep, SweepDirectory]:
    """A sweep of which trial 0 is completed and trial 1 has two epochs; or (finished) all that can be trained is completed."""
    settings = Sweep.from_dict(SWEEP)
    plan, directory = make_plan(settings), SweepDirectory.create(tmp_path, "s")
    with closing(JournalWriter(directory.journal)) as journal:
        content = settings.model_dump(mode="json", exclude_unset=True)
        journal.event("start", sweep=content, experiment={}, data=plan.prepared.facts)
        recorder = SweepRecorder(plan, journal)
        for number, epochs in ((0, 3), (1, 2), *(((3, 3), (4, 3)) if finished else ())):
            recorder.assigned(f"id{number}", plan.trials[number])
            recorder.started(f"id{number}")
            for epoch in range(1, epochs + 1):
                recorder.row(f"id{number}", {"epoch": epoch, "val_loss": 0.5})
        recorder.ended("id0", "completed", {})
        if finished:
            recorder.row("id1", {"epoch": 3, "val_loss": 0.5})
            for number in (1, 3, 4):
                recorder.ended(f"id{number}", "completed", {})
    return settings, directory


def test_a_sweep_that_was_begun(tmp_path: Path) -> None:
    settings, directory = begun(tmp_path)
    before = directory.journal.read_bytes()
    text, table = preview.preview_sweep(settings, storage=tmp_path, measured=played)
    assert text.startswith("6 trials x 3 epochs: 3 to run, 1 ended, 2 infeasible;")
    assert f"(about {(200 + 3 * 100 + 3 * 200) / 3600:.2g})" in text, "one epoch of the larger size, three of each"
    page = shown(table)
    assert "completed after epoch 3" in page
    assert "goes on after epoch 2" in page
    assert page.count("new") == 2
    assert directory.journal.read_bytes() == before


def test_a_prediction_is_of_no_use_once_an_epoch_more_is_done(tmp_path: Path) -> None:
    settings, directory = begun(tmp_path)
    plan, past = make_plan(settings), read_past(directory)
    assert past is not None

    def name() -> str:
        return what_for(plan, past, work(plan, past, False), Allocation(1, 1, 0), 2)

    before = name()
    assert name() == before
    past.trials[plan.trials[1].key].rows[3] = {"epoch": 3}
    assert name() != before


def test_a_sweep_that_is_finished_has_nothing_left(tmp_path: Path) -> None:
    settings, _ = begun(tmp_path, finished=True)
    text, table = preview.preview_sweep(settings, storage=tmp_path, measured=refused)
    assert text.startswith("6 trials x 3 epochs: 0 to run, 4 ended, 2 infeasible;")
    assert text.splitlines()[-1] == "Nothing is left to train: 0 s."
    assert shown(table).count("completed after epoch 3") == 4
    assert not (tmp_path / "s.plan.json").exists()


def test_a_search_that_learns_has_trials_to_think_of(tmp_path: Path) -> None:
    space = {"optim.lr": {"loguniform": [1e-4, 1e-1]}}
    settings = Sweep.from_dict({**SWEEP, "space": space, "search": {"algorithm": "tpe", "num_samples": 7}})
    text, _ = preview.preview_sweep(settings, storage=tmp_path, measured=played)
    assert "7 trials x 3 epochs: 0 to run, 7 that the search will think of" in text
    assert "random draws stand for the 7 trials to think of" in text
    assert f"(about {7 * 3 * 100 / 3600:.2g})" in text, "each is trained"


@pytest.mark.parametrize(
    ("device_s", "shown"),
    [
        ((2.87, 4.0, 6.66), "device time 2.9 s to 6.7 s (about 4.0 s)"),
        ((200, 300, 359), "device time 3 min 20 s to 5 min 59 s (about 5 min)"),
        ((200, 300, 360), "0.056 to 0.1 device-hours (about 0.083)"),
        ((4.4e5, 4.5e5, 1.23456e6), "120 to 340 device-hours (about 120)"),
    ],
)
def test_device_time_has_a_unit_and_digits_that_tell_something(device_s: tuple[float, float, float], shown: str) -> None:
    cost = estimate.Estimate(Prediction(Interval(1, 2, 3), Interval(*device_s)), {}, played([]), 0, False)
    assert f"; {shown}. Calibrated" in cost.describe(10)


def test_each_reason_why_trials_are_infeasible_stands_once_and_not_without_end() -> None:
    plan = make_plan(Sweep.from_dict(SWEEP))
    plan.trials += [replace(plan.trials[2], number=6 + n, key=f"k{n}", infeasible=f"no\n  {n}") for n in range(9)]
    text, _ = preview.preview(plan, None, work(plan, None, False), 1, "why")
    lines = text.splitlines()[1:]
    assert lines[0].startswith("Infeasible (trials 2, 5): model.depth"), "the most frequent first"
    assert lines[1:5] == [f"Infeasible (trial {6 + n}): no {n}." for n in range(4)]
    assert lines[5:] == ["... and 5 more infeasible trials."]
