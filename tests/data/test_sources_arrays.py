"""The sources arrays (.npy, .npz) and idx, whole and damaged."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raysweep.data.dataset import load_samples
from raysweep.data.samples import Samples
from raysweep.errors import DataError
from raysweep.settings import DataConfig

X = np.random.default_rng(1).integers(0, 256, (6, 7, 5, 3), dtype=np.uint8)
Y = (X[..., :1] / 255).astype(np.float32)


def load(source: str, path: Path, target: Path | None = None, **more: object) -> Samples:
    return load_samples(DataConfig(source=source, path=str(path), target_path=target and str(target), **more))


def save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_npy_stays_on_disk(tmp_path):
    samples = load("arrays", save(tmp_path / "x.npy", X))
    assert isinstance(samples.x, np.memmap)
    assert samples.y is samples.x
    np.testing.assert_array_equal(samples.x, X)


def test_gray_npy_stays_on_disk_too(tmp_path):
    samples = load("arrays", save(tmp_path / "x.npy", X[..., 0]))
    assert isinstance(samples.x, np.memmap)
    assert samples.x.shape == (6, 7, 5, 1)


def test_npy_with_target(tmp_path):
    samples = load("arrays", save(tmp_path / "x.npy", X), save(tmp_path / "y.npy", Y))
    np.testing.assert_array_equal(samples.y, Y)
    assert isinstance(samples.y, np.memmap)


def test_fortran_order_and_float64(tmp_path):
    samples = load("arrays", save(tmp_path / "x.npy", np.asfortranarray(X / 255)))
    assert samples.x.flags.c_contiguous
    np.testing.assert_array_equal(samples.x, (X / 255).astype(np.float32))


def test_count_reduces_npy(tmp_path):
    samples = load("arrays", save(tmp_path / "x.npy", X), save(tmp_path / "y.npy", Y), count=4, seed=5)
    assert len(samples) == 4
    np.testing.assert_array_equal(samples.x[..., :1] / np.float32(255), samples.y)


def test_npz(tmp_path):
    np.savez(tmp_path / "xy.npz", x=X, y=Y, labels=np.arange(6))
    samples = load("arrays", tmp_path / "xy.npz")
    np.testing.assert_array_equal(samples.x, X)
    np.testing.assert_array_equal(samples.y, Y)
    np.savez_compressed(tmp_path / "x.NPZ.npz", x=X, labels=np.arange(6))
    samples = load("arrays", tmp_path / "x.NPZ.npz")
    assert samples.y is samples.x


def test_npz_of_one_array_whatever_its_name(tmp_path):
    np.savez(tmp_path / "one.npz", X)
    np.testing.assert_array_equal(load("arrays", tmp_path / "one.npz").x, X)
    np.testing.assert_array_equal(load("arrays", tmp_path / "one.npz", save(tmp_path / "y.npy", Y)).y, Y)


def test_npz_without_x(tmp_path):
    np.savez(tmp_path / "ab.npz", images=X, targets=Y)
    with pytest.raises(DataError, match=r"arrays x and.*\['images', 'targets'\].*ab\.npz"):
        load("arrays", tmp_path / "ab.npz")


def test_y_in_two_places(tmp_path):
    np.savez(tmp_path / "xy.npz", x=X, y=Y)
    with pytest.raises(DataError, match=r"Y must come from one place.*remove data\.target_path"):
        load("arrays", tmp_path / "xy.npz", save(tmp_path / "y.npy", Y))


def test_lengths_of_x_and_y(tmp_path):
    with pytest.raises(DataError, match=r"x\.npy and .*y\.npy: X and Y must have the same number"):
        load("arrays", save(tmp_path / "x.npy", X), save(tmp_path / "y.npy", Y[:5]))


def test_no_images_and_other_shapes_name_the_file(tmp_path):
    with pytest.raises(DataError, match=r"x\.npy: .*0 images"):
        load("arrays", save(tmp_path / "x.npy", X[:0]))
    with pytest.raises(DataError, match=r"z\.npy: X must be \[N, H, W\].*got shape \(6, 105\)"):
        load("arrays", save(tmp_path / "z.npy", X.reshape(6, -1)))


@pytest.mark.parametrize("name", ["x.pt", "x", "x.npy.gz"])
def test_other_files(tmp_path, name):
    (tmp_path / name).write_bytes(b"abc")
    with pytest.raises(DataError, match=r"data\.path must be \.npy or \.npz"):
        load("arrays", tmp_path / name)
    with pytest.raises(DataError, match=r"data\.target_path must be \.npy"):
        load("arrays", save(tmp_path / "x.npy", X), tmp_path / name)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("content", [b"", b"abc", b"\x93NUMPY\x01\x00", b"PK\x03\x04"])
def test_not_what_the_name_says(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"must be a whole \.{name[2:]} file.*{name}"):
        load("arrays", tmp_path / name)


def test_an_npy_named_npz(tmp_path):
    save(tmp_path / "x.npy", X).rename(tmp_path / "x.npz")
    with pytest.raises(DataError, match="a single array, not an archive"):
        load("arrays", tmp_path / "x.npz")


def test_pickled_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    objects = np.array([Trap(), Trap()], dtype=object)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=objects)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DataError, match=r"Python objects|Object arrays"):
            load("arrays", tmp_path / name)
    assert not (tmp_path / "executed").exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(["x.npy", "x.npz", "x.idx", "x.idx.gz"]), st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(tmp_path, name, data):
    path = tmp_path / name
    if name == "x.npy":
        np.save(path, X)
    elif name == "x.npz":
        np.savez_compressed(path, x=X, y=Y)
    else:
        path.write_bytes(idx(X) if name == "x.idx" else gzip.compress(idx(X)))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
        cut = True
    else:
        content[data.draw(st.integers(0, min(len(content), 200) - 1))] ^= data.draw(st.integers(1, 255))
        cut = False
    path.write_bytes(content)
    try:
        samples = load("idx" if "idx" in name else "arrays", path)
    except DataError as error:
        message = str(error)
    else:
        assert not cut
        assert len(samples) >= 2
        return
    assert name in message


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("array", [X, X[..., 0]])
def test_idx(tmp_path, packed, array):
    path = tmp_path / "train-images-idx3-ubyte"  # recognised by content: Fashion-MNIST's names have no extension
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    samples = load("idx", path)
    np.testing.assert_array_equal(samples.x, array.reshape(6, 7, 5, -1))
    assert samples.y is samples.x
    assert isinstance(samples.x, np.memmap) != packed


def test_idx_of_two_gzip_members(tmp_path):
    whole = idx(X)
    (tmp_path / "x.gz").write_bytes(gzip.compress(whole[:100]) + gzip.compress(whole[100:]))
    np.testing.assert_array_equal(load("idx", tmp_path / "x.gz").x, X)


def test_idx_with_target(tmp_path):
    (tmp_path / "x").write_bytes(idx(X))
    (tmp_path / "y").write_bytes(idx(X[::-1]))
    samples = load("idx", tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(samples.y, X[::-1])


@pytest.mark.parametrize("setting", ["path", "target_path"])
def test_idx_labels_are_refused(tmp_path, setting):
    (tmp_path / "x").write_bytes(idx(X))
    (tmp_path / "labels").write_bytes(idx(np.arange(6, dtype=np.uint8)))
    paths = {"path": tmp_path / "x", "target_path": tmp_path / "y"} | {setting: tmp_path / "labels"}
    (tmp_path / "y").write_bytes(idx(X))
    with pytest.raises(DataError, match=rf"00000803.*got 00000801 in .*labels; set data\.{setting}"):
        load("idx", paths["path"], paths["target_path"])


@pytest.mark.parametrize("change", [-1, -600, 1, 40])
def test_idx_of_another_size_than_its_header_says(tmp_path, change):
    whole = idx(X[..., 0])
    (tmp_path / "x").write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    found = max(len(whole) + change, 0)
    if found:
        with pytest.raises(DataError, match=rf"\[6, 7, 5\] {len(whole)} bytes, got {found} in .*x;"):
            load("idx", tmp_path / "x")
    (tmp_path / "x").write_bytes(whole[:10])
    with pytest.raises(DataError, match="16 bytes, got 10"):
        load("idx", tmp_path / "x")
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(DataError, match="got no bytes"):
        load("idx", tmp_path / "x")


def test_idx_gz_cut_short(tmp_path):
    packed = gzip.compress(idx(X), mtime=0)
    (tmp_path / "x.gz").write_bytes(packed[:-300])
    with pytest.raises(DataError, match=rf"{len(idx(X))} bytes, got \d+ in .*x\.gz \(the \.gz ends too early\)"):
        load("idx", tmp_path / "x.gz")
    (tmp_path / "x.gz").write_bytes(packed[:-1])  # all the pixels are there, but not their checksum
    with pytest.raises(DataError, match="ends too early"):
        load("idx", tmp_path / "x.gz")
    broken = bytearray(packed)
    broken[-6] ^= 1
    (tmp_path / "x.gz").write_bytes(broken)
    with pytest.raises(DataError, match=r"\.gz is damaged"):
        load("idx", tmp_path / "x.gz")


def test_idx_header_that_lies_takes_no_memory(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 2**31, 2**31)))
    with pytest.raises(DataError, match=rf"{16 + 2**93} bytes, got 16"):
        load("idx", tmp_path / "x.gz")
