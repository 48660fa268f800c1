"""A network for measurements on a busy machine: its steps sleep, so they take the same time whatever else runs."""

from __future__ import annotations

import time

from torch import Tensor, nn


class SleepingNet(nn.Conv2d):
    """One convolution; a step takes SECONDS for each sample of the worker's share, so it scales perfectly.

    Args:
        kind: any but `good` adds 3 to every pixel, and takes half as long again: it is judged after a good one.
    """

    SECONDS = 0.06

    def __init__(self, kind: str) -> None:
        super().__init__(1, 1, 3, padding=1)
        self._kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(len(x) * self.SECONDS * (1.0 if self._kind == "good" else 1.5))
        return super().forward(x) + (0 if self._kind == "good" else 3)
