"""Training in Ray Train's TorchTrainer: the only module that imports ray.train.

Ray starts the workers of one attempt; what they compute is loop.py's, they talk through mailbox.py, and when another
attempt follows, with how many workers, is elastic.py's.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from raysweep.cluster.capacity import workers_name
from raysweep.data.dataset import open_dataset
from raysweep.experiment import Experiment
from raysweep.plugins import find_modules_in
from raysweep.store.directory import SCRATCH
from raysweep.store.disk import disk_error
from raysweep.train.failures import classify
from raysweep.train.gate import Gate
from raysweep.train.loop import train
from raysweep.train.mailbox import Mailbox, WorkerError, mail_directory
from raysweep.train.runtime import ProcessGroupRuntime

_PEER_WAIT_S = 2.0
_NOT_NEEDED = ("DatasetsCallback", "PlacementGroupCleanerCallback")
_FAILURE_FIELDS = {field.name for field in dataclasses.fields(ray.train.FailureConfig)}
# The next attempt is elastic.py's; Ray would start it with the same number of workers. Older Rays do not know the last one.
_NO_RETRIES = {
    name: 0 for name in ("max_failures", "controller_failure_limit", "max_preemption_failures") if name in _FAILURE_FIELDS
}


class RayTrainRuntime(ProcessGroupRuntime):
    """One worker of a TorchTrainer, whose process group Ray has set up."""

    def __init__(self, directory: Path, mailbox: Mailbox, attempt: int) -> None:
        device = ray.train.torch.get_device()
        super().__init__(directory, device, on_row=mailbox.put_row, wishes=mailbox.wishes, attempt=attempt)
        self._mailbox = mailbox

    def began(self, step: int, total_steps: int) -> None:
        self._mailbox.put_began(step, total_steps)

    def step_done(self, step: int) -> None:
        self._mailbox.put_step(step)


def _worker(config: dict[str, Any]) -> None:
    """What each of Ray Train's workers runs.

    An error in the code or the data is left in the mailbox, where it is found whole and at once, and the worker ends;
    only the loss of another worker is raised to Ray.
    """
    directory = Path(config["directory"])
    mailbox = Mailbox(directory, config["attempt"])
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(config["threads"])
    find_modules_in(config["started_in"])
    try:
        mailbox.put_place(rank, ray.get_runtime_context().get_node_id())
        experiment = Experiment.model_validate_json(config["experiment"])
        runtime = RayTrainRuntime(directory, mailbox, config["attempt"])
        outcome = train(experiment, open_dataset(experiment.data), runtime)
        if rank == 0:
            mailbox.put_outcome(outcome)
    except Exception as error:
        met = disk_error(error, directory) or error
        is_lost = classify(type(met).__name__, str(met), draining=False) == "lost_worker"
        if is_lost and not _peer_failed(mailbox):
            raise
        if not is_lost:
            try:
                mailbox.put_failure(rank, met, traceback.format_exc())
            except OSError:
                raise met from None  # a full disk takes no mail either: Ray carries it
        # The others may wait in a collective for this worker: closing the group lets them go.
        torch.distributed.destroy_process_group()


def _peer_failed(mailbox: Mailbox) -> bool:
    """Whether the peer that was lost left an error; if it was killed, it did not."""
    until = time.monotonic() + _PEER_WAIT_S
    while time.monotonic() < until:
        if mailbox.failure():
            return True
        time.sleep(0.05)
    return False


class _Trainer(ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """TorchTrainer without two of its helper processes, for whose imports the workers would wait on few cores.

    One hands out Ray Data sets, which are not used here. The other looks after the placement group of a controller that was
    killed; Workers does so itself, also for the cases that it misses. Measured with benchmarks/train_overhead.py.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ not in _NOT_NEEDED]


class Workers:
    """A TorchTrainer with a fixed number of workers, in a thread of its own: the workers of one attempt.

    Args:
        experiment: with absolute data paths.
        directory: the trial's directory, which every machine must see.
        attempt: its number; the attempt's mailbox must be open, and lets the workers in.
        number: of workers.
        cpus_per_worker: CPUs, and torch threads, of each.
        gpus_per_worker: GPUs of each, 0 to 1.
        started_in: where the user's own modules lie.
    """

    def __init__(
        self,
        experiment: Experiment,
        directory: Path,
        attempt: int,
        number: int,
        cpus_per_worker: int,
        gpus_per_worker: float,
        started_in: str,
    ) -> None:
        # A name of its own for each attempt: Ray would go on from its own state of an earlier run of the same name.
        self._name = f"{workers_name(directory.name)}{attempt}-{os.urandom(4).hex()}"
        self._scratch = directory / SCRATCH
        resources: dict[str, float] = {"CPU": cpus_per_worker}
        if gpus_per_worker:
            resources["GPU"] = gpus_per_worker
        self._trainer = _Trainer(
            _worker,
            train_loop_config={
                "experiment": experiment.model_dump_json(exclude_unset=True),
                "directory": str(directory),
                "attempt": attempt,
                "started_in": started_in,
                "threads": cpus_per_worker,
            },
            torch_config=ray.train.torch.TorchConfig(timeout_s=experiment.scale.collective_timeout_s),
            scaling_config=ray.train.ScalingConfig(
                num_workers=number, use_gpu=bool(gpus_per_worker), resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(
                name=self._name,
                storage_path=str(self._scratch),
                failure_config=ray.train.FailureConfig(**_NO_RETRIES),
                callbacks=[Gate(mail_directory(directory, attempt), self._name)],
            ),
        )
        self._error: WorkerError | None = None
        self._thread = threading.Thread(target=self._run, name="raysweep-fit", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as error:
            # Not the exception itself: its traceback would keep Ray's controller alive, and with it the workers' CPUs.
            self._error = _told(error)

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether the workers have ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def error(self) -> WorkerError | None:
        """What Ray says of their end, if it was no good one: of the first worker that failed, or of Ray itself."""
        return self._error

    def clean_up(self) -> None:
        """Delete what Ray has written about the attempts of this run."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def _told(error: BaseException) -> WorkerError:
    failures = list((getattr(error, "worker_failures", None) or {}).values()) or [error]
    if any(getattr(failure, "preempted", False) for failure in failures):
        return WorkerError("PreemptionError", str(failures[0]).strip(), str(error))
    # Ray wraps what a worker raised. The loss of a peer is only an echo of what happened to the peer.
    causes = [getattr(f, "_base_exc", None) or getattr(f, "cause", None) or f for f in failures]
    told = [WorkerError(type(cause).__name__, str(cause).strip(), str(error)) for cause in causes]
    return next((t for t in told if classify(t.type, t.message, draining=False) != "lost_worker"), told[0])
