"""Reading a run's TensorBoard files back, as TensorBoard reads them."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers_train import tiny_dataset, tiny_experiment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch import nn

from raysweep.data.dataset import Dataset
from raysweep.train.summaries import SCALARS, Summaries

CPU = torch.device("cpu")
ROW = {"step": 3, **dict.fromkeys(SCALARS, 0.5)}


@pytest.fixture
def files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads files by name, and two of one second and one process are told apart by a count: 9 after 10."""
    monkeypatch.setattr(event_file_writer, "_global_uid", SimpleNamespace(get=itertools.count(1000).__next__))


def read(directory: Path) -> EventAccumulator:
    kinds = ("scalars", "images", "histograms")
    return EventAccumulator(str(directory / "tensorboard"), size_guidance=dict.fromkeys(kinds, 0)).Reload()


def written(directory: Path, model: nn.Module, dataset: Dataset | None = None, **overrides: Any) -> EventAccumulator:
    """One epoch's summaries of a model, without a training."""
    summaries = Summaries(directory, dataset or tiny_dataset(20, 8), tiny_experiment(**overrides), CPU)
    summaries.epoch(ROW, model)
    summaries.close()
    return read(directory)


def observed(**overrides: Any) -> Any:
    return tiny_experiment(train__tensorboard=True, **overrides)
