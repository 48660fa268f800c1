"""What the trials of a sweep cost, measured on the cluster that will run them, with as much going on at once as in the sweep.

What is timed is measure.py's, and which trials cost the same is sizes.py's.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from raysweep.cluster.resources import Allocation, Available
from raysweep.errors import ClusterError
from raysweep.experiment import Experiment
from raysweep.plugins import find_modules_in
from raysweep.tune.cost.measure import Measured, measure
from raysweep.tune.cost.sizes import Cost, Size, chosen, filled

MEASURING_S = 20.0
"""Seconds of measuring, for all sizes together."""
_MOST_S, _LEAST_S = 6.0, 1.0
"""For each size."""
_READY_S = 60.0
_LATE = 2.0
"""Measuring may take so many times as long, where a few steps take long; what has not ended by then is worked out."""
_LEAST_SPREAD = (0.95, 1.05)


@dataclass(frozen=True)
class Calibration:
    """What was measured, and how.

    Attributes:
        costs: of each size; empty where nothing could be measured.
        measured: how many of them.
        spread: the short and the long parts of the measuring over their mean: the 10th and the 90th percentile.
        at_once: processes that measured at a time.
        ready_s: seconds until their processes were there, as a trial's will be.
        seconds: that it all took.
        notes: for people.
    """

    costs: list[Cost]
    measured: int
    spread: tuple[float, float]
    at_once: int
    ready_s: float
    seconds: float
    notes: list[str]

    def describe(self) -> str:
        """`calibrated in 21 s: 4 of 4 model sizes, 2 at a time`."""
        num = len(self.costs)
        what = f"{self.measured} of {num} model size{'' if num == 1 else 's'}" if num else "no model size"
        return f"calibrated in {self.seconds:.0f} s: {what}, {self.at_once} at a time"


class _Bench:
    """Measures in a process of its own, which holds what a worker of a trial holds."""

    def __init__(self, started_in: str, threads: int, use_gpu: bool) -> None:
        # What a trial's process holds: its memory counts, and the time until it is there.
        from raysweep.tune.trial import images

        self._open = images
        find_modules_in(started_in)
        torch.set_num_threads(threads)
        self._device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")

    def ready(self) -> bool:
        return True

    def measure(self, experiment_json: str, seconds: float, directory: str, workers: int) -> Measured | str:
        """What was measured, or the error that a trial of this size would fail with."""
        try:
            experiment = Experiment.model_validate_json(experiment_json)
            place = Path(directory)
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place) as empty:
                dataset = self._open(experiment.data.model_dump_json(exclude_unset=True))
                return measure(experiment, dataset, self._device, seconds, Path(empty), workers)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def calibrate(
    sizes: Sequence[Size],
    allocation: Allocation,
    available: Available,
    trials_at_once: int,
) -> Calibration:
    """Measure the sizes, or as many of them as there is time for; on the cluster that this process is connected to.

    Args:
        sizes: the least work first.
        allocation: what a trial holds; of several workers each measures its share.
        available: what the cluster has.
        trials_at_once: trials that run at a time.

    Raises:
        ClusterError: the cluster has no room for a single worker.
    """
    began = time.monotonic()
    workers = allocation.max_workers
    fits = available.fitting(allocation.cpus_per_worker, allocation.gpus_per_worker)
    places = max(1, min(trials_at_once * workers, fits))
    bench: Any = ray.remote(_Bench).options(num_cpus=allocation.cpus_per_worker, num_gpus=allocation.gpus_per_worker)
    use_gpu = bool(allocation.gpus_per_worker)
    found: dict[int, list[Measured]] = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="raysweep-plan-", ignore_cleanup_errors=True) as directory:
        benches = [bench.remote(str(Path.cwd()), allocation.cpus_per_worker, use_gpu) for _ in range(places)]
        try:
            ready = _ready(benches, allocation)
            ready_s = time.monotonic() - began
            picked = chosen(sizes, len(ready) * max(1, int(MEASURING_S / _LEAST_S)))
            rounds = -(-len(picked) // len(ready))
            seconds = min(_MOST_S, MEASURING_S / rounds)
            deadline = time.monotonic() + _LATE * MEASURING_S
            # All begin at once and take as long, so that none measures alone; the last round is filled up.
            for start in range(0, rounds * len(ready), len(ready)):
                refs = {
                    one.measure.remote(_json(sizes[place]), seconds, directory, workers): place
                    for one, place in zip(ready, (picked[(start + i) % len(picked)] for i in range(len(ready))), strict=True)
                }
                done, late = ray.wait(list(refs), num_returns=len(refs), timeout=max(0.0, deadline - time.monotonic()))
                results = [(refs[ref], _result(ref)) for ref in done]
                for place, result in results:
                    if isinstance(result, str):
                        notes.append(f"a trial with {sizes[place].parameters:,} parameters fails: {result}")
                    else:
                        found.setdefault(place, []).append(result)
                if late:
                    notes.append(f"a few steps of some sizes take longer than {_LATE * MEASURING_S:.0f} s")
                    break
        finally:
            for one in benches:
                ray.kill(one)
    if workers > 1:
        notes.append(f"what the {workers} workers of a trial take to exchange gradients is not in the seconds")
    costs = {place: _cost(sizes[place], many, workers) for place, many in found.items()}
    windows = [window for many in found.values() for measured in many for window in measured.windows]
    passed = time.monotonic() - began
    filled_up = filled(sizes, costs) if costs else []
    return Calibration(filled_up, len(costs), _spread(windows), len(ready), ready_s, passed, list(dict.fromkeys(notes)))


def _result(ref: Any) -> Measured | str:
    try:
        result: Measured | str = ray.get(ref)
        return result
    except ray.exceptions.RayError as error:  # killed, such as for want of memory
        return f"its process was lost: {str(error).splitlines()[0]}"


def _json(size: Size) -> str:
    return size.experiment.model_dump_json(exclude_unset=True)


def _ready(benches: list[Any], allocation: Allocation) -> list[Any]:
    """Those that have got their resources, once all have or the time is over."""
    refs = {one.ready.remote(): one for one in benches}
    done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_READY_S)
    if not done:
        raise ClusterError(
            f"no process with {allocation.cpus_per_worker} CPUs and {allocation.gpus_per_worker} GPUs has started in "
            f"{_READY_S:.0f} s: the cluster is in use; wait until there is room"
        )
    return [one for ref, one in refs.items() if ref in done]


def _cost(size: Size, many: Sequence[Measured], workers: int) -> Cost:
    # Workers share training and validation; between epochs they wait for each other.
    seconds = [m.rest_s + (m.epoch_s(size.num_train, size.num_val) - m.rest_s) / workers for m in many]
    return Cost(statistics.fmean(seconds), max(m.memory_bytes for m in many))


def _spread(windows: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile([1.0, *windows], (10, 90))
    return min(_LEAST_SPREAD[0], float(low)), max(_LEAST_SPREAD[1], float(high))
