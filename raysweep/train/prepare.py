"""Everything that can be refused before a worker starts is refused here; shared by one run and by a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raysweep.cluster.resources import Allocation
from raysweep.data.dataset import Dataset, open_dataset, resolved
from raysweep.data.order import num_steps
from raysweep.errors import ConfigError
from raysweep.experiment import Experiment
from raysweep.models import Shape, check_depth, count_parameters, uses_batch_norm
from raysweep.plugins import build_model, check_output, code_fingerprint
from raysweep.store.keys import trial_key
from raysweep.train.evaluate import facts
from raysweep.train.exact import check_bitwise


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before it is trained: its trainable values, and whether it normalises over the batch."""

    parameters: int
    batch_norm: bool


@dataclass(frozen=True)
class Prepared:
    """A checked experiment.

    Attributes:
        experiment: with absolute data paths, fit to be sent to workers.
        dataset: its images.
        facts: what the journal says about them.
        key: the trial's key.
        model: its size, and whether it normalises over the batch.
        notes: settings that can work but are seldom meant, for people.
    """

    experiment: Experiment
    dataset: Dataset
    facts: dict[str, Any]
    key: str
    model: ModelFacts
    notes: tuple[str, ...] = ()


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """A copy that means the same images in any worker's directory."""
    return experiment.model_copy(update={"data": resolved(experiment.data)})


def prepare(experiment: Experiment) -> Prepared:
    """Read the images and check the experiment against them.

    Raises:
        ConfigError: the model does not fit the images.
        DataError: the images cannot be used.
    """
    experiment = with_absolute_paths(experiment)
    dataset = open_dataset(experiment.data)
    model = check_model(experiment, dataset)
    key = trial_key(experiment, dataset.fingerprint, code_fingerprint(experiment.model))
    return Prepared(experiment, dataset, facts(dataset, experiment), key, model, tuple(unusual(experiment, dataset)))


def unusual(experiment: Experiment, dataset: Dataset) -> list[str]:
    """What a user should hear before a night is spent on it."""
    notes = []
    num_train, train, samples = len(dataset.train), experiment.train, dataset.samples
    if train.batch_size > num_train:
        notes.append(f"train.batch_size {train.batch_size} is more than the {num_train} training samples: one step an epoch")
    steps = num_steps(num_train, train.batch_size) * train.epochs
    if experiment.optim.warmup_steps >= steps:
        notes.append(f"optim.warmup_steps {experiment.optim.warmup_steps} of {steps} steps: the learning rate is never reached")
    if train.exactness == "bitwise" and experiment.scale.cpus_per_worker is None:
        notes.append(
            "train.exactness bitwise takes 1 torch thread a worker, whatever its CPUs, unless scale.cpus_per_worker is set"
        )
    if samples.x.dtype == np.float32:
        first = samples.x[:256]
        if float(np.abs(first).max()) > 10:
            notes.append(
                f"X holds floats up to {float(np.abs(first).max()):.4g}; floats are taken as they are, and 1 is the range of a "
                "pixel: store images as uint8 or uint16, or divide them"
            )
    return notes


def check_model(experiment: Experiment, dataset: Dataset) -> ModelFacts:
    """Build the model and see that it fits the images.

    Raises:
        ConfigError: it does not fit them, or the user's factory does not keep to the contract.
    """
    x_shape, y_shape = shapes(dataset)
    check_depth(experiment.model, x_shape, y_shape)
    if experiment.train.tensorboard:
        _check_tensorboard()
    if experiment.model.factory:
        model = build_model(experiment.model, x_shape, y_shape, experiment.train.seed)
        check_output(experiment.model, model, x_shape, y_shape)
        if experiment.train.exactness == "bitwise":
            check_bitwise(experiment.model, model, x_shape)
    else:
        with torch.device("meta"):
            model = build_model(experiment.model, x_shape, y_shape, experiment.train.seed)
    return ModelFacts(count_parameters(model), uses_batch_norm(model))


def shapes(dataset: Dataset) -> tuple[Shape, Shape]:
    """Height, width and channels of X and of Y."""
    x, y = dataset.samples.x.shape[1:], dataset.samples.y.shape[1:]
    return (int(x[0]), int(x[1]), int(x[2])), (int(y[0]), int(y[1]), int(y[2]))


def check_scale(model: ModelFacts, allocation: Allocation) -> None:
    """Refuse what would give other results on several workers.

    Raises:
        ConfigError: batch normalisation on several CPU workers, whose statistics would depend on their number.
    """
    if model.batch_norm and allocation.max_workers > 1 and not allocation.gpus_per_worker:
        raise ConfigError(
            f"batch normalisation on {allocation.max_workers} CPU workers would go over each worker's part, so the result "
            "would depend on their number; set model.norm to group (in your own model: GroupNorm), or scale.workers to 1"
        )


def _check_tensorboard() -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError("train.tensorboard needs the package tensorboard: pip install 'raysweep[tensorboard]'") from None
