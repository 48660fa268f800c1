"""Going on with a sweep: what its journal knows, which trials of a plan are done, and which run (again); no Ray in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from raysweep.config import Sweep
from raysweep.errors import ConfigError, StoreError
from raysweep.store.directory import SweepDirectory, directories_of
from raysweep.store.journal import read_entries
from raysweep.store.rows import needed_to_go_on
from raysweep.sweep_settings import LISTED
from raysweep.tune.contest import go_on
from raysweep.tune.own import is_in, is_own
from raysweep.tune.plan import Plan, PlannedTrial, as_listed, make_plan
from raysweep.tune.seeds import add_seeds
from raysweep.tune.which import combination, why_other

FINAL = ("completed", "stopped", "diverged", "failed", "infeasible")
"""Ends that stand; an interrupted trial, or one whose sweep was killed or out of budget, goes on."""


@dataclass
class PastTrial:
    """What the journal knows of one trial.

    Attributes:
        number, key, overrides: as it was planned, the last time.
        rows: by epoch; the one told last. Of a population as they were told; else what needed_to_go_on says.
        status: how it ended; "" where it has not.
        reason: of the end.
        attempts: how often an actor had it.
    """

    number: int
    key: str
    overrides: dict[str, Any]
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    status: str = ""
    reason: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0

    @property
    def last_epoch(self) -> int:
        return max(self.rows, default=0)


@dataclass
class Past:
    """A sweep's journal, read for going on.

    Attributes:
        directory: where it lies.
        sweep: its newest settings.
        data: the facts about its images.
        trials: by key.
        size: of the journal when it was read, bytes.
        told: each row and each end in the journal's order, as (trial's key, row, or None for its end).
        population: its population events, in order.
        decisions: what schedulers and contests decided, in order.
        untold: decisions of a contest that follow from all this and that it does not hold.
        retry_failed: whether failed trials run again now.
    """

    directory: SweepDirectory
    sweep: Sweep
    data: dict[str, Any]
    size: int
    trials: dict[str, PastTrial] = field(default_factory=dict)
    told: list[tuple[str, dict[str, Any] | None]] = field(default_factory=list)
    population: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    untold: list[dict[str, Any]] = field(default_factory=list)
    retry_failed: bool = False

    @property
    def device_seconds(self) -> float:
        """Of all epochs so far."""
        return sum(device_seconds(row) for trial in self.trials.values() for row in trial.rows.values())

    @property
    def audited(self) -> dict[str, int]:
        """Since which epoch trials are audited, by key."""
        keys = {trial.number: trial.key for trial in self.trials.values()}
        return {keys[d["trial"]]: d["epoch"] for d in self.decisions if d["action"] == "audit"}


def device_seconds(row: dict[str, Any]) -> float:
    """What an epoch took, times its workers, seconds."""
    return float(row.get("seconds") or 0.0) * int(row.get("world_size") or 1)


def read_past(directory: SweepDirectory) -> Past | None:
    """What a directory's journal knows; None where it holds no sweep.

    Of a row it keeps the epoch, the objective, and what the epoch took (seconds, world_size); of a population's, everything.

    Raises:
        StoreError: the journal is damaged.
    """
    if not directory.journal.exists():
        return None
    size = directory.journal.stat().st_size
    start: dict[str, Any] = {}
    by_number: dict[int, PastTrial] = {}
    told: list[tuple[str, dict[str, Any] | None]] = []
    population: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    names: list[str] = []
    needed: list[tuple[str, int]] = []
    for number, (columns, event) in enumerate(read_entries(directory.journal), start=1):
        try:
            if columns:
                if columns is not names:
                    names, needed = columns, needed_to_go_on(start, columns)
                trial, row = by_number[event[0]], {name: event[place] for name, place in needed}
                trial.rows[row["epoch"]] = row
                told.append((trial.key, row))
                continue
            name = event.pop("event")
            if name == "start":
                start, names = event, []
            elif name == "trial":
                # It may be planned again, by a sweep with more epochs or in whose space the same training has other settings.
                known = by_number.get(event["trial"])
                if known is None or known.key != event["key"]:  # else the row of what could not be trained is now a trial's
                    by_number[event["trial"]] = PastTrial(event["trial"], event["key"], event["overrides"])
                else:
                    known.overrides = event["overrides"]
            elif name == "population":
                population.append(event)
                by_number[event["trial"]].status, by_number[event["trial"]].reason = "", {}  # it trains on
            elif name == "decision":
                decisions.append(event)
            elif name in ("run", "end"):
                trial = by_number[event.pop("trial")]
                if name == "run":
                    trial.attempts += 1
                    trial.status, trial.reason = "", {}
                else:
                    trial.status, trial.reason = event["status"], event.get("reason") or {}
                    told.append((trial.key, None))
        except (KeyError, TypeError) as error:
            raise StoreError(f"{directory.journal} is damaged: event {number} makes no sense ({error!r})") from None
    if not start.get("sweep"):
        return None
    sweep = Sweep.from_dict(start["sweep"], str(directory.journal))
    trials = {t.key: t for t in by_number.values()}
    return Past(directory, sweep, start.get("data") or {}, size, trials, told, population, decisions)


def adopt(plan: Plan, past: Past) -> None:
    """Give the plan's trials the numbers that they have in the journal, and new ones the numbers that follow.

    A plan that a searcher fills starts with the journal's trials, or it could think of one of them again. What could not be
    trained and can be now, as a constraint is gone or a model repaired, takes the number of the row that said so.
    """
    if plan.sweep.search.algorithm not in LISTED:
        for old in sorted(past.trials.values(), key=lambda t: t.number):
            if (point := _point(plan, old)) is not None:
                _add_again(plan, point)
    following = max((t.number for t in past.trials.values()), default=-1) + 1
    repaired = {combination(plan, t.overrides): t for t in past.trials.values() if t.status == "infeasible"}
    for place, trial in enumerate(plan.trials):
        known = past.trials.get(trial.key)
        if known is None and repaired and not trial.infeasible:
            known = repaired.pop(combination(plan, trial.overrides), None)
            if known is not None:
                del past.trials[known.key]
        number = known.number if known else following
        following += known is None
        plan.trials[place] = replace(trial, number=number)
    plan.goes_on({t.key: t.number for t in past.trials.values()}, following)


def _point(plan: Plan, old: PastTrial) -> dict[str, Any] | None:
    """What a trial of the journal's is in the plan's space: a setting it was not given has the experiment's own value.

    None where the space does not have it, or not any more: then it stays a row of the results, as with a list of trials.
    """
    if plan.rules.holds(old.overrides):
        return old.overrides if _lies_in(plan, old.overrides) else None
    try:
        if old.status == "infeasible" and is_own(plan.sweep.search.algorithm) and not plan.rules.misfits(old.overrides):
            # One's own searcher is shown what broke a constraint; the others draw anew.
            return old.overrides if _lies_in(plan, old.overrides) else None
        trained = plan.experiment(old.overrides)
        point = plan.rules.choose(lambda key: as_listed(trained.get(key)))
        return point if _lies_in(plan, point) and plan.rules.holds(point) and plan.key(point) == old.key else None
    except ConfigError:
        return None


def _lies_in(plan: Plan, point: dict[str, Any]) -> bool:
    """Whether the plan's domains hold the values of a point."""
    return all(is_in(plan.sweep.space[key], value, partial(plan.rules.read, key)) for key, value in point.items())


def _add_again(plan: Plan, overrides: dict[str, Any]) -> None:
    """Plan a trial of the journal's; what cannot be trained takes no place of one that can."""
    try:
        plan.add(overrides)
    except ConfigError as error:
        if plan.add_infeasible(overrides, str(error)) is not None:
            plan.make_room()


@dataclass(frozen=True)
class Work:
    """What of a plan is done and what is to run, each with what the journal knows of it."""

    done: list[PlannedTrial]
    to_run: list[PlannedTrial]


def work(plan: Plan, past: Past | None, retry_failed: bool) -> Work:
    """Sort a plan's trials: an end stands, unless there are epochs to add, or a failed trial is to be tried again.

    What cannot be trained is done as it is.
    """
    epochs = plan.sweep.experiment.train.epochs
    found = Work([], [])
    for trial in plan.trials:
        known = past.trials.get(trial.key) if past else None
        is_done = known is not None and stands(known, epochs, retry_failed)
        (found.done if is_done or trial.infeasible else found.to_run).append(trial)
    return found


def is_over(plan: Plan, past: Past, found: Work) -> bool:
    """Whether a sweep has nothing left to train, to think of, or to write down: also what cannot be trained has its end."""
    is_told = all(trial.key in past.trials and past.trials[trial.key].status for trial in plan.trials)
    return not found.to_run and len(plan.trials) >= plan.num_planned and is_told and not past.untold


def stands(known: PastTrial, epochs: int, retry_failed: bool = False) -> bool:
    """Whether a trial's end stands: it is one, there is no epoch to add, and it is no failure that is to be tried again."""
    return known.status in FINAL and not (
        (known.status == "completed" and known.last_epoch < epochs) or (known.status == "failed" and retry_failed)
    )


def found(
    sweep: Sweep, storage: Path, fresh: bool, retry_failed: bool, say: Callable[[str], None]
) -> tuple[Plan, Past | None, Work]:
    """A sweep's plan, what its directory knows of it (None: start a new one), and what is left to do.

    Args:
        sweep: its settings.
        storage: the directory that sweeps are kept in.
        fresh: whatever is there, start a new one.
        retry_failed: failed trials run again.
        say: takes lines for people.

    Raises:
        ConfigError, DataError: the sweep cannot work.
        StoreError: the journal that is there is damaged.
    """
    plan = make_plan(sweep)
    past = None if fresh else _past(storage, plan, say)
    if past is not None:
        past.retry_failed = retry_failed
        adopt(plan, past)
        add_seeds(plan)
        _play_contest(plan, past)
    return plan, past, work(plan, past, retry_failed)


def _play_contest(plan: Plan, past: Past) -> None:
    objective, epochs = plan.sweep.objective, plan.sweep.experiment.train.epochs
    better = min if objective.mode == "min" else max

    def outcome(trial: PlannedTrial) -> tuple[str, float | None, dict[str, Any]] | None:
        known = past.trials.get(trial.key)
        if known is None or not stands(known, epochs, past.retry_failed):
            return None
        values = [row[objective.metric] for row in known.rows.values() if row.get(objective.metric) is not None]
        return known.status, better(values) if values else None, known.reason

    contest = go_on(plan, outcome)
    past.untold = contest.untold(past.decisions) if contest else []


def _past(storage: Path, plan: Plan, say: Callable[[str], None]) -> Past | None:
    """The newest sweep of this name, images and settings; None where there is none."""
    whys: list[str] = []
    for directory in directories_of(storage, plan.sweep.name):
        past = read_past(directory)
        why = why_other(past, plan) if past else ""
        if past is not None and not why:
            return past
        whys += [f"{directory.path.name}/ is another sweep: {why}; starting a new one beside it"] if why else []
    if whys:
        say(whys[0])
    return None
