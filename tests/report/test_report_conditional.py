"""The report of a sweep in which some trials lack a setting: none is left out, and nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_sweeps import trial, write_journal

from raysweep.report.answer import remarks
from raysweep.report.build import build_report
from raysweep.report.cells import sweep_map
from raysweep.report.figures import drawn
from raysweep.report.heatmap import map_figure
from raysweep.report.tables import NONE, leaderboard
from raysweep.store.results import load

DROPOUT = {"choice": [0.1, 0.2], "when": "model.depth > 2"}
TRIALS = [
    trial({"model.depth": 1}, 0.05, 0.04),
    trial({"model.depth": 2}, 0.05, 0.01),
    trial({"model.depth": 3, "model.dropout": 0.1}, 0.05, 0.03),
    trial({"model.depth": 3, "model.dropout": 0.2}, 0.05, 0.02),
]
BY_LR = [trial({"optim.lr": lr, **t["overrides"]}, lr, *t["values"][1:]) for lr in (1e-3, 1e-2) for t in TRIALS]
DEPTH = {"model.depth": {"choice": [1, 2, 3]}}


def test_a_map_shows_every_trial(tmp_path: Path) -> None:
    """Along dropout the trials without it would have no place, the best among them."""
    for name, space in (("a", {"model.dropout": DROPOUT, **DEPTH}), ("b", {**DEPTH, "model.dropout": DROPOUT})):
        found = sweep_map(load(write_journal(tmp_path, TRIALS, space, name=name)))
        assert found is not None
        assert (found.x.name, found.y) == ("depth", None)
        assert len(found.cells) == 4
        assert found.best in {cell.trial for cell in found.cells}
        assert found.others == ("dropout",)


def test_two_settings_of_all_trials_make_the_map(tmp_path: Path) -> None:
    space = {"model.dropout": DROPOUT, **DEPTH, "optim.lr": {"choice": [1e-3, 1e-2]}}
    found = sweep_map(load(write_journal(tmp_path, BY_LR, space)))
    assert found is not None
    assert found.y is not None
    assert (found.x.name, found.y.name, found.others) == ("lr", "depth", ("dropout",))
    assert sum(cell.num_trials for cell in found.cells) == len(BY_LR)


def test_a_sweep_of_settings_that_no_two_trials_share_is_still_drawn(tmp_path: Path) -> None:
    space = {
        "model.dropout": {"choice": [0.1, 0.2], "when": "model.skip or model.depth == 1"},
        "model.kernel_size": {"choice": [3, 5], "when": "model.depth == 1"},
    }
    trials = [trial({"model.dropout": d, "model.kernel_size": k}, 0.1) for d, k in ((0.1, 3), (0.2, 5))]
    directory = write_journal(tmp_path, [*trials, trial({}, 0.2)], space, experiment={"model": {"depth": 1}})
    assert drawn(lambda: map_figure(load(directory))) is not None


@pytest.mark.parametrize(("trials", "extra"), [(TRIALS, {}), (BY_LR, {"optim.lr": {"choice": [1e-3, 1e-2]}})])
def test_the_whole_report_is_written(tmp_path: Path, trials: list[object], extra: dict[str, object]) -> None:
    directory = write_journal(tmp_path, trials, {**extra, "model.dropout": DROPOUT, **DEPTH})  # type: ignore[arg-type]
    build_report(directory)
    found = load(directory)
    board = leaderboard(found)
    assert [row[board.header.index("dropout")] for row in board.rows if row[board.header.index("depth")] == "2"] == [NONE] * (
        2 if extra else 1
    )
    assert drawn(lambda: map_figure(found)) is not None
    assert not any("dropout" in text for text in remarks(found)), "the best has no dropout that could lie at an edge"
