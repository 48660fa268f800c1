"""Configurations in the results and in the report: means, spreads, which one is the best, and the contest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from report_sweeps import Make, Trial, diverged, failed, trial

from raysweep.report.answer import answer, remarks, worse_than_mean_image
from raysweep.report.build import build_report
from raysweep.report.seeds import contest_text, seeds_table
from raysweep.report.tables import leaderboard
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load
from raysweep.sweep_settings import SEED

SPACE = {"optim.lr": {"grid": [1e-4, 1e-3, 1e-2]}}


def seeds(lr: float, *values: float | None, first: int = 0) -> list[Trial]:
    """The trials of one configuration, one for each seed; None: it diverged."""
    given = [{"optim.lr": lr, **({SEED: n} if n else {})} for n in range(first, first + len(values))]
    return [diverged(o, 0.5) if value is None else trial(o, value * 2, value) for o, value in zip(given, values, strict=True)]


def test_the_best_configuration_is_the_one_with_the_best_mean(make: Make) -> None:
    results = load(make([*seeds(1e-4, 0.010, 0.030, 0.029), *seeds(1e-3, 0.014, 0.016, 0.018)], space=SPACE))
    board = results.configurations
    assert list(board["lr"]) == [1e-3, 1e-4]
    assert list(board["trials"]) == [[3, 4, 5], [0, 1, 2]]
    assert board["mean"].tolist() == pytest.approx([0.016, 0.023])
    assert board.loc[0, "std"] == pytest.approx(0.002), "n - 1"
    assert (board.loc[0, "best"], board.loc[0, "best_trial"], board.loc[0, "seeds"]) == (0.014, 3, 3)
    assert results.best is not None
    assert results.best["trial"] == 3, "not trial 0, which was lucky once"
    assert list(results.leaderboard["trial"]) == [3, 4, 5, 0, 2, 1]
    assert list(results.trials[SEED]) == [0, 1, 2, 0, 1, 2]
    text = answer(results)
    assert "lr 0.001: val_loss 0.0160 ± 0.00200 (mean and standard deviation of 3 seeds)" in text
    assert "6.8x below the mean image" in text, "of the mean, 0.108 / 0.016"


def test_a_lucky_seed_below_the_mean_image_makes_no_good_sweep(make: Make) -> None:
    results = load(make(seeds(1e-3, 0.09, 0.2), space=SPACE))  # the mean image: 0.108
    assert "NOT better than the mean image" in answer(results)
    assert worse_than_mean_image(results)
    assert "The best configuration, in the mean over its seeds, is not better than answering" in remarks(results)[0]


def test_psnr_is_better_when_it_is_higher(make: Make) -> None:
    # psnr is 20 + the epoch in these journals.
    longer = [trial({"optim.lr": 1e-3, **given}, *[0.1] * 5) for given in ({}, {SEED: 1})]
    board = load(make([*seeds(1e-4, 0.1, 0.1), *longer], space=SPACE, metric="psnr")).configurations
    assert board["mean"].tolist() == [25.0, 22.0]
    assert board["best"].tolist() == [25.0, 22.0]


def test_a_configuration_of_which_seeds_diverge_comes_after_those_that_do_not(make: Make) -> None:
    trials = [*seeds(1e-4, 0.01, None, 0.01), *seeds(1e-3, 0.03, 0.03, 0.03), *seeds(1e-2, None, None, None)]
    results = load(make(trials, space=SPACE))
    board = results.configurations
    assert list(board["lr"]) == [1e-3, 1e-4, 1e-2]
    assert list(board["bad"]) == [0, 1, 3]
    assert board["mean"].isna().tolist() == [False, False, True]
    table = seeds_table(results)
    assert table is not None
    assert table.rows[1][5] == "2, 1 diverged or failed"


def test_a_best_configuration_with_a_bad_seed_is_told(make: Make) -> None:
    trials = [*seeds(1e-4, 0.01, None), failed({"optim.lr": 1e-3}, "why"), failed({"optim.lr": 1e-3, SEED: 1}, "why")]
    assert any("not one to rely on" in text for text in remarks(load(make(trials, space=SPACE))))


def test_without_further_seeds_nothing_is_different(make: Make) -> None:
    directory = make(seeds(1e-4, 0.01) + seeds(1e-3, 0.02), space=SPACE)
    results = load(directory)
    assert not results.has_seeds
    assert SEED not in results.trials
    assert seeds_table(results) is None
    assert "±" not in answer(results)
    build_report(directory)
    assert "Configurations" not in (directory / "report.md").read_text()


def test_a_swept_seed_is_a_setting_like_any_other(make: Make) -> None:
    trials = [trial({SEED: n}, 0.1 + n) for n in range(3)]
    results = load(make(trials, space={SEED: {"grid": [0, 1, 2]}}))
    assert not results.has_seeds
    assert list(results.trials["seed"]) == [0, 1, 2]


def test_the_trials_show_their_seed(make: Make) -> None:
    table = leaderboard(load(make(seeds(1e-4, 0.01, 0.02), space=SPACE)))
    assert table.header[1:4] == ("trial", "lr", SEED)
    assert [row[3] for row in table.rows] == ["0", "1"]


# --- Contests ---------------------------------------------------------------------------------------------------------

BEGIN = {"trial": 0, "action": "contend", "rule": "contenders", "contenders": [0, 1], "seeds": 4}
FIRST = [trial({"optim.lr": lr}, value) for lr, value in ((1e-4, 0.010), (1e-3, 0.012), (1e-2, 0.020))]


def decided(directory: Path, *decisions: dict[str, Any]) -> Path:
    with closing(JournalWriter(directory / "journal.jsonl")) as journal:
        for decision in decisions:
            journal.event("decision", **decision)
    return directory


def further(lr: float, values: Sequence[float | None]) -> list[Trial]:
    return seeds(lr, *values, first=1)


def test_what_made_a_contender_is_not_in_its_mean(make: Make) -> None:
    trials = [*FIRST, *further(1e-4, [0.030, 0.031, 0.032]), *further(1e-3, [0.025, 0.026, 0.027])]
    directory = decided(make(trials, space=SPACE), BEGIN)
    results = load(directory)
    board = results.configurations
    assert list(board["trial"]) == [1, 0, 2], "who took no part comes last, although its one value is lower"
    assert board["mean"].tolist() == pytest.approx([0.026, 0.031, 0.020])
    assert list(board["contest"]) == ["left", "left", ""]
    text = contest_text(results)
    assert text.startswith("Contest of the 2 best by one seed (trials 0, 1)")
    why = "mean and standard deviation of 3 further seeds; its first seed chose it for the contest, so it is left out"
    assert f"val_loss 0.0260 ± 0.00100 ({why})" in answer(results)
    table = seeds_table(results)
    assert table is not None
    assert [row[5] for row in table.rows] == ["3, the first left out", "3, the first left out", "1"]
    assert text.endswith("trials 0, 1 are not separated after 4 seeds: their difference may be chance.")
    assert "The contest is not decided: the configurations of trials 0, 1 are not separated after 4 seeds." in remarks(results)
    build_report(directory)
    for page in ("report.md", "report.html"):
        assert "not separated after 4 seeds" in (directory / page).read_text()


def test_who_was_dropped_by_which_p(make: Make) -> None:
    trials = [*FIRST, *further(1e-4, [0.060, 0.061]), *further(1e-3, [0.025, 0.026])]
    drop = {"trial": 0, "action": "drop", "rule": "contenders", "round": 2, "leader": 1, "p": 0.00123, "level": 0.0167}
    results = load(decided(make(trials, space=SPACE), BEGIN, drop))
    assert list(results.configurations["contest"]) == ["left", "dropped after round 2", ""]
    text = contest_text(results)
    assert "after round 2 trial 0 was dropped, worse than trial 1 (p 0.0012 < 0.017, paired t-test)" in text
    assert text.endswith("trial 1 is left.")
    assert results.best is not None
    assert results.best["lr"] == 1e-3


def test_a_contest_that_was_cut_off_says_so(make: Make) -> None:
    trials = [*FIRST, *further(1e-4, [0.030]), *further(1e-3, [0.025])]
    results = load(decided(make(trials, space=SPACE), BEGIN))
    assert "are not separated yet" in contest_text(results)
    assert "val_loss 0.0250 (one further seed; its first seed chose it for the contest, so it is left out)" in answer(results)


def test_before_a_further_seed_has_a_value_a_contender_shows_its_first(make: Make) -> None:
    trials = [*FIRST, trial({"optim.lr": 1e-4, SEED: 1}, status=None), trial({"optim.lr": 1e-3, SEED: 1}, status=None)]
    assert "val_loss 0.0100 (one seed)" in answer(load(decided(make(trials, space=SPACE), BEGIN)))


def test_a_seed_that_diverged_is_a_reason(make: Make) -> None:
    trials = [*FIRST, *further(1e-4, [None]), *further(1e-3, [0.025])]
    drop = {"trial": 0, "action": "drop", "rule": "contenders", "round": 1, "leader": None, "p": None, "level": None}
    results = load(decided(make(trials, space=SPACE), BEGIN, drop))
    assert "after round 1 trial 0 was dropped, one of its seeds diverged or failed" in contest_text(results)


def test_only_the_newest_contest_counts(make: Make) -> None:
    trials = [*FIRST, *further(1e-4, [0.030]), *further(1e-3, [0.025])]
    drop = {"trial": 0, "action": "drop", "rule": "contenders", "round": 1, "leader": None, "p": None, "level": None}
    again = {**BEGIN, "contenders": [0, 1, 2]}
    assert load(decided(make(trials, space=SPACE), BEGIN, drop, again)).contest.left == (0, 1, 2)


def test_other_trainings_of_the_same_settings_are_no_further_seeds_and_the_answer_names_the_newest(make: Make) -> None:
    # The same settings and seeds twice, as after a change of the model's source; the old code was better.
    found = load(make([*seeds(1e-4, 0.01, 0.03), *seeds(1e-4, 0.05, 0.07)], space=SPACE))
    board = found.configurations
    assert board[["trial", "seeds", "mean"]].to_numpy().tolist() == [[0, 2, pytest.approx(0.02)], [2, 2, pytest.approx(0.06)]]
    text = "The best is trial 0; trial 2 has the same settings and is another training: your model's source"
    assert any(remark.startswith(text) for remark in remarks(found))
    better = load(make([*seeds(1e-4, 0.05, 0.07), *seeds(1e-4, 0.01, 0.03)], space=SPACE, name="better"))
    assert not any("another training" in remark for remark in remarks(better))
