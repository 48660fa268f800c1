"""A population's results and report: the settings of each epoch, who copied whom, and how the best weights came about."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raysweep.config import Sweep
from raysweep.report.build import build_report
from raysweep.report.population import lineage, population_table, population_text
from raysweep.store.journal import JournalWriter
from raysweep.store.results import Results, load

STARTS = [(0.01, 2), (0.1, 1), (0.001, 2), (0.0001, 1)]
LOSSES = [(0.5, 0.4, 0.35, 0.34), (0.9, 0.8, 0.3, 0.2), (0.7, 0.6, 0.55, 0.5), (0.95, None, 0.25, 0.1)]
"""Trial 1 copies trial 0 after the second epoch, and trial 3, which diverged there, too."""


def settings(lr: float, depth: int) -> dict[str, Any]:
    return {"optim.lr": lr, "model.depth": depth}


def write(directory: Path, copies: bool = True, epochs: int = 4, **scheduler: Any) -> Path:
    content = {
        "experiment": {"train": {"epochs": 4}},
        "space": {"optim.lr": {"loguniform": [1e-5, 1.0]}, "model.depth": {"choice": [1, 2]}},
        "search": {"algorithm": "random", "num_samples": 4},
        "scheduler": {"name": "pbt", **scheduler},
    }
    sweep = Sweep.from_dict(content).model_dump(mode="json", exclude_unset=True)
    with closing(JournalWriter(directory / "journal.jsonl", clock=lambda: 1.7e9)) as journal:
        journal.event("start", sweep=sweep, experiment=content["experiment"], data={})
        for number, (lr, depth) in enumerate(STARTS):
            journal.event("trial", trial=number, key=f"k{number}", overrides=settings(lr, depth), parameters=10 * depth)
            journal.event("run", trial=number)
        for epoch in range(1, epochs + 1):
            for number, losses in enumerate(LOSSES):
                row = {
                    "epoch": epoch,
                    "step": epoch,
                    "train_loss": 0.1,
                    "val_loss": losses[epoch - 1],
                    "lr": 0.5,
                    "world_size": 1,
                }
                journal.row(number, {**row, "seconds": 1.0})
            if epoch == 2 and copies:
                fields = {"generation": 1, "epoch": 2, "from": 0}
                journal.event("population", trial=1, **fields, overrides=settings(0.012, 2))
                journal.event("population", trial=3, **fields, overrides=settings(0.008, 2))
        for number in range(4 if epochs == 4 else 0):
            journal.event("end", trial=number, status="completed", reason={})
        journal.event("finish", status="completed")
    return directory


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return load(write(tmp_path))


def test_rows_hold_the_settings_of_each_epoch_beside_their_own_columns(results: Results) -> None:
    rows = results.rows[results.rows["trial"] == 3]
    assert list(rows["optim.lr"]) == [1e-4, 1e-4, 0.008, 0.008]
    assert list(rows["depth"]) == [1, 1, 2, 2]
    assert list(rows["lr"]) == [0.5] * 4, "the rate in use, a column of every row, stays"
    assert (rows["optim.lr"].dtype, rows["depth"].dtype) == ("float64", "Int64")


def test_the_leaderboard_shows_the_settings_of_the_best_epoch(results: Results) -> None:
    board = results.leaderboard.set_index("trial")
    assert list(board.index[:2]) == [3, 1]
    assert list(board["lr"]) == [0.008, 0.012, 0.01, 0.001]
    assert list(board["depth"]) == [2, 2, 2, 2]
    assert list(board["parameters"]) == [20, 20, 20, 20], "a copy has its donor's model"


def test_the_best_epoch_may_lie_before_the_copy(tmp_path: Path) -> None:
    found = load(write(tmp_path, epochs=2))
    assert found.trials.loc[1, "lr"] == 0.1, "its best epoch is the second, which it trained with its first settings"
    assert list(found.trials["status"]) == ["unfinished"] * 4


def test_the_copies_are_a_frame(results: Results) -> None:
    frame = results.population
    assert list(frame.columns) == ["trial", "generation", "epoch", "from", "lr", "lr_before", "depth", "depth_before"]
    assert frame.astype(object).values.tolist() == [[1, 1, 2, 0, 0.012, 0.1, 2, 1], [3, 1, 2, 0, 0.008, 0.0001, 2, 1]]


def test_a_sweep_without_a_population_has_none_of_it(tmp_path: Path) -> None:
    found = load(write(tmp_path, copies=False))
    assert found.population.empty
    assert population_table(found).rows == ()
    assert population_text(found) == ""
    build_report(tmp_path)
    assert "Population" not in (tmp_path / "report.md").read_text()


def test_each_copy_is_a_line_with_what_it_changed(results: Results) -> None:
    table = population_table(results)
    assert table.header == ("after epoch", "trial", "copied", "val_loss", "lr", "depth")
    assert table.rows == (
        ("2", "1", "0", "0.800 → 0.400", "0.1 → 0.012", "1 → 2"),
        ("2", "3", "0", "– → 0.400", "0.0001 → 0.008", "1 → 2"),
    )
    cut = population_table(results, limit=1)
    assert (len(cut.rows), cut.note) == (1, "... 1 more in journal.jsonl")


def test_the_sentence_tells_the_course_of_settings_behind_the_best_weights(results: Results) -> None:
    assert [(trial, until) for trial, until, _ in lineage(results)] == [(0, 2), (3, 4)]
    assert population_text(results) == (
        "The best weights, trial 3's after epoch 4, were trained to epoch 2 as trial 0 (lr 0.01, depth 2), to epoch 4 as trial 3 "
        "(lr 0.008, depth 2). What was found is this course of settings: its last values alone were not tried from the start."
    )


def test_a_chain_of_copies_is_followed_to_its_start(tmp_path: Path) -> None:
    write(tmp_path)
    with closing(JournalWriter(tmp_path / "journal.jsonl")) as journal:
        journal.event("population", trial=2, generation=2, epoch=4, **{"from": 3}, overrides=settings(0.0096, 2))
        journal.row(2, {"epoch": 5, "step": 5, "val_loss": 0.05, "train_loss": 0.1})
    assert [(trial, until) for trial, until, _ in lineage(load(tmp_path))] == [(0, 2), (3, 4), (2, 5)]


def test_the_pages_have_the_section(tmp_path: Path) -> None:
    build_report(write(tmp_path))
    for page in ("report.md", "report.html"):
        text = (tmp_path / page).read_text()
        assert "Population" in text
        assert "as trial 0 (lr 0.01, depth 2)" in text
        assert "0.1 → 0.012" in text
        assert "A member that copied has the colour of the settings that it had at its best." in text
    assert "optim.lr" in pd.read_parquet(tmp_path / "rows.parquet").columns
