"""A storage directory that only some machines see is refused; the machines' answers are played, Ray is not started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysweep.cluster.join import Cluster
from raysweep.cluster.resources import Available
from raysweep.cluster.shared import check_shared
from raysweep.errors import ClusterError
from raysweep.store.directory import SweepDirectory

NODES = [{"Alive": True, "NodeManagerAddress": f"10.0.0.{n}", "NodeID": f"{n:056x}"} for n in (1, 2)]


class Task:
    """A remote function whose answer is found on the machine that it is asked of."""

    def __init__(self, function: Callable[[str], bool], blind: set[str]) -> None:
        self.function, self.blind = function, blind

    def options(self, scheduling_strategy: Any) -> Task:
        self.node = scheduling_strategy.node_id
        return self

    def remote(self, path: str) -> bool:
        return self.function(path) and self.node not in self.blind


def play(monkeypatch: pytest.MonkeyPatch, blind: set[str]) -> None:
    import ray

    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    monkeypatch.setattr(ray, "remote", lambda **_options: lambda function: Task(function, blind))
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)


def cluster(machines: int) -> Cluster:
    return Cluster(True, "10.0.0.1:1", Available(4, 0, "the cluster"), machines)


def test_storage_that_one_machine_does_not_see_is_refused_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, blind={str(NODES[1]["NodeID"])})
    directory = SweepDirectory.create(tmp_path, "s")
    with directory.locked(), pytest.raises(ClusterError, match=r"not seen by 1 of 2 machines \(10\.0\.0\.2\).*--storage"):
        check_shared(directory, cluster(2))
    assert not directory.path.exists()


def test_a_sweep_that_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, blind={str(NODES[1]["NodeID"])})
    directory = SweepDirectory.create(tmp_path, "s")
    directory.journal.write_text("what was trained\n")
    with directory.locked(), pytest.raises(ClusterError, match="not seen by 1 of 2 machines"):
        check_shared(directory, cluster(2))
    assert directory.journal.read_text() == "what was trained\n"


def test_storage_that_all_machines_see_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, blind=set())
    directory = SweepDirectory.create(tmp_path, "s")
    check_shared(directory, cluster(2))
    assert list(directory.path.iterdir()) == []


def test_one_machine_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.nodes", lambda: pytest.fail("asked"))
    check_shared(SweepDirectory.create(tmp_path, "s"), cluster(1))
