"""What one image file becomes: modes, alpha, 16 bits, floats, EXIF, resizing, damage."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysweep.data.dataset import load_samples
from raysweep.data.images import decode
from raysweep.data.samples import Samples
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


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        ("1", 1), ("L", 1), ("LA", 1), ("La", 1), ("P", 3), ("PA", 3),
        ("RGB", 3), ("RGBA", 3), ("RGBa", 3), ("CMYK", 3), ("YCbCr", 3), ("HSV", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [None, "gray", "rgb"])
def test_every_mode(mode, shape, channels, tmp_path, monkeypatch):
    first = {"La": "LA", "RGBa": "RGBA", "PA": "P"}.get(mode, mode)
    image = Image.fromarray(RGB).convert(first).convert(mode)
    monkeypatch.setattr(Image, "open", lambda path: image)  # no format holds all modes
    pixels = decode(tmp_path, channels, None)
    assert pixels.shape == (6, 9, {None: shape, "gray": 1, "rgb": 3}[channels])
    assert pixels.dtype == np.uint8
    if mode in ("RGB", "RGBA", "CMYK") and channels != "gray":
        np.testing.assert_array_equal(pixels, RGB)
    if mode in ("L", "LA"):
        np.testing.assert_array_equal(pixels[..., 0], np.asarray(Image.fromarray(RGB).convert("L")))
    if mode == "1":
        assert set(np.unique(pixels)) == {0, 255}


def test_a_mixed_folder_with_channels_by_configuration(tmp_path):
    for name, mode in {"a.png": "P", "b.png": "RGBA", "c.png": "LA", "d.jpg": "CMYK", "e.png": "1", "f.png": "L"}.items():
        Image.fromarray(RGB).convert(mode).save(tmp_path / name)
    assert load(tmp_path, channels="rgb").x.shape == (6, 6, 9, 3)
    assert load(tmp_path, channels="gray").x.shape == (6, 6, 9, 1)
    message = error(tmp_path)
    assert "the same channels, got 3 rgb (a.png), 3 gray (c.png); set data.channels" in message


@pytest.mark.filterwarnings("error")
def test_alpha_is_dropped_also_from_palettes(tmp_path):
    transparent = np.dstack([RGB, np.zeros((6, 9), np.uint8)])
    np.testing.assert_array_equal(decode(write(tmp_path / "a.png", transparent), None, None), RGB)
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "p.png", transparency=bytes([0, 128]))
    assert decode(tmp_path / "p.png", None, None).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_16_bits_keep_their_range(tmp_path):
    for name in ("a.png", "b.tif"):
        pixels = decode(write(tmp_path / name, DEEP), None, None)
        assert pixels.dtype == np.uint16
        np.testing.assert_array_equal(pixels[..., 0], DEEP)
    rgb = decode(tmp_path / "a.png", "rgb", None)
    np.testing.assert_array_equal(rgb, np.repeat(DEEP[..., None], 3, axis=2))
    np.testing.assert_array_equal(decode(tmp_path / "a.png", "gray", None)[..., 0], DEEP)
    samples = load(tmp_path)
    assert samples.x.dtype == np.uint16
    assert samples.x.max() == 63600


def test_16_bits_in_mode_i_as_older_pillow_reads_them(tmp_path):
    pixels = decode(write(tmp_path / "a.tif", DEEP.astype(np.int32)), None, None)
    assert pixels.dtype == np.uint16
    np.testing.assert_array_equal(pixels[..., 0], DEEP)
    for bad in (-1, 65536):
        with pytest.raises(DataError, match=r"b\.tif.*integers must be 0 to 65535"):
            decode(write(tmp_path / "b.tif", np.full((4, 4), bad, np.int32)), None, None)


def test_16_bit_big_endian_tiff(tmp_path):
    write(tmp_path / "a.tif", DEEP.astype(">u2"))
    assert (tmp_path / "a.tif").read_bytes()[:2] == b"MM"
    pixels = decode(tmp_path / "a.tif", None, None)
    assert pixels.dtype == np.uint16
    assert pixels.dtype.isnative
    np.testing.assert_array_equal(pixels[..., 0], DEEP)


def test_float_tiff(tmp_path):
    x = np.linspace(-1, 2, 54, dtype=np.float32).reshape(6, 9)
    for name in ("a.tif", "b.tif"):
        write(tmp_path / name, x)
    np.testing.assert_array_equal(load(tmp_path).x[1, ..., 0], x)
    assert decode(tmp_path / "a.tif", "rgb", (3, 4)).shape == (3, 4, 3)
    write(tmp_path / "b.tif", np.full((6, 9), np.nan, np.float32))
    assert "X must be finite" in error(tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("pixels", [RGB, DEEP], ids=["rgb", "16bit"])
def test_exif_orientation_is_applied_to_x_and_y(orientation, pixels, tmp_path):
    upright = {
        1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1], 5: pixels.swapaxes(0, 1),
        6: np.rot90(pixels, -1), 7: np.rot90(pixels, 2).swapaxes(0, 1), 8: np.rot90(pixels),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    for side in ("x", "y"):
        for name in ("a.png", "b.png"):
            write(tmp_path / side / name, pixels, exif=exif)
    samples = load(tmp_path / "x", tmp_path / "y")
    for stack in (samples.x, samples.y):
        np.testing.assert_array_equal(stack[1], upright.reshape(*upright.shape[:2], -1))


def test_resizing_x_and_y_alike_8_and_16_bits(tmp_path):
    smooth = np.add.outer(np.arange(40), np.arange(60)).astype(np.uint16) * 655
    for name in "ab":
        write(tmp_path / "x" / f"{name}.png", smooth)
        write(tmp_path / "y" / f"{name}.png", (smooth >> 8).astype(np.uint8))
    samples = load(tmp_path / "x", tmp_path / "y", size=(20, 30))
    assert (samples.x.dtype, samples.y.dtype) == (np.uint16, np.uint8)
    assert samples.x.shape == samples.y.shape == (2, 20, 30, 1)
    means = smooth.reshape(20, 2, 30, 2).mean(axis=(1, 3))[2:-2, 2:-2]
    assert np.abs(samples.x[0, 2:-2, 2:-2, 0] - means).max() <= 1
    assert np.abs(samples.y[0, 2:-2, 2:-2, 0] - means / 256).max() <= 1.5


def test_downscaling_is_antialiased(tmp_path):
    board = (np.indices((40, 40)).sum(axis=0) % 2 * 255).astype(np.uint8)
    pixels = decode(write(tmp_path / "a.png", board), None, (10, 10))
    assert np.abs(pixels.astype(int) - 127).max() < 12


def test_every_cut_of_a_png_is_refused_or_whole(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(RGB).save(buffer, "png")
    content = buffer.getvalue()
    for length in range(len(content)):
        (tmp_path / "a.png").write_bytes(content[:length])
        with contextlib.suppress(DataError):
            np.testing.assert_array_equal(decode(tmp_path / "a.png", None, None), RGB)


def test_of_several_frames_the_first(tmp_path):
    frames = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (7, 99)]
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    assert decode(tmp_path / "a.tif", None, None).max() == 7
