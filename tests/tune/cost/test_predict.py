"""Predictions: hand-worked sums without early stopping, and intervals that hold what simulated sweeps take with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from raysweep.config import Budget, Sweep
from raysweep.tune.cost import predict as predicting
from raysweep.tune.cost.predict import END_S, FIRST_TRIAL_S, START_S, Rehearse, Rule, predict
from raysweep.tune.cost.rehearse import Known, Rehearsal
from raysweep.tune.cost.simulate import Load, play

BEFORE = START_S + FIRST_TRIAL_S


@pytest.fixture(autouse=True)
def few_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many plays on any machine."""
    monkeypatch.setattr(predicting, "_PLAYING_S", 0.0)
    monkeypatch.setattr(predicting, "_LEAST_PLAYS", 40)


RULES: list[dict[str, Any]] = [{"name": "asha"}, {"name": "asha", "grace_period": 2, "reduction_factor": 2}, {"name": "median"}]


def sweep(scheduler: dict[str, Any], epochs: int = 9, metric: str = "val_loss") -> Sweep:
    return Sweep.from_dict(
        {
            "experiment": {"train": {"epochs": epochs}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2]}},
            "scheduler": scheduler,
            "objective": {"metric": metric},
        }
    )


def rehearsing(settings: Sweep, keys: Sequence[str], known: Known | None = None) -> Rehearse:
    def rehearse(chosen: Sequence[int], crossing: bool, rng: np.random.Generator) -> Rule:
        return Rehearsal(settings, [keys[i] for i in chosen], known or Known(), crossing, rng).stops

    return rehearse


def test_without_early_stopping_it_is_the_sum_and_the_measurements_spread() -> None:
    loads = [Load(2.0, 5, before_s=0.5)] * 4
    prediction = predict(loads, 2, spread=(0.9, 1.2))
    wall = prediction.wall_s
    assert wall.expected == pytest.approx(BEFORE + 2 * 10.5 + END_S)
    assert wall.low == pytest.approx(BEFORE + 2 * 9.5 + END_S)
    assert wall.high == pytest.approx(BEFORE + 2 * 12.5 + END_S)
    hours = prediction.device_s.divided(3600)
    assert (hours.low, hours.expected, hours.high) == pytest.approx((36 / 3600, 40 / 3600, 48 / 3600))


def test_nothing_left_costs_nothing() -> None:
    assert predict([], 2).event() == {"wall_s": [0, 0, 0], "device_hours": [0, 0, 0]}


def test_the_budget_ends_it() -> None:
    loads = [Load(1.0, 100)] * 10
    assert predict(loads, 2, budget=Budget(wall_time_s=60)).wall_s.expected == pytest.approx(60, abs=1.5)
    used = predict(loads, 2, budget=Budget(device_hours=100 / 3600), used_device_s=40.0)
    assert used.device_s.expected == pytest.approx(60)


def test_more_epochs_and_fewer_places_take_longer() -> None:
    def wall(epochs: int, places: int, scheduler: dict[str, Any] | None = None) -> float:
        keys = [str(n) for n in range(16)]
        rehearse = rehearsing(sweep(scheduler, epochs), keys) if scheduler else None
        return predict([Load(1.0, epochs)] * 16, places, rehearse=rehearse).wall_s.expected

    for scheduler in (None, {"name": "asha"}):
        assert wall(8, 2, scheduler) < wall(16, 2, scheduler)
        assert wall(8, 4, scheduler) < wall(8, 2, scheduler) < wall(8, 1, scheduler)


@pytest.mark.parametrize("scheduler", RULES, ids=lambda rule: "-".join(str(v) for v in rule.values()))
def test_the_interval_holds_what_simulated_sweeps_take(scheduler: dict[str, Any]) -> None:
    """The truth has curves of another kind: exponential, each towards a floor of its own, with noise from epoch to epoch."""
    rng = np.random.default_rng(7)
    settings, keys = sweep(scheduler, epochs=15), [str(n) for n in range(16)]
    loads = [Load(float(s), 15, before_s=0.2) for s in rng.uniform(0.5, 2.0, 16)]
    prediction = predict(loads, 2, rehearse=rehearsing(settings, keys))
    held, ratios = 0, []
    for _ in range(20):
        floors, rates, noise = rng.uniform(0.1, 1, 16), rng.uniform(0.1, 0.8, 16), rng.normal(0, 0.03, (16, 16))
        curves = floors[:, None] * (1 + np.exp(-np.outer(rates, np.arange(16))) + noise)
        truth = Rehearsal(settings, keys, Known(), False, rng)
        truth.loss = lambda trial, epoch, curves=curves: float(curves[trial, epoch])  # type: ignore[method-assign,misc]
        wall = play(loads, [BEFORE] * 2, truth.stops).wall_s + END_S
        held += prediction.wall_s.low <= wall <= prediction.wall_s.high
        ratios.append(prediction.wall_s.expected / wall)
    assert held >= 14, f"{held} of 20; 18 or 19 are expected"
    assert 0.6 < float(np.median(ratios)) < 1.6
    whole = predict(loads, 2)
    assert prediction.wall_s.high == whole.wall_s.high, "the upper end: no trial is stopped"
    assert prediction.wall_s.expected < 0.9 * whole.wall_s.expected


def test_what_the_journal_knows_decides_too() -> None:
    """A trial far worse than what was seen is stopped at its next rung, one far better never."""
    settings = sweep({"name": "asha", "reduction_factor": 2}, epochs=9)
    told = [(str(n), {"epoch": e, "val_loss": 1.0 + n / 10}) for n in range(8) for e in (1, 2, 3, 4)]
    told += [("bad", {"epoch": 1, "val_loss": 1.0}), ("bad", {"epoch": 2, "val_loss": 99.0})]
    told += [("good", {"epoch": 1, "val_loss": 1e-3})]
    statuses = {**{str(n): "completed" for n in range(8)}, "bad": "", "good": ""}
    rehearsal = Rehearsal(settings, ["bad", "good"], Known(told, statuses), False, np.random.default_rng(0))
    assert rehearsal.stops(0, 4)
    assert not any(rehearsal.stops(1, epoch) for epoch in range(2, 9))


def test_psnr_goes_by_the_same_losses() -> None:
    """The trial that the rule keeps at each rung is the one with the lowest loss, which has the highest psnr."""
    keys = [str(n) for n in range(6)]
    rehearsal = Rehearsal(sweep({"name": "asha"}, metric="psnr"), keys, Known(), False, np.random.default_rng(3))
    by_loss = sorted(range(6), key=lambda trial: rehearsal.loss(trial, 1))
    assert not any(rehearsal.stops(trial, 1) for trial in reversed(by_loss)), "each is the best so far"
    again = Rehearsal(sweep({"name": "asha"}, metric="psnr"), keys, Known(), False, np.random.default_rng(3))
    assert [again.stops(trial, 1) for trial in by_loss] == [False, *[True] * 5]


def test_long_lists_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the trials count for all. ASHA stops a little less at the start of a short list, so it comes out a little high."""
    keys = [str(n) for n in range(100)]
    loads = [Load(1.0 + n / 100, 9) for n in range(100)]
    rehearse = rehearsing(sweep({"name": "asha"}), keys)
    whole = predict(loads, 4, rehearse=rehearse)
    monkeypatch.setattr(predicting, "_MOST_TRIALS", 50)
    drawn = predict(loads, 4, rehearse=rehearse)
    assert drawn.wall_s.expected == pytest.approx(whole.wall_s.expected, rel=0.25)
    assert drawn.device_s.expected == pytest.approx(whole.device_s.expected, rel=0.25)
    assert drawn.wall_s.high == whole.wall_s.high
