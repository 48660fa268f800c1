"""Batches: what they hold, and the thread that gathers them ahead and is gone when nobody needs it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from raysweep.data import loader as loader_module
from raysweep.data.loader import Batch, Loader, Request
from raysweep.data.noise import Noise
from raysweep.data.order import sample_keys
from raysweep.data.samples import Samples

CPU = torch.device("cpu")
DTYPES = (np.uint8, np.uint16, np.float32)
RANGES = {np.uint8: 255, np.uint16: 65535, np.float32: 1}


def images(dtype: Any = np.uint8, num: int = 12, channels: int = 3, seed: int = 0) -> Any:
    """Random images [N, 4, 6, C] over the dtype's whole range."""
    values = np.random.default_rng(seed).random((num, 4, 6, channels)) * RANGES[dtype]
    return (values if dtype == np.float32 else values.round()).astype(dtype)


def requests(*batches: list[int]) -> list[Request]:
    return [Request(np.array(b, dtype=np.int64), sample_keys(0, 1, np.array(b, dtype=np.int64))) for b in batches]


def batches_of(x: Any, y: Any, wanted: list[Request], noise: float = 0.0) -> list[Batch]:
    return list(Loader(Samples(x, y), noise, CPU).batches(wanted))


def on_disk(folder: Path, name: str, array: Any) -> Any:
    np.save(folder / name, array)
    return np.load(folder / name, mmap_mode="r")


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "raysweep-loader"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_pixels_are_scaled_by_the_range_of_their_type(dtype: Any) -> None:
    x = images(dtype)
    x[3, 0, 0] = [0, RANGES[dtype], RANGES[dtype]]
    (batch,) = batches_of(x, x, requests([3, 1]))
    assert batch.x.dtype == batch.y.dtype == torch.float32
    expected = torch.from_numpy((x[[3, 1]].astype(np.float64) / RANGES[dtype]).astype(np.float32)).permute(0, 3, 1, 2)
    torch.testing.assert_close(batch.x, expected, rtol=1e-6, atol=0)
    assert batch.x[0, :, 0, 0].tolist() == [0, 1, 1], "the ends of the range are exact"


@pytest.mark.parametrize("dtype_y", DTYPES)
@pytest.mark.parametrize("dtype_x", DTYPES)
def test_x_and_y_are_scaled_each_by_its_own_range(dtype_x: Any, dtype_y: Any) -> None:
    x, y = images(dtype_x), images(dtype_y, channels=1, seed=1)
    (batch,) = batches_of(x, y, requests([5, 0, 7]))
    for given, got in ((x, batch.x), (y, batch.y)):
        expected = given[[5, 0, 7]].astype(np.float64) / RANGES[given.dtype.type]
        np.testing.assert_allclose(got.permute(0, 2, 3, 1).numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_batches_are_channels_first_in_channels_last_memory(noise: float) -> None:
    for x, y in ((images(), images(channels=2, seed=1)), (images(),) * 2):
        (batch,) = batches_of(x, y, requests([2, 4, 6, 8, 10]), noise)
        for tensor, channels in ((batch.x, 3), (batch.y, y.shape[-1])):
            assert tensor.shape == (5, channels, 4, 6)
            assert tensor.is_contiguous(memory_format=torch.channels_last)
            assert not tensor.requires_grad
        assert batch.keys.tolist() == sample_keys(0, 1, np.array([2, 4, 6, 8, 10])).tolist()


def test_floats_outside_0_to_1_stay_as_they_are() -> None:
    x = images(np.float32) * 10 - 5
    (batch,) = batches_of(x, x, requests([1]))
    np.testing.assert_array_equal(batch.x.permute(0, 2, 3, 1).numpy(), x[[1]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_target_y_is_x_before_the_noise(dtype: Any) -> None:
    x, wanted = images(dtype), requests([0, 5, 9])
    (clean,) = batches_of(x, x, wanted)
    (batch,) = batches_of(x, x, wanted, noise=0.2)
    assert torch.equal(batch.y, clean.x)
    added = (batch.x - batch.y).permute(0, 2, 3, 1)
    of_a_pixels_range = Noise(0.2, 4 * 6 * 3, CPU).add(torch.zeros(3, 4, 6, 3), batch.keys)
    torch.testing.assert_close(added, of_a_pixels_range, rtol=0, atol=1e-6)


def test_a_target_is_never_noised() -> None:
    x, y = images(), images(seed=1)
    (batch,) = batches_of(x, y, requests([0, 5, 9]), noise=0.2)
    np.testing.assert_allclose(batch.y.permute(0, 2, 3, 1).numpy(), y[[0, 5, 9]] / 255, rtol=1e-6)
    assert float((batch.x.permute(0, 2, 3, 1) - torch.from_numpy(x[[0, 5, 9]] / 255)).std()) == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_model_does_to_its_input_reaches_neither_target_nor_data(dtype: Any, noise: float) -> None:
    x = images(dtype)
    before = x.copy()
    (clean,) = batches_of(x, x, requests([0, 1]))
    (batch,) = batches_of(x, x, requests([0, 1]), noise)
    batch.x.mul_(0)
    assert torch.equal(batch.y, clean.y)
    np.testing.assert_array_equal(x, before)


def test_a_samples_batch_decides_nothing_about_it() -> None:
    x = images()
    together = batches_of(x, x, requests(list(range(12))), noise=0.3)[0]
    for batch, samples in zip(batches_of(x, x, requests([7, 2], [11], [0, 1]), noise=0.3), ([7, 2], [11], [0, 1]), strict=True):
        assert torch.equal(batch.x, together.x[samples])
        assert torch.equal(batch.keys, together.keys[samples])


@pytest.mark.parametrize("mapped", ["x", "y", "both"])
def test_memory_mapped_files_give_the_same_batches_from_a_thread(tmp_path: Path, mapped: str) -> None:
    x, y = images(), images(seed=1)
    wanted = requests(*[[i, (i + 5) % 12] for i in range(12)])
    file_x = on_disk(tmp_path, "x.npy", x) if mapped != "y" else x
    file_y = on_disk(tmp_path, "y.npy", y) if mapped != "x" else y
    iterator = Loader(Samples(file_x, file_y), 0.1, CPU).batches(iter(wanted))
    first = next(iterator)
    assert len(loader_threads()) == 1
    assert loader_threads()[0].daemon, "it may not keep the process alive"
    got = [first, *iterator]
    assert loader_threads() == [], "exhausted: the thread must be gone"
    for batch, expected in zip(got, batches_of(x, y, wanted, 0.1), strict=True):
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.y, expected.y)
        assert torch.equal(batch.keys, expected.keys)


def test_gray_images_without_a_channel_axis_stay_memory_mapped(tmp_path: Path) -> None:
    x = on_disk(tmp_path, "x.npy", images()[..., 0])
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(requests([0], [1], [2]))
    assert next(iterator).x.shape == (1, 1, 4, 6)
    assert len(loader_threads()) == 1
    iterator.close()


def test_arrays_in_memory_need_no_thread() -> None:
    x = images()
    iterator = Loader(Samples(x, x), 0.1, CPU).batches(requests([0], [1]))
    next(iterator)
    assert loader_threads() == []


def endless(taken: list[int]) -> Iterator[Request]:
    for number in itertools.count():
        taken.append(number)
        yield requests([number % 12])[0]


def test_closing_early_ends_the_thread_and_takes_no_more_requests(tmp_path: Path) -> None:
    x = on_disk(tmp_path, "x.npy", images())
    taken: list[int] = []
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(endless(taken))
    next(iterator)
    next(iterator)
    iterator.close()
    assert loader_threads() == []
    # The two that were used, two waiting, and one in the thread's hand.
    assert 2 <= len(taken) <= 5
    before = len(taken)
    assert next(iterator, None) is None
    assert len(taken) == before


def test_an_iterator_that_is_dropped_ends_its_thread(tmp_path: Path) -> None:
    x = on_disk(tmp_path, "x.npy", images())
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(endless([]))
    next(iterator)
    del iterator
    assert loader_threads() == []


def test_an_iterator_that_is_never_used_starts_nothing(tmp_path: Path) -> None:
    x = on_disk(tmp_path, "x.npy", images())
    taken: list[int] = []
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(endless(taken))
    assert loader_threads() == []
    iterator.close()
    assert taken == []


def failing(after: int, kind: type[BaseException]) -> Iterator[Request]:
    yield from requests(*[[i] for i in range(after)])
    raise kind("the disk is gone")


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("mapped", [True, False])
def test_an_error_in_a_request_reaches_the_loop_after_the_batches_before_it(
    tmp_path: Path, mapped: bool, after: int, kind: type[BaseException]
) -> None:
    x = on_disk(tmp_path, "x.npy", images()) if mapped else images()
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(failing(after, kind))
    for number in range(after):
        np.testing.assert_allclose(next(iterator).x[0].permute(1, 2, 0).numpy(), x[number] / 255, rtol=1e-6)
    with pytest.raises(kind, match="the disk is gone"):
        next(iterator)
    assert loader_threads() == []


@pytest.mark.parametrize("mapped", [True, False])
def test_a_sample_that_is_not_there_is_an_error_in_the_loop(tmp_path: Path, mapped: bool) -> None:
    x = on_disk(tmp_path, "x.npy", images()) if mapped else images()
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(requests([0], [99]))
    next(iterator)
    with pytest.raises(IndexError, match="99"):
        next(iterator)
    assert loader_threads() == []


def test_an_error_nobody_waits_for_does_not_keep_the_thread(tmp_path: Path) -> None:
    x = on_disk(tmp_path, "x.npy", images())
    iterator = Loader(Samples(x, x), 0.0, CPU).batches(failing(3, OSError))
    next(iterator)
    iterator.close()
    assert loader_threads() == []


def test_batches_come_in_the_order_of_their_requests_however_slow_one_is(tmp_path: Path) -> None:
    x = on_disk(tmp_path, "x.npy", images(num=12))
    slow = threading.Event()

    def some() -> Iterator[Request]:
        for number in range(12):
            if number == 3:
                slow.wait(timeout=0.2)  # never set: two requests ahead, the thread falls behind
            yield requests([number])[0]

    got = [batch.x[0, 0, 0, 0].item() for batch in Loader(Samples(x, x), 0.0, CPU).batches(some())]
    assert got == pytest.approx([float(image[0, 0, 0]) / 255 for image in x])


def test_no_requests_no_batches(tmp_path: Path) -> None:
    for x in (images(), on_disk(tmp_path, "x.npy", images())):
        assert list(Loader(Samples(x, x), 0.1, CPU).batches([])) == []
    assert loader_threads() == []


@pytest.mark.parametrize("mapped", [True, False])
def test_wait_s_adds_up_what_the_loop_waits_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    clock = itertools.count(0.0, 5.0)
    monkeypatch.setattr(loader_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    x = on_disk(tmp_path, "x.npy", images()) if mapped else images()
    loader = Loader(Samples(x, x), 0.0, CPU)
    assert loader.wait_s == 0
    iterator = loader.batches(requests([0], [1], [2]))
    waited = []
    for _batch in iterator:
        next(clock)  # the loop trains meanwhile
        waited.append(loader.wait_s)
    assert waited == [5.0, 10.0, 15.0]
    list(loader.batches(requests([0])))
    assert loader.wait_s == 20.0, "over all epochs"


def test_waiting_for_a_slow_request_is_counted(tmp_path: Path) -> None:
    def slow() -> Iterator[Request]:
        time.sleep(0.05)
        yield requests([0])[0]

    for x in (images(), on_disk(tmp_path, "x.npy", images())):
        loader = Loader(Samples(x, x), 0.0, CPU)
        list(loader.batches(slow()))
        assert loader.wait_s >= 0.05
