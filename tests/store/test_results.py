"""Results: N planned trials are N rows, the best is a finite value of a healthy trial, numbers keep their kind."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raysweep.config import Sweep
from raysweep.errors import StoreError
from raysweep.store.journal import JournalWriter
from raysweep.store.reasons import describe_end
from raysweep.store.results import STATUSES, Results, load

NAN = float("nan")
GRID = {"optim.lr": {"grid": [1e-3, 1e-2]}, "model.depth": {"grid": [1, 2]}}


class Written:
    """A sweep's directory, written event by event."""

    def __init__(self, path: Path, **sweep: Any) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        config = Sweep.from_dict({"space": GRID, **sweep})
        self.event("start", sweep=config.model_dump(mode="json", exclude_unset=True), experiment={}, data={"samples": 7})

    def event(self, name: str, **fields: Any) -> Written:
        with closing(JournalWriter(self.path / "journal.jsonl", clock=lambda: 0.0)) as writer:
            writer.event(name, durable=False, **fields)
        return self

    def trial(self, number: int, lr: float = 1e-3, depth: int = 1, **overrides: Any) -> Written:
        given = overrides or {"optim.lr": lr, "model.depth": depth}
        return self.event("trial", trial=number, key=f"key{number}", overrides=given, parameters=100 + number)

    def rows(self, number: int, *losses: float, start: int = 1, **more: Any) -> Written:
        self.event("run", trial=number)
        with closing(JournalWriter(self.path / "journal.jsonl", clock=lambda: 0.0)) as writer:
            for epoch, loss in enumerate(losses, start=start):
                row = {"epoch": epoch, "step": 10 * epoch, "val_loss": loss, "world_size": 2, "seconds": 0.5, **more}
                writer.row(number, row)
        return self

    def end(self, number: int, status: str, **reason: Any) -> Written:
        return self.event("end", trial=number, status=status, reason=reason)

    def load(self) -> Results:
        return load(self.path)


@pytest.fixture
def sweep(tmp_path: Path) -> Written:
    return Written(tmp_path / "sweep")


def test_every_planned_trial_is_a_row_whatever_became_of_it(sweep: Written) -> None:
    reasons: dict[str, dict[str, Any]] = {
        "stopped": {"rule": "asha", "rung": 1, "metric": "val_loss", "value": 0.5, "cutoff": 0.4},
        "diverged": {"what": "train loss", "step": 3, "lr": 0.1},
        "failed": {"text": "out of memory", "traceback": "Traceback ..."},
    }
    for number, status in enumerate(STATUSES):
        sweep.trial(number)
        if status not in ("infeasible", "unfinished"):
            sweep.rows(number, 1.0 + number)
        if status != "unfinished":
            sweep.end(number, status, **reasons.get(status, {"text": status}))
    results = sweep.load()
    assert list(results.trials["status"]) == list(STATUSES)
    assert list(results.trials["trial"]) == list(range(len(STATUSES)))
    assert sorted(results.leaderboard["trial"]) == list(results.trials["trial"])
    assert results.trials.set_index("status").loc["failed", "error"] == "Traceback ..."


def test_a_planned_trial_that_never_ran_says_so(sweep: Written) -> None:
    row = sweep.trial(0).load().trials.loc[0]
    assert (row["status"], row["epochs"], row["attempts"], row["checkpoint"]) == ("unfinished", 0, 0, "")
    assert "journal ends before" in row["reason"]
    assert pd.isna(row["val_loss"])


@pytest.mark.parametrize("status", ["diverged", "failed", "infeasible"])
def test_neither_diverged_nor_failed_is_best(sweep: Written, status: str) -> None:
    reason = {"what": "loss", "step": 1, "lr": 1.0}
    sweep.trial(0).rows(0, 0.001).end(0, status, **reason).trial(1).rows(1, 0.9).end(1, "completed")
    best = sweep.load().best
    assert best is not None
    assert best["trial"] == 1


def test_nan_is_never_best_and_comes_last(sweep: Written) -> None:
    sweep.trial(0).rows(0, NAN, NAN).end(0, "completed").trial(1).rows(1, NAN, 0.9, NAN).end(1, "completed")
    sweep.trial(2).rows(2, float("inf"), 5.0).end(2, "completed").trial(3)
    results = sweep.load()
    assert list(results.leaderboard["trial"]) == [1, 2, 0, 3]
    assert results.trials.loc[1, "best_epoch"] == 2
    assert results.trials.loc[1, "val_loss"] == 0.9
    assert pd.isna(results.trials.loc[0, "best_epoch"])


def test_no_finite_value_is_no_best(sweep: Written) -> None:
    assert sweep.load().best is None
    results = sweep.trial(0).rows(0, NAN).end(0, "completed").load()
    assert results.best is None
    assert results.best_directory() is None


def test_best_is_the_best_epoch_not_the_last_and_ties_go_to_the_first(sweep: Written) -> None:
    sweep.trial(0).rows(0, 0.5, 0.2, 0.4).trial(1).rows(1, 0.3, 0.3).trial(2).rows(2, 0.3)
    results = sweep.load()
    assert list(results.trials["best_epoch"]) == [2, 1, 1]
    assert list(results.trials["epochs"]) == [3, 2, 1]
    assert list(results.leaderboard["trial"]) == [0, 1, 2]


def test_what_happened_to_the_workers_is_kept_and_counts_as_attempts(sweep: Written) -> None:
    def happened(name: str, before: int, after: int | None) -> None:
        fields = {"why": "w", "from": before, "to": after, "step": 7, "redone_steps": 2, "pause_s": 1.5}
        sweep.event(name, trial=0, **fields)

    sweep.trial(0).rows(0, 0.9)
    happened("resize", 1, 2)
    happened("preemption", 2, 1)
    happened("failure", 1, None)
    results = sweep.end(0, "failed", text="workers were lost").load()
    assert [(r["event"], r["from"], r["to"]) for r in results.resizes] == [
        ("resize", 1, 2),
        ("preemption", 2, 1),
        ("failure", 1, None),
    ]
    assert results.trials.loc[0, "attempts"] == 3, "the first one, and one after each of two breaks"


def test_psnr_looks_for_the_highest(tmp_path: Path) -> None:
    sweep = Written(tmp_path / "psnr", objective={"metric": "psnr"})
    sweep.trial(0).rows(0, 0.1, psnr=20.0).trial(1).rows(1, 0.9, psnr=30.0).trial(2).rows(2, 0.9, psnr=NAN)
    results = sweep.load()
    assert (results.metric, results.mode) == ("psnr", "max")
    assert list(results.leaderboard["trial"]) == [1, 0, 2]


def test_an_epoch_done_again_counts_once_with_the_later_values(sweep: Written) -> None:
    sweep.trial(0).rows(0, 0.9, 0.1, 0.7).rows(0, 0.5, 0.4, start=2).end(0, "completed")
    results = sweep.load()
    assert list(results.rows["epoch"]) == [1, 2, 3]
    assert list(results.rows["val_loss"]) == [0.9, 0.5, 0.4]
    row = results.trials.loc[0]
    assert (row["val_loss"], row["best_epoch"], row["epochs"], row["attempts"]) == (0.4, 3, 3, 2)
    assert row["seconds"] == 1.5


def test_a_trial_that_goes_on_is_unfinished_again(sweep: Written) -> None:
    sweep.trial(0).rows(0, 0.9).end(0, "interrupted", text="ctrl-c").event("finish", status="interrupted")
    assert sweep.load().finished == "interrupted"
    sweep.rows(0, 0.8, start=2)
    assert sweep.load().trials.loc[0, "status"] == "unfinished"


def test_ints_stay_ints_and_floats_floats(sweep: Written) -> None:
    sweep.trial(0, lr=1e-3, depth=3).rows(0, 1.0, peak_memory_bytes=5e9).trial(1, lr=1e-2, depth=2)
    results = sweep.load()
    for name in ("trial", "depth", "epochs", "best_epoch", "parameters", "world_size", "attempts"):
        assert results.trials[name].dtype == "Int64", name
    assert results.trials.loc[0, "depth"] == 3
    assert pd.isna(results.trials.loc[1, "best_epoch"])
    for name in ("lr", "val_loss", "seconds"):
        assert results.trials[name].dtype == "float64", name
    for name in ("trial", "epoch", "step", "world_size"):
        assert results.rows[name].dtype == "Int64", name
    assert results.rows["val_loss"].dtype == "float64"


def test_columns_carry_the_short_names(sweep: Written, tmp_path: Path) -> None:
    assert {"lr", "depth"} <= set(sweep.trial(0).load().trials.columns)
    space = {"train.seed": {"grid": [0]}, "data.seed": {"grid": [0, 1]}}
    both = Written(tmp_path / "both", space=space).trial(0, **{"train.seed": 0, "data.seed": 1}).load()
    assert both.trials.loc[0, "data.seed"] == 1


@pytest.mark.parametrize("name", ["epochs", "reason", "status", "key"])
def test_a_swept_setting_does_not_collide_with_a_column(tmp_path: Path, name: str) -> None:
    key = f"model.params.{name}"
    sweep = Written(tmp_path / "s", space={key: {"grid": ["a", "b"]}}, experiment={"model": {"factory": "pkg:make"}})
    results = sweep.trial(0, **{key: "a"}).rows(0, 1.0).load()
    assert not results.trials.columns.duplicated().any()
    assert results.trials.loc[0, results.params[key]] == "a"
    assert results.trials.loc[0, "epochs"] == 1


def test_a_moved_directory_reads_the_same(sweep: Written, tmp_path: Path) -> None:
    sweep.trial(0).rows(0, 0.5, 0.4).end(0, "completed").trial(1).rows(1, NAN)
    before = sweep.load()
    elsewhere = tmp_path / "elsewhere" / "moved"
    elsewhere.parent.mkdir()
    shutil.move(sweep.path, elsewhere)
    after = load(elsewhere)
    pd.testing.assert_frame_equal(before.trials, after.trials)
    pd.testing.assert_frame_equal(before.rows, after.rows)
    pd.testing.assert_frame_equal(before.leaderboard, after.leaderboard)
    assert after.best_directory() == elsewhere / "trials" / "key0"
    assert not (after.trials["checkpoint"].str.startswith("/")).any()


def test_a_journal_that_is_still_written_can_be_read(sweep: Written) -> None:
    sweep.trial(0).rows(0, 0.5)
    with (sweep.path / "journal.jsonl").open("ab") as file:
        file.write(b'{"row":[0,2,20,0.')
    assert list(sweep.load().rows["epoch"]) == [1]


def test_one_run_without_a_sweep_has_results_too(tmp_path: Path) -> None:
    with closing(JournalWriter(tmp_path / "journal.jsonl")) as writer:
        writer.event("start", experiment={})
        writer.event("trial", trial=0, key="k", overrides={})
        writer.row(0, {"epoch": 1, "val_loss": 0.5})
    results = load(tmp_path)
    assert (results.sweep, results.metric, results.mode, results.params) == (None, "val_loss", "min", {})
    assert results.best is not None


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*journal\.jsonl"):
        load(tmp_path)
    (tmp_path / "journal.jsonl").write_bytes(b"")
    with pytest.raises(StoreError, match="no start event"):
        load(tmp_path)


@pytest.mark.parametrize("line", ['{"event":"run","trial":5}', "{}", '{"event":"end","trial":5,"status":"failed"}'])
def test_events_that_make_no_sense_are_damage(sweep: Written, line: str) -> None:
    with (sweep.path / "journal.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StoreError, match="damaged"):
        sweep.load()


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (
            {"status": "stopped", "reason": {"rule": "asha", "rung": 3, "metric": "val_loss", "value": 0.51234, "cutoff": 0.4}},
            "asha: at rung 3 val_loss 0.5123 was past the cutoff 0.4",
        ),
        (
            {"status": "stopped", "reason": {"rule": "median", "epoch": 2, "metric": "psnr", "value": 9.0, "cutoff": 12.0}},
            "median: at epoch 2 psnr 9 was past the cutoff 12",
        ),
        (
            {"status": "stopped", "reason": {"rule": "patience", "metric": "val_loss", "patience": 3}},
            "no lower val_loss in 3 epochs",
        ),
        (
            {"status": "diverged", "reason": {"what": "train loss", "step": 33, "lr": 0.1}},
            "train loss was not finite at step 33, lr 0.1",
        ),
        ({"status": "failed", "reason": {"text": "out of memory"}}, "out of memory"),
        ({"status": "completed"}, ""),
    ],
)
def test_an_end_is_described_for_people(end: dict[str, Any], text: str) -> None:
    assert describe_end(end) == text


@pytest.mark.parametrize(
    "end",
    [
        {"status": "stopped", "reason": {"rule": "asha", "rung": 1, "metric": "val_loss", "value": None, "cutoff": 0.1}},
        {"status": "diverged", "reason": {"what": "loss", "step": 3, "lr": None}},
        {"status": "diverged"},
    ],
)
def test_an_end_with_missing_numbers_is_described_still(end: dict[str, Any]) -> None:
    assert isinstance(describe_end(end), str)
