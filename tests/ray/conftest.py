"""One Ray cluster for all tests in here: two at once on a machine end each other's trials."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from raysweep.cluster import join
from raysweep.cluster.join import Cluster, connected
from raysweep.cluster.resources import Available

pytestmark = pytest.mark.ray


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/ray/" in item.path.as_posix():
            item.add_marker(pytest.mark.ray)
    if "chaos" not in config.option.markexpr:
        items[:] = [item for item in items if item.get_closest_marker("chaos") is None]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two CPUs and no GPU, whatever this machine has: how many trials run at a time follows from that."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join, "available_here", lambda: Available(2, 0))
        with connected() as joined:
            yield joined


@pytest.fixture
def resources_return(cluster: Cluster) -> Iterator[None]:
    """Fails a test after which CPUs stay taken."""
    import ray

    yield
    until = time.monotonic() + 120
    while ray.available_resources().get("CPU", 0) < cluster.available.cpus:
        assert time.monotonic() < until, f"CPUs are still held: {ray.available_resources()}"
        time.sleep(0.2)
