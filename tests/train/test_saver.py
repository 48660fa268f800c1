"""Checkpoints in the background: one at a time, put off or waited for, no error lost, no thread left, and what they may cost."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import final_weights, local_run, tiny_dataset, tiny_experiment
from torch import nn

from raysweep.errors import CheckpointError
from raysweep.train import checkpoint, saver
from raysweep.train.progress import Progress
from raysweep.train.runtime import LocalRuntime
from raysweep.train.saver import Saver, host_copy, is_worth, num_bytes

LONG_S = 200.0
"""How long a test waits for what always comes, however busy the machine."""


class Gate:
    """Stands before checkpoint.save_numbered: holds it until it is opened, and notes what came through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.came = threading.Event(), threading.Event()
        self.saved: list[int] = []
        self.fails_with: Exception | None = None
        save = checkpoint.save_numbered

        def gated(directory: Path, step: int, content: dict[str, Any]) -> Path:
            self.came.set()
            assert self.open.wait(LONG_S)
            if self.fails_with is not None:
                raise self.fails_with
            self.saved.append(step)
            return save(directory, step, content)

        monkeypatch.setattr(checkpoint, "save_numbered", gated)

    def open_later(self) -> None:
        threading.Timer(0.05, self.open.set).start()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def make(directory: Path, rank: int = 0, **overrides: Any) -> tuple[Saver, nn.Module]:
    model = nn.Linear(3, 2)
    runtime = LocalRuntime(directory)
    runtime.rank = rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Saver(tiny_experiment(**overrides), tiny_dataset(20), runtime, model, optimizer), model


def at(step: int, best_epoch: int = 0) -> Progress:
    return Progress(global_step=step, best_epoch=best_epoch)


def test_a_periodic_save_is_put_off_while_another_is_being_written_and_stays_due(tmp_path: Path, gate: Gate) -> None:
    saving, _ = make(tmp_path, train__checkpoint_every_s=1e-9)
    assert saving.is_due()
    saving.save(at(1), wait=False)
    assert gate.came.wait(LONG_S)
    assert not saving.is_due(), "rank 0 need not stop the others for what it would put off"
    saving.save(at(2), wait=False)
    gate.open.set()
    saving._join()
    assert saving.is_due()
    saving.save(at(3), wait=False)
    saving.close()
    assert gate.saved == [1, 3]


def test_an_urgent_save_waits_for_the_one_in_flight_and_for_itself(tmp_path: Path, gate: Gate) -> None:
    saving, _ = make(tmp_path)
    saving.save(at(1), wait=False)
    gate.open_later()
    saving.save(at(2), wait=True)
    assert gate.saved == [1, 2]
    assert not [thread for thread in threading.enumerate() if thread.name == "raysweep-saver"]
    saving.close()


def test_the_end_of_the_run_and_asked_for_epochs_are_never_put_off(tmp_path: Path, gate: Gate) -> None:
    saving, _ = make(tmp_path, train__checkpoint_every_epochs=2)
    saving.save(at(1), wait=False)
    gate.open_later()
    for epoch, is_end in ((1, False), (2, False), (3, False), (4, False), (5, True)):
        saving.end_of_epoch(at(10 * epoch), epoch, {}, is_end)
    assert gate.saved == [1, 20, 40, 50]
    saving.close()


def test_what_is_written_is_the_moment_of_the_save(tmp_path: Path, gate: Gate) -> None:
    saving, model = make(tmp_path)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    saving.save(at(1), wait=False)
    assert gate.came.wait(LONG_S)
    nn.init.zeros_(model.weight)  # type: ignore[arg-type]
    gate.open.set()
    saving.close()
    assert all(torch.equal(final_weights(tmp_path)[name], before[name]) for name in before)


@pytest.mark.parametrize("call", ["is_due", "save", "urgent save", "end_of_epoch", "close"])
def test_an_error_of_the_writer_is_raised_by_whatever_is_called_next_and_once(tmp_path: Path, gate: Gate, call: str) -> None:
    saving, _ = make(tmp_path)
    gate.fails_with = CheckpointError("cannot write: the disk is full")
    saving.save(at(1), wait=False)
    gate.open.set()
    assert saving._thread is not None
    saving._thread.join()
    gate.fails_with = None
    calls: dict[str, Callable[[], Any]] = {
        "is_due": saving.is_due,
        "save": lambda: saving.save(at(2), wait=False),
        "urgent save": lambda: saving.save(at(2), wait=True),
        "end_of_epoch": lambda: saving.end_of_epoch(at(2), 1, {}, False),
        "close": saving.close,
    }
    with pytest.raises(CheckpointError, match="the disk is full"):
        calls[call]()
    saving.close()
    assert gate.saved == []


def test_an_error_of_its_own_is_raised_by_an_urgent_save(tmp_path: Path, gate: Gate) -> None:
    saving, _ = make(tmp_path)
    gate.fails_with = CheckpointError("cannot write: the disk is full")
    gate.open.set()
    with pytest.raises(CheckpointError, match="the disk is full"):
        saving.save(at(1), wait=True)


def saved_then(saving: Saver, error: type[Exception] | None) -> None:
    with saving:
        saving.save(at(1), wait=False)
        if error is not None:
            raise error


@pytest.mark.filterwarnings("error")
def test_an_error_of_writing_does_not_hide_the_one_that_ends_the_run(tmp_path: Path, gate: Gate) -> None:
    gate.fails_with = CheckpointError("cannot write: the disk is full")
    gate.open.set()
    with pytest.warns(RuntimeWarning, match="the disk is full"), pytest.raises(ZeroDivisionError):
        saved_then(make(tmp_path)[0], ZeroDivisionError)
    with pytest.raises(CheckpointError, match="the disk is full"):
        saved_then(make(tmp_path)[0], None)


def test_a_run_that_fails_leaves_no_thread_and_finishes_what_it_was_writing(tmp_path: Path, gate: Gate) -> None:
    gate.open_later()
    with pytest.raises(ZeroDivisionError):
        saved_then(make(tmp_path)[0], ZeroDivisionError)
    assert gate.saved == [1]
    assert not [thread for thread in threading.enumerate() if thread.name == "raysweep-saver"]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    saving, _ = make(tmp_path, rank=1, train__checkpoint_every_s=1e-9)
    assert not saving.is_due()
    saving.save(at(1), wait=True)
    saving.end_of_epoch(at(2, best_epoch=1), 1, {"val_loss": 1.0}, True)
    saving.close()
    assert list(tmp_path.iterdir()) == []


# best.pt


def best(directory: Path) -> dict[str, Any]:
    return checkpoint.load(directory / "best.pt")


def test_best_is_written_before_a_checkpoint_that_knows_of_it_and_holds_its_own_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "is_worth", lambda *_given: False)
    saving, model = make(tmp_path, train__checkpoint_every_s=None)
    seen: list[Any] = []
    save = checkpoint.save_numbered
    monkeypatch.setattr(checkpoint, "save_numbered", lambda *given: seen.append(best(tmp_path)["epoch"]) or save(*given))
    for epoch in (1, 2):
        nn.init.constant_(model.weight, epoch)  # type: ignore[arg-type]
        saving.end_of_epoch(at(epoch, best_epoch=epoch), epoch, {"val_loss": 1 / epoch}, False)
    assert list(tmp_path.iterdir()) == [], "held back with the checkpoint"
    nn.init.constant_(model.weight, 3)  # type: ignore[arg-type]
    saving.end_of_epoch(at(3, best_epoch=2), 3, {"val_loss": 9.0}, False)
    saving.save(at(4, best_epoch=2), wait=True)
    assert seen == [2]
    assert (best(tmp_path)["val_loss"], float(best(tmp_path)["model"]["weight"][0, 0])) == (0.5, 2.0)
    assert float(final_weights(tmp_path)["weight"][0, 0]) == 3.0
    saving.close()


def test_a_best_epoch_while_another_is_being_written_does_not_touch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving, model = make(tmp_path, train__checkpoint_every_s=1e-9)
    held, came, save = threading.Event(), threading.Event(), checkpoint.save
    written: list[float] = []

    def slowly(path: Path, content: dict[str, Any]) -> Any:
        came.set()
        assert held.wait(LONG_S)
        written.append(float(content["model"]["weight"][0, 0]))
        return save(path, content)

    monkeypatch.setattr(checkpoint, "save", slowly)
    with monkeypatch.context() as patched:
        patched.setattr(saver.Saver, "is_due", lambda _self: False)
        patched.setattr(saver, "is_worth", lambda *_given: False)
        nn.init.constant_(model.weight, 1)  # type: ignore[arg-type]
        saving.end_of_epoch(at(1, best_epoch=1), 1, {"val_loss": 3.0}, False)
    saving.save(at(1, best_epoch=1), wait=False)
    assert came.wait(LONG_S)
    for epoch in (2, 3):
        nn.init.constant_(model.weight, epoch)  # type: ignore[arg-type]
        saving.end_of_epoch(at(epoch, best_epoch=epoch), epoch, {"val_loss": 3.0 - epoch}, False)
    held.set()
    saving.close()
    assert written == [1.0, 1.0, 3.0]
    assert best(tmp_path)["epoch"] == 3


OVERSHOOTING: dict[str, Any] = {"optim__lr": 1.0, "optim__name": "sgd", "optim__momentum": 0.9}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("how", [Killed, KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_best_is_there_however_a_run_ends_and_a_run_told_to_end_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: type[BaseException]
) -> None:
    monkeypatch.setattr(saver, "is_worth", lambda *_given: False)
    rows: list[Any] = []

    def end(row: Any) -> None:
        rows.append(row)
        if row["epoch"] == 3:
            raise how

    experiment, dataset = tiny_experiment(train__epochs=6, **OVERSHOOTING), tiny_dataset(20)
    with pytest.raises(how):
        saver_run(experiment, dataset, tmp_path, end)
    assert best(tmp_path)["val_loss"] == min(row["val_loss"] for row in rows)
    _, rest = local_run(experiment, dataset, tmp_path)
    told_to_end = how in (KeyboardInterrupt, SystemExit)
    assert [row["epoch"] for row in rest] == ([3, 4, 5, 6] if told_to_end else [1, 2, 3, 4, 5, 6])
    assert best(tmp_path)["val_loss"] == min(row["val_loss"] for row in rows[:2] + rest)


def saver_run(experiment: Any, dataset: Any, directory: Path, on_row: Callable[[Any], None]) -> None:
    from raysweep.train.loop import train

    train(experiment, dataset, LocalRuntime(directory, on_row=on_row))


def test_a_diverged_run_that_is_told_to_end_keeps_no_diverged_checkpoint(tmp_path: Path) -> None:
    def end(row: Any) -> None:
        if not math.isfinite(row["val_loss"]):
            raise SystemExit

    with pytest.raises(SystemExit):
        saver_run(tiny_experiment(train__epochs=50, optim__lr=1e30, optim__name="sgd"), tiny_dataset(20), tmp_path, end)
    assert not list(tmp_path.glob("ckpt-*"))


# What it may cost.


@pytest.mark.parametrize(
    ("cost_s", "passed_s", "worth"),
    [(0.0, 0.0, True), (0.01, 1.0, True), (0.011, 1.0, False), (0.3, 29.0, False), (0.3, 30.0, True), (1.0, 0.0, False)],
)
def test_a_checkpoint_is_worth_one_percent_of_the_time(cost_s: float, passed_s: float, worth: bool) -> None:
    assert is_worth(cost_s, passed_s) == worth


def test_epoch_ends_without_a_number_save_when_the_measured_cost_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    real = is_worth
    monkeypatch.setattr(saver, "is_worth", lambda *given: asked.append(given) or real(*given))
    saving, _ = make(tmp_path, train__checkpoint_every_s=None)
    saves = []
    for epoch, seconds in enumerate((0.4, 200.0, 0.0, 1e6), start=1):
        now[0] += seconds
        saving.end_of_epoch(at(epoch), epoch, {}, False)
        saving._join()
        saves.append((tmp_path / f"ckpt-{epoch:09d}.pt").exists())
    saving.close()
    assert saves == [False, True, False, True]
    guess, _, measured, _ = (cost for cost, _ in asked)
    assert guess == pytest.approx(saver._GUESS_S, rel=0.01)
    assert 0 < measured != guess


def test_numbers_are_obeyed_whatever_they_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "is_worth", lambda *_given: pytest.fail("asked for, and yet weighed"))
    saved: list[int] = []
    save = checkpoint.save_numbered
    monkeypatch.setattr(checkpoint, "save_numbered", lambda *given: saved.append(given[1]) or save(*given))
    local_run(tiny_experiment(train__epochs=3, train__checkpoint_every_epochs=1), tiny_dataset(8), tmp_path)
    assert saved == [1, 2, 3]


# The copy.


def test_a_copy_is_equal_owns_its_memory_and_keeps_the_layout() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "pair": (1, [torch.ones(2)])}
    copied = host_copy(state)
    for (name, a), b in zip(model.state_dict().items(), copied["model"].values(), strict=True):
        assert torch.equal(a, b), name
        assert a.stride() == b.stride()
        assert a.data_ptr() != b.data_ptr()
    assert type(copied["model"]) is OrderedDict
    assert copied["model"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert type(copied["pair"]) is tuple
    assert torch.equal(copied["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert copied["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    assert num_bytes(copied) == num_bytes(state) > 0


def test_memory_of_an_earlier_copy_is_used_again_where_it_fits() -> None:
    first = host_copy({"a": torch.ones(4), "b": torch.ones(2), "c": [torch.ones(1)]})
    place = first["a"].data_ptr(), first["c"][0].data_ptr()
    second = host_copy({"a": torch.zeros(4), "b": torch.zeros(3), "c": [torch.zeros(1)], "d": torch.zeros(1)}, first)
    assert (second["a"].data_ptr(), second["c"][0].data_ptr()) == place
    assert all(not value.any() for value in (second["a"], second["b"], second["c"][0], second["d"]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_copy_from_a_gpu_is_pinned() -> None:
    value = torch.arange(1_000_000.0, device="cuda")
    copied = host_copy({"a": value})
    torch.cuda.current_stream().synchronize()
    assert copied["a"].is_pinned()
    assert torch.equal(copied["a"], value.cpu())
