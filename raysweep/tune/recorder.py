"""Where each trial of a running sweep stands: told by the engine, written to the journal, shown by progress.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from raysweep.errors import DiskError, StoreError
from raysweep.store.journal import JournalWriter
from raysweep.tune.contest import CONTENDERS
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.resume import Past, device_seconds, stands

NEVER_BEST = ("diverged", "failed")
"""Ends of trials that are no answer, whatever their values were."""


@dataclass
class TrialState:
    """One trial as it is now; `status` is waiting, running, or how it ended."""

    trial: PlannedTrial
    status: str = "waiting"
    epoch: int = 0
    value: float | None = None
    best: float | None = None
    reason: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status not in ("waiting", "running")


class SweepRecorder:
    """Writes what happens to the journal and keeps the state of every trial; trials go by Ray Tune's ids.

    Nothing here looks at every trial for an event of one: a sweep of 10,000 has 10,000 times as many events.

    Attributes:
        contest: what was decided in contests, in order, over all starts of the sweep.
        num_ended: trials that have ended.
        device_seconds: seconds of all epochs times their workers, over all starts of the sweep.
        why_ended: why the sweep ends before its trials do; "" where it does not.

    Args:
        plan: the sweep's trials.
        journal: where events go.
        changed: called with each state that changed after the planning.
        clock: seconds, for the time that is left.
        past: what the journal knew before; None for a new sweep.
        to_run: keys of the trials that run now; the others of `past` keep their ends.
    """

    def __init__(
        self,
        plan: Plan,
        journal: JournalWriter,
        changed: Callable[[TrialState], None] = lambda _state: None,
        clock: Callable[[], float] = time.monotonic,
        past: Past | None = None,
        to_run: Collection[str] = (),
    ) -> None:
        self.plan, self._journal, self._clock = plan, journal, clock
        self._changed: Callable[[TrialState], None] = lambda _state: None
        self.states: dict[int, TrialState] = {}
        self._numbers: dict[str, int] = {}
        self._has_begun, self._began = False, clock()
        self._epochs_done = 0
        self._epochs_open = 0  # that are left to the trials that have not ended
        self.num_ended = 0
        self._best: TrialState | None = None
        self.why_ended = ""
        self._disk: DiskError | None = None
        self.device_seconds = past.device_seconds if past else 0.0
        self._decisions = past.decisions if past else []
        self.contest = [d for d in self._decisions if d.get("rule") == CONTENDERS]
        self._past = past.trials if past else {}
        self._retry_failed = past is not None and past.retry_failed
        self._to_run = set(to_run)
        self._epochs_before = past.sweep.experiment.train.epochs if past else 0
        for trial in plan.trials:
            self._planned(trial)
        self._changed = changed  # only now: nobody looks on yet, and what cannot be trained is in the plan's notes

    def _planned(self, trial: PlannedTrial) -> None:
        self.states[trial.number] = state = TrialState(trial)
        known = self._past.get(trial.key)
        if known is not None:
            better = min if self.plan.sweep.objective.mode == "min" else max
            values = [row.get(self.plan.sweep.objective.metric) for _, row in sorted(known.rows.items())]
            finite = [value for value in values if value is not None]
            state.epoch, state.attempts = known.last_epoch, known.attempts
            state.value, state.best = (values or [None])[-1], better(finite) if finite else None
            is_told = not trial.infeasible or known.reason.get("text") == trial.infeasible  # a constraint may be another one now
            if trial.key not in self._to_run and known.status and is_told:
                state.status, state.reason = known.status, known.reason
        self._count(state)
        epochs = self.plan.sweep.experiment.train.epochs
        if known is None or known.overrides != trial.overrides or self._epochs_before != epochs:  # else the journal has it so
            fields = {"key": trial.key, "overrides": trial.overrides, "epochs": epochs, "parameters": trial.model.parameters}
            self._journal.event("trial", durable=False, trial=trial.number, **fields)
        if trial.infeasible and not state.has_ended:
            self._end(state, "infeasible", {"text": trial.infeasible}, durable=False)

    def _count(self, state: TrialState) -> None:
        """Count a trial as it is planned."""
        if state.has_ended:
            self.num_ended += 1
        else:
            self._epochs_open += self.plan.sweep.experiment.train.epochs - state.epoch
        self._compare(state)

    def _compare(self, state: TrialState) -> None:
        """Whether a state is the best now, and whether the best still is."""
        if state is self._best and state.status in NEVER_BEST:
            self._best = min((s for s in self.states.values() if self._can_be_best(s)), key=self._rank, default=None)
        elif self._can_be_best(state) and (self._best is None or self._rank(state) < self._rank(self._best)):
            self._best = state

    def _can_be_best(self, state: TrialState) -> bool:
        return state.best is not None and state.status not in NEVER_BEST

    def _rank(self, state: TrialState) -> tuple[float, int]:
        sign = 1 if self.plan.sweep.objective.mode == "min" else -1
        return sign * (state.best or 0.0), state.trial.number

    def _state(self, trial_id: str) -> TrialState:
        return self.states[self._numbers[trial_id]]

    def assigned(self, trial_id: str, trial: PlannedTrial) -> None:
        """Ray Tune's id of a trial; a trial that a searcher has just thought of is planned by it."""
        self._numbers[trial_id] = trial.number
        if trial.number not in self.states:
            if not trial.infeasible:
                self._to_run.add(trial.key)
            self._planned(trial)

    def known(self, trial: PlannedTrial) -> TrialState | None:
        """How a trial stands; one that an earlier start has trained to an end that stands is planned by it. None: not begun."""
        before = self._past.get(trial.key)
        epochs = self.plan.sweep.experiment.train.epochs
        if trial.number not in self.states and before is not None and stands(before, epochs, self._retry_failed):
            self._planned(trial)
        return self.states.get(trial.number)

    def started(self, trial_id: str) -> None:
        """A trial's actor has it."""
        state = self._state(trial_id)
        if not self._has_begun:  # the start of Ray Tune and of the first actor is no epoch's
            self._has_begun, self._began = True, self._clock()
        state.status = "running"
        state.attempts += 1
        self._journal.event("run", durable=False, trial=state.trial.number)
        self._changed(state)

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        """A trial has finished an epoch; False: the journal has that row already, and keeps it."""
        state, objective = self._state(trial_id), self.plan.sweep.objective
        if row["epoch"] <= state.epoch:
            return False
        self._journal.row(state.trial.number, row)
        self.device_seconds += device_seconds(row)
        self._epochs_done += row["epoch"] - state.epoch
        self._epochs_open -= row["epoch"] - state.epoch
        state.epoch, state.value = row["epoch"], row.get(objective.metric)
        if state.value is not None:
            better = min if objective.mode == "min" else max
            state.best = state.value if state.best is None else better(state.best, state.value)
            self._compare(state)
        self._changed(state)
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        """A trial's workers were resized, failed or were preempted."""
        fields = dict(event)
        self._journal.event(fields.pop("event"), durable=False, trial=self._numbers[trial_id], **fields)

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        """A scheduler has stopped a trial, or would have and it runs on."""
        self.decided(self._numbers[trial_id], decision)

    def decided(self, number: int, decision: dict[str, Any]) -> None:
        """Something was decided about a trial, by its number."""
        self._journal.event("decision", durable=False, trial=number, **decision)
        if decision.get("rule") == CONTENDERS:
            self.contest.append({"trial": number, **decision})

    def stopped(self, number: int, reason: dict[str, Any]) -> None:
        """A scheduler stops a trial by what it had told before a restart; the journal may have the decision, without the end."""
        decision = {"action": "stop", **reason}
        if not any(told["trial"] == number and decision.items() <= told.items() for told in self._decisions):
            self.decided(number, decision)
        self._end(self.states[number], "stopped", reason)

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        """A trial has ended; the first reason given stands."""
        self._end(self._state(trial_id), status, reason)

    def disk_failed(self, text: str) -> None:
        """A trial could not go on, for the disk is full or broken. That is no end of the trial: the sweep ends."""
        self._disk = self._disk or DiskError(text)

    @property
    def fault(self) -> StoreError | None:
        """What keeps the whole sweep from being written; None while there is nothing."""
        return self._journal.broken or self._disk

    def end_rest(self, status: str, why: str) -> None:
        """End what has not ended: the sweep was interrupted or its budget is spent."""
        for state in self.states.values():
            text = f"{why} in epoch {state.epoch + 1}" if state.status == "running" else f"{why} before it started"
            # One by one on the disk would take minutes of a large sweep; the sweep's `finish` event follows and is.
            self._end(state, status, {"text": text}, durable=False)

    def _end(self, state: TrialState, status: str, reason: dict[str, Any], durable: bool = True) -> None:
        if not state.has_ended:
            state.status, state.reason = status, reason
            self.num_ended += 1
            self._epochs_open -= self.plan.sweep.experiment.train.epochs - state.epoch
            self._compare(state)
            self._journal.event("end", durable=durable, trial=state.trial.number, status=status, reason=reason)
            self._changed(state)

    def _open(self, state: TrialState) -> None:
        """A trial that had ended goes on."""
        state.status = "waiting"
        self.num_ended -= 1
        self._epochs_open += self.plan.sweep.experiment.train.epochs - state.epoch
        self._compare(state)

    def objective(self, number: int) -> float | None:
        """The best finite objective of a trial."""
        return self.states[number].best

    def best(self) -> TrialState | None:
        """The state with the best finite objective, of trials that neither diverged nor failed."""
        return self._best

    def num_left(self) -> int:
        """Trials that may ask for workers yet: those that have not ended, and those that a search has not thought of."""
        return self.plan.num_planned - self.num_ended

    def seconds_left(self) -> float | None:
        """At the pace so far, if every trial that has not ended runs to its last epoch; None before the first row."""
        if not self._epochs_done:
            return None
        epochs = self.plan.sweep.experiment.train.epochs
        left = self._epochs_open + epochs * (self.plan.num_planned - len(self.states))
        return (self._clock() - self._began) / self._epochs_done * left

    def statuses(self) -> list[str]:
        """How each trial stands, by number."""
        return [self.states[number].status for number in sorted(self.states)]
