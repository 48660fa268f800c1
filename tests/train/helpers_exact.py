"""Runs of the bitwise mode that stop at a given step, and what must be equal about them to the last bit."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import Dataset, Experiment, LocalRuntime, ProcessGroupRuntime, Row, train
from torch import Tensor, nn

from raysweep.train.progress import EpochClock
from raysweep.train.runtime import Wishes

Case = tuple[str, Experiment, Dataset, int]
"""Name, experiment, data, and the steps after which several workers are stopped, a single one is killed, or 0."""


class OwnNet(nn.Module):
    """What users' models have: torch's dropout, a layer used twice, one trained in float64, one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.twice = nn.Conv2d(6, 6, 3, padding=1)
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Conv2d(6, 1, 3, padding=1)
        self.gain = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        hidden = self.dropout(torch.relu(self.twice(torch.relu(self.twice(hidden)))))
        output: Tensor = self.last(hidden) * self.gain.float()
        return output


def own_net() -> nn.Module:
    return OwnNet()


def run_cases(rank: int, cases: list[Case], directory: Path) -> None:
    """A gloo job, or for one worker a call: each case goes on in its own directory, with rows.pt as told so far."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochClock, "steps_until_sync", lambda _self, _step: 1)  # a stop is then met at any step
        _run_cases(rank, cases, directory)


class Killed(BaseException):
    """Ends a run where a killed process would: before the checkpoint of the step."""


def _run_cases(rank: int, cases: list[Case], directory: Path) -> None:
    several = torch.distributed.is_initialized()
    for name, experiment, dataset, stop_after in cases:
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        path, rows, steps = place / "rows.pt", dict[int, Row](), 0
        if path.exists():
            rows = torch.load(path)

        def wishes(stop_after: int = stop_after) -> Wishes:
            nonlocal steps
            steps += 1
            if steps == stop_after and not several:
                raise Killed
            return Wishes("interrupted" if steps == stop_after else "")

        def tell(row: Row, rows: dict[int, Row] = rows) -> None:
            rows[row["epoch"]] = row

        runtime = ProcessGroupRuntime if several else LocalRuntime
        with contextlib.suppress(Killed):
            train(experiment, dataset, runtime(place, on_row=tell, wishes=wishes))
        if rank == 0:
            torch.save(rows, path)


def digest(place: Path) -> str:
    """SHA-256 of a run's weights, its optimizer's state and its rows' losses."""
    content = torch.load(max(place.glob("ckpt-*.pt")), weights_only=True)
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(value.contiguous().numpy().tobytes())
        elif isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                add(part)
        else:
            found.update(repr(value).encode())

    add(content["model"])
    add(content["optimizer"])
    rows = torch.load(place / "rows.pt")
    add([[rows[epoch][name] for name in ("train_loss", "val_loss", "grad_norm", "lr", "step")] for epoch in sorted(rows)])
    return found.hexdigest()
