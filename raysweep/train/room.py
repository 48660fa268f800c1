"""What room a run has for its workers: what fits on the machines now, up to the most that it may have."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from raysweep.cluster import capacity
from raysweep.cluster.resources import Allocation, Machine
from raysweep.errors import ClusterError
from raysweep.train.sizing import fitting

LOOK_S = 0.1
_SETTLE_S = 3.0  # after an attempt Ray takes a moment to count its workers' CPUs as free, or its machine as gone


class Room:
    """The room of one run.

    Args:
        allocation: smallest and largest number of workers, and what each holds.
        share: the most workers it may have at this moment; None: as the allocation says, all the time.
        say: takes lines for people.
    """

    def __init__(self, allocation: Allocation, share: Callable[[], int] | None, say: Callable[[str], None]) -> None:
        self._allocation, self._share, self._say = allocation, share, say

    def most(self) -> int:
        """The most workers that the run may have now: between the allocation's smallest and largest number."""
        share = self._allocation.max_workers if self._share is None else self._share()
        return max(self._allocation.workers, min(self._allocation.max_workers, share))

    def fits(self, held: Mapping[str, int], of: Callable[[], Mapping[str, Machine]] | None = None) -> int:
        """How many workers fit now, with those that the run has on each machine; 0 while the cluster does not answer."""
        cpus, gpus = self._allocation.cpus_per_worker, self._allocation.gpus_per_worker
        try:
            return fitting((of or capacity.free_machines)(), cpus=cpus, gpus=gpus, held=held)
        except ClusterError:
            return 0

    def size(self, wanted: int, timeout_s: float) -> int:
        """How many workers to start with: all that fit, after a moment for those of the attempt before to be free again.

        Args:
            wanted: not to wait for more than these; 0: for all that the machines carry.
            timeout_s: how long to wait for the smallest number, seconds.

        Raises:
            ClusterError: there was no room for the smallest number within `timeout_s`.
        """
        low = self._allocation.workers
        carried = max(low, self.fits({}, capacity.all_machines))
        began = time.monotonic()
        told = False
        while True:
            most = self.most()
            fits = min(most, self.fits({}))
            waited = time.monotonic() - began
            if fits >= min(wanted or most, most, carried) or (fits >= low and waited >= _SETTLE_S):
                return fits
            if waited >= timeout_s:
                raise ClusterError(
                    f"no room for the workers within scale.start_timeout_s {timeout_s:g}: {self._allocation.describe()} were "
                    f"asked for, {fits} fit now; free some room, lower scale.workers, or raise scale.start_timeout_s"
                )
            if not told and waited >= _SETTLE_S:
                told = True
                self._say(f"waiting for room: {low} needed, {fits} fit now")
            time.sleep(LOOK_S)
