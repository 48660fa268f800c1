"""What a run gets of what there is, and the refusals; numbers only."""

from __future__ import annotations

import pytest

from raysweep.cluster.resources import Allocation, Available, Machine, allocate, carried, concurrency, largest
from raysweep.errors import ClusterError
from raysweep.settings import ScaleConfig


@pytest.mark.parametrize(
    ("scale", "cpus", "gpus", "expected"),
    [
        ({"workers": 1}, 8, 0, Allocation(1, 8, 0)),
        ({"workers": 2}, 8, 0, Allocation(2, 4, 0)),
        ({"workers": 3}, 8, 0, Allocation(3, 2, 0)),
        ({"workers": 2}, 8, 2, Allocation(2, 4, 1)),
        ({"workers": 2}, 8, 1, Allocation(2, 4, 0)),
        ({"workers": 2, "use_gpu": False}, 8, 2, Allocation(2, 4, 0)),
        ({"workers": 2, "cpus_per_worker": 1}, 8, 0, Allocation(2, 1, 0)),
    ],
)
def test_a_run_shares_all_cpus(scale: dict[str, object], cpus: int, gpus: int, expected: Allocation) -> None:
    assert allocate(ScaleConfig.model_validate(scale), Available(cpus, gpus), share_cpus=True) == expected


def test_a_trial_gets_one_cpu_so_that_many_run_at_once() -> None:
    assert allocate(ScaleConfig(), Available(8, 0), share_cpus=False) == Allocation(1, 1, 0)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ({"use_gpu": True}, "a GPU was asked for, this machine has none"),
        ({"workers": 9}, "9 workers need a CPU each, this machine has 8 CPUs; set scale.workers to at most 8"),
        ({"workers": 2, "cpus_per_worker": 5}, "2 workers x 5 CPUs were asked for, this machine has 8 CPUs; .* at most 4"),
    ],
)
def test_what_is_not_there_is_refused_with_both_numbers(scale: dict[str, object], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        allocate(ScaleConfig.model_validate(scale), Available(8, 0), share_cpus=True)


def test_more_gpu_workers_than_gpus_are_refused() -> None:
    with pytest.raises(ClusterError, match="3 workers with a GPU each were asked for, the cluster has 2 GPUs"):
        allocate(ScaleConfig(workers=3, use_gpu=True), Available(8, 2, "the cluster"), share_cpus=True)


@pytest.mark.parametrize(
    ("allocation", "available", "limit", "expected"),
    [
        (Allocation(1, 1, 0), Available(8, 0), None, (8, "8 CPUs / 1 per trial")),
        (Allocation(1, 1, 1), Available(8, 2), None, (2, "2 GPUs / 1 per trial")),
        (Allocation(2, 2, 0), Available(8, 0), None, (2, "8 CPUs / 4 per trial")),
        (Allocation(1, 1, 0), Available(8, 0), 3, (3, "search.max_concurrent")),
    ],
)
def test_concurrency_and_why(allocation: Allocation, available: Available, limit: int | None, expected: tuple[int, str]) -> None:
    assert concurrency(allocation, available, limit) == expected


@pytest.mark.parametrize(
    ("part", "gpus", "cpus", "at_once", "why"),
    [
        (0.25, 2, 16, 8, "2 GPUs x 4 trials on each, 0.25 per trial"),
        (0.3, 2, 16, 6, "2 GPUs x 3 trials on each, 0.3 per trial"),
        (0.6, 3, 16, 3, "3 GPUs x 1 trial on each, 0.6 per trial"),  # no trial lies on two halves
        (0.1, 1, 16, 10, "1 GPU x 10 trials on each, 0.1 per trial"),  # 1 // 0.1 is 9
        (0.3333, 1, 16, 3, "1 GPU x 3 trials on each, 0.3333 per trial"),
        (0.25, 2, 5, 5, "5 CPUs / 1 per trial"),
        (1, 2, 16, 2, "2 GPUs / 1 per trial"),
    ],
)
def test_trials_share_a_gpu(part: float, gpus: int, cpus: int, at_once: int, why: str) -> None:
    available = Available(cpus, gpus)
    allocation = allocate(ScaleConfig(gpus_per_worker=part), available, share_cpus=False)
    assert allocation == Allocation(1, 1, part)
    assert concurrency(allocation, available, None) == (at_once, why)
    assert available.fitting(1, part) == at_once


def test_parts_of_a_gpu_are_told_and_refused_where_there_is_none() -> None:
    assert Allocation(1, 1, 0.25).describe() == "1 worker x (0.25 GPU, 1 CPU)"
    assert Allocation(1, 1, 1.0).describe() == "1 worker x (1 GPU, 1 CPU)"
    with pytest.raises(ClusterError, match=r"gpus_per_worker: 0.25 GPU a worker was asked for, the cluster has none"):
        allocate(ScaleConfig(gpus_per_worker=0.25), Available(8, 0, "the cluster"), share_cpus=False)
    assert Machine(16, 1.5).room(1, 0.25) == 6
    assert Machine(4, 0.9999999).room(1, 0.3) == 3, "floats as Ray tells them"


def test_trials_at_once_are_what_the_machines_carry_one_by_one() -> None:
    apart = Available(8, 4, "the cluster", (Machine(1, 3), Machine(7, 1)))
    assert concurrency(Allocation(1, 1, 1), apart, None) == (2, "the machines carry 2 workers")
    assert concurrency(Allocation(1, 3, 0), Available(8, 0, machines=(Machine(4, 0), Machine(4, 0))), None)[0] == 2


def test_of_an_elastic_run_only_the_smallest_number_has_to_fit() -> None:
    scale = ScaleConfig.model_validate({"workers": [1, 8]})
    assert allocate(scale, Available(2, 0), share_cpus=True) == Allocation(1, 1, 0, 8)
    assert allocate(scale, Available(16, 0), share_cpus=True) == Allocation(1, 2, 0, 8)
    assert allocate(scale, Available(16, 4), share_cpus=True) == Allocation(1, 4, 1, 8), "as many as there are GPUs now"
    with pytest.raises(ClusterError, match="3 workers need a CPU each, this machine has 2 CPUs"):
        allocate(ScaleConfig.model_validate({"workers": [3, 8]}), Available(2, 0), share_cpus=True)
    assert Allocation(1, 4, 1, 8).describe() == "1 to 8 workers x (1 GPU, 4 CPUs)"


def test_a_worker_lies_on_one_machine_whole() -> None:
    small = Available(12, 0, "the cluster", (Machine(4, 0), Machine(4, 0), Machine(4, 0)))
    assert allocate(ScaleConfig(workers=2), small, share_cpus=True) == Allocation(2, 4, 0), "not 6 each: no machine has them"
    with pytest.raises(ClusterError, match=r"1 worker with 6 CPUs each, on one machine, .* the machines of the cluster carry 0"):
        allocate(ScaleConfig(workers=1, cpus_per_worker=6), small, share_cpus=True)
    apart = Available(8, 1, "the cluster", (Machine(1, 1), Machine(7, 0)))
    with pytest.raises(ClusterError, match="with 2 CPUs and a GPU each"):
        allocate(ScaleConfig(workers=1, cpus_per_worker=2, use_gpu=True), apart, share_cpus=True)


def test_an_autoscaler_counts_as_what_it_may_bring() -> None:
    growing = Available(4, 0, "the cluster", (Machine(4, 0),), can_grow_to=(36, 8))
    assert allocate(ScaleConfig(workers=4), growing, share_cpus=False) == Allocation(4, 1, 1), "auto waits for the GPUs"
    with pytest.raises(ClusterError, match="9 workers with a GPU each were asked for, the cluster can grow to 8 GPUs"):
        allocate(ScaleConfig(workers=9, use_gpu=True), growing, share_cpus=True)
    assert concurrency(Allocation(1, 1, 1), growing, None) == (8, "8 GPUs / 1 per trial")


def test_of_an_elastic_run_no_more_workers_are_kept_than_the_machines_carry() -> None:
    elastic = Allocation(1, 3, 0, 8)
    assert largest(elastic, Available(8, 0)) == Allocation(1, 3, 0, 2)
    apart = Available(8, 0, machines=(Machine(4, 0), Machine(4, 0), Machine(2, 0)))
    assert carried(elastic, apart) == 2, "no worker lies on two machines"
    assert largest(elastic, Available(8, 0, can_grow_to=(64, 0))) == elastic
    assert not largest(elastic, Available(3, 0)).is_elastic
    assert largest(Allocation(2, 2, 0), Available(1, 0)) == Allocation(2, 2, 0), "a fixed number stays"
