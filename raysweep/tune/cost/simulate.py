"""The clock of a sweep, played without training: trials of known durations on a number of places; no Ray in here."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Load:
    """What one trial costs.

    Attributes:
        epoch_s: seconds of one epoch.
        first_epoch, last_epoch: what is left of it; it goes on at its first epoch.
        before_s: seconds before its first epoch begins.
        workers: that it holds.
    """

    epoch_s: float
    last_epoch: int
    first_epoch: int = 1
    before_s: float = 0.0
    workers: int = 1

    def scaled(self, factor: float) -> Load:
        """The same trial on a machine whose epochs take `factor` times as long."""
        return replace(self, epoch_s=self.epoch_s * factor)


@dataclass(frozen=True)
class Played:
    """What was played.

    Attributes:
        wall_s: seconds until the last trial ended.
        device_s: seconds of all epochs, each times its trial's workers; what budget.device_hours counts.
        last_epochs: of each trial, the epoch that it reached; 0 where it never finished one.
    """

    wall_s: float
    device_s: float
    last_epochs: list[int]


def play(
    loads: Sequence[Load],
    free_at: Sequence[float],
    stops: Callable[[int, int], bool] = lambda _trial, _epoch: False,
    *,
    wall_s: float = math.inf,
    device_s: float = math.inf,
) -> Played:
    """List scheduling: whenever a place is free, the next trial of the list takes it.

    Args:
        loads: the trials, in the order in which they start.
        free_at: for each place when it can take its first trial, seconds.
        stops: asked at each epoch's end, in the order of time, with the trial's place in the list and the epoch; whether the
            trial ends there. It is not asked at a trial's last epoch, which is its end anyway.
        wall_s, device_s: the budget; what is spent first ends all trials at that epoch's end.
    """
    waiting = iter(range(len(loads)))
    reached = [load.first_epoch - 1 for load in loads]
    # Each running trial's next epoch end; the counter keeps the order of those that end at once.
    ends: list[tuple[float, int, int]] = []
    count = 0

    def begin(time: float) -> None:
        nonlocal count
        trial = next(waiting, None)
        if trial is not None:
            heapq.heappush(ends, (time + loads[trial].before_s + loads[trial].epoch_s, count, trial))
            count += 1

    for time in sorted(free_at):
        begin(time)
    now = used = 0.0
    while ends:
        now, _, trial = heapq.heappop(ends)
        load = loads[trial]
        used += load.epoch_s * load.workers
        reached[trial] += 1
        if now >= wall_s or used >= device_s:
            break
        if reached[trial] >= load.last_epoch or stops(trial, reached[trial]):
            begin(now)
        else:
            heapq.heappush(ends, (now + load.epoch_s, count, trial))
            count += 1
    return Played(now, used, reached)
