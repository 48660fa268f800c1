"""What a cluster has, what a run asks for, and whether the one carries the other: pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from raysweep.errors import ClusterError
from raysweep.settings import ScaleConfig


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Available:
    """CPUs and GPUs of all machines, and where they were found (for messages)."""

    cpus: int
    gpus: int
    where: str = "this machine"


@dataclass(frozen=True)
class Allocation:
    """What one run (or one trial of a sweep) holds."""

    workers: int
    cpus_per_worker: int
    gpus_per_worker: int

    def describe(self) -> str:
        """`2 workers x (1 GPU, 4 CPUs)`, for people."""
        gpus = f"{_count(self.gpus_per_worker, 'GPU')}, " if self.gpus_per_worker else ""
        return f"{_count(self.workers, 'worker')} x ({gpus}{_count(self.cpus_per_worker, 'CPU')})"

    @property
    def cpus(self) -> int:
        return self.workers * self.cpus_per_worker

    @property
    def gpus(self) -> int:
        return self.workers * self.gpus_per_worker


def allocate(scale: ScaleConfig, available: Available, *, share_cpus: bool) -> Allocation:
    """What one run gets.

    Args:
        scale: what was asked for.
        available: what there is.
        share_cpus: with scale.cpus_per_worker null: give the workers all CPUs (a run) instead of one each (a trial).

    Raises:
        ClusterError: asked and available numbers, and the setting to change.
    """
    workers, where = scale.workers, available.where
    if scale.use_gpu is True and available.gpus == 0:
        raise ClusterError(f"scale.use_gpu: a GPU was asked for, {where} has none; set scale.use_gpu to auto or false")
    if scale.use_gpu is True and workers > available.gpus:
        raise ClusterError(
            f"scale.workers: {_count(workers, 'worker')} with a GPU each were asked for, "
            f"{where} has {_count(available.gpus, 'GPU')}; set scale.workers to at most {available.gpus}"
        )
    use_gpu = scale.use_gpu is True or (scale.use_gpu == "auto" and available.gpus >= workers)
    if workers > available.cpus:
        raise ClusterError(
            f"scale.workers: {_count(workers, 'worker')} need a CPU each, {where} has {_count(available.cpus, 'CPU')}; "
            f"set scale.workers to at most {available.cpus}"
        )
    cpus = scale.cpus_per_worker or (max(1, available.cpus // workers) if share_cpus else 1)
    if workers * cpus > available.cpus:
        raise ClusterError(
            f"scale.cpus_per_worker: {_count(workers, 'worker')} x {_count(cpus, 'CPU')} were asked for, "
            f"{where} has {_count(available.cpus, 'CPU')}; set scale.cpus_per_worker to at most {available.cpus // workers}"
        )
    return Allocation(workers, cpus, 1 if use_gpu else 0)


def concurrency(allocation: Allocation, available: Available, limit: int | None) -> tuple[int, str]:
    """How many trials run at once, and why, for people."""
    by_cpu = available.cpus // allocation.cpus
    reasons = [(by_cpu, f"{_count(available.cpus, 'CPU')} / {allocation.cpus} per trial")]
    if allocation.gpus:
        reasons.append((available.gpus // allocation.gpus, f"{_count(available.gpus, 'GPU')} / {allocation.gpus} per trial"))
    if limit is not None:
        reasons.append((limit, "search.max_concurrent"))
    number, why = min(reasons, key=lambda reason: reason[0])
    return max(1, number), why
