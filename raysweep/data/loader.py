"""Batches for the loop: gathered on the CPU ahead of time, scaled and noised on the device.

Which samples a batch holds is decided by order.py.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.data.noise import Noise
from raysweep.data.samples import Indices, Samples, pixel_range


@dataclass(frozen=True)
class Batch:
    """One rank's part of a step.

    Attributes:
        x: float32 [B, C, H, W], noised, in channels-last memory.
        y: float32 [B, C, H, W], the expected output.
        keys: int64 [B], for noise and dropout.
    """

    x: Tensor
    y: Tensor
    keys: Tensor


@dataclass(frozen=True)
class Request:
    """The samples of one batch: indices into the data set and their keys, both int64 [B]."""

    samples: Indices
    keys: Indices


class Loader:
    """Turns requests into batches. With a GPU or a memory-mapped file a thread gathers two requests ahead.

    Attributes:
        wait_s: seconds that the loop has waited for data since the loader was made.
    """

    def __init__(self, samples: Samples, noise_std: float, device: torch.device) -> None:
        self._x, self._y = samples.x, samples.y
        self._device = device
        self._noise = Noise(noise_std, int(np.prod(samples.x.shape[1:])), device)
        on_disk = isinstance(samples.x, np.memmap) or isinstance(samples.y, np.memmap)
        self._ahead = 2 if device.type != "cpu" or on_disk else 0
        self.wait_s = 0.0

    def _gather(self, request: Request) -> tuple[Tensor, Tensor | None, Tensor]:
        x = torch.from_numpy(self._x[request.samples])
        y = None if self._y is self._x else torch.from_numpy(self._y[request.samples])
        keys = torch.from_numpy(request.keys)
        if self._device.type == "cuda":
            return x.pin_memory(), None if y is None else y.pin_memory(), keys.pin_memory()
        return x, y, keys

    def _finish(self, x: Tensor, y: Tensor | None, keys: Tensor) -> Batch:
        keys = keys.to(self._device, non_blocking=True)
        clean = self._scaled(x, self._x.dtype)
        target = clean if y is None else self._scaled(y, self._y.dtype)
        noised = self._noise.add(clean, keys)
        if noised is target:
            # A model may begin with an operation in place, which must not reach what is expected of it.
            target = target.clone()
        # [B, H, W, C] seen as [B, C, H, W] is channels-last memory already: no copy.
        return Batch(noised.permute(0, 3, 1, 2), target.permute(0, 3, 1, 2), keys)

    def _scaled(self, images: Tensor, dtype: np.dtype[np.generic]) -> Tensor:
        images = images.to(self._device, non_blocking=True).to(torch.float32)
        full = pixel_range(dtype)
        return images if full == 1 else images.mul_(1 / full)

    def batches(self, requests: Iterable[Request]) -> Generator[Batch, None, None]:
        """One batch per request, in order; closing the iterator ends the thread."""
        gathered = self._gathered_ahead(requests) if self._ahead else map(self._gather, requests)
        try:
            while True:
                started = time.perf_counter()
                parts = next(gathered, None)
                if parts is None:
                    return
                batch = self._finish(*parts)
                self.wait_s += time.perf_counter() - started
                yield batch
        finally:
            if self._ahead:
                gathered.close()  # type: ignore[attr-defined]

    def _gathered_ahead(self, requests: Iterable[Request]) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        ready: queue.Queue[tuple[Tensor, Tensor | None, Tensor] | BaseException | None] = queue.Queue(self._ahead)
        closed = threading.Event()

        def put(item: tuple[Tensor, Tensor | None, Tensor] | BaseException | None) -> bool:
            while not closed.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def work() -> None:
            try:
                for request in requests:
                    if not put(self._gather(request)):
                        return
                put(None)
            except BaseException as error:
                put(error)

        thread = threading.Thread(target=work, name="raysweep-loader", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            closed.set()
            thread.join()
            # An error's traceback leads to this frame: holding it here would keep both, and the file, until a collection.
            item = None
            ready.queue.clear()
