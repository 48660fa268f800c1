"""Joining the Ray cluster that is there, or starting one on this machine for as long as it is needed."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raysweep.cluster.capacity import all_machines, can_grow_to
from raysweep.cluster.resources import Available
from raysweep.errors import ClusterError

_REACHED_S = 10.0

_ENVIRONMENT = {
    # Trials write no CSV, JSON and TensorBoard files of Tune's own: the journal holds the rows.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    # Nor does Tune save its own state while it runs: nothing is restored from it, and it holds every trial so far.
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    # The driver looks for machines that are about to go (capacity.py); Ray Train's own watcher is one more process a run.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Workers are started when there is room for them. If it goes in that moment, the next attempt must not wait for a minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "15",
    # A stopped trial with several workers lets them end at a step boundary before its actor takes the next trial; after
    # Tune's own 2 s the next one would be lost.
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "300",
}


@dataclass(frozen=True)
class Cluster:
    """The cluster that work runs on.

    Attributes:
        joined: whether it was there before.
        address: of its head.
        available: CPUs and GPUs of all its machines.
        num_machines: machines alive.
    """

    joined: bool
    address: str
    available: Available
    num_machines: int

    def describe(self) -> str:
        """One line for people."""
        machines = f"{self.num_machines} machine{'' if self.num_machines == 1 else 's'}"
        what = f"joined the Ray cluster at {self.address}" if self.joined else "started Ray on this machine"
        return f"{what}: {machines}, {self.available.cpus} CPUs, {self.available.gpus} GPUs"


def running_cluster() -> str | None:
    """The address of a cluster to join: this process's own, RAY_ADDRESS, or one that `ray start` made on this machine.

    Raises:
        ClusterError: the only Ray here belongs to another program; two on one machine end each other's trials, and
            joining it would end with that program.
    """
    import ray
    from ray._private.services import find_bootstrap_address, find_gcs_addresses

    if ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return None if address == "local" else address
    owned = find_gcs_addresses()
    started: str | None = find_bootstrap_address(None)
    if started and started in owned:
        return started
    if owned:
        raise ClusterError(
            f"another program runs its own Ray on this machine ({', '.join(sorted(owned))}), "
            "and two Rays on one machine end each other's trials; wait until it has ended, "
            "or share one: `ray start --head`, then run both"
        )
    return None


def available_here() -> Available:
    """CPUs and GPUs that a cluster started on this machine would have."""
    import torch
    from ray._private.utils import get_num_cpus

    return Available(int(get_num_cpus()), torch.cuda.device_count())


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Environment variables for the time of a block; Ray's workers inherit them from whoever starts them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def connected(*, poll_s: float = 0.1, verbose: bool = False) -> Iterator[Cluster]:
    """A Ray cluster for the time of a block. One that is there is joined and left running, a new one is shut down.

    Args:
        poll_s: how often Ray Train's controller looks at its workers, seconds.
        verbose: let Ray and the workers write to this terminal.

    Raises:
        ClusterError: the cluster cannot be joined or started.
    """
    import ray

    variables = {**_ENVIRONMENT, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(poll_s)}
    # A worker must find the user's own modules where the driver found them.
    paths = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    with environment(**variables), _quiet(verbose):
        if ray.is_initialized():
            yield _cluster(joined=True)
            return
        address = running_cluster()
        try:
            if address:
                _check_reachable(address)
                ray.init(address=address, log_to_driver=verbose, runtime_env={"env_vars": variables}, **_logging(verbose))
            else:
                here = available_here()
                # The dashboard stays on, on loopback: Ray Train's placement group cleaner asks it and fails without.
                ray.init(
                    address="local", num_cpus=here.cpus, num_gpus=here.gpus, include_dashboard=True, dashboard_host="127.0.0.1",
                    log_to_driver=verbose, **_logging(verbose),
                )  # fmt: skip
        except Exception as error:
            where = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
            raise ClusterError(f"cannot {where}: {error}; check RAY_ADDRESS, or set it to `local` to start one here") from error
        try:
            yield _cluster(joined=address is not None)
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ask at `host:port` whether anybody is there: Ray itself tries for many minutes, and says so in its own words only."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=_REACHED_S):
            pass


def _logging(verbose: bool) -> dict[str, object]:
    return {} if verbose else {"logging_level": logging.CRITICAL}


@contextlib.contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    """Ray's own loggers quiet for the time of a block: what matters of their errors is told by raysweep."""
    loggers = [] if verbose else [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train", "ray.data")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _cluster(joined: bool) -> Cluster:
    import ray

    machines = tuple(all_machines().values())
    available = Available(
        int(sum(m.cpus for m in machines)),
        int(sum(m.gpus for m in machines)),
        "the cluster" if joined else "this machine",
        machines,
        can_grow_to() if joined else None,
    )
    return Cluster(joined, str(ray.get_runtime_context().gcs_address), available, sum(node["Alive"] for node in ray.nodes()))
