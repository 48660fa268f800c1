"""Population-based training (scheduler pbt): where each member stands, and what it trains next.

Who copies whom is evolve.py, how weights move is train/clone.py. A member is one trial. It trains in segments of
scheduler.interval epochs; when all members have ended a generation's segment, the worst copy the best, and the next
generation starts. Ray Tune's own PopulationBasedTraining decides whenever a trial reports, so what is copied follows from the
machine's timing; here it follows from the values alone, and a restart repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from raysweep.errors import CheckpointError
from raysweep.experiment import Experiment
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.train.clone import drop_older, has_best, offer, stands_at
from raysweep.tune.evolve import Exploit, Member, exploits
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.recorder import SweepRecorder, TrialState
from raysweep.tune.resume import Past
from raysweep.tune.search import NotSaved, as_config


def paused_after(experiment: Experiment, epoch: int) -> Experiment:
    """The same training, paused after an epoch."""
    changes: dict[str, Any] = {"train.epochs": epoch}
    if experiment.optim.schedule == "cosine":
        changes["optim.schedule_epochs"] = experiment.optim.schedule_epochs or experiment.train.epochs
    return experiment.with_overrides(changes)


@dataclass(frozen=True)
class Segment:
    """What a member trains next: its trial with the settings that it has now, the last epoch, and after which generation it
    copied last (0: never)."""

    trial: PlannedTrial
    until: int
    copied: int


class PopulationRecorder(SweepRecorder):
    """The population, which is told what its members did: the end of a segment is not the end of its trial.

    Attributes:
        generation: the one that trains now, from 1.
        is_over: there is nothing left to train.

    Args:
        directory: the sweep's.
        others: as SweepRecorder has them.
    """

    def __init__(
        self,
        plan: Plan,
        journal: JournalWriter,
        changed: Callable[[TrialState], None] = lambda _state: None,
        past: Past | None = None,
        to_run: Collection[str] = (),
        *,
        directory: SweepDirectory,
    ) -> None:
        super().__init__(plan, journal, changed, past=past, to_run=to_run)
        self.generation, self.is_over = 1, False
        self._directory, self._epochs = directory, plan.sweep.experiment.train.epochs
        self._interval = plan.sweep.scheduler.interval
        self._last_generation = math.ceil(self._epochs / self._interval)
        self._rows: dict[int, dict[int, dict[str, Any]]] = {trial.number: {} for trial in plan.trials}
        self._running: dict[str, int] = {}  # Ray Tune's ids and the members' numbers
        self._newest: dict[int, str] = {}  # Ray Tune's id of each member's newest segment
        self._copied: dict[int, int] = {}  # members and the generations after which they copied last
        self._trained: set[int] = set()  # this generation's last epoch, in this process
        self._behind: set[int] = set()  # members that train it again,
        self._tried: set[int] = set()  # and have begun to
        for known in past.trials.values() if past else ():
            if known.number in self._rows:
                self._rows[known.number] = dict(known.rows)
        for event in past.population if past else ():
            if event["trial"] in self._rows:
                self._copied[event["trial"]] = event["generation"]
                self._change(event["trial"], event["overrides"])

    def _change(self, number: int, overrides: dict[str, Any]) -> None:
        state = self.states[number]
        state.trial = replace(state.trial, overrides=dict(overrides))

    def started(self, trial_id: str) -> None:
        state = self._state(trial_id)
        if self._newest.setdefault(state.trial.number, trial_id) == trial_id:
            super().started(trial_id)
            return
        # The member's next segment, which is no new attempt.
        self._newest[state.trial.number] = trial_id
        state.status = "running"
        self._changed(state)

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        is_new = super().row(trial_id, row)
        if is_new:
            self._rows[self._state(trial_id).trial.number][row["epoch"]] = row
        return is_new

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        state = self._state(trial_id)
        if status == "completed":
            self._trained.add(state.trial.number)
        if status in ("completed", "diverged") and self.generation < self._last_generation:
            state.status = "waiting"
            self._changed(state)
        else:
            super().ended(trial_id, status, reason)

    def next_segment(self, trial_id: str) -> Segment | None:
        """What Ray Tune's trial of this id trains; None where the generation's other members are waited for, or is_over.

        Raises:
            CheckpointError: weights cannot be copied.
        """
        while not self.is_over:
            for number in sorted(self._rows):
                if number not in self._running.values() and self._is_to_train(number):
                    self._running[trial_id] = number
                    trial = self.states[number].trial
                    self.assigned(trial_id, trial)
                    return Segment(trial, self._last_epoch(), self._copied.get(number, 0))
            if self._running:
                return None
            if self.generation == self._last_generation:
                self.is_over = True
            else:
                self._turn()
        return None

    def segment_ended(self, trial_id: str) -> None:
        """Ray Tune's trial is over."""
        self._behind.discard(self._running.pop(trial_id, -1))

    def num_left(self) -> int:
        """Members that have yet to end this generation: whom the others wait for may have all workers."""
        return sum(number in self._running.values() or self._is_to_train(number) for number in self._rows)

    def _is_to_train(self, number: int) -> bool:
        return number in self._behind or not self._is_done(number)

    def _last_epoch(self) -> int:
        return min(self.generation * self._interval, self._epochs)

    def _diverged_at(self, number: int) -> dict[str, Any] | None:
        """The row in which a member diverged in this generation."""
        began = (self.generation - 1) * self._interval
        rows = self._rows[number].items()
        return next((row for epoch, row in rows if began < epoch <= self._last_epoch() and row.get("val_loss") is None), None)

    def _has_trained(self, number: int) -> bool:
        """Whether a member has come to the generation's end, or diverged on the way."""
        return max(self._rows[number], default=0) >= self._last_epoch() or self._diverged_at(number) is not None

    def _is_done(self, number: int) -> bool:
        state = self.states[number]
        if self.generation == self._last_generation or state.status in ("failed", "infeasible"):
            return state.has_ended
        return self._has_trained(number)

    def _turn(self) -> None:
        """End a generation: the worst members copy the best, and the next one begins, unless nobody is left to train on."""
        # By rows, not by who failed since: a restart must find the same members.
        numbers = [number for number in sorted(self._rows) if self._has_trained(number)]
        # Was it ended before a restart? A failed member that is tried again only follows.
        if all(max(self._rows[number]) <= self._last_epoch() for number in numbers):
            metric = self.plan.sweep.objective.metric
            members = [
                Member(n, self.states[n].trial.overrides, self._rows[n].get(self._last_epoch(), {}).get(metric)) for n in numbers
            ]
            if all(member.value is None for member in members):
                self._end_diverged(numbers)
                self.is_over = True
                return
            found = exploits(members, self.plan.sweep, self.generation)
            to_do = [exploit for exploit in found if self._copied.get(exploit.trial, 0) < self.generation]
            self._behind = self._incomplete(to_do)
            if self._behind:
                return
            for exploit in to_do:
                self._copy(exploit)
        self.generation += 1
        self._trained.clear()
        self._tried.clear()

    def _incomplete(self, found: list[Exploit]) -> set[int]:
        """Members that must train the generation again, for a store had their rows and not yet their files: donors without the
        checkpoint of its end, and those that copy without their best.pt, which they could not come by later.

        Raises:
            CheckpointError: a donor has failed, or trained it again in vain.
        """
        donors = {e.donor for e in found if e.donor not in self._trained and not self._stands(e.donor)}
        for number in sorted(donors):
            if number in self._tried or self.states[number].status == "failed":
                raise CheckpointError(
                    f"trial {number} is among the best after epoch {self._last_epoch()}, and its checkpoint, which others copy, "
                    "is gone; --retry-failed trains it again, --fresh starts the sweep anew"
                )
        asked = self._trained | self._tried
        incomplete = donors | {e.trial for e in found if e.trial not in asked and not self._has_best(e.trial)}
        self._tried |= incomplete
        return incomplete

    def _stands(self, number: int) -> bool:
        return stands_at(self._trial(number), self._last_epoch(), self._copied.get(number, 0))

    def _has_best(self, number: int) -> bool:
        losses = [row["val_loss"] for row in self._rows[number].values() if row.get("val_loss") is not None]
        return self.states[number].status == "failed" or not losses or has_best(self._trial(number), min(losses))

    def _trial(self, number: int) -> Path:
        return self._directory.trial(self.states[number].trial.key)

    def _copy(self, exploit: Exploit) -> None:
        state, receiver = self.states[exploit.trial], self._trial(exploit.trial)
        # The files come first: what stands in the journal, a restart does not do again.
        offer(self._trial(exploit.donor), receiver, self.generation)
        fields: dict[str, Any] = {"generation": self.generation, "epoch": self._last_epoch(), "from": exploit.donor}
        self._journal.event("population", trial=exploit.trial, **fields, overrides=exploit.overrides)
        drop_older(receiver, self.generation)
        self._copied[exploit.trial] = self.generation
        self._change(exploit.trial, exploit.overrides)
        if state.status == "diverged":  # in what was the last generation of a shorter sweep
            self._open(state)

    def _end_diverged(self, numbers: list[int]) -> None:
        """End all members: none has anything to copy."""
        for number in numbers:
            row = self._diverged_at(number) or {}
            what = "train_loss" if row.get("train_loss") is None else "val_loss"
            self._end(self.states[number], "diverged", {"what": what, "step": row.get("step"), "lr": row.get("lr")})


class PopulationSearcher(NotSaved, Searcher):  # type: ignore[misc]
    """Hands out a population's segments to Ray Tune, for which each is a trial of its own."""

    def __init__(self, population: PopulationRecorder) -> None:
        objective = population.plan.sweep.objective
        super().__init__(metric=objective.metric, mode=objective.mode)
        self._population = population

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        segment = self._population.next_segment(trial_id)
        if segment is None:
            return str(Searcher.FINISHED) if self._population.is_over else None
        return {**as_config(segment.trial), "until": segment.until, "copied": segment.copied}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._population.segment_ended(trial_id)
