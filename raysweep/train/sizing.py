"""How many workers a run should have: what fits on the free machines, and when growing pays. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysweep.cluster.resources import Machine


def fitting(free: Mapping[str, Machine], *, cpus: int, gpus: float, held: Mapping[str, int]) -> int:
    """How many workers of a run the machines carry, those that it has included.

    Args:
        free: of the machines that are alive and not about to go, what nobody holds. Workers on others do not count.
        cpus: CPUs of a worker, at least 1.
        gpus: GPUs of a worker.
        held: workers of this run on each machine.
    """
    return sum(held.get(name, 0) + machine.room(cpus, gpus) for name, machine in free.items())


def target(current: int, fits: int, low: int, high: int) -> int:
    """How many workers to have now: all that fit up to `high`, never fewer than `current`.

    Args:
        current: workers that run; 0 before a start.
        fits: from fitting().
        low: of scale.workers; 0 is returned before a start where fewer fit: wait.
        high: of scale.workers.
    """
    size = min(fits, high)
    return max(current, size) if size >= low else current


@dataclass
class Resizer:
    """Asks for more workers while an attempt runs, when they are there to stay and worth the pause.

    It asks for fewer only where others of a sweep need the room: a machine that goes comes as a failure or as a preemption.

    Attributes:
        current: workers of the attempt.
        low: of scale.workers.
        high: of scale.workers, or a trial's share, which may change and fall below `current`.
        pause_s: what a new start costs, as measured at this run's last one, seconds.
    """

    current: int
    low: int
    high: int
    pause_s: float
    _seen: int = field(default=0, init=False)

    def check(self, fits: int, steps_left: int, seconds_per_step: float | None) -> int | None:
        """The size to go to, or None; to be called once every scale.resize_check_s.

        The same larger size has to fit in two checks in a row, for the machines of one request to an autoscaler join one
        after the other. The time saved is taken as steps_left * seconds_per_step * (1 - current / new): workers that scale
        perfectly. Down to `high` it goes at once, unless the run would end sooner than it could start again.

        Args:
            fits: from fitting().
            steps_left: of the whole run.
            seconds_per_step: at the current size; None: not known yet, wait.
        """
        if self.high < self.current:
            ends_sooner = seconds_per_step is not None and steps_left * seconds_per_step <= self.pause_s
            return None if ends_sooner else max(self.low, self.high)
        new = target(self.current, fits, self.low, self.high)
        was, self._seen = self._seen, new
        if new <= self.current or new != was or seconds_per_step is None:
            return None
        saved_s = steps_left * seconds_per_step * (1 - self.current / new)
        return new if saved_s > self.pause_s else None
