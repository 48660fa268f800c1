"""The simulation in benchmarks/growing.py keeps its own books: times by hand, and never more workers than there are."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EPOCHS, EPOCH_S = 27, 60.0


@pytest.fixture(scope="module")
def growing() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module("growing")


@pytest.mark.parametrize(
    ("workers", "fixed", "seconds"),
    [
        (1, 1, 0.5 + EPOCHS * EPOCH_S),
        (2, 2, 8.2 + EPOCHS * EPOCH_S / 1.6),
        (8, 0, 8.2 + EPOCHS * EPOCH_S / (8 * 0.512)),  # alone it has its largest number from the start
    ],
)
def test_one_trial_takes_what_can_be_worked_out(growing: Any, workers: int, fixed: int, seconds: float) -> None:
    assert growing.Simulation(growing.World(1, workers, 0, fixed)).run().makespan == pytest.approx(seconds)


def test_a_survivor_pays_a_pause_and_then_runs_at_its_new_pace(growing: Any) -> None:
    """Of two trials on two workers both tell their first epoch at 68.2 s, and the second is stopped where it is worse."""
    seed = next(s for s in range(20) if growing.World(2, 2, s).losses()[1, 0] > growing.World(2, 2, s).losses()[0, 0])
    simulation = growing.Simulation(growing.World(2, 2, seed)).run()
    # The looks at 68.2 s and 78.2 s find the room; 70 s of training are done then, of 1620.
    assert simulation.makespan == pytest.approx(78.2 + 8.6 + (EPOCHS * EPOCH_S - 70) / 1.6)


@pytest.mark.parametrize(("trials", "workers"), [(16, 16), (40, 10), (9, 13)])
def test_no_more_workers_train_than_there_are(growing: Any, trials: int, workers: int) -> None:
    class Watched(growing.Simulation):  # type: ignore[misc, name-defined]
        def _goes_on(self, number: int, trial: Any) -> None:
            super()._goes_on(number, trial)
            taken = sum(t.workers for t in self._running.values())
            assert taken + self._free == workers
            assert self._free >= 0

    growing_sweep, fixed = Watched(growing.World(trials, workers, 1)).run(), Watched(growing.World(trials, workers, 1, 1)).run()
    assert growing_sweep.makespan < fixed.makespan
    assert all(ratio > 1 for ratio in growing.ratios(fixed, growing_sweep))


def test_the_real_ratio_is_that_of_the_times_to_a_loss_that_both_reach(growing: Any) -> None:
    def journal(*told: tuple[float, float | None]) -> list[dict[str, Any]]:
        return [{"event": "start", "time": 100.0}, *({"event": "row", "time": 100.0 + t, "val_loss": v} for t, v in told)]

    numbers = growing.real_ratios(journal((10, 0.5), (30, 0.2), (60, 0.1)), journal((12, None), (15, 0.5), (20, 0.2)))
    assert (numbers["real_fixed_s"], numbers["real_growing_s"], numbers["real_time_to_best_ratio"]) == (30, 20, 1.5)
