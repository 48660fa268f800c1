"""What the report says of early stopping: what it saved, and how often it was wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from report_sweeps import NAN, Make, Trial, diverged, trial

from raysweep.report.build import build_report
from raysweep.report.stopping import stopping_table
from raysweep.store.audits import wilson
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load

EIGHT = {"train": {"epochs": 8}}
SPACE = {"optim.lr": {"grid": [n / 1000 for n in range(1, 9)]}}


def made(make: Make, audited: dict[int, dict[str, Any]], trials: list[Trial]) -> Path:
    directory = make(trials, space=SPACE, experiment=EIGHT)
    with closing(JournalWriter(directory / "journal.jsonl")) as journal:
        for number, decision in audited.items():
            journal.event("decision", trial=number, action="audit", rule="asha", metric="val_loss", **decision)
    return directory


def lr(number: int) -> dict[str, float]:
    return {"optim.lr": number / 1000}


def falling(to: float) -> list[float]:
    return [to + 0.01 * n for n in range(7, -1, -1)]


STOPPED = {"status": "stopped", "rule": "asha", "epoch": 2, "rung": 2, "metric": "val_loss", "value": 0.9, "cutoff": 0.5}
AT_2 = {"epoch": 2, "rung": 2, "value": 0.7, "cutoff": 0.5}
TRIALS = [
    trial(lr(1), *falling(0.10)),
    trial(lr(2), *falling(0.20)),
    trial(lr(3), *falling(0.40)),
    trial(lr(4), 0.9, 0.9, **STOPPED),
    trial(lr(5), *falling(0.15)),  # better than the median of 0.1, 0.2, 0.4
    trial(lr(6), *falling(0.05)),  # better than all
    trial(lr(7), *falling(0.60)),
    diverged(lr(8), 0.9, 0.01, NAN),
]


def test_each_audited_trial_is_judged_by_where_it_ended(make: Make) -> None:
    table = stopping_table(load(made(make, dict.fromkeys((4, 5, 6, 7), AT_2), TRIALS)))
    assert table is not None
    assert [(row[0], row[-1]) for row in table.rows] == [
        ("4", "wrong: better than the median"),
        ("5", "WRONG: it would have been the best"),
        ("6", "right"),
        ("7", "right"),
    ]
    assert table.rows[0][1:6] == ("epoch 2", "0.700", "0.500", "0.150", "completed after 8 epochs")
    low, high = wilson(1, 4)
    assert "1 of 4 ended better than the best trial that was not audited: 25%" in table.note
    assert f"25% (95 % interval {low:.0%} to {high:.0%})" in table.note
    assert f"about 1 ({low * 5:.0f} to {high * 5:.0f}) of all 5 that it would have stopped" in table.note
    assert "2 of 4 ended better than the median of those that were let through: 50%" in table.note


def test_what_was_saved_and_what_the_audit_cost(make: Make) -> None:
    table = stopping_table(load(made(make, dict.fromkeys((4, 5, 6, 7), AT_2), TRIALS)))
    assert table is not None
    # A row of these journals took 1 s on one worker.
    assert f"1 trial was stopped early: 6 epochs that were not trained, about {6 / 3600:.2g} device-hours" in table.note
    assert f"4 trials were audited (ran on): 19 epochs more, {19 / 3600:.2g} device-hours" in table.note


def test_an_audited_trial_that_has_not_ended_says_nothing(make: Make) -> None:
    trials = [*TRIALS[:4], trial(lr(5), *falling(0.01)[:4], status="interrupted"), trial(lr(6), 0.9, 0.2, status=None)]
    results = load(made(make, {4: AT_2, 5: AT_2}, trials))
    table = stopping_table(results)
    assert table is not None
    assert {row[-1] for row in table.rows} == {"–"}
    assert "None of them has ended yet" in table.note
    assert results.audited["beats_best"].isna().all()


def test_stops_without_an_audit_say_how_to_have_one(make: Make) -> None:
    directory = made(make, {}, TRIALS[:4])
    table = stopping_table(load(directory))
    assert table is not None
    assert table.rows == ()
    build_report(directory)
    for page in ("report.md", "report.html"):
        text = (directory / page).read_text()
        assert "Early stopping" in text
        assert "scheduler.audit: 0.1" in text.replace("\\", "")


def test_a_sweep_in_which_nothing_was_stopped_has_no_such_section(make: Make) -> None:
    directory = made(make, {}, TRIALS[:3])
    assert stopping_table(load(directory)) is None
    build_report(directory)
    assert "Early stopping" not in (directory / "report.md").read_text()


@pytest.mark.parametrize(
    ("hits", "num", "interval"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_the_interval_is_wilsons(hits: int, num: int, interval: tuple[float, float]) -> None:
    """Newcombe (1998), Two-sided confidence intervals for the single proportion, Statistics in Medicine 17, method 3."""
    assert wilson(hits, num) == pytest.approx(interval, abs=1e-4)
