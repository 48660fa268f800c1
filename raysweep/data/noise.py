"""Normal noise for X that is a function of (seed, epoch, sample) and costs one gather from a table.

A sample's noise is a run of the table, starting at a place that its key decides (the shared noise table of Salimans et
al., 2017, "Evolution strategies as a scalable alternative to reinforcement learning").
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_STARTS = 2**21  # places to start from: far more than a sample meets in a training
_CHUNK = 2**16


@lru_cache(maxsize=2)
def _table(length: int) -> Tensor:
    # One table for every seed: the seed is in the keys that decide where to read. Made from the raw stream, which numpy
    # keeps stable between releases, by Box and Muller's transform (1958).
    bits = np.random.Philox(key=20_231).random_raw(length)
    radius = np.sqrt(-2 * np.log(((bits >> np.uint64(32)) + 1) / 2**32))
    angle = (bits & np.uint64(0xFFFFFFFF)) * (2 * np.pi / 2**32)
    return torch.from_numpy((radius * np.cos(angle)).astype(np.float32))


class Noise:
    """Adds noise to images on one device.

    Args:
        std: standard deviation, where 1 is the range of a pixel; 0 adds nothing and costs nothing.
        values: values of one image, H * W * C.
        device: where the images are.
    """

    def __init__(self, std: float, values: int, device: torch.device) -> None:
        self.std = std
        if std:
            # Lengths are rounded up, so that data sets of similar size share a table.
            length = _STARTS + -(-values // _CHUNK) * _CHUNK
            self._runs = _table(length).to(device).unfold(0, values, 1)

    def add(self, x: Tensor, keys: Tensor) -> Tensor:
        """x + noise, a new tensor; x itself where std is 0.

        Args:
            x: images [B, H, W, C], float.
            keys: int64 [B], from order.sample_keys, on the device of x.
        """
        if not self.std:
            return x
        starts = (keys >> 16) & (_STARTS - 1)
        return torch.add(x, self._runs.index_select(0, starts).view_as(x), alpha=self.std)
