"""Elastic trials on 2 CPUs: the survivor of an early stop grows, a third trial gets its place first, and room is given back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import raysweep
from raysweep.cluster.resources import Allocation
from raysweep.config import Experiment, Sweep
from raysweep.store.journal import read_events
from raysweep.train import elastic
from raysweep.train.attempts import Event
from raysweep.train.runtime import Row
from raysweep.tune.engine import run_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("resources_return")]

NET = """
import pathlib
import time
import torch

JOURNAL = pathlib.Path(__file__).parent / "s" / "journal.jsonl"

class Net(torch.nn.Conv2d):
    "Of 10 steps an epoch. The bad ones are judged after the good one, which waits in its second epoch until they have ended."
    def __init__(self, kind):
        super().__init__(1, 1, 3, padding=1)
        self.kind, self.steps = kind, 0

    def waits(self):
        told = JOURNAL.read_bytes()
        if self.kind == "good":
            return self.steps == 15 and told.count(b'"event":"end"') < OTHERS
        return self.steps == 5 and b'{"row":[0,' not in told

    def forward(self, x):
        if self.training:
            self.steps += 1
            while self.waits():
                time.sleep(0.05)
            is_alone = not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
            # So slow that growing pays all the time, however long workers take to start.
            time.sleep(3 if self.kind == "good" and is_alone and self.steps > 10 else 0.02)
        return super().forward(x) + (0 if self.kind == "good" else 3)
"""


def swept(directory: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str]) -> tuple[raysweep.SweepResult, list[Event]]:
    (directory / "sleepynet.py").write_text(NET.replace("OTHERS", str(len(kinds) - 1)))
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    sweep = {
        "name": "s",
        "experiment": {
            "data": {"source": "digits", "count": 200},
            "model": {"factory": "sleepynet:Net", "params": {"kind": "good"}},
            "train": {"epochs": 16, "batch_size": 16},
            "scale": {"workers": [1, 2], "resize_check_s": 1.0},
        },
        "space": {"model.params.kind": {"grid": kinds}},
        "scheduler": {"name": "asha", "reduction_factor": 2},
    }
    finished = run_sweep(Sweep.from_dict(sweep), storage=directory)
    assert finished.exit_code == 0
    return raysweep.open(finished.directory.path), list(read_events(finished.directory.journal))


def check_growth(result: raysweep.SweepResult, events: list[Event]) -> Event:
    sizes = result.rows[result.rows["trial"] == 0]["world_size"].tolist()
    assert sizes[0] == 1
    assert sizes[-1] == 2
    assert sizes == sorted(sizes)
    (resize,) = [event for event in events if event["event"] == "resize"]
    assert (resize["trial"], resize["from"], resize["to"], resize["redone_steps"]) == (0, 1, 2, 0)
    assert result.rows[result.rows["trial"] == 0]["epoch"].tolist() == list(range(1, 17))
    return resize


def test_the_survivor_of_two_trials_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, events = swept(tmp_path, monkeypatch, ["good", "bad"])
    assert list(result.trials["status"]) == ["completed", "stopped"]
    check_growth(result, events)


def test_a_trial_that_waits_gets_its_place_before_another_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, events = swept(tmp_path, monkeypatch, ["good", "bad", "worse"])
    assert list(result.trials["status"]) == ["completed", "stopped", "stopped"]
    resize = check_growth(result, events)
    third = next(event for event in events if event["event"] == "end" and event["trial"] == 2)
    assert resize["time"] > third["time"], "while it waited and ran, the first one's share was 1"


def test_a_share_that_falls_makes_room_for_who_waits(tmp_path: Path) -> None:
    """Two drivers, as a sweep's trials have them: the first holds both CPUs when the second comes."""
    share, events = [2], list[Event]()
    base = {"data": {"source": "digits", "count": 400}, "model": {"depth": 1, "base_channels": 4}}
    scale = {"workers": [1, 2], "resize_check_s": 0.5}
    long, short = (Experiment.from_dict({**base, "scale": scale, "train": {"epochs": n}}) for n in (100_000, 2))
    first, second = tmp_path / "aaaaaaaaaaaa", tmp_path / "bbbbbbbbbbbb"
    seen = threading.Event()
    ended = threading.Event()

    def on_row(_row: Row) -> None:
        seen.set()
        if ended.is_set():
            raise SystemExit

    def run_first() -> None:
        with pytest.raises(SystemExit):
            elastic.fit(long, first, Allocation(1, 1, 0, 2), on_row, events.append, share=lambda: share[0])

    for directory in (first, second):
        directory.mkdir()
    thread = threading.Thread(target=run_first)
    thread.start()
    try:
        assert seen.wait(250)
        share[0] = 1
        outcome = elastic.fit(short, second, Allocation(1, 1, 0, 2), lambda _row: None, share=lambda: 1)
        assert outcome.status == "completed", "long before the first one's end, or it would have been given up"
    finally:
        ended.set()
        thread.join(200)
    assert [(event["from"], event["to"], event["redone_steps"]) for event in events] == [(2, 1, 0)]
