"""The source `folder`: every image file of a folder, decoded into one array, paired with the targets by file stem.

What one image becomes is in `decode`; whether they fit each other is in `_stack`.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from raysweep.data.samples import Pixels, Samples, chosen, selected
from raysweep.errors import DataError
from raysweep.settings import DataConfig

_Kind: TypeAlias = tuple[tuple[int, ...], str]
"""An image's [H, W, C] and the name of its dtype."""
_SHOWN = 5
_UNREADABLE_FORMATS = {"BUFR", "GRIB", "HDF5", "MPEG"}  # Pillow knows their names only
_GRAY_MODES = ("1", "L", "LA")
# Modes that Pillow converts correctly only by way of another one.
_DETOUR = {"P": "RGBA", "PA": "RGBA", "RGBa": "RGBA", "La": "LA"}


def read_folder(config: DataConfig) -> Samples:
    """X and, with `data.target_path`, Y from folders of image files, read recursively and sorted by relative path.

    Raises:
        DataError: no folder, no images, X and Y that do not pair, a damaged file, sizes, channels or bit depths that differ.
        OSError: a folder cannot be listed.
    """
    assert config.path is not None  # DataConfig's own check
    folder, target = Path(config.path), Path(config.target_path) if config.target_path else None
    x_files = image_files(folder, "data.path")
    y_files: list[Path] = []
    if target is not None:
        _check_separate(folder, target)
        y_files = _paired(folder, x_files, target, image_files(target, "data.target_path"))
    keep = chosen(len(x_files), config.count, config.seed)  # before decoding: what is not used need not be readable
    x = _stack(folder, [x_files[i] for i in keep], config, "X")
    y = None if target is None else _stack(target, [y_files[i] for i in keep], config, "Y")
    return selected(config, x, y, origin=str(folder))


def image_files(folder: Path, setting: str) -> list[Path]:
    """The image files below `folder`, relative to it, sorted; by extension in any case, without hidden ones (`.x`, `._x.png`).

    Links to folders are followed, each folder is read once.

    Raises:
        DataError: not a folder, or no image in it; names `setting`.
        OSError: a folder cannot be listed.
    """
    if not folder.is_dir():
        raise DataError(f"{setting} must be a folder of images for data.source folder, got {folder}; set {setting}")
    found: list[Path] = []
    others: Counter[str] = Counter()
    seen = {folder.resolve()}
    for root, folders, names in os.walk(folder, onerror=_reraise, followlinks=True):
        below = {name: Path(root, name).resolve() for name in sorted(folders) if not name.startswith(".")}
        folders[:] = [name for name, real in below.items() if real not in seen]
        seen.update(below.values())
        for path in (Path(root, name) for name in names if not name.startswith(".")):
            if path.suffix.lower() in _extensions():
                found.append(path.relative_to(folder))
            else:
                others[path.suffix or path.name] += 1
    if not found:
        rest = f" (other files: {_first(f'{n} {suffix}' for suffix, n in others.most_common())})" if others else ""
        raise DataError(f"{setting} must hold image files, found 0 images in {folder}{rest}; set {setting}")
    return sorted(found, key=Path.as_posix)


def decode(path: Path, channels: str | None, size: tuple[int, int] | None) -> Pixels:
    """One image as [H, W, 1 or 3]; uint8, or uint16 for 16-bit gray, or float32 for float TIFF; turned upright by its EXIF.

    Alpha is dropped: the colour below is kept, nothing is composited. Palette and CMYK become RGB; of several frames the
    first is taken. Pillow reads 16-bit colour as its upper 8 bits.

    Args:
        path: the file.
        channels: "gray", "rgb", or None to keep what the file has.
        size: [height, width] to resize to, bilinear and antialiased, or None.

    Raises:
        DataError: the file is damaged, not an image, cannot be opened, or has more than 16 bits a pixel; with its path.
    """
    try:
        with Image.open(path) as opened:
            return _pixels(ImageOps.exif_transpose(opened), channels, size)
    except PermissionError:
        raise DataError(f"image files must be readable, got {path}: permission denied; change its permissions") from None
    except Exception as error:  # Pillow's plug-ins raise anything on a damaged file
        raise DataError(
            f"image files must be whole and readable, got {path}: {type(error).__name__}: {error}; repair or remove the file"
        ) from error


def _pixels(image: Image.Image, channels: str | None, size: tuple[int, int] | None) -> Pixels:
    if image.mode == "F" or image.mode.startswith("I"):
        deep = _deep(image, size)[..., np.newaxis]
        return np.repeat(deep, 3, axis=2) if channels == "rgb" else deep
    if image.mode in _DETOUR:
        image = image.convert(_DETOUR[image.mode])
    image = image.convert("L" if image.mode in _GRAY_MODES else "RGB")
    if channels:
        image = image.convert("L" if channels == "gray" else "RGB")
    if size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _deep(image: Image.Image, size: tuple[int, int] | None) -> Pixels:
    """A gray image of more than 8 bits, [H, W] uint16 or float32."""
    pixels = np.asarray(image)
    if image.mode == "I" and (pixels.min() < 0 or pixels.max() > 65535):
        raise ValueError(f"integers must be 0 to 65535, found {pixels.min()} to {pixels.max()}")
    if size:  # as float32, which holds 16 bits exactly: not every Pillow resizes 16-bit images
        wide = Image.fromarray(pixels.astype(np.float32)).resize((size[1], size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(wide) if image.mode == "F" else np.rint(np.asarray(wide)).clip(0, 65535)
    return pixels.astype(np.float32 if image.mode == "F" else np.uint16)


def _stack(folder: Path, files: Sequence[Path], config: DataConfig, side: str) -> Pixels:
    """All images of one side as [N, H, W, C]; read once, each into its place."""
    counts: Counter[_Kind] = Counter()
    examples: dict[_Kind, Path] = {}
    stack: Pixels = np.empty(0)
    for i, file in enumerate(files):
        pixels = decode(folder / file, config.channels, config.size)
        kind = (pixels.shape, pixels.dtype.name)
        counts[kind] += 1
        examples.setdefault(kind, file)
        if i == 0:
            stack = np.empty((len(files), *pixels.shape), dtype=pixels.dtype)
        if len(counts) == 1:
            stack[i] = pixels
        else:
            stack = np.empty(0)  # nothing to keep, the rest is only counted for the message
    if len(counts) > 1:
        _refuse_mixture(folder, counts, examples, side)
    return stack


def _refuse_mixture(folder: Path, counts: Counter[_Kind], examples: dict[_Kind, Path], side: str) -> NoReturn:
    """Says all that differs: each size, channels, depth with its count and the first file that has it."""

    def found(describe: Callable[[_Kind], str]) -> list[str]:
        merged: Counter[str] = Counter()
        example: dict[str, Path] = {}
        for kind, count in counts.items():
            merged[describe(kind)] += count
            example.setdefault(describe(kind), examples[kind])
        return [f"{n} {what} ({example[what]})" for what, n in merged.most_common()]

    bits = {"uint8": "of 8 bits", "uint16": "of 16 bits", "float32": "of floats"}
    checks = [
        ("one size (height x width)", found(lambda kind: f"{kind[0][0]}x{kind[0][1]}"), "set data.size"),
        ("the same channels", found(lambda kind: "rgb" if kind[0][2] == 3 else "gray"), "set data.channels"),
        ("one bit depth", found(lambda kind: bits[kind[1]]), "save all files with one"),
    ]
    broken = [f"all images of {side} must have {rule}, got {_first(kinds)}; {cure}" for rule, kinds, cure in checks if kinds[1:]]
    raise DataError(f"{folder}: " + "\n".join(broken))


def _check_separate(folder: Path, target: Path) -> None:
    real, real_target = folder.resolve(), target.resolve()
    if real.is_relative_to(real_target) or real_target.is_relative_to(real):
        raise DataError(
            f"data.path and data.target_path must not lie inside each other, or X and Y are mixed, got {folder} and {target}; "
            f"move one, or remove data.target_path if Y is X"
        )


def _paired(folder: Path, x_files: list[Path], target: Path, y_files: list[Path]) -> list[Path]:
    """The files of Y in the order of X.

    Raises:
        DataError: lists X without Y, Y without X, and stems that are there twice.
    """
    x_stems, y_stems = [_stem(file) for file in x_files], [_stem(file) for file in y_files]
    problems = {
        f"without Y in {target}": sorted(set(x_stems) - set(y_stems)),
        f"without X in {folder}": sorted(set(y_stems) - set(x_stems)),
        f"twice in {folder}": _repeated(x_stems),
        f"twice in {target}": _repeated(y_stems),
    }
    if any(problems.values()):
        found = "; ".join(f"{len(stems)} {what}: {_first(stems)}" for what, stems in problems.items() if stems)
        raise DataError(
            f"each X must have one Y of the same path without extension, got {found}; "
            f"set data.path and data.target_path, or remove these files"
        )
    by_stem = dict(zip(y_stems, y_files, strict=True))
    return [by_stem[stem] for stem in x_stems]


def _stem(file: Path) -> str:
    return file.with_suffix("").as_posix()


def _repeated(stems: Iterable[str]) -> list[str]:
    return sorted(stem for stem, n in Counter(stems).items() if n > 1)


def _first(items: Iterable[str]) -> str:
    """The first few, and how many more."""
    listed = list(items)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _reraise(error: OSError) -> NoReturn:
    raise error


@functools.cache
def _extensions() -> frozenset[str]:
    """Lower-case extensions of the formats that Pillow reads."""
    registered = Image.registered_extensions()
    return frozenset(e for e, name in registered.items() if name in Image.OPEN and name not in _UNREADABLE_FORMATS)
