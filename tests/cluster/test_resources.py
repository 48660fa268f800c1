"""What a run gets of what there is, and the refusals; numbers only."""

from __future__ import annotations

import pytest

from raysweep.cluster.resources import Allocation, Available, allocate, concurrency
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
