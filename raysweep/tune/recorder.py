"""Where each trial of a running sweep stands: told by the engine, written to the journal, shown by progress.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raysweep.store.journal import JournalWriter
from raysweep.tune.plan import Plan, PlannedTrial


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

    Args:
        plan: the sweep's trials.
        journal: where events go.
        changed: called with each state that changed.
        clock: seconds, for the time that is left.
    """

    def __init__(
        self,
        plan: Plan,
        journal: JournalWriter,
        changed: Callable[[TrialState], None] = lambda _state: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self._journal, self._changed, self._clock = plan, journal, changed, clock
        self.states: dict[int, TrialState] = {}
        self._numbers: dict[str, int] = {}
        self._began = clock()
        self._epochs_done = 0
        for trial in plan.trials:
            self._planned(trial)

    def _planned(self, trial: PlannedTrial) -> None:
        self.states[trial.number] = TrialState(trial)
        epochs = self.plan.sweep.experiment.train.epochs
        fields = {"key": trial.key, "overrides": trial.overrides, "epochs": epochs, "parameters": trial.model.parameters}
        self._journal.event("trial", durable=False, trial=trial.number, **fields)

    def _state(self, trial_id: str) -> TrialState:
        return self.states[self._numbers[trial_id]]

    def assigned(self, trial_id: str, trial: PlannedTrial) -> None:
        """Ray Tune's id of a trial; a trial that a searcher has just thought of is planned by it."""
        self._numbers[trial_id] = trial.number
        if trial.number not in self.states:
            self._planned(trial)

    def started(self, trial_id: str) -> None:
        """A trial's actor has it."""
        state = self._state(trial_id)
        state.status = "running"
        state.attempts += 1
        self._journal.event("run", durable=False, trial=state.trial.number)
        self._changed(state)

    def row(self, trial_id: str, row: dict[str, Any]) -> None:
        """A trial has finished an epoch."""
        state, objective = self._state(trial_id), self.plan.sweep.objective
        self._journal.row(state.trial.number, row)
        self._epochs_done += max(0, row["epoch"] - state.epoch)
        state.epoch, state.value = row["epoch"], row.get(objective.metric)
        if state.value is not None:
            better = min if objective.mode == "min" else max
            state.best = state.value if state.best is None else better(state.best, state.value)
        self._changed(state)

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        """A trial's workers were resized, failed or were preempted."""
        fields = dict(event)
        self._journal.event(fields.pop("event"), durable=False, trial=self._numbers[trial_id], **fields)

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        """A scheduler has stopped a trial."""
        self._journal.event("decision", durable=False, trial=self._numbers[trial_id], **decision)

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        """A trial has ended; the first reason given stands."""
        self._end(self._state(trial_id), status, reason)

    def end_rest(self, status: str, why: str) -> None:
        """End what has not ended: the sweep was interrupted or its budget is spent."""
        for state in self.states.values():
            text = f"{why} in epoch {state.epoch + 1}" if state.status == "running" else f"{why} before it started"
            self._end(state, status, {"text": text})

    def _end(self, state: TrialState, status: str, reason: dict[str, Any]) -> None:
        if not state.has_ended:
            state.status, state.reason = status, reason
            self._journal.event("end", trial=state.trial.number, status=status, reason=reason)
            self._changed(state)

    def objective(self, trial_id: str) -> float | None:
        """The best finite objective of a trial."""
        return self._state(trial_id).best

    def best(self) -> TrialState | None:
        """The state with the best finite objective, of trials that neither diverged nor failed."""
        sign = 1 if self.plan.sweep.objective.mode == "min" else -1
        ranked = [s for s in self.states.values() if s.best is not None and s.status not in ("diverged", "failed")]
        return min(ranked, key=lambda s: (sign * (s.best or 0.0), s.trial.number), default=None)

    def seconds_left(self) -> float | None:
        """At the pace so far, if every trial that has not ended runs to its last epoch; None before the first row."""
        if not self._epochs_done:
            return None
        epochs = self.plan.sweep.experiment.train.epochs
        open_states = [state for state in self.states.values() if not state.has_ended]
        left = sum(epochs - state.epoch for state in open_states) + epochs * (self.plan.num_planned - len(self.states))
        return (self._clock() - self._began) / self._epochs_done * left

    def statuses(self) -> list[str]:
        """How each trial stands, by number."""
        return [self.states[number].status for number in sorted(self.states)]
