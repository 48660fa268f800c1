"""What a cluster has, what a run asks for, and whether the one carries the other: pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from raysweep.errors import ClusterError
from raysweep.settings import ScaleConfig

_TOLERANCE = 1e-6  # Ray counts resources in steps of 1e-4 and tells them as floats


def _count(number: float, what: str) -> str:
    shown = int(number) if number == int(number) else number
    return f"{shown} {what}{'' if number <= 1 and number != 0 else 's'}"


def per_gpu(gpus_per_worker: float) -> int:
    """How many workers one GPU carries; in Ray's steps of 1e-4, for 1 // 0.1 is 9."""
    return 10_000 // round(gpus_per_worker * 10_000)


def _on_gpus(gpus: float, gpus_per_worker: float) -> int:
    """How many workers so many GPUs carry; a worker lies on one GPU whole."""
    whole, rest = divmod(gpus + _TOLERANCE, 1)
    return int(whole) * per_gpu(gpus_per_worker) + int(rest / gpus_per_worker)


@dataclass(frozen=True)
class Machine:
    """CPUs and GPUs of one machine, or what is free of them."""

    cpus: float
    gpus: float

    def room(self, cpus_per_worker: int, gpus_per_worker: float) -> int:
        """How many workers it carries; a worker lies on one machine whole, and on one GPU."""
        on_cpus = int((self.cpus + _TOLERANCE) // cpus_per_worker)
        return max(0, min(on_cpus, _on_gpus(self.gpus, gpus_per_worker) if gpus_per_worker else on_cpus))


@dataclass(frozen=True)
class Available:
    """CPUs and GPUs of all machines.

    Attributes:
        cpus, gpus: in all.
        where: they were found, for messages.
        machines: of each machine; empty: all on one.
        can_grow_to: CPUs and GPUs in all that an autoscaler may bring the cluster to; None: there is no autoscaler.
    """

    cpus: int
    gpus: int
    where: str = "this machine"
    machines: tuple[Machine, ...] = ()
    can_grow_to: tuple[int, int] | None = None

    @property
    def most(self) -> tuple[int, int]:
        """CPUs and GPUs that there can be at most."""
        return self.can_grow_to or (self.cpus, self.gpus)

    def has(self, number: int, what: str) -> str:
        """`the cluster has 2 GPUs`, for messages."""
        return f"{self.where} {'can grow to' if self.can_grow_to else 'has'} {_count(number, what) if number else 'none'}"

    def fitting(self, cpus_per_worker: int, gpus_per_worker: float) -> int:
        """How many workers these machines carry."""
        return sum(m.room(cpus_per_worker, gpus_per_worker) for m in self.machines or (Machine(self.cpus, self.gpus),))


@dataclass(frozen=True)
class Allocation:
    """What one run (or one trial of a sweep) holds.

    Attributes:
        workers: the smallest number of workers.
        cpus_per_worker, gpus_per_worker: of each; GPUs: 0, or a part of one up to 1.
        max_workers: the largest number.
    """

    workers: int
    cpus_per_worker: int
    gpus_per_worker: float
    max_workers: int = 0

    def __post_init__(self) -> None:
        if not self.max_workers:
            object.__setattr__(self, "max_workers", self.workers)

    @property
    def is_elastic(self) -> bool:
        return self.max_workers > self.workers

    def describe(self) -> str:
        """`2 workers x (1 GPU, 4 CPUs)`, for people."""
        gpus = f"{_count(self.gpus_per_worker, 'GPU')}, " if self.gpus_per_worker else ""
        workers = _count(self.max_workers, "worker")
        workers = f"{self.workers} to {workers}" if self.is_elastic else workers
        return f"{workers} x ({gpus}{_count(self.cpus_per_worker, 'CPU')})"

    @property
    def cpus(self) -> int:
        return self.workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        return self.workers * self.gpus_per_worker


def allocate(scale: ScaleConfig, available: Available, *, share_cpus: bool) -> Allocation:
    """What one run gets; with [min, max] workers only the smallest number has to fit.

    Args:
        scale: what was asked for.
        available: what there is.
        share_cpus: with scale.cpus_per_worker null: give the workers all CPUs (a run) instead of one each (a trial).

    Raises:
        ClusterError: asked and available numbers, and the setting to change.
    """
    workers = scale.min_workers
    cpus, gpus = available.most
    if scale.use_gpu is True and gpus == 0:
        raise ClusterError(f"scale.use_gpu: a GPU was asked for, {available.has(0, 'GPU')}; set scale.use_gpu to auto or false")
    if scale.use_gpu is True and workers > gpus:
        raise ClusterError(
            f"scale.workers: {_count(workers, 'worker')} with a GPU each were asked for, "
            f"{available.has(gpus, 'GPU')}; set scale.workers to at most {gpus}"
        )
    uses_gpu = scale.use_gpu is True or (scale.use_gpu == "auto" and gpus >= workers)
    if scale.gpus_per_worker < 1 and not uses_gpu:
        raise ClusterError(
            f"scale.gpus_per_worker: {_count(scale.gpus_per_worker, 'GPU')} a worker was asked for, {available.has(0, 'GPU')}; "
            "leave scale.gpus_per_worker out"
        )
    gpus_per_worker = scale.gpus_per_worker if uses_gpu else 0
    if workers > cpus:
        raise ClusterError(
            f"scale.workers: {_count(workers, 'worker')} need a CPU each, {available.has(cpus, 'CPU')}; "
            f"set scale.workers to at most {cpus}"
        )
    now = max(workers, min(scale.max_workers, available.gpus if gpus_per_worker else available.cpus))
    each = scale.cpus_per_worker or (_shared(available, now, gpus_per_worker) if share_cpus else 1)
    if workers * each > cpus:
        raise ClusterError(
            f"scale.cpus_per_worker: {_count(workers, 'worker')} x {_count(each, 'CPU')} were asked for, "
            f"{available.has(cpus, 'CPU')}; set scale.cpus_per_worker to at most {cpus // workers}"
        )
    fits = available.fitting(each, gpus_per_worker)
    if fits < workers and available.can_grow_to is None:
        gpu = " and a GPU" if gpus_per_worker else ""
        raise ClusterError(
            f"scale.workers: {_count(workers, 'worker')} with {_count(each, 'CPU')}{gpu} each, on one machine, were asked for; "
            f"the machines of {available.where} carry {fits}; lower scale.workers or scale.cpus_per_worker"
        )
    return Allocation(workers, each, gpus_per_worker, scale.max_workers)


def _shared(available: Available, workers: int, gpus_per_worker: float) -> int:
    """The most CPUs that each of so many workers can have; 1 where the workers do not fit now anyway."""
    highest = max(1, available.cpus // workers)
    return next((n for n in range(highest, 0, -1) if available.fitting(n, gpus_per_worker) >= workers), 1)


def concurrency(allocation: Allocation, available: Available, limit: int | None) -> tuple[int, str]:
    """How many trials run at once, and why, for people."""
    cpus, gpus = available.most
    reasons = [(cpus // allocation.cpus, f"{_count(cpus, 'CPU')} / {allocation.cpus} per trial")]
    if 0 < allocation.gpus < 1:
        on_each = per_gpu(allocation.gpus)
        reasons.append(
            (gpus * on_each, f"{_count(gpus, 'GPU')} x {_count(on_each, 'trial')} on each, {allocation.gpus:g} per trial")
        )
    elif allocation.gpus:
        reasons.append((int(gpus // allocation.gpus), f"{_count(gpus, 'GPU')} / {allocation.gpus:g} per trial"))
    if available.can_grow_to is None:
        fits = carried(allocation, available)
        reasons.append((fits // allocation.workers, f"the machines carry {_count(fits, 'worker')}"))
    if limit is not None:
        reasons.append((limit, "search.max_concurrent"))
    number, why = min(reasons, key=lambda reason: reason[0])
    return max(1, number), why


def carried(allocation: Allocation, available: Available) -> int:
    """How many of such workers the machines carry; with an autoscaler those that it may bring."""
    if available.can_grow_to is None:
        return available.fitting(allocation.cpus_per_worker, allocation.gpus_per_worker)
    cpus, gpus = available.can_grow_to
    return Machine(cpus, gpus).room(allocation.cpus_per_worker, allocation.gpus_per_worker)


def largest(allocation: Allocation, available: Available) -> Allocation:
    """The allocation with its largest number of workers cut to what the machines carry."""
    return replace(allocation, max_workers=max(allocation.workers, min(allocation.max_workers, carried(allocation, available))))
