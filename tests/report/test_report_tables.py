"""The report's sentences and tables say what happened, in numbers that people read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_sweeps import DATA, NAN, SPACE, Make, diverged, failed, grid_trials, trial

from raysweep.report import answer, tables
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-5"), (0.001, "0.001"), (3, "3"), (np.int64(3), "3"), (3.0, "3"), (True, "true"), (pd.NA, "–"), (NAN, "–"),
        ([0.9, 0.999], "[0.9, 0.999]"), ("relu", "relu"), (None, "–"), (1e30, "1e30"), (-0.5, "-0.5"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: object, text: str) -> None:
    assert tables.number(value) == text


def test_measured_values_keep_their_zeros() -> None:
    shown = [tables.measured(v) for v in (0.0100, 0.00413, 24.0, 1234.5, 1.4e-7, 1e30, 0.0, NAN)]
    assert shown == ["0.0100", "0.00413", "24.0", "1234", "1.4e-7", "1e30", "0", "–"]
    assert [tables.duration(s) for s in (0.84, 42.2, 200, 7500)] == ["0.8 s", "42 s", "3 min 20 s", "2 h 5 min"]


def test_answer_names_settings_value_and_baselines(make: Make) -> None:
    results = load(make(grid_trials()))
    assert answer.answer(results) == (
        "Best: lr 0.01, depth 1: val_loss 0.00400, 27x below the mean image, 2.5x below the noisy input."
    )
    assert answer.counts(results) == "16 planned: 15 completed, 1 diverged"
    assert "not finished" not in answer.status(results)


def test_what_was_planned_stands_beside_what_it_took(tmp_path: Path) -> None:
    def status(finish: str | None, predicted: dict[str, Any] | None) -> str:
        journal = JournalWriter(tmp_path / "journal.jsonl", clock=lambda: times.pop(0))
        times = [1.7e9, 1.7e9 + 40, 1.7e9 + 105]
        journal.event("start", sweep=None, experiment={}, data={}, predicted=predicted)
        journal.event("trial", trial=0, key="k", overrides={}, epochs=1, parameters=1)
        if finish:
            journal.event("finish", status=finish)
        journal.close()
        text = answer.status(load(tmp_path))
        (tmp_path / "journal.jsonl").unlink()
        return text

    predicted = {"wall_s": [90, 100, 120], "device_hours": [0.1, 0.1, 0.1]}
    assert status("completed", predicted).endswith("together: 0.0 s. Planned 1 min 30 s to 2 min, took 1 min 45 s.")
    assert status(None, predicted).endswith("took 40 s so far.")
    assert "Planned" not in status("completed", None)


def test_best_not_better_than_the_mean_image_is_said_plainly(make: Make) -> None:
    results = load(make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.12)]))
    assert "NOT better than the mean image (0.108)" in answer.answer(results)
    assert any("no trial has learned anything" in remark for remark in answer.remarks(results))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "Best: lr 0.001, depth 2: val_loss 0.0120."),
        ({**DATA, "baseline_input": None}, "9.0x below the mean image."),
        ({**DATA, "noise": 0.0}, "NOT better than the input as it is (0.0100)"),
        # X is Y: the input itself is perfect, and nothing could be better.
        ({**DATA, "baseline_input": 0.0}, "9.0x below the mean image."),
    ],
)
def test_missing_baselines_are_left_out(make: Make, data: dict[str, object], text: str) -> None:
    results = load(make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.012)], data=data))
    assert text in answer.answer(results)
    assert not re.search("None|nan", str(tables.facts(results).rows))


def test_nan_and_diverged_are_never_best(make: Make) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    results = load(make([trial(at, NAN), diverged(at, 1e-9, NAN), trial(at, 0.5, NAN), trial(at, 0.02)]))
    assert "0.0200" in answer.answer(results)
    board = tables.leaderboard(results)
    assert [row[1] for row in board.rows] == ["3", "2", "1", "0"] or [row[1] for row in board.rows] == ["3", "2", "0", "1"]
    assert [row[0] for row in board.rows] == ["1", "2", "", ""]


def test_without_a_best_the_reason_and_the_distinct_errors_stand_there(make: Make) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    errors = ("RuntimeError: A", "ValueError: B", "RuntimeError: A")
    results = load(make([failed(at, error) for error in errors], name="failed"))
    text = answer.answer(results)
    assert text.startswith("No best: all 3 trials failed.")
    assert "RuntimeError: A (trials 0, 2)" in text
    assert "ValueError: B (trial 1)" in text
    assert "all 2 trials diverged" in answer.answer(load(make([diverged(at, NAN)] * 2, name="diverged")))
    assert "no trial has a finite val_loss (1 planned: 1 completed)" in answer.answer(load(make([trial(at, NAN)], name="nan")))
    assert "no trial has reported" in answer.answer(load(make([trial(at, status=None)], name="new", finish=None)))
    spent = [trial(at, status="budget", text="budget.wall_time_s was spent before it started")]
    assert "no trial has reported" in answer.answer(load(make(spent, name="spent", finish="budget")))
    assert "holds no trial" in answer.answer(load(make([], name="empty", finish=None)))


def test_an_unfinished_sweep_says_so(make: Make) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    results = load(make([trial(at, 0.02), trial(at, 0.03, status=None)], finish=None))
    assert answer.status(results).startswith("2 planned: 1 completed, 1 unfinished. The sweep has not finished.")
    assert "budget was used up" in answer.status(load(make([trial(at, 0.02)], name="b", finish="budget")))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            "budget.wall_time_s was spent before it started",
            "budget.wall_time_s was spent; with more of it the same command goes on.",
        ),
        ("budget.target was reached by trial 0 in epoch 2", "budget.target was reached by trial 0."),
    ],
)
def test_the_budget_that_ended_a_sweep_is_named(make: Make, reason: str, text: str) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    left = trial(at, 0.03, status=None) | {"status": "budget", "reason": {"text": reason}}
    assert f" The sweep ended because {text}" in answer.status(load(make([trial(at, 0.02), left], finish="budget")))


def test_a_sweep_that_was_gone_on_with_says_when_it_started_last(make: Make) -> None:
    directory = make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.02)])
    assert " Started 20" in answer.status(load(directory))
    journal = directory / "journal.jsonl"
    first = json.loads(journal.read_text().splitlines()[0])
    journal.write_text(journal.read_text() + json.dumps({**first, "time": first["time"] + 7200.0}) + "\n")
    assert " Last started 20" in answer.status(load(directory))


def test_the_column_that_needs_it_is_explained_below_the_table(make: Make) -> None:
    results = load(make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.012)] * 60))
    note = tables.explained(tables.leaderboard(results)).note
    assert note.startswith("... 10 more in trials.csv. below mean image: the loss of answering every input with the mean")
    plain = load(make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.012)], name="plain", data={}))
    assert tables.explained(tables.leaderboard(plain)).note == ""


def test_edge_of_the_range_says_which_way_to_widen(make: Make) -> None:
    low = load(make([trial({"optim.lr": lr, "model.depth": 2}, loss) for lr, loss in ((1e-4, 0.01), (1e-3, 0.02))], name="low"))
    (hint,) = [r for r in answer.remarks(low) if "lr" in r]
    assert "lowest value tried" in hint
    assert "Widen optim.lr to lower values, for example 1e-5." in hint
    two = load(
        make(
            [trial({"optim.lr": lr}, loss) for lr, loss in ((3e-3, 0.02), (1e-2, 0.01))],
            {"optim.lr": {"grid": [3e-3, 1e-2]}},
            name="two",
        )
    )
    assert any("for example 0.033." in remark for remark in answer.remarks(two)), "a learning rate is widened by ratios"
    # Depth 1 is the lowest that there is, so nothing is said; depth 4 can be widened.
    deep = load(make([trial({"optim.lr": 1e-3, "model.depth": d}, loss) for d, loss in ((1, 0.03), (4, 0.01))], name="deep"))
    assert any("depth 4 is the highest value tried" in r and "higher values, for example" in r for r in answer.remarks(deep))
    assert not any("depth" in r for r in answer.remarks(load(make(grid_trials(), name="grid"))))


@pytest.mark.parametrize(("low", "hint"), [(4, "for example 2."), (1, None)])
def test_a_setting_of_a_model_of_the_users_own_is_not_to_be_widened_to_0(make: Make, low: int, hint: str | None) -> None:
    width, own = "model.params.width", {"model": {"factory": "mine:build"}}
    trials = [trial({width: value}, loss) for value, loss in ((low, 0.01), (2 * low, 0.02))]
    found = [r for r in answer.remarks(load(make(trials, {width: {"grid": [low, 2 * low]}}, experiment=own))) if "width" in r]
    assert [text.rpartition(", ")[2] for text in found] == ([hint] if hint else [])


def test_a_trial_without_a_model_has_no_parameters(make: Make) -> None:
    directory = make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.01), failed({"model.depth": 9}, "deep", status="infeasible")])
    journal = directory / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"parameters":1001', '"parameters":0'))
    assert load(directory).trials["parameters"].tolist() == [1000, pd.NA]


@pytest.mark.parametrize(("lr", "word"), [(1.1e-5, "lower"), (0.09, "higher"), (1e-3, None)])
def test_edge_of_a_continuous_range_is_measured_in_ratios(make: Make, lr: float, word: str | None) -> None:
    trials = [trial({"optim.lr": lr}, 0.01), trial({"optim.lr": 5e-4}, 0.02)]
    hints = answer.remarks(load(make(trials, {"optim.lr": {"loguniform": [1e-5, 0.1]}})))
    assert [f"to {word} values" in h for h in hints] == ([True] if word else [])


def test_one_traceback_for_each_distinct_error(make: Make) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    trials = [failed(at, f"RuntimeError: bad tensor at 0x7f{n:04x}") for n in range(5)] + [failed(at, "KeyError: 'w'")]
    trials.append(failed(at, "\n".join(f"line {n}" for n in range(500))))
    found = tables.failures(load(make(trials)))
    assert [f.trials for f in found] == [(0, 1, 2, 3, 4), (5,), (6,)]
    assert all(f.traceback.startswith("Traceback") for f in found)
    assert len(found[2].traceback.splitlines()) == tables.MAX_TRACEBACK_LINES + 1


def test_leaderboard_is_cut_and_says_where_the_rest_is(make: Make) -> None:
    trials = [trial({"optim.lr": 1e-3, "model.depth": n % 4 + 1}, 0.01 + n / 1000) for n in range(60)]
    board = tables.leaderboard(load(make(trials)))
    assert len(board.rows) == 50
    assert board.note == "... 10 more in trials.csv"
    assert {row[board.header.index("depth")] for row in board.rows} == {"1", "2", "3", "4"}


def test_psnr_is_compared_by_the_loss_of_the_same_epoch(make: Make) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    text = answer.answer(load(make([trial(at, 0.03, 0.02)], SPACE, metric="psnr")))
    against = "5.4x below the mean image, NOT better than the noisy input (0.0100)"
    assert text == f"Best: lr 0.001, depth 2: psnr 22.0 (val_loss 0.0200), {against}."


def test_the_end_of_an_error_is_kept_because_it_says_what_to_do(make: Make) -> None:
    remedy = "Free some room, or set `storage` elsewhere"
    text = f"CheckpointError: cannot write /mnt/{'a-long-name/' * 20}step.pt: the disk is full. {remedy}"
    results = load(make([failed({"optim.lr": 1e-3}, text), failed({"optim.lr": 1e-2}, "x" * 1000 + remedy)]))
    assert answer.answer(results).startswith(f"No best: all 2 trials failed. {text} (trial 0); xxx")
    assert [len(f.error) for f in tables.failures(results)] == [len(text), 400]
    assert all(row[-1].endswith(remedy) for row in tables.leaderboard(results).rows)
