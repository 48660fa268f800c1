"""What every source gives: checked arrays of images X and expected images Y, and who belongs together.

Reading files is in photos.py, arrays.py and images.py; the split is in dataset.py; scaling to [0, 1] happens on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from raysweep.errors import DataError
from raysweep.settings import DataConfig

Pixels: TypeAlias = NDArray[Any]
"""uint8, uint16 or float32, [N, H, W, C] (one image: [H, W, C])."""
Indices: TypeAlias = NDArray[np.int64]

_RANGES = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0, np.dtype(np.float32): 1.0}
_CHUNK_BYTES = 16 << 20
_CHANNELS = (1, 3, 4)
_COUNT_STREAM = int.from_bytes(b"count", "big")


def pixel_range(dtype: DTypeLike) -> float:
    """The value that is scaled to 1: 255 for uint8, 65535 for uint16, 1 for float32.

    Raises:
        DataError: any other dtype.
    """
    if np.dtype(dtype) not in _RANGES:
        raise DataError(f"pixels must be uint8, uint16 or float32, got {np.dtype(dtype)}; convert the array")
    return _RANGES[np.dtype(dtype)]


@dataclass(frozen=True, eq=False)
class Samples:
    """Images X, expected images Y, and the groups that the split keeps whole. Checked when made.

    Args:
        x: [N, H, W, C] or [N, H, W] (a channel axis is added). uint8, uint16 and float32 stay as they are, bool becomes 0 and
            255, other floats become float32. Floats are taken as they are, also outside [0, 1].
        y: likewise, with the same N; H, W, C and dtype may differ from X's. The same object as `x` where X is its own target.
        groups: integers [N] or None; samples of one group go to the same side of the split.

    x and y end up C-contiguous and in the machine's byte order; a memory map stays one where that needs no conversion.

    Raises:
        DataError: fewer than 2 samples, different N, other shapes or dtypes, channels first, NaN or infinity.
    """

    x: Pixels
    y: Pixels
    groups: Indices | None = None

    def __post_init__(self) -> None:
        x = _images(self.x, "X")
        y = x if self.y is self.x else _images(self.y, "Y")
        check_lengths(x, y, self.groups)
        if len(x) == 0:
            raise DataError("there must be images, got 0 images; set data.path to where they are")
        if len(x) < 2:
            raise DataError("at least 2 samples are needed, to train and to validate, got 1; add samples, or raise data.count")
        _check_finite(x, "X")
        if y is not x:
            _check_finite(y, "Y")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        if self.groups is not None:
            object.__setattr__(self, "groups", _groups(self.groups))

    def __len__(self) -> int:
        return len(self.x)


def selected(
    config: DataConfig, x: Pixels, y: Pixels | None = None, groups: NDArray[Any] | None = None, origin: str = ""
) -> Samples:
    """The samples of a source, reduced to `data.count` and then checked.

    Args:
        config: its `count` and `seed` count here.
        x, y, groups: as in `Samples`; y None where X is its own target.
        origin: opens the error messages, such as the file's path.

    Raises:
        DataError: as `Samples` does.
    """
    try:
        check_lengths(x, y, groups)
        if config.count is not None and np.ndim(x) > 0 and config.count < len(x):
            keep = chosen(len(x), config.count, config.seed)
            x = x[keep]
            y = y if y is None else y[keep]
            groups = groups if groups is None else groups[keep]
        return Samples(x, x if y is None else y, groups)
    except DataError as error:
        raise DataError(f"{origin}: {error}" if origin else str(error)) from None


def chosen(num: int, count: int | None, seed: int) -> Indices:
    """Which of `num` samples are used: `count` of them, drawn by `seed`, in their order; all where there are no more."""
    if count is None or count >= num:
        return np.arange(num, dtype=np.int64)
    return np.sort(shuffled(num, seed, _COUNT_STREAM)[:count])


def shuffled(num: int, seed: int, stream: int) -> Indices:
    """A permutation of 0 .. num - 1, int64 [num], that depends on the arguments alone.

    Sorts the raw output of Philox-4x64, which numpy keeps the same in all versions, unlike Generator.permutation.
    """
    bits = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(num)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


def check_lengths(x: Pixels, y: Pixels | None, groups: NDArray[Any] | None) -> None:
    """Refuses X, Y and groups of different length.

    Raises:
        DataError: gives the lengths.
    """
    for name, other in (("Y", y), ("groups", groups)):
        if other is not None and np.shape(other)[:1] != np.shape(x)[:1]:
            raise DataError(
                f"X and {name} must have the same number of samples, got shapes {np.shape(x)} and {np.shape(other)}; "
                f"set data.path and data.target_path to arrays that belong together"
            )


def _images(array: Pixels, name: str) -> Pixels:
    """`array` as [N, H, W, C], C-contiguous, of one of the three dtypes; a memory map where it can stay one."""
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4 or 0 in array.shape[1:]:
        raise DataError(f"{name} must be [N, H, W] or [N, H, W, C], got shape {array.shape}; reshape the array")
    if array.shape[1] in _CHANNELS and array.shape[3] > max(_CHANNELS):
        raise DataError(
            f"{name} must have its channels last, [N, H, W, C], got shape {array.shape}, which looks like [N, C, H, W]; "
            f"move the axis: numpy.moveaxis(array, 1, -1)"
        )
    kind = array.dtype.kind
    if kind == "b":
        return np.ascontiguousarray(array).view(np.uint8) * np.uint8(255)
    wanted = np.dtype(np.float32) if kind == "f" else array.dtype.newbyteorder("=")
    if wanted not in _RANGES:
        raise DataError(
            f"{name} must be uint8 (0 to 255), uint16 (0 to 65535), float32 (0 to 1) or bool, got {array.dtype}; "
            f"convert the array, for values up to 255: array.astype(numpy.uint8)"
        )
    if wanted == array.dtype and array.flags.c_contiguous:
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.ascontiguousarray(array, dtype=wanted)


def _check_finite(array: Pixels, name: str) -> None:
    if array.dtype.kind != "f":
        return
    step = max(1, _CHUNK_BYTES // array[0].nbytes)  # a memory map is read chunk by chunk, never loaded whole
    for start in range(0, len(array), step):
        good = np.isfinite(array[start : start + step]).all(axis=(1, 2, 3))
        if not good.all():
            raise DataError(
                f"{name} must be finite, got NaN or infinity (in float32) in sample {start + int(np.argmin(good))} "
                f"of the {len(array)} in use; repair or remove it"
            )


def _groups(groups: NDArray[Any]) -> Indices:
    if groups.ndim != 1 or groups.dtype.kind not in "iu":
        raise DataError(f"groups must be integers [N], got {groups.dtype} {groups.shape}; number them")
    return np.ascontiguousarray(groups, dtype=np.int64)
