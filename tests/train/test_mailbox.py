"""How workers and driver talk: nothing is read half, and a worker taken for dead cannot speak into the next attempt."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysweep.errors import TrialError
from raysweep.train import mailbox
from raysweep.train.left import LeftRows
from raysweep.train.mailbox import Mailbox, WorkerError, end_attempts
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Wishes


def clock(*times: float) -> SimpleNamespace:
    """What the mailbox, and no other thread of this process, takes for the module `time`."""
    return SimpleNamespace(time=iter(times).__next__)


@pytest.fixture
def driver(tmp_path: Path) -> Mailbox:
    box = Mailbox(tmp_path, 1)
    box.open()
    return box


def test_rows_are_told_once_and_a_half_written_one_later(tmp_path: Path, driver: Mailbox) -> None:
    worker = Mailbox(tmp_path, 1)
    worker.put_row({"epoch": 1, "val_loss": float("nan")})
    assert driver.new_rows() == [{"epoch": 1, "val_loss": None}]
    with (tmp_path / "mail" / "1" / "rows.jsonl").open("ab") as file:
        file.write(b'{"epoch":')
        file.flush()
        assert driver.new_rows() == []
        file.write(b" 2}\n")
    assert driver.new_rows() == [{"epoch": 2}]
    assert driver.new_rows() == []


def test_each_wish_to_save_is_told_once_and_an_end_stays(tmp_path: Path, driver: Mailbox) -> None:
    worker = Mailbox(tmp_path, 1)
    assert worker.wishes() == Wishes()
    driver.request_save()
    assert worker.wishes() == Wishes("", save=True)
    assert worker.wishes() == Wishes()
    driver.request_save()
    driver.request_end("resized")
    assert worker.wishes() == Wishes("resized", save=True)
    assert worker.wishes() == Wishes("resized")


def test_the_pulse_tells_how_far_and_how_fast(tmp_path: Path, driver: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Mailbox(tmp_path, 1)
    assert driver.pulse() is None
    worker.put_began(40, 100)
    began = driver.pulse()
    assert began is not None
    assert (began.first_step, began.step, began.total_steps, began.first_step_at) == (40, 40, 100, 0.0)
    assert began.seconds_per_step is None
    monkeypatch.setattr("raysweep.train.mailbox.time", clock(1000.0, 1000.5, 1001.0))
    for step in (41, 42, 43):
        worker.put_step(step)
    pulse = driver.pulse()
    assert pulse is not None
    assert (pulse.first_step, pulse.step, pulse.first_step_at, pulse.step_at) == (40, 43, 1000.0, 1001.0)
    assert pulse.seconds_per_step == 0.5


def test_the_error_that_came_first_counts(tmp_path: Path, driver: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.train.mailbox.time", clock(2.0, 1.0))
    assert driver.failure() is None
    Mailbox(tmp_path, 1).put_failure(0, RuntimeError("Connection closed by peer"), "later")
    Mailbox(tmp_path, 1).put_failure(1, ValueError("wrong"), "first")
    assert driver.failure() == WorkerError("ValueError", "wrong", "first")


def test_outcome_and_places(tmp_path: Path, driver: Mailbox) -> None:
    worker = Mailbox(tmp_path, 1)
    assert driver.outcome() is None
    worker.put_outcome(Outcome("stopped", {"rule": "patience"}))
    worker.put_place(3, "node-a")
    assert driver.outcome() == Outcome("stopped", {"rule": "patience"})
    assert driver.places()[3]["node"] == "node-a"


def test_a_worker_of_an_attempt_that_was_given_up_ends_itself(tmp_path: Path, driver: Mailbox) -> None:
    zombie = Mailbox(tmp_path, 1)
    zombie.put_row({"epoch": 1})
    second = Mailbox(tmp_path, 2)
    second.open()
    zombie.put_row({"epoch": 2})
    assert second.new_rows() == [], "its words go into its own mailbox"
    driver.close()
    with pytest.raises(TrialError, match="gone on without"):
        zombie.wishes()


def test_somebody_else_can_ask_a_trial_to_end(tmp_path: Path, driver: Mailbox) -> None:
    end_attempts(tmp_path / "never trained")
    driver.let_in()
    waiting = Mailbox(tmp_path, 2)
    waiting.open()
    end_attempts(tmp_path)
    assert Mailbox(tmp_path, 1).wishes() == Wishes("interrupted")
    with pytest.raises(TrialError, match="gone on without"):
        waiting.wishes()


def test_a_full_disk_takes_no_mail_and_the_trial_ends_all_the_same(
    tmp_path: Path, driver: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mailbox, "write_atomically", full)
    driver.let_in()
    worker = Mailbox(tmp_path, 1)
    worker.put_row({"epoch": 1})
    end_attempts(tmp_path)
    end_attempts(tmp_path)
    with pytest.raises(TrialError, match="gone on without"):
        worker.wishes()
    told: list[int] = []
    LeftRows(tmp_path, lambda row: told.append(row["epoch"]))({"epoch": 2})
    assert told == [1, 2], "the rows stay for the next driver"
