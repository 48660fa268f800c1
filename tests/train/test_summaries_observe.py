"""Summaries observe and nothing else: the training is the same, a resume repeats none, no failure of theirs ends a run."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_summaries import CPU, ROW, files_in_order, observed, read
from helpers_train import final_weights, local_run, tiny_dataset, tiny_experiment
from tensorboard.compat.tensorflow_stub.io.gfile import GFile
from tensorboard.summary.writer import event_file_writer
from torch import Tensor, nn

from raysweep.train import checkpoint
from raysweep.train.loop import train
from raysweep.train.runtime import LocalRuntime
from raysweep.train.summaries import Summaries

TIMES = ("seconds", "samples_per_second", "data_wait", "peak_memory_bytes")
__all__ = ["files_in_order"]


def test_off_writes_nothing_and_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    local_run(tiny_experiment(), tiny_dataset(20), tmp_path)
    assert not (tmp_path / "tensorboard").exists()


def test_only_rank_0_writes(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path)
    runtime.rank = 1
    train(observed(), tiny_dataset(20), runtime)
    assert not (tmp_path / "tensorboard").exists()


class Killed(BaseException):
    """Ends a run where a killed process would."""


@pytest.mark.usefixtures("files_in_order")
@pytest.mark.parametrize("where", ["after the row", "before the first checkpoint", "between summaries and checkpoint"])
def test_epochs_repeated_after_a_resume_are_not_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    experiment = observed(train__epochs=4, train__checkpoint_every_epochs=2)
    dataset = tiny_dataset(20)
    kill_at = {"after the row": 3, "before the first checkpoint": 1, "between summaries and checkpoint": 2}[where]

    def kill(*given: Any, **_options: Any) -> None:
        step = given[1] if len(given) > 1 else given[0]["step"]
        if step == 3 * kill_at:
            raise Killed

    with monkeypatch.context() as patched:
        if where.startswith("between"):
            patched.setattr(checkpoint, "save_numbered", kill)
        with pytest.raises(Killed):
            train(experiment, dataset, LocalRuntime(tmp_path, on_row=kill))
    assert [event.step for event in read(tmp_path).Scalars("lr")] == [3 * n for n in range(1, kill_at + 1)]
    _, rows = local_run(experiment, dataset, tmp_path)
    assert kill_at in [row["epoch"] for row in rows], "the epoch must have been repeated, or the test shows nothing"

    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    events = read(tmp_path)
    for kind, of_kind in (("scalars", events.Scalars), ("histograms", events.Histograms)):
        assert all([event.step for event in of_kind(tag)] == [3, 6, 9, 12] for tag in events.Tags()[kind])
    assert Counter(len(events.Images(tag)) for tag in events.Tags()["images"]) == {1: 10, 4: 5}


def test_an_epoch_is_on_the_disk_before_its_row_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = GFile.write

    def slowly(*given: Any) -> None:
        time.sleep(0.005)  # the writer's thread always has something left in its queue
        write(*given)

    monkeypatch.setattr(GFile, "write", slowly)
    seen = []

    def look(_row: Any) -> None:
        seen.append([event.step for event in read(tmp_path).Images("image_4/output")])

    train(observed(), tiny_dataset(20), LocalRuntime(tmp_path, on_row=look))
    assert seen == [[3], [3, 6]]


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_weights_and_rows_are_the_same_with_and_without(tmp_path: Path, norm: str) -> None:
    settings = {"train__epochs": 3, "data__noise": 0.1, "model__dropout": 0.2, "model__norm": norm, "optim__lr": 1e-2}
    _, without = local_run(tiny_experiment(**settings), tiny_dataset(20), tmp_path / "without")
    _, with_them = local_run(observed(**settings), tiny_dataset(20), tmp_path / "with")
    assert (tmp_path / "with" / "tensorboard").exists()
    a, b = final_weights(tmp_path / "without"), final_weights(tmp_path / "with")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for row, other in zip(without, with_them, strict=True):
        assert {k: v for k, v in row.items() if k not in TIMES} == {k: v for k, v in other.items() if k not in TIMES}


class Unusual(nn.Module):
    """What a user's model may do: change its input, be random when evaluated, share layers, return tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.norm = nn.BatchNorm2d(1).eval()
        self.act = nn.ReLU(inplace=True)
        self.swish = Swish()
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.whole = Whole()
        self.nothing = Nothing()
        self.pool = nn.MaxPool2d(1)
        self.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0))
        self.broken = nn.Parameter(torch.tensor([math.nan, 1.0]))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5).add_(torch.rand_like(x))
        x = self.act(self.norm(self.act(self.conv(x))))
        x, _ = self.rnn(self.swish(self.pool(x))[:, 0])
        self.nothing(self.whole(x))
        return x[:, None] * self.scale


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()


class Whole(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"whole": x.round().int()}


class Nothing(nn.Module):
    def forward(self, x: Any) -> None:
        return None


def test_any_users_model_is_observed_and_left_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Unusual().train()
    model.norm.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    random = torch.get_rng_state()
    dataset = tiny_dataset(20)
    summaries = Summaries(tmp_path, dataset, tiny_experiment(), CPU)
    for step in (3, 6):
        torch.set_rng_state(random)
        summaries.epoch({**ROW, "step": step}, model)
        assert torch.equal(torch.get_rng_state(), random)
    summaries.close()

    assert {name: module.training for name, module in model.named_modules()} == modes
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, state[name]) or name == "broken" for name, value in model.state_dict().items())
    events = read(tmp_path)
    tags = set(events.Tags()["histograms"])
    assert {tag for tag in tags if "activation" in tag} == {
        *("conv/activation", "norm/activation", "act/activation", "act/activation_2", "swish/activation", "rnn/activation"),
        "model/activation",
    }
    assert {tag for tag in tags if tag.startswith("model/")} == {"model/scale", "model/activation"}
    assert {"conv/weight", "conv/bias", "norm/weight", "rnn/weight_ih_l0", "rnn/bias_hh_l0"} < tags
    for tag in events.Tags()["images"]:
        shown = [event.encoded_image_string for event in events.Images(tag)]
        assert len(set(shown)) == 1, f"{tag}: a second look at the same images must see the same"


def test_a_model_that_raises_leaves_modes_and_hooks_as_they_were(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(3, 3))
    summaries = Summaries(tmp_path, tiny_dataset(20), tiny_experiment(), CPU)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        summaries.epoch(ROW, model)
    summaries.close()
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_a_diverged_run_ends_as_one(tmp_path: Path) -> None:
    experiment = observed(train__epochs=5, optim__lr=1e30, optim__name="sgd")
    outcome, rows = local_run(experiment, tiny_dataset(20), tmp_path)
    assert outcome.status == "diverged"
    losses = [event.value for event in read(tmp_path).Scalars("val_loss")]
    assert len(losses) == len(rows)
    assert math.isnan(losses[-1])


def test_a_model_of_nan_is_not_run_and_its_finite_layers_are_drawn(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), Swish())
    nn.init.constant_(model[0].weight, math.nan)
    model.register_forward_pre_hook(lambda *_args: pytest.fail("a diverged model was run"))
    summaries = Summaries(tmp_path, tiny_dataset(20), tiny_experiment(), CPU)
    summaries.epoch({**ROW, "train_loss": math.nan, "val_loss": math.nan}, model)
    summaries.close()
    assert read(tmp_path).Tags()["histograms"] == ["0/bias"]


def writer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, event_file_writer._AsyncWriterThread)]


def test_the_writer_is_closed_when_the_run_raises(tmp_path: Path) -> None:
    alive = []

    def fail(_row: Any) -> None:
        alive.extend(writer_threads())
        raise Killed

    with pytest.raises(Killed):
        train(observed(), tiny_dataset(20), LocalRuntime(tmp_path, on_row=fail))
    assert len(alive) == 1
    assert writer_threads() == []


def test_a_disk_that_cannot_be_written_ends_the_summaries_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file where the directory should be")
    with pytest.warns(RuntimeWarning, match="going on without TensorBoard") as warned:
        outcome, rows = local_run(observed(train__epochs=3), tiny_dataset(20), tmp_path)
    assert (outcome.status, len(rows), len(warned)) == ("completed", 3, 1)


def test_a_disk_that_fills_up_ends_the_summaries_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    def fill_up(row: Any) -> None:
        if row["epoch"] == 1:
            monkeypatch.setattr(GFile, "write", full)
            monkeypatch.setattr(GFile, "flush", full)

    monkeypatch.setattr(threading, "excepthook", lambda _args: None)  # the writer's thread ends with its error
    with pytest.warns(RuntimeWarning, match="No space left") as warned:
        outcome = train(observed(train__epochs=3), tiny_dataset(20), LocalRuntime(tmp_path, on_row=fill_up))
    assert outcome.status == "completed"
    assert len(warned) == 1
    assert writer_threads() == []
