"""Hyperband's brackets: in the right proportions, the same after a restart, and in each decision. No cluster, no training."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from raysweep.config import Sweep
from raysweep.store.reasons import describe_end
from raysweep.tune.hyperband import Hyperband, bracket_of, num_brackets, shares
from raysweep.tune.schedulers import RecordingScheduler

EPOCHS = 9  # with a reduction factor of 3: brackets with the rungs 1 and 3, with 3 alone, and without one


class Told:
    """A recorder that keeps decisions."""

    def __init__(self) -> None:
        self.decisions: list[dict[str, Any]] = []

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        pass

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        self.decisions.append({"trial": trial_id, **decision})

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        pass


class Live:
    """Ray Tune's trial, as far as schedulers look; its id differs from run to run."""

    status = "RUNNING"

    def __init__(self, number: int, run: int) -> None:
        self.trial_id, self.config = f"run{run}-{number}", {"key": f"key{number}", "number": number}


class Played:
    """Trials that report losses to the scheduler."""

    def __init__(self, run: int = 0, seed: int = 0, **scheduler: Any) -> None:
        content = {
            "experiment": {"train": {"epochs": EPOCHS}},
            "space": {"optim.lr": {"grid": [1e-3, 1e-2]}},
            "search": {"seed": seed},
            "scheduler": {"name": "hyperband", **scheduler},
        }
        self.told, self.run, self.live = Told(), run, dict[int, Live]()
        self.scheduler = RecordingScheduler(Sweep.from_dict(content), self.told)

    @property
    def inner(self) -> Hyperband:
        inner = self.scheduler._inner
        assert isinstance(inner, Hyperband)
        return inner

    def report(self, number: int, epoch: int, loss: float) -> str:
        if number not in self.live:
            self.live[number] = Live(number, self.run)
            self.scheduler.on_trial_add(None, self.live[number])
        row = {"row": json.dumps({"epoch": epoch, "val_loss": loss}), "epoch": epoch, "val_loss": loss}
        return self.scheduler.on_trial_result(None, self.live[number], row)


def numbers_in(bracket: int, seed: int = 0) -> list[int]:
    return [number for number in range(60) if bracket_of(number, seed, shares(3, 3)) == bracket]


@pytest.mark.parametrize(
    ("grace", "factor", "epochs", "brackets"),
    [(1, 3, 9, 3), (1, 3, 8, 3), (1, 3, 3, 2), (2, 2, 16, 4), (4, 4, 5, 2), (1, 1.5, 2, 3)],
)
def test_there_is_a_bracket_for_each_rung_below_the_last_epoch_and_one_that_stops_nothing(
    grace: int, factor: float, epochs: int, brackets: int
) -> None:
    assert num_brackets(grace, factor, epochs) == brackets
    options = {"time_attr": "epoch", "metric": "val_loss", "mode": "min"}
    scheduler = Hyperband(0, **options, max_t=epochs, grace_period=grace, reduction_factor=factor)
    below = [sorted(rung for rung, _ in bracket._rungs if rung < epochs) for bracket in scheduler._brackets]
    assert [len(rungs) for rungs in below] == list(reversed(range(brackets)))
    assert [rungs[0] for rungs in below[:-1]] == [grace * factor**s for s in range(brackets - 1)]


def test_shares_are_hyperbands_own() -> None:
    """Table 1 of the paper, R = 81, eta = 3, before its rounding up: 81, 33.75, 15, 7.5, 5."""
    assert [s / shares(5, 3)[-1] * 5 for s in shares(5, 3)] == pytest.approx([81, 33.75, 15, 7.5, 5])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("trials", [8, 16, 48, 1000])
def test_few_trials_are_spread_as_evenly_as_many(trials: int, seed: int) -> None:
    of_each = shares(3, 3)
    found = Counter(bracket_of(number, seed, of_each) for number in range(trials))
    for bracket, share in enumerate(of_each):
        assert abs(found[bracket] - share * trials) <= 2


def test_brackets_do_not_fall_together_with_the_columns_of_a_grid() -> None:
    of_each = shares(3, 3)
    for columns in (2, 4, 8, 17):
        for column in range(columns):
            found = Counter(bracket_of(row * columns + column, 0, of_each) for row in range(100))
            assert abs(found[0] - of_each[0] * 100) < 20, "a standard deviation is 5"


def test_another_seed_gives_other_brackets() -> None:
    assert numbers_in(0, seed=0) != numbers_in(0, seed=1)


@hypothesis_settings(max_examples=60)
@given(draws=st.integers(0, 10**6), cut=st.floats(0, 1))
def test_a_restart_at_any_moment_changes_no_bracket_and_no_decision(draws: int, cut: float) -> None:
    draw = random.Random(draws)
    waiting = {n: iter([(epoch, draw.random()) for epoch in range(1, EPOCHS + 1)]) for n in range(16)}
    whole, events = Played(), list[tuple[int, int, float, str]]()
    while waiting:
        number = draw.choice(list(waiting)[:3])
        epoch, loss = next(waiting[number])
        action = whole.report(number, epoch, loss)
        events.append((number, epoch, loss, action))
        if action == "STOP" or epoch == EPOCHS:
            del waiting[number]
    place = int(cut * len(events))
    told: list[tuple[str, dict[str, Any] | None]] = []
    statuses: dict[str, str] = {}
    for number, epoch, loss, action in events[:place]:
        told.append((f"key{number}", {"epoch": epoch, "val_loss": loss}))
        statuses.setdefault(f"key{number}", "")
        if action == "STOP":
            statuses[f"key{number}"] = "stopped"
            told.append((f"key{number}", None))
    again = Played(run=1)
    assert again.scheduler.replay(told, statuses, numbers={f"key{n}": n for n in range(16)}) == {}
    for number, epoch, loss, action in events[place:]:
        assert again.report(number, epoch, loss) == action
    before = [{k: v for k, v in d.items() if k != "trial"} for d in whole.told.decisions]
    after = [{k: v for k, v in d.items() if k != "trial"} for d in again.told.decisions]
    assert after == before[len(before) - len(after) :]
    assert all(again.inner._trial_info[key] is again.inner._brackets[whole.inner.bracket(key)] for key in again.inner._trial_info)


def test_a_decision_says_bracket_rung_value_and_cutoff() -> None:
    for bracket, rung in ((0, 1), (1, 3)):
        played, (good, bad, *_) = Played(), numbers_in(bracket)
        for epoch in range(1, rung + 1):
            played.report(good, epoch, 0.1)
        actions = [played.report(bad, epoch, 0.4) for epoch in range(1, rung + 1)]
        assert actions == ["CONTINUE"] * (rung - 1) + ["STOP"]
        (decision,) = played.told.decisions
        del decision["trial"]
        reason = {"rule": "hyperband", "epoch": rung, "metric": "val_loss", "value": 0.4}
        assert decision == {"action": "stop", **reason, "bracket": bracket, "rung": rung, "cutoff": 0.1}
        text = describe_end({"status": "stopped", "reason": decision})
        assert text == f"hyperband: at rung {rung} of bracket {bracket} val_loss 0.4 was past the cutoff 0.1"


def test_trials_compete_within_their_bracket_only() -> None:
    played = Played()
    for number in numbers_in(0)[:3]:
        for epoch in (1, 2, 3):
            played.report(number, epoch, 0.01)
    late = numbers_in(1)[0]
    assert [played.report(late, epoch, 0.9) for epoch in (1, 2, 3)] == ["CONTINUE"] * 3, "the first in its own bracket"


def test_the_last_bracket_stops_no_trial_however_bad() -> None:
    played, (good, bad, *_) = Played(), numbers_in(2)
    for epoch in range(1, EPOCHS + 1):
        assert played.report(good, epoch, 0.1) == "CONTINUE"
        assert played.report(bad, epoch, 1e6) == "CONTINUE"
    assert played.told.decisions == []
