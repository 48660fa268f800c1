"""The scheduler that Ray Tune is given: a rule decides, on the epoch; around it every row, decision and reason is recorded.

A trial without a finite objective counts as the worst: Ray's own rules take NaN for "go on".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raysweep.config import Sweep
from raysweep.store.journal import kept
from raysweep.tune.audit import Audit
from raysweep.tune.forget import forget
from raysweep.tune.rules import build, why_stopped
from raysweep.tune.search import NotSaved, worst
from raysweep.tune.seeds import is_unseen

_TOLD_ENDS = ("completed", "stopped", "diverged", "failed")
"""Ends after which Ray Tune tells a scheduler that a trial is complete."""


class Recorder(Protocol):
    """Who is told what happens; trials go by Ray Tune's ids."""

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        """A trial has finished an epoch; whether the row is a new one, which the schedulers must see."""
        ...

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        """A trial's workers were resized, failed or were preempted."""
        ...

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        """A scheduler has stopped a trial (action `stop`), or would have and it runs on (`audit`)."""
        ...

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        """A trial has ended by itself."""
        ...

    def disk_failed(self, text: str) -> None:
        """A trial could not go on, for the disk is full or broken: the sweep ends."""
        ...


class Known:
    """A trial as the schedulers see it: by its key, the same one before and after a restart of the sweep.

    Attributes:
        trial_id: its key.
        number: its number in the sweep.
        trial: Ray Tune's trial; None where it only ran before the restart.
    """

    def __init__(self, key: str, number: int = 0) -> None:
        self.trial_id, self.number = key, number
        self.trial: Any = None

    @property
    def status(self) -> str:
        return "TERMINATED" if self.trial is None else str(self.trial.status)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trial, name)


class RecordingScheduler(NotSaved, TrialScheduler):  # type: ignore[misc]
    """Any scheduler of Ray Tune's, with a recorder beside it.

    Trials report {"row": JSON, "epoch": n, metric: value} for each epoch, and with the last one, or alone, {"end": JSON} when
    they end by themselves; either may carry "events", what happened to the trial's workers. {"disk": text} is no end: the disk
    has failed the trial, which goes on another time.

    Attributes:
        found_audits: why trials are audited of which no decision was handed to `replay`, by key.
    """

    def __init__(self, sweep: Sweep, recorder: Recorder) -> None:
        super().__init__()
        self._inner = build(sweep)
        self._recorder = recorder
        self._name = sweep.scheduler.name
        self._metric_name, self._mode = sweep.objective.metric, sweep.objective.mode
        self._epochs = sweep.experiment.train.epochs
        self._last: dict[str, dict[str, Any]] = {}
        self._known: dict[str, Known] = {}
        self._audit = Audit(sweep.search.seed, sweep.scheduler.audit)
        self._sweep = sweep
        self._unseen: set[str] = set()
        self.found_audits: dict[str, dict[str, Any]] = {}
        self._added: list[Any] = []
        self._ended: list[Any] = []
        self._chooses = type(self._inner).choose_trial_to_run is not FIFOScheduler.choose_trial_to_run

    @property
    def fault(self) -> Any:
        """The error of a rule of the user's own; None where there is none."""
        return getattr(self._inner, "fault", None)

    def _as_known(self, trial: Any) -> Known:
        config = getattr(trial, "config", {})
        key = config.get("key", trial.trial_id)
        known = self._known.setdefault(key, Known(key, config.get("number", 0)))
        known.trial = trial
        if is_unseen(self._sweep, getattr(trial, "config", {}).get("overrides", {})):
            self._unseen.add(key)
        return known

    def _is_hidden(self, known: Known) -> bool:
        return known.trial_id in self._audit or known.trial_id in self._unseen

    def replay(
        self,
        told: Iterable[tuple[str, dict[str, Any] | None]],
        statuses: Mapping[str, str],
        *,
        numbers: Mapping[str, int] = MappingProxyType({}),
        audited: Mapping[str, int] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Show the schedulers what they saw before a restart, in the same order.

        Args:
            told: each row, and None for an end, with the trial's key.
            statuses: how the trials have ended, by key; "" where they have not.
            numbers: the trials' numbers, by key.
            audited: since which epoch trials are audited, by key.

        Returns:
            For trials that have not ended although a scheduler stops them at their newest row, why; by key.
        """
        self._audit.knows(audited or {})
        stops: dict[str, dict[str, Any]] = {}
        told = list(told)
        # A trial that was interrupted, or was given more epochs, has more than one end.
        last_ends = {key: place for place, (key, row) in enumerate(told) if row is None}
        for place, (key, row) in enumerate(told):
            known = self._known.setdefault(key, Known(key, numbers.get(key, 0)))
            if row is not None:
                if key not in self._last:
                    self._inner.on_trial_add(None, known)
                action, reason = self._decide(known, row, is_open=not statuses.get(key))
                stops.pop(key, None)
                if reason is not None and action == TrialScheduler.STOP:
                    stops[key] = reason
                elif reason is not None and key not in (audited or {}):
                    self.found_audits[key] = reason
            elif last_ends[key] == place and statuses.get(key) in _TOLD_ENDS and key in self._last and key not in self._audit:
                self._completed(None, known)
        return {key: reason for key, reason in stops.items() if not statuses.get(key)}

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return metric is None and mode is None

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._added.append(trial)
        known = self._as_known(trial)
        if not self._is_hidden(known):
            self._inner.on_trial_add(tune_controller, known)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._inner.on_trial_error(tune_controller, self._as_known(trial))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        trial_id = trial.trial_id
        for event in json.loads(result.get("events", "[]")):
            self._recorder.happened(trial_id, event)
        if "disk" in result:
            self._recorder.disk_failed(result["disk"])
            return str(TrialScheduler.STOP)
        action = self._told(trial, kept(json.loads(result["row"])), tune_controller) if "row" in result else ""
        if "end" in result:
            end = json.loads(result["end"])
            self._recorder.ended(trial_id, end["status"], end["reason"])
            # Left to return by itself, the trial costs a round trip more, in which it can only be lost and run again.
            return str(TrialScheduler.STOP)
        return action

    def _told(self, trial: Any, row: dict[str, Any], tune_controller: Any) -> str:
        """Record a row, and the decision on it."""
        trial_id = trial.trial_id
        if not self._recorder.row(trial_id, row):
            return str(TrialScheduler.CONTINUE)  # told before a restart, and decided on then
        action, reason = self._decide(self._as_known(trial), row, tune_controller)
        if reason is not None:
            is_stopped = action == TrialScheduler.STOP
            self._recorder.decision(trial_id, {"action": "stop" if is_stopped else "audit", **reason})
            if is_stopped:
                self._recorder.ended(trial_id, "stopped", reason)
        return action

    def _decide(
        self, known: Known, row: dict[str, Any], tune_controller: Any = None, is_open: bool = True
    ) -> tuple[str, dict[str, Any] | None]:
        """What the scheduler makes of a row, and why where it stops the trial, or would: an audited one goes on."""
        if self._audit.hides(known.trial_id, row["epoch"]) or known.trial_id in self._unseen:
            return str(TrialScheduler.CONTINUE), None
        value = row.get(self._metric_name)
        shown = {"epoch": row["epoch"], self._metric_name: worst(self._mode) if value is None else value}
        self._last[known.trial_id] = shown
        context = why_stopped(self._inner, known, row["epoch"], shown[self._metric_name])
        action = self._inner.on_trial_result(tune_controller, known, shown)
        # The trial's last epoch is its end anyway, and its own end says more; so does a divergence.
        if action == TrialScheduler.STOP and (row["epoch"] >= self._epochs or value is None):
            return str(TrialScheduler.CONTINUE), None
        if action == TrialScheduler.STOP:
            reason = {"rule": self._name, "epoch": row["epoch"], "metric": self._metric_name, "value": value, **context}
            if self._audit.takes(known.trial_id, row["epoch"], is_open):
                self._completed(tune_controller, known)  # which is what Ray Tune tells the rule of a trial that it stopped
                return str(TrialScheduler.CONTINUE), reason
            return str(action), reason
        return str(action), None

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        known = self._as_known(trial)
        if not self._is_hidden(known):
            self._completed(tune_controller, known)
        self._ended.append(trial)

    def _completed(self, tune_controller: Any, known: Known) -> None:
        last = self._last.get(known.trial_id)
        if last is None:  # it ended before its first epoch did: the median rule would look for the epoch of its result
            self._inner.on_trial_remove(tune_controller, known)
        else:
            self._inner.on_trial_complete(tune_controller, known, last)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        known = self._as_known(trial)
        if not self._is_hidden(known):
            self._inner.on_trial_remove(tune_controller, known)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The trial that is to have an idle actor: a new one, which has none yet.

        Left to itself Ray Tune (2.60) gives an idle actor to a trial whose own actor is just starting, ends that one half
        started, and starts another for the new trial: while trials are shorter than the start of an actor, without end.
        Its own schedulers without a choice of their own also look through all trials that have ever been, for each event.
        """
        self._forget_ended(tune_controller)
        added, self._added = self._added, []
        new = next((trial for trial in added if trial.status == "PENDING"), None)
        return self._inner.choose_trial_to_run(tune_controller) if new is None and self._chooses else new

    def _forget_ended(self, tune_controller: Any) -> None:
        ended = {trial for trial in self._ended if trial.is_finished()}
        self._ended = [trial for trial in self._ended if trial not in ended]
        for trial in ended:
            self._as_known(trial).trial = None
        forget(tune_controller, ended)

    def debug_string(self) -> str:
        return str(self._inner.debug_string())
