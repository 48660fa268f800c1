"""The tree that gradients are summed in: one rounding, however the shards are spread over workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from raysweep.train import tree
from raysweep.train.tree import Block, Exchange, add_block, owned_shards, subtrees

SHARDS = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


def canonical(leaves: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """((0 + 1) + (2 + 3)) + ..., float32, by its definition."""
    half = len(leaves) // 2
    return leaves[0] if not half else canonical(leaves[:half]) + canonical(leaves[half:])


def summed(shards: range, leaves: np.ndarray[Any, Any]) -> list[Block]:
    blocks: list[Block] = []
    for shard in shards:
        add_block(blocks, Block(range(shard, shard + 1), [torch.from_numpy(leaves[shard].copy())]))
    return blocks


@given(SHARDS, st.data())
def test_every_shard_has_one_owner_and_every_worker_has_one(num_shards: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, num_shards))
    runs = [owned_shards(num_shards, rank, world_size) for rank in range(world_size)]
    assert [shard for run in runs for shard in run] == list(range(num_shards))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
    assert all(runs)


@given(SHARDS, st.data())
def test_subtrees_cover_a_run_exactly_and_are_what_adding_leaves(num_shards: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, num_shards))
    for rank in range(world_size):
        run = owned_shards(num_shards, rank, world_size)
        found = subtrees(run)
        assert [shard for block in found for shard in block] == list(run)
        assert all(len(block) & (len(block) - 1) == 0 and block.start % len(block) == 0 for block in found)
        assert found == [block.shards for block in summed(run, np.zeros((num_shards, 1), np.float32))]


class ThreadRanks:
    """torch.distributed's collectives between threads of this process; what comes first in a sum follows from the rank."""

    def __init__(self, world_size: int) -> None:
        self._barrier, self._here = threading.Barrier(world_size, timeout=200), threading.local()
        self._given: list[Any] = [None] * world_size

    def run(self, job: Callable[[int], Any]) -> list[Any]:
        def work(rank: int) -> Any:
            self._here.rank = rank
            return job(rank)

        with ThreadPoolExecutor(len(self._given)) as pool:
            return list(pool.map(work, range(len(self._given))))

    def _exchange(self, value: Any, take: Callable[[list[Any], int], object]) -> None:
        self._given[self._here.rank] = value
        self._barrier.wait()
        take(self._given, self._here.rank)
        self._barrier.wait()

    def all_reduce(self, tensor: Tensor) -> None:
        self._exchange(tensor.clone(), lambda given, rank: tensor.copy_(given[rank] + given[1 - rank]))

    def all_to_all_single(self, output: Tensor, sent: Tensor, output_sizes: list[int], sent_sizes: list[int]) -> None:
        def take(given: list[Any], rank: int) -> None:
            for part, parts in zip(output.split(output_sizes), given, strict=True):
                part.copy_(parts[rank])

        self._exchange(sent.split(sent_sizes), take)

    def all_gather(self, outputs: list[Tensor], tensor: Tensor) -> None:
        self._exchange(tensor, lambda given, _rank: torch._foreach_copy_(outputs, given))


@settings(max_examples=60)
@given(SHARDS.filter(lambda n: n > 1), st.data())
def test_the_exchange_ends_with_the_canonical_sum_bit_for_bit(num_shards: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(2, min(num_shards, 9)))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # A kernel in channels-last memory, a scalar, a vector; sizes that no number of workers divides.
    kernel = nn.Parameter(torch.zeros(3, 5, 3, 3).contiguous(memory_format=torch.channels_last))
    parameters = [kernel, nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(7))]
    # Magnitudes far apart: nearly every other order of adding ends with other bits.
    leaves = [
        (generator.standard_normal((num_shards, *p.shape)) * 10.0 ** generator.integers(-4, 5, (num_shards, *p.shape))).astype(
            np.float32
        )
        for p in parameters
    ]

    def job(rank: int) -> list[Tensor]:
        exchange = Exchange(parameters, num_shards, rank, world_size)
        for _ in range(2):  # the second call must not see the first
            blocks: list[Block] = []
            for shard in owned_shards(num_shards, rank, world_size):
                gradients = [torch.from_numpy(np.array(leaf[shard])) for leaf in leaves]
                add_block(blocks, Block(range(shard, shard + 1), gradients))
            result = exchange([block.total for block in blocks])
        return result

    ranks = ThreadRanks(world_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "dist", ranks)
        results = ranks.run(job)
    for result in results:
        for parameter, gradient, leaf in zip(parameters, result, leaves, strict=True):
            assert gradient.stride() == parameter.stride()
            assert gradient.numpy().tobytes() == canonical(leaf).tobytes()


def test_adding_in_another_order_has_other_bits() -> None:
    leaves = np.random.default_rng(0).standard_normal((8, 100)).astype(np.float32)
    (whole,) = summed(range(8), leaves)
    in_turn = leaves[0].copy()
    for leaf in leaves[1:]:
        in_turn += leaf
    assert whole.total[0].numpy().tobytes() == canonical(leaves).tobytes() != in_turn.tobytes()
