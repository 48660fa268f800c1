"""The sample ledger: the committed history of attempts, and what it says of samples lost and repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers_train import gloo, local_run, tiny_dataset, tiny_experiment, train_cases

from raysweep.console import commandline
from raysweep.errors import StoreError
from raysweep.train import ledger
from raysweep.train.ledger import check, committed
from raysweep.train.runtime import Wishes

TRAIN = list(range(6))  # three steps of two


def write(trial: Path, attempt: int, start: int, steps: list[tuple[int, int, list[int]]], rank: int = 0, tail: str = "") -> None:
    """An attempt's file: steps as (epoch, step in the epoch, samples)."""
    lines: list[dict[str, Any]] = [{"start": start, "world_size": 1}]
    if rank == 0:
        lines[0] |= {"batch_size": 2, "train": TRAIN}
    lines += [{"epoch": e, "step": s, "global_step": 3 * (e - 1) + s, "samples": samples} for e, s, samples in steps]
    (trial / "ledger").mkdir(exist_ok=True)
    (trial / "ledger" / f"{attempt:05d}-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)


EPOCH = [(1, 0, [0, 1]), (1, 1, [2, 3]), (1, 2, [4, 5])]


def test_a_whole_epoch_has_nothing_lost_and_nothing_repeated(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, EPOCH)
    report = check(committed(tmp_path), [1])
    assert (report.lost, report.repeated) == (0, 0)
    (epoch,) = report.epochs
    assert (epoch.samples, epoch.attempts, epoch.is_whole) == (6, (1,), True)


def test_an_attempt_counts_up_to_where_the_next_started(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, EPOCH[:2], tail='{"epoch": 1, "st')
    write(tmp_path, 2, 1, EPOCH[1:])
    history = committed(tmp_path)
    report = check(history, [1])
    assert (report.lost, report.repeated) == (0, 0)
    assert report.epochs[0].attempts == (1, 2)
    assert (history.num_attempts, history.redone_steps) == (2, 1)


def test_a_later_attempt_that_fell_back_further_undoes_those_between(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, EPOCH)
    write(tmp_path, 2, 2, EPOCH[2:])
    write(tmp_path, 3, 3, [])  # killed before its first step
    (tmp_path / "ledger" / "00004-0.jsonl").write_text("")  # killed before it had begun
    write(tmp_path, 5, 1, EPOCH[1:])
    report = check(committed(tmp_path), [1])
    assert (report.lost, report.repeated) == (0, 0)
    assert report.epochs[0].attempts == (1, 5)


def test_what_is_lost_and_what_is_repeated_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, [(1, 0, [0, 1]), (1, 1, [2, 2]), (1, 2, [4, 99])])
    report = check(committed(tmp_path), [1, 2])
    assert report.epochs[0].lost == (3, 5)
    assert report.epochs[0].repeated == (2, 99)
    assert report.epochs[1].lost == tuple(TRAIN), "an epoch that must be there and is not"
    assert (report.lost, report.repeated) == (8, 2)


def test_ranks_together_make_a_step_and_a_missing_part_is_lost(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, [(1, s, samples[:1]) for _, s, samples in EPOCH])
    write(tmp_path, 1, 0, [(1, s, samples[1:]) for _, s, samples in EPOCH], rank=1)
    assert check(committed(tmp_path), [1]).lost == 0
    (tmp_path / "ledger" / "00001-1.jsonl").unlink()
    assert check(committed(tmp_path), [1]).epochs[0].lost == (1, 3, 5)


def test_an_epoch_in_progress_has_lost_nothing_yet_but_one_before_it_has(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, EPOCH[:2])
    report = check(committed(tmp_path))
    assert (report.lost, report.epochs[0].is_whole) == (0, False)
    write(tmp_path, 1, 0, [*EPOCH[:2], (2, 0, [0, 1])])
    assert check(committed(tmp_path)).lost == 2


def test_a_ledger_that_is_not_there_or_damaged_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"written with train\.ledger: true"):
        committed(tmp_path)
    write(tmp_path, 1, 0, EPOCH, tail="{torn\n")
    with pytest.raises(StoreError, match="damaged"):
        committed(tmp_path)


def test_the_command_prints_each_epoch_and_fails_on_a_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 1, 0, EPOCH)
    commandline(ledger.command)(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1: samples 6, lost 0, repeated 0, attempts 1",
        "lost 0, repeated 0 in 1 epochs of 6 samples; 1 attempts, 0 steps redone",
    ]
    write(tmp_path, 1, 0, [*EPOCH[:2], (1, 2, [4, 4])])
    with pytest.raises(typer.Exit) as left:
        commandline(ledger.command)(tmp_path)
    assert left.value.exit_code == 1
    assert "samples 6, lost 1, repeated 1" in capsys.readouterr().out


def test_a_stopped_and_resumed_run_has_each_sample_once(tmp_path: Path) -> None:
    experiment = tiny_experiment(train__ledger=True, train__batch_size=2)
    dataset = tiny_dataset(20)
    asked = iter([False, False, True])
    outcome, _ = local_run(experiment, dataset, tmp_path, wishes=lambda: Wishes("interrupted" if next(asked, True) else ""))
    assert outcome.status == "interrupted"
    local_run(experiment, dataset, tmp_path)
    history = committed(tmp_path)
    report = check(history, [1, 2])
    assert (report.lost, report.repeated, history.num_attempts, history.redone_steps) == (0, 0, 2, 0)
    assert history.train == tuple(dataset.train.tolist())
    assert sum(len(line.samples) for line in history.taken) == 40


def test_no_ledger_without_the_setting(tmp_path: Path) -> None:
    local_run(tiny_experiment(), tiny_dataset(20), tmp_path)
    assert not (tmp_path / "ledger").exists()


def test_a_ledger_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("a file where the directory should be")
    with pytest.raises(StoreError, match=r"set train\.ledger to false"):
        local_run(tiny_experiment(train__ledger=True), tiny_dataset(20), tmp_path)


def test_three_workers_share_each_step_and_stand_ins_do_not_count(tmp_path: Path) -> None:
    dataset = tiny_dataset(10)  # steps of 4, 4 and 2: the last leaves one worker without a share
    experiment = tiny_experiment(train__ledger=True, train__batch_size=4, train__micro_batch=1)
    resumed = tiny_experiment(train__ledger=True, train__batch_size=4, train__epochs=3)
    gloo(3, train_cases, [("a", experiment, dataset), ("a", resumed, dataset)], tmp_path)
    local_run(tiny_experiment(train__ledger=True, train__batch_size=4, train__epochs=4), dataset, tmp_path / "a")
    report = check(committed(tmp_path / "a"), range(1, 5))
    assert (report.lost, report.repeated) == (0, 0)
    assert [epoch.samples for epoch in report.epochs] == [10] * 4
    assert [epoch.attempts for epoch in report.epochs] == [(1,), (1,), (2,), (3,)]
    assert len({line.rank for line in committed(tmp_path / "a").taken if line.samples}) == 3
