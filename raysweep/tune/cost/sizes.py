"""Which trials cost the same: the distinct sizes of a sweep's models and batches, and costs in between those measured. No Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from raysweep.data.dataset import Dataset
from raysweep.errors import RaysweepError
from raysweep.experiment import Experiment
from raysweep.plugins import build_model
from raysweep.train.prepare import shapes
from raysweep.tune.drawing import draws
from raysweep.tune.plan import Plan, PlannedTrial

_FREE: dict[str, set[str]] = {
    "model": {"init", "preset"},
    "data": {"path", "target_path", "seed"},
    "optim": {"lr", "betas", "eps", "warmup_steps", "schedule", "schedule_epochs", "min_lr"},
    "train": {
        "epochs", "seed", "reduction", "patience", "min_delta",
        "checkpoint_every_epochs", "checkpoint_every_s", "tensorboard", "ledger",
    },
}  # fmt: skip
"""Settings that change nothing of what a step costs."""
_SWITCHES = (("model", "dropout"), ("data", "noise"), ("optim", "weight_decay"), ("optim", "momentum"), ("optim", "clip_norm"))
"""Settings that cost something or nothing, whatever their value."""
_DRAWS_PER_TRIAL = 20


@dataclass(frozen=True)
class Size:
    """Trials whose steps cost the same.

    Attributes:
        experiment: of one of them.
        num_train, num_val: images.
        parameters: trainable values of the model.
        work: what the time of one image goes by: multiply-adds of a forward pass; of a user's own model its parameters.
    """

    experiment: Experiment
    num_train: int
    num_val: int
    parameters: int
    work: float


@dataclass(frozen=True)
class Cost:
    """What a trial of one size costs.

    Attributes:
        epoch_s: seconds of an epoch, validation included.
        memory_bytes: the process's peak; of a GPU the peak of what torch has allocated.
        measured: False: worked out from other sizes.
    """

    epoch_s: float
    memory_bytes: float
    measured: bool = True


def size_name(experiment: Experiment) -> str:
    """The same text for trials of the same size."""
    tree = {name: getattr(experiment, name).model_dump(mode="json", exclude=free) for name, free in _FREE.items()}
    for section, name in _SWITCHES:
        tree[section][name] = bool(tree[section][name])
    if experiment.model.factory:
        tree["model"] = {"factory": experiment.model.factory, "params": experiment.model.params}
    return json.dumps(tree, sort_keys=True)


def sizes_of(plan: Plan, trials: Sequence[PlannedTrial]) -> tuple[list[Size], list[int]]:
    """The distinct sizes, the least work first, and for each trial the place of its own."""
    found: dict[str, Size] = {}
    names = []
    for trial in trials:
        experiment = plan.experiment(trial.overrides)
        names.append(size_name(experiment))
        if names[-1] not in found:
            dataset = plan.dataset(experiment)
            work = float(trial.model.parameters if experiment.model.factory else _multiply_adds(experiment, dataset))
            found[names[-1]] = Size(experiment, len(dataset.train), len(dataset.val), trial.model.parameters, work)
    ordered = sorted(found, key=lambda name: found[name].work)
    places = {name: place for place, name in enumerate(ordered)}
    return [found[name] for name in ordered], [places[name] for name in names]


def _multiply_adds(experiment: Experiment, dataset: Dataset) -> int:
    x_shape, y_shape = shapes(dataset)
    with torch.device("meta"):
        model = build_model(experiment.model, x_shape, y_shape, experiment.train.seed).eval()
        height, width, channels = x_shape
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(torch.empty(1, channels, height, width))
    return counter.get_total_flops() // 2


def unknown_trials(plan: Plan) -> list[PlannedTrial]:
    """Stand-ins for the trials that a search will think of: random draws of the space. The plan stays as it is."""
    drawn = Plan(plan.sweep, plan.prepared, list(plan.trials), plan.num_planned)
    source = draws(plan.sweep)
    for _ in range(_DRAWS_PER_TRIAL * plan.num_planned):
        if len(drawn.trials) >= plan.num_planned:
            break
        try:
            drawn.add(next(source))
        except RaysweepError:
            continue  # the search will be told that it cannot be trained
    return drawn.trials[len(plan.trials) :]


def chosen(sizes: Sequence[Size], limit: int) -> list[int]:
    """The places of at most `limit` sizes to measure, spread evenly by their work, the least and the most among them."""
    return sorted({int(i) for i in np.linspace(0, len(sizes) - 1, min(limit, len(sizes))).round()})


def filled(sizes: Sequence[Size], measured: Mapping[int, Cost]) -> list[Cost]:
    """The cost of every size: as measured, or in between by the work of an epoch; beyond the largest, seconds in proportion.

    Args:
        sizes: the least work first.
        measured: by place; at least one.
    """

    def total(size: Size) -> float:
        return size.work * size.num_train

    known = sorted(measured, key=lambda place: total(sizes[place]))
    works = [total(sizes[place]) for place in known]

    seconds, memory = [measured[p].epoch_s for p in known], [measured[p].memory_bytes for p in known]

    def between(work: float) -> Cost:
        beyond = max(1.0, work / works[-1]) if works[-1] else 1.0
        epoch_s, memory_bytes = (float(np.interp(work, works, values)) for values in (seconds, memory))
        return Cost(epoch_s * beyond, memory_bytes, measured=False)

    return [measured.get(place) or between(total(size)) for place, size in enumerate(sizes)]
