"""Epochs, ends, checkpoints and interruptions of the loop, in one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import final_weights, local_run, tiny_dataset, tiny_experiment

from raysweep.data.dataset import Dataset
from raysweep.errors import CheckpointError, ConfigError, DiskError
from raysweep.experiment import Experiment
from raysweep.train import checkpoint, loop
from raysweep.train.runtime import Wishes


def wish(end: bool) -> Wishes:
    return Wishes("interrupted" if end else "")


TIMES = ("seconds", "samples_per_second", "data_wait", "peak_memory_bytes")


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def test_rows_have_every_promised_column(tmp_path: Path) -> None:
    _, rows = local_run(tiny_experiment(), tiny_dataset(20), tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["step"] for row in rows] == [3, 6]
    promised = (
        "epoch step train_loss val_loss psnr lr grad_norm world_size attempt "
        "samples_per_second data_wait seconds peak_memory_bytes"
    )
    assert list(rows[0]) == promised.split()
    assert all(math.isfinite(value) for value in rows[-1].values())
    assert rows[1]["psnr"] == pytest.approx(-10 * math.log10(rows[1]["val_loss"]))
    assert 0 <= rows[1]["data_wait"] <= 1


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    _, rows = local_run(tiny_experiment(train__epochs=15, optim__lr=1e-2), tiny_dataset(32), tmp_path)
    assert rows[-1]["val_loss"] < rows[0]["val_loss"] / 3


# A learning rate that has its best epoch before its last.
OVERSHOOTING: dict[str, Any] = {"optim__lr": 1.0, "optim__name": "sgd", "optim__momentum": 0.9}


class Killed(BaseException):
    """Ends a run where a killed process would."""


def test_killed_after_any_row_and_resumed_is_the_uninterrupted_run(tmp_path: Path) -> None:
    experiment = tiny_experiment(
        train__epochs=3, train__checkpoint_every_epochs=1, data__noise=0.1, model__dropout=0.2, optim__lr=1e-2
    )
    dataset = tiny_dataset(20)
    _, whole = local_run(experiment, dataset, tmp_path / "whole")
    for stop_after in (1, 2):
        place = tmp_path / str(stop_after)
        told: list[Any] = []

        def tell(row: Any, told: list[Any] = told, stop_after: int = stop_after) -> None:
            told.append(row)
            if len(told) == stop_after:
                raise Killed

        with pytest.raises(Killed):
            loop.train(experiment, dataset, loop_runtime(place, tell))
        _, rest = local_run(experiment, dataset, place)
        # The row that was told last is told again: its receiver may have died with it.
        assert [row["epoch"] for row in rest] == list(range(stop_after, 4))
        assert without_times(told[:-1] + rest) == without_times(whole)
        assert_same(final_weights(place), final_weights(tmp_path / "whole"))


def loop_runtime(place: Path, tell: Any) -> Any:
    from raysweep.train.runtime import LocalRuntime

    return LocalRuntime(place, on_row=tell)


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_stopped_inside_an_epoch_and_resumed_is_the_uninterrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.EpochClock, "steps_until_sync", lambda _self, _step: 1)
    experiment = tiny_experiment(train__epochs=2, train__batch_size=2, data__noise=0.1, optim__lr=1e-2)
    dataset = tiny_dataset(20)
    _, whole = local_run(experiment, dataset, tmp_path / "whole")
    asked = iter([False, False, True])
    outcome, rows = local_run(experiment, dataset, tmp_path / "cut", wishes=lambda: wish(next(asked, True)))
    assert outcome.status == "interrupted"
    progress = checkpoint.load(max((tmp_path / "cut").glob("ckpt-*.pt")))["progress"]
    assert 0 < progress["step"] < 10, "the stop must have come inside an epoch"
    _, rest = local_run(experiment, dataset, tmp_path / "cut")
    both = {row["epoch"]: row for row in rows + rest}
    assert without_times(list(both.values())) == without_times(whole)
    assert_same(final_weights(tmp_path / "cut"), final_weights(tmp_path / "whole"))


def test_more_epochs_go_on_where_the_run_ended(tmp_path: Path) -> None:
    dataset = tiny_dataset(20)
    local_run(tiny_experiment(train__epochs=2), dataset, tmp_path / "longer")
    _, rows = local_run(tiny_experiment(train__epochs=4), dataset, tmp_path / "longer")
    _, whole = local_run(tiny_experiment(train__epochs=4), dataset, tmp_path / "whole")
    assert [row["epoch"] for row in rows] == [2, 3, 4]
    assert without_times(rows) == without_times(whole[1:])


def test_a_finished_run_trains_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tiny_dataset(20)
    local_run(tiny_experiment(), dataset, tmp_path)
    monkeypatch.setattr(loop.GradientStep, "backward", lambda *_args: pytest.fail("a step was trained"))
    outcome, rows = local_run(tiny_experiment(), dataset, tmp_path)
    assert outcome.status == "completed"
    assert [row["epoch"] for row in rows] == [2]


def test_patience_stops_and_says_so(tmp_path: Path) -> None:
    experiment = tiny_experiment(train__epochs=50, train__patience=2, optim__lr=1e-30)
    outcome, rows = local_run(experiment, tiny_dataset(20), tmp_path)
    assert outcome.status == "stopped"
    assert outcome.reason == {"rule": "patience", "metric": "val_loss", "patience": 2}
    assert len(rows) == 3
    assert local_run(experiment, tiny_dataset(20), tmp_path)[0] == outcome, "and stays stopped when it is resumed"


def test_divergence_ends_within_its_epoch_with_step_and_rate(tmp_path: Path) -> None:
    outcome, rows = local_run(tiny_experiment(train__epochs=50, optim__lr=1e30, optim__name="sgd"), tiny_dataset(20), tmp_path)
    assert outcome.status == "diverged"
    assert outcome.reason["lr"] == 1e30
    assert 1 < outcome.reason["step"] <= 3 * len(rows)
    assert len(rows) <= 2
    assert math.isnan(rows[-1]["val_loss"])


def test_best_and_the_newest_two_are_kept_and_best_is_the_lowest(tmp_path: Path) -> None:
    overshooting = tiny_experiment(train__epochs=6, train__checkpoint_every_epochs=1, **OVERSHOOTING)
    _, rows = local_run(overshooting, tiny_dataset(20), tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.pt", *(f"ckpt-0000000{n}.{kind}" for n in (15, 18) for kind in ("json", "pt"))]
    best = min(rows, key=lambda row: row["val_loss"])
    content = checkpoint.load(tmp_path / "best.pt")
    assert (content["epoch"], content["val_loss"]) == (best["epoch"], best["val_loss"])
    assert best["epoch"] != 6, "this learning rate is meant to overshoot, or the test shows nothing"


def saved_steps(experiment: Experiment, dataset: Dataset, directory: Path) -> list[int]:
    """Train; the steps at which checkpoints were written, in order, whether or not they are still there."""
    saved: list[int] = []
    saves = checkpoint.save_numbered
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "save_numbered", lambda *given: saved.append(given[1]) or saves(*given))
        local_run(experiment, dataset, directory)
    return saved


def test_checkpoints_every_second_epoch_and_at_the_end(tmp_path: Path) -> None:
    experiment = tiny_experiment(train__epochs=5, train__checkpoint_every_epochs=2)
    assert saved_steps(experiment, tiny_dataset(8), tmp_path) == [2, 4, 5]


def test_a_checkpoint_is_due_after_seconds_inside_an_epoch(tmp_path: Path) -> None:
    experiment = tiny_experiment(train__epochs=1, train__batch_size=1, train__checkpoint_every_s=1e-6)
    saved = saved_steps(experiment, tiny_dataset(6), tmp_path)
    assert saved[0] == 1
    assert len(saved) > 1, "and the one at the end"


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path: Path) -> None:
    experiment, dataset = tiny_experiment(train__epochs=3, train__checkpoint_every_epochs=1), tiny_dataset(20)
    _, whole = local_run(experiment, dataset, tmp_path)
    newest = max(tmp_path.glob("ckpt-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-200])
    with pytest.warns(RuntimeWarning, match="damaged"):
        _, rows = local_run(experiment, dataset, tmp_path)
    assert without_times(rows) == without_times(whole[1:])


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    local_run(tiny_experiment(), tiny_dataset(20), tmp_path)
    with pytest.raises(CheckpointError, match="another model"):
        local_run(tiny_experiment(model__base_channels=8), tiny_dataset(20), tmp_path)


def test_a_full_disk_says_so_and_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    local_run(tiny_experiment(), tiny_dataset(20), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(DiskError, match="the disk is full"):
        local_run(tiny_experiment(train__epochs=4), tiny_dataset(20), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_depth_that_does_not_fit_is_refused_with_the_largest_that_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most depth 3, got 5"):
        local_run(tiny_experiment(model__depth=5), tiny_dataset(20), tmp_path)


def test_seeds_give_other_weights_and_the_same_seed_the_same(tmp_path: Path) -> None:
    runs = [local_run(tiny_experiment(train__seed=s), tiny_dataset(20), tmp_path / n) for s, n in ((0, "a"), (0, "b"), (1, "c"))]
    losses = [run[1][-1]["val_loss"] for run in runs]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_accumulation_changes_nothing_but_memory(tmp_path: Path, micro_batch: int) -> None:
    _, whole = local_run(tiny_experiment(optim__name="sgd"), tiny_dataset(20), tmp_path / "whole")
    _, parts = local_run(tiny_experiment(optim__name="sgd", train__micro_batch=micro_batch), tiny_dataset(20), tmp_path / "parts")
    assert parts[-1]["val_loss"] == pytest.approx(whole[-1]["val_loss"], rel=1e-5)


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    experiment = tiny_experiment(optim__name="sgd", optim__lr=1.0, optim__clip_norm=1e-3, train__epochs=1, train__batch_size=32)
    local_run(experiment, tiny_dataset(20), tmp_path)
    from raysweep.plugins import build_model

    start = build_model(experiment.model, (8, 8, 1), (8, 8, 1), 0).state_dict()
    moved = math.sqrt(sum(float(((start[k] - v) ** 2).sum()) for k, v in final_weights(tmp_path).items()))
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_bf16_trains(tmp_path: Path) -> None:
    _, rows = local_run(tiny_experiment(train__precision="bf16", train__epochs=4, optim__lr=1e-2), tiny_dataset(32), tmp_path)
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]


def test_load_model_gives_the_best_epochs_outputs(tmp_path: Path) -> None:
    dataset = tiny_dataset(20)
    _, rows = local_run(tiny_experiment(train__epochs=3), dataset, tmp_path)
    model = checkpoint.load_model(tmp_path / "best.pt")
    x = torch.from_numpy(dataset.samples.x[dataset.val]).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        loss = float(((model(x) - x) ** 2).mean())
    assert loss == pytest.approx(min(row["val_loss"] for row in rows), rel=1e-5)
