"""The two built-in sources, from files inside scikit-learn's wheel: patches of two photographs, and 8x8 digits.

scikit-learn itself is never imported: that takes over a second in every worker.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from raysweep.data.samples import Pixels, Samples, selected
from raysweep.errors import DataError
from raysweep.settings import DataConfig

PHOTOS = ("china.jpg", "flower.jpg")
"""640 x 427 pixels each."""
_MIN_TILE = 80
_DIGIT_MAX = 16


def read_photos(config: DataConfig) -> Samples:
    """Overlapping patches of the two photographs: X is Y, uint8 [N, patch, patch, C]; 1,280 patches of 32 pixels.

    Each photograph is cut into tiles and the patches of one tile are one group, so that no pixel of a validation patch is
    in a training patch.

    Raises:
        DataError: scikit-learn or the file is not there; fewer than 2 patches after `data.count`.
    """
    tiles = np.concatenate([cut(photo(name, config.channels == "gray"), config.patch) for name in PHOTOS])
    num_tiles, per_tile = tiles.shape[:2]
    groups = np.repeat(np.arange(num_tiles, dtype=np.int64), per_tile)
    return selected(config, tiles.reshape(num_tiles * per_tile, *tiles.shape[2:]), groups=groups, origin="photos")


def read_digits(config: DataConfig) -> Samples:
    """1,797 handwritten digits: X is Y, uint8 [1797, 8, 8, 1]; their 17 levels are spread over 0 to 255.

    Raises:
        DataError: scikit-learn or the file is not there; fewer than 2 digits after `data.count`.
    """
    table = np.loadtxt(sklearn_file("data", "digits.csv.gz"), delimiter=",", dtype=np.float32)
    pixels = np.rint(table[:, :64] * (255 / _DIGIT_MAX)).astype(np.uint8)
    return selected(config, pixels.reshape(-1, 8, 8, 1), origin="digits")


def photo(name: str, gray: bool) -> Pixels:
    """A photograph of scikit-learn's wheel, uint8 [H, W, 1 or 3]."""
    with Image.open(sklearn_file("images", name)) as image:
        pixels = np.asarray(image.convert("L" if gray else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def tile_side(patch: int) -> int:
    """The side of the tiles that patches are taken from, pixels: at least 16 patches fit at a stride of half a patch."""
    return max(_MIN_TILE, patch * 5 // 2)


def cut(image: Pixels, patch: int) -> Pixels:
    """All patches of all tiles of an image [H, W, C], as [tiles, patches, patch, patch, C]; the rest at the edges is left."""
    side, stride, channels = tile_side(patch), patch // 2, image.shape[2]
    rows, columns = image.shape[0] // side, image.shape[1] // side
    whole = image[: rows * side, : columns * side].reshape(rows, side, columns, side, channels)
    tiles = whole.swapaxes(1, 2).reshape(rows * columns, side, side, channels)
    windows = sliding_window_view(tiles, (patch, patch), axis=(1, 2))[:, ::stride, ::stride]  # [tiles, i, j, C, patch, patch]
    return np.moveaxis(windows, 3, -1).reshape(rows * columns, -1, patch, patch, channels)


def sklearn_file(*parts: str) -> Path:
    """The path of a file below sklearn/datasets, found without importing sklearn.

    Raises:
        DataError: not installed, or the file is not in this release.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("data.source photos and digits need scikit-learn, which is not installed; install it or set data.source")
    path = Path(spec.submodule_search_locations[0], "datasets", *parts)
    if not path.is_file():
        raise DataError(f"data.source photos and digits need scikit-learn's data files, {path} is not there; set data.source")
    return path
