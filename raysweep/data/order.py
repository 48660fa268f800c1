"""Which sample is in which step: a pure function of (seed, epoch), whatever the number of workers.

A checkpoint's position inside an epoch is one integer, the number of steps done.
"""

from __future__ import annotations

import numpy as np

from raysweep.data.samples import Indices

_ORDER, _SAMPLE = 1, 2  # streams: the same seed must not give the order and the noise the same bits


def num_steps(num_samples: int, global_batch: int) -> int:
    """Steps in an epoch; the last may be short."""
    return -(-num_samples // global_batch)


def epoch_order(seed: int, epoch: int, num_samples: int) -> Indices:
    """The epoch's permutation of range(num_samples), int64 [num_samples]."""
    # Numpy keeps only the raw stream stable between its releases, and an order must outlive them.
    bits = np.random.Philox(key=[seed, (_ORDER << 32) + epoch]).random_raw(num_samples)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


def step_slice(order: Indices, step: int, global_batch: int) -> Indices:
    """The samples of one step of the epoch, in order."""
    return order[step * global_batch : (step + 1) * global_batch]


def share(batch: Indices, rank: int, world_size: int) -> Indices:
    """A rank's part of a step's samples: contiguous, sizes differ by at most one, may be empty."""
    return batch[len(batch) * rank // world_size : len(batch) * (rank + 1) // world_size]


def sample_keys(seed: int, epoch: int, samples: Indices) -> Indices:
    """One 64-bit number for each sample of an epoch, int64 [B]: what its noise and dropout follow from.

    SplitMix64's finaliser over a combination of the three (Steele et al., 2014).
    """
    start = np.random.Philox(key=[seed, (_SAMPLE << 32) + epoch]).random_raw()
    with np.errstate(over="ignore"):
        z = np.uint64(start) + samples.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).view(np.int64)
