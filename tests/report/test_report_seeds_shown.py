"""Where several seeds are trained, the map and the terminal go by the mean, as the ranking does."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest
from report_sweeps import Make, Trial, diverged, trial
from rich.console import Console

from raysweep.report.answer import answer, remarks
from raysweep.report.build import build_report
from raysweep.report.cells import Map, sweep_map
from raysweep.report.heatmap import map_figure
from raysweep.report.summary import print_summary
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load
from raysweep.sweep_settings import SEED

LR = {"optim.lr": {"grid": [1e-4, 1e-3]}}
GRID = {**LR, "model.depth": {"grid": [1, 2]}}


def seeds(lr: float, *values: float | None, **others: float) -> list[Trial]:
    """The trials of one configuration, one for each seed; None: it diverged."""
    given = [{"optim.lr": lr, **({SEED: n} if n else {}), **others} for n in range(len(values))]
    return [diverged(o, 0.5) if v is None else trial(o, v) for o, v in zip(given, values, strict=True)]


def mapped(directory: Path) -> Map:
    found = sweep_map(load(directory))
    assert found is not None
    return found


def grid() -> list[Trial]:
    """Trial 0 was lucky once; the best mean is that of trials 2 and 3; 6 and 7 diverged; the mean image is 0.108."""
    trials = [*seeds(1e-4, 0.01, 0.09, **{"model.depth": 1}), *seeds(1e-4, 0.03, 0.02, **{"model.depth": 2})]
    return [*trials, *seeds(1e-3, 0.05, 0.3, **{"model.depth": 1}), *seeds(1e-3, None, None, **{"model.depth": 2})]


def test_a_cell_shows_the_mean_over_its_seeds(make: Make) -> None:
    directory = make(grid(), space=GRID)
    cells = mapped(directory).cells
    assert [(c.trial, c.kind, c.num_trials) for c in cells] == [
        (2, "value", 1),
        (0, "value", 1),
        (4, "worse", 1),
        (6, "diverged", 1),
    ]
    assert [c.value for c in cells] == [pytest.approx(0.025), pytest.approx(0.05), pytest.approx(0.175), None]
    assert mapped(directory).best == 2
    figure = map_figure(load(directory))
    assert figure is not None
    axes, bar = figure.axes
    assert axes.get_title() == "mean val_loss of each configuration over its seeds"
    assert bar.get_ylabel() == "mean val_loss"
    build_report(directory)
    page = (directory / "report.md").read_text()
    assert "The mean over each configuration's seeds, by which they are ranked; the darker, the better." in page


def test_one_setting_has_a_point_for_each_configuration(make: Make) -> None:
    directory = make([*seeds(1e-4, 0.01, 0.09), *seeds(1e-3, 0.03, 0.02)], space=LR)
    assert [(c.trial, c.value) for c in mapped(directory).cells] == [(2, pytest.approx(0.025)), (0, pytest.approx(0.05))]
    figure = map_figure(load(directory))
    assert figure is not None
    assert figure.axes[0].get_ylabel() == "mean val_loss"


def test_a_place_with_several_configurations_shows_the_one_that_is_ranked_first(make: Make) -> None:
    space = {**GRID, "model.base_channels": {"grid": [4, 8]}}
    shaky = seeds(1e-4, 0.01, None, **{"model.depth": 1, "model.base_channels": 4})
    steady = seeds(1e-4, 0.03, 0.04, **{"model.depth": 1, "model.base_channels": 8})
    other = seeds(1e-3, 0.05, 0.05, **{"model.depth": 2, "model.base_channels": 8})
    directory = make([*shaky, *steady, *other], space=space)
    first, _ = mapped(directory).cells
    assert (first.trial, first.value, first.num_trials) == (2, pytest.approx(0.035), 2), "0.01 is of one seed; the other diverged"
    figure = map_figure(load(directory))
    assert figure is not None
    assert figure.axes[0].get_title() == "mean val_loss; each place shows the best of its configurations (over base_channels)"
    build_report(directory)
    assert "A configuration of which seeds diverged or failed shows the others' mean" in (directory / "report.md").read_text()


def test_a_map_with_a_contest_says_whose_values_do_not_count(make: Make) -> None:
    first = [trial({"optim.lr": lr}, value) for lr, value in ((1e-4, 0.01), (1e-3, 0.012), (1e-2, 0.02))]
    further = [trial({"optim.lr": lr, SEED: 1}, 0.03) for lr in (1e-4, 1e-3)]
    directory = make([*first, *further], space={"optim.lr": {"grid": [1e-4, 1e-3, 1e-2]}})
    begin = {"trial": 0, "action": "contend", "rule": "contenders", "contenders": [0, 1], "seeds": 3}
    with closing(JournalWriter(directory / "journal.jsonl")) as journal:
        journal.event("decision", **begin)
    assert [c.value for c in mapped(directory).cells] == [pytest.approx(v) for v in (0.03, 0.03, 0.02)]
    build_report(directory)
    assert "Who took part in the contest is ranked first, by fresh seeds" in (directory / "report.md").read_text()


def test_the_terminal_lists_configurations(make: Make) -> None:
    text = io.StringIO()
    print_summary(load(make([*seeds(1e-4, 0.01, 0.09), *seeds(1e-3, 0.03, 0.02)], space=LR)), Console(file=text, width=200))
    best, header, first, second = (line for line in text.getvalue().splitlines() if "planned" not in line and line[0] != "-")
    assert best.startswith("Best: lr 0.001: val_loss 0.0250 ± 0.00707")
    assert header.split() == ["lr", "mean", "val_loss", "standard", "deviation", "best", "seeds", "trials"]
    assert first.split() == ["1", "0.001", "0.0250", "0.00707", "0.0200", "2", "2,", "3"], "the first row is what Best says"
    assert second.split()[1] == "0.0001"


def test_another_objective_is_compared_with_the_baselines_by_the_mean_loss_as_well(make: Make) -> None:
    # The first seed alone is below the mean image, 0.108; psnr is 21 in all of these journals.
    results = load(make([*seeds(1e-4, 0.02, 0.3), *seeds(1e-3, 0.4, 0.5)], space=LR, metric="psnr"))
    text = answer(results)
    assert "(mean val_loss 0.160), NOT better than the mean image (0.108)" in text
    assert any("in the mean over its seeds, is not better than answering" in remark for remark in remarks(results))
    found = sweep_map(results)
    assert found is not None
    assert {cell.kind for cell in found.cells} == {"worse"}
