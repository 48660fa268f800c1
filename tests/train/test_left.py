"""Workers outlive a driver that is killed, and their rows are told by the next one: none is lost, none is told twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import local_run, tiny_dataset, tiny_experiment

from raysweep.train.here import fit_here
from raysweep.train.left import LeftRows
from raysweep.train.mailbox import Mailbox


def leave(trial: Path, epochs: list[int], attempt: int = 1) -> None:
    """Rows in the mail of a driver that is dead."""
    mailbox = Mailbox(trial, attempt)
    mailbox.open()
    for epoch in epochs:
        mailbox.put_row({"epoch": epoch, "val_loss": 1 / epoch})


def told_by(trial: Path, first: int) -> list[int]:
    """The epochs that are told when the next attempt's first row is of an epoch."""
    told: list[int] = []
    rows = LeftRows(trial, lambda row: told.append(row["epoch"]))
    rows({"epoch": first})
    rows({"epoch": first + 1})
    return told


def test_rows_before_the_checkpoints_own_are_told_first_and_later_ones_are_trained_again(tmp_path: Path) -> None:
    leave(tmp_path, [3, 4, 5, 6])
    assert told_by(tmp_path, 5) == [3, 4, 5, 6], "5 is the checkpoint's, 6 is trained again"
    assert told_by(tmp_path, 9) == [9, 10], "and are told once"


def test_of_several_attempts_each_epoch_is_told_once(tmp_path: Path) -> None:
    leave(tmp_path, [1, 2, 3])
    leave(tmp_path, [3, 4], attempt=2)
    assert told_by(tmp_path, 9) == [1, 2, 3, 4, 9, 10]


def test_without_mail_rows_pass(tmp_path: Path) -> None:
    assert told_by(tmp_path, 1) == [1, 2]
    assert not list(tmp_path.iterdir())


def test_a_driver_that_is_killed_before_its_first_row_leaves_them_to_the_next(tmp_path: Path) -> None:
    leave(tmp_path, [1, 2])
    LeftRows(tmp_path, print)
    leave(tmp_path, [3])
    Mailbox(tmp_path, 1).close()  # what an orderly end clears away, one before the first row included
    assert told_by(tmp_path, 4) == [1, 2, 4, 5]
    leave(tmp_path, [5])
    mail = tmp_path / "mail"
    (mail / "1").rename(mail / "left-1")  # killed between two lines
    leave(tmp_path, [6])
    assert told_by(tmp_path, 7) == [5, 6, 7, 8]


def test_a_row_that_the_driver_refuses_stays(tmp_path: Path) -> None:
    leave(tmp_path, [1, 2])

    def refuse(_row: Any) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        LeftRows(tmp_path, refuse)({"epoch": 3})
    assert told_by(tmp_path, 3) == [1, 2, 3, 4]


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    leave(tmp_path, [1])
    with (tmp_path / "mail" / "1" / "rows.jsonl").open("a") as file:
        file.write('{"epoch": 2')
    (tmp_path / "rows-left.jsonl").write_text('{"epoch": 0}\n{"epo')
    assert told_by(tmp_path, 5) == [0, 1, 5, 6]


def test_their_workers_are_given_up(tmp_path: Path) -> None:
    leave(tmp_path, [])
    LeftRows(tmp_path, print)
    with pytest.raises(Exception, match="has gone on without these workers"):
        Mailbox(tmp_path, 1).wishes()


def test_a_run_that_goes_on_in_one_process_tells_what_its_workers_had_left(tmp_path: Path) -> None:
    dataset = tiny_dataset(20)
    _, rows = local_run(tiny_experiment(train__epochs=4), dataset, tmp_path)
    mailbox = Mailbox(tmp_path, 1)
    mailbox.open()
    for row in rows:
        mailbox.put_row(row)  # the driver died after epoch 1
    told: list[Any] = []
    fit_here(tiny_experiment(train__epochs=6), dataset, tmp_path, torch.device("cpu"), 1, told.append)
    assert [row["epoch"] for row in told] == [1, 2, 3, 4, 5, 6]
    assert [row["val_loss"] for row in told[:4]] == [row["val_loss"] for row in rows]
    assert json.dumps(told[1]).count("redone_steps") == 1
