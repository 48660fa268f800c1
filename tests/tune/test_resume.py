"""Going on with a sweep: what stands, what runs again, and schedulers that know what they knew. No Ray cluster."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from raysweep.config import Sweep
from raysweep.errors import ClusterError, StoreError
from raysweep.store import results
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter, read_events
from raysweep.tune.describe import describe
from raysweep.tune.engine import run_sweep
from raysweep.tune.optuna_search import OptunaSearcher
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import Past, adopt, read_past, work
from raysweep.tune.schedulers import RecordingScheduler
from raysweep.tune.which import why_other

BASE: dict[str, Any] = {
    "name": "s",
    "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 3}},
    "space": {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2]}},
}


def sweep(**changes: Any) -> Sweep:
    tree = json.loads(json.dumps(BASE))
    for key, value in changes.items():
        place = tree
        *parents, last = key.split("__")
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return Sweep.from_dict(tree)


def began(storage: Path, settings: Sweep) -> tuple[Plan, SweepDirectory, JournalWriter, SweepRecorder]:
    plan, directory = make_plan(settings), SweepDirectory.create(storage, settings.name)
    journal = JournalWriter(directory.journal)
    start(journal, plan)
    return plan, directory, journal, SweepRecorder(plan, journal)


def start(journal: JournalWriter, plan: Plan) -> None:
    content = plan.sweep.model_dump(mode="json", exclude_unset=True)
    experiment = plan.sweep.experiment.model_dump(mode="json", exclude_unset=True)
    journal.event("start", sweep=content, experiment=experiment, data=plan.prepared.facts, planned=plan.num_planned, at_once=1)


def ran(recorder: SweepRecorder, number: int, losses: list[float], status: str | None = "completed") -> None:
    trial = recorder.states[number].trial
    recorder.assigned(f"id{number}", trial)
    recorder.started(f"id{number}")
    for epoch, loss in enumerate(losses, start=1):
        recorder.row(f"id{number}", {"epoch": epoch, "step": epoch, "val_loss": loss})
    if status:
        recorder.ended(f"id{number}", status, {})


@pytest.fixture
def past(tmp_path: Path) -> Past:
    """Of four trials one is completed, one failed, one in its second epoch, one has not begun."""
    _, directory, journal, recorder = began(tmp_path, sweep())
    ran(recorder, 0, [0.9, 0.8, 0.7])
    ran(recorder, 1, [0.9], "failed")
    ran(recorder, 2, [0.6, 0.5], None)
    journal.close()
    found = read_past(directory)
    assert found is not None
    return found


def sorted_out(past: Past, settings: Sweep, retry_failed: bool = False) -> tuple[list[int], list[int], str]:
    plan = make_plan(settings)
    adopt(plan, past)
    found = work(plan, past, retry_failed)
    text = describe(plan, past, found, retry_failed)
    return [t.number for t in found.done], [t.number for t in found.to_run], text


def test_the_same_sweep_trains_only_what_has_not_ended(past: Past) -> None:
    assert why_other(past, make_plan(sweep())) == ""
    done, to_run, text = sorted_out(past, sweep())
    assert (done, to_run) == ([0, 1], [2, 3])
    assert text == ("found s/: 1 completed, 1 failed, 2 unfinished; 2 go on (the failed ones again with --retry-failed)")
    assert sorted_out(past, sweep(), retry_failed=True)[:2] == ([0], [1, 2, 3])


def test_a_wider_grid_adds_its_new_trials_after_the_old_numbers(past: Past) -> None:
    wider = sweep(space={**BASE["space"], "optim.lr": {"grid": [1e-4, 1e-3, 1e-2]}})
    done, to_run, text = sorted_out(past, wider)
    assert done == [0, 1]
    assert sorted(to_run) == [2, 3, 4, 5]
    assert "2 go on, 2 are new" in text
    plan = make_plan(wider)
    adopt(plan, past)
    assert {t.key: t.number for t in plan.trials if t.key in past.trials} == {t.key: t.number for t in past.trials.values()}


def test_trials_that_are_new_for_another_reason_than_their_settings_say_so(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.store.keys.TRAINING_VERSION", 999)
    done, to_run, text = sorted_out(past, sweep())
    assert (done, len(to_run)) == ([], 4)
    assert "no trial of this plan; 4 are new (4 with settings that were trained before: this release of raysweep" in text


def test_what_was_infeasible_was_not_trained_before(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is repaired has new trials where the old ones could not be run; its code may be the same."""
    monkeypatch.setattr("raysweep.store.keys.TRAINING_VERSION", 999)
    for trial in past.trials.values():
        trial.status = "infeasible"
    assert sorted_out(past, sweep())[2].endswith("4 are new")


def test_more_epochs_go_on_with_what_is_completed(past: Past) -> None:
    done, to_run, _ = sorted_out(past, sweep(experiment__train__epochs=6))
    assert (done, to_run) == ([1], [0, 2, 3]), "a failure stands, a completed trial goes on from its checkpoint"
    assert sorted_out(past, sweep(experiment__train__epochs=2))[:2] == ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"experiment__data__count": 60}, "the images differ"),
        ({"objective__metric": "psnr"}, "the objective differs"),
        ({"experiment__optim__name": "sgd"}, "optim.name differs (its default, now sgd)"),
        ({"experiment__train__batch_size": 16}, "train.batch_size differs (its default, now 16)"),
    ],
)
def test_another_sweep_is_told_by_what_differs(past: Past, changes: dict[str, Any], why: str) -> None:
    assert why in why_other(past, make_plan(sweep(**changes)))


def test_a_setting_that_is_swept_now_or_was_may_differ(past: Past) -> None:
    space = {**BASE["space"], "model.dropout": {"grid": [0.0, 0.1]}}
    assert why_other(past, make_plan(sweep(space=space))) == ""
    done, to_run, _ = sorted_out(past, sweep(space=space))
    assert done == [0, 1], "dropout 0 is what the old trials had"
    assert len(to_run) == 6


def test_scale_and_budget_are_no_difference(past: Past) -> None:
    other = sweep(
        experiment__scale={"workers": 2}, experiment__train={"epochs": 9, "checkpoint_every_s": 5}, budget={"wall_time_s": 9}
    )
    assert why_other(past, make_plan(other)) == ""


def test_a_committed_row_is_never_told_again_and_an_end_stands(past: Past) -> None:
    plan = make_plan(sweep())
    adopt(plan, past)
    todo = work(plan, past, False)
    with closing(JournalWriter(past.directory.journal)) as journal:
        start(journal, plan)
        recorder = SweepRecorder(plan, journal, past=past, to_run=[t.key for t in todo.to_run])
        assert recorder.statuses() == ["completed", "failed", "waiting", "waiting"]
        assert recorder.states[2].best == 0.5
        recorder.assigned("new2", recorder.states[2].trial)
        recorder.started("new2")
        assert not recorder.row("new2", {"epoch": 2, "step": 2, "val_loss": 0.51}), "trained again from an older checkpoint"
        assert recorder.row("new2", {"epoch": 3, "step": 3, "val_loss": 0.4})
        recorder.ended("new2", "completed", {})
    found = results.load(past.directory.path)
    assert list(found.rows[found.rows["trial"] == 2]["val_loss"]) == [0.6, 0.5, 0.4]
    assert list(found.trials["status"]) == ["completed", "failed", "completed", "unfinished"]
    assert [e["trial"] for e in read_events(past.directory.journal) if e["event"] == "trial"] == [0, 1, 2, 3], "planned once"


def test_going_on_keeps_of_a_row_what_decides(tmp_path: Path) -> None:
    _, directory, journal, recorder = began(tmp_path, sweep(objective__metric="psnr"))
    trial = recorder.states[0].trial
    recorder.assigned("id", trial)
    told = {"epoch": 1, "step": 5, "psnr": 20.5, "val_loss": 0.5, "lr": 1e-3, "seconds": 2.5, "world_size": 2}
    recorder.row("id", told)
    recorder.row("id", {"epoch": 2, "psnr": None})
    journal.close()
    found = read_past(directory)
    assert found is not None
    rows = [{"epoch": 1, "psnr": 20.5, "seconds": 2.5, "world_size": 2}, {"epoch": 2, "psnr": None}]
    assert found.told == [(trial.key, row) for row in rows]
    assert found.trials[trial.key].rows == {1: rows[0], 2: rows[1]}
    assert found.device_seconds == 5.0


def test_a_population_keeps_its_rows_whole(tmp_path: Path) -> None:
    space = {"optim.lr": {"loguniform": [1e-4, 1e-1]}}
    settings = sweep(space=space, scheduler={"name": "pbt"}, search={"algorithm": "random", "num_samples": 4})
    _, directory, journal, recorder = began(tmp_path, settings)
    recorder.assigned("id", recorder.states[0].trial)
    recorder.row("id", {"epoch": 1, "step": 5, "train_loss": None, "val_loss": None, "lr": 1e-3})
    journal.close()
    found = read_past(directory)
    assert found is not None
    ((_, row),) = found.told
    assert row is not None
    assert (row["step"], row["lr"], row["train_loss"]) == (5, 1e-3, None), "which its end is told by"


# --- Schedulers and searchers know what they knew ---------------------------------------------------------------------


class Told:
    """A recorder that keeps decisions."""

    def __init__(self) -> None:
        self.decisions: list[tuple[str, dict[str, Any]]] = []

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        pass

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        self.decisions.append((trial_id, decision))

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        pass


class Live:
    """Ray Tune's trial, as far as schedulers look."""

    status = "RUNNING"

    def __init__(self, key: str, trial_id: str) -> None:
        self.trial_id, self.config = trial_id, {"key": key}


class Played:
    """Trials that report losses to a scheduler, until it stops them."""

    def __init__(self, scheduler: dict[str, Any], epochs: int) -> None:
        self.told = Told()
        self.scheduler = RecordingScheduler(
            Sweep.from_dict({**BASE, "experiment": {"train": {"epochs": epochs}}, "scheduler": scheduler}), self.told
        )
        self.epochs = epochs
        self.live: dict[str, Live] = {}

    def report(self, key: str, epoch: int, loss: float, run: int) -> str:
        if key not in self.live:
            self.live[key] = Live(key, f"run{run}-{key}")
            self.scheduler.on_trial_add(None, self.live[key])
        row = json.dumps({"epoch": epoch, "val_loss": loss})
        action = self.scheduler.on_trial_result(None, self.live[key], {"epoch": epoch, "row": row, "val_loss": loss})
        if action == "STOP" or epoch == self.epochs:
            self.scheduler.on_trial_complete(None, self.live[key], {})
        return action


@hypothesis_settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    cut=st.floats(0, 1),
    scheduler=st.sampled_from([{"name": "asha", "reduction_factor": 2}, {"name": "asha"}, {"name": "median", "min_samples": 2}]),
)
def test_a_restart_at_any_moment_changes_no_decision(seed: int, cut: float, scheduler: dict[str, Any]) -> None:
    draw, epochs = random.Random(seed), 8
    waiting = {f"t{n}": iter([(epoch, draw.random()) for epoch in range(1, epochs + 1)]) for n in range(8)}
    whole, events = Played(scheduler, epochs), list[tuple[str, int, float, str]]()
    while waiting:
        key = draw.choice(list(waiting)[:3])
        epoch, loss = next(waiting[key])
        action = whole.report(key, epoch, loss, run=1)
        events.append((key, epoch, loss, action))
        if action == "STOP" or epoch == epochs:
            del waiting[key]
    place = int(cut * len(events))
    told: list[tuple[str, dict[str, Any] | None]] = []
    statuses: dict[str, str] = {}
    for key, epoch, loss, action in events[:place]:
        told.append((key, {"epoch": epoch, "val_loss": loss}))
        statuses.setdefault(key, "")
        if action == "STOP" or epoch == epochs:
            statuses[key] = "stopped" if action == "STOP" else "completed"
            told.append((key, None))
    again = Played(scheduler, epochs)
    assert again.scheduler.replay(told, statuses) == {}
    for key, epoch, loss, action in events[place:]:
        assert again.report(key, epoch, loss, run=2) == action
    before = [d for _, d in whole.told.decisions]
    assert [d for _, d in again.told.decisions] == before[len(before) - len(again.told.decisions) :]


def test_a_stop_that_the_journal_does_not_have_yet_is_found_again() -> None:
    played = Played({"name": "asha", "reduction_factor": 2}, 8)
    told: list[tuple[str, dict[str, Any] | None]] = [("a", {"epoch": 1, "val_loss": 0.1}), ("b", {"epoch": 1, "val_loss": 0.9})]
    stops = played.scheduler.replay(told, {"a": "", "b": ""})
    assert set(stops) == {"b"}
    assert (stops["b"]["rule"], stops["b"]["rung"], stops["b"]["cutoff"]) == ("asha", 1, pytest.approx(0.1))
    assert played.scheduler.replay([], {}) == {}


def test_a_trial_that_ended_more_than_once_is_replayed_to_its_last_end() -> None:
    played = Played({"name": "asha", "reduction_factor": 2}, 8)
    rows: list[dict[str, Any] | None] = [{"epoch": epoch, "val_loss": 0.5} for epoch in range(1, 9)]
    told = [("a", row) for row in [*rows[:4], None, *rows[4:], None]]  # four epochs, then four were added
    assert played.scheduler.replay(told, {"a": "completed"}) == {}


def test_a_stopped_trial_counts_for_the_others_as_before_the_restart() -> None:
    events = [
        ("g", 1, 0.69), ("e", 1, 0.7), ("e", 2, 0.7), ("c", 1, 0.45), ("a", 1, 0.1), ("a", 2, 0.1), ("c", 2, 0.9), ("g", 2, 0.69),
    ]  # fmt: skip
    settings = {"name": "median", "min_samples": 2}
    whole, again = Played(settings, 8), Played(settings, 8)
    actions = [whole.report(*event, run=1) for event in events]
    assert actions[-2:] == ["STOP", "CONTINUE"], "c's mean, its stop counted as Ray Tune does, lies above g's value"
    told: list[tuple[str, dict[str, Any] | None]] = [(k, {"epoch": epoch, "val_loss": loss}) for k, epoch, loss in events[:-1]]
    again.scheduler.replay([*told, ("c", None)], {"g": "", "e": "", "a": "", "c": "stopped"})
    assert again.report(*events[-1], run=2) == "CONTINUE"


def test_tpe_goes_on_from_what_was_tried(tmp_path: Path) -> None:
    space = {"optim.lr": {"loguniform": [1e-5, 1e-1]}}
    settings = sweep(space=space, search={"algorithm": "tpe", "num_samples": 12})
    plan, directory, journal, recorder = began(tmp_path, settings)
    searcher = OptunaSearcher(plan, [], recorder.assigned, recorder.objective)
    for number in range(8):
        suggested = searcher.suggest(f"id{number}")
        assert isinstance(suggested, dict)
        ran(recorder, number, [abs(suggested["overrides"]["optim.lr"] - 1e-3)] * 3, "completed" if number < 7 else None)
        if number < 7:
            searcher.on_trial_complete(f"id{number}")
    journal.close()
    past = read_past(directory)
    assert past is not None
    plan = make_plan(settings)
    adopt(plan, past)
    todo = work(plan, past, False)
    assert ([t.number for t in todo.done], [t.number for t in todo.to_run]) == (list(range(7)), [7])
    with closing(JournalWriter(directory.journal)) as journal:
        recorder = SweepRecorder(plan, journal, past=past, to_run=[t.key for t in todo.to_run])
        searcher = OptunaSearcher(plan, todo.to_run, recorder.assigned, recorder.objective)
        assert len(searcher._study.trials) == 7
        first = searcher.suggest("again7")
        assert isinstance(first, dict)
        assert first["number"] == 7, "what was begun comes first"
        for number in range(8, 12):
            suggested = searcher.suggest(f"new{number}")
            assert isinstance(suggested, dict)
            assert suggested["number"] == number
            assert suggested["key"] not in past.trials
        assert searcher.suggest("more") == "FINISHED"


def test_two_processes_in_one_directory_are_refused(tmp_path: Path) -> None:
    directory = SweepDirectory.create(tmp_path, "s")
    with directory.locked():
        second = SweepDirectory(directory.path).locked()
        with pytest.raises(StoreError, match=r"is in use by process \d+ on .*--fresh"):
            second.__enter__()
    with directory.locked():
        pass


def test_a_sweep_in_use_is_told_before_its_process_is_taken_for_another_programs_ray(
    past: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_ray() -> None:
        raise ClusterError("another program runs its own Ray")

    monkeypatch.setattr("raysweep.tune.engine.running_cluster", other_ray)
    with past.directory.locked(), pytest.raises(StoreError, match="is in use by process"):
        run_sweep(past.sweep, storage=tmp_path)
    with pytest.raises(ClusterError):
        run_sweep(past.sweep, storage=tmp_path)
    (past.directory.path / ".lock").unlink(missing_ok=True)
    past.directory.path.chmod(0o500)
    try:
        with pytest.raises(ClusterError):
            run_sweep(past.sweep, storage=tmp_path)
    finally:
        past.directory.path.chmod(0o700)


def test_a_journal_that_somebody_else_has_gone_on_with_is_read_again_first(past: Past) -> None:
    past.directory.check_unchanged(past.size)
    with closing(JournalWriter(past.directory.journal)) as journal:
        journal.event("run", trial=3)
    with pytest.raises(StoreError, match="another process has gone on"):
        past.directory.check_unchanged(past.size)
