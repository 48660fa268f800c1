"""Measuring is the real loop, cut short: it ends in time, leaves nothing, and says more for more work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raysweep.data.dataset import Dataset, open_dataset
from raysweep.experiment import Experiment
from raysweep.train import loop
from raysweep.train.evaluate import chunks
from raysweep.train.step import GradientStep
from raysweep.tune.cost import measure as measuring
from raysweep.tune.cost.measure import Measured, measure, of_one_worker

SMALL = Experiment.from_dict(
    {
        "data": {"source": "digits", "count": 200},
        "model": {"depth": 1, "base_channels": 2},
        "train": {"batch_size": 16, "patience": 1},
    }
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return open_dataset(SMALL.data)


class Clock:
    """Stands still but for what a test says: a step takes 0.1 s, an image that is validated 5 ms.

    Attributes:
        first_s: what a run's first step takes more.
        samples: of each step.
        begun: runs.
    """

    step_s, image_s, first_s = 0.1, 0.005, 0.0

    def __init__(self) -> None:
        self.now = 1000.0
        self.samples: list[int] = []
        self._runs: list[GradientStep] = []

    @property
    def begun(self) -> int:
        return len(self._runs)

    def step(self, run: GradientStep, num_samples: int) -> None:
        self.now += self.step_s + (0.0 if run in self._runs else self.first_s)
        self._runs += [] if run in self._runs else [run]
        self.samples.append(num_samples)

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    backward, validation = GradientStep.backward, loop.validation_loss

    def step(self: GradientStep, batches: Any, plan: Any, *rest: Any) -> torch.Tensor:
        made.step(self, plan.num_samples)
        return backward(self, batches, plan, *rest)

    def validate(model: Any, dataset: Dataset, *rest: Any) -> float:
        made.now += made.image_s * len(dataset.val)
        return validation(model, dataset, *rest)

    monkeypatch.setattr(GradientStep, "backward", step)
    monkeypatch.setattr(loop, "validation_loss", validate)
    return made


def test_an_epoch_is_what_its_images_cost() -> None:
    assert Measured(0.1, 0.01, 0.5, [], 0).epoch_s(100, 20) == pytest.approx(10 + 0.2 + 0.5)


def test_the_steps_of_the_real_loop_are_timed(dataset: Dataset, clock: Clock, tmp_path: Path) -> None:
    found = measure(SMALL, dataset, CPU, 5.0, tmp_path)
    assert found.train_s * 16 == pytest.approx(0.1)
    assert found.val_s == pytest.approx(0.005)
    assert found.rest_s == pytest.approx(0)
    assert found.windows == pytest.approx([1.0] * len(found.windows))
    assert len(found.windows) == 3
    assert 5 <= clock.now - 1000 < 7
    assert set(clock.samples) == {16}
    assert found.memory_bytes > 50e6


def test_where_a_few_steps_take_long_two_are_enough(dataset: Dataset, clock: Clock, tmp_path: Path) -> None:
    clock.step_s = 30.0
    found = measure(SMALL, dataset, CPU, 5.0, tmp_path)
    assert len(clock.samples) == 2
    assert found.train_s * 16 == pytest.approx(30)
    assert found.val_s == pytest.approx(found.train_s / 3)


def test_where_validation_takes_long_it_is_not_waited_for(dataset: Dataset, clock: Clock, tmp_path: Path) -> None:
    clock.image_s = 1.0
    found = measure(SMALL, dataset, CPU, 5.0, tmp_path)
    assert found.val_s == pytest.approx(1.0), "it has been validated once, and that counts"
    assert clock.now - 1000 < 300


def test_first_steps_do_not_count(dataset: Dataset, clock: Clock, tmp_path: Path) -> None:
    clock.first_s = 0.9
    found = measure(SMALL, dataset, CPU, 5.0, tmp_path)
    assert clock.begun == 2, "a few steps, then epochs"
    assert found.train_s * 16 == pytest.approx(0.1)
    assert found.windows == pytest.approx([1.0] * len(found.windows))
    clock.first_s = 9.0
    assert measure(SMALL, dataset, CPU, 5.0, tmp_path).train_s * 16 == pytest.approx(0.1), "there is no time for epochs"
    assert clock.begun == 3


def test_epochs_are_short_and_their_validation_has_chunks_of_the_same_size(
    dataset: Dataset, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Dataset] = []
    before = measuring.train

    def train(experiment: Experiment, given: Dataset, runtime: Any) -> Any:
        seen.append(given)
        return before(experiment, given, runtime)

    monkeypatch.setattr(measuring, "train", train)
    experiment = SMALL.with_overrides({"train.batch_size": 4})
    found = measure(experiment, replace(dataset, val=dataset.train[:100]), CPU, 2.6, tmp_path)
    whole, short = seen
    assert len(whole.train) == len(dataset.train)
    assert len(short.train) == 4 * 6, "a quarter of the time is 6 steps"
    sizes = [len(chunk.samples) for given in (whole, short) for chunk in chunks(given, experiment)]
    assert set(sizes) == {4}
    assert len(short.val) == 64
    assert found.val_s == pytest.approx(0.005), "of the images that were validated"


def test_no_checkpoint_is_written(dataset: Dataset, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysweep.train import checkpoint

    def refuse(*_args: object) -> None:
        raise AssertionError("a checkpoint was written")

    monkeypatch.setattr(checkpoint, "save_numbered", refuse)
    measure(SMALL, dataset, CPU, 2.0, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"best.pt"}


def test_a_rate_at_which_the_trial_diverges_is_not_used(dataset: Dataset, clock: Clock, tmp_path: Path) -> None:
    wild = SMALL.with_overrides({"optim.lr": 1e30, "optim.schedule": "cosine", "optim.schedule_epochs": 2})
    assert len(measure(wild, dataset, CPU, 3.0, tmp_path).windows) > 1
    assert len(clock.samples) > 20


def test_one_worker_of_several_has_its_share() -> None:
    assert of_one_worker(SMALL, 4).train.batch_size == 4
    assert of_one_worker(SMALL, 3).train.batch_size == 6, "the largest share"
    bitwise = of_one_worker(SMALL.with_overrides({"train.exactness": "bitwise", "train.shards": 8}), 4)
    assert (bitwise.train.batch_size, bitwise.train.shards) == (4, 2)
    uneven = of_one_worker(SMALL.with_overrides({"train.exactness": "bitwise", "train.shards": 8}), 3)
    assert (uneven.train.batch_size, uneven.train.shards) == (6, 4), "three shards of two"
