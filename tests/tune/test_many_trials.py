"""What a trial costs its sweep does not grow with the number of trials: operations are counted, seconds are not."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from rich.console import Console

import raysweep.tune.plan
import raysweep.tune.schedulers
import raysweep.tune.trial
from raysweep.cluster.resources import Allocation
from raysweep.config import Budget, Sweep
from raysweep.store import journal
from raysweep.store.journal import JournalWriter
from raysweep.train.progress import Outcome
from raysweep.tune.callback import JournalCallback, SweepEnd, TuneLines
from raysweep.tune.forget import forget
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.progress import Progress
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.schedulers import RecordingScheduler

EXPERIMENT = {"data": {"source": "digits", "count": 50}, "train": {"epochs": 3}}


def sweep_of(trials: int, **settings: Any) -> Sweep:
    lr = {"optim.lr": {"loguniform": [1e-4, 1e-1]}}
    search = {"algorithm": "random", "num_samples": trials}
    return Sweep.from_dict({"experiment": EXPERIMENT, "space": lr, "search": search, **settings})


class Watched(dict[int, Any]):
    """States that count how often somebody goes through all of them."""

    looks = 0

    def __iter__(self) -> Any:
        Watched.looks += 1
        return super().__iter__()

    def values(self) -> Any:
        Watched.looks += 1
        return super().values()

    def items(self) -> Any:
        Watched.looks += 1
        return super().items()


@pytest.fixture
def plan() -> Plan:
    return make_plan(sweep_of(40))


def test_no_event_of_a_trial_goes_through_all_trials(plan: Plan, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal.jsonl")
    progress = Progress(Console(file=io.StringIO(), width=100))
    recorder = SweepRecorder(plan, writer, progress.changed)
    recorder.states = Watched(recorder.states)
    end = SweepEnd(Budget(target=1e-9), recorder)
    progress.begin(recorder)
    Watched.looks = 0
    for trial in plan.trials:
        recorder.assigned(trial.key, trial)
        recorder.started(trial.key)
        for epoch in (1, 2, 3):
            recorder.row(trial.key, {"epoch": epoch, "step": epoch, "val_loss": 1 / (trial.number + epoch), "train_loss": 0.5})
            assert not end.stop_all()
        recorder.ended(trial.key, "completed", {})
    assert Watched.looks == 0
    assert recorder.num_ended == 40
    assert recorder.seconds_left() == 0
    writer.close()


def test_best_follows_the_trials_through_divergence(plan: Plan, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal.jsonl")
    recorder = SweepRecorder(plan, writer)
    best = []
    for trial, value in zip(plan.trials, (0.5, 0.3, 0.3, 0.1), strict=False):
        recorder.assigned(trial.key, trial)
        recorder.row(trial.key, {"epoch": 1, "val_loss": value})
        found = recorder.best()
        best.append(found.trial.number if found else None)
    assert best == [0, 1, 1, 3]
    for number, left in ((3, 1), (1, 2), (2, 0), (0, None)):
        recorder.ended(plan.trials[number].key, "diverged", {})
        found = recorder.best()
        assert (found.trial.number if found else None) == left
    writer.close()


def test_a_model_that_many_trials_share_is_built_once_for_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    check = raysweep.tune.plan.check_model

    def counted(experiment: Any, dataset: Any) -> Any:
        built.append(experiment.model.depth)
        return check(experiment, dataset)

    monkeypatch.setattr(raysweep.tune.plan, "check_model", counted)
    depth = {"optim.lr": {"grid": [1e-4, 1e-3, 1e-2]}, "model.depth": {"grid": [1, 2]}, "train.batch_size": {"grid": [8, 16]}}
    planned = make_plan(Sweep.from_dict({"experiment": EXPERIMENT, "space": depth}))
    assert sorted(built) == [1, 2]
    sizes = {trial.overrides["model.depth"]: trial.model.parameters for trial in planned.trials}
    assert len(planned.trials) == 12
    assert sizes[1] < sizes[2], "each has its own facts"


def test_trials_that_never_started_end_together_and_not_each_on_the_disk(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path / "journal.jsonl")
    recorder = SweepRecorder(plan, writer)
    synced: list[int] = []
    monkeypatch.setattr(journal.os, "fsync", synced.append)
    recorder.end_rest("interrupted", "interrupted")
    writer.event("finish", status="interrupted")
    writer.close()
    assert recorder.num_ended == 40
    assert len(synced) == 1, "the last event puts all before it on the disk"


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What trials tell Ray Tune."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(raysweep.tune.trial.tune, "report", told.append)
    return told


def run_with(fit: Any, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr(raysweep.tune.trial, "fit_here", fit)
    raysweep.tune.trial.run_trial(
        {"number": 0, "key": "abc", "overrides": {"optim.lr": 0.01}},
        experiment_json=json.dumps(EXPERIMENT),
        directory=str(directory),
        started_in=str(directory),
        allocation=Allocation(1, 1, 1, 0),
    )


def row_of(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "val_loss": 1 / epoch, "train_loss": 0.5, "psnr": 20.0}


def test_the_last_epochs_row_travels_with_the_trials_end(
    reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fit(_experiment: Any, _dataset: Any, _trial: Path, _device: torch.device, _threads: int, row: Any, _: Any) -> Outcome:
        for epoch in (1, 2, 3):
            row(row_of(epoch))
        return Outcome("completed", {})

    run_with(fit, monkeypatch, tmp_path)
    assert [(told.get("epoch"), "end" in told) for told in reports] == [(1, False), (2, False), (3, True)]
    assert reports[-1]["val_loss"] == pytest.approx(1 / 3), "a searcher is told the objective with the end"


def test_a_trial_that_fails_after_its_last_row_keeps_the_row(
    reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fit(_experiment: Any, _dataset: Any, _trial: Path, _device: torch.device, _threads: int, row: Any, _: Any) -> Outcome:
        row(row_of(3))
        raise RuntimeError("the disk is gone")

    run_with(fit, monkeypatch, tmp_path)
    (told,) = reports
    assert json.loads(told["row"])["epoch"] == 3
    assert json.loads(told["end"])["status"] == "failed"


def test_a_row_with_an_end_is_recorded_before_it_and_ends_the_tune_trial() -> None:
    told: list[tuple[Any, ...]] = []

    class Recorder:
        def row(self, trial_id: str, row: dict[str, Any]) -> bool:
            told.append(("row", row["epoch"]))
            return True

        def happened(self, trial_id: str, event: dict[str, Any]) -> None:
            told.append(("happened", event))

        def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
            told.append(("decision",))

        def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
            told.append(("ended", status))

    trial = Trial("trial", trial_id="a", stub=True)
    scheduler = RecordingScheduler(sweep_of(4, scheduler={"name": "asha"}), Recorder())
    scheduler.on_trial_add(None, trial)
    end = json.dumps({"status": "completed", "reason": {}})
    result = {"row": json.dumps(row_of(3)), "end": end, "events": json.dumps([{"event": "resize"}])}
    # STOP: without it the trial's own return is one more round trip, in which a lost actor would run the trial again.
    assert scheduler.on_trial_result(None, trial, result) == TrialScheduler.STOP
    assert told == [("happened", {"event": "resize"}), ("row", 3), ("ended", "completed")]
    assert scheduler.on_trial_result(None, trial, {"end": end}) == TrialScheduler.STOP


def scheduler_with(trials: list[Trial], name: str = "asha") -> RecordingScheduler:
    scheduler = RecordingScheduler(sweep_of(4, scheduler={"name": name}), None)  # type: ignore[arg-type]
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    return scheduler


@pytest.mark.parametrize("name", ["none", "asha", "median"])
def test_an_idle_actor_is_for_a_new_trial_and_never_for_one_whose_own_actor_is_starting(name: str) -> None:
    first, second, running, third = (Trial("trial", stub=True) for _ in range(4))
    running.set_status(Trial.RUNNING)
    scheduler = scheduler_with([running, first, second], name)
    # The controller (None here) is not asked: it would go through all trials that have ever been.
    assert scheduler.choose_trial_to_run(None) is first
    assert scheduler.choose_trial_to_run(None) is None, "both have been given actors of their own"
    scheduler.on_trial_add(None, third)
    assert scheduler.choose_trial_to_run(None) is third


def test_a_scheduler_with_a_choice_of_its_own_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Trial("trial", stub=True)

    class Choosing(FIFOScheduler):  # type: ignore[misc]
        def choose_trial_to_run(self, tune_controller: Any) -> Trial:
            return paused

    monkeypatch.setattr(raysweep.tune.schedulers, "build", lambda _sweep: Choosing())
    new = Trial("trial", stub=True)
    scheduler = scheduler_with([new])
    assert scheduler.choose_trial_to_run(None) is new
    assert scheduler.choose_trial_to_run(None) is paused


def test_ray_tunes_averages_of_a_trial_are_dropped_when_it_ends() -> None:
    trial = Trial("trial", stub=True)
    trial.update_last_result({"val_loss": 0.5, "training_iteration": 1})
    assert "val_loss" in trial.metric_analysis
    JournalCallback(None).on_trial_complete(1, [trial], trial)  # type: ignore[arg-type]
    assert not trial.metric_analysis
    assert not trial.metric_n_steps
    assert trial.last_result["val_loss"] == 0.5


class Controller:
    """What Ray Tune's controller keeps of its trials, under the names of its own (2.60)."""

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = list(trials)
        self._stopped_trials = set(trials)
        self._trials_to_cache = set(trials)
        self._trial_metadata = {trial.trial_id: ("{}", "{}") for trial in trials}

    def get_trials(self) -> list[Trial]:
        return self.trials

    def kept(self) -> list[int]:
        return [len(kept) for kept in (self.trials, self._stopped_trials, self._trials_to_cache, self._trial_metadata)]


def test_a_trial_that_has_ended_is_forgotten_once_ray_tune_is_done_with_it() -> None:
    ended, running = Trial("trial", stub=True), Trial("trial", stub=True)
    running.set_status(Trial.RUNNING)
    scheduler, controller = scheduler_with([ended, running]), Controller([ended, running])
    scheduler.on_trial_complete(controller, ended, {})
    scheduler.choose_trial_to_run(controller)
    assert controller.kept() == [2] * 4, "its actor has yet to be stopped"
    ended.set_status(Trial.TERMINATED)
    scheduler.choose_trial_to_run(controller)
    assert controller.kept() == [1] * 4
    assert controller.trials == [running]
    assert not any(referrer is not None and ended in referrer for referrer in (scheduler._ended, scheduler._added))
    assert all(known.trial is not ended for known in scheduler._known.values())


def test_an_ended_trial_is_forgotten_by_a_ray_that_keeps_less() -> None:
    ended, last = Trial("trial", stub=True), Trial("trial", stub=True)
    controller = Controller([ended, last])
    del controller._trial_metadata, controller._trials_to_cache
    forget(controller, [ended])
    assert controller.trials == [last]
    forget(controller, [last])
    assert controller.trials == [last], "Ray Tune's warning of missing resources names the first one"
    assert not controller._stopped_trials


def test_ray_tunes_own_lines_are_those_it_would_write_and_keep_no_trial(capsys: pytest.CaptureFixture[str]) -> None:
    def said(lines: TrialProgressCallback) -> str:
        trial = Trial("trial", trial_id="a", stub=True)
        result = {"val_loss": 0.5, "training_iteration": 1, "done": False}
        trial.update_last_result(result)
        lines.on_trial_result(1, [trial], trial, result)
        lines.on_trial_complete(2, [trial], trial)
        kept = any(trial in kept for kept in vars(lines).values() if isinstance(kept, dict | set))
        assert kept is not isinstance(lines, TuneLines)
        return capsys.readouterr().out

    assert said(TuneLines()) == said(TrialProgressCallback())
