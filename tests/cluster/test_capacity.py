"""What is free, about to go, or may come, read from Ray's answers; they are played, Ray is not started."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from ray._private.state import GlobalState

from raysweep.cluster import capacity
from raysweep.cluster.resources import Machine
from raysweep.errors import ClusterError


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two machines, of which the second one has been told to go; a test changes the answers in place."""
    answers: dict[str, Any] = {
        "total_resources_per_node": {"a": {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}, "b": {"CPU": 8.0}},
        "available_resources_per_node": {"a": {"CPU": 1.0}, "b": {"CPU": 8.0}},
        "get_draining_nodes": {"b": 1_700_000_000_000},
        "get_max_resources_from_cluster_config": None,
    }
    for name in answers:
        monkeypatch.setattr(GlobalState, name, lambda _self, name=name: answers[name])
    return answers


def test_a_machine_that_is_about_to_go_has_nothing_free(cluster: dict[str, Any]) -> None:
    assert capacity.free_machines() == {"a": Machine(1, 0)}
    assert capacity.all_machines() == {"a": Machine(4, 1)}
    assert capacity.draining_nodes() == {"b": 1_700_000_000_000}
    cluster["get_draining_nodes"] = {}
    assert capacity.free_machines() == {"a": Machine(1, 0), "b": Machine(8, 0)}


def test_a_machine_that_is_dead_but_still_told_of_has_nothing_free(cluster: dict[str, Any]) -> None:
    cluster["total_resources_per_node"] = {"a": {"CPU": 4.0}}
    cluster["available_resources_per_node"] = {"a": {}, "dead": {"CPU": 9.0}}
    assert capacity.free_machines() == {"a": Machine(0, 0)}


def test_an_autoscalers_limit_counts_where_there_is_one(cluster: dict[str, Any]) -> None:
    assert capacity.can_grow_to() is None
    cluster["get_max_resources_from_cluster_config"] = {"CPU": 32, "GPU": 8}
    assert capacity.can_grow_to() == (32, 8)
    cluster["get_max_resources_from_cluster_config"] = {"CPU": 2, "GPU": sys.maxsize}
    assert capacity.can_grow_to() == (4, 1_000_000), "never less than there is now; no limit is a large number"


def test_the_autoscaler_is_asked_for_one_bundle_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(bundles))
    capacity.ask_autoscaler(2, 4, 1)
    capacity.ask_autoscaler(0, 4, 1)
    assert asked == [[{"CPU": 4, "GPU": 1}] * 2, []]


def test_a_cluster_that_does_not_answer_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_self: GlobalState) -> None:
        raise RuntimeError("Failed to connect to GCS")

    monkeypatch.setattr(GlobalState, "get_draining_nodes", gone)
    with pytest.raises(ClusterError, match="does not answer: Failed to connect to GCS"):
        capacity.free_machines()


def test_only_left_over_placement_groups_of_a_run_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {
        "1": {"name": "raysweep-abc-1-x", "state": "CREATED"},
        "2": {"name": "raysweep-abc-2-y", "state": "REMOVED"},
        "3": {"name": "raysweep-other-1-z", "state": "CREATED"},
        "4": {"name": "", "state": "CREATED"},
    }
    removed: list[str] = []
    monkeypatch.setattr("ray.util.placement_group_table", lambda: groups)
    monkeypatch.setattr("ray.util.get_placement_group", lambda name: name)
    monkeypatch.setattr("ray.util.remove_placement_group", removed.append)
    capacity.free_leftovers(["abc"])
    assert removed == ["raysweep-abc-1-x"]
    capacity.free_leftovers([])
    assert removed == ["raysweep-abc-1-x"], "of no trial: nothing"
