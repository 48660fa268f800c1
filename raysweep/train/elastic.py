"""A run on Ray's workers whose number may change: each attempt has a fixed one, and this driver decides on the next.

A planned resize ends an attempt at a step boundary with a checkpoint, so it redoes nothing; see docs/architecture.md for
why it is not left to Ray.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.cluster import capacity
from raysweep.cluster.resources import Allocation
from raysweep.errors import ClusterError
from raysweep.experiment import Experiment
from raysweep.train.attempts import Ended, Event, Start, supervise
from raysweep.train.failures import Failure, classify, is_lack_of_room
from raysweep.train.left import LeftRows, keep_rows
from raysweep.train.mailbox import Mailbox, Pulse, WorkerError
from raysweep.train.progress import Outcome
from raysweep.train.room import LOOK_S, Room
from raysweep.train.runtime import Row
from raysweep.train.sizing import Resizer

if TYPE_CHECKING:
    from raysweep.train.ray_runtime import Workers

Say = Callable[[str], None]

_DRAIN_LOOK_S = 1.0
_DRAIN_SAVE_S = 5.0  # how often a run saves whose machine is about to go
_GIVE_UP_S = 20.0  # how long a trainer at the gate may take to end
_PAUSE_S = 10.0  # what a new start costs, until this run has measured it


def fit(
    experiment: Experiment,
    directory: Path,
    allocation: Allocation,
    on_row: Callable[[Row], None],
    on_event: Callable[[Event], None] = lambda _event: None,
    say: Say = lambda _text: None,
    share: Callable[[], int] | None = None,
    started_in: str | None = None,
) -> Outcome:
    """Train an experiment on Ray's workers; blocks until they have ended for good.

    Args:
        experiment: with absolute data paths.
        directory: the trial's directory, which every machine must see.
        allocation: smallest and largest number of workers, and what each holds.
        on_row: called in this thread with each row; what it raises ends the run cleanly and is raised again.
        on_event: called with what happens to the workers.
        say: takes lines for people.
        share: the most workers it may have at this moment, for a trial of a sweep, which also asks an autoscaler for them;
            None: all of the allocation.
        started_in: where the user's own modules lie; None: in the current directory.

    Raises:
        TrialError: a worker failed, with its traceback, or workers were lost too often.
        DiskError: the disk failed.
        ClusterError: there was no room for the workers within scale.start_timeout_s.
    """
    rows = LeftRows(directory, on_row)
    run = _Run(directory, allocation, say, share, started_in or str(Path.cwd()))
    try:
        return supervise(run.attempt, experiment, rows, on_event, say)
    finally:
        run.close()


class _Run:
    """The attempts of one run."""

    def __init__(
        self, directory: Path, allocation: Allocation, say: Say, share: Callable[[], int] | None, started_in: str
    ) -> None:
        self._directory, self._allocation, self.say, self._started_in = directory, allocation, say, started_in
        self.room = Room(allocation, share, say)
        self._pause_s = _PAUSE_S
        self._first_step = 0  # of the newest attempt that has started training
        self.keeps_mail = False
        """Whether rows in it were not taken: a checkpoint may be past their epochs, so the next driver tells them (left.py)."""
        self._asks = share is None and capacity.can_grow_to() is not None
        self._newest: _Group | None = None
        self._standby: _Group | None = None
        capacity.free_leftovers([directory.name])  # of this trial's actor before, if it was killed
        if self._asks:
            capacity.ask_autoscaler(allocation.max_workers, allocation.cpus_per_worker, allocation.gpus_per_worker)

    def close(self) -> None:
        self.drop_standby()
        if self._asks:
            capacity.ask_autoscaler(0, self._allocation.cpus_per_worker, self._allocation.gpus_per_worker)
        if self._newest is not None:
            if self.keeps_mail:
                with suppress(OSError):  # where the disk takes nothing they stay in the mail
                    keep_rows(self._directory)
            else:
                self._newest.mailbox.close()
            self._newest.workers.clean_up()

    def prepare(self, experiment: Experiment, attempt: int, number: int) -> _Group:
        """The workers of an attempt up to the gate: their trainer is started, they themselves are not."""
        from raysweep.train.ray_runtime import Workers

        mailbox = Mailbox(self._directory, attempt)
        mailbox.open()
        cpus, gpus = self._allocation.cpus_per_worker, self._allocation.gpus_per_worker
        workers = Workers(experiment, self._directory, attempt, number, cpus, gpus, self._started_in)
        return _Group(number, experiment, mailbox, workers)

    def stand_by(self, start: Start, number: int) -> _Group:
        """The workers of the attempt after this one, up to the gate."""
        self._standby = self.prepare(start.experiment, start.attempt + 1, number)
        return self._standby

    def attempt(self, start: Start) -> Ended:
        """One attempt, from its size to its end; one that did not start because its room went is begun anew."""
        timeout_s, began = start.experiment.scale.start_timeout_s, time.monotonic()
        while True:
            ended = self._attempt(start)
            passed = time.monotonic() - began
            if ended.failure is None or not is_lack_of_room(ended.failure.message) or passed >= timeout_s:
                return ended
            self.say("the room for the workers went while they started: looking again")

    def _attempt(self, start: Start) -> Ended:
        wanted = self._standby.number if self._standby else start.workers_before
        number = self.room.size(wanted, start.experiment.scale.start_timeout_s)
        if start.attempt > 1:
            self.say(f"going on with {number} {'worker' if number == 1 else 'workers'} (attempt {start.attempt})")
        group, self._standby = self._standby, None
        if group is not None and (group.number != number or group.experiment != start.experiment or group.workers.wait(0)):
            group.give_up()
            group = None
        self._newest = group = group or self.prepare(start.experiment, start.attempt, number)
        group.mailbox.let_in()
        follow = _Follow(self, start, group)
        follow.to_the_end()
        self._pause_s = follow.start_s or self._pause_s
        ended = follow.ended(self._first_step)
        if ended.failure is not None:
            capacity.free_leftovers([self._directory.name])
        self._first_step = ended.failure.start_step if ended.failure else ended.step
        return ended

    def drop_standby(self) -> None:
        """Give the prepared workers up: there is no room for them any more."""
        if self._standby is not None:
            self._standby.give_up()
            self._standby = None

    def resizer(self, number: int, start_s: float) -> Resizer:
        return Resizer(number, self._allocation.workers, self.room.most(), start_s or self._pause_s)


@dataclass
class _Group:
    """The workers of one attempt, and how to talk to them."""

    number: int
    experiment: Experiment
    mailbox: Mailbox
    workers: Workers

    def give_up(self) -> None:
        """End them at the gate, before another group takes the attempt's number."""
        self.mailbox.give_up()
        self.workers.wait(_GIVE_UP_S)


class _Follow:
    """Looks after the workers of one attempt: passes rows on, and asks for a resize or a save where it is time."""

    def __init__(self, run: _Run, start: Start, group: _Group) -> None:
        self._run, self._start, self._number = run, start, group.number
        self._mailbox, self._workers = group.mailbox, group.workers
        self._at_gate = time.time() if group.mailbox.is_ready() else 0.0
        self._next_group: _Group | None = None
        self._pulse: Pulse | None = None
        self._drained: set[str] = set()
        self._why = ""
        self._resizer: Resizer | None = None
        self._next = {"resize": 0.0, "drain": 0.0, "save": 0.0}
        self.start_s = 0.0

    def to_the_end(self) -> None:
        """Follow until the workers have ended. An exception asks them to stop, and is raised when they have."""
        raised: BaseException | None = None
        while True:
            is_last = False
            try:
                is_last = self._workers.wait(LOOK_S)
                if raised is None:
                    self._look()
                # After an error on_row is not called again: a trial that Ray Tune has stopped would wait for ever in it.
                for row in [] if self._run.keeps_mail else self._mailbox.new_rows():
                    self._run.keeps_mail = True
                    self._start.on_row(row)
                    self._run.keeps_mail = False
            except BaseException as error:
                if raised is not None:
                    self._run.keeps_mail = True
                    raise  # asked a second time: leave at once
                raised = error
                self._ask_to_end()
            if is_last:
                break
        if raised is not None:
            raise raised

    def _ask_to_end(self) -> None:
        try:
            self._mailbox.request_end("interrupted")
        except OSError:  # a full disk takes no mail, but a mailbox that is gone says the same, without a checkpoint
            self._mailbox.set_aside()
            self._run.keeps_mail = True

    def _look(self) -> None:
        if not self._at_gate and self._mailbox.is_ready():
            self._at_gate = time.time()
        pulse = self._mailbox.pulse() or self._pulse
        if pulse is not None and pulse.first_step_at and not self.start_s:
            # What a planned resize costs: its trainer comes up to the gate while the attempt before trains on.
            self.start_s = max(LOOK_S, pulse.first_step_at - self._at_gate)
            self._resizer = self._run.resizer(self._number, self.start_s)
            self._start.stepped(self._number, pulse.first_step, pulse.first_step_at)
        self._pulse = pulse
        if pulse is None:
            return
        if self._is_time("drain", _DRAIN_LOOK_S):
            self._look_for_drains()
        if self._next_group is not None:
            self._go_over_to(self._next_group)
        elif not self._why and self._resizer and self._is_time("resize", self._start.experiment.scale.resize_check_s):
            self._look_for_room(pulse, self._resizer)

    def _is_time(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._next[what]:
            return False
        self._next[what] = now + every_s
        return True

    def _nodes(self) -> Counter[str]:
        return Counter(place["node"] for place in self._mailbox.places().values())

    def _look_for_drains(self) -> None:
        try:
            mine = set(self._nodes()) & set(capacity.draining_nodes())
        except ClusterError:
            return  # it is asked again in a second
        for node in mine - self._drained:
            self._run.say(f"machine {node[:8]} is about to go: saving, and going on until it does")
        self._drained |= mine
        if mine and self._is_time("save", _DRAIN_SAVE_S):
            self._mailbox.request_save()

    def _look_for_room(self, pulse: Pulse, resizer: Resizer) -> None:
        resizer.high = self._run.room.most()
        fits = self._run.room.fits(self._nodes()) if resizer.current < resizer.high else resizer.current
        new = resizer.check(fits, pulse.total_steps - pulse.step, pulse.seconds_per_step)
        if new is not None:
            # These train on while the next trainer starts.
            self._next_group = self._run.stand_by(self._start, new)

    def _go_over_to(self, group: _Group) -> None:
        """End this attempt as soon as the trainer of the next one stands at the gate, if there is still room for it."""
        if group.mailbox.is_ready() and min(self._run.room.most(), self._run.room.fits(self._nodes())) >= group.number:
            grows = group.number > self._number
            self._why = f"room for {group.number} workers" if grows else f"its share of the workers is down to {group.number}"
            self._run.say(f"{self._why}: saving, and starting again with them")
            self._mailbox.request_end("resized")
        elif group.mailbox.is_ready() or group.workers.wait(0):
            self._run.drop_standby()
        else:
            return
        self._next_group = None

    def ended(self, known_step: int) -> Ended:
        """How the attempt ended; `known_step`: where it stands if it never came to start its training."""
        pulse, outcome, error = self._pulse, self._mailbox.outcome(), self._mailbox.failure()
        step, first_step = (pulse.step, pulse.first_step) if pulse else (known_step, known_step)
        step_at = pulse.step_at if pulse and pulse.step_at else None
        if outcome is not None and error is None:
            return Ended(self._number, step, step_at, outcome=outcome, why=self._why)
        error = error or self._workers.error() or WorkerError("TrialError", "the workers ended without saying how", "")
        kind = classify(error.type, error.message, draining=bool(self._drained))
        micro_batch = self._start.experiment.train.micro_batch
        text = f"{error.type}: {error.message}"
        return Ended(self._number, step, step_at, failure=Failure(kind, text, error.traceback, step, first_step, micro_batch))
