"""A run as a chain of attempts, played without workers: what follows what, and what rows and journal are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers_train import tiny_experiment

from raysweep.errors import ClusterError, DiskError, TrialError
from raysweep.train.attempts import Ended, Event, Start, supervise
from raysweep.train.failures import Failure
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row

Play = Callable[[Start], Ended]


def trains(workers: int, first_step: int, step: int, at: float, epochs: list[int], end: Outcome | Failure, why: str = "") -> Play:
    """An attempt that goes from `first_step` to `step`: its first step is done at `at`, its last one 10 s later."""

    def attempt(start: Start) -> Ended:
        start.stepped(workers, first_step, at)
        for epoch in epochs:
            start.on_row({"epoch": epoch, "attempt": start.attempt})
        failed = isinstance(end, Failure)
        return Ended(workers, step, at + 10, None if failed else end, end if failed else None, why)  # type: ignore[arg-type]

    return attempt


def dies_before_its_first_step(workers: int) -> Play:
    return lambda _start: Ended(workers, 0, None, failure=Failure("lost_worker", "ActorDiedError: gone"))


def played(*plays: Play, **settings: Any) -> tuple[Outcome, list[Row], list[Event], list[Start]]:
    rows: list[Row] = []
    events: list[Event] = []
    starts: list[Start] = []
    attempts: Iterator[Play] = iter(plays)

    def run(start: Start) -> Ended:
        starts.append(start)
        return next(attempts)(start)

    outcome = supervise(run, tiny_experiment(**settings), rows.append, events.append)
    assert next(attempts, None) is None, "an attempt was left out"
    return outcome, rows, events, starts


def test_an_undisturbed_run_is_one_attempt_without_events() -> None:
    outcome, rows, events, starts = played(trains(2, 0, 20, 100, [1, 2], Outcome("completed")))
    assert outcome.status == "completed"
    assert rows == [{"epoch": e, "attempt": 1, "pause_s": 0.0, "redone_steps": 0} for e in (1, 2)]
    assert events == []
    assert starts[0].workers_before == 0


def test_a_planned_resize_says_from_to_why_and_what_it_cost() -> None:
    _, rows, events, starts = played(
        trains(1, 0, 7, 100, [1], Outcome("resized"), "room for 2 workers"),
        trains(2, 7, 20, 118, [1, 2, 3], Outcome("completed")),
    )
    (event,) = events
    told = {key: event[key] for key in ("event", "why", "from", "to", "step", "redone_steps", "pause_s")}
    assert told == {
        "event": "resize", "why": "room for 2 workers", "from": 1, "to": 2, "step": 7, "redone_steps": 0, "pause_s": 8.0,
    }  # fmt: skip
    assert [s.workers_before for s in starts] == [0, 1]
    # Epoch 1 is told again after the restart, as it was; the pause belongs to epoch 2, in which it fell.
    assert [(r["epoch"], r["pause_s"]) for r in rows] == [(1, 0.0), (1, 0.0), (2, 8.0), (3, 0.0)]


def test_a_lost_worker_costs_the_steps_since_the_checkpoint() -> None:
    lost = Failure("lost_worker", "ActorDiedError: gone", step=9, start_step=0)
    _, rows, events, _ = played(
        trains(2, 0, 9, 100, [1], lost), trains(1, 4, 20, 125, [2], Outcome("completed"))
    )  # fmt: skip
    assert [(e["event"], e["from"], e["to"], e["redone_steps"], e["pause_s"]) for e in events] == [("failure", 2, 1, 5, 15.0)]
    assert rows[-1] == {"epoch": 2, "attempt": 2, "pause_s": 15.0, "redone_steps": 5}


def test_an_attempt_that_dies_before_its_first_step_lengthens_the_pause() -> None:
    lost = Failure("preemption", "NodeDiedError: gone", step=9, start_step=0)
    _, rows, events, _ = played(
        trains(2, 0, 9, 100, [1], lost), dies_before_its_first_step(2), trains(1, 9, 20, 140, [2], Outcome("completed"))
    )
    assert [(e["event"], e["to"], e["pause_s"]) for e in events] == [("preemption", None, 0.0), ("failure", 1, 30.0)]
    assert rows[-1]["pause_s"] == 30.0


def test_lost_workers_end_a_run_after_max_failures_without_progress() -> None:
    with pytest.raises(TrialError, match=r"scale\.max_failures allows 2"):
        played(*[dies_before_its_first_step(1)] * 3, scale__max_failures=2)


def test_preemptions_count_for_themselves() -> None:
    taken = Failure("preemption", "NodeDiedError: gone", step=3)
    plays = [trains(1, 0, 3, 100.0 * n, [], taken) for n in range(5)]
    outcome, *_ = played(*plays, trains(1, 0, 9, 900, [1], Outcome("completed")), scale__max_failures=0)
    assert outcome.status == "completed"
    with pytest.raises(TrialError, match=r"scale\.max_preemptions allows 1"):
        played(*plays[:2], scale__max_preemptions=1)


def test_out_of_memory_halves_the_micro_batch_and_keeps_it() -> None:
    full = Failure("out_of_memory", "OutOfMemoryError: CUDA out of memory", step=0)
    lost = Failure("lost_worker", "ActorDiedError: gone", step=5, micro_batch=4)
    _, _, _, starts = played(
        trains(1, 0, 0, 100, [], full), trains(1, 0, 5, 120, [], lost), trains(1, 2, 9, 150, [1], Outcome("completed"))
    )
    assert [s.experiment.train.micro_batch for s in starts] == [None, 4, 4]
    assert [s.experiment.train.batch_size for s in starts] == [8, 8, 8]


def test_a_failed_run_names_the_error_and_keeps_its_traceback() -> None:
    wrong = Failure("error", "ValueError: wrong", "Traceback: in forward", step=0, start_step=0)
    events: list[Event] = []
    with pytest.raises(TrialError, match="ValueError: wrong") as caught:
        supervise(trains(2, 0, 0, 100, [], wrong), tiny_experiment(), lambda _row: None, events.append)
    assert caught.value.traceback_text == "Traceback: in forward"
    assert [(e["event"], e["from"], e["to"]) for e in events] == [("failure", 2, None)]


def test_a_failure_of_the_disk_is_raised_as_what_it_is() -> None:
    full = Failure("disk", "DiskError: cannot write ckpt: the disk is full", "Traceback: in save", step=9, start_step=0)
    with pytest.raises(DiskError, match=r"^cannot write ckpt: the disk is full$"):
        supervise(trains(2, 0, 9, 100, [1], full), tiny_experiment(), lambda _row: None)


def test_what_on_row_raises_ends_the_run_at_once() -> None:
    def stops(_row: Row) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        supervise(trains(1, 0, 5, 100, [1], Outcome("completed")), tiny_experiment(), stops)


def test_a_break_is_told_even_if_no_attempt_can_follow_it() -> None:
    lost = Failure("lost_worker", "ActorDiedError: gone", step=9)
    attempts = iter([trains(2, 0, 9, 100, [], lost)])
    events: list[Event] = []

    def run(start: Start) -> Ended:
        if start.attempt == 2:
            raise ClusterError("no room for the workers")
        return next(attempts)(start)

    with pytest.raises(ClusterError):
        supervise(run, tiny_experiment(), lambda _row: None, events.append)
    assert [(e["event"], e["from"], e["to"]) for e in events] == [("failure", 2, None)]
