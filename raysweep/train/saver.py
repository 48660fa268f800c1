"""When a checkpoint is written, and how it costs next to nothing: a copy in memory, written by a thread while training goes on.

What a checkpoint is on the disk is checkpoint.py's.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from raysweep.data.dataset import Dataset
from raysweep.errors import CheckpointError, DiskError
from raysweep.experiment import Experiment
from raysweep.train import checkpoint
from raysweep.train.progress import Progress
from raysweep.train.runtime import Row, Runtime

SHARE = 0.01
"""How much of the time checkpoints at epoch ends may cost, where their number is not set."""
_GUESS_S, _GUESS_S_PER_BYTE = 0.005, 2e-9


def is_worth(cost_s: float, passed_s: float) -> bool:
    """Whether a checkpoint that costs `cost_s` is at most SHARE of the seconds since the last one."""
    return cost_s <= SHARE * passed_s


def host_copy(value: Any, reuse: Any = None) -> Any:
    """A copy in host memory of nested dicts and lists with tensors; from a GPU without waiting, into pinned memory.

    Args:
        value: such as a state_dict.
        reuse: an earlier copy, whose tensors are overwritten where they fit: fresh memory costs three times the copying.
    """
    if isinstance(value, Tensor):
        value = value.detach()
        fits = isinstance(reuse, Tensor) and (reuse.shape, reuse.dtype, reuse.stride()) == (
            value.shape, value.dtype, value.stride()
        )  # fmt: skip
        target = reuse if fits else torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return target.copy_(value, non_blocking=True)
    if type(value) in (dict, OrderedDict):
        earlier = reuse if isinstance(reuse, dict) else {}
        copied = type(value)((key, host_copy(item, earlier.get(key))) for key, item in value.items())
        if hasattr(value, "_metadata"):  # the versions of a module's layers
            copied._metadata = value._metadata
        return copied
    if type(value) in (list, tuple):
        olds = reuse if type(reuse) is type(value) and len(reuse) == len(value) else [None] * len(value)
        return type(value)(host_copy(item, old) for item, old in zip(value, olds, strict=True))
    return copy.deepcopy(value)


def num_bytes(value: Any) -> int:
    """The size of all tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        return value.nbytes
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(num_bytes(item) for item in items)


class Saver:
    """Writes checkpoints, on rank 0 only, and knows when one is due. A context manager: no thread is left behind.

    At most one checkpoint is being written. An error of writing is raised by the next call of any method.

    Args:
        experiment: when to save; it is kept in each checkpoint.
        dataset: the shapes of its images likewise.
        runtime: rank and directory.
        model: the model itself, not what wraps or compiles it.
        optimizer: over the model's parameters.
    """

    def __init__(
        self, experiment: Experiment, dataset: Dataset, runtime: Runtime, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._config, self._model, self._optimizer = experiment.train, model, optimizer
        self._directory, self._device, self._is_writer = runtime.directory, runtime.device, runtime.rank == 0
        self._about = {
            "experiment": experiment.model_dump_json(exclude_unset=True),
            "x_shape": [int(n) for n in dataset.samples.x.shape[1:]],
            "y_shape": [int(n) for n in dataset.samples.y.shape[1:]],
        }
        # Copies in host memory, used again and again.
        self._state: dict[str, Any] = {}
        self._weights: dict[str, Any] = {}
        self._best: dict[str, Any] | None = None  # what best.pt has yet to become
        # The thread that writes.
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        # What a checkpoint costs, and when the last one was taken.
        self._saved_at = time.monotonic()
        self._saved_step = self._epoch_ended_step = -1
        self._copy_s = 0.0
        self._write_s: float | None = None

    def is_due(self) -> bool:
        """Whether rank 0 wants a checkpoint now, for the time that has passed.

        Raises:
            CheckpointError, DiskError: the one before could not be written.
        """
        every = self._config.checkpoint_every_s
        if not self._is_writer or self._is_writing():
            return False
        return every is not None and time.monotonic() - self._saved_at >= every

    def save(self, progress: Progress, wait: bool) -> None:
        """Save everything that a run needs to go on.

        Args:
            progress: where the run stands; model and optimizer must stand there too.
            wait: return when it is on the disk. Otherwise it is put off, and stays due, while another one is being written.

        Raises:
            CheckpointError, DiskError: this one (`wait`) or the one before could not be written.
        """
        if not self._is_writer:
            return
        if wait:
            self._join()
        elif self._is_writing():
            return
        self._start(self._snapshot(progress))
        if wait:
            self._join()

    def end_of_epoch(self, progress: Progress, done: int, row: Row, is_end: bool) -> None:
        """Keep the best epoch's weights; save where it is time for it, and at the run's end.

        Args:
            progress: the position, at the start of the next epoch.
            done: the epoch that has ended.
            row: its row.
            is_end: whether the run ends with it; then the checkpoint is waited for.

        Raises:
            CheckpointError, DiskError: as save().
        """
        if not self._is_writer:
            return
        self._epoch_ended_step = progress.global_step
        every = self._config.checkpoint_every_epochs
        if is_end or (every is not None and done % every == 0):
            self._join()  # the one in flight: what was asked for is not put off
            saves = True
        else:
            saves = not self._is_writing() and (self.is_due() or (every is None and self._is_worth()))
        content = self._snapshot(progress) if saves else None
        if progress.best_epoch == done:
            weights = content["model"] if content else self._copy_weights()
            self._best = {**self._about, "model": weights, "epoch": done, "val_loss": row["val_loss"]}
        if content:
            self._start(content)
        if is_end:
            self._join()

    @contextmanager
    def saved_if_ended_here(self, progress: Progress) -> Iterator[None]:
        """Between two epochs: where the caller is told to end (Ctrl-C, a trial that Ray Tune stops), save before that."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if self._saved_step != progress.global_step == self._epoch_ended_step:
                self.save(progress, wait=True)
            raise

    def close(self) -> None:
        """Finish what is being written, and best.pt.

        Raises:
            CheckpointError, DiskError: it could not be written.
        """
        self._join()
        if self._best is not None:
            self._start(None)
            self._join()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except (CheckpointError, DiskError) as failure:
            if error is None:
                raise
            # The error that ends the run must not be hidden by this one.
            if error is not failure:
                warnings.warn(str(failure), RuntimeWarning, stacklevel=2)

    def _is_worth(self) -> bool:
        write_s = self._write_s
        if write_s is None:  # not measured yet
            size = num_bytes(self._model.state_dict()) + num_bytes(self._optimizer.state_dict())
            write_s = _GUESS_S + _GUESS_S_PER_BYTE * size
        return is_worth(self._copy_s + write_s, time.monotonic() - self._saved_at)

    def _snapshot(self, progress: Progress) -> dict[str, Any]:
        """Everything, as it is now, in host memory. Nothing may be in flight: its memory is used again."""
        began = time.perf_counter()
        self._saved_at = time.monotonic()
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        self._state = host_copy(state, self._state)
        self._synchronize()
        self._copy_s = time.perf_counter() - began
        self._saved_step = progress.global_step
        return {**self._about, **self._state, "progress": asdict(progress)}

    def _copy_weights(self) -> dict[str, Any]:
        self._weights = host_copy(self._model.state_dict(), None if self._is_writing() else self._weights)
        self._synchronize()
        return self._weights

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _start(self, content: dict[str, Any] | None) -> None:
        """Write in the background: best.pt if it is to change, before any checkpoint that knows of its epoch, then `content`."""
        best, self._best = self._best, None
        self._thread = threading.Thread(target=self._write, args=(best, content), name="raysweep-saver", daemon=True)
        self._thread.start()

    def _write(self, best: dict[str, Any] | None, content: dict[str, Any] | None) -> None:
        began = time.thread_time()
        try:
            if best is not None:
                checkpoint.save(self._directory / "best.pt", best)
            if content is not None:
                checkpoint.save_numbered(self._directory, content["progress"]["global_step"], content)
                self._write_s = time.thread_time() - began
        except BaseException as error:
            self._error = error

    def _is_writing(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return True
        self._join()
        return False

    def _join(self) -> None:
        """Wait for the thread, and raise what it has met."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
