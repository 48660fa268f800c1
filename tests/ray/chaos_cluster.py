"""A Ray cluster of several nodes on this machine, and what can happen to it: faults, and seeded schedules of them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

MAX_NODES = 3


@dataclass(frozen=True)
class Fault:
    """One thing that happens: `kill` a worker process, `remove`, `add` or `drain` a machine.

    Attributes:
        kind: which of them.
        after_s: seconds after the fault before it, or after training began.
        pick: which of the workers or machines there are then, 0 <= pick < 1.
        notice_s: drain: seconds until the machine is taken away.
    """

    kind: str
    after_s: float
    pick: float
    notice_s: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """The faults of one run, in order."""

    faults: tuple[Fault, ...]

    @classmethod
    def random(cls, seed: int, faults: int = 3, nodes: int = 2) -> Schedule:
        """The same schedule for the same seed; there is always a machine, and never more than MAX_NODES."""
        draw = random.Random(seed)
        found = []
        for number in range(faults):
            kinds = ["kill", *(["remove", "drain"] if nodes > 1 else []), *(["add"] if nodes < MAX_NODES else [])]
            kind = draw.choice(kinds)
            nodes += {"add": 1, "kill": 0}.get(kind, -1)
            after_s = draw.uniform(1, 6) if number == 0 else draw.uniform(4, 18)
            found.append(Fault(kind, round(after_s, 1), draw.random(), round(draw.uniform(2, 6), 1) if kind == "drain" else 0.0))
        return cls(tuple(found))


class ChaosCluster:
    """A head without CPUs, which the driver of a run lives on, and machines with one CPU each. Main thread only."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "dashboard_host": "127.0.0.1"})
        self.address = str(self._cluster.address)
        self._nodes: list[Any] = []
        self._going: list[tuple[float, Any]] = []

    def __enter__(self) -> ChaosCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()

    def reset(self, nodes: int = 2) -> None:
        """So many machines, none of them about to go."""
        self.take_away(now=float("inf"))
        while len(self._nodes) > nodes:
            self.remove(0.0)
        while len(self._nodes) < nodes:
            self.add()
        self._cluster.wait_for_nodes()

    def add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=1))

    def remove(self, pick: float) -> None:
        """A machine is gone from one moment to the next."""
        self._kill_node(self._nodes.pop(int(pick * len(self._nodes))))

    def drain(self, pick: float, notice_s: float) -> None:
        """A machine is told to go, as `ray drain-node` and cloud providers do, and taken away after `notice_s`."""
        node = self._nodes.pop(int(pick * len(self._nodes)))
        at = time.time() + notice_s
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = ray._raylet.GcsClient(address=self.address).drain_node(node.node_id, reason, "chaos", int(at * 1000))
        assert accepted, why
        self._going.append((at, node))

    def take_away(self, now: float) -> None:
        """Remove the machines whose time is over. Ray itself leaves them, and their actors, alive."""
        for at, node in [going for going in self._going if going[0] <= now]:
            self._going.remove((at, node))
            self._kill_node(node)

    def _kill_node(self, node: Any) -> None:
        children = [child for raylet in _raylets(node) for child in raylet.children(recursive=True)]
        self._cluster.remove_node(node, allow_graceful=False)
        # A machine's processes end with it; here they would outlive their raylet for a moment.
        for child in children:
            _kill(child)

    def strike(self, fault: Fault) -> bool:
        """Let a fault happen; False: there was no worker to kill."""
        if fault.kind == "kill":
            return self.kill_worker(fault.pick)
        if fault.kind == "add":
            self.add()
        elif fault.kind == "remove":
            self.remove(fault.pick)
        else:
            self.drain(fault.pick, fault.notice_s)
        return True

    def workers(self) -> list[psutil.Process]:
        """The training processes: children of this cluster's own raylets."""
        nodes = [*self._nodes, *(node for _, node in self._going)]
        children = [child for node in nodes for raylet in _raylets(node) for child in raylet.children()]
        return [child for child in children if "TrainWorker" in _title(child)]

    def kill_worker(self, pick: float, wait_s: float = 120.0) -> bool:
        """SIGKILL one of the training processes; between two attempts, as soon as there is one."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            found = self.workers()
            if found and _kill(found[int(pick * len(found))]):  # it may have ended since it was found
                return True
            time.sleep(0.1)
        return False

    def cpus_return(self, wait_s: float = 120.0) -> bool:
        """Whether all CPUs become free."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            free = self._cluster.global_state.available_resources_per_node()
            if sum(node.get("CPU", 0) for node in free.values()) == len(self._nodes) and not self.workers():
                return True
            time.sleep(0.2)
        return False


def _raylets(node: Any) -> list[psutil.Process]:
    return [psutil.Process(p.process.pid) for p in node.all_processes["raylet"] if psutil.pid_exists(p.process.pid)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
