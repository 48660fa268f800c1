"""What the cluster has at this moment: free CPUs and GPUs of each machine, machines about to go, what an autoscaler may add.

The calls below are Ray's own (ray._private.state, which Ray Serve and Ray Train use too): there are no public ones for a
single machine's free resources or for drained machines. Only this module makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from raysweep.cluster.resources import Machine
from raysweep.errors import ClusterError

_NO_LIMIT = 1_000_000


@contextmanager
def _asking() -> Iterator[None]:
    import ray

    try:
        yield
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise ClusterError(f"the Ray cluster does not answer: {error}; is its head alive?") from error


def free_machines() -> dict[str, Machine]:
    """What is free now on each machine that is alive and not about to go, by node id.

    Raises:
        ClusterError: the cluster does not answer; so for all functions in here that ask it.
    """
    from ray._private.state import state

    going = draining_nodes()
    with _asking():
        per_node, alive = state.available_resources_per_node(), state.total_resources_per_node()
    return {node: _machine(per_node.get(node, {})) for node in alive if node not in going}


def all_machines() -> dict[str, Machine]:
    """What each machine has that is alive and not about to go, by node id."""
    from ray._private.state import state

    going = draining_nodes()
    with _asking():
        return {node: _machine(has) for node, has in state.total_resources_per_node().items() if node not in going}


def _machine(resources: dict[str, float]) -> Machine:
    return Machine(resources.get("CPU", 0), resources.get("GPU", 0))


def draining_nodes() -> dict[str, int]:
    """Machines that have been told to go: node id and when, in ms since 1970 (0: not said)."""
    from ray._private.state import state

    with _asking():
        return dict(state.get_draining_nodes())


def can_grow_to() -> tuple[int, int] | None:
    """CPUs and GPUs that an autoscaler may bring the cluster to; None where there is no autoscaler."""
    from ray._private.state import state

    with _asking():
        most = state.get_max_resources_from_cluster_config()
    if not most:
        return None
    now = list(all_machines().values())
    has = (int(sum(m.cpus for m in now)), int(sum(m.gpus for m in now)))
    # A group of machines without a limit counts as sys.maxsize.
    limit = (min(int(most.get("CPU", 0)), _NO_LIMIT), min(int(most.get("GPU", 0)), _NO_LIMIT))
    return (max(has[0], limit[0]), max(has[1], limit[1]))


def workers_name(trial_key: str) -> str:
    """How the names of a trial's trainers begin, and of the placement groups that hold its workers' CPUs."""
    return f"raysweep-{trial_key}-"


def free_leftovers(trial_keys: Iterable[str]) -> None:
    """Give back what placement groups of these trials still hold; Ray keeps those of a dead actor until its job ends."""
    from ray.util import get_placement_group, placement_group_table, remove_placement_group

    names = tuple(workers_name(key) for key in trial_keys)
    for group in placement_group_table().values():
        if group["name"].startswith(names) and group["state"] != "REMOVED":
            remove_placement_group(get_placement_group(group["name"]))


def ask_autoscaler(workers: int, cpus_per_worker: int, gpus_per_worker: float) -> None:
    """Ask an autoscaler for room for so many workers; 0 takes the wish back. Nothing happens where there is none."""
    from ray.autoscaler.sdk import request_resources

    bundle = {"CPU": cpus_per_worker, **({"GPU": gpus_per_worker} if gpus_per_worker else {})}
    request_resources(bundles=[bundle] * workers)
