"""Decisions and their reasons, fed by hand: no cluster, no training."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from raysweep.config import Sweep
from raysweep.tune.schedulers import RecordingScheduler


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        self.told.append(("row", trial_id, row["epoch"]))
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        self.told.append(("happened", trial_id, event))

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        self.told.append(("decision", trial_id, decision))

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        self.told.append(("ended", trial_id, status, reason))


class Trial:
    """What a scheduler looks at."""

    status = "RUNNING"

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id


class Fed:
    """A scheduler whose trials report what a test says."""

    def __init__(self, scheduler: dict[str, Any], epochs: int = 9, metric: str = "val_loss") -> None:
        content = {
            "experiment": {"train": {"epochs": epochs}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2]}},
            "scheduler": scheduler,
            "objective": {"metric": metric},
        }
        self.recorder = Recorder()
        self.scheduler = RecordingScheduler(Sweep.from_dict(content), self.recorder)
        self.metric = metric
        self.trials: dict[str, Any] = {}

    def report(self, name: str, epoch: int, value: float | None) -> str:
        if name not in self.trials:
            self.trials[name] = Trial(name)
            self.scheduler.on_trial_add(None, self.trials[name])
        row = {"epoch": epoch, self.metric: value}
        return self.scheduler.on_trial_result(None, self.trials[name], {"row": json.dumps(row), **row})


def test_asha_decides_on_the_epoch_and_says_rung_value_and_cutoff() -> None:
    fed = Fed({"name": "asha", "reduction_factor": 2, "grace_period": 2})
    assert fed.report("a", 1, 0.9) == "CONTINUE", "the grace period"
    assert fed.report("a", 2, 0.1) == "CONTINUE"
    assert fed.report("b", 2, 0.4) == "STOP"
    reason = {"rule": "asha", "epoch": 2, "metric": "val_loss", "value": 0.4, "rung": 2, "cutoff": 0.1}
    assert fed.recorder.told[-2:] == [("decision", "b", {"action": "stop", **reason}), ("ended", "b", "stopped", reason)]


def test_what_is_decided_by_is_what_the_journal_keeps() -> None:
    fed = Fed({"name": "asha", "reduction_factor": 2}, metric="psnr")
    fed.report("a", 1, 30.12345678)
    fed.report("b", 1, 20.12345678)
    _, _, decision = fed.recorder.told[-2]
    assert (decision["value"], decision["cutoff"]) == (20.12346, 30.12346), "what a restart will read and compare again"


def test_asha_stops_low_psnr() -> None:
    fed = Fed({"name": "asha", "reduction_factor": 2}, metric="psnr")
    fed.report("a", 1, 30.0)
    assert fed.report("b", 1, 20.0) == "STOP"
    assert fed.recorder.told[-1][3]["cutoff"] == 30.0


def test_the_row_is_told_before_the_decision_that_follows_from_it() -> None:
    fed = Fed({"name": "asha", "reduction_factor": 2})
    fed.report("a", 1, 0.1)
    fed.report("b", 1, 0.9)
    assert [told[0] for told in fed.recorder.told] == ["row", "row", "decision", "ended"]


def test_a_trial_that_is_not_finite_is_the_worst_and_ends_by_itself() -> None:
    fed = Fed({"name": "asha", "reduction_factor": 2})
    assert fed.report("a", 1, None) == "CONTINUE", "its own end says more than a rung"
    assert fed.report("b", 1, 0.5) == "CONTINUE", "anything finite is better"
    assert fed.report("c", 1, 0.4) == "CONTINUE"
    cutoffs = fed.scheduler._inner._brackets[0]._rungs[-1][1]
    assert all(math.isfinite(value) for value in cutoffs.values())


def test_the_last_epoch_is_an_end_of_its_own() -> None:
    fed = Fed({"name": "asha", "reduction_factor": 2}, epochs=2)
    assert fed.report("a", 2, 0.1) == "CONTINUE"
    assert fed.report("b", 2, 0.9) == "CONTINUE"


def test_median_stops_the_worse_half_after_its_samples_and_never_pauses() -> None:
    fed = Fed({"name": "median", "min_samples": 2})
    for name, value in (("a", 0.1), ("b", 0.2)):
        assert fed.report(name, 1, value) == "CONTINUE"
    assert fed.report("c", 1, 0.9) == "STOP"
    reason = fed.recorder.told[-1][3]
    assert reason["rule"] == "median"
    assert reason["cutoff"] == pytest.approx(0.15)
    assert reason["value"] == 0.9


def test_none_stops_nothing() -> None:
    fed = Fed({"name": "none"})
    assert {fed.report(str(n), 1, float(n)) for n in range(10)} == {TrialScheduler.CONTINUE}


def test_a_trials_own_end_is_passed_on() -> None:
    fed = Fed({"name": "asha"})
    fed.report("a", 1, 0.5)
    end = {"end": json.dumps({"status": "diverged", "reason": {"step": 3}})}
    assert fed.scheduler.on_trial_result(None, fed.trials["a"], end) == "STOP"
    assert fed.recorder.told[-1] == ("ended", "a", "diverged", {"step": 3})


def test_what_happened_to_the_workers_is_told_before_the_row() -> None:
    fed = Fed({"name": "none"})
    events = json.dumps([{"event": "resize", "from": 1, "to": 2}])
    trial = Trial("a")
    fed.scheduler.on_trial_add(None, trial)
    result = {"epoch": 1, "row": json.dumps({"epoch": 1, "val_loss": 0.5}), "val_loss": 0.5, "events": events}
    fed.scheduler.on_trial_result(None, trial, result)
    fed.scheduler.on_trial_result(None, trial, {"end": json.dumps({"status": "completed", "reason": {}}), "events": events})
    assert [told[0] for told in fed.recorder.told] == ["happened", "row", "happened", "ended"]
    assert fed.recorder.told[0] == ("happened", "a", {"event": "resize", "from": 1, "to": 2})


def test_a_trial_that_fails_before_its_first_epoch_is_none_of_the_medians() -> None:
    fed = Fed({"name": "median", "min_samples": 1})
    broken = Trial("broken")
    fed.scheduler.on_trial_add(None, broken)
    fed.scheduler.on_trial_result(None, broken, {"end": json.dumps({"status": "failed", "reason": {}})})
    fed.scheduler.on_trial_complete(None, broken, {})
    assert fed.report("a", 1, 0.5) == "CONTINUE"
