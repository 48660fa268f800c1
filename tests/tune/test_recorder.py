"""The state of a running sweep, its journal, and what the terminal shows of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from raysweep.config import Sweep
from raysweep.store import results
from raysweep.store.journal import JournalWriter
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.progress import Progress, duration
from raysweep.tune.progress import number as shown_number
from raysweep.tune.recorder import SweepRecorder


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return Sweep.from_dict(
        {
            "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 4}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2]}},
        }
    )


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Running:
    """A recorder with a journal in a directory, and a terminal that shows it."""

    def __init__(self, sweep: Sweep, directory: Path, terminal: bool = False) -> None:
        self.plan: Plan = make_plan(sweep)
        self.directory = directory
        self.journal = JournalWriter(directory / "journal.jsonl")
        self.journal.event("start", sweep=sweep.model_dump(mode="json", exclude_unset=True), experiment={}, data={})
        self.clock, self.text = Clock(), io.StringIO()
        self.progress = Progress(Console(file=self.text, width=100, height=20, force_terminal=terminal, soft_wrap=True))
        self.recorder = SweepRecorder(self.plan, self.journal, self.progress.changed, self.clock)
        self.progress.begin(self.recorder)
        for trial in self.plan.trials:
            self.recorder.assigned(f"id{trial.number}", trial)

    def row(self, number: int, epoch: int, val_loss: float | None) -> None:
        self.recorder.row(f"id{number}", {"epoch": epoch, "step": epoch * 2, "val_loss": val_loss, "train_loss": 0.5})


@pytest.fixture
def running(sweep: Sweep, tmp_path: Path) -> Iterator[Running]:
    made = Running(sweep, tmp_path)
    yield made
    made.progress.end()
    made.journal.close()


def test_every_planned_trial_is_in_the_results_however_it_ended(running: Running) -> None:
    recorder = running.recorder
    for number in (0, 1, 2):
        recorder.started(f"id{number}")
        running.row(number, 1, None if number == 1 else 0.5 + number)
    recorder.ended("id0", "completed", {})
    recorder.ended("id1", "diverged", {"what": "val_loss", "step": 2, "lr": 1e-3})
    recorder.end_rest("interrupted", "interrupted")
    found = results.load(running.directory)
    assert list(found.trials["status"]) == ["completed", "diverged", "interrupted", "interrupted"]
    assert list(found.trials["reason"])[2:] == ["interrupted in epoch 2", "interrupted before it started"]
    assert found.best is not None
    assert found.best["trial"] == 0


def test_the_first_reason_stands(running: Running) -> None:
    running.recorder.ended("id0", "stopped", {"rule": "asha", "epoch": 1})
    running.recorder.ended("id0", "completed", {})
    assert running.recorder.states[0].status == "stopped"
    assert (running.directory / "journal.jsonl").read_text().count('"end"') == 1


def test_best_is_the_best_epoch_of_a_trial_that_did_not_diverge(running: Running) -> None:
    for epoch, value in ((1, 0.4), (2, 0.6)):
        running.row(0, epoch, value)
    running.row(1, 1, 0.1)
    running.recorder.ended("id1", "diverged", {})
    best = running.recorder.best()
    assert best is not None
    assert (best.trial.number, best.best) == (0, 0.4)
    assert running.recorder.objective(0) == 0.4


def test_what_happened_to_a_trials_workers_is_in_the_journal(running: Running) -> None:
    event = {"event": "resize", "time": 5.0, "why": "room", "from": 1, "to": 2, "step": 3, "redone_steps": 0, "pause_s": 8.0}
    running.recorder.happened("id2", event)
    running.recorder.end_rest("interrupted", "Ctrl-C")
    (told,) = results.load(running.directory).resizes
    assert told == {**event, "trial": 2}


def test_time_left_follows_from_the_pace(running: Running) -> None:
    assert running.recorder.seconds_left() is None
    running.clock.now = 10.0
    running.row(0, 1, 0.5)
    assert running.recorder.seconds_left() == pytest.approx(10 * 15)
    running.recorder.ended("id0", "completed", {})
    assert running.recorder.seconds_left() == pytest.approx(10 * 12), "an ended trial has nothing left"


def test_the_pace_is_that_of_the_epochs_not_of_the_start_before_them(running: Running) -> None:
    running.clock.now = 30.0
    running.recorder.started("id0")
    running.clock.now = 32.0
    running.recorder.started("id1")
    running.row(0, 1, 0.5)
    assert running.recorder.seconds_left() == pytest.approx(2 * 15)


def test_a_line_for_each_ended_trial_where_there_is_no_terminal(running: Running) -> None:
    running.recorder.started("id0")
    running.clock.now = 1.0
    running.row(0, 1, 0.25)
    assert running.text.getvalue() == ""
    running.recorder.ended("id0", "completed", {})
    running.recorder.ended("id1", "failed", {"text": "why"})
    lines = running.text.getvalue().splitlines()
    assert lines[0].startswith("[1/4] trial 0 (lr 0.001, depth 1): completed after 1 epoch, best val_loss 0.25; about")
    assert lines[1].startswith("[2/4] trial 1 (lr 0.001, depth 2): failed before its first epoch ended, why")


def test_a_lost_process_is_told_with_what_it_goes_on_from(running: Running) -> None:
    running.recorder.started("id0")
    running.row(0, 1, 0.25)
    running.recorder.started("id0")
    assert "trial 0 (lr 0.001, depth 1): its process was lost; it goes on from epoch 2, attempt 2" in running.text.getvalue()


def test_a_trial_of_an_earlier_start_that_goes_on_has_lost_no_process(running: Running) -> None:
    running.recorder.states[0].attempts = 3  # as the journal has it
    running.recorder.started("id0")
    assert running.text.getvalue() == ""
    running.recorder.started("id0")
    assert "attempt 5" in running.text.getvalue()


def test_the_live_table_shows_state_epoch_loss_and_best(sweep: Sweep, tmp_path: Path) -> None:
    running = Running(sweep, tmp_path, terminal=True)
    running.recorder.started("id0")
    running.row(0, 3, 0.25)
    console = Console(file=io.StringIO(), width=100, height=20)
    console.print(running.progress.render())
    running.progress.end()
    running.journal.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "running" in text
    assert "3/4" in text
    assert "waiting" in text
    assert "best: trial 0, 0.25" in text
    assert "0/4 ended" in text


def test_what_to_do_about_a_failure_is_not_cut_from_its_line(sweep: Sweep, tmp_path: Path) -> None:
    made, where = Running(sweep, tmp_path), "/mnt/shared/" + "/".join(["a-long-name"] * 12)
    remedy = "the disk is full; the checkpoints before it are intact. Free some room, or set `storage` elsewhere"
    for number, text in enumerate((f"CheckpointError: cannot write {where}: {remedy}", f"ValueError: {'0.1, ' * 500}: {remedy}")):
        made.recorder.started(f"id{number}")
        made.recorder.ended(f"id{number}", "failed", {"text": text})
    made.progress.end()
    made.journal.close()
    whole, cut = (line for line in made.text.getvalue().splitlines() if " failed" in line)
    assert f"CheckpointError: cannot write {where}: {remedy}" in whole
    assert "ValueError: 0.1, 0.1" in cut
    assert remedy in cut
    assert len(cut) < 600


def test_durations_read_like_a_clock() -> None:
    assert [duration(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_trial_that_cannot_be_trained_is_told_once(terminal: bool, sweep: Sweep, tmp_path: Path) -> None:
    """What the plan knows stands in its notes, before anybody looks on; what a searcher thinks of later gets its line."""
    deep = Sweep.from_dict({**sweep.model_dump(exclude_unset=True), "space": {"model.depth": {"grid": [1, 4]}}})
    made = Running(deep, tmp_path, terminal)
    assert made.recorder.num_ended == 1
    assert "infeasible:" not in made.text.getvalue()
    made.recorder.assigned("later", replace(made.plan.trials[1], number=2, key="k"))
    made.progress.end()
    made.journal.close()
    (told,) = [line for line in made.text.getvalue().splitlines() if "trial 2" in line]
    assert "trial 2 (depth 4): infeasible: model.depth: images of 8x8 carry at most depth 3, got 4" in told
    assert list(results.load(tmp_path).trials["status"]) == ["unfinished", "infeasible", "infeasible"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e6, "1e6"), (1e-4, "0.0001"), (0.123456, "0.1235"), (True, "true"), (3, "3"), ("adam", "adam"), (None, "")],
)
def test_what_runs_is_written_as_the_report_will_write_it(value: object, text: str) -> None:
    assert shown_number(value) == text
