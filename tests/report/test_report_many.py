"""A report of very many trials stays a report: what is drawn is bounded, and says so."""

from __future__ import annotations

from report_sweeps import Make, trial

from raysweep.report.figures import curves_figure
from raysweep.store.results import load

LR = {"optim.lr": {"loguniform": [1e-5, 1.0]}}


def test_of_many_trials_one_in_so_many_is_drawn_evenly_by_rank_with_the_best(make: Make) -> None:
    trials = [trial({"optim.lr": 1e-5 * 1.01**n}, 1.0, 0.5 + 0.001 * abs(n - 301)) for n in range(700)]
    figure = curves_figure(load(make(trials, space=LR)))
    assert figure is not None
    (axes, *_) = figure.axes
    drawn = [line for line in axes.get_lines() if list(line.get_xdata()) == [1, 2]]
    assert len(drawn) <= 310
    assert axes.get_title() == "val_loss by epoch, 234 of 700 trials, 1 in 3 by rank"
    ends = sorted(line.get_ydata()[-1] for line in drawn)
    assert ends[0] == 0.5, "the best is among them"
    assert ends[-1] > 0.89, "and the far end of the ranking"


def test_few_trials_are_all_drawn(make: Make) -> None:
    trials = [trial({"optim.lr": 1e-5 * 1.01**n}, 1.0, 0.5 + 0.001 * n) for n in range(300)]
    figure = curves_figure(load(make(trials, space=LR)))
    assert figure is not None
    assert figure.axes[0].get_title() == "val_loss by epoch, 300 trials"
