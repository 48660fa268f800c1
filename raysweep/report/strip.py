"""The strip of validation images: what the best trial was given, what was expected, what it answered.

The images are written by training into `<trial directory>/samples.npz`; here they are only read and drawn.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from raysweep.report.figures import INK, SOFT
from raysweep.report.tables import measured

SAMPLES = "samples.npz"
_ROWS = {"x": "X\ninput", "y": "Y\nexpected", "output": "output"}
_MAX_COLUMNS = 6

Samples = dict[str, NDArray[np.float32]]


def read_samples(directory: Path | None) -> Samples | str:
    """The arrays `x`, `y` and `output` [K, H, W, C] of a trial, or a sentence that says why there are none."""
    if directory is None:
        return "No images: there is no best trial."
    path = directory / SAMPLES
    try:
        with np.load(path, allow_pickle=False) as file:
            samples = {name: np.asarray(file[name], dtype=np.float32) for name in _ROWS}
    except FileNotFoundError:
        return f"No images: the best trial has kept none ({path.parent.name}/{SAMPLES})."
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        return f"No images: {path.parent.name}/{SAMPLES} cannot be read ({error})."
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in samples.items())
    if any(array.ndim != 4 or 0 in array.shape for array in samples.values()) or len({len(a) for a in samples.values()}) > 1:
        return (
            f"No images: {path.parent.name}/{SAMPLES} must hold three arrays [K, H, W, C] of the same K >= 1, it holds {shapes}."
        )
    return samples


def displayed(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """An image [H, W, C] as it is shown: [H, W] or [H, W, 3], cut to 0..1; neither gray nor RGB: its channel 0."""
    if image.shape[-1] != 3:
        image = image[..., 0]
    # What is not finite is shown black, the range of a pixel is 0 to 1.
    return np.clip(np.nan_to_num(image, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0).astype(np.float32)


def strip_figure(samples: Mapping[str, NDArray[np.float32]]) -> Figure:
    """Rows X, Y, output; a column per sample, six at most; under each output its mean squared error."""
    columns = min(len(samples["x"]), _MAX_COLUMNS)
    figure = Figure(figsize=(1.0 + 0.95 * columns, 3.6), layout="constrained")
    grid: Any = figure.subplots(3, columns, squeeze=False)
    for row, (name, label) in enumerate(_ROWS.items()):
        channels = samples[name].shape[-1]
        for column in range(columns):
            axes = grid[row][column]
            axes.imshow(displayed(samples[name][column]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        note = "" if channels in (1, 3) else f"\nchannel 0\nof {channels}"
        grid[row][0].set_ylabel(label + note, rotation=0, ha="right", va="center", labelpad=10, color=INK)
    if samples["y"].shape == samples["output"].shape:
        for column in range(columns):
            error = np.square(samples["y"][column].astype(np.float64) - samples["output"][column].astype(np.float64)).mean()
            grid[2][column].set_xlabel(f"mse\n{measured(float(error))}", fontsize=9, color=SOFT)
    return figure
