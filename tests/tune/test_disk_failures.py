"""A disk that fails ends a sweep once, as no trial's fault; when it is mended the sweep goes on with what is missing; no Ray."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.train._internal.storage import StorageContext
from ray.tune.experiment.trial import Trial

import raysweep.tune.trial
from raysweep.cluster.join import Cluster
from raysweep.cluster.resources import Allocation, Available
from raysweep.config import Sweep
from raysweep.errors import DiskError
from raysweep.store import journal as journal_module
from raysweep.store.directory import SweepDirectory
from raysweep.store.remote import Place
from raysweep.store.results import load
from raysweep.tune import engine, tuning
from raysweep.tune.callback import JournalCallback, SweepEnd
from raysweep.tune.job import Job
from raysweep.tune.own import fault, raise_fault
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import found
from raysweep.tune.schedulers import RecordingScheduler

TREE: dict[str, Any] = {
    "name": "s",
    "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 2}},
    "space": {"optim.lr": {"grid": [0.001, 0.002, 0.003, 0.004]}},
}
FULL = "cannot write ckpt: the disk is full (1 KB of the disk are free); free some room"


def no_room(*_given: object, **_options: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def train(recorder: SweepRecorder, number: int, epochs: int, end: str = "completed") -> None:
    trial_id = f"id{number}"
    recorder.assigned(trial_id, recorder.states[number].trial)
    recorder.started(trial_id)
    for epoch in range(recorder.states[number].epoch + 1, epochs + 1):
        recorder.row(trial_id, {"epoch": epoch, "step": epoch, "val_loss": 1 / (number + epoch)})
    if end:
        recorder.ended(trial_id, end, {})


def run(storage: Path, monkeypatch: pytest.MonkeyPatch, play: Any) -> engine.Finished:
    """A start of the sweep, in which `play` is Ray Tune."""
    plan, past, todo = found(Sweep.from_dict(TREE), storage, False, False, lambda _text: None)
    directory = past.directory if past else SweepDirectory.create(storage, "s")

    def run_trials(job: Job, recorder: SweepRecorder, *_given: object) -> str:
        play(recorder, [trial.number for trial in job.todo.to_run])
        raise_fault(recorder)
        return "completed"

    monkeypatch.setattr(tuning, "run_trials", run_trials)
    monkeypatch.setattr(engine, "write_examples", lambda *_given: None)
    cluster = Cluster(False, "here", Available(2, 0), 1)
    job = Job(plan, directory, past, todo, Place(storage))
    return engine._run(job, cluster, Allocation(1, 1, 1, 0), False, lambda _text: None, engine.Watcher())


def to_the_end(recorder: SweepRecorder, to_run: list[int]) -> None:
    for number in to_run:
        train(recorder, number, 2)


def check_goes_on(storage: Path, monkeypatch: pytest.MonkeyPatch, expected: list[int]) -> None:
    ran: list[int] = []
    finished = run(storage, monkeypatch, lambda recorder, to_run: (ran.extend(to_run), to_the_end(recorder, to_run)))
    assert ran == expected
    assert (finished.status, finished.trial_statuses) == ("completed", ["completed"] * 4)
    rows = load(storage / "s").rows
    assert sorted(zip(rows["trial"], rows["epoch"], strict=True)) == [(n, e) for n in range(4) for e in (1, 2)], "once each"


def test_a_full_disk_ends_the_sweep_and_no_trial_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(recorder: SweepRecorder, _to_run: list[int]) -> None:
        train(recorder, 0, 2)
        train(recorder, 1, 1, end="")
        recorder.disk_failed(FULL)
        recorder.disk_failed("another trial met it, too")

    with pytest.raises(DiskError) as caught:
        run(tmp_path, monkeypatch, play)
    assert str(caught.value).startswith(f"{FULL}. The sweep has ended")
    assert "the same command goes on" in str(caught.value)
    results = load(tmp_path / "s")
    assert list(results.trials["status"]) == ["completed", *["interrupted"] * 3]
    assert results.trials["reason"][1] == "the disk failed in epoch 2"
    assert results.finished == "interrupted"
    check_goes_on(tmp_path, monkeypatch, [1, 2, 3])


@pytest.mark.parametrize("is_full_to_the_end", [True, False])
def test_a_journal_that_finds_no_room_ends_the_sweep_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full_to_the_end: bool
) -> None:
    def play(recorder: SweepRecorder, _to_run: list[int]) -> None:
        train(recorder, 0, 2)
        train(recorder, 1, 1, end="")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal_module.os, "fsync", no_room)
            with pytest.raises(DiskError):
                recorder.ended("id1", "stopped", {})
        if is_full_to_the_end:
            monkeypatch.setattr(journal_module.os, "fsync", no_room)
        raise RuntimeError("Ray Tune's own words for it")

    with pytest.raises(DiskError, match=r"journal.jsonl: the disk is full .*the same command"):
        run(tmp_path, monkeypatch, play)
    monkeypatch.undo()
    statuses = ["completed", "unfinished", "interrupted", "interrupted"]
    assert list(load(tmp_path / "s").trials["status"]) == statuses
    check_goes_on(tmp_path, monkeypatch, [1, 2, 3])


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(_recorder: SweepRecorder, _to_run: list[int]) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        run(tmp_path, monkeypatch, play)


# --- What a trial's actor tells, and what the driver makes of it ------------------------------------------------------


class Live:
    trial_id, status = "id0", "RUNNING"
    config = {"key": "abc", "number": 0}


class Told:
    def __init__(self) -> None:
        self.failures: list[str] = []

    def disk_failed(self, text: str) -> None:
        self.failures.append(text)

    def ended(self, *_given: object) -> None:
        raise AssertionError("it is no end of the trial")


def ran_with(monkeypatch: pytest.MonkeyPatch, directory: Path, fit: Any) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(raysweep.tune.trial.tune, "report", reports.append)
    monkeypatch.setattr(raysweep.tune.trial, "fit_here", fit)
    raysweep.tune.trial.run_trial(
        {"number": 0, "key": "abc", "overrides": {}},
        experiment_json='{"data": {"source": "digits", "count": 50}}',
        directory=str(directory),
        started_in=str(directory),
        allocation=Allocation(1, 1, 1, 0),
    )
    return reports


def test_a_trial_that_meets_a_full_disk_says_so_and_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (report,) = ran_with(monkeypatch, tmp_path, no_room)
    assert report["disk"].startswith("test_disk_failures.py, line")
    assert "cannot write a file: the disk is full" in report["disk"]
    told = Told()
    assert RecordingScheduler(Sweep.from_dict(TREE), told).on_trial_result(None, Live(), report) == "STOP"  # type: ignore[arg-type]
    assert told.failures == [report["disk"]]


def test_a_trials_directory_that_cannot_be_made_is_the_disks_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", no_room)
    (report,) = ran_with(monkeypatch, tmp_path, lambda *_given: pytest.fail("it trains"))
    assert "the disk is full" in report["disk"]


def lost(monkeypatch: pytest.MonkeyPatch, directory: Path, *errors: Exception) -> list[tuple[str, str]]:
    """What the recorder is told of a trial whose actor has ended with these errors, of which the last one is final."""
    monkeypatch.setattr("ray.train._internal.storage._get_ray_train_session_dir", lambda: str(directory / "session"))
    monkeypatch.setattr("raysweep.tune.callback.free_leftovers", lambda _keys: None)
    storage = StorageContext(storage_path=str(directory / "storage"), experiment_dir_name="tune")
    trial = Trial("x", stub=True, storage=storage, config={"key": "abc"})
    trial.init_local_path()
    for error in errors:
        trial.handle_error(error)  # type: ignore[arg-type]
    told: list[tuple[str, str]] = []
    recorder = SimpleNamespace(
        disk_failed=lambda text: told.append(("disk", text)),
        ended=lambda _id, status, reason: told.append((status, reason["text"])),
    )
    callback = JournalCallback(recorder)  # type: ignore[arg-type]
    callback.on_trial_error(1, [], trial)
    shutil.copytree(trial.local_path, trial.path)  # as Ray Tune does from time to time
    callback.on_trial_error(1, [], trial)
    return told


def test_an_actor_that_cannot_start_for_want_of_room_is_no_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "OSError: [Errno 28] No space left on device: '/ray/x'"
    full = ActorDiedError(RayTaskError("f", f"Traceback\n{line}", OSError()))
    assert lost(monkeypatch, tmp_path / "full", full) == [("disk", f"a trial's process ended: {line}; mend that disk")] * 2
    died = "The actor died unexpectedly before finishing this task."
    assert lost(monkeypatch, tmp_path / "died", full, ActorDiedError()) == [("failed", died)] * 2


def test_ray_tune_is_told_to_end_all_trials() -> None:
    recorder = SimpleNamespace(fault=None, why_ended="", best=lambda: None, device_seconds=0.0)
    end = SweepEnd(Sweep.from_dict(TREE).budget, recorder, fault=lambda: fault(recorder))  # type: ignore[arg-type]
    assert not end.stop_all()
    recorder.fault = DiskError(FULL)
    assert end.stop_all()
    assert end.reason == "interrupted"
