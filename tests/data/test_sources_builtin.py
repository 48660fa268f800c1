"""photos and digits: what they hold, that no validation pixel is trained on, and that sklearn is never imported."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from raysweep.data import photos
from raysweep.data.dataset import load_samples, open_dataset
from raysweep.errors import DataError
from raysweep.settings import DataConfig


def test_photos_by_default():
    samples = load_samples(DataConfig())
    assert samples.x.shape == (1280, 32, 32, 3)
    assert samples.x.dtype == np.uint8
    assert samples.y is samples.x
    assert len(np.unique(samples.groups)) == 80
    assert samples.x.min() < 5
    assert samples.x.max() > 250
    assert len(np.unique(samples.x.reshape(1280, -1), axis=0)) > 1270  # patches of a sky may be equal


def test_patches_are_where_the_photo_says():
    photo = photos.photo("china.jpg", gray=False)
    assert photo.shape == (427, 640, 3)
    tiles = photos.cut(photo, 32)
    assert tiles.shape == (40, 16, 32, 32, 3)
    # Tile 9 is row 1, column 1; patch 6 is at (16, 32) in it.
    np.testing.assert_array_equal(tiles[9, 6], photo[96:128, 112:144])


@pytest.mark.parametrize("patch", range(4, 81))
def test_every_patch_size_has_overlapping_patches(patch):
    assert photos.cut(np.zeros((427, 640, 1), np.uint8), patch).shape[1] >= 16
    assert 2 * patch < photos.tile_side(patch) <= 213  # two rows of tiles in a photo


@pytest.mark.parametrize("patch", [4, 7, 32, 33, 45, 80])
@pytest.mark.parametrize("count", [None, 150])
def test_no_validation_pixel_is_ever_trained_on(patch, count, monkeypatch):
    """The photos are replaced by ones in which every pixel has a colour of its own."""

    def numbered(name: str, gray: bool) -> np.ndarray:
        numbers = np.arange(427 * 640, dtype=np.uint32) + 427 * 640 * photos.PHOTOS.index(name)
        return numbers.view(np.uint8).reshape(427, 640, 4)[..., :3]

    monkeypatch.setattr(photos, "photo", numbered)
    data = open_dataset(DataConfig(patch=patch, count=count, seed=patch))
    pixels = data.samples.x.astype(np.uint32) @ np.array([1, 1 << 8, 1 << 16], dtype=np.uint32)
    seen = np.zeros(2 * 427 * 640, dtype=bool)
    seen[pixels[data.train]] = True
    assert not seen[pixels[data.val]].any()
    share = len(data.val) / len(data.samples)
    assert abs(share - 0.2) < 0.05


def test_gray_photos():
    gray, rgb = (load_samples(DataConfig(channels=channels)) for channels in ("gray", "rgb"))
    assert gray.x.shape == (1280, 32, 32, 1)
    luma = rgb.x @ np.array([0.299, 0.587, 0.114])
    assert np.abs(gray.x[..., 0] - luma).max() < 1.5
    np.testing.assert_array_equal(gray.groups, rgb.groups)


def test_digits():
    samples = load_samples(DataConfig(source="digits"))
    assert samples.x.shape == (1797, 8, 8, 1)
    assert samples.x.dtype == np.uint8
    assert samples.groups is None
    assert len(np.unique(samples.x)) == 17
    # The first digit of the file is a zero: dark in the middle, its first row 0 0 5 13 9 1 0 0.
    assert samples.x[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert samples.x.max() == 255


def test_count_reduces_the_built_in_sources():
    assert len(load_samples(DataConfig(source="digits", count=12))) == 12
    assert len(load_samples(DataConfig(count=12))) == 12
    assert len(load_samples(DataConfig(count=10**6))) == 1280


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from raysweep.data.dataset import load_samples; from raysweep.settings import DataConfig; "
        "load_samples(DataConfig()); load_samples(DataConfig(source='digits')); "
        "sys.exit(str([m for m in ('sklearn', 'torch', 'ray', 'scipy') if m in sys.modules] or '') or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", ["photos", "digits"])
def test_without_scikit_learn(source, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"scikit-learn, which is not installed.*data\.source"):
        load_samples(DataConfig(source=source))


def test_a_release_without_the_file():
    with pytest.raises(DataError, match=r"moon\.jpg is not there"):
        photos.photo("moon.jpg", gray=False)
