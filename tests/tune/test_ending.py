"""The CPUs of trials that have ended come back, whatever became of their own processes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysweep.train.mailbox import Mailbox
from raysweep.tune import ending
from raysweep.tune.ending import EndWorkers


class Played:
    """Two trials that train, and a clock set by hand."""

    def __init__(self, trials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.freed = 0.0, list[tuple[float, list[str]]]()
        self.boxes = {key: Mailbox(trials / key, 1) for key in ("aaa", "bbb")}
        for box in self.boxes.values():
            box.open()
            box.let_in()
        monkeypatch.setattr(ending, "free_leftovers", lambda keys: self.freed.append((self.now, list(keys))))
        self.callback = EndWorkers(trials, lambda: self.now)

    def train(self, key: str) -> None:
        self.boxes[key].put_began(0, 100)
        pulse = self.boxes[key]._pulse
        assert pulse is not None
        pulse.close()  # a real worker's process ends

    def stop(self, key: str) -> None:
        self.callback.on_trial_complete(1, [], SimpleNamespace(config={"key": key}))

    def pass_to(self, second: int) -> None:
        while self.now < second:
            self.now += 0.5
            self.callback.on_step_end(1, [])


def test_the_workers_of_the_trial_that_ended_are_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch)
    played.stop("aaa")
    assert [box.wishes().end for box in played.boxes.values()] == ["interrupted", ""]


def test_what_is_left_is_freed_once_when_the_workers_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch)
    played.stop("aaa")
    played.pass_to(10)
    assert played.freed == [], "they may be saving"
    played.boxes["aaa"].close()
    played.pass_to(100)
    ((at, keys),) = played.freed
    assert keys == ["aaa"]
    assert 13 <= at <= 16


def test_workers_that_died_with_their_trainer_are_known_by_their_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch)
    played.train("aaa")
    played.stop("aaa")
    for second in range(0, 31, 10):  # a step takes 10 s
        played.pass_to(second)
        os.utime(tmp_path / "aaa" / "mail" / "1" / "pulse", (second, 1000 + second))
    played.pass_to(100)
    ((at, keys),) = played.freed
    assert keys == ["aaa"]
    assert 50 <= at <= 53


def test_workers_that_do_not_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch)
    for key in ("aaa", "bbb"):
        played.train(key)
        played.stop(key)
    for second in range(0, 200, 5):
        played.pass_to(second)
        for key in ("aaa", "bbb"):
            os.utime(tmp_path / key / "mail" / "1" / "pulse", (second, 1000 + second))
    ((at, keys),) = played.freed
    assert keys == ["aaa", "bbb"]
    assert 120 <= at <= 122


def test_a_member_of_a_population_that_trains_its_next_segment_keeps_its_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path, monkeypatch)
    played.stop("aaa")
    played.callback.on_trial_start(1, [], SimpleNamespace(config={"key": "aaa"}))
    played.pass_to(200)
    assert played.freed == []


def test_mail_that_is_closed_while_it_is_looked_at_ends_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch)
    played.stop("aaa")
    monkeypatch.setattr(Path, "glob", lambda mail, _pattern: [mail / "1" / "pulse"])  # which is gone
    played.pass_to(30)
    assert [keys for _, keys in played.freed] == [["aaa"]]
