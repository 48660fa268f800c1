"""Samples: dtypes, shapes and the message for everything that is not an image array; drawing `count` of them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.data import samples as module
from raysweep.data.samples import Samples, chosen, pixel_range, selected, shuffled
from raysweep.errors import DataError
from raysweep.settings import DataConfig


def images(n: int = 4, dtype: object = np.uint8, shape: tuple[int, ...] = (6, 5, 3)) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (n, *shape)).astype(dtype)


def of(x: np.ndarray, groups: np.ndarray | None = None) -> Samples:
    return Samples(x, x, groups)


@pytest.mark.parametrize(("dtype", "value"), [(np.uint8, 255.0), ("uint16", 65535.0), (np.float32, 1.0)])
def test_scaled_by_the_range_of_the_dtype(dtype, value):
    assert pixel_range(dtype) == value
    assert pixel_range(np.dtype(dtype)) == value


def test_no_range_for_other_dtypes():
    with pytest.raises(DataError, match=r"uint8, uint16 or float32, got int64"):
        pixel_range(np.int64)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_good_arrays_are_kept_not_copied(dtype):
    x = images(dtype=dtype)
    samples = of(x)
    assert samples.x is x
    assert samples.y is x
    assert len(samples) == 4


def test_y_is_x_also_after_a_conversion():
    samples = of(images(dtype=np.float64))
    assert samples.y is samples.x
    other = Samples(images(dtype=np.float64), images(dtype=np.float64))
    assert other.y is not other.x


@pytest.mark.parametrize(
    ("given", "dtype", "top"),
    [
        (np.bool_, np.uint8, 255),
        (np.float64, np.float32, 1),
        (np.float16, np.float32, 1),
        (">u2", np.uint16, 1),
        (">f4", np.float32, 1),
    ],
)
def test_conversions(given, dtype, top):
    samples = of(images(dtype=given))
    assert samples.x.dtype == dtype
    assert samples.x.dtype.isnative
    assert samples.x.max() == top
    np.testing.assert_array_equal(samples.x > 0, images() > 0)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint32", "uint64", "complex64", "U3", "object"])
def test_other_dtypes_are_refused_with_the_rule(dtype):
    with pytest.raises(DataError, match=r"X must be uint8 .* uint16 .* float32 .* got .*astype"):
        of(images(dtype=dtype))


def test_channel_axis_is_added():
    assert of(images(shape=(6, 5))).x.shape == (4, 6, 5, 1)


def test_always_contiguous():
    samples = of(np.asfortranarray(images()))
    assert samples.x.flags.c_contiguous
    np.testing.assert_array_equal(samples.x, images())


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_first_is_refused(channels):
    with pytest.raises(DataError, match=r"\(4, \d, 32, 32\), which looks like \[N, C, H, W\]; move the axis"):
        of(images(shape=(channels, 32, 32)))


@pytest.mark.parametrize("shape", [(1, 8, 1), (3, 20, 3), (4, 20, 4)])
def test_low_images_are_not_taken_for_channels_first(shape):
    assert of(images(shape=shape)).x.shape == (4, *shape)


@pytest.mark.parametrize("shape", [(), (36,), (2, 3, 4, 5), (0, 5, 3), (5, 5, 0)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match=r"X must be \[N, H, W\] or \[N, H, W, C\], got shape \(4,"):
        of(images(shape=shape))


def test_too_few():
    with pytest.raises(DataError, match=r"0 images.*data.path"):
        of(images(0))
    with pytest.raises(DataError, match=r"at least 2 samples.*got 1; add samples, or raise data\.count"):
        of(images(1))


def test_different_lengths():
    with pytest.raises(DataError, match=r"X and Y must have the same number.*\(4, 6, 5, 3\) and \(5, 6, 5, 3\)"):
        Samples(images(4), images(5))
    with pytest.raises(DataError, match=r"X and groups must have the same number"):
        of(images(4), np.zeros(3, dtype=np.int64))


def test_groups():
    groups = of(images(), np.array([3, 3, 9, 9], dtype=np.uint8)).groups
    assert groups is not None
    assert groups.dtype == np.int64
    for bad in (np.zeros(4), np.zeros((4, 1), dtype=int)):
        with pytest.raises(DataError, match=r"groups must be integers \[N\]"):
            of(images(), bad)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused_with_the_sample(bad, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_BYTES", 2 * 6 * 5 * 3 * 4)  # two samples a chunk
    x = images(7, np.float32)
    x[5, 1, 2, 0] = bad
    with pytest.raises(DataError, match=r"Y must be finite.*in sample 5 of the 7"):
        Samples(images(7), x)
    with pytest.raises(DataError, match=r"X must be finite.*in sample 5"):
        of(x)


def test_a_memory_map_of_floats_is_checked_without_loading_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1 << 20)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(512, 128, 128, 1))  # 32 MB
    tracemalloc.start()
    try:
        assert of(x).x is x
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_float64_beyond_float32_is_refused():
    with pytest.raises(DataError, match=r"finite"):
        of(np.full((2, 4, 4, 1), 1e300))


def test_floats_outside_the_unit_range_are_taken_as_they_are():
    x = np.linspace(-3, 300, 2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 1)
    assert of(x).x is x


def test_count_takes_the_same_samples_of_x_y_and_groups():
    x = np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1)
    samples = selected(DataConfig(count=10), x, x.astype(np.float32), np.arange(50))
    assert len(samples) == 10
    np.testing.assert_array_equal(samples.x.ravel(), samples.groups)
    np.testing.assert_array_equal(samples.y.ravel(), samples.groups)
    assert np.all(np.diff(samples.groups) > 0)


def test_count_is_checked_before_reducing_and_after():
    with pytest.raises(DataError, match=r"^photos: X and Y must have the same number"):
        selected(DataConfig(count=2), images(5), images(4), origin="photos")
    with pytest.raises(DataError, match=r"at least 2 samples"):
        selected(DataConfig(count=1), images(5))


def test_only_the_used_samples_are_checked():
    x = images(5, np.float32)
    keep = chosen(5, 2, 0)
    x[np.setdiff1d(np.arange(5), keep)] = np.nan
    assert np.isfinite(selected(DataConfig(count=2, seed=0), x).x).all()


@given(st.integers(0, 300), st.none() | st.integers(1, 400), st.integers(0, 2**31 - 1))
def test_chosen_are_distinct_and_in_order(num, count, seed):
    keep = chosen(num, count, seed)
    assert len(keep) == min(num, num if count is None else count)
    assert keep.dtype == np.int64
    assert np.all(np.diff(keep) > 0)
    assert set(keep.tolist()) <= set(range(num))
    np.testing.assert_array_equal(keep, chosen(num, count, seed))


def test_shuffled_is_pinned():
    """These numbers are part of every result ever made: they never change."""
    assert shuffled(8, 0, 1).tolist() == [5, 3, 7, 2, 4, 1, 0, 6]
    assert shuffled(8, 1, 1).tolist() == [0, 6, 5, 3, 4, 7, 2, 1]
    assert chosen(100, 5, 3).tolist() == [20, 26, 49, 65, 75]


def test_shuffled_places_are_even():
    first = np.array([shuffled(5, seed, 7)[0] for seed in range(2000)])
    assert np.all(np.abs(np.bincount(first, minlength=5) - 400) < 90)  # 5 standard deviations
