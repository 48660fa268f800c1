"""A disk that fills up in the middle of a sweep, on a real cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import raysweep
from raysweep.cluster.join import Cluster
from raysweep.config import Sweep
from raysweep.errors import DiskError
from raysweep.store.journal import read_events
from raysweep.store.results import load


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB in memory: room for the checkpoints of one trial."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting needs root: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.usefixtures("resources_return")
def test_a_disk_that_fills_up_ends_the_sweep_once_and_with_more_room_it_goes_on(cluster: Cluster, small_disk: Path) -> None:
    sweep = Sweep.from_dict(
        {
            "name": "s",
            "experiment": {
                "data": {"source": "digits", "count": 100},
                "model": {"depth": 2, "base_channels": 64},  # a checkpoint of 3.6 MB
                "train": {"epochs": 2, "batch_size": 32, "checkpoint_every_epochs": 1},
            },
            "space": {"optim.lr": {"grid": [1e-3, 2e-3, 3e-3, 4e-3]}},
        }
    )
    with pytest.raises(DiskError, match=r"trials/.*: the disk is full .* the same command goes on"):
        raysweep.sweep(sweep, storage=small_disk)
    statuses = load(small_disk / "s").trials["status"]
    assert set(statuses) <= {"completed", "interrupted", "unfinished"}, "it is no trial's failure"
    assert list(statuses).count("completed") <= 1
    told = list(read_events(small_disk / "s" / "journal.jsonl"))

    subprocess.run(["mount", "-o", "remount,size=60m", small_disk], check=True)
    result = raysweep.sweep(sweep, storage=small_disk)
    assert list(result.trials["status"]) == ["completed"] * 4
    events = list(read_events(small_disk / "s" / "journal.jsonl"))
    assert events[: len(told)] == told
    rows = [(event["trial"], event["epoch"]) for event in events if event["event"] == "row"]
    assert sorted(rows) == [(trial, epoch) for trial in range(4) for epoch in (1, 2)], "once each"
