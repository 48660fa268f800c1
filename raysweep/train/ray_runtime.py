"""Training in Ray Train's TorchTrainer: the only module that imports ray.train.

Ray starts the workers and replaces lost ones; what they compute is loop.py's, and they talk through mailbox.py.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch

from raysweep.cluster.resources import Allocation
from raysweep.data.dataset import open_dataset
from raysweep.errors import TrialError
from raysweep.experiment import Experiment
from raysweep.plugins import find_modules_in
from raysweep.train.loop import train
from raysweep.train.mailbox import Mailbox
from raysweep.train.progress import Outcome
from raysweep.train.runtime import ProcessGroupRuntime, Row

_PEER_WAIT_S = 2.0
_PEER_SIGNS = ("Connection closed by peer", "Connection reset", "NCCL", "Broken pipe", "gloo")


class RayTrainRuntime(ProcessGroupRuntime):
    """One worker of a TorchTrainer, whose process group Ray has set up."""

    def __init__(self, directory: Path, mailbox: Mailbox) -> None:
        device = ray.train.torch.get_device()
        super().__init__(directory, device, on_row=mailbox.put_row, stop=mailbox.stop_requested)


def _worker(config: dict[str, Any]) -> None:
    """What each of Ray Train's workers runs.

    An exception in here would make Ray start all workers again, which helps against a lost machine but not against an
    error in the code or the data: such an error is left in the mailbox, and the worker ends.
    """
    directory = Path(config["directory"])
    mailbox = Mailbox(directory)
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(config["threads"])
    find_modules_in(config["started_in"])
    try:
        experiment = Experiment.model_validate_json(config["experiment"])
        runtime = RayTrainRuntime(directory, mailbox)
        outcome = train(experiment, open_dataset(experiment.data), runtime)
        if rank == 0:
            mailbox.put_outcome(outcome)
    except Exception as error:
        if _is_lost_peer(error) and not _peer_failed(mailbox):
            raise
        if not _is_lost_peer(error):
            mailbox.put_failure(rank, f"{type(error).__name__}: {error}", traceback.format_exc())
        # The others may wait in a collective for this worker: closing the group lets them go.
        torch.distributed.destroy_process_group()


def _is_lost_peer(error: BaseException) -> bool:
    kinds = (torch.distributed.DistError, RuntimeError)
    return isinstance(error, kinds) and any(sign in str(error) for sign in _PEER_SIGNS)


def _peer_failed(mailbox: Mailbox) -> bool:
    """Whether the peer that was lost left an error; if it was killed, it did not."""
    until = time.monotonic() + _PEER_WAIT_S
    while time.monotonic() < until:
        if mailbox.failure():
            return True
        time.sleep(0.05)
    return False


class _Trainer(ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """TorchTrainer without the actor that hands out Ray Data sets, which are not used here.

    The workers would wait until its process has imported ray.data; measured with benchmarks/train_overhead.py.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ != "DatasetsCallback"]


def fit(
    experiment: Experiment,
    directory: Path,
    allocation: Allocation,
    on_row: Callable[[Row], None],
) -> Outcome:
    """Train an experiment on Ray's workers; blocks until they have ended.

    Args:
        experiment: with absolute data paths.
        directory: the trial's directory, which every machine must see.
        allocation: workers and what each holds.
        on_row: called in this thread with each row; what it raises ends the run cleanly and is raised again.

    Raises:
        TrialError: a worker failed, with its traceback, or workers were lost too often.
    """
    mailbox = Mailbox(directory)
    mailbox.open()
    scratch = directory / ".ray"
    resources: dict[str, float] = {"CPU": allocation.cpus_per_worker}
    if allocation.gpus_per_worker:
        resources["GPU"] = allocation.gpus_per_worker
    trainer = _Trainer(
        _worker,
        train_loop_config={
            "experiment": experiment.model_dump_json(exclude_unset=True),
            "directory": str(directory),
            "started_in": str(Path.cwd()),
            "threads": allocation.cpus_per_worker,
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=allocation.workers, use_gpu=bool(allocation.gpus_per_worker), resources_per_worker=resources
        ),
        # A name of its own for each attempt: Ray would go on from its own state of an earlier run of the same name.
        run_config=ray.train.RunConfig(
            name=f"{directory.name}-{os.urandom(4).hex()}",
            storage_path=str(scratch),
            failure_config=ray.train.FailureConfig(max_failures=experiment.scale.max_failures),
        ),
    )
    failed: list[BaseException] = []

    def run() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="raysweep-fit", daemon=True)
    thread.start()
    try:
        _follow(thread, mailbox, on_row)
        return _outcome(mailbox, failed)
    finally:
        mailbox.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _follow(thread: threading.Thread, mailbox: Mailbox, on_row: Callable[[Row], None]) -> None:
    """Pass rows on until the trainer has ended. An exception asks the workers to stop, and is raised when they have."""
    raised: BaseException | None = None
    refused = False  # by on_row, which is not called again: a trial that Ray Tune has stopped would wait for ever in it
    while True:
        is_last = not thread.is_alive()
        try:
            thread.join(0.1)
            for row in [] if refused else mailbox.new_rows():
                refused = True
                on_row(row)
                refused = False
        except BaseException as error:
            if raised is not None:
                raise  # asked a second time: leave at once
            raised = error
            mailbox.request_stop()
        if is_last:
            break
    if raised is not None:
        raise raised


def _outcome(mailbox: Mailbox, failed: list[BaseException]) -> Outcome:
    failure = mailbox.failure()
    if failure:
        raise TrialError(*failure)
    if failed:
        text = str(failed[0]).strip()
        raise TrialError(f"Ray Train ended the run: {text.splitlines()[0] if text else type(failed[0]).__name__}", text)
    outcome = mailbox.outcome()
    if outcome is None:
        raise TrialError("the workers ended without saying how; see Ray's logs")
    return outcome
