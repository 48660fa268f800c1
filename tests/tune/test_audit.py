"""Audited trials run on and change nothing for the others; after a restart they are the same ones. No Ray cluster."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.store import results
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.tune.audit import is_drawn
from raysweep.tune.plan import make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import read_past
from raysweep.tune.schedulers import RecordingScheduler

EPOCHS = 8
SCHEDULERS: list[dict[str, Any]] = [
    {"name": "asha", "reduction_factor": 2},
    {"name": "asha"},
    {"name": "median", "min_samples": 2},
]


def sweep(audit: float, scheduler: dict[str, Any], seed: int = 0) -> Sweep:
    return Sweep.from_dict(
        {
            "name": "s",
            "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": EPOCHS}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2, 1e-1]}},
            "search": {"seed": seed},
            "scheduler": {**scheduler, "audit": audit},
        }
    )


class Live:
    """Ray Tune's trial, as far as schedulers look."""

    status = "RUNNING"

    def __init__(self, key: str) -> None:
        self.trial_id, self.config = f"run-{key}", {"key": key}


class Told:
    """A recorder that keeps decisions and ends, by the trial's key."""

    def __init__(self) -> None:
        self.decisions: dict[str, dict[str, Any]] = {}
        self.ends: dict[str, str] = {}

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        raise AssertionError(event)

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        assert trial_id not in self.decisions, "decided twice"
        self.decisions[trial_id.removeprefix("run-")] = decision

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        self.ends[trial_id.removeprefix("run-")] = status


class Played:
    """Trials that report losses to a scheduler, which is told of their ends as Ray Tune does it."""

    def __init__(self, settings: Sweep) -> None:
        self.told = Told()
        self.scheduler = RecordingScheduler(settings, self.told)
        self.live: dict[str, Live] = {}

    def report(self, key: str, epoch: int, loss: float) -> str:
        if key not in self.live:
            self.live[key] = Live(key)
            self.scheduler.on_trial_add(None, self.live[key])
        row = {"epoch": epoch, "val_loss": loss}
        action = self.scheduler.on_trial_result(None, self.live[key], {**row, "row": json.dumps(row)})
        if action == "STOP" or epoch == EPOCHS:
            self.scheduler.on_trial_complete(None, self.live[key], {})
        return action


def test_a_share_is_drawn_by_key_and_seed() -> None:
    keys = [f"{n:012x}" for n in range(2000)]
    drawn = [key for key in keys if is_drawn(key, 0, 0.1)]
    assert 150 < len(drawn) < 250
    assert set(drawn) <= {key for key in keys if is_drawn(key, 0, 0.2)}, "a larger share holds the smaller one"
    assert drawn != [key for key in keys if is_drawn(key, 1, 0.1)]
    assert all(is_drawn(key, 0, 1.0) for key in keys)
    assert not any(is_drawn(key, 0, 0.0) for key in keys)


@hypothesis_settings(max_examples=60)
@given(seed=st.integers(0, 10**6), scheduler=st.sampled_from(SCHEDULERS), share=st.sampled_from([0.3, 1.0]))
def test_an_audit_changes_no_other_trials_fate(seed: int, scheduler: dict[str, Any], share: float) -> None:
    draw = random.Random(seed)
    waiting = {f"t{n}": [(epoch, draw.random()) for epoch in range(1, EPOCHS + 1)] for n in range(10)}
    without, audited = Played(sweep(0, scheduler, seed)), Played(sweep(share, scheduler, seed))
    run_on: dict[str, list[tuple[int, float]]] = {}
    while waiting or run_on:
        if run_on and (not waiting or draw.random() < 0.4):  # audited trials report in between the others
            key = draw.choice(list(run_on))
            assert audited.report(key, *run_on[key].pop(0)) == "CONTINUE"
            if not run_on[key]:
                del run_on[key]
            continue
        key = draw.choice(list(waiting)[:3])
        epoch, loss = waiting[key].pop(0)
        action = without.report(key, epoch, loss)
        on = audited.report(key, epoch, loss)
        if action == "STOP":
            rest = waiting.pop(key)
            assert on == ("CONTINUE" if is_drawn(key, seed, share) else "STOP")
            if on == "CONTINUE":
                run_on[key] = rest
        elif not waiting[key]:
            del waiting[key]
    before, after = without.told.decisions, audited.told.decisions
    assert {k: {**d, "action": ""} for k, d in before.items()} == {k: {**d, "action": ""} for k, d in after.items()}
    assert {k for k, d in after.items() if d["action"] == "audit"} == {k for k in before if is_drawn(k, seed, share)}


@hypothesis_settings(max_examples=60)
@given(seed=st.integers(0, 10**6), cut=st.floats(0, 1), scheduler=st.sampled_from(SCHEDULERS))
def test_a_restart_at_any_moment_changes_no_decision_of_an_audited_sweep(
    seed: int, cut: float, scheduler: dict[str, Any]
) -> None:
    draw = random.Random(seed)
    waiting = {f"t{n}": iter([(epoch, draw.random()) for epoch in range(1, EPOCHS + 1)]) for n in range(8)}
    whole, events = Played(sweep(0.5, scheduler)), list[tuple[str, int, float, str]]()
    while waiting:
        key = draw.choice(list(waiting)[:3])
        epoch, loss = next(waiting[key])
        events.append((key, epoch, loss, whole.report(key, epoch, loss)))
        if events[-1][3] == "STOP" or epoch == EPOCHS:
            del waiting[key]
    place = int(cut * len(events))
    told, statuses = list[tuple[str, dict[str, Any] | None]](), dict[str, str]()
    for key, epoch, loss, action in events[:place]:
        told.append((key, {"epoch": epoch, "val_loss": loss}))
        statuses.setdefault(key, "")
        if action == "STOP" or epoch == EPOCHS:
            statuses[key] = "stopped" if action == "STOP" else "completed"
            told.append((key, None))
    decided = {k: d for k, d in whole.told.decisions.items() if any(e[:2] == (k, d["epoch"]) for e in events[:place])}
    again = Played(sweep(0.5, scheduler))
    again.scheduler.replay(told, statuses, audited={k: d["epoch"] for k, d in decided.items() if d["action"] == "audit"})
    assert again.scheduler.found_audits == {}, "the journal has them all"
    for key, epoch, loss, action in events[place:]:
        assert again.report(key, epoch, loss) == action
    assert {**decided, **again.told.decisions} == whole.told.decisions


def test_an_audit_that_the_journal_does_not_have_yet_is_found_again() -> None:
    told: list[tuple[str, dict[str, Any] | None]] = [("a", {"epoch": 1, "val_loss": 0.1}), ("b", {"epoch": 1, "val_loss": 0.9})]
    played = Played(sweep(1.0, SCHEDULERS[0]))
    assert played.scheduler.replay(told, {"a": "", "b": ""}) == {}
    assert played.scheduler.found_audits["b"]["cutoff"] == pytest.approx(0.1)
    assert played.report("b", 2, 0.8) == "CONTINUE"


def test_what_was_decided_stands_when_the_share_is_changed() -> None:
    told: list[tuple[str, dict[str, Any] | None]] = [("a", {"epoch": 1, "val_loss": 0.1}), ("b", {"epoch": 1, "val_loss": 0.9})]
    fewer = Played(sweep(0.0, SCHEDULERS[0]))
    assert fewer.scheduler.replay(told, {"a": "", "b": ""}, audited={"b": 1}) == {}, "an audited trial goes on"
    assert fewer.report("b", 2, 0.8) == "CONTINUE"
    more = Played(sweep(1.0, SCHEDULERS[0]))
    more.scheduler.replay([*told, ("b", None)], {"a": "", "b": "stopped"})
    assert more.scheduler.found_audits == {}, "a stopped one does not"


def test_an_audit_needs_a_scheduler_that_stops() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.audit 0\.1 .*scheduler\.name none.*asha, hyperband, median"):
        sweep(0.1, {"name": "none"})


def test_the_journal_tells_the_next_start_who_is_audited(tmp_path: Path) -> None:
    settings = sweep(1.0, SCHEDULERS[0])
    plan, directory = make_plan(settings), SweepDirectory.create(tmp_path, "s")
    with closing(JournalWriter(directory.journal)) as journal:
        content = settings.model_dump(mode="json", exclude_unset=True)
        journal.event("start", sweep=content, experiment={}, data=plan.prepared.facts)
        recorder = SweepRecorder(plan, journal)
        scheduler = RecordingScheduler(settings, recorder)
        losses = {0: [0.5, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], 1: [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]}
        for number, values in losses.items():
            live = Live(plan.trials[number].key)
            scheduler.on_trial_add(None, live)
            recorder.assigned(live.trial_id, plan.trials[number])
            recorder.started(live.trial_id)
            for epoch, loss in enumerate(values, start=1):
                row = {"epoch": epoch, "val_loss": loss, "seconds": 2.0, "world_size": 3}
                scheduler.on_trial_result(None, live, {**row, "row": json.dumps(row)})
            scheduler.on_trial_result(None, live, {"end": json.dumps({"status": "completed", "reason": {}})})
    past = read_past(directory)
    assert past is not None
    assert past.audited == {plan.trials[1].key: 1}
    (audited,) = results.load(directory.path).audited.to_dict("records")
    assert (audited["trial"], audited["epoch"], audited["status"], audited["val_loss"]) == (1, 1, "completed", 0.2)
    assert (audited["epochs_spent"], audited["seconds_spent"]) == (7, 7 * 2.0 * 3)
    assert audited["beats_best"]
