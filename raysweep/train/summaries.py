"""TensorBoard summaries of a run: scalars, images, and histograms of every layer's weights, biases and activations.

They only observe: weights, statistics, random state and modes of the model are what they were. The loop decides when.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.data.dataset import Dataset
from raysweep.data.loader import Loader, Request
from raysweep.experiment import Experiment
from raysweep.train.evaluate import chunks
from raysweep.train.runtime import Row
from raysweep.train.step import autocast

SCALARS = ("train_loss", "val_loss", "psnr", "lr", "grad_norm", "samples_per_second")
"""The columns of a row that are drawn, under their own names."""
NUM_IMAGES = 6
_NUM_BINS = 64  # TensorBoard itself draws 30


class Summaries:
    """Writes a trial's summaries into `<its directory>/tensorboard`, which is made at the first epoch.

    Tags: the names in SCALARS; `image_0/x`, `image_0/y` (once, at step 0), `image_0/output`; `<layer>/weight`, `<layer>/bias`
    and whatever else its parameters are called; `<layer>/activation`, and `activation_2` where it is called again.

    Args:
        directory: the trial's directory.
        dataset: 6 of its validation images, those of the report, go through the model.
        experiment: its noise and precision apply to them.
        device: where the model is.
    """

    def __init__(self, directory: Path, dataset: Dataset, experiment: Experiment, device: torch.device) -> None:
        self._directory = directory / "tensorboard"
        self._dataset, self._experiment, self._device = dataset, experiment, device
        self._writer: Any = None
        self._x = torch.empty(0)
        self._is_broken = False

    def epoch(self, row: Row, model: nn.Module) -> None:
        """Write one epoch, and force it to the disk: a checkpoint saved after this call finds it there.

        A disk that cannot be written ends the summaries with a warning, not the training.

        Args:
            row: the epoch's row; where its val_loss is not finite the model is not run.
            model: the model itself, not what wraps or compiles it.
        """
        if self._is_broken:
            return
        try:
            self._write(row, model)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the writer's thread and close its file."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._is_broken:
            warnings.warn(
                f"cannot write {self._directory}: {error}; going on without TensorBoard summaries", RuntimeWarning, stacklevel=3
            )
        self._is_broken = True

    def _write(self, row: Row, model: nn.Module) -> None:
        step = row["step"]
        if self._writer is None:
            self._open(step)
        for name in SCALARS:
            self._writer.add_scalar(name, row[name], step)
        for name, parameter in model.named_parameters():
            layer, _, kind = name.rpartition(".")
            self._histogram(f"{layer or 'model'}/{kind}", parameter, step)
        # What has diverged has nothing to show, and a user's model may refuse its own NaN.
        if math.isfinite(row["val_loss"]):
            self._images("output", self._observed(model, step), step)
        self._writer.flush()

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        is_new = not any(self._directory.glob("events.*"))
        parts = chunks(self._dataset, self._experiment)
        samples, keys = (np.concatenate([getattr(part, name) for part in parts]) for name in ("samples", "keys"))
        # Spread evenly: neighbours may be patches of one photograph. Chosen as evaluate.example_images does.
        chosen = np.linspace(0, len(samples) - 1, min(NUM_IMAGES, len(samples))).round().astype(np.int64)
        loader = Loader(self._dataset.samples, self._experiment.data.noise, self._device)
        (batch,) = loader.batches([Request(samples[chosen], keys[chosen])])
        self._x = batch.x
        # Whatever an attempt before this one wrote from here on is written again: TensorBoard drops it.
        self._writer = SummaryWriter(str(self._directory), purge_step=step)
        if is_new:
            self._images("x", batch.x, 0)
            self._images("y", batch.y, 0)

    def _images(self, kind: str, images: Tensor, step: int) -> None:
        """Images [B, C, H, W], one tag each, clipped to 0..1; of other than 1 or 3 channels the first."""
        for number, image in enumerate(images.float().cpu()):
            seen = image if len(image) in (1, 3) else image[:1]
            pixels = (seen.nan_to_num(nan=0.0).clamp(0, 1) * 255).round().to(torch.uint8)
            self._writer.add_image(f"image_{number}/{kind}", pixels, step)

    def _histogram(self, tag: str, tensor: Tensor, step: int) -> None:
        """A histogram of the values; nothing where they are not floats, or none, or not finite."""
        if not tensor.is_floating_point() or tensor.layout != torch.strided or not tensor.numel():
            return
        values = tensor.detach().cpu().double().flatten()
        low, high = (float(value) for value in values.aminmax())
        if not math.isfinite(high - low):
            return
        # The writer's own binning fails beyond 1e20, which a model about to diverge passes.
        limits, counts = [high], [float(values.numel())]
        if low < high:
            histogram = torch.histogram(values, _NUM_BINS, range=(low, high))
            limits, counts = histogram.bin_edges[1:].tolist(), histogram.hist.tolist()
        total, squares = float(values.sum()), float(values.square().sum())
        self._writer.add_histogram_raw(tag, low, high, values.numel(), total, squares, limits, counts, step)

    def _observed(self, model: nn.Module, step: int) -> Tensor:
        """The output for the fixed images, with a histogram of each layer's own on the way."""
        modes = [(module, module.training) for module in model.modules()]
        cuda = [self._device] if self._device.type == "cuda" else []
        hooks = [
            module.register_forward_hook(self._hook(name or "model", step))
            for name, module in model.named_modules()
            if _is_layer(module)
        ]
        try:
            with torch.no_grad(), torch.random.fork_rng(cuda), autocast(self._experiment, self._device):
                # A copy: the model may begin with an operation in place.
                output: Tensor = model.eval()(self._x.clone())
        finally:
            for hook in hooks:
                hook.remove()
            for module, mode in modes:
                module.training = mode
        return output

    def _hook(self, layer: str, step: int) -> Callable[[nn.Module, Any, Any], None]:
        calls = 0

        def hook(_module: nn.Module, _given: Any, output: Any) -> None:
            # Here and now: the next layer may overwrite it.
            nonlocal calls
            calls += 1
            tensor = _first_tensor(output)
            if tensor is not None:
                self._histogram(f"{layer}/activation" if calls == 1 else f"{layer}/activation_{calls}", tensor, step)

        return hook


def _is_layer(module: nn.Module) -> bool:
    """Whether a module has parameters of its own, or is an activation: torch's, or a leaf that the user wrote."""
    if next(module.parameters(recurse=False), None) is not None:
        return True
    if next(module.children(), None) is not None:
        return False
    if any(base.__module__ == "torch.nn.modules.activation" for base in type(module).__mro__):
        return True
    return not type(module).__module__.startswith(("torch.", "raysweep."))


def _first_tensor(output: Any) -> Tensor | None:
    """A layer's output, which may be a tuple (recurrent layers, attention) or a dictionary."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    candidates = output if isinstance(output, list | tuple) else (output,)
    return next((value for value in candidates if isinstance(value, Tensor)), None)
