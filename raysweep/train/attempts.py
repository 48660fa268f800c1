"""A run as a chain of attempts: after each one, whether another follows, and what the rows and the journal say of it.

How an attempt is run (in this process, or on Ray's workers) is given; nothing here knows of Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raysweep.errors import DiskError, TrialError
from raysweep.experiment import Experiment
from raysweep.train.failures import Failure, Limits, decide
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row

Event = dict[str, Any]
"""One thing that happened to a run's workers: `event` (resize, failure, preemption), `time` (when), `why`, `from`, `to`
(workers; null: there was no next attempt), `step`, `redone_steps`, `pause_s` (last step before to first step after)."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Attributes:
        workers: how many it had.
        step: the global step it reached.
        step_at: when that step was done, seconds since 1970; None: it did none.
        outcome: its outcome; None where it failed.
        failure: what it failed of; None where it did not.
        why: for a resize, the reason.
    """

    workers: int
    step: int
    step_at: float | None
    outcome: Outcome | None = None
    failure: Failure | None = None
    why: str = ""


@dataclass
class Start:
    """What an attempt is to do.

    Attributes:
        attempt: its number, from 1.
        experiment: with the micro batch to use.
        on_row: takes its rows.
        stepped: to be called once, when its first step is done, with its number of workers, the global step that it went
            on from, and when the step was done (seconds since 1970).
        workers_before: of the attempt before; 0: there was none.
    """

    attempt: int
    experiment: Experiment
    on_row: Callable[[Row], None]
    stepped: Callable[[int, int, float], None]
    workers_before: int = 0


@dataclass
class _Open:
    """What is known of a break between two attempts before the second one has done a step."""

    event: Event
    step_at: float | None


@dataclass
class _Rows:
    """Adds to each row what its epoch lost to breaks; a row that is told again after a restart gets the same again."""

    on_row: Callable[[Row], None]
    pause_s: float = 0.0
    redone_steps: int = 0
    _told: dict[int, tuple[float, int]] = field(default_factory=dict)

    def __call__(self, row: Row) -> None:
        if row["epoch"] not in self._told:
            self._told[row["epoch"]] = (self.pause_s, self.redone_steps)
            self.pause_s, self.redone_steps = 0.0, 0
        pause_s, redone_steps = self._told[row["epoch"]]
        self.on_row({**row, "pause_s": pause_s, "redone_steps": redone_steps})


def supervise(
    run_attempt: Callable[[Start], Ended],
    experiment: Experiment,
    on_row: Callable[[Row], None],
    on_event: Callable[[Event], None] = lambda _event: None,
    say: Callable[[str], None] = lambda _text: None,
) -> Outcome:
    """Run attempts until one ends for good.

    Args:
        run_attempt: runs one; raises only what ends the run at once (Ctrl-C, what on_row raised).
        experiment: what to train.
        on_row: takes each row, with `pause_s` and `redone_steps` of its epoch.
        on_event: takes what happened to the workers.
        say: takes lines for people.

    Raises:
        TrialError: the run failed for good: why, and the traceback of the worker that failed first.
        DiskError: the disk did; the run can go on as it stands.
    """
    rows, history, breaks = _Rows(on_row), list[Failure](), list[_Open]()
    micro_batch, workers_before, attempt = experiment.train.micro_batch, 0, 0

    def stepped(workers: int, first_step: int, at: float) -> None:
        if not breaks:
            return
        # Attempts that ended before their first step belong to the same break.
        pause_s = max(0.0, at - breaks[0].step_at) if breaks[0].step_at is not None else 0.0
        furthest = max(b.event["step"] for b in breaks)
        redone = max(0, furthest - first_step)
        rows.pause_s += pause_s
        rows.redone_steps += redone
        for b in breaks[:-1]:
            on_event({**b.event, "redone_steps": 0, "pause_s": 0.0})
        on_event({**breaks[-1].event, "to": workers, "redone_steps": redone, "pause_s": round(pause_s, 3)})
        breaks.clear()

    while True:
        attempt += 1
        current = experiment if micro_batch is None else experiment.with_overrides({"train.micro_batch": micro_batch})
        try:
            ended = run_attempt(Start(attempt, current, rows, stepped, workers_before))
            if ended.failure is not None and ended.failure.kind == "disk":
                raise DiskError(ended.failure.message.removeprefix("DiskError: "))
        except BaseException:
            for b in breaks:
                on_event(b.event)
            raise
        workers_before = ended.workers
        event = {"event": "resize", "time": round(time.time(), 3), "why": ended.why, "from": ended.workers, "to": None}
        event |= {"step": ended.step, "redone_steps": 0, "pause_s": 0.0}
        step_at = ended.step_at if ended.step_at is not None or not breaks else breaks[-1].step_at
        if ended.outcome is not None and ended.outcome.status == "resized":
            breaks.append(_Open(event, step_at))
            continue
        for b in breaks if ended.outcome is not None else []:
            on_event(b.event)  # the next attempt had no step to do
        if ended.outcome is not None:
            return ended.outcome
        assert ended.failure is not None, "an attempt ends with an outcome or with a failure"
        history.append(ended.failure)
        decision = decide(history, _limits(experiment, ended.workers))
        event["event"] = "preemption" if ended.failure.kind == "preemption" else "failure"
        breaks.append(_Open({**event, "why": decision.reason, "kind": ended.failure.kind}, step_at))
        if decision.action == "fail":
            for b in breaks:
                on_event(b.event)
            raise TrialError(decision.reason, ended.failure.traceback)
        say(decision.reason)
        micro_batch = decision.micro_batch


def _limits(experiment: Experiment, workers: int) -> Limits:
    scale, train = experiment.scale, experiment.train
    held_by = train.shards if train.exactness == "bitwise" else workers
    return Limits(scale.max_failures, scale.max_preemptions, -(-train.batch_size // held_by), train.exactness)
