"""raysweep's median rule beside Ray Tune's: the same decisions and reasons at every row, at a fraction of the work."""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from ray.tune.schedulers import MedianStoppingRule

from raysweep.config import Sweep
from raysweep.tune import median
from raysweep.tune.median import MedianRule
from raysweep.tune.schedulers import RecordingScheduler

EPOCHS = 12


class Live:
    """Ray Tune's trial, as far as schedulers look."""

    status = "RUNNING"

    def __init__(self, key: str) -> None:
        self.trial_id, self.config = key, {"key": key}


class RaysRule(MedianRule):
    """Ray Tune's own rule in the place of raysweep's, and what it compares, worked out from what it keeps."""

    def __init__(self, metric: str, mode: str, grace_period: int, min_samples: int) -> None:
        super().__init__(metric, mode, grace_period, min_samples)
        common: dict[str, Any] = {"time_attr": "epoch", "metric": metric, "mode": mode, "grace_period": grace_period}
        self.rays = MedianStoppingRule(**common, min_samples_required=min_samples, min_time_slice=math.inf)
        self.trials: dict[str, Live] = {}

    def trial(self, key: str) -> Live:
        return self.trials.setdefault(key, Live(key))

    def ask(self, key: str, epoch: int, value: float) -> dict[str, Any]:
        others = [other for other in self.rays._trials_beyond_time(epoch) if other is not self.trial(key)]
        means = [mean for mean in (self.rays._running_mean(other, epoch) for other in others) if math.isfinite(mean)]
        best = self._better([value, *(r[self._metric] for r in self.rays._results.get(self.trial(key), []))])
        return {"value": float(best), "cutoff": statistics.median(means) if means else None}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(self.rays.on_trial_result(None, self.trial(trial.trial_id), result))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self.rays.on_trial_complete(None, self.trial(trial.trial_id), result)


class Told:
    """A recorder that keeps decisions and ends."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        raise AssertionError(event)

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        self.told.append((trial_id, decision))

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        self.told.append((trial_id, status, reason))


class Fed:
    """A sweep's scheduler, around raysweep's rule or Ray Tune's."""

    def __init__(self, settings: Sweep, rule: type[MedianRule]) -> None:
        self.told, self.settings = Told(), settings
        self.scheduler = RecordingScheduler(settings, self.told)
        of, objective = settings.scheduler, settings.objective
        self.scheduler._inner = rule(objective.metric, objective.mode, of.grace_period, of.min_samples)
        self.live: dict[str, Live] = {}

    def report(self, key: str, epoch: int, value: float | None) -> str:
        if key not in self.live:
            self.live[key] = Live(key)
            self.scheduler.on_trial_add(None, self.live[key])
        row = json.dumps({"epoch": epoch, self.settings.objective.metric: value})
        return self.scheduler.on_trial_result(None, self.live[key], {"row": row})

    def ends(self, key: str) -> None:
        if key not in self.live:
            self.live[key] = Live(key)
            self.scheduler.on_trial_add(None, self.live[key])
        self.scheduler.on_trial_complete(None, self.live[key], {})


def sweep(metric: str, audit: float, grace_period: int, min_samples: int) -> Sweep:
    return Sweep.from_dict(
        {
            "experiment": {"train": {"epochs": EPOCHS}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2]}},
            "objective": {"metric": metric},
            "scheduler": {"name": "median", "audit": audit, "grace_period": grace_period, "min_samples": min_samples},
        }
    )


def value_of(draw: random.Random) -> float | None:
    """Often one that others told too, so that trials are equal or nearly so; now and then none that is finite."""
    if draw.random() < 0.03:
        return None
    return draw.choice([0.1, 0.2, 0.3, 0.7]) if draw.random() < 0.6 else draw.random()


@hypothesis_settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    metric=st.sampled_from(["val_loss", "psnr"]),
    audit=st.sampled_from([0.0, 0.5]),
    grace_period=st.integers(1, 4),
    min_samples=st.integers(1, 4),
    steady=st.booleans(),
)
def test_every_decision_and_reason_is_rays(
    seed: int, metric: str, audit: float, grace_period: int, min_samples: int, steady: bool
) -> None:
    draw, settings = random.Random(seed), sweep(metric, audit, grace_period, min_samples)
    ours, rays = Fed(settings, MedianRule), Fed(settings, RaysRule)
    waiting = {f"t{n}": iter(range(1, draw.randint(0, EPOCHS) + 1)) for n in range(14)}
    levels = {key: value_of(draw) for key in waiting}
    told: list[tuple[str, dict[str, Any] | None]] = []
    statuses = dict.fromkeys(waiting, "")
    for _ in range(draw.randint(0, 200)):
        if not waiting:
            break
        key = draw.choice(list(waiting)[:5])
        epoch = next(waiting[key], None)
        if epoch is None:  # its end: completed, or it failed on the way
            ours.ends(key)
            rays.ends(key)
            statuses[key] = "failed"
            del waiting[key]
            told.append((key, None))
            continue
        value = levels[key] if steady else value_of(draw)
        action = ours.report(key, epoch, value)
        assert action == rays.report(key, epoch, value), (key, epoch)
        told.append((key, {"epoch": epoch, metric: value}))
        if value is None:
            waiting[key] = iter(())  # it ends by itself
        if action == "STOP":
            ours.ends(key)
            rays.ends(key)
            statuses[key] = "stopped"
            del waiting[key]
            told.append((key, None))
    assert repr(plain(ours.told.told)) == repr(plain(rays.told.told))
    # After a restart at any moment.
    place = draw.randint(0, len(told))
    audited = {
        key: decision["epoch"]
        for key, decision, *_ in ours.told.told
        if isinstance(decision, dict) and decision["action"] == "audit"
    }
    ours, rays = Fed(settings, MedianRule), Fed(settings, RaysRule)
    cut = {key: status if (key, None) in told[:place] else "" for key, status in statuses.items()}
    known = {key: epoch for key, epoch in audited.items() if any(k == key and r and r["epoch"] >= epoch for k, r in told[:place])}
    stops = [fed.scheduler.replay(told[:place], cut, audited=known) for fed in (ours, rays)]
    assert repr(plain(stops[0])) == repr(plain(stops[1]))
    for key, row in told[place:]:
        if key in stops[0]:
            continue
        if row is None:
            ours.ends(key)
            rays.ends(key)
        else:
            assert ours.report(key, row["epoch"], row[metric]) == rays.report(key, row["epoch"], row[metric])
    assert repr(plain(ours.told.told)) == repr(plain(rays.told.told))


def plain(value: Any) -> Any:
    """As the journal has it: Ray Tune's numbers are numpy's."""
    return json.loads(json.dumps(value, default=float))


@hypothesis_settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(1, 6),
            st.sampled_from([0.1, 0.2, 0.3, 0.7, 1e30, math.nan, math.inf, -math.inf]) | st.floats(-2, 2),
            st.booleans(),
        ),
        max_size=60,
    ),
    mode=st.sampled_from(["min", "max"]),
    grace_period=st.integers(1, 3),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Ray's mean of infinities
def test_epochs_told_again_or_left_out_and_values_that_are_not_finite_count_as_with_ray(
    rows: list[tuple[int, int, float, bool]], mode: str, grace_period: int
) -> None:
    ours, rays = (rule("loss", mode, grace_period, 2) for rule in (MedianRule, RaysRule))
    stopped: set[str] = set()
    for number, epoch, value, ends in rows:
        trial, result = Live(f"t{number}"), {"epoch": epoch, "loss": value}
        if trial.trial_id in stopped:
            continue
        cutoffs = [rule.ask(trial.trial_id, epoch, value)["cutoff"] for rule in (ours, rays)]
        assert repr(plain(cutoffs[0])) == repr(plain(cutoffs[1]))
        actions = [rule.on_trial_result(None, trial, result) for rule in (ours, rays)]
        assert actions[0] == actions[1]
        if actions[0] == "STOP":
            stopped.add(trial.trial_id)
        if ends or trial.trial_id in stopped:
            ours.on_trial_complete(None, trial, result)
            rays.on_trial_complete(None, trial, result)


def test_a_row_costs_one_mean_however_many_trials_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    means: list[int] = []
    own = median._Curve.mean
    monkeypatch.setattr(median._Curve, "mean", lambda curve, epoch: (means.append(epoch), own(curve, epoch))[1])
    fed = Fed(sweep("val_loss", 0.0, 1, 3), MedianRule)
    for number in range(60):
        for epoch in range(1, EPOCHS + 1):
            assert fed.report(f"t{number}", epoch, 1 - number / 100) == "CONTINUE", "each is better than those before it"
    assert len(means) == 60 * EPOCHS


def test_a_sweep_that_trained_without_the_rule_goes_on_with_it() -> None:
    """A trial whose older epochs the rule would have stopped is judged by its newest one."""
    fed = Fed(sweep("val_loss", 0.0, 1, 2), MedianRule)
    told: list[tuple[str, dict[str, Any] | None]] = []
    for key, values in (("a", [0.3] * 4), ("b", [0.4] * 4), ("late", [0.9, 0.8, 0.1]), ("bad", [0.9, 0.9, 0.9])):
        told += [(key, {"epoch": epoch, "val_loss": value}) for epoch, value in enumerate(values, start=1)]
    stops = fed.scheduler.replay(told, dict.fromkeys(("a", "b", "late", "bad"), ""))
    assert list(stops) == ["bad"]
    assert stops["bad"]["epoch"] == 3
