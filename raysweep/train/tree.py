"""Sums of vectors in the order of one binary tree over shards, whatever workers hold them: the arithmetic of bitwise mode.

What the vectors are, and when they are summed, is exact.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Block:
    """The sum over a run of shards that is a subtree: one tensor for each parameter, or one flat tensor."""

    shards: range
    total: list[Tensor]


def owned_shards(num_shards: int, rank: int, world_size: int) -> range:
    """A rank's run of shards; with at least as many shards as ranks none is without."""
    return range(num_shards * rank // world_size, num_shards * (rank + 1) // world_size)


def add_block(blocks: list[Block], block: Block) -> None:
    """Append the next block to its left neighbours, and add up, in place, all that are halves of one subtree.

    Over all shards from 0 it ends with one block, summed as ((0 + 1) + (2 + 3)) + ..., whatever the blocks were: how the
    shards are spread over workers leaves no trace in the rounding.
    """
    blocks.append(block)
    while len(blocks) > 1:
        left, right = blocks[-2:]
        size = len(left.shards)
        if size != len(right.shards) or left.shards.start % (2 * size):
            return
        torch._foreach_add_(left.total, right.total)
        blocks[-2:] = [Block(range(left.shards.start, right.shards.stop), left.total)]


def subtrees(shards: range) -> list[range]:
    """The largest subtrees that a run of shards consists of, left to right: what add_block leaves of its shards."""
    found, start = [], shards.start
    while start < shards.stop:
        size = 1
        while start % (2 * size) == 0 and start + 2 * size <= shards.stop:
            size *= 2
        found.append(range(start, start + size))
        start += size
    return found


class Exchange:
    """Adds up the blocks of all ranks, as a reduce-scatter in the order of the tree and a gathering of the slices.

    Each rank receives its slice of every block, finishes the tree on it, and hands the result to all. Two ranks have one
    block each: a plain all-reduce is exact, since a + b = b + a.

    Args:
        parameters: of one dtype; their gradients are summed.
        num_shards: leaves of the tree.
        rank: this worker's number.
        world_size: number of workers, at least 2 and at most num_shards.
    """

    def __init__(self, parameters: list[nn.Parameter], num_shards: int, rank: int, world_size: int) -> None:
        blocks = [subtrees(owned_shards(num_shards, r, world_size)) for r in range(world_size)]
        self._blocks = [block for of_rank in blocks for block in of_rank]
        self._world_size = world_size
        self._slice = -(-sum(p.numel() for p in parameters) // world_size)
        self._received_sizes = [len(of_rank) * self._slice for of_rank in blocks]
        like, padded = parameters[0].detach(), self._slice * world_size
        self._sums = like.new_zeros(len(blocks[rank]), padded)
        self._received = like.new_empty(len(self._blocks), self._slice if world_size > 2 else 0)
        self._result = self._sums[0] if world_size == 2 else like.new_empty(padded)
        self._sum_views = [_views(row, parameters) for row in self._sums]
        self._result_views = _views(self._result, parameters)

    def __call__(self, totals: list[list[Tensor]]) -> list[Tensor]:
        """The sums over all shards.

        Args:
            totals: of each of this rank's subtrees one tensor for each parameter.

        Returns:
            One tensor for each parameter, with its shape and strides; overwritten by the next call.
        """
        for views, total in zip(self._sum_views, totals, strict=True):
            torch._foreach_copy_(views, total)
        if self._world_size == 2:
            dist.all_reduce(self._result)
            return self._result_views
        count = len(self._sums)
        sent = self._sums.view(count, self._world_size, self._slice).transpose(0, 1).reshape(-1)
        sent_sizes = [count * self._slice] * self._world_size
        dist.all_to_all_single(self._received.view(-1), sent, self._received_sizes, sent_sizes)
        tree: list[Block] = []
        for shards, row in zip(self._blocks, self._received, strict=True):
            add_block(tree, Block(shards, [row]))
        dist.all_gather(list(self._result.view(self._world_size, -1).unbind()), tree[0].total[0])
        return self._result_views


def _views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Parts of a flat tensor, one after the other, each with the shape and the strides of a parameter."""
    sizes = [p.numel() for p in parameters]
    parts = flat[: sum(sizes)].split_with_sizes(sizes)
    # Of a parameter that does not fill its memory, empty_like has the strides of one that does.
    strides = [torch.empty_like(p, device="meta").stride() for p in parameters]
    return [part.as_strided(p.shape, stride) for part, p, stride in zip(parts, parameters, strides, strict=True)]
