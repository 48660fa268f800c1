"""A run in this process: out of memory, errors and full disks are met as on Ray's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import final_weights, local_run, tiny_dataset, tiny_experiment

from raysweep.errors import ConfigError, StoreError, TrialError
from raysweep.experiment import Experiment
from raysweep.train import checkpoint, here
from raysweep.train import step as step_module
from raysweep.train.attempts import Event
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row


def fit(experiment: Experiment, directory: Path, **options: Any) -> tuple[Outcome, list[Row], list[Event]]:
    rows: list[Row] = []
    events: list[Event] = []
    given = {"on_row": rows.append, "on_event": events.append, **options}
    outcome = here.fit_here(experiment, tiny_dataset(20), directory, torch.device("cpu"), 1, **given)
    return outcome, rows, events


def raising(monkeypatch: pytest.MonkeyPatch, when: Any, error: Exception) -> None:
    """Make a forward pass raise `error` where when(number of the pass, samples) says so."""
    forward, passes = step_module.squared_error, []

    def maybe(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        passes.append(len(target))
        if len(target) and when(len(passes), len(target)):
            raise error
        return forward(output, target)

    monkeypatch.setattr(step_module, "squared_error", maybe)


def test_out_of_memory_is_met_by_half_the_micro_batch_at_the_same_global_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny_experiment(train__epochs=2)
    local_run(experiment, tiny_dataset(20), tmp_path / "whole")
    raising(monkeypatch, lambda _pass, samples: samples > 2, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    (tmp_path / "halved").mkdir()
    outcome, rows, events = fit(experiment, tmp_path / "halved")
    assert outcome.status == "completed"
    assert [e["kind"] for e in events] == ["out_of_memory", "out_of_memory"]
    assert "train.micro_batch 2" in events[-1]["why"]
    assert rows[-1]["attempt"] == 3
    whole, halved = final_weights(tmp_path / "whole"), final_weights(tmp_path / "halved")
    for name, weight in whole.items():
        torch.testing.assert_close(halved[name], weight, rtol=1e-5, atol=1e-6)


def test_an_error_after_progress_is_tried_again_once_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny_experiment(train__epochs=3, train__checkpoint_every_epochs=1)
    _, whole, _ = fit(experiment, tmp_path / "whole")
    # An epoch is 3 steps: this is the second one of epoch 2.
    raising(monkeypatch, lambda number, _samples: number == 5, OSError("the network drive went away for a moment"))
    outcome, rows, events = fit(experiment, tmp_path / "again")
    assert outcome.status == "completed"
    assert [(e["event"], e["from"], e["to"]) for e in events] == [("failure", 1, 1)]
    assert {r["epoch"]: r["val_loss"] for r in rows} == {r["epoch"]: r["val_loss"] for r in whole}


def test_an_error_that_comes_back_ends_the_run_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, lambda number, samples: samples == 4, ValueError("a mistake in the loss"))
    with pytest.raises(TrialError, match=r"a mistake in the loss .*the same error a second time at step 2") as caught:
        fit(tiny_experiment(train__epochs=3), tmp_path)
    assert "in maybe" in caught.value.traceback_text


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: Any) -> None:
        raise checkpoint.CheckpointError("cannot write ckpt: the disk is full")

    monkeypatch.setattr(checkpoint, "save_numbered", full)
    with pytest.raises(TrialError, match=r"the disk is full.*The last complete checkpoint is intact"):
        fit(tiny_experiment(), tmp_path)


def test_what_is_no_failure_of_the_training_is_raised_as_it_is(tmp_path: Path) -> None:
    def full_journal(_row: Row) -> None:
        raise StoreError("cannot write the journal")

    with pytest.raises(StoreError, match="the journal"):
        fit(tiny_experiment(), tmp_path, on_row=full_journal)
    with pytest.raises(ConfigError):
        fit(tiny_experiment(model__depth=9), tmp_path / "deep")


def test_the_threads_are_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit(tiny_experiment(), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
