"""Elastic trials share the cluster: how many workers each may have now; all of them read it in one small file.

The survivors of a sweep take the room of those that have ended. How a trial resizes is train/elastic.py's.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray.tune import Callback

from raysweep.cluster import capacity
from raysweep.cluster.resources import Allocation, Available, carried
from raysweep.errors import ClusterError
from raysweep.store.directory import SCRATCH, write_atomically
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.search import NotSaved

FILE = f"{SCRATCH}/shares.json"
"""Below a sweep's directory; it goes with what Ray Tune writes there."""

_LOOK_S = 1.0  # how often the driver counts its trials, and a trial reads the file


@dataclass(frozen=True)
class Shares:
    """The largest number of workers of each trial.

    Attributes:
        each: of those that run, by key.
        others: of one that starts.
        slots: trials that the cluster is shared by.
    """

    each: dict[str, int]
    others: int
    slots: int

    @property
    def workers(self) -> int:
        """Of all slots."""
        return sum(self.each.values()) + max(0, self.slots - len(self.each)) * self.others


def fair_shares(workers: int, at_once: int, left: int, running: Sequence[str], low: int, high: int) -> Shares:
    """Share the workers that a cluster carries evenly; what is over goes to the trials that have run longest.

    While trials wait every slot keeps its part, so that the next one always finds room. A share only falls when there are
    more trials, or fewer workers, than before.

    Args:
        workers: that the cluster carries.
        at_once: trials that may run at a time.
        left: trials that have not ended, those that a search has not thought of yet included.
        running: keys of those that run, in the order of their starts.
        low, high: smallest and largest number of workers of a trial.
    """
    slots = max(1, min(at_once, max(left, len(running))))
    part, over = divmod(workers, slots)
    bounded = [max(low, min(high, part + (place < over))) for place in range(len(running))]
    return Shares(dict(zip(running, bounded, strict=True)), max(low, min(high, part)), slots)


class ShareCallback(NotSaved, Callback):  # type: ignore[misc]
    """Keeps the file up to date while Ray Tune runs elastic trials; it is written when a share has changed.

    Args:
        directory: the sweep's.
        recorder: knows which trials run, and which are left.
        allocation: of each trial: smallest and largest number of workers, and what each holds.
        at_once: trials that may run at a time.
        cluster_look_s: how often to look at which machines there are, seconds.
        clock: seconds.
    """

    def __init__(
        self,
        directory: Path,
        recorder: SweepRecorder,
        allocation: Allocation,
        at_once: int,
        cluster_look_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._recorder, self._allocation, self._at_once = directory / FILE, recorder, allocation, at_once
        self._cluster_look_s, self._clock = cluster_look_s, clock
        self._can_grow_to = capacity.can_grow_to()
        self._workers = 0
        self._running: list[str] = []
        self._told: Shares | None = None
        self._next_look = self._next_cluster_look = clock()
        self._file.parent.mkdir(exist_ok=True)
        self.look()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # Before it trains: the first of a population's next generation must not start with the share of the last one before.
        self.look()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self._clock() >= self._next_look:
            self.look()

    def look(self) -> None:
        """Work the shares out, and tell the trials if they are others than before."""
        now = self._clock()
        self._next_look = now + _LOOK_S
        if now >= self._next_cluster_look:
            self._next_cluster_look = now + self._cluster_look_s
            self._workers = self._carried() or self._workers
        states = self._recorder.states.values()
        running = {state.trial.key for state in states if state.status == "running"}
        known = [key for key in self._running if key in running]
        self._running = known + sorted(running - set(known))
        low, high = self._allocation.workers, self._allocation.max_workers
        shares = fair_shares(self._workers, self._at_once, self._recorder.num_left(), self._running, low, high)
        if shares != self._told:
            with contextlib.suppress(OSError):  # the next look tries again; of a full disk the journal tells
                write_atomically(self._file, json.dumps(asdict(shares)).encode())
                self._told = shares
            self._ask_autoscaler(shares.workers)

    def _carried(self) -> int:
        try:
            machines = tuple(capacity.all_machines().values())
        except ClusterError:
            return 0
        cpus, gpus = int(sum(m.cpus for m in machines)), int(sum(m.gpus for m in machines))
        return carried(self._allocation, Available(cpus, gpus, machines=machines, can_grow_to=self._can_grow_to))

    def _ask_autoscaler(self, workers: int) -> None:
        if self._can_grow_to is not None:
            capacity.ask_autoscaler(workers, self._allocation.cpus_per_worker, self._allocation.gpus_per_worker)

    def close(self) -> None:
        """No trial runs any more."""
        self._ask_autoscaler(0)


class Share:
    """The most workers that one trial may have, as its actor knows it: called for the number.

    The file is read at most once a second; while it cannot be read, what it said last stands.

    Args:
        directory: the sweep's.
        key: the trial's.
        low: its smallest number of workers.
        clock: seconds.
    """

    def __init__(self, directory: Path, key: str, low: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._key, self._share, self._clock = directory / FILE, key, low, clock
        self._next_read = clock()

    def __call__(self) -> int:
        if self._clock() >= self._next_read:
            self._next_read = self._clock() + _LOOK_S
            try:
                shares = Shares(**json.loads(self._file.read_bytes()))
            except FileNotFoundError:
                return self._share
            self._share = shares.each.get(self._key, shares.others)
        return self._share
