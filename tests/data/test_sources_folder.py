"""The source folder: listing, pairing, and what does not fit together; every message names files and settings."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysweep.data.dataset import load_samples
from raysweep.data.images import image_files
from raysweep.data.samples import Samples, chosen
from raysweep.errors import DataError
from raysweep.settings import DataConfig

RGB = np.random.default_rng(2).integers(0, 256, (6, 9, 3), dtype=np.uint8)
DEEP = np.arange(6 * 9, dtype=np.uint16).reshape(6, 9) * 1200  # 0 to 63600: clipped to 8 bits it would be white


def write(path: Path, pixels: np.ndarray = RGB, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def load(path: Path, target: Path | None = None, **more: object) -> Samples:
    return load_samples(DataConfig(source="folder", path=str(path), target_path=target and str(target), **more))


def error(path: Path, target: Path | None = None, **more: object) -> str:
    with pytest.raises(DataError) as caught:
        load(path, target, **more)
    return str(caught.value)


def fill(folder: Path, names: str, kind: str = "png") -> Path:
    for value, name in enumerate(names.split(",") if "," in names else names):
        write(folder / f"{name}.{kind}", np.full((6, 9), value, np.uint8))
    return folder


def test_recursive_sorted_and_only_images(tmp_path):
    for value, name in enumerate(["a.png", "b/a.PNG", "b/c.bmp", "c.tif"]):
        write(tmp_path / name, np.full((4, 4), value * 10, dtype=np.uint8))
    for name in ("notes.txt", "b/labels.csv", "model.h5", "README"):
        (tmp_path / name).write_text("no image")
    for name in ("._a.png", ".ipynb_checkpoints/a.png"):  # what macOS and Jupyter leave behind
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    assert [file.as_posix() for file in image_files(tmp_path, "data.path")] == ["a.png", "b/a.PNG", "b/c.bmp", "c.tif"]
    samples = load(tmp_path)
    assert samples.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert samples.x.shape == (4, 4, 4, 1)
    assert samples.y is samples.x


def test_linked_folders_are_followed_once(tmp_path):
    write(tmp_path / "elsewhere/a.png")
    write(tmp_path / "x/b.png")
    (tmp_path / "x/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "x/loop").symlink_to(tmp_path / "x")
    assert [file.as_posix() for file in image_files(tmp_path / "x", "data.path")] == ["b.png", "link/a.png"]


def test_different_sizes(tmp_path):
    for name, shape in {"a": (6, 9), "b": (9, 6), "c": (6, 9), "d": (4, 4)}.items():
        write(tmp_path / f"{name}.png", np.zeros(shape, np.uint8))
    message = error(tmp_path)
    assert "X must have one size (height x width), got 2 6x9 (a.png), 1 9x6 (b.png), 1 4x4 (d.png); set data.size" in message
    assert "channels" not in message
    assert load(tmp_path, size=(5, 8)).x.shape == (4, 5, 8, 1)


def test_a_hundred_sizes_are_summed_up(tmp_path):
    for i in range(20):
        write(tmp_path / f"{i:02}.bmp", np.zeros((4, 4 + i), np.uint8))
    assert "1 4x8 (04.bmp) and 15 more" in error(tmp_path)


def test_all_that_differs_is_in_one_message(tmp_path):
    write(tmp_path / "a.png", RGB)
    write(tmp_path / "b.png", DEEP[:4])
    message = error(tmp_path)
    for part in ("1 6x9 (a.png), 1 4x9 (b.png)", "1 rgb (a.png), 1 gray (b.png)", "1 of 8 bits (a.png), 1 of 16 bits (b.png)"):
        assert part in message


def test_mixed_depths(tmp_path):
    write(tmp_path / "y/a.png", DEEP)
    write(tmp_path / "y/b.png", RGB[..., 0])
    assert "X must have one bit depth, got 1 of 16 bits (a.png), 1 of 8 bits (b.png)" in error(tmp_path / "y")
    assert "Y must have one bit depth" in error(fill(tmp_path / "x", "ab"), tmp_path / "y")


def test_paired_by_stem_not_by_order_or_extension(tmp_path):
    """An unsorted listing would pair 10.png with 2.bmp."""
    fill(tmp_path / "x", "1,2,10,sub/3")
    fill(tmp_path / "y", "sub/3,10,2,1", "bmp")
    samples = load(tmp_path / "x", tmp_path / "y")
    assert samples.x[:, 0, 0, 0].tolist() == [0, 2, 1, 3]
    assert samples.y[:, 0, 0, 0].tolist() == [3, 1, 2, 0]
    few = load(tmp_path / "x", tmp_path / "y", count=2, seed=1)
    assert (few.x[:, 0, 0, 0] + few.y[:, 0, 0, 0]).tolist() == [3, 3]


def test_paired_where_the_two_folders_sort_differently(tmp_path):
    """a.png < a.q.png, but a.q.tif < a.tif."""
    fill(tmp_path / "x", "a,a.q", "png")
    fill(tmp_path / "y", "a,a.q", "tif")
    samples = load(tmp_path / "x", tmp_path / "y")
    assert samples.x[:, 0, 0, 0].tolist() == samples.y[:, 0, 0, 0].tolist() == [0, 1]


def test_all_unpaired_files_in_one_message(tmp_path):
    fill(tmp_path / "x", "abcdefgh")
    fill(tmp_path / "x", "gh", "bmp")
    fill(tmp_path / "y", "hxyz")
    fill(tmp_path / "y", "x", "bmp")
    message = error(tmp_path / "x", tmp_path / "y")
    x, y = tmp_path / "x", tmp_path / "y"
    assert f"7 without Y in {y}: a, b, c, d, e and 2 more;" in message
    assert f"3 without X in {x}: x, y, z;" in message
    assert f"2 twice in {x}: g, h;" in message
    assert f"1 twice in {y}: x;" in message
    assert "set data.path and data.target_path" in message


def test_the_same_stem_twice_is_fine_without_targets(tmp_path):
    fill(tmp_path, "ab")
    fill(tmp_path, "ab", "bmp")
    assert len(load(tmp_path)) == 4


def test_x_and_y_in_each_other(tmp_path):
    fill(tmp_path / "x", "ab")
    fill(tmp_path / "x" / "y", "ab")
    for path, target in (("x", "x/y"), ("x/y", "x"), ("x", "x")):
        assert "must not lie inside each other" in error(tmp_path / path, tmp_path / target)


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "tif", "gif", "webp"])
@pytest.mark.parametrize("side", ["x", "y"])
def test_a_truncated_file_is_named(kind, side, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for folder in ("x", "y"):
        for name in "ab":
            write(tmp_path / folder / f"{name}.{kind}", noise)
    broken = tmp_path / side / f"b.{kind}"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    message = error(tmp_path / "x", tmp_path / "y")
    assert str(broken) in message
    assert "whole and readable" in message


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n"])
def test_an_unreadable_file_is_named(content, tmp_path):
    fill(tmp_path, "ab")
    (tmp_path / "c.jpeg").write_bytes(content)
    assert f"{tmp_path / 'c.jpeg'}" in error(tmp_path)


def test_a_link_to_nowhere_is_named(tmp_path):
    fill(tmp_path, "ab")
    (tmp_path / "c.png").symlink_to(tmp_path / "gone.png")
    assert str(tmp_path / "c.png") in error(tmp_path)


def test_files_that_count_leaves_out_are_not_read(tmp_path):
    fill(tmp_path, "abcd")
    used = chosen(4, 3, 0)
    (left_out,) = set(range(4)) - set(used)
    (tmp_path / f"{'abcd'[left_out]}.png").write_bytes(b"")
    assert load(tmp_path, count=3, seed=0).x[:, 0, 0, 0].tolist() == used.tolist()
    (tmp_path / f"{'abcd'[used[0]]}.png").write_bytes(b"")
    assert f"{'abcd'[used[0]]}.png" in error(tmp_path, count=3, seed=0)


def test_no_images(tmp_path):
    assert f"found 0 images in {tmp_path}; set data.path" in error(tmp_path)
    for name in ("a.npy", "b.npy", "c.txt"):
        (tmp_path / name).touch()
    assert f"found 0 images in {tmp_path} (other files: 2 .npy, 1 .txt)" in error(tmp_path)
    fill(tmp_path / "x", "ab")
    (tmp_path / "y").mkdir()
    message = error(tmp_path / "x", tmp_path / "y")
    assert f"data.target_path must hold image files, found 0 images in {tmp_path / 'y'}" in message


def test_one_image(tmp_path):
    assert "at least 2 samples" in error(fill(tmp_path, "a"))


def test_a_file_for_a_folder(tmp_path):
    file = write(tmp_path / "a.png")
    assert f"data.path must be a folder of images for data.source folder, got {file}; set data.path" in error(file)
