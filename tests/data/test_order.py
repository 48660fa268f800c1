"""The sample order: a pure function of (seed, epoch), the same forever, cut for any number of workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.data.order import epoch_order, num_steps, sample_keys, share, step_slice

SEEDS = st.integers(0, 2**31 - 1)
EPOCHS = st.integers(1, 10**6)


@given(SEEDS, EPOCHS, st.integers(0, 300))
def test_an_epochs_order_is_a_permutation_and_the_same_again(seed: int, epoch: int, num_samples: int) -> None:
    order = epoch_order(seed, epoch, num_samples)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(num_samples))
    np.testing.assert_array_equal(order, epoch_order(seed, epoch, num_samples))


def test_orders_of_other_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in (0, 1, 2, 2**31 - 1) for epoch in (1, 2, 3, 1000)}
    assert len(orders) == 16


def test_each_place_of_the_order_gets_each_sample_about_equally_often() -> None:
    counts = np.zeros((5, 5))
    for epoch in range(1, 2001):
        counts[np.arange(5), epoch_order(3, epoch, 5)] += 1
    # 2,000 draws of probability 1/5: a standard deviation is 18.
    assert np.abs(counts - 400).max() < 5 * 18


@pytest.mark.parametrize(
    ("seed", "epoch", "order"),
    [
        (0, 1, [5, 4, 7, 0, 1, 2, 9, 6, 8, 3]),
        (7, 3, [3, 9, 2, 8, 1, 5, 7, 6, 4, 0]),
        (2**31 - 1, 1000, [6, 9, 8, 7, 0, 4, 2, 3, 1, 5]),
    ],
)
def test_orders_are_those_of_earlier_releases(seed: int, epoch: int, order: list[int]) -> None:
    # A checkpoint's position means nothing under another order: these values may never change.
    assert epoch_order(seed, epoch, 10).tolist() == order


@given(st.integers(0, 100), st.integers(1, 20))
def test_shares_are_even_and_join_to_the_step_in_order(num: int, world_size: int) -> None:
    batch = np.arange(100, 100 + num)
    shares = [share(batch, rank, world_size) for rank in range(world_size)]
    np.testing.assert_array_equal(np.concatenate(shares), batch)
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1


def test_more_workers_than_samples_leaves_some_without() -> None:
    sizes = [len(share(np.arange(3), rank, 5)) for rank in range(5)]
    assert sorted(sizes) == [0, 0, 1, 1, 1]
    assert [len(share(np.arange(0), rank, 2)) for rank in range(2)] == [0, 0]


@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 7), SEEDS, EPOCHS)
def test_every_sample_is_met_exactly_once_an_epoch(num: int, batch: int, world_size: int, seed: int, epoch: int) -> None:
    order = epoch_order(seed, epoch, num)
    steps = [step_slice(order, step, batch) for step in range(num_steps(num, batch))]
    assert all(len(step) == batch for step in steps[:-1])
    assert 1 <= len(steps[-1]) <= batch
    met = np.concatenate([share(step, rank, world_size) for step in steps for rank in range(world_size)])
    assert sorted(met) == list(range(num))


@pytest.mark.parametrize(("num_samples", "batch", "steps"), [(0, 8, 0), (7, 8, 1), (8, 8, 1), (9, 8, 2), (64, 8, 8)])
def test_the_last_step_may_be_short(num_samples: int, batch: int, steps: int) -> None:
    assert num_steps(num_samples, batch) == steps


@given(SEEDS, EPOCHS, st.lists(st.integers(0, 2**40), max_size=30), st.data())
def test_a_samples_key_does_not_depend_on_the_others(seed: int, epoch: int, samples: list[int], data: st.DataObject) -> None:
    all_samples = np.array(samples, dtype=np.int64)
    keys = sample_keys(seed, epoch, all_samples)
    assert keys.dtype == np.int64
    assert keys.shape == all_samples.shape
    chosen = np.array(data.draw(st.permutations(range(len(samples)))), dtype=np.int64)[: len(samples) // 2]
    np.testing.assert_array_equal(sample_keys(seed, epoch, all_samples[chosen]), keys[chosen])


def test_keys_of_other_samples_epochs_and_seeds_differ() -> None:
    keys = [sample_keys(seed, epoch, np.arange(2000)) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len(np.unique(np.concatenate(keys))) == 9 * 2000


def test_each_bit_of_the_keys_is_set_half_of_the_time() -> None:
    keys = sample_keys(0, 1, np.arange(10_000)).view(np.uint64)
    for bit in range(64):
        share_set = float(((keys >> np.uint64(bit)) & np.uint64(1)).mean())
        assert share_set == pytest.approx(0.5, abs=0.025), f"bit {bit}"  # 5 standard deviations


@pytest.mark.parametrize(
    ("seed", "epoch", "samples", "keys"),
    [
        (0, 1, [0, 1, 2], [-1624339470587399226, 8946779311189045782, -1566588910546374994]),
        (7, 3, [5, 2**40], [-328467199707366546, 6722962156087441255]),
    ],
)
def test_keys_are_those_of_earlier_releases(seed: int, epoch: int, samples: list[int], keys: list[int]) -> None:
    assert sample_keys(seed, epoch, np.array(samples)).tolist() == keys


def test_order_and_keys_draw_from_different_streams() -> None:
    keys = sample_keys(0, 1, np.arange(1000))
    assert not np.array_equal(np.argsort(keys), epoch_order(0, 1, 1000))
    assert not np.array_equal(np.argsort(keys.view(np.uint64)), epoch_order(0, 1, 1000))
