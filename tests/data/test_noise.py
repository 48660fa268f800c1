"""The noise: normal, of the asked size, and a function of a sample's key alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from raysweep.data.noise import Noise
from raysweep.data.order import sample_keys

CPU = torch.device("cpu")
SHAPE = (16, 16, 3)
VALUES = math.prod(SHAPE)


def keys(seed: int = 0, epoch: int = 1, num: int = 64) -> Tensor:
    return torch.from_numpy(sample_keys(seed, epoch, np.arange(num)))


def noise_of(its_keys: Tensor, std: float = 1.0) -> Tensor:
    return Noise(std, VALUES, CPU).add(torch.zeros(len(its_keys), *SHAPE), its_keys)


@pytest.mark.parametrize("std", [0.01, 0.1, 1.0, 2.5])
def test_mean_and_standard_deviation_are_as_asked(std: float) -> None:
    values = noise_of(keys(num=500), std).double() / std
    num = values.numel()
    assert float(values.mean()) == pytest.approx(0, abs=5 / math.sqrt(num))
    assert float(values.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * num))


def test_the_values_are_normal() -> None:
    values = noise_of(keys(num=500)).double().flatten()
    for bound in (0.5, 1.0, 2.0, 3.0):
        expected = math.erf(bound / math.sqrt(2))
        tolerance = 5 * math.sqrt(expected * (1 - expected) / len(values))
        assert float((values.abs() < bound).double().mean()) == pytest.approx(expected, abs=tolerance)
    assert float((values**3).mean()) == pytest.approx(0, abs=5 * math.sqrt(15 / len(values)))


def test_noise_is_added_to_x_and_x_stays() -> None:
    x = torch.rand(64, *SHAPE, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    noised = Noise(0.3, VALUES, CPU).add(x, keys())
    assert torch.equal(x, before)
    torch.testing.assert_close(noised - x, noise_of(keys(), 0.3), rtol=0, atol=1e-6)


def test_a_samples_noise_is_the_same_in_any_batch_and_on_any_rank() -> None:
    x = torch.rand(64, *SHAPE, generator=torch.Generator().manual_seed(1))
    noise = Noise(0.3, VALUES, CPU)
    whole = noise.add(x, keys())
    chosen = torch.tensor([40, 3, 3, 63])
    assert torch.equal(noise.add(x[chosen], keys()[chosen]), whole[chosen])
    assert torch.equal(Noise(0.3, VALUES, CPU).add(x[:1], keys()[:1]), whole[:1]), "another worker's table"
    assert noise.add(x[:0], keys()[:0]).shape == (0, *SHAPE)


def test_noise_differs_by_sample_epoch_and_seed() -> None:
    drawn = torch.cat([noise_of(keys(seed, epoch)).flatten(1) for seed in (0, 1) for epoch in (0, 1, 2)])
    assert len(torch.unique(drawn, dim=0)) == len(drawn)


def test_noise_of_different_samples_is_uncorrelated() -> None:
    drawn = noise_of(keys(num=128)).flatten(1).double()
    correlation = torch.corrcoef(drawn) - torch.eye(128)
    # 8,128 pairs: the largest of as many normal values is near 4 standard deviations.
    assert float(correlation.abs().max()) < 6 / math.sqrt(VALUES)


def test_noise_of_the_pixels_of_one_sample_is_uncorrelated() -> None:
    drawn = noise_of(keys(num=2000)).flatten(1).double()[:, :100]
    correlation = torch.corrcoef(drawn.T) - torch.eye(100)
    assert float(correlation.abs().max()) < 6 / math.sqrt(2000)


def test_samples_hardly_ever_share_a_start() -> None:
    first_values = noise_of(keys(num=5000))[:, 0, 0, 0]
    # 12.5 million pairs over 2^21 starts: 6 are expected to meet.
    assert len(torch.unique(first_values)) > 5000 - 30


def test_no_noise_is_the_input_itself_and_no_table() -> None:
    x = torch.rand(2, *SHAPE)
    noise = Noise(0.0, VALUES, CPU)
    assert noise.add(x, keys(num=2)) is x
    assert not hasattr(noise, "_runs")


def test_noise_is_that_of_earlier_releases() -> None:
    drawn = Noise(1.0, 4, CPU).add(torch.zeros(2, 2, 2, 1), keys(num=2)).flatten(1)
    expected = [
        [0.0555189587, -0.7462126017, 0.4620129168, 0.2089325786],
        [0.4075766802, -0.3703947067, 0.3937449455, 0.6168704629],
    ]
    # Approximate: logarithm and cosine may differ in the last bit from machine to machine.
    torch.testing.assert_close(drawn, torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("values", [1, 2**16, 2**16 + 1])
def test_images_of_any_size_fit_the_table(values: int) -> None:
    last = torch.tensor([(2**21 - 1) << 16, -1, 0])
    drawn = Noise(1.0, values, CPU).add(torch.zeros(3, 1, values, 1), last)
    assert bool(drawn.isfinite().all())
